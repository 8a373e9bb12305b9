"""The commands of the OSCAR toolchain as console scripts: each becomes the native program with the same name.

execve replaces the Python process, so signals and exit codes are the program's. LibTorch comes from the installed
package `torch`, which is found but not imported.
"""
import importlib.util
import os
import pathlib
import signal
import sys


def _environment():
    environment = dict(os.environ)
    if not environment.get("OSCAR_TORCH_DIR"):
        torch = importlib.util.find_spec("torch")
        if torch is not None and torch.submodule_search_locations:
            environment["OSCAR_TORCH_DIR"] = list(torch.submodule_search_locations)[0]
    return environment


def _become(name):
    program = pathlib.Path(__file__).parent / "bin" / name
    try:
        environment = _environment()
        # Python ignores these, and the program would inherit the ignored signals.
        for ignored in (signal.SIGPIPE, signal.SIGXFSZ):
            signal.signal(ignored, signal.SIG_DFL)
        os.execve(program, [name, *sys.argv[1:]], environment)
    except KeyboardInterrupt:
        return 130
    except OSError as e:
        print(f"error: {ascii(str(program))[1:-1]} cannot be started: {e.strerror}", file=sys.stderr)
        return 4


def collect():
    return _become("oscar-collect")


def fit():
    return _become("oscar-fit")


def verify():
    return _become("oscar-verify")


def export():
    return _become("oscar-export")
