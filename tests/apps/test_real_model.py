"""tests/bench/real_model on a sample model: what it downloads is not tried here, what it makes of its files is."""
import json
import subprocess
import sys

from harness import BUILD_DIR, SAMPLE, SOURCE_DIR, succeed

sys.path.insert(0, str(SOURCE_DIR / "tests/bench"))
from real_model_table import recalled  # noqa: E402

MODEL, TEXT = SAMPLE / "tiny-llama", SAMPLE / "heldout.txt"


def run(out, *options):
    command = [sys.executable, SOURCE_DIR / "tests/bench/real_model", "-o", out, "--model", MODEL, "--prompts", out / "prompts.jsonl", "--text", TEXT,
               "--device", "cpu", "--build", BUILD_DIR, *options]
    return subprocess.run(list(map(str, command)), capture_output=True, text=True)


def test_share_of_repeated_phrases():
    assert recalled({"recall": {"share": 0.375, "bf16": 0.5}}) == 75
    assert recalled({"recall": {"share": 0.0, "bf16": 0.5}}) == 0
    assert [recalled({"recall": {"share": 0.0, "bf16": 0.0}}), recalled({"recall": None}), recalled({})] == [None] * 3


def test_table_of_a_model(tmp_path):
    succeed("collect", "--model", MODEL, "--prompts", SAMPLE / "prompts.jsonl", "--tokens", 1500, "--device", "cpu",
            "-o", tmp_path / "waterfill.statistics.safetensors")
    succeed("fit", tmp_path / "waterfill.statistics.safetensors", "-o", tmp_path / "waterfill", "--pareto", "2.25,1.5")
    done = run(tmp_path, "--budgets", "2.25,1.5", "--lengths", "384,512", "--sequences", "2")
    assert done.returncode == 0, done.stderr
    lines = (tmp_path / "table.md").read_text().splitlines()
    assert (tmp_path / "table.md").read_text() in done.stdout
    assert lines[0].count("|") == lines[1].count("|") == 9
    rows = {line.split("|")[1].strip(): [cell.strip() for cell in line.split("|")[2:-1]] for line in lines[2:]}
    assert set(rows) == {"`fp8`", "`q4_0`", "`kivi2`", "`kivi2-g128`", "`turboquant2.5`", "`waterfill`, 2.25 bits", "`waterfill`, 1.5 bits",
                         "`waterfill`, 2.25 bits, analytic", "`balanced`", "`oscar`"}
    report = json.loads((tmp_path / "report-512.json").read_text())
    method = next(m for m in report["methods"] if m["id"] == "bits-1.5")
    row = rows["`waterfill`, 1.5 bits"]
    assert row[1].endswith(f" / {method['bits_per_element']:.2f}") and row[3].startswith(f"{method['kl']['mean']:.3g} ± ")
    assert row[4].endswith(f" / {method['ppl_ratio']:.3f}") and row[5].endswith(f" / {100 * method['same_top1']:.1f}%")
    assert row[6].endswith(f" / {recalled(method):.1f}%")
    assert (tmp_path / "report-384.html").exists()
    # What is there is taken as it is.
    again = run(tmp_path, "--budgets", "2.25,1.5", "--lengths", "512", "--sequences", "2")
    assert again.returncode == 0 and "$ oscar" not in again.stdout, again.stdout


def test_refusals(tmp_path):
    script = SOURCE_DIR / "tests/bench/real_model"
    done = subprocess.run([sys.executable, script, "-o", tmp_path, "--model", MODEL], capture_output=True, text=True)
    assert done.returncode == 2 and "--model needs --prompts and --text" in done.stderr
    done = run(tmp_path, "--budgets", "2.25")  # no such prompts
    assert done.returncode == 3 and "prompts.jsonl" in done.stderr, done.stderr
