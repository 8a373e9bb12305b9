"""The wheel in a fresh environment: built by scripts/wheel, installed by pip, run against the torch of the test
environment, which a .pth file lends instead of a download."""
import email
import importlib.metadata
import os
import pathlib
import re
import subprocess
import sys
import sysconfig
import zipfile

import pytest

pytest.importorskip("torch")
pytest.importorskip("scikit_build_core")

from packaging.requirements import Requirement

from conftest import BUILD_DIR, GOLDEN, SAMPLES, SOURCE_DIR
from oscar_kv.engines.vllm.release import RELEASES

MOST_BYTES = 25 << 20
PROGRAM = """
import importlib.util, pathlib, sys
import oscar_kv
place = pathlib.Path(oscar_kv.__file__)
assert place.is_relative_to(sys.prefix), place
assert "transformers" not in sys.modules, "the core imports an engine"
bundle = oscar_kv.load_bundle(sys.argv[1])
from oscar_kv.cache.paged_kv import LayerCode, PagedKV, PageTable
import torch
cache = PagedKV(LayerCode(bundle, bundle.layers[0]), PageTable(1))
cache.append(torch.ones(12, 2, 32), torch.ones(12, 2, 32), [12])  # the windows: BF16
output, _ = cache.attend(torch.ones(1, 4, 1, 32), 0.2)
assert torch.allclose(output, torch.ones(()), atol=0.2), output
cache.append(torch.ones(88, 2, 32), torch.ones(88, 2, 32), [88])
assert torch.isfinite(cache.attend(torch.ones(1, 4, 1, 32), 0.2)[0]).all() and cache.pool.shape[0] > 0
try:
    oscar_kv.load_bundle(sys.argv[2])
except oscar_kv.InputError as error:
    print("refused:", error)
assert "transformers" not in sys.modules
print("done", oscar_kv.__version__)
"""


def build(folder, options, environment):
    built = subprocess.run([SOURCE_DIR / "scripts" / "wheel", *options, folder], capture_output=True, text=True, env=environment)
    assert built.returncode == 0, built.stderr
    return pathlib.Path(built.stdout.strip())


def check_extra(wheel):
    """pip install 'oscar-kv[vllm]' takes the releases that the adapter serves, and no others."""
    name = next(n for n in zipfile.ZipFile(wheel).namelist() if n.endswith(".dist-info/METADATA"))
    metadata = email.message_from_bytes(zipfile.ZipFile(wheel).read(name))
    needed = [Requirement(text) for text in metadata.get_all("Requires-Dist")]
    vllm = next(r for r in needed if r.name == "vllm" and r.marker.evaluate({"extra": "vllm"}))
    major, newest = map(int, RELEASES[-1].split("."))
    assert {r for r in (f"{major}.{minor}" for minor in range(newest - 9, newest + 9)) if f"{r}.0" in vllm.specifier} == set(RELEASES)


def test_fresh_environment(tmp_path):
    environment = os.environ | {"OSCAR_ENV": sys.prefix}
    operators = BUILD_DIR / "oscar_kv" / "liboscar_kv_cuda.so"
    options, platform = (["--operators", operators], r"manylinux_2_\d\d_\w+") if operators.is_file() else (["--cpu-only"], "any")
    wheel, again = (build(folder, options, environment) for folder in (tmp_path / "wheel", tmp_path / "again"))
    assert wheel.read_bytes() == again.read_bytes()
    assert re.fullmatch(rf"oscar_kv-0\.1\.0-py3-none-{platform}\.whl", wheel.name) and wheel.stat().st_size <= MOST_BYTES
    check_extra(wheel)
    sources = {p.relative_to(SOURCE_DIR / "python").as_posix() for p in (SOURCE_DIR / "python" / "oscar_kv").rglob("*.py")}
    sources.add("oscar_kv/py.typed")
    if operators.is_file():
        sources.add("oscar_kv/liboscar_kv_cuda.so")
    assert sources == {n for n in zipfile.ZipFile(wheel).namelist() if n.startswith("oscar_kv/")}
    assert not list((SOURCE_DIR / "python").glob("*.egg-info")) and not (SOURCE_DIR / "python" / "build").exists()

    subprocess.run([sys.executable, "-m", "venv", "--without-pip", tmp_path / "env"], check=True)
    python = tmp_path / "env" / "bin" / "python"
    site = pathlib.Path(subprocess.run([python, "-c", "import sysconfig; print(sysconfig.get_path('purelib'))"],
                                       capture_output=True, text=True, check=True).stdout.strip())
    (site / "lent.pth").write_text(sysconfig.get_path("purelib") + "\n")
    subprocess.run([sys.executable, "-m", "pip", "--python", python, "install", "--quiet", "--disable-pip-version-check", "--no-deps",
                    "--no-index", wheel], check=True)
    clean = {k: v for k, v in os.environ.items() if k != "PYTHONPATH"}
    done = subprocess.run([python, "-c", PROGRAM, GOLDEN / "bundle", SAMPLES], capture_output=True, text=True, env=clean, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert "refused:" in done.stdout and "done 0.1.0" in done.stdout


def test_missing_operators(tmp_path):
    done = subprocess.run([SOURCE_DIR / "scripts" / "wheel", "--operators", tmp_path / "none.so", tmp_path], capture_output=True,
                          text=True, env=os.environ | {"OSCAR_ENV": sys.prefix})
    assert done.returncode == 4 and "none.so does not exist; build the target oscar_kv_operators" in done.stderr


def test_setup_installs_what_the_wheel_needs():
    """scripts/setup without --tests, as scripts/package runs it; packages are installed without dependencies."""
    listed = {Requirement(line).name.lower() for line in (SOURCE_DIR / "scripts/requirements-build.txt").read_text().splitlines()
              if not line.startswith("#")}
    needed = ["scikit_build_core", *importlib.metadata.requires("scikit_build_core")]
    needed = {r.name for r in map(Requirement, needed) if r.marker is None or r.marker.evaluate({"extra": ""})}
    assert needed <= listed, needed - listed


def test_wheel_usage():
    done = subprocess.run([SOURCE_DIR / "scripts" / "wheel", "--what"], capture_output=True, text=True)
    assert done.returncode == 2 and "unknown option --what" in done.stderr


def test_check_wheel_usage(tmp_path):
    """The script itself installs gigabytes from the package index: docs/transformers.md says with which torch it ran."""
    for given, code, sentence in ((["--what"], 2, "unknown option --what"), ([tmp_path / "none.whl"], 4, "none.whl does not exist")):
        done = subprocess.run([SOURCE_DIR / "scripts" / "check_wheel", *given], capture_output=True, text=True, env=os.environ | {"OSCAR_ENV": sys.prefix})
        assert done.returncode == code and sentence in done.stderr, done.stderr
    assert subprocess.run([SOURCE_DIR / "scripts" / "check_wheel", "--help"], capture_output=True).returncode == 0
