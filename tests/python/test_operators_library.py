"""The shared object of the CUDA operators: only torch's stable ABI and the C and C++ runtimes, no Python, no RUNPATH; it loads
without a GPU; and the rule of what goes to kernels and what to the reference."""
import os
import re
import shutil
import subprocess
import sys

import pytest

torch = pytest.importorskip("torch")

from conftest import BUILD_DIR, PACKAGE_PATH, SOURCE_DIR  # noqa: E402
from random_bundles import random_bundle  # noqa: E402
from oscar_kv.format.codec import code_unsupported  # noqa: E402
from oscar_kv.ops import load, support  # noqa: E402
from oscar_kv.ops.rule import ALL, Rule  # noqa: E402
from oscar_kv.engines.serving import EngineServing  # noqa: E402
from oscar_kv.files.errors import InputError  # noqa: E402
from oscar_kv.cache.paged_kv import LayerCode  # noqa: E402
from oscar_kv.cache.tiers import Tiers  # noqa: E402

OPERATORS = BUILD_DIR / "oscar_kv" / "liboscar_kv_cuda.so"
built = pytest.mark.skipif(not OPERATORS.is_file(), reason="this build has no CUDA operators")


def lines(*command):
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout.splitlines()


@built
def test_only_the_stable_abi():
    undefined = [line.split()[-1] for line in lines("nm", "-D", "--undefined-only", OPERATORS)]
    of_torch = [s for s in undefined if re.search("torch|c10|aten|at[0-9]|Py", s.split("@")[0])]
    assert of_torch and not [s for s in of_torch if not re.fullmatch(r"(aoti_torch|torch)_\w+", s)]
    # What is not torch's comes from the C and C++ runtimes and has their version, or is a weak hook.
    strong = [line.split() for line in lines("nm", "-D", "--undefined-only", OPERATORS) if line.split()[-2] == "U"]
    rest = [s[-1] for s in strong if s[-1] not in of_torch]
    assert not [s for s in rest if not re.search(r"@(GLIBC|GLIBCXX|CXXABI|GCC)_", s)]
    needed = [re.search(r"\[(.*)\]", line).group(1) for line in lines("readelf", "-d", OPERATORS) if "(NEEDED)" in line]
    system = r"lib(stdc\+\+|gcc_s|c|m|dl|rt|pthread)\.so\.\d+|ld-linux-.*"
    assert not [n for n in needed if not re.fullmatch(rf"libtorch_cpu\.so|libtorch_cuda\.so|{system}", n)]
    assert not [line for line in lines("readelf", "-d", OPERATORS) if "RUNPATH" in line or "RPATH" in line]
    exported = [line.split()[-1] for line in lines("nm", "-D", "--defined-only", OPERATORS)]
    assert not [s for s in exported if "oscar" in s or "cuda" in s.lower()], "kernels or the CUDA runtime are visible"


def test_only_stable_headers():
    found = {m for p in (SOURCE_DIR / "python" / "oscar_kv" / "csrc").glob("*.[ch]*")
             for m in re.findall(r"#include [<\"]((?:torch|ATen|c10|Python)[^>\"]*)", p.read_text())}
    assert found and all(header.startswith("torch/csrc/stable/") for header in found), found


@built
def test_loads_without_a_gpu():
    program = ("import torch; from oscar_kv.ops import operators; torch.ops.load_library(__import__('sys').argv[1])\n"
               "for name in ('device_code', 'decode_attention', 'append_tokens', 'flush_tokens', 'quantize_rows', 'dequantize_pages', 'past_rows', 'new_rows'):\n"
               "    assert torch._C._dispatch_has_kernel_for_dispatch_key(f'oscar_kv::{name}', 'CUDA'), name\n")
    environment = os.environ | {"PYTHONPATH": PACKAGE_PATH, "CUDA_VISIBLE_DEVICES": ""}
    done = subprocess.run([sys.executable, "-c", program, OPERATORS], capture_output=True, text=True, env=environment)
    if "libtorch_cuda.so" in done.stderr or "cannot open shared object" in done.stderr:
        pytest.skip("the CUDA libraries of torch are not installed")
    assert done.returncode == 0, done.stderr


