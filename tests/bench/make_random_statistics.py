#!/usr/bin/env python3
"""Writes a statistics file of random rows with the geometry of Qwen3-8B, as oscar-collect would, for timing oscar-fit.

    python tests/bench/make_random_statistics.py OUTPUT [--layers 36] [--rows 512] [--tokens 2048]

Channels have sizes that spread over two decades, and a few are outliers, as those of models are.
"""
import argparse
import json

import torch
from safetensors.torch import save_file

QUERY_HEADS, KV_HEADS, D, HIDDEN = 32, 8, 128, 4096


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("output")
    parser.add_argument("--layers", type=int, default=36)
    parser.add_argument("--rows", type=int, default=512)
    parser.add_argument("--tokens", type=int, default=2048)
    options = parser.parse_args()
    torch.manual_seed(1)
    n, group = options.tokens, QUERY_HEADS // KV_HEADS

    def rows(heads):
        size = torch.exp(0.6 * torch.randn(1, heads, D)) * (1 + 20 * (torch.rand(1, heads, D) < 0.02))
        mixed = torch.randn(n, heads, D) @ (torch.eye(D) + 0.3 * torch.randn(D, D) / D**0.5)
        return (mixed * size).bfloat16().float()

    def gram(x):  # [n, heads, D] -> [Hkv, D, D], heads of a group together
        x = x.double().reshape(n, KV_HEADS, -1, D).permute(1, 0, 2, 3).reshape(KV_HEADS, -1, D)
        g = x.transpose(1, 2) @ x
        return (g + g.transpose(1, 2)) / 2

    picked = torch.randperm(n)[:options.rows].sort().values
    tensors = {"rows.priority": torch.arange(options.rows).to(torch.uint64), "rows.position": picked.clone(),
               "rope_frequency": torch.zeros(D // 2, dtype=torch.float64),
               "embedding_energy": torch.tensor([12.5 * n, float(n)], dtype=torch.float64)}
    for i in range(options.layers):
        q, k, v, o = rows(QUERY_HEADS), rows(KV_HEADS) + 0.5, rows(KV_HEADS), rows(QUERY_HEADS)
        far = torch.rand(n, 1, 1)
        out = {"q_gram": gram(q), "k_gram": gram(k), "v_gram": gram(v), "o_gram": gram(o), "energy_gram": gram(v * far),
               "wo_gram": gram(rows(QUERY_HEADS)) / n, "far_q_gram": gram(q * far), "far_v_weight": gram(o * far),
               "far_count": torch.tensor([n - 320.0, (n - 320.0) * 800], dtype=torch.float64),
               "k_sum": k.double().sum(0), "v_sum": v.double().sum(0),
               "attention_residual": torch.tensor([[40.0 * n, n], [45.0 * n, n - 320.0]], dtype=torch.float64),
               "residual_energy": torch.tensor([50.0 * n, n], dtype=torch.float64)}
        for name in ("q_gram", "k_gram", "k_sum"):
            out["pre_" + name] = out[name].clone()
        out["far_pre_q_gram"] = out["far_q_gram"].clone()  # nothing turns: all frequencies are zero
        tensors.update({f"layers.{i}.{name}": t.contiguous() for name, t in out.items()})
        tensors.update({f"rows.{i}.{name}": t[picked].contiguous() for name, t in (("q", q), ("k", k), ("v", v))})
    facts = {"format_version": 3, "tool": {"name": "oscar-collect", "version": "0.0.0"}, "tokens": n,
             "model": {"name": "random", "fingerprint": "v2:sha256:" + "0" * 64, "architecture": "Qwen3ForCausalLM",
                       "layers": options.layers, "query_heads": QUERY_HEADS, "kv_heads": KV_HEADS, "head_dim": D, "hidden": HIDDEN,
                       "max_position": 40960, "attention_scale": D**-0.5, "rope_scale": 1.0},
             "rows": {"requested": options.rows, "kept": options.rows},
             "parts": [{"prompts": {"sha256": "0" * 64}, "tokens": n, "sequences": 1}]}
    save_file(tensors, options.output, {"format": "oscar-statistics", "format_version": "3", "oscar": json.dumps(facts)})


if __name__ == "__main__":
    main()
