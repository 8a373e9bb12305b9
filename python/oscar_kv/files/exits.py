"""The ends of this package's `python -m` modules: the exit codes of the four commands (docs/command-line.md) and one
sentence, escaped for terminals."""

import argparse
import os
import sys
from collections.abc import Callable
from typing import NoReturn

from .errors import EnvironmentFault, InputError, NumericalError, escaped

INPUT_EXIT, ENVIRONMENT_EXIT, NUMERICAL_EXIT, INTERRUPTED_EXIT, READER_LEFT_EXIT = 3, 4, 5, 130, 141


class Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        super().error(escaped(message))


def _say(text: object) -> None:
    print(escaped(f"error: {text}"), file=sys.stderr)


def ended(run: Callable[[], int | None]) -> int:
    """Returns run()'s exit code, or the exit code for its error."""
    import torch

    if sys.stdout is None:  # closed by whoever started Python
        _say("standard output is closed; open it, or send it to a file")
        return ENVIRONMENT_EXIT
    try:
        code = run()
        sys.stdout.flush()
        return code or 0
    except InputError as error:
        _say(error)
        return INPUT_EXIT
    except (EnvironmentFault, MemoryError, torch.OutOfMemoryError) as error:
        _say(str(error) or "out of memory; use a smaller model or fewer tokens")
        return ENVIRONMENT_EXIT
    except NumericalError as error:
        _say(error)
        return NUMERICAL_EXIT
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # otherwise Python reports an error at exit
        return READER_LEFT_EXIT
    except OSError as error:
        _say(error)
        return ENVIRONMENT_EXIT
    except (RuntimeError, ValueError) as error:  # raised by torch or transformers for this model
        _say(f"{type(error).__name__}: {str(error).split(chr(10))[0]}")
        return INPUT_EXIT
    except KeyboardInterrupt:
        _say("interrupted; nothing was written")
        return INTERRUPTED_EXIT
