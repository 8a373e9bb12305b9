#!/usr/bin/env python3
"""Runs a command and appends one JSON line to a file: its seconds, and the peaks of host and GPU memory while it ran.

    python tests/bench/measured_run.py RESULTS NAME command...

Host memory is that of the process without mapped files (RssAnon) and with them (VmHWM, of which mapped weights are a part that the
kernel may take back). GPU memory is what nvidia-smi says is used, less what was used before; null without nvidia-smi.
"""
import json
import shutil
import signal
import subprocess
import sys
import time


def gpu_bytes():
    if shutil.which("nvidia-smi") is None:
        return None
    query = ["nvidia-smi", "--query-gpu=memory.used", "--format=csv,noheader,nounits", "--id=0"]
    found = subprocess.run(query, capture_output=True, text=True)
    return int(found.stdout.split()[0]) << 20 if found.returncode == 0 else None


def host_bytes(pid):
    try:
        with open(f"/proc/{pid}/status") as file:
            lines = dict(line.split(":", 1) for line in file)
    except OSError:
        return 0, 0
    return tuple(int(lines.get(key, "0 kB").split()[0]) << 10 for key in ("RssAnon", "VmHWM"))


def main():
    results, name, *command = sys.argv[1:]
    before, gpu, anonymous, whole = gpu_bytes(), 0, 0, 0
    start = time.monotonic()
    process = subprocess.Popen(command)
    signal.signal(signal.SIGTERM, lambda *_: process.kill())  # a time limit ends the command, not this script alone
    looked = 0.0
    while process.poll() is None:
        held, most = host_bytes(process.pid)
        anonymous, whole = max(anonymous, held), max(whole, most)
        if before is not None and time.monotonic() - looked > 0.25:
            gpu, looked = max(gpu, gpu_bytes() or 0), time.monotonic()
        time.sleep(0.02)
    seconds = time.monotonic() - start
    with open(results, "a") as file:
        file.write(json.dumps(dict(name=name, code=process.returncode, seconds=seconds, host_anonymous=anonymous, host_mapped=whole,
                                   gpu=None if before is None else max(gpu - before, 0))) + "\n")
    return process.returncode


if __name__ == "__main__":
    sys.exit(main())
