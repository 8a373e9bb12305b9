#!/usr/bin/env python3
"""Writes a checkpoint of random weights with the layers of GLM-4.7 in FP8 with a scale for each row, one shard for each layer.

    python tests/bench/make_glm_checkpoint.py OUTPUT [--layers 4] [--geometry full|tiny] [--device cuda] [--index-of 92]

Weights are made on the device one tensor at a time; memory holds one tensor of experts and the shard that is being written. The first
layers are dense, as in the model (three of 92; here one), so that most of what is timed has experts. --index-of N writes a second
folder OUTPUT-index with config.json and the index of N layers and no shards, for --dry-run. Needs torch alone: the files are written
here, because one layer is 3.9 GB and should not be in memory twice.
"""
import argparse
import json
import pathlib
import struct

import torch

FULL = dict(hidden_size=5120, intermediate_size=12288, num_attention_heads=96, num_key_value_heads=8, head_dim=128, vocab_size=151552,
            n_routed_experts=160, num_experts_per_tok=8, moe_intermediate_size=1536, n_shared_experts=1)
TINY = dict(hidden_size=256, intermediate_size=384, num_attention_heads=12, num_key_value_heads=2, head_dim=64, vocab_size=8192,
            n_routed_experts=16, num_experts_per_tok=4, moe_intermediate_size=96, n_shared_experts=1)
NAMES = {torch.float8_e4m3fn: "F8_E4M3", torch.bfloat16: "BF16", torch.float32: "F32"}


def config_of(geometry, layers, dense):
    return {"architectures": ["Glm4MoeForCausalLM"], "model_type": "glm4_moe", "hidden_act": "silu", "rms_norm_eps": 1e-5,
            "max_position_embeddings": 202752, "tie_word_embeddings": False, "rope_theta": 1e6, "partial_rotary_factor": 0.5,
            "attention_bias": True, "use_qk_norm": True, "n_group": 1, "topk_group": 1, "norm_topk_prob": True,
            "routed_scaling_factor": 2.5, "first_k_dense_replace": dense, "num_hidden_layers": layers, "torch_dtype": "bfloat16",
            "eos_token_id": [1], "num_nextn_predict_layers": 0,
            "quantization_config": {"quant_method": "compressed-tensors", "format": "float-quantized", "ignore": ["lm_head"],
                                    "config_groups": {"group_0": {"targets": ["Linear"], "weights": {
                                        "num_bits": 8, "type": "float", "strategy": "channel", "symmetric": True}}}}, **geometry}


def layer_tensors(g, layer, dense):
    """(name, shape, kind) of a layer; kind: fp8 (with a scale beside it), bf16, one, f32."""
    p, h, d = f"model.layers.{layer}.", g["hidden_size"], g["head_dim"]
    q, kv = g["num_attention_heads"] * d, g["num_key_value_heads"] * d
    found = [(p + "input_layernorm.weight", (h,), "one"), (p + "post_attention_layernorm.weight", (h,), "one"),
             (p + "self_attn.q_norm.weight", (d,), "one"), (p + "self_attn.k_norm.weight", (d,), "one")]
    for name, rows, columns in (("q", q, h), ("k", kv, h), ("v", kv, h), ("o", h, q)):
        found.append((f"{p}self_attn.{name}_proj.weight", (rows, columns), "fp8"))
        if name != "o":
            found.append((f"{p}self_attn.{name}_proj.bias", (rows,), "bf16"))

    def mlp(prefix, width):
        found.extend([(prefix + "gate_proj.weight", (width, h), "fp8"), (prefix + "up_proj.weight", (width, h), "fp8"),
                      (prefix + "down_proj.weight", (h, width), "fp8")])

    if layer < dense:
        mlp(p + "mlp.", g["intermediate_size"])
        return found
    found += [(p + "mlp.gate.weight", (g["n_routed_experts"], h), "bf16"),
              (p + "mlp.gate.e_score_correction_bias", (g["n_routed_experts"],), "f32")]
    for expert in range(g["n_routed_experts"]):
        mlp(f"{p}mlp.experts.{expert}.", g["moe_intermediate_size"])
    mlp(p + "mlp.shared_experts.", g["n_shared_experts"] * g["moe_intermediate_size"])
    return found


