"""A server of an engine in a process of its own, for tests and for tests/bench."""
import contextlib
import os
import pathlib
import signal
import subprocess
import time
import urllib.error
import urllib.request


def healthy(port):
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/health", timeout=5):
            return True
    except (urllib.error.URLError, OSError):
        return False


@contextlib.contextmanager
def started(command, port, log, seconds):
    """The process, once its server answers on a port of this machine. RuntimeError with the end of its log if it ends before that, or takes longer
    than `seconds`. Afterwards it is stopped, with the processes that it started."""
    with open(log, "wb") as out:
        process = subprocess.Popen(command, stdout=out, stderr=subprocess.STDOUT, start_new_session=True)
        try:
            end = time.monotonic() + seconds
            while not healthy(port):
                if process.poll() is not None or time.monotonic() > end:
                    raise RuntimeError(f"the server does not answer:\n{pathlib.Path(log).read_text(errors='replace')[-3000:]}")
                time.sleep(1)
            yield process
        finally:
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGTERM)
            try:
                process.wait(30)
            except subprocess.TimeoutExpired:
                os.killpg(process.pid, signal.SIGKILL)
                process.wait()
