"""Fixtures shared by the peer tests: where the built programs and the source tree are."""
import os
import pathlib
import subprocess

import pytest

SOURCE_DIR = pathlib.Path(os.environ.get("OSCAR_SOURCE_DIR", pathlib.Path(__file__).parents[2]))
BUILD_DIR = pathlib.Path(os.environ.get("OSCAR_BUILD_DIR", SOURCE_DIR / "build"))
# Where the programs under test compute; the oracles stay on the CPU.
DEVICE = os.environ.get("OSCAR_TEST_DEVICE", "cpu")


@pytest.fixture(scope="session")
def tool():
    """tool("name", *arguments, code=0): runs a program of build/tests or build/bin and returns its stdout as text.

    The exit code must be `code`; with another one expected, returns stderr instead."""

    def run(name, *arguments, code=0, **options):
        places = [BUILD_DIR / "tests" / name, BUILD_DIR / "bin" / name]
        program = next((p for p in places if p.exists()), None)
        assert program is not None, f"{name} is not built in {BUILD_DIR}"
        done = subprocess.run([str(program), *map(str, arguments)], capture_output=True, text=True, **options)
        assert done.returncode == code, f"{name} ended with {done.returncode}: {done.stderr}"
        return done.stdout if code == 0 else done.stderr

    return run
