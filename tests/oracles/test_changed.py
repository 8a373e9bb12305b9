"""tests/changed.py, which chooses the entries of the first stage of scripts/test --first."""
import json
import os
import pathlib
import re
import shutil
import subprocess
import sys

import pytest
from conftest import BUILD_DIR, SOURCE_DIR

sys.path.insert(0, str(SOURCE_DIR / "tests"))
import changed  # noqa: E402

CASES = {  # what changed, and an entry that must be among the chosen ones
    "lib/codec/uniform.cpp": "codec_test", "tests/bundle/bundle_test.cpp": "bundle_test", "kernels/plan/plan.cu": "memory_plan_test",
    "python/oscar_kv/engines/vllm/backend.py": "python.vllm", "python/oscar_kv/engines/sglang/pool.py": "python.sglang",
    "python/oscar_kv/cache/tiers.py": "python.caches", "tests/python/test_rope.py": "python.caches", "tests/oracles/test_chat.py": "oracles.text",
    "tests/apps/test_console.py": "apps.readme", "docs/vllm.md": "oracles.documents", "scripts/package": "apps.package",
    "apps/oscar_fit.cpp": "apps.fit_options", "CMakePresets.json": "rooms"}


def entries():
    command = re.search(r"^CMAKE_CTEST_COMMAND:[A-Z]+=(.*)$", (BUILD_DIR / "CMakeCache.txt").read_text(), re.MULTILINE)[1]
    listed = subprocess.run([command, "--test-dir", BUILD_DIR, "-N", "--show-only=json-v1"], capture_output=True, text=True, check=True)
    return json.loads(listed.stdout)["tests"]


@pytest.mark.parametrize("path, entry", CASES.items())
def test_a_change_chooses_its_entries(path, entry):
    assert re.match(changed.regex([path]), entry), changed.regex([path])
    assert not re.match(changed.regex([path]), "python.sglang_engine")


def test_every_chosen_entry_exists():
    folders = [f"{top}/{p.name}/x" for top in ("lib", "python/oscar_kv", "python/oscar_kv/engines") for p in (SOURCE_DIR / top).iterdir() if p.is_dir()]
    files = [f"tests/{kind}/{p.name}" for kind in ("python", "oracles", "apps") for p in (SOURCE_DIR / "tests" / kind).glob("test_*.py")]
    chosen = {name for path in [*CASES, *folders, *files] for name in changed.entries_of(path)}
    registered = "".join(p.read_text() for p in (SOURCE_DIR / "tests").glob("*/CMakeLists.txt"))
    known = {test["name"] for test in entries()} | {name for name in re.findall(r"oscar_test\((\w+)", registered)}  # some only with CUDA
    assert chosen and chosen <= known, chosen - known
    # Every room of the library has programs, or those of the rooms that use it test it.
    assert {p.name for p in (SOURCE_DIR / "lib").iterdir() if p.is_dir() and not changed.programs(p.name)} <= {"distributed"}


def test_the_script_reads_git():
    script = SOURCE_DIR / "tests/changed.py"
    if subprocess.run(["git", "rev-parse", "HEAD"], cwd=SOURCE_DIR, capture_output=True).returncode:
        pytest.skip("no git repository")
    done = subprocess.run([sys.executable, script, "HEAD"], capture_output=True, text=True)
    assert done.returncode == 0 and done.stdout.startswith("^(") and "oracles\\.documents" in done.stdout, done
    assert subprocess.run([sys.executable, script, "no-such-commit"], capture_output=True).returncode == 1


def test_every_file_of_tests_is_run():
    run = {pathlib.Path(word).resolve() for test in entries() for word in test.get("command", []) if word.endswith(".py")}
    here = {p.resolve() for kind in ("python", "oracles", "apps") for p in (SOURCE_DIR / "tests" / kind).glob("test_*.py")}
    assert len(here) > 100 and not here - run, f"no entry of CTest runs {sorted(here - run)}"


CTEST = """#!/bin/sh
# Two tests: the second one is `slow`. Writes what it was asked for, and the results.
echo "$*" >> {log}
case "$*" in *"-R ^("*) name=first; fault=$FIRST ;; *) name=slow; fault= ;; esac
while [ $# -gt 0 ]; do [ "$1" != --output-junit ] || file=$2; shift; done
echo "<testsuite><testcase name=\\"$name\\" status=\\"${{fault:-run}}\\">${{fault:+<failure/>}}<system-out/></testcase></testsuite>" > "$file"
"""


@pytest.mark.parametrize("fault, calls", [("", 2), ("fail", 1)])
def test_the_first_stage_decides(tmp_path, fault, calls):
    """scripts/test with a ctest that only writes down how it was called, in a repository of two commits."""
    log, env = tmp_path / "log", tmp_path / "env/bin"
    env.mkdir(parents=True)
    for name in ("scripts/test", "scripts/common.sh", "tests/changed.py", "tests/count_tests.py", "tests/base/CMakeLists.txt"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(SOURCE_DIR / name, tmp_path / name)
    for name, text in (("scripts/setup", "#!/bin/sh\n"), ("scripts/format", "#!/bin/sh\n"), ("scripts/build", "#!/bin/sh\n"),
                       ("env/bin/ctest", CTEST.format(log=log)), ("env/bin/python", f'#!/bin/sh\nexec {sys.executable} "$@"\n')):
        (tmp_path / name).write_text(text)
        (tmp_path / name).chmod(0o755)
    git = ["git", "-C", tmp_path, "-c", "user.name=n", "-c", "user.email=e"]
    for arguments in (["init", "-q"], ["commit", "-q", "--allow-empty", "-m", "a"], ["add", "."], ["commit", "-q", "-m", "b"]):
        subprocess.run([*git, *arguments], check=True)
    done = subprocess.run([tmp_path / "scripts/test", "--no-sanitize", "--first", "HEAD~1"], capture_output=True, text=True,
                          env={**os.environ, "OSCAR_ENV": str(tmp_path / "env"), "FIRST": fault})
    asked = log.read_text().splitlines()
    assert done.returncode == (1 if fault else 0) and len(asked) == calls, done
    chosen = re.search(r"-R (\^\(.*\)\$)", asked[0])[1]
    assert "base_test" in chosen and (fault or asked[1].endswith(f"-E {chosen}")), asked
    assert ("the other tests were not run" in done.stdout) == bool(fault)
