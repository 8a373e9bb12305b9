"""The bytes of a SentencePiece character map: a double array as Darts reads it, and the replacements behind it."""

import base64
import struct
import unicodedata


def _trie(keys):
    """Nested dictionaries by byte; the member 0 of a node is the value of the key that ends there."""
    root = {}
    for key, value in keys.items():
        node = root
        for byte in key.encode():
            node = node.setdefault(byte, {})
        node[0] = value
    return root


def double_array(keys):
    """{text: value} -> units. The children of the unit at p stand at p ^ offset ^ byte, the value of a key that ends at p
    at p ^ offset."""
    units, used, first_free = {0: 0}, {0}, 1
    todo = [(0, 0, _trie(keys))]
    while todo:
        at, label, node = todo.pop()
        while first_free in used:
            first_free += 1
        base = first_free  # the byte 0 stands at the base itself
        while base == at or any((base ^ byte) in used for byte in (0, *node)):
            base += 1
        used.add(base)
        assert (at ^ base) < 1 << 21
        units[at] = label | (0 in node) << 8 | (at ^ base) << 10
        for byte, child in node.items():
            used.add(base ^ byte)
            if byte == 0:
                units[base] = child | 1 << 31
            else:
                todo.append((base ^ byte, byte, child))
    size = (max(used) | 255) + 1
    return struct.pack(f"<{size}I", *(units.get(i, 0) for i in range(size)))


def charsmap(replacements):
    """{text: replacement} in base64, as "precompiled_charsmap" holds it."""
    blob, places = b"", {}
    for replacement in dict.fromkeys(replacements.values()):
        places[replacement] = len(blob)
        blob += replacement.encode() + b"\0"
    trie = double_array({text: places[to] for text, to in replacements.items()})
    return base64.b64encode(struct.pack("<I", len(trie)) + trie + blob).decode()


def nfkc_replacements():
    """Every character that NFKC changes (of Hangul and the compatibility ideographs one in nine), letters with an accent
    behind them, controls, and spaces."""
    out = {chr(c): "" for c in [*range(1, 9), 0x7F, 0x200B, 0xFEFF]}
    out.update({chr(c): " " for c in [9, 10, 13, 0xA0, 0x2028, 0x3000]})
    for c in [*range(0x80, 0xD800), *range(0xF900, 0x10000), *range(0x1D400, 0x1D800), *range(0x1F100, 0x1F200)]:
        many = 0xAC00 <= c < 0xD7A4 or 0xF900 <= c < 0xFB00
        to = unicodedata.normalize("NFKC", chr(c))
        if to != chr(c) and not (many and c % 9):
            out.setdefault(chr(c), to)
    for letter in "aeiouAEIOUnsc\u0430\u0915\u3042":
        for mark in "\u0300\u0301\u0302\u0308\u0327\u093c\u3099":
            to = unicodedata.normalize("NFC", letter + mark)
            if len(to) == 1:
                out[letter + mark] = to
    out["\u00e9\u0323"] = "whole"  # beside the shorter key for the accent alone
    out["\u00e8"] = "cut"
    out["\r\n"] = " / "
    return out
