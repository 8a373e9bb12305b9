#!/usr/bin/env python3
"""Prints a regular expression of the CTest entries that test what changed since a commit: the first stage of scripts/test --first.
usage: changed.py COMMIT. Exit code 1 without such a commit. Paths that no rule names choose nothing: the second stage runs everything."""
import pathlib
import re
import subprocess
import sys

ROOT = pathlib.Path(__file__).resolve().parents[1]
ALWAYS = ["rooms", "oracles.documents"]
# The first rule that matches a path: (path, entries). A room of lib or tests stands for the programs of its folder in tests.
RULES = [
    (r"(?:README|docs/|.*\.md$)", ["apps.manuals"]),
    (r"tests/python/test_(\w+)\.py", ["python."]),
    (r"tests/oracles/test_(\w+)\.py", ["oracles."]),
    (r"tests/apps/test_(\w+)\.py", ["apps."]),
    (r"python/oscar_kv/engines/(vllm|sglang)/", ["python.engine", "python.package"]),
    (r"python/oscar_kv/hf/", ["python.transformers", "python.package"]),
    (r"python/", ["python.package", "python.caches", "python.vllm"]),
    (r"(?:lib|tests)/(\w+)/", ["programs"]),
    (r"kernels/", ["kernel_includes", "memory_plan_test", "tile_phases_test"]),
    (r"apps/", ["shared_options_test", "apps.fit_options", "apps.output"]),
    (r"(?:scripts|tools|cmake)/", ["apps.package", "apps.manuals", "apps.executables"])]


def programs(room):
    """The GoogleTest programs of tests/ROOM."""
    listed = ROOT / "tests" / room / "CMakeLists.txt"
    return re.findall(r"oscar_test\((\w+_test)", listed.read_text()) if listed.is_file() else []


def entry_of(kind, file):
    """The entry of tests/KIND whose files have test_FILE.py: oscar_..._test(entry file ...)."""
    text = (ROOT / "tests" / kind / "CMakeLists.txt").read_text()
    calls = [call.split() for call in re.findall(r"oscar_\w+_test\(([\w ]+)\)", text)]
    return [f"{kind}.{call[0]}" for call in calls if file in call] or [f"{kind}.{file}"]


def entries_of(path):
    for pattern, entries in RULES:
        if found := re.match(pattern, path):
            special = {"programs": lambda: programs(found[1]), "python.engine": lambda: [f"python.{found[1]}"],
                       "python.": lambda: entry_of("python", found[1]), "oracles.": lambda: entry_of("oracles", found[1]),
                       "apps.": lambda: entry_of("apps", found[1])}
            return [name for entry in entries for name in special.get(entry, lambda entry=entry: [entry])()]
    return []


def regex(paths):
    names = sorted({*ALWAYS, *(name for path in paths for name in entries_of(path))})
    return "^(" + "|".join(map(re.escape, names)) + ")$"


def main():
    done = subprocess.run(["git", "diff", "--name-only", sys.argv[1], "--"], cwd=ROOT, capture_output=True, text=True)
    if done.returncode != 0:
        sys.exit(f"changed.py: {done.stderr.strip()}")
    print(regex(done.stdout.splitlines()))


if __name__ == "__main__":
    main()
