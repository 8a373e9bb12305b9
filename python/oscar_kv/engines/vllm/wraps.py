"""Methods of vLLM's classes that this package wraps, where vLLM has no hook."""

import functools
from collections.abc import Callable
from typing import Any

MARK = "_oscar_kv"  # of a wrapped method


def wrap_once(owner: type, name: str, around: Callable[..., Any]) -> None:
    """From now on the method does around(original, self, ...), a class method around(original, ...). Further calls
    change nothing."""
    original = getattr(owner, name)
    if hasattr(original, MARK):
        return

    @functools.wraps(original)
    def wrapped(*arguments: Any, **named: Any) -> Any:
        return around(original, *arguments, **named)

    setattr(wrapped, MARK, None)
    setattr(owner, name, wrapped)
