"""oscar-kv: the 2-bit KV cache of the OSCAR toolchain for Python engines."""
from .bundle import Bundle, load_bundle
from .errors import InputError, NumericalError

__version__ = "0.1.0"
__all__ = ["Bundle", "InputError", "NumericalError", "load_bundle"]
