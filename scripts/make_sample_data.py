#!/usr/bin/env python3
"""Writes sample_data/prompts.jsonl and sample_data/heldout.txt.

Long text is sampled at temperature 1 from the sample model itself, because only text in a model's own distribution
makes KL and retrieval numbers mean something. Into it go, at random places, needles ("One of the special magic
numbers for K is: V."), their later recall, and verbatim repeats of an earlier span, few of them: a document sampled
token by token drifts away from text when most of it is needles. Chat, code, mathematics and other
languages are in sample_prompts.py, written for this project.

The seed is fixed. Samples depend on floating-point rounding, so another CPU or another torch may give other (equally
good) text: the files are kept in the repository and this script is run only to change them.

    python scripts/make_sample_data.py            # about 10 minutes
"""
import argparse
import json
import pathlib
import random
import unicodedata

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from sample_prompts import KEYS, written_prompts

ROOT = pathlib.Path(__file__).resolve().parent.parent / "sample_data"
NEEDLE = "One of the special magic numbers for {key} is: {value}."
QUESTION = (
    "What is the special magic number for {key} mentioned in the provided text? "
    "The special magic number for {key} mentioned in the provided text is: {value}."
)


def plan(tok, rng, keys, length, every):
    """Forced spans of one document: (position, tokens) for needles and recalls, (position, None) for a repeat."""
    spans = []
    encode = lambda text: tok(text, add_special_tokens=False).input_ids
    position = rng.randrange(40, 120)
    while position < length - 200:
        if rng.random() < 0.2:
            spans.append((position, None))
        else:
            key, value = keys.pop(), str(rng.randrange(10**6, 10**7))
            spans.append((position, encode("\n" + NEEDLE.format(key=key, value=value) + "\n")))
            # Recalled at a distance that is often beyond a recent window of 256 tokens, sometimes twice.
            for _ in range(rng.choice([1, 1, 2])):
                recall = position + rng.choice([120, 300, 500, 800, 1200, 1800]) + rng.randrange(100)
                if recall < length - 60:
                    form = NEEDLE if rng.random() < 0.6 else QUESTION
                    spans.append((recall, encode("\n" + form.format(key=key, value=value) + "\n")))
        position += every + rng.randrange(every)
    return sorted(spans, key=lambda span: span[0])


class Decoder:
    """Qwen3 one token at a time with a preallocated cache: growing the cache of transformers by concatenation would
    make documents of thousands of tokens take hours. Checked against transformers in main()."""

    def __init__(self, model, rows, length):
        self.model, config = model.model, model.config
        self.eps, self.heads, self.dim = config.rms_norm_eps, config.num_key_value_heads, config.head_dim
        self.cache = torch.zeros(config.num_hidden_layers, 2, rows, self.heads, length, self.dim)
        theta = getattr(config, "rope_theta", None) or config.rope_parameters["rope_theta"]
        self.frequencies = theta ** -(torch.arange(0, self.dim, 2).double() / self.dim)
        self.position = 0

    def norm(self, x, weight):
        return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + self.eps) * weight

    def rotate(self, x):
        angle = (self.position * self.frequencies).float().repeat(2)
        low, high = x.chunk(2, -1)
        return x * angle.cos() + torch.cat([-high, low], -1) * angle.sin()

    def step(self, tokens):
        """tokens [B] -> logits [B, vocabulary]"""
        x = self.model.embed_tokens(tokens)
        end = self.position + 1
        for layer, (keys, values) in zip(self.model.layers, self.cache):
            a, h = layer.self_attn, self.norm(x, layer.input_layernorm.weight)
            split = lambda y: y.view(len(tokens), -1, self.dim)
            q = self.rotate(self.norm(split(a.q_proj(h)), a.q_norm.weight))
            keys[:, :, self.position] = self.rotate(self.norm(split(a.k_proj(h)), a.k_norm.weight))
            values[:, :, self.position] = split(a.v_proj(h))
            q = q.view(len(tokens), self.heads, -1, self.dim)  # [B, Hkv, g, d]
            weights = torch.softmax(q @ keys[:, :, :end].transpose(-1, -2) * self.dim**-0.5, -1)
            x = x + a.o_proj((weights @ values[:, :, :end]).flatten(1))
            x = x + layer.mlp(self.norm(x, layer.post_attention_layernorm.weight))
        self.position = end
        return self.norm(x, self.model.norm.weight) @ self.model.embed_tokens.weight.T


