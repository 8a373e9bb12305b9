"""What every part of the package raises for bad input: one sentence that names the file or tensor, what was found, what
was expected and what to do."""


class InputError(ValueError):
    """A bundle, a model or an argument that cannot be used. Names of files and tensors in its message are foreign text: nothing of it
    reaches a terminal as anything but text, whoever prints it."""

    def __init__(self, message):
        super().__init__(escaped(message))


class EnvironmentFault(RuntimeError):
    """The machine lacks something: a GPU, memory, a command."""


class NumericalError(ArithmeticError):
    """Keys or values that are not finite."""


def escaped(text):
    """A message without what a terminal obeys: control and invisible characters, and bytes that are no text, as escapes."""
    return "".join(c if c.isprintable() else _escape(c) for c in str(text))


def _escape(c):
    raw = ord(c) - 0xDC00  # a byte that is no UTF-8, as Python keeps it in names of files
    return f"\\x{raw:02x}" if 0x80 <= raw <= 0xFF else c.encode("unicode_escape").decode()


def quoted(text, most=80):
    """Foreign text for a message: control characters and quotes escaped, long texts cut."""
    text = str(text)
    cut = text if len(text) <= most else text[:most] + "..."
    return "'" + "".join(c if c.isprintable() and c not in "'\\" else c.encode("unicode_escape").decode() for c in cut) + "'"
