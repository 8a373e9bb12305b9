#!/usr/bin/env python3
"""How much attention of a model goes to coded tokens, and how it grows with the position: over the first and the last fifth of a
sequence, the mean of the squared sum of the weights on coded tokens (what errors that all tokens share cost), and of the sum of their
squares (what independent errors cost). Exact attention in FP32, windows 64/256.

    python tests/bench/coded_attention.py MODEL TEXT [--context 4096] [--sequences 2]
"""
import argparse

import torch
from transformers import AttentionInterface, AutoModelForCausalLM, AutoTokenizer

SINK, RECENT, BLOCK = 64, 256, 256
found = []  # of each layer in turn: [2, T]


def attend(module, query, key, value, mask, scaling, **_):
    """[1, H, T, d] each; blocks of queries, because all weights of a long sequence would not fit."""
    groups = query.shape[1] // key.shape[1]
    key, value = key.repeat_interleave(groups, 1), value.repeat_interleave(groups, 1)
    tokens = query.shape[2]
    output, costs = torch.empty_like(query), torch.zeros(2, tokens)
    at = torch.arange(tokens)[None]
    for begin in range(0, tokens, BLOCK):
        rows = torch.arange(begin, min(begin + BLOCK, tokens))[:, None]
        logits = (query[:, :, begin:begin + BLOCK] @ key.transpose(2, 3)) * scaling
        weights = logits.masked_fill(at > rows, float("-inf")).softmax(-1)
        output[:, :, begin:begin + BLOCK] = weights @ value
        coded = weights * ((at >= SINK) & (at < rows + 1 - RECENT))
        costs[0, begin:begin + BLOCK] = coded.sum(-1).square().mean((0, 1))
        costs[1, begin:begin + BLOCK] = coded.square().sum(-1).mean((0, 1))
    found.append(costs)
    return output.transpose(1, 2).contiguous(), None


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model")
    parser.add_argument("text")
    parser.add_argument("--context", type=int, default=4096)
    parser.add_argument("--sequences", type=int, default=2)
    options = parser.parse_args()
    AttentionInterface.register("coded", attend)
    model = AutoModelForCausalLM.from_pretrained(options.model, dtype=torch.float32, attn_implementation="coded")
    with open(options.text) as text:
        ids = torch.tensor(AutoTokenizer.from_pretrained(options.model)(text.read())["input_ids"])
    length, fifth = options.context, options.context // 5
    with torch.no_grad():
        for sequence in range(options.sequences):
            model(ids[None, sequence * length:(sequence + 1) * length])
    layers = torch.stack(found).view(options.sequences, -1, 2, length).mean(0)
    print("| layer | shared errors, first fifth | last | ratio | independent errors, first fifth | last | ratio |")
    print("|---:|" + "---:|" * 6)
    for number, costs in enumerate(layers):
        first, last = costs[:, :fifth].mean(1).tolist(), costs[:, -fifth:].mean(1).tolist()
        print(f"| {number} | " + " | ".join(f"{a:.5f} | {b:.5f} | {b / a:.1f}" for a, b in zip(first, last)) + " |")


if __name__ == "__main__":
    main()
