"""JSON as the C++ reader takes it: UTF-8, no key twice in an object, no NaN, bounded depth."""
import json

from .errors import InputError, quoted


def parse_json(data, where):
    def once(pairs):
        result = dict(pairs)
        if len(result) != len(pairs):
            seen = set()
            twice = next(k for k, _ in pairs if k in seen or seen.add(k))
            raise InputError(f"{where}: the key {quoted(twice)} stands twice in one object")
        return result

    def constant(text):
        raise InputError(f"{where}: holds {text}, which is no JSON")

    try:
        return json.loads(bytes(data).decode("utf-8"), object_pairs_hook=once, parse_constant=constant)
    except UnicodeDecodeError:
        raise InputError(f"{where}: is not UTF-8") from None
    except RecursionError:
        raise InputError(f"{where}: is nested too deeply") from None
    except json.JSONDecodeError as error:
        raise InputError(f"{where}: is not JSON (line {error.lineno}: {error.msg})") from None


def read_json(path, most):
    try:
        size = path.stat().st_size
        if size > most:
            raise InputError(f"{path}: has {size} bytes, expected at most {most}")
        return parse_json(path.read_bytes(), path)
    except OSError as error:
        raise InputError(f"{path}: cannot be read ({error.strerror})") from None


class Fields:
    """Typed members of a JSON object; `where` opens every message."""

    def __init__(self, value, where):
        if not isinstance(value, dict):
            raise InputError(f"{where}: is no JSON object")
        self.value, self.where = value, where

    def _get(self, key, kind, what, default):
        value = self.value.get(key)
        if value is None:
            if default is not ...:
                return default
            raise InputError(f"{self.where}: the key '{key}' is missing")
        if not isinstance(value, kind) or (isinstance(value, bool) and kind is not bool):
            raise InputError(f"{self.where}: '{key}' is {quoted(json.dumps(value))}, expected {what}")
        return value

    def text(self, key, default=...):
        return self._get(key, str, "a text", default)

    def flag(self, key, default=...):
        return self._get(key, bool, "true or false", default)

    def number(self, key, default=...):
        return self._get(key, (int, float), "a number", default)

    def items(self, key):
        return self._get(key, list, "a list", ...)

    def object(self, key, where=None):
        return Fields(self._get(key, dict, "an object", ...), where or f"{self.where}, {key}")

    def integer(self, key, low=None, high=None, default=...):
        value = self._get(key, int, "a whole number", default)
        if value is not default and low is not None and not low <= value <= high:
            raise InputError(f"{self.where}: '{key}' is {value}, expected {low} to {high}")
        return value
