"""The Python package under test, from the source tree or (OSCAR_TEST_INSTALLED, scripts/check_wheel) as it is installed, and where
programs and samples are."""
import os
import pathlib
import re
import shlex
import subprocess
import sys

import pytest

SOURCE_DIR = pathlib.Path(os.environ.get("OSCAR_SOURCE_DIR", pathlib.Path(__file__).resolve().parents[2]))
BUILD_DIR = pathlib.Path(os.environ.get("OSCAR_BUILD_DIR", SOURCE_DIR / "build"))
SAMPLES = SOURCE_DIR / "sample_data"
GOLDEN = SAMPLES / "golden"
# Before torch is imported. On some processors MKL sums a row otherwise in a matrix of another height, so that a row between two codes gets one
# code in a chunk and the other in the whole text.
os.environ.setdefault("MKL_CBWR", "COMPATIBLE")
os.environ.setdefault("OSCAR_KV_CHECK_TABLES", "1")  # every operator looks at its tables; 0 in the environment leaves that out
PACKAGE_PATH = "" if os.environ.get("OSCAR_TEST_INSTALLED") else str(SOURCE_DIR / "python")  # PYTHONPATH of processes that tests start
if PACKAGE_PATH:
    sys.path.insert(0, PACKAGE_PATH)


def use_built_operators():
    """Names the operators of the build, unless the environment names others. Before oscar_kv is imported."""
    built = BUILD_DIR / "oscar_kv" / "liboscar_kv_cuda.so"
    if built.is_file():
        os.environ.setdefault("OSCAR_KV_OPERATORS", str(built))


def program(name, *arguments, codes=(0,)):
    """Runs one of the built programs, which ends with one of `codes`; returns its stdout."""
    path = next((p for p in (BUILD_DIR / "bin" / name, BUILD_DIR / "tests" / name) if p.exists()), None)
    assert path is not None, f"{name} is not built in {BUILD_DIR}"
    done = subprocess.run([str(path), *map(str, arguments)], capture_output=True, text=True)
    assert done.returncode in codes, f"{name} ended with {done.returncode}: {done.stderr}"
    return done.stdout


def card_commands(bundle, model, form, folder):
    """The commands of an exported card, as a shell reads them: [words]."""
    program("oscar-export", bundle, "--format", form, "--model", SAMPLES / model, "-o", folder)
    blocks = re.findall(r"```console\n(.*?)```", (folder / "README.md").read_text(), re.DOTALL)
    return [shlex.split(block.replace("\\\n", " ")) for block in blocks]


def window_rows(kv, sequence, positions):
    """Keys and values [N, Hkv, d] of tokens in the windows of one sequence of a PagedKV."""
    import torch
    position = torch.as_tensor(positions, device=kv.code.device)
    return kv.tiers.layout.rows(kv.windows, kv.window_table, torch.full_like(position, sequence), position)


@pytest.fixture(scope="session")
def fit(tmp_path_factory):
    """fit("tiny-qwen3", "--method", "waterfill"): the folder of a bundle for a sample model, windows of 16 and 48 tokens."""
    folder, statistics, bundles = tmp_path_factory.mktemp("fit"), {}, {}

    def make(model, *options):
        if model not in statistics:
            statistics[model] = folder / f"{model}.safetensors"
            program("oscar-collect", "--model", SAMPLES / model, "--prompts", SAMPLES / "prompts.jsonl", "--seq-len", 512,
                    "--tokens", 2000, "-o", statistics[model])
        key = (model, *options)
        if key not in bundles:
            bundles[key] = folder / f"bundle-{len(bundles)}"
            method = () if "--method" in options else ("--method", "oscar")
            windows = () if "--windows" in options else ("--windows", "16,48")
            program("oscar-fit", statistics[model], "-o", bundles[key], *windows, *method, *options)
        return bundles[key]

    return make
