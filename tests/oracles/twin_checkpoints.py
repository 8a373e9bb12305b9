"""Made checkpoints that differ in what must change no width: what test_allocation.py and test_branch_norms.py share."""
import json
import shutil

import numpy as np

from conftest import SOURCE_DIR


def save(model, folder):
    """A model as a checkpoint with a tokenizer."""
    model.save_pretrained(folder)
    for name in ("tokenizer.json", "tokenizer_config.json"):
        shutil.copy(SOURCE_DIR / "sample_data" / "tiny-qwen3" / name, folder)
    return folder


def id_rows(path, count, length):
    """Rows of random tokens, the same for every call."""
    rng = np.random.default_rng(5)
    path.write_text("".join(json.dumps({"input_ids": rng.integers(3, 8000, length).tolist()}) + "\n" for _ in range(count)))
    return path


def collect(tool, model, rows, statistics, windows, *options):
    tool("oscar-collect", "--model", model, "--prompts", rows, "-o", statistics, "--device", "cpu", "--dtype", "float32", "-q", "--far-pairs",
         windows, *options)
    return statistics


def widths(tool, folder, statistics, bits, *options):
    """Of keys and values of every layer, by waterfill."""
    bundle = folder / f"{statistics.name}-{bits}"
    tool("oscar-fit", statistics, "-o", bundle, "--method", "waterfill", "--bits", bits, *options)
    layers = json.loads((bundle / "oscar_bundle.json").read_text())["layers"]
    return [(entry["key"]["widths"], entry["value"]["widths"]) for entry in layers]