def outer_tensors(g):
    h, v = g["hidden_size"], g["vocab_size"]
    return [("model.embed_tokens.weight", (v, h), "bf16"), ("lm_head.weight", (v, h), "bf16"), ("model.norm.weight", (h,), "one")]


def stored(tensors):
    """With the scales: (name, shape, dtype, kind)."""
    types = dict(fp8=torch.float8_e4m3fn, bf16=torch.bfloat16, one=torch.bfloat16, f32=torch.float32)
    for name, shape, kind in tensors:
        yield name, shape, types[kind], kind
        if kind == "fp8":
            yield name + "_scale", (shape[0], 1), torch.bfloat16, "scale"


def size_of(shape, dtype):
    count = 1
    for extent in shape:
        count *= extent
    return count * dtype.itemsize


def values(shape, kind, columns, generator, device):
    """Weights of standard deviation columns^-1/2 after their scale, so that activations keep their size."""
    if kind == "one":
        return torch.ones(shape, dtype=torch.bfloat16)
    if kind == "scale":  # codes have a standard deviation of 100
        return torch.full(shape, columns ** -0.5 / 100, dtype=torch.bfloat16)
    noise = torch.randn(shape, generator=generator, device=device)
    if kind == "fp8":
        return noise.mul_(100).clamp_(-448, 448).to(torch.float8_e4m3fn)
    return noise.mul_(shape[-1] ** -0.5 if len(shape) > 1 else 0.1).to(torch.float32 if kind == "f32" else torch.bfloat16)


def write_shard(path, tensors, generator, device):
    """A safetensors file, tensor after tensor. Returns its bytes of data."""
    header, at = {}, 0
    for name, shape, dtype, _ in stored(tensors):
        header[name] = dict(dtype=NAMES[dtype], shape=list(shape), data_offsets=[at, at + size_of(shape, dtype)])
        at += size_of(shape, dtype)
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    with open(path, "wb") as file:
        file.write(struct.pack("<Q", len(text)) + text)
        columns = 1
        for _, shape, _, kind in stored(tensors):
            columns = shape[-1] if kind == "fp8" else columns
            file.write(values(shape, kind, columns, generator, device).cpu().contiguous().flatten().view(torch.uint8).numpy().data)
    return at


def write_index(folder, shards, total):
    folder.mkdir(parents=True, exist_ok=True)
    placed = {name: file for file, tensors in shards.items() for name, *_ in stored(tensors)}
    (folder / "model.safetensors.index.json").write_text(json.dumps({"metadata": {"total_size": total}, "weight_map": placed}))


def shards_of(g, layers, dense):
    shards = {"model-outer.safetensors": outer_tensors(g)}
    shards.update({f"model-{i:05d}.safetensors": layer_tensors(g, i, dense) for i in range(layers)})
    return shards


def link_tokenizer(folder):
    sample = pathlib.Path(__file__).resolve().parents[2] / "sample_data" / "tiny-qwen3"
    for name in ("tokenizer.json", "tokenizer_config.json"):
        (folder / name).unlink(missing_ok=True)
        (folder / name).symlink_to(sample / name)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("output", type=pathlib.Path)
    parser.add_argument("--layers", type=int, default=4)
    parser.add_argument("--geometry", choices=("full", "tiny"), default="full")
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--index-of", type=int, default=92)
    options = parser.parse_args()
    g = FULL if options.geometry == "full" else TINY
    options.output.mkdir(parents=True)
    generator, total = torch.Generator(options.device).manual_seed(1), 0
    shards = shards_of(g, options.layers, 1)
    for file, tensors in shards.items():
        total += write_shard(options.output / file, tensors, generator, options.device)
    (options.output / "config.json").write_text(json.dumps(config_of(g, options.layers, 1), indent=1))
    write_index(options.output, shards, total)
    link_tokenizer(options.output)

    index = options.output.with_name(options.output.name + "-index")
    whole = shards_of(g, options.index_of, 3)
    write_index(index, whole, sum(size_of(shape, dtype) for t in whole.values() for _, shape, dtype, _ in stored(t)))
    (index / "config.json").write_text(json.dumps(config_of(g, options.index_of, 3), indent=1))
    link_tokenizer(index)
    print(f"{options.output}: {total / 1e9:.1f} GB in {options.layers} layers")


if __name__ == "__main__":
    main()
