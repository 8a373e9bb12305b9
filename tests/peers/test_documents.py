"""What texts of this repository name exists: links of Markdown files, and files named in documents and in comments."""
import pathlib
import re
import subprocess

import pytest

from conftest import SOURCE_DIR

NAMED = re.compile(r"(?<![\w./-])((?:[\w-]+/)*[\w-]+\.(?:h|cpp|cu|cuh|py|md|schema\.json))(?![\w/-])")
# Files that the commands write, and those of other projects.
WRITTEN_BY_COMMANDS = {"README.md"}
SKIPPED = ("sample_data/tiny-", "tests/bench/results/")


def files():
    listed = subprocess.run(["git", "ls-files", "--cached", "--others", "--exclude-standard"], cwd=SOURCE_DIR,
                            capture_output=True, text=True)
    if listed.returncode == 0:
        names = listed.stdout.split("\n")
    else:  # a source archive
        names = [str(p.relative_to(SOURCE_DIR)) for p in SOURCE_DIR.rglob("*") if p.is_file()]
    return sorted(n for n in names if n and not n.startswith(("build", *SKIPPED)) and (SOURCE_DIR / n).is_file())


FILES = files()
TAILS = {"/".join(pathlib.PurePath(n).parts[i:]) for n in FILES for i in range(len(pathlib.PurePath(n).parts))}
DOCUMENTS = [n for n in FILES if n.endswith(".md")]
SOURCES = [n for n in FILES if n.endswith((".h", ".cpp", ".cu", ".cuh"))]


def comments(text):
    return "\n".join(re.findall(r"(?<!:)//(.*)$", text, re.MULTILINE))


def without_blocks(text):
    return re.sub(r"^```.*?^```", "", text, flags=re.MULTILINE | re.DOTALL)


def missing(text):
    return [name for name in NAMED.findall(text) if name not in TAILS and name not in WRITTEN_BY_COMMANDS]


def test_the_search_finds_what_is_missing():
    assert missing("see no_such_file.h and lib/base/errors.h, errors.h") == ["no_such_file.h"]
    assert missing(comments("int x;  // lib/base/no_such.cpp\n#include \"other.h\"")) == ["lib/base/no_such.cpp"]
    assert len(DOCUMENTS) >= 5 and len(SOURCES) >= 400


@pytest.mark.parametrize("name", DOCUMENTS)
def test_linked_files_exist(name):
    for target in re.findall(r"\]\(([^)#\s]+)[^)]*\)", without_blocks((SOURCE_DIR / name).read_text())):
        if "://" not in target:
            assert (SOURCE_DIR / name).parent.joinpath(target).exists(), f"{name} links to {target}"


@pytest.mark.parametrize("name", DOCUMENTS)
def test_files_named_in_documents_exist(name):
    if name.startswith("sample_data/golden/bundle/"):
        return  # written by a command
    found = missing(without_blocks((SOURCE_DIR / name).read_text()))
    assert not found, f"{name} names {', '.join(found)}"


def test_files_named_in_comments_exist():
    found = [f"{n}: {f}" for n in SOURCES for f in missing(comments((SOURCE_DIR / n).read_text()))]
    assert not found, "\n".join(found)
