"""JSON with the rules of the C++ readers (lib/base/json.cpp, python_json.cpp): UTF-8, limited depth, 64-bit numbers.
Files of this project have no duplicate keys and no NaN; files that transformers reads may have both, and the last key
counts."""
import json
import re

from .errors import InputError, quoted
from .foreign_files import read_file

MOST_DEPTH = 64
MOST_VALUES = 20_000_000  # a larger file is not a configuration, manifest or header
SURROGATE = re.compile(rb"\\u[dD][89a-fA-F]")


def _number(text, where):
    value = float(text)
    if value in (float("inf"), float("-inf")):
        raise InputError(f"{where}: the number {quoted(text, 40)} is too large")
    return value


def _whole(text, where):
    """64-bit integers; longer ones become doubles."""
    if len(text) <= 20 and -1 << 63 <= (value := int(text)) < 1 << 64:
        return value
    return _number(text, where)


def _check_depth(value, where):
    level = [value]
    for depth in range(MOST_DEPTH + 1):
        level = [v for v in level if type(v) in (dict, list)]
        if not level:
            return
        if depth == MOST_DEPTH:
            raise InputError(f"{where}: JSON is nested deeper than {MOST_DEPTH} levels")
        level = [v for held in level for v in (held.values() if type(held) is dict else held)]


def parse_json(data, where, strict=True):
    def once(pairs):
        result = dict(pairs)
        if strict and len(result) != len(pairs):
            seen = set()
            twice = next(k for k, _ in pairs if k in seen or seen.add(k))
            raise InputError(f"{where}: the key {quoted(twice)} stands twice in one object")
        return result

    def constant(text):
        if not strict:
            return float(text)
        raise InputError(f"{where}: holds {text}, which is no JSON")

    data = bytes(data)
    if sum(data.count(mark) for mark in (b",", b"[", b"{")) > MOST_VALUES:
        raise InputError(f"{where}: holds more than {MOST_VALUES} values, expected fewer")
    try:
        value = json.loads(data.decode("utf-8"), object_pairs_hook=once, parse_constant=constant,
                           parse_float=lambda text: _number(text, where), parse_int=lambda text: _whole(text, where))
    except UnicodeDecodeError:
        raise InputError(f"{where}: is not UTF-8") from None
    except RecursionError:
        raise InputError(f"{where}: JSON is nested deeper than {MOST_DEPTH} levels") from None
    except json.JSONDecodeError as error:
        raise InputError(f"{where}: is not JSON (line {error.lineno}: {error.msg})") from None
    _check_depth(value, where)
    if SURROGATE.search(data):
        try:
            json.dumps(value, ensure_ascii=False).encode()
        except UnicodeEncodeError:
            raise InputError(f"{where}: is not JSON (a \\u escape is one half of a surrogate pair)") from None
    return value


def read_json(path, most, strict=True):
    return parse_json(read_file(path, most), path, strict)


class Fields:
    """Typed members of a JSON object; `where` starts every message."""

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
