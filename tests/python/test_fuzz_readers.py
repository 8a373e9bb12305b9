"""A short run of fuzz_readers.py, where the package atheris is installed; run the file itself for hours."""
import os
import pathlib
import subprocess
import sys

import pytest

pytest.importorskip("torch")
pytest.importorskip("atheris")

from conftest import PACKAGE_PATH  # noqa: E402

PROGRAM = pathlib.Path(__file__).with_name("fuzz_readers.py")


def fuzz(folder, *options):
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, [PACKAGE_PATH, os.environ.get("PYTHONPATH", "")]))}
    return subprocess.run([sys.executable, str(PROGRAM), str(folder), "-max_len=20000", "-timeout=20", "-rss_limit_mb=4000", *options],
                          capture_output=True, text=True, env=environment, timeout=300)


def test_every_reader_for_a_few_seconds(tmp_path):
    done = fuzz(tmp_path, "-max_total_time=12", "-seed=1")
    assert done.returncode == 0, done.stderr[-3000:]
    assert "Done " in done.stderr and int(done.stderr.split("Done ")[1].split()[0]) > 100, done.stderr[-3000:]
