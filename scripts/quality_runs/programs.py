"""Where things are, and how programs are run."""
import os
import pathlib
import subprocess
import sys

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
DATA = ROOT / "sample_data"
BUILD = pathlib.Path(os.environ.get("OSCAR_BUILD_DIR", ROOT / "build"))
COLLECT, FIT, VERIFY, SCORE = (BUILD / name for name in ("bin/oscar-collect", "bin/oscar-fit", "bin/oscar-verify", "bench/score_bundles"))


def run(*arguments, allowed=(0,)):
    done = subprocess.run([str(a) for a in arguments], capture_output=True, text=True)
    if done.returncode not in allowed:
        raise SystemExit(f"{' '.join(map(str, arguments))}\nended with {done.returncode}: {done.stderr.strip()}")
    return done.stdout


def require(programs):
    missing = [program for program in programs if not os.access(program, os.X_OK)]
    if missing:
        note(f"error: {missing[0]} is missing, which this script runs; run scripts/setup --tests, then scripts/build")
        sys.exit(4)


def note(text):
    print(text, file=sys.stderr, flush=True)
