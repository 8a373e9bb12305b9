"""How the four programs are linked and compiled, from their ELF files: position independent, everything bound at start and then
read-only, no executable stack, stack protection and checked library calls."""
import re
import shutil
import subprocess

import pytest

from harness import BUILD_DIR

pytestmark = pytest.mark.skipif(shutil.which("readelf") is None, reason="readelf is not installed")


@pytest.fixture(params=["collect", "fit", "verify", "export"])
def elf(request):
    program = BUILD_DIR / "bin" / f"oscar-{request.param}"
    return lambda *options: subprocess.run(["readelf", "-W", *options, str(program)], capture_output=True, text=True, check=True).stdout


def test_position_independent(elf):
    kind = next(line for line in elf("-h").splitlines() if "Type:" in line)
    assert "DYN" in kind, kind
    assert "PIE" in elf("-d")


def test_bound_at_start_and_read_only_then(elf):
    dynamic = elf("-d")
    assert "BIND_NOW" in dynamic or "NOW" in next(line for line in dynamic.splitlines() if "FLAGS" in line), dynamic
    segments = elf("-l").splitlines()
    assert any("GNU_RELRO" in line for line in segments)
    stack = next(line for line in segments if "GNU_STACK" in line)
    assert "E" not in stack.split()[-2], stack
    assert not [line for line in segments if line.strip().startswith("LOAD") and "RWE" in line]


def test_the_gpu_part_is_loaded_only_where_a_gpu_is_used(elf):
    """Its libraries would double the time that every command takes to start."""
    needed = re.findall(r"NEEDED.*\[(.*)\]", elf("-d"))
    assert "libtorch_cpu.so" in needed
    assert not [name for name in needed if re.match(r"lib(torch|torch_cuda|cusolver|cublas\w*|cusparse|cudnn)\.so", name)], needed


def test_protected_stacks_and_checked_calls(elf):
    symbols = elf("-s", "--dyn-syms")
    assert "__stack_chk_fail" in symbols
    assert "_chk@" in symbols, "no fortified call"


def test_no_library_is_looked_for_where_the_command_was_started(elf):
    paths = re.findall(r"\((?:RUNPATH|RPATH)\).*\[(.*)\]", elf("-d"))
    assert paths, "LibTorch is found by it"
    for entry in ":".join(paths).split(":"):
        assert entry.startswith("/"), f"{paths}: an empty or relative entry is the current folder"
