"""The `console` blocks of README.md and docs/. A comment in the line above a block says what becomes of it:

    <!-- runs with: MODEL=sample_data/tiny-llama "--device cuda=--device cpu --tokens 2000" -->

    <!-- not run: GPU -->

Blocks of the first kind run here, each in a folder that looks like the root of the repository and holds what README's example
made, with the words before "=" replaced by those behind; "$ COMMAND" in the comment runs first. Blocks of the second kind need what a test has not: their
programs, options and files must exist all the same, and their number is written down below."""
import collections
import os
import pathlib
import re
import shlex
import shutil
import subprocess
import sys

import pytest

from harness import BUILD_DIR, SOURCE_DIR
from test_readme import MADE_BY_README, PAGES, README, Folder, LONG_OPTION, SHARED, SUBCOMMANDS, options_of, text_of

# How many blocks need a GPU, packages from an index, published weights, or minutes of building. test_package.py and
# scripts/try_package run what the last two kinds of page docs/install.md show.
NOT_RUN = {"GPU": 6, "network": 11, "real model": 2, "build": 3}

BLOCK = re.compile(r"^(?:<!-- (.*?) -->\n)?```console\n(.*?)^```", re.MULTILINE | re.DOTALL)


class Block:
    def __init__(self, page, number, marker, text):
        self.name, self.page = f"{page}:{number}", page
        commands = re.findall(r"^\$ ((?:.*\\\n)*.*)$", text, re.MULTILINE)
        self.lines = [command.replace("\\\n", " ").split(" #")[0].strip() for command in commands]
        kind, _, rest = (marker or "").partition(": ")
        self.reason = rest if kind == "not run" else None
        self.runs = kind in ("runs", "runs with")
        items = shlex.split(rest) if kind == "runs with" else []
        self.before = [item[2:] for item in items if item.startswith("$ ")]
        self.changes = [item.partition("=")[::2] for item in items if not item.startswith("$ ")]
        self.idle = [old for old, _ in self.changes if not any(self.pattern(old).search(line) for line in self.lines)]

    @staticmethod
    def pattern(words):
        return re.compile(rf"(?<![\w/.-]){re.escape(words)}(?![\w/.-])")

    def commands(self):
        for line in self.lines:
            for old, new in self.changes:
                line = self.pattern(old).sub(new.replace("\\", r"\\"), line)
            yield line


BLOCKS = [Block(page, text_of(page)[:match.start()].count("\n") + 1, *match.groups())
          for page in PAGES for match in BLOCK.finditer(text_of(page))]
RUN = [block for block in BLOCKS if block.runs]


def test_every_block_says_what_becomes_of_it():
    without = [block.name for block in BLOCKS if block not in RUN and block.reason is None]
    assert not without, f"no marker above the console blocks {', '.join(without)}"
    assert collections.Counter(block.reason for block in BLOCKS if block.reason) == NOT_RUN
    assert len(BLOCKS) >= 23 and all(block.lines for block in BLOCKS)
    idle = [f"{block.name}: {', '.join(block.idle)}" for block in RUN if block.idle]
    assert not idle, f"markers replace words that do not stand in the block: {'; '.join(idle)}"


@pytest.fixture(scope="session")
def readme(folder_of):
    """The folder in which README's example has run."""
    folder = folder_of(README)
    folder.run(len(folder.commands) - 1)
    return folder.root


@pytest.fixture
def place(readme, tmp_path):
    """place(block): a folder with what the block's commands read."""
    def make(block):
        Folder(tmp_path, block.page)
        os.symlink(BUILD_DIR / "bench", tmp_path / "build" / "bench")
        written = set(re.findall(r"(?:-o|--output) (\S+)", "\n".join(block.lines)))
        for name, made in MADE_BY_README.items():
            if name not in written:
                (shutil.copytree if (readme / made).is_dir() else shutil.copy)(readme / made, tmp_path / name)
        return tmp_path
    return make


@pytest.mark.parametrize("block", RUN, ids=lambda block: block.name)
def test_block_runs(block, place):
    root = place(block)
    environment = {**os.environ, "PATH": f"{BUILD_DIR / 'bin'}:{os.environ['PATH']}", "NO_COLOR": "1", "PYTHONPATH": str(root / "python")}
    for line in [*block.before, *block.commands()]:
        line = re.sub(r"^python3? ", f"{sys.executable} ", line)
        done = subprocess.run(["bash", "-c", line], cwd=root, capture_output=True, text=True, timeout=600, env=environment)
        assert done.returncode == 0, f"$ {line}\n{done.stdout}\n{done.stderr}"


def programs(line):
    """[(program, its words)] of a line of shell, without settings of variables in front."""
    words = [word for word in shlex.split(line, comments=True) if not re.match(r"[A-Z_]+=", word)]
    return words[0], words[1:]


@pytest.mark.parametrize("block", [block for block in BLOCKS if block.reason], ids=lambda block: block.name)
def test_block_that_is_not_run_names_what_exists(block):
    for line in block.lines:
        program, words = programs(line)
        if program in SUBCOMMANDS:
            unknown = set(LONG_OPTION.findall(" ".join(words))) - options_of(program) - SHARED
            assert not unknown, f"{block.name}: {program} has no {', '.join(sorted(unknown))}"
        if program.startswith(("scripts/", "tests/")) or words[:1] and words[0].startswith("tests/"):
            script = SOURCE_DIR / (program if "/" in program else words[0])
            text = "".join(p.read_text() for p in [script, *(SOURCE_DIR / "scripts" / f"{script.name}_runs").glob("*.py")])
            unknown = [option for option in LONG_OPTION.findall(" ".join(words)) if option not in text]
            assert not unknown, f"{block.name}: {script.name} has no {', '.join(unknown)}"
        for word in [program, *words]:
            top = pathlib.PurePath(word).parts[0] if "/" in word else ""
            if top == "build" and "bench" in word:
                assert (SOURCE_DIR / "tests/bench" / (pathlib.PurePath(word).name + ".cu")).exists(), f"{block.name}: {word}"
            elif top in ("scripts", "tests", "docs", "sample_data", "python", "apps"):
                assert (SOURCE_DIR / word).exists(), f"{block.name} names {word}"


def test_the_checks_see_what_is_wrong():
    wrong = Block("x", 1, "not run: GPU", "$ oscar-fit stats -o out --no-such-option\n")
    with pytest.raises(AssertionError, match="has no --no-such-option"):
        test_block_that_is_not_run_names_what_exists(wrong)
    with pytest.raises(AssertionError, match="names scripts/none"):
        test_block_that_is_not_run_names_what_exists(Block("x", 1, "not run: GPU", "$ cat scripts/none\n"))
    changed = Block("x", 1, 'runs with: M=model "--device cuda=--device cpu"', "$ run --model M \\\n  --device cuda --M x/M\n")
    assert list(changed.commands()) == ["run --model model    --device cpu --M x/M"] and not changed.idle
    assert Block("x", 1, "runs with: N=model", "$ run M\n").idle == ["N"]
