"""Runs every command line of README.md (the lines that begin with "$ " in its console blocks), in order, in a folder that
looks like the root of the repository, and checks the exit codes. A comment "# exit code N" says which one is expected."""
import os
import pathlib
import re
import subprocess

import pytest

from harness import BUILD_DIR, SOURCE_DIR

README = (SOURCE_DIR / "README.md").read_text()


def command_lines():
    lines = []
    for block in re.findall(r"^```console\n(.*?)^```", README, re.MULTILINE | re.DOTALL):
        joined = block.replace("\\\n", " ")
        lines += [line[2:].strip() for line in joined.splitlines() if line.startswith("$ ")]
    return lines


def runnable(line, folder):
    """The scripts that build are run without building: this test is itself part of a build's tests."""
    if line.startswith("scripts/quickstart"):
        return f"OSCAR_LOGS={folder}/logs scripts/quickstart --no-build --output {folder}/quickstart"
    if line.startswith("scripts/test"):
        return "scripts/test --help"
    return line


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """The repository by links, with this build's executables under build/bin."""
    root = tmp_path_factory.mktemp("readme")
    for path in SOURCE_DIR.iterdir():
        if not path.name.startswith((".", "build")):
            os.symlink(path, root / path.name)
    (root / "build").mkdir()
    os.symlink(BUILD_DIR / "bin", root / "build" / "bin")
    return root


def test_there_are_commands():
    assert len(command_lines()) >= 6


@pytest.mark.parametrize("index", range(len(command_lines())))
def test_command(index, folder):
    line = command_lines()[index]
    expected = re.search(r"# exit code (\d+)", line)
    environment = {**os.environ, "PATH": f"{BUILD_DIR / 'bin'}:{os.environ['PATH']}"}
    done = subprocess.run(["bash", "-c", runnable(line, folder)], cwd=folder, capture_output=True, text=True, timeout=1500,
                          env=environment)
    assert done.returncode == int(expected.group(1) if expected else 0), f"$ {line}\n{done.stdout}\n{done.stderr}"


def test_every_linked_file_exists():
    for target in re.findall(r"\]\(([^)#]+)\)", README):
        if "://" not in target:
            assert (SOURCE_DIR / target).exists(), target


def test_every_named_folder_exists():
    for target in re.findall(r"^\| `([a-z_]+(?:/[a-z_]+)*/)` \|", README, re.MULTILINE):
        if not target.startswith("bundle/"):
            assert (SOURCE_DIR / target).is_dir(), target
