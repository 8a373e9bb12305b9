"""tests/bench/python_caches.py: what a second run repeats, and the table and goals made of its lines."""
import json
import pathlib
import sys

import pytest

pytest.importorskip("torch")
ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tests" / "bench"))
import python_caches  # noqa: E402
import python_caches_table as made  # noqa: E402


def line(cache, batch, context, tokens_per_s, cache_mib):
    return dict(what="decode", cache=cache, batch=batch, context=context, tokens_per_s=tokens_per_s, cache_mib=cache_mib, peak_over_weights_gib=1.5)


LINES = [line("DynamicCache, SDPA", 1, 9000, 10.0, 700), line("StaticCache, SDPA, compiled", 1, 9000, 20.0, 700), line("uniform", 1, 9000, 27.0, 100),
         line("blocks 4-2-1-1", 1, 9000, 29.0, 110), line("QuantizedCache, hqq, 2 bits", 1, 9000, 99.0, 90),
         line("DynamicCache, SDPA", 8, 9000, 50.0, 5600), line("blocks 4-2-1-1", 8, 9000, 150.0, 880), line("blocks 4-2-1-1", 40, 9000, 190.0, 4400)]
FAILED = dict(what="decode", cache="DynamicCache, SDPA", batch=9, context=9000, error="OutOfMemoryError")


def text(lines, device="one"):
    return "\n".join(json.dumps(x) for x in (dict(what="machine", device=device), *lines)) + "\na warning in between\n"


def test_table_and_goals():
    found = made.measurements([text(LINES + [FAILED])])
    assert list(made.table(found, "cache_mib")) == [
        "| context | batch | DynamicCache, SDPA | StaticCache, SDPA, compiled | uniform | blocks 4-2-1-1 | QuantizedCache, hqq, 2 bits |",
        "|---:|---:|---:|---:|---:|---:|---:|", "| 9,000 | 1 | 700 | 700 | 100 | 110 | 90 |", "| 9,000 | 8 | 5,600 |  |  | 880 |  |",
        "| 9,000 | 40 |  |  |  | 4,400 |  |"]
    memory, alone, many = made.goals(found)
    assert memory == "BF16 cache over ours, 9,000 tokens: 6.36 x, asked 6: holds"
    assert alone == "blocks 4-2-1-1 over StaticCache, SDPA, compiled, batch 1, 9,000 tokens: 1.45 x, asked 1.4: holds"
    assert many.endswith("at batch 40 over DynamicCache, SDPA at batch 8, 9,000 tokens, same GPU: 3.80 x, asked 4: MISSED")


def test_docs_have_what_was_measured():
    """Tokens per second and peak of every row of the stored run, and its goals."""
    text_of_page = (ROOT / "docs" / "transformers.md").read_text() + (ROOT / "lab" / "serve.md").read_text()  # slower baselines
    found = made.measurements([(ROOT / "tests" / "bench" / "results" / "python_caches_h100.jsonl").read_text()])
    assert len(found) > 40
    for x in found:
        speed = f"{round(x['tokens_per_s']):,}" if x["tokens_per_s"] >= 100 else str(x["tokens_per_s"])
        assert f" {speed} ({x['peak_over_weights_gib']}) " in text_of_page or x["cache"].endswith("no graphs"), x
    for sentence in made.goals(found):
        ratio = float(sentence.split(": ")[1].split(" x")[0])
        assert f"{ratio:.1f}" in text_of_page and sentence.endswith("holds"), sentence


def test_several_files():
    again = line("uniform", 1, 9000, 30.0, 100)
    found = made.measurements([text(LINES), text([again])])
    assert len(found) == len(LINES) and again in found
    with pytest.raises(ValueError, match="different GPUs: one, other"):
        made.measurements([text(LINES), text([again], "other")])


def test_plan():
    plan = python_caches.Plan(50, [*LINES, FAILED])
    assert plan.answer("uniform", 1, 9000, 20) is True and plan.answer("DynamicCache, SDPA", 9, 9000, 20) is False
    assert plan.answer("uniform", 2, 9000, 20) is None and plan.left == 0
    assert plan.answer("uniform", 2, 9000, 60) is True and plan.left == 1
    for text_of in python_caches.SIZES.values():
        assert list(python_caches.sizes_of(text_of)) == [8192, 32768, 100000]
