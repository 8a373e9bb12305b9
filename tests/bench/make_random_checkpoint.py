#!/usr/bin/env python3
"""Writes a checkpoint with random weights and the geometry of Qwen3-8B (or -4B), for timing collection at full size.

    python tests/bench/make_random_checkpoint.py OUTPUT [--geometry 8b|4b|tiny] [--device cuda]

The tokenizer is linked from sample_data/tiny-qwen3; the vocabulary is padded to the real size.
"""
import argparse
import json
import pathlib

import torch
from safetensors.torch import save_file

GEOMETRY = {
    "8b": dict(hidden_size=4096, intermediate_size=12288, num_hidden_layers=36, num_attention_heads=32,
               num_key_value_heads=8, head_dim=128, vocab_size=151936),
    "4b": dict(hidden_size=2560, intermediate_size=9728, num_hidden_layers=36, num_attention_heads=32,
               num_key_value_heads=8, head_dim=128, vocab_size=151936),
    "tiny": dict(hidden_size=256, intermediate_size=512, num_hidden_layers=3, num_attention_heads=4,
                 num_key_value_heads=2, head_dim=64, vocab_size=8192),
}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("output", type=pathlib.Path)
    parser.add_argument("--geometry", choices=GEOMETRY, default="8b")
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    options = parser.parse_args()
    g = GEOMETRY[options.geometry]
    options.output.mkdir(parents=True)
    config = {
        "architectures": ["Qwen3ForCausalLM"], "model_type": "qwen3", "hidden_act": "silu", "rms_norm_eps": 1e-6,
        "max_position_embeddings": 40960, "tie_word_embeddings": False, "rope_theta": 1e6, "attention_bias": False,
        "torch_dtype": "bfloat16", "eos_token_id": 1, "sliding_window": None, **g,
    }
    (options.output / "config.json").write_text(json.dumps(config, indent=1))
    sample = pathlib.Path(__file__).resolve().parents[2] / "sample_data" / "tiny-qwen3"
    for name in ("tokenizer.json", "tokenizer_config.json"):
        (options.output / name).symlink_to(sample / name)

    generator = torch.Generator(options.device).manual_seed(1)
    weight = lambda *shape: (torch.randn(shape, generator=generator, device=options.device) * shape[-1] ** -0.5).bfloat16().cpu()
    ones = lambda n: torch.ones(n, dtype=torch.bfloat16)
    h, m, d = g["hidden_size"], g["intermediate_size"], g["head_dim"]
    q, kv = g["num_attention_heads"] * d, g["num_key_value_heads"] * d
    index, total = {}, 0

    def shard(number, tensors):
        nonlocal total
        name = f"model-{number:05d}.safetensors"
        save_file(tensors, options.output / name)
        for key, tensor in tensors.items():
            index[key] = name
            total += tensor.numel() * 2

    shard(0, {"model.embed_tokens.weight": weight(g["vocab_size"], h), "lm_head.weight": weight(g["vocab_size"], h),
              "model.norm.weight": ones(h)})
    for i in range(g["num_hidden_layers"]):
        p = f"model.layers.{i}."
        shard(i + 1, {
            p + "self_attn.q_proj.weight": weight(q, h), p + "self_attn.k_proj.weight": weight(kv, h),
            p + "self_attn.v_proj.weight": weight(kv, h), p + "self_attn.o_proj.weight": weight(h, q),
            p + "self_attn.q_norm.weight": ones(d), p + "self_attn.k_norm.weight": ones(d),
            p + "mlp.gate_proj.weight": weight(m, h), p + "mlp.up_proj.weight": weight(m, h),
            p + "mlp.down_proj.weight": weight(h, m), p + "input_layernorm.weight": ones(h),
            p + "post_attention_layernorm.weight": ones(h),
        })
    (options.output / "model.safetensors.index.json").write_text(
        json.dumps({"metadata": {"total_size": total}, "weight_map": index}))
    print(f"{options.output}: {total / 1e9:.1f} GB")


if __name__ == "__main__":
    main()
