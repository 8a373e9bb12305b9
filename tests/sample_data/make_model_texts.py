#!/usr/bin/env python3
"""Writes sample_data/text/MODEL: text of two kinds sampled at temperature 1 from each sample model itself.

Kinds: `code` (code and documentation) and `stories` (stories and dialogue). A document starts from one of the openers
below, written for this project, and goes on as the model likes; where the model ends a text, another opener of the
same kind follows, so that a document stays of its kind. Needles, recalls and repeats are in it as in heldout.txt of
make_sample_data.py, few of them.

    prompts.jsonl         calibration, 10,000 to 15,000 tokens of each kind; rows have a field `kind`
    heldout.txt           12 sequences of 2,048 tokens and more, documents of both kinds in turn (tiny-qwen3 has
                          sample_data/heldout.txt)
    heldout-code.txt, heldout-stories.txt    6 sequences of 2,048 tokens of one kind

All are sampled apart, no row of prompts.jsonl shares 24 tokens in a row with a held-out text. Seeds are fixed; samples
depend on floating-point rounding, so the files are kept in the repository and this script is run only to change them.

    python tests/sample_data/make_model_texts.py [MODEL...]     # some minutes for each model

With `--heldout N` it writes only held-out texts, N sequences of each kind and as many of both, which share no 24 tokens in a row with
prompts.jsonl: for evaluations where six sequences leave too much to chance.

    python tests/sample_data/make_model_texts.py --heldout 48 --output build/heldout --device cuda
"""
import argparse
import json
import pathlib
import random

import torch

from sample_prompts import KEYS
from sampling import clean, load, ngrams, plan, sample, tokens_of

ROOT = pathlib.Path(__file__).resolve().parents[2] / "sample_data"
MODELS = ["tiny-qwen3", "tiny-llama", "tiny-qwen2"]
OPENERS = {
    "code": [
        "# Configuration\n\nThe following options control how the service reads its settings:\n\n",
        "def load_records(path, limit=None):\n    \"\"\"Reads one record from each line of a file.\"\"\"\n",
        "/**\n * Returns the number of bytes that were written to the stream.\n */\n",
        "#include <vector>\n\n// Keeps the samples of one channel.\nclass SampleBuffer {\n public:\n",
        "## Remarks\n\nCall this function before the device is opened. If the function fails, ",
        "# Building from source\n\nInstall the compiler first, then run:\n\n```\n",
        "The `parse` method takes two arguments, and returns an error when ",
        "### Syntax\n\n```cpp\nHRESULT GetStatus(\n",
        "impl Iterator for Tokens {\n    type Item = Token;\n",
        "This document describes the format of the index file. Each entry consists of ",
        "import os\nimport sys\n\n\nclass Job:\n    def __init__(self, name):\n",
        "## Return value\n\nIf the operation succeeds, the return value is ",
    ],
    "stories": [
        "It was late in the autumn when the two brothers came back to the village, and ",
        "\"Where have you been all this time?\" she asked, without looking up from her work.\n\n",
        "CHAPTER II\n\nThe old captain stood at the window and watched the rain. ",
        "On the morning of the third day the travellers saw the lights of the harbour, and ",
        "\"I do not believe a word of it,\" said the doctor, \"and neither should you.\"\n\n",
        "My grandmother used to tell us how she had crossed the mountains as a girl. ",
        "He put down his cup and smiled at her. \"Then you must stay with us,\" he said.\n\n",
        "There was no one in the garden when Margaret opened the gate. ",
        "The letter arrived on a Tuesday. It was written in a hand that he did not know, and ",
        "\"Tell me about the ship,\" said the boy.\n\n\"There is little to tell,\" answered the old man. ",
        "That evening they sat by the fire, and nobody spoke for a long while. ",
        "Once the soldiers had gone the miller came out of the cellar, and ",
    ],
}
KINDS = list(OPENERS)


def documents(tok, model, rng, keys, kinds, length, seed, needles=True):
    """One document of about `length` tokens per entry of kinds."""
    openers = [[tok(o, add_special_tokens=False).input_ids for o in OPENERS[kind]] for kind in kinds]
    plans = [plan(tok, rng, keys, length, 900) if needles else [] for _ in kinds]
    return [clean(tok, row).strip() for row in sample(model, tok, plans, length, seed, openers)]


