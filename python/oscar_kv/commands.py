"""The four commands from Python: each function runs the executable and returns its --json output. Options are the
command's (docs/oscar-*.md of the toolchain) with underscores: fit("bundle", model=DIR, prompts="a.jsonl",
far_pairs="64,256"). True gives an option without a value, False and None omit it, and a list repeats it."""

import os
import shutil
import subprocess
import sys
import threading
from collections.abc import Iterable, Mapping
from typing import Any

from .files.errors import EnvironmentFault, InputError, NumericalError
from .files.foreign_files import FileName
from .files.strict_json import parse_json

FOLDER_VARIABLE = "OSCAR_BIN"
GATE_FAILED, USAGE, BAD_INPUT, ENVIRONMENT, NUMERICAL = 1, 2, 3, 4, 5


def _executable(name: str) -> str:
    folder = os.environ.get(FOLDER_VARIABLE)
    beside = os.path.dirname(sys.executable)  # of a virtual environment that is not activated
    found = shutil.which(name, path=folder) if folder else shutil.which(name) or shutil.which(name, path=beside)
    if found is None:
        raise EnvironmentFault(
            f"{name} is not in {folder or 'PATH'}; install the toolchain, or name the folder of "
            f"its commands in {FOLDER_VARIABLE}"
        )
    return found


def _words(options: Mapping[str, Any]) -> list[str]:
    words = []
    for name, value in options.items():
        option = "--" + name.rstrip("_").replace("_", "-")
        for one in value if isinstance(value, (list, tuple)) else [value]:
            if one is True:
                words.append(option)
            elif one is not None and one is not False:
                words.append(f"{option}={os.fspath(one) if isinstance(one, os.PathLike) else one}")
    return words


def _place(path: FileName) -> str:
    """A file or folder as a word that cannot be mistaken for an option."""
    path = os.fspath(path)
    return os.path.join(".", path) if path.startswith("-") else path


def _run(
    command: str, places: Iterable[FileName], options: Mapping[str, Any], codes: tuple[int, ...] = (0,)
) -> dict[str, Any]:
    """Returns the JSON output of the command. Progress and warnings go to sys.stderr immediately."""
    words = [_executable(command), *map(_place, places), *_words(options), "--json"]
    try:
        running = subprocess.Popen(words, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    except OSError as error:
        raise EnvironmentFault(
            f"{words[0]} cannot be run ({error.strerror}); install the toolchain for this machine"
        ) from None
    output, progress = running.stdout, running.stderr
    assert output is not None and progress is not None  # pipes
    said = []

    def follow() -> None:
        for line in progress:
            said.append(line.decode(errors="backslashreplace"))
            sys.stderr.write(said[-1])

    follower = threading.Thread(target=follow)
    follower.start()
    try:
        out = output.read()
        code = running.wait()
    except BaseException:
        running.terminate()
        running.wait()
        raise
    finally:
        follower.join()
    if code in codes:
        return parse_json(out, f"the result of {command}")
    sentence = next(
        (line.removeprefix("error: ").rstrip() for line in reversed(said) if line.startswith("error: ")),
        f"{command} ended with {code}",
    )
    if code == USAGE:
        raise ValueError(sentence)
    if code == BAD_INPUT:
        raise InputError(sentence)
    if code == NUMERICAL:
        raise NumericalError(sentence)
    raise EnvironmentFault(sentence)


def collect(output: FileName, **options: Any) -> dict[str, Any]:
    """oscar-collect: collects statistics of calibration prompts into the file `output`. Returns its plan and counts."""
    return _run("oscar-collect", (), {"output": output, **options})


def fit(output: FileName, statistics: FileName | None = None, **options: Any) -> dict[str, Any]:
    """oscar-fit: makes a bundle in the folder `output`, from statistics. With model=DIR: from prompts or
    self-generated calibration data. Returns the method, the bits per element, and the layers' clip ratios and
    errors."""
    return _run("oscar-fit", () if statistics is None else (statistics,), {"output": output, **options})


def verify(**options: Any) -> dict[str, Any]:
    """oscar-verify: verify(model=DIR, bundle=DIR, text=FILE, context=N). Returns the report; "gates" shows failed
    gates."""
    return _run("oscar-verify", (), options, codes=(0, GATE_FAILED))


def export(bundle: FileName, output: FileName, format: str, **options: Any) -> dict[str, Any]:
    """oscar-export: writes the files of a serving engine into the folder `output`. Returns their names."""
    return _run("oscar-export", (bundle,), {"output": output, "format": format, **options})
