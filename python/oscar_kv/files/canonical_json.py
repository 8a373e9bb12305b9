"""A canonical text for each JSON value: keys sorted, no spaces, every number a double in its shortest form.
lib/base/canonical_json.cpp of the toolchain writes the same."""

import json
import math


def _double_text(value: float) -> str:
    value = float(value)
    if not math.isfinite(value):
        return "null"
    if 1e15 <= abs(value) < 1e16:  # in this range C++ writes an exponent, one digit earlier than Python
        digits = repr(abs(value)).replace(".", "").rstrip("0")
        return f"{'-' if value < 0 else ''}{digits[0]}{'.' + digits[1:] if len(digits) > 1 else ''}e+15"
    return repr(value)


def canonical_json(value: object) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, (int, float)):
        return _double_text(value)
    if isinstance(value, str):
        return json.dumps(value, ensure_ascii=False)
    if isinstance(value, dict):
        return "{" + ",".join(f"{canonical_json(k)}:{canonical_json(value[k])}" for k in sorted(value)) + "}"
    if isinstance(value, list):
        return "[" + ",".join(map(canonical_json, value)) + "]"
    return "null"