def test_switched_off(monkeypatch):
    monkeypatch.setenv("OSCAR_KV_OPERATORS", "off")
    assert load.library_path() is None
    monkeypatch.setenv("OSCAR_KV_OPERATORS", "/somewhere/else.so")
    assert str(load.library_path()) == "/somewhere/else.so"


@built
def test_code_for_the_configured_gpus():
    cache = (BUILD_DIR / "CMakeCache.txt").read_text(encoding="utf-8")
    listed = re.search(r"^OSCAR_CUDA_ARCHITECTURES:STRING=(.*)$", cache, re.MULTILINE).group(1)
    tool = SOURCE_DIR / "tools" / "device_code.py"
    done = subprocess.run([sys.executable, tool, OPERATORS, listed], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    done = subprocess.run([sys.executable, tool, OPERATORS, "70-real"], capture_output=True, text=True)
    assert done.returncode == 1 and "expected sm_70" in done.stderr


@pytest.mark.skipif(shutil.which("nvcc") is None, reason="no CUDA compiler")
def test_a_wheel_has_machine_code_for_each_gpu(tmp_path):
    """One kernel, compiled for the list of a release, as tools/device_code.py and NVIDIA's own tool read it."""
    sys.path.insert(0, str(SOURCE_DIR / "tools"))
    import device_code
    listed, made = device_code.release(), tmp_path / "one.o"
    names = device_code.names_of(listed)
    assert {"sm_80", "sm_86", "sm_89", "sm_90a", "sm_100", "sm_120", "compute_90"} == names
    codes = [f"-gencode=arch=compute_{name.split('_')[1]},code={name}" for name in sorted(names)]
    subprocess.run(["nvcc", "-std=c++20", "-c", *codes, f"-I{SOURCE_DIR}", SOURCE_DIR / "kernels/check/device_code.cu", "-o", made], check=True)
    done = subprocess.run([sys.executable, SOURCE_DIR / "tools" / "device_code.py", made, "release"], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    if shutil.which("cuobjdump") is None:
        return
    held = subprocess.run(["cuobjdump", "--list-elf", made], capture_output=True, text=True, check=True).stdout
    assert set(re.findall(r"\b(sm_\w+)\.cubin", held)) == {name for name in names if name.startswith("sm_")}


@pytest.fixture
def host(monkeypatch, tmp_path):
    """Sets what torch and the operators say of the GPUs of a host: (capability, (CUDA error, driver, driver for PTX)) each."""
    operators = tmp_path / "operators.so"
    operators.touch()
    monkeypatch.setenv("OSCAR_KV_OPERATORS", str(operators))

    def set_host(*gpus, hip=None, loads=lambda path: None):
        load.missing_on.cache_clear(), load.load.cache_clear()
        monkeypatch.setattr(torch.version, "hip", hip)
        monkeypatch.setattr(torch.cuda, "is_available", lambda: len(gpus) > 0)
        monkeypatch.setattr(torch.cuda, "current_device", lambda: 0)
        monkeypatch.setattr(torch.cuda, "get_device_capability", lambda index: gpus[index][0])
        monkeypatch.setattr(torch.ops, "load_library", loads)
        monkeypatch.setattr(torch, "empty", lambda size, device: device)
        monkeypatch.setattr(load.operators, "device_code", lambda device: gpus[int(device.removeprefix("cuda:"))][1])
    yield set_host
    load.missing_on.cache_clear(), load.load.cache_clear()


RUNS = (0, 13000, 13000)
SLOW = "runs its torch reference on GPU"


def test_gpus_that_kernels_serve(host):
    host(*((capability, RUNS) for capability in [(8, 0), (8, 6), (8, 9), (9, 0), (10, 0), (12, 0)]))
    assert [load.missing(f"cuda:{i}") for i in range(6)] == [None] * 6 and load.missing() is None


def test_each_gpu_of_a_host_is_asked(host):
    loaded = []
    host(((8, 6), RUNS), ((7, 5), RUNS), ((12, 0), (load.NO_CODE, 13000, 13000)), loads=loaded.append)
    assert load.missing("cuda:0") is None and load.missing(torch.device("cuda")) is None
    with pytest.warns(UserWarning, match=f"{SLOW} 1"):
        assert load.missing("cuda:1") == "the CUDA operators need compute capability 8.0 or newer, not 7.5"
    with pytest.warns(UserWarning, match=f"{SLOW} 2"):
        assert "has no code for compute capability 12.0; use a wheel of scripts/wheel" in load.missing("cuda:2")
    assert load.missing("cuda:0") is None and len(loaded) == 1


@pytest.mark.parametrize("error", [load.INSUFFICIENT_DRIVER, load.UNSUPPORTED_PTX])
def test_a_driver_that_is_too_old(host, error):
    host(((12, 0), (error, 12080, 13000)))
    with pytest.warns(UserWarning, match=SLOW):
        assert load.missing() == ("the CUDA operators need a driver for CUDA 13.0 on this GPU, and the driver is for CUDA 12.8; "
                                     "update the driver")


def test_torch_for_rocm(host):
    host(((9, 4), RUNS), hip="7.1.0")
    with pytest.warns(UserWarning, match=SLOW):
        assert load.missing() == "this torch is built for ROCm, and the CUDA operators run on NVIDIA GPUs"
    host(hip="7.1.0")
    assert "ROCm" in load.missing()
    with pytest.raises(InputError, match="cannot be served: this torch is built for ROCm"):
        EngineServing(None, None)


def test_why_operators_are_missing(host, monkeypatch):
    def fails(path):
        raise OSError("no shared object")

    host()
    assert load.missing() == "torch finds no CUDA device"
    host(((9, 0), (999, 13000, 13000)))
    with pytest.warns(UserWarning, match=SLOW):
        assert "do not load on this GPU (CUDA error 999)" in load.missing()
    host(((9, 0), RUNS), loads=fails)
    with pytest.warns(UserWarning, match=SLOW):
        assert "operators.so cannot be loaded (no shared object)" in load.missing()
    monkeypatch.setenv("OSCAR_KV_OPERATORS", "off")
    assert "has no CUDA operators" in load.missing()


def code(encoder="search", **bundle):
    made = random_bundle(encoder=encoder, **bundle)
    return LayerCode(made, made.layers[0], object())


BLOCKS = dict(key=(4, 2, 1, 1), value=(4, 2, 1, 1))


def test_what_kernels_serve():
    for made in (code(), code(d=64), code(d=256, **BLOCKS), code(d=512, **BLOCKS), code(encoder="minmax", **BLOCKS)):
        assert support.decode_unsupported(made, 8, 6) is None and support.step_unsupported(made) is None
    assert support.step_unsupported(code(rotated_mean=True, **BLOCKS)) is None


@pytest.mark.parametrize("made,group,pages,sentence", [
    (dict(d=32), 4, 6, "head sizes 64, 128, 256, 512, not 32"), (dict(), 17, 6, "at most 16 query heads on a KV head of 128 channels, not 17"),
    (dict(d=512, **BLOCKS), 9, 6, "at most 8 query heads on a KV head of 512 channels, not 9"),
    (dict(d=512), 4, 6, "of layout uniform the kernels read heads of up to 256 channels, not 512"),
    (dict(value=(4, 2, 1, 1)), 4, 6, "one layout, not uniform keys and blocks values"),
    (dict(group=32), 4, 6, "one FP16 scale and zero for each head"), (dict(rotated_mean=True), 4, 6, "centered before RoPE"),
    (dict(), 4, 40, "windows of at most 2048 tokens")])
def test_what_they_do_not_decode(made, group, pages, sentence):
    assert sentence in support.decode_unsupported(code(**made), group, pages)


def test_what_rules_they_do_not_compute():
    assert all(support.rule_unsupported(rule) is None for rule in (ALL, Rule(window=40), Rule(sinks=torch.zeros(4))))
    assert support.rule_unsupported(Rule(cap=50.0)) == "the decode kernel has no soft cap of logits (at 50)"
    assert "no chunks of the sequence (of 8192 tokens)" in support.rule_unsupported(Rule(chunk=8192))
    made = code()
    made.without_kernels = None
    tiers = Tiers(made)
    assert tiers.decode_unsupported(4) is None and "soft cap" in tiers.decode_unsupported(4, Rule(cap=50.0))


def test_what_they_do_not_append():
    assert "head sizes 64, 128, 256, 512, not 96" in support.step_unsupported(code(d=96))
    assert "head sizes up to 512 that 16 divides, not 24" in code_unsupported(code(d=24).key.code)