@torch.no_grad()
def sample(model, tok, plans, length, seed):
    """One document for each plan, sampled together; returns token lists."""
    generator = torch.Generator().manual_seed(seed)
    banned = tok.convert_tokens_to_ids(["<|im_start|>", "<|im_end|>"])
    decoder = Decoder(model, len(plans), length)
    rows = [[] for _ in plans]
    queues = [[] for _ in plans]
    pending = [list(p) for p in plans]
    last = [tok.eos_token_id] * len(plans)
    for t in range(length):
        logits = decoder.step(torch.tensor(last)).double()
        logits[:, banned] = -torch.inf
        drawn = torch.multinomial(torch.softmax(logits, -1), 1, generator=generator)[:, 0].tolist()
        for b, row in enumerate(rows):
            if not queues[b] and pending[b] and pending[b][0][0] <= t:
                _, forced = pending[b].pop(0)
                if forced is None and len(row) > 100:
                    start = max(0, len(row) - 700)
                    forced = row[start : start + 60]
                queues[b] = list(forced or [])
            row.append(queues[b].pop(0) if queues[b] else drawn[b])
        last = [row[-1] for row in rows]
        if t % 500 == 0:
            print(f"  token {t} of {length}", flush=True)
    return rows


@torch.no_grad()
def check_decoder(model, tok):
    ids = tok("The valve is open and the pump is running.").input_ids
    decoder = Decoder(model, 1, len(ids))
    ours = torch.cat([decoder.step(torch.tensor([i])) for i in ids])
    difference = (ours - model(torch.tensor([ids])).logits[0]).abs().max().item()
    assert difference < 1e-3, f"the decoder of this script differs from transformers by {difference}"


def clean(tok, ids):
    """Text that survives another reading: valid, NFC, no control characters; end-of-text marks become blank lines."""
    text = tok.decode(ids).replace(tok.eos_token, "\n\n")
    text = unicodedata.normalize("NFC", text)
    return "".join(c for c in text if c == "\n" or c == "\t" or (c != "\ufffd" and unicodedata.category(c)[0] != "C"))


def ngrams(ids, n=24):
    """Runs of n tokens, except the ones that only stutter (fewer than n / 3 different tokens)."""
    runs = (tuple(ids[i : i + n]) for i in range(len(ids) - n + 1))
    return {run for run in runs if len(set(run)) >= n // 3}


def tokens_of(tok, row):
    if "input_ids" in row:
        return row["input_ids"]
    if "messages" in row:
        return tok("\n".join(m["content"] for m in row["messages"])).input_ids
    return tok(row.get("text") or row["prompt"]).input_ids


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seed", type=int, default=20260131)
    parser.add_argument("--output", type=pathlib.Path, default=ROOT)
    options = parser.parse_args()

    torch.set_num_threads(1)
    path = ROOT / "tiny-qwen3"
    tok = AutoTokenizer.from_pretrained(path)
    model = AutoModelForCausalLM.from_pretrained(path, dtype=torch.float32).eval()
    check_decoder(model, tok)
    rng = random.Random(options.seed)
    keys = list(KEYS)
    rng.shuffle(keys)

    print("held-out documents")
    heldout_rows = sample(model, tok, [plan(tok, rng, keys, 2200, 900) for _ in range(26)], 2200, options.seed)
    heldout = "\n\n".join(clean(tok, row).strip() for row in heldout_rows) + "\n"
    (options.output / "heldout.txt").write_text(heldout, encoding="utf-8")
    print(f"heldout.txt: {len(heldout.encode())} bytes, {len(tok(heldout).input_ids)} tokens")

    print("calibration documents")
    plans = [plan(tok, rng, keys, 2600, 900) for _ in range(7)]
    rows = sample(model, tok, plans, 2600, options.seed + 1)
    short = sample(model, tok, [[] for _ in range(20)], 450, options.seed + 2)
    prompts = [{"text": clean(tok, row).strip()} for row in rows + short[:10]]
    prompts += [{"input_ids": row} for row in short[10:]]
    prompts += written_prompts()
    rng.shuffle(prompts)

    held = ngrams(tok(heldout).input_ids)
    disjoint = [row for row in prompts if not held & ngrams(tokens_of(tok, row))]
    print(f"{len(prompts) - len(disjoint)} rows left out: they share 24 tokens in a row with heldout.txt")
    with open(options.output / "prompts.jsonl", "w", encoding="utf-8") as out:
        for row in disjoint:
            out.write(json.dumps(row, ensure_ascii=False) + "\n")
    print(f"prompts.jsonl: {len(disjoint)} rows, {sum(len(tokens_of(tok, row)) for row in disjoint)} tokens")


if __name__ == "__main__":
    main()
