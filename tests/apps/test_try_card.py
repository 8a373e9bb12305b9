"""scripts/try_card with a GPU, compilers and tests that this machine does not have: what goes into the file, and the exit code."""
import os
import shutil
import subprocess

import pytest
from harness import SOURCE_DIR

TOOLS = {"nvidia-smi": "echo 'NVIDIA GeForce RTX 5090, 12.0, 32607 MiB, 580.65'", "cmake": "echo cmake $*", "ctest": "echo 100% tests passed", "python": "echo '{\"cache\": \"'${@: -1}'\"}'"}


@pytest.fixture
def card(tmp_path):
    """card(*arguments, **tools): the result, and the file to send."""
    def run(*arguments, **tools):
        root, programs = tmp_path / "root", tmp_path / "env" / "bin"
        (root / "scripts").mkdir(parents=True), programs.mkdir(parents=True), (root / "build-card" / "bin").mkdir(parents=True)
        for name in ("common.sh", "try_card"):
            shutil.copy(SOURCE_DIR / "scripts" / name, root / "scripts")
        made = {programs / name: text for name, text in (TOOLS | tools).items()} | {root / "build-card" / "bin" / "oscar-fit": "echo wrote bundle"}
        for path, text in made.items():
            path.write_text(f"#!/bin/bash\n{text}\n", encoding="utf-8")
            path.chmod(0o755)
        environment = {**os.environ, "OSCAR_ENV": str(programs.parent), "PATH": f"{programs}:{os.environ['PATH']}"}
        done = subprocess.run([root / "scripts" / "try_card", *arguments, "-o", tmp_path / "card.txt"], capture_output=True, text=True, env=environment)
        return done, (tmp_path / "card.txt").read_text(encoding="utf-8") if (tmp_path / "card.txt").exists() else ""

    return run


def test_all_parts_of_a_card(card, tmp_path):
    (tmp_path / "model").mkdir()
    (tmp_path / "model" / "config.json").write_text("{}", encoding="utf-8")
    done, text = card("--model", tmp_path / "model")
    assert done.returncode == 0, done.stderr
    assert text.startswith("GPU NVIDIA GeForce RTX 5090, 12.0") and "OSCAR_CUDA_ARCHITECTURES=120-real" in text
    assert [line.split(":")[0] for line in text.splitlines() if line.startswith("== ")] == [
        "== configure", "== build", "== tests", "== fit", "== traffic bf16", "== traffic fp8", "== traffic bundle"]
    assert text.count("exit code 0") == 7 and '{"cache": "fp8"}' in text


def test_a_failed_part_is_in_the_file(card):
    done, text = card(ctest="echo kernels differ; exit 8")
    assert done.returncode == 1 and "== tests: exit code 8" in text and "kernels differ" in text and "traffic" not in text


def test_refusals(card):
    done, text = card(**{"nvidia-smi": "exit 9"})
    assert done.returncode == 4 and "finds no GPU" in done.stderr and not text


def test_a_model_that_is_no_folder(card):
    done, text = card("--model", "org/name")
    assert done.returncode == 4 and "org/name is no checkpoint's folder" in done.stderr and not text
