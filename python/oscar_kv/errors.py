"""What every part of the package raises for bad input: one sentence that names the file or tensor, what was found, what
was expected and what to do."""


class InputError(ValueError):
    """A bundle, a model or an argument that cannot be used."""


class NumericalError(ArithmeticError):
    """Keys or values that are not finite."""


def quoted(text, most=80):
    """Foreign text for a message: control characters and quotes escaped, long texts cut."""
    text = str(text)
    cut = text if len(text) <= most else text[:most] + "..."
    return "'" + "".join(c if c.isprintable() and c not in "'\\" else c.encode("unicode_escape").decode() for c in cut) + "'"