def write_heldout(name, counts, seed, folder, tok, model, rng, keys):
    """counts: {file: kinds of its documents}. Returns the 24-grams of all."""
    held = set()
    order = [kind for kinds in counts.values() for kind in kinds]
    print(f"{name}: held-out documents", flush=True)
    texts = documents(tok, model, rng, keys, order, 2300, seed)
    for file, kinds in counts.items():
        text = "\n\n".join(texts.pop(0) for _ in kinds) + "\n"
        (folder / file).write_text(text, encoding="utf-8")
        ids = tok(text).input_ids
        held |= ngrams(ids)
        print(f"{name}/{file}: {len(text.encode())} bytes, {len(ids)} tokens", flush=True)
    return held


def many_keys(rng):
    """Keys of needles for long texts, for which KEYS has too few: three words instead of two."""
    return rng.sample([f"{first} {key}" for first in sorted({key.split()[0] for key in KEYS}) for key in KEYS], len(KEYS) * 10)


def write_only_heldout(name, sequences, seed, folder, device):
    tok, model = load(ROOT / name, device)
    folder.mkdir(parents=True, exist_ok=True)
    rng = random.Random(f"{seed} heldout {name}")
    counts = {f"heldout-{kind}.txt": [kind] * sequences for kind in KINDS} | {"heldout.txt": KINDS * sequences}
    held = write_heldout(name, counts, seed, folder, tok, model, rng, many_keys(rng))
    prompts = [ROOT / "prompts.jsonl"] if name == "tiny-qwen3" else []
    for file in [ROOT / "text" / name / "prompts.jsonl", *prompts]:
        rows = [json.loads(line) for line in file.read_text(encoding="utf-8").splitlines()]
        shared = sum(1 for row in rows if held & ngrams(tokens_of(tok, row)))
        print(f"{name}: {shared} of {len(rows)} rows of {file.name} share 24 tokens in a row with the held-out texts")


def write_texts(name, seed, folder):
    tok, model = load(ROOT / name)
    folder.mkdir(parents=True, exist_ok=True)
    rng = random.Random(f"{seed} {name}")
    keys = list(KEYS)
    rng.shuffle(keys)

    counts = {f"heldout-{kind}.txt": [kind] * 6 for kind in KINDS}
    if name != "tiny-qwen3":
        counts["heldout.txt"] = KINDS * 6
    held = write_heldout(name, counts, seed, folder, tok, model, rng, keys)

    print(f"{name}: calibration documents", flush=True)
    long, short = KINDS * 5, KINDS * 12
    rows = [
        {"kind": kind, "text": text}
        for kinds, length, offset in ((long, 2500, 1), (short, 220, 2))
        for kind, text in zip(kinds, documents(tok, model, rng, keys, kinds, length, seed + offset, length > 1000))
    ]
    rng.shuffle(rows)
    disjoint = [row for row in rows if not held & ngrams(tokens_of(tok, row))]
    with open(folder / "prompts.jsonl", "w", encoding="utf-8") as out:
        for row in disjoint:
            out.write(json.dumps(row, ensure_ascii=False) + "\n")
    total = {kind: sum(len(tokens_of(tok, row)) for row in disjoint if row["kind"] == kind) for kind in KINDS}
    print(f"{name}/prompts.jsonl: {len(disjoint)} rows, {len(rows) - len(disjoint)} left out, tokens {total}")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("models", nargs="*", default=MODELS, metavar="MODEL")
    parser.add_argument("--seed", type=int, default=20261122)
    parser.add_argument("--output", type=pathlib.Path, default=ROOT / "text")
    parser.add_argument("--heldout", type=int, metavar="N", help="only held-out texts, of N sequences of each kind")
    parser.add_argument("--device", default="cpu", choices=["cpu", "cuda"], help="of --heldout")
    options = parser.parse_args()
    torch.set_num_threads(1)
    for name in options.models:
        if options.heldout:
            write_only_heldout(name, options.heldout, options.seed, options.output / name, options.device)
        else:
            write_texts(name, options.seed, options.output / name)


if __name__ == "__main__":
    main()
