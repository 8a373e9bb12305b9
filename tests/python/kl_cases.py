"""Bundles of sample models with what `oscar-verify --path decode` says of them, for test_kl.py. A machine with a GPU may have no build
of the programs: there OSCAR_KL_CASES names a folder that was written elsewhere by

  python tests/python/kl_cases.py DIR"""
import json
import pathlib
import sys

from conftest import SAMPLES, program

CONTEXT, SEQUENCES, WINDOWS = 160, 8, (16, 48)
CASES = {"uniform": ("tiny-qwen3", "oscar", ("--method", "oscar")), "blocks": ("tiny-llama", "waterfill", ("--method", "waterfill")),
         "blocks-rope": ("tiny-qwen3", "waterfill", ("--method", "waterfill", "--center", "rope"))}


def make(name, folder):
    """Bundle and report of one case in folder / name."""
    model, method, options = CASES[name]
    place, statistics = folder / name, folder / f"{model}.safetensors"
    place.mkdir(parents=True)
    if not statistics.exists():
        program("oscar-collect", "--model", SAMPLES / model, "--prompts", SAMPLES / "prompts.jsonl", "--seq-len", 512, "--tokens", 2000,
                "-o", statistics)
    program("oscar-fit", statistics, "-o", place / "bundle", "--windows", "%d,%d" % WINDOWS, *options)
    program("oscar-verify", "--no-gate", "--model", SAMPLES / model, "--bundle", place / "bundle", "--text", SAMPLES / "heldout.txt", "--context", CONTEXT,
            "--max-sequences", SEQUENCES, "--path", "decode", "--dtype", "float32", "--methods", method, "--device", "cpu", "--report",
            place / "report.json")


def row(name, folder):
    """What the report says of the bundle's method on the decode path."""
    report = json.loads((folder / name / "report.json").read_text())
    return next(m for m in report["methods"] if (m["id"], m["path"]) == (CASES[name][1], "decode"))


if __name__ == "__main__":
    for case in CASES:
        make(case, pathlib.Path(sys.argv[1]))
