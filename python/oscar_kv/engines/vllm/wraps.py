"""Methods of vLLM's classes that this package wraps, where vLLM has no hook."""

import functools
from collections.abc import Callable
from typing import Any


def wrap_once(owner: type, name: str, mark: str, around: Callable[..., Any]) -> None:
    """From now on the method does around(original, self, ...). Calls with a mark that it has change nothing."""
    original = getattr(owner, name)
    if hasattr(original, mark):
        return

    @functools.wraps(original)
    def wrapped(self: Any, *arguments: Any, **named: Any) -> Any:
        return around(original, self, *arguments, **named)

    setattr(wrapped, mark, None)
    setattr(owner, name, wrapped)
