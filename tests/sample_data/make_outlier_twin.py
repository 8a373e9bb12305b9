#!/usr/bin/env python3
"""Writes an outlier-injected copy of a sample model: the same function, but with outlier channels in keys and values.

Scales channels of the keys up and the same channels of the queries down. Also scales channels of the values up and the
columns of W_O that read them down. All factors are powers of two, so every product is exact in BF16. With QK-norm the
key factors go into the norms' weights (one set for all heads); otherwise into the rows of W_K and W_Q, including biases
(one set per KV head). Both channels of a RoPE plane get one factor, because otherwise RoPE and scaling do not commute.
Most factors are 1/2, 1 or 2; three planes of the keys get 8 to 32, four channels of each head's values 4 to 32.

    python tests/sample_data/make_outlier_twin.py sample_data/tiny-llama build/tiny-llama-outliers
"""
import argparse
import json
import os
import pathlib
import random
import shutil

import torch
from safetensors.torch import load_file, save_file


def factors(rng, count, outliers, exponents):
    """count powers of two: mostly small ones, with `outliers` large ones."""
    result = [max(-1, min(1, round(rng.gauss(0, 0.66)))) for _ in range(count)]
    for channel in rng.sample(range(count), outliers):
        result[channel] = rng.choice(exponents)
    return [2.0**e for e in result]


def scale_rows(tensors, name, factor):
    for part in ("weight", "bias"):
        if f"{name}.{part}" in tensors:
            old = tensors[f"{name}.{part}"]
            new = old * factor.to(old.dtype).view(-1, *[1] * (old.dim() - 1))
            assert torch.equal(new.float(), old.float() * factor.view(-1, *[1] * (old.dim() - 1))), "not exact"
            tensors[f"{name}.{part}"] = new


def make_twin(tensors, config, seed):
    rng = random.Random(seed)
    dim = config.get("head_dim") or config["hidden_size"] // config["num_attention_heads"]
    kv_heads = config["num_key_value_heads"]
    group = config["num_attention_heads"] // kv_heads
    for layer in range(config["num_hidden_layers"]):
        prefix = f"model.layers.{layer}.self_attn"
        normed = f"{prefix}.k_norm.weight" in tensors
        sets = [factors(rng, dim // 2, 3, (3, 4, 5)) * 2 for _ in range(1 if normed else kv_heads)]
        keys = torch.tensor(sets)  # [1 or Hkv, d]
        queries = (1 / keys).repeat_interleave(1 if normed else group, 0)  # [1 or Hq, d]
        scale_rows(tensors, f"{prefix}.k_norm" if normed else f"{prefix}.k_proj", keys.flatten())
        scale_rows(tensors, f"{prefix}.q_norm" if normed else f"{prefix}.q_proj", queries.flatten())
        values = torch.tensor([factors(rng, dim, 4, (2, 3, 4, 5)) for _ in range(kv_heads)])  # [Hkv, d]
        scale_rows(tensors, f"{prefix}.v_proj", values.flatten())
        name = f"{prefix}.o_proj.weight"
        columns = (1 / values).repeat_interleave(group, 0).flatten()  # [Hq * d]
        tensors[name] = tensors[name] * columns.to(tensors[name].dtype)


def write_twin(model, output, seed):
    config = json.loads((model / "config.json").read_text())
    tensors = load_file(model / "model.safetensors")
    make_twin(tensors, config, seed)
    output.mkdir(parents=True, exist_ok=True)
    for file in model.glob("*.json"):
        shutil.copyfile(file, output / file.name)
    # First under a temporary name, so that another process that makes the same copy never reads a partial file.
    temporary = output / f"model.safetensors.{os.getpid()}"
    save_file({name: tensor.contiguous() for name, tensor in tensors.items()}, temporary, metadata={"format": "pt"})
    temporary.chmod(0o644)
    temporary.replace(output / "model.safetensors")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", type=pathlib.Path)
    parser.add_argument("output", type=pathlib.Path)
    parser.add_argument("--seed", type=int, default=20261122)
    options = parser.parse_args()
    write_twin(options.model, options.output, options.seed)


if __name__ == "__main__":
    main()
