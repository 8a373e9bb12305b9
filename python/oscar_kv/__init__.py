"""oscar-kv: the 2-bit KV cache of the OSCAR toolchain for Python engines. The core (bundle, codec, paged_kv) needs
only torch. attach() and related functions need transformers, which is imported on first use. collect(), fit(),
verify() and export() run the four commands."""

from typing import TYPE_CHECKING, Any

from .commands import collect, export, fit, verify
from .files.errors import EnvironmentFault, InputError, NumericalError
from .format.bundle import Bundle, load_bundle

if TYPE_CHECKING:
    from .hf.attach import attach, detach, new_cache

__version__ = "0.1.0"
__all__ = [
    "Bundle",
    "EnvironmentFault",
    "InputError",
    "NumericalError",
    "attach",
    "collect",
    "detach",
    "export",
    "fit",
    "load_bundle",
    "new_cache",
    "verify",
]


def __getattr__(name: str) -> Any:
    if name in ("attach", "detach", "new_cache"):
        from .hf import attach

        return getattr(attach, name)
    raise AttributeError(f"module 'oscar_kv' has no attribute '{name}'")
