"""Runs test files case by case in several processes at once, and prints what each case took: for machines with many cores.

    OSCAR_TEST_DEVICE=cuda python tests/oracles/run_cases.py --jobs 12 tests/oracles/test_families.py [--only gemma4,gpt-oss] [--logs DIR]

A case is what stands in brackets behind a test's name; tests without brackets are cases of their own. The exit code is 1 when one
failed."""
import argparse
import collections
import concurrent.futures
import os
import pathlib
import re
import subprocess
import sys
import tempfile
import time

PYTEST = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider"]
SHOWN = 40  # last lines of a failed case


def cases_of(files):
    """(file, case) -> node ids, in the order of the files."""
    found = collections.OrderedDict()
    done = subprocess.run([*PYTEST, "-q", "--collect-only", *map(str, files)], capture_output=True, text=True)
    for line in done.stdout.splitlines():
        file, separator, test = line.strip().partition("::")
        if separator:
            bracket = re.search(r"\[(.+)\]$", test)
            found.setdefault((pathlib.Path(file).stem, bracket[1] if bracket else test), []).append(line.strip())
    if not found:
        sys.exit(f"no test was found:\n{done.stdout[-2000:]}{done.stderr[-2000:]}")
    return found


def run(key, nodes, logs, environment):
    """(key, seconds, outcome, exit code, output)"""
    start = time.monotonic()
    done = subprocess.run([*PYTEST, "-q", "-rA", "--durations=0", *nodes], capture_output=True, text=True, env=environment)
    (logs / f"{key[0]}-{key[1]}.log").write_text(done.stdout + done.stderr)
    lines = done.stdout.strip().splitlines()
    outcome = re.sub(r" in [\d.]+s.*|=", "", lines[-1]).strip() if lines else "no output"
    return key, time.monotonic() - start, outcome, done.returncode, done.stdout + done.stderr


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("files", nargs="+", type=pathlib.Path)
    parser.add_argument("--jobs", type=int, default=max(1, (os.cpu_count() or 1) // 2), help="processes at once")
    parser.add_argument("--only", default="", help="cases, with commas")
    parser.add_argument("--logs", type=pathlib.Path, help="folder for the output of each case")
    given = parser.parse_args()
    logs = given.logs or pathlib.Path(tempfile.mkdtemp(prefix="cases-"))
    logs.mkdir(parents=True, exist_ok=True)
    only = set(filter(None, given.only.split(",")))
    found = {key: nodes for key, nodes in cases_of(given.files).items() if not only or key[1] in only}
    if only - {case for _, case in found}:
        sys.exit(f"no case is named {', '.join(sorted(only - {case for _, case in found}))}")
    environment = {"OMP_NUM_THREADS": "1", "OMP_WAIT_POLICY": "PASSIVE", **os.environ}
    start, failed, rows = time.monotonic(), [], []
    with concurrent.futures.ThreadPoolExecutor(given.jobs) as pool:
        for done in concurrent.futures.as_completed([pool.submit(run, key, nodes, logs, environment) for key, nodes in found.items()]):
            key, seconds, outcome, code, output = done.result()
            rows.append((key, seconds, outcome))
            print(f"{key[0]} {key[1]}: {outcome}, {seconds:.1f} s", flush=True)
            if code not in (0, 5):
                failed.append((key, "\n".join(output.splitlines()[-SHOWN:])))
    print("\n| file | case | outcome | s |\n|---|---|---|---:|")
    for (file, case), seconds, outcome in sorted(rows):
        print(f"| {file} | {case} | {outcome} | {seconds:.1f} |")
    print(f"{len(rows)} cases, {len(failed)} failed, {time.monotonic() - start:.0f} s with {given.jobs} at once, logs in {logs}")
    for key, tail in failed:
        print(f"\n== {key[0]} {key[1]}\n{tail}")
    return bool(failed)


if __name__ == "__main__":
    sys.exit(main())
