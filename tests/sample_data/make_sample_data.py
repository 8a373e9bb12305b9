#!/usr/bin/env python3
"""Writes sample_data/prompts.jsonl and sample_data/heldout.txt.

Long text is sampled at temperature 1 from the sample model itself, because KL and retrieval results are meaningful only
on text from a model's own distribution. At random positions it gets a few needles ("One of the special magic numbers
for K is: V."), their later recall, and verbatim repeats of an earlier span. More of them would make a document drift
away from text. Chat, code, mathematics and other languages are in sample_prompts.py, written for this project.

The seed is fixed. Samples depend on floating-point rounding, so another CPU or torch may give other (equally good)
text. The files are therefore kept in the repository, and this script runs only to change them.

    python tests/sample_data/make_sample_data.py            # about 10 minutes
"""
import argparse
import json
import pathlib
import random

import torch

from sample_prompts import KEYS, written_prompts
from sampling import clean, load, ngrams, plan, sample, tokens_of

ROOT = pathlib.Path(__file__).resolve().parents[2] / "sample_data"


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seed", type=int, default=20260131)
    parser.add_argument("--output", type=pathlib.Path, default=ROOT)
    options = parser.parse_args()

    torch.set_num_threads(1)
    tok, model = load(ROOT / "tiny-qwen3")
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
