"""The exceptions of the package for bad input. The message is one sentence that names the file or tensor, what was
found, what was expected and what to do."""


class InputError(ValueError):
    """An unusable bundle, model or argument. The message may contain untrusted names of files and tensors, so it is
    escaped for terminals."""

    def __init__(self, message: object) -> None:
        super().__init__(escaped(message))


class EnvironmentFault(RuntimeError):
    """The machine lacks something: a GPU, memory, a command."""


class NumericalError(ArithmeticError):
    """Keys or values that are not finite."""


def escaped(text: object) -> str:
    """Escapes control characters, invisible characters and invalid bytes in a message."""
    return "".join(c if c.isprintable() else _escape(c) for c in str(text))


def _escape(c: str) -> str:
    raw = ord(c) - 0xDC00  # a byte that is not UTF-8, as Python keeps it in file names
    return f"\\x{raw:02x}" if 0x80 <= raw <= 0xFF else c.encode("unicode_escape").decode()


def quoted(text: object, most: int = 80) -> str:
    """Untrusted text for a message: escapes control characters and quotes, and cuts long texts."""
    text = str(text)
    cut = text if len(text) <= most else text[:most] + "..."
    plain = (c if c.isprintable() and c not in "'\\" else c.encode("unicode_escape").decode() for c in cut)
    return f"'{''.join(plain)}'"
