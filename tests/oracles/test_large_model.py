"""tests/bench/large_model.sh in small on the CPU: the script for a device that no test has must not rot."""
import json
import os
import subprocess
import sys

import pytest

pytest.importorskip("torch")

from conftest import BUILD_DIR, SOURCE_DIR  # noqa: E402


def test_the_script_in_small(tmp_path):
    environment = os.environ | dict(DEVICE="cpu", GEOMETRY="tiny", LAYERS="4", TOKENS="1500", SEQUENCES="1", CONTEXT="400", PYTHON=sys.executable)
    done = subprocess.run([SOURCE_DIR / "tests" / "bench" / "large_model.sh", tmp_path, BUILD_DIR / "bin"], env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    runs = [json.loads(line) for line in (tmp_path / "results.jsonl").read_text().splitlines()]
    assert [run["name"] for run in runs] == ["collect-cold", "collect-whole", "collect-short", "fit-whole", "fit-short", "verify-whole", "verify-short"]
    assert all(run["code"] == 0 and run["seconds"] > 0 and run["host_anonymous"] > 0 for run in runs)
    # The plan of all 92 layers, from the index alone, and what is made of the runs.
    assert "memory " in done.stdout
    assert "collect: " in done.stdout and "in all, files in the page cache" in done.stdout
