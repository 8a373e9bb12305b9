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


def end(process):
    """Asks a process of running() to end, with the processes that it started."""
    if process.poll() is None:
        os.killpg(process.pid, signal.SIGTERM)


@contextlib.contextmanager
def running(command, log, environment=None):
    """The process, with what it says in `log`. Afterwards it is stopped, with the processes that it started."""
    with open(log, "wb") as out:
        process = subprocess.Popen(command, stdout=out, stderr=subprocess.STDOUT, start_new_session=True, env=environment)
        try:
            yield process
        finally:
            end(process)
            try:
                process.wait(30)
            except subprocess.TimeoutExpired:
                os.killpg(process.pid, signal.SIGKILL)
                process.wait()


def wait(process, port, log, seconds):
    """Returns once the server answers on a port of this machine. RuntimeError with the end of its log if it ends before that, or takes longer than
    `seconds`."""
    limit = time.monotonic() + seconds
    while process.poll() is not None or not healthy(port):
        if process.poll() is not None or time.monotonic() > limit:
            raise RuntimeError(f"the server does not answer:\n{pathlib.Path(log).read_text(errors='replace')[-8000:]}")
        time.sleep(1)


@contextlib.contextmanager
def started(command, port, log, seconds):
    """running(), once its server answers: wait()."""
    with running(command, log) as process:
        wait(process, port, log, seconds)
        yield process
