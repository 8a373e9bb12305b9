"""JSON with the rules of the C++ readers (lib/base/json.cpp, python_json.cpp): UTF-8, limited depth, 64-bit numbers.
Files of this project have no duplicate keys and no NaN; files that transformers reads may have both, and the last key
counts."""

import json
import re
from types import EllipsisType
from typing import Any

from .errors import InputError, quoted
from .foreign_files import FileName, read_file

MOST_DEPTH = 64
MOST_VALUES = 20_000_000  # a larger file is not a configuration, manifest or header
SURROGATE = re.compile(rb"\\u[dD][89a-fA-F]")


def _number(text: str, where: FileName) -> float:
    value = float(text)
    if value in (float("inf"), float("-inf")):
        raise InputError(f"{where}: the number {quoted(text, 40)} is too large")
    return value


def _whole(text: str, where: FileName) -> int | float:
    """64-bit integers; longer ones become doubles."""
    if len(text) <= 20 and -1 << 63 <= (value := int(text)) < 1 << 64:
        return value
    return _number(text, where)


def _check_depth(value: object, where: FileName) -> None:
    level: list[Any] = [value]
    for depth in range(MOST_DEPTH + 1):
        level = [v for v in level if type(v) in (dict, list)]
        if not level:
            return
        if depth == MOST_DEPTH:
            raise InputError(f"{where}: JSON is nested deeper than {MOST_DEPTH} levels")
        level = [v for held in level for v in (held.values() if type(held) is dict else held)]


def parse_json(data: bytes, where: FileName, strict: bool = True) -> Any:
    def once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        result = dict(pairs)
        if strict and len(result) != len(pairs):
            seen: set[str] = set()
            for key, _ in pairs:
                if key in seen:
                    raise InputError(f"{where}: the key {quoted(key)} stands twice in one object")
                seen.add(key)
        return result

    def constant(text: str) -> float:
        if not strict:
            return float(text)
        raise InputError(f"{where}: holds {text}, which is no JSON")

    data = bytes(data)
    if sum(data.count(mark) for mark in (b",", b"[", b"{")) > MOST_VALUES:
        raise InputError(f"{where}: holds more than {MOST_VALUES} values, expected fewer")
    try:
        value = json.loads(
            data.decode("utf-8"),
            object_pairs_hook=once,
            parse_constant=constant,
            parse_float=lambda text: _number(text, where),
            parse_int=lambda text: _whole(text, where),
        )
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


def read_json(path: FileName, most: int, strict: bool = True) -> Any:
    return parse_json(read_file(path, most), path, strict)


class Fields:
    """Typed members of a JSON object; `where` starts every message."""

    def __init__(self, value: object, where: FileName) -> None:
        if not isinstance(value, dict):
            raise InputError(f"{where}: is no JSON object")
        self.value, self.where = value, where

    def _get(self, key: str, kind: type | tuple[type, ...], what: str, default: Any) -> Any:
        value = self.value.get(key)
        if value is None:
            if default is not ...:
                return default
            raise InputError(f"{self.where}: the key '{key}' is missing")
        if not isinstance(value, kind) or (isinstance(value, bool) and kind is not bool):
            raise InputError(f"{self.where}: '{key}' is {quoted(json.dumps(value))}, expected {what}")
        return value

    def text(self, key: str, default: str | EllipsisType = ...) -> str:
        return self._get(key, str, "a text", default)

    def flag(self, key: str, default: bool | EllipsisType = ...) -> bool:
        return self._get(key, bool, "true or false", default)

    def number(self, key: str, default: float | EllipsisType = ...) -> float:
        return self._get(key, (int, float), "a number", default)

    def items(self, key: str) -> list[Any]:
        return self._get(key, list, "a list", ...)

    def object(self, key: str, where: FileName | None = None) -> "Fields":
        return Fields(self._get(key, dict, "an object", ...), where or f"{self.where}, {key}")

    def integer(
        self, key: str, low: int | None = None, high: int | None = None, default: int | EllipsisType = ...
    ) -> int:
        value = self._get(key, int, "a whole number", default)
        if value is not default and low is not None and high is not None and not low <= value <= high:
            raise InputError(f"{self.where}: '{key}' is {value}, expected {low} to {high}")
        return value
