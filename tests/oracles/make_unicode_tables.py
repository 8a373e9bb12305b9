"""Writes lib/text/unicode/code_points.txt from the behavior of the Python package `tokenizers` on every
code point.

The components of that package use different Unicode versions: normalization and marks 9, punctuation 8, words, numbers
and case 16 or later, and regular expressions 16. Token ids are equal only if this project makes the same distinctions,
with any Unicode version in the system's utf8proc and Oniguruma.

    python tests/oracles/make_unicode_tables.py > lib/text/unicode/code_points.txt
"""

import textwrap
import unicodedata

import tokenizers
from tokenizers import Regex, normalizers, pre_tokenizers

CODE_POINTS = [c for c in range(0x110000) if not 0xD800 <= c < 0xE000]
CHUNK = 4096
# The versions in Debian 12's libraries; the tables contain later additions.
OLD_REGEX_VERSION = "14.0.0"


def chunks(make):
    """Yields (code points, text) with one line per code point, except newline itself."""
    points = [c for c in CODE_POINTS if c != 10]
    for i in range(0, len(points), CHUNK):
        part = points[i : i + CHUNK]
        yield part, "\n".join(make(chr(c)) for c in part)


def words():
    found = set()
    splitter = pre_tokenizers.Whitespace()
    for part, text in chunks(lambda c: "a" + c + "a"):
        pieces = {piece for piece, _ in splitter.pre_tokenize_str(text)}
        found.update(c for c in part if "a" + chr(c) + "a" in pieces)
    return found


def isolated(splitter):
    found = set()
    for part, text in chunks(lambda c: "\u4e00" + c + "\u4e00"):
        pieces = {piece for piece, _ in splitter.pre_tokenize_str(text)}
        found.update(c for c in part if chr(c) in pieces and c != 0x4E00)
    return found


def marks():
    strip = normalizers.StripAccents()
    return {c for c in CODE_POINTS if strip.normalize_str("a" + chr(c)) == "a"}


def young_for_normalization():
    """Code points that have a decomposition or a combining class today, but not in the package."""
    new = [c for c in CODE_POINTS if unicodedata.decomposition(chr(c)) or unicodedata.combining(chr(c))]
    nfkd, nfd = normalizers.NFKD(), normalizers.NFD()
    inert = set()
    for c in new:
        char, kind = chr(c), unicodedata.combining(chr(c))
        if unicodedata.decomposition(char):
            if nfkd.normalize_str(char) == char:
                inert.add(c)
            continue
        before = nfd.normalize_str("\u0301" + char) == char + "\u0301"  # class below 230 sorts first
        behind = nfd.normalize_str(char + "\u0323") == "\u0323" + char  # class above 220 sorts last
        if kind and not before and not behind:
            inert.add(c)
    # Newer than this Python's tables; found by comparison with utf8proc.
    inert.update([0x11F41, 0x11F42, 0x1E08F, *range(0x10EFD, 0x10F00), *range(0x1E4EC, 0x1E4F0)])
    inert.update(range(0x1E030, 0x1E06E))
    inert.add(0x11A7)  # just before the Hangul finals: utf8proc 2.8 treats it as one
    inert.add(0x11930)  # the second half of 0x11938, a recent composition
    return inert


def young_lower_case():
    """Lowercase letters that are newer than the system's utf8proc may be."""
    lower = normalizers.Lowercase()
    now = {c: lower.normalize_str(chr(c)) for c in CODE_POINTS}
    return {c: ord(low) for c, low in now.items() if low != chr(c).lower()}


def regex_class(pattern):
    splitter = pre_tokenizers.Split(Regex(pattern), "removed", invert=True)
    found = set()
    for _, text in chunks(lambda c: c):
        for piece, _ in splitter.pre_tokenize_str(text):
            found.update(map(ord, piece))
    return found


def kind_of(category, c, han):
    return category, len(chr(c).encode()), c in han, c >= 0x1F000  # pictographs are replaced only by pictographs


def stand_ins():
    """For code points unknown to old regular expression libraries: an older one with the same category, the same
    UTF-8 length and, for Han, the same script."""
    assert unicodedata.unidata_version == OLD_REGEX_VERSION, "run this with a Python that knows " + OLD_REGEX_VERSION
    han = regex_class(r"\p{Han}")
    chosen = {}
    known = {}
    for category in "Lu Ll Lt Lm Lo Mn Mc Me Nd Nl No Pc Pd Ps Pe Pi Pf Po Sm Sc Sk So Cf".split():
        members = regex_class(r"\p{%s}" % category)
        for c in sorted(members):
            if unicodedata.category(chr(c)) != "Cn":
                continue
            kind = kind_of(category, c, han)
            if kind not in known:
                known[kind] = next(
                    old for old in CODE_POINTS if old > 0x900 and kind_of(unicodedata.category(chr(old)), old, han) == kind
                )
            chosen[c] = known[kind]
    return chosen


def ranges(members):
    out = []
    for c in sorted(members):
        if out and out[-1][1] == c - 1:
            out[-1][1] = c
        else:
            out.append([c, c])
    return out


def mapped_ranges(mapping, step):
    """[first, last, value]: value is constant (step 0) or grows with the code point (step 1)."""
    out = []
    for c in sorted(mapping):
        if out and out[-1][1] == c - 1 and mapping[c] - out[-1][2] == step * (c - out[-1][0]):
            out[-1][1] = c
        else:
            out.append([c, c, mapping[c]])
    return out


def print_table(name, rows):
    words = []
    for first, last, *value in rows:
        words.append("".join([f"{first:X}", f"-{last:X}" if last > first else "", *(f">{v:X}" for v in value)]))
    print(name + ":\n" + textwrap.fill(" ".join(words), 120, break_on_hyphens=False))


def main():
    print_table("word", ranges(words()))
    print_table("numeric", ranges(isolated(pre_tokenizers.Digits(individual_digits=True))))
    print_table("punctuation", ranges(isolated(pre_tokenizers.Punctuation())))
    print_table("mark", ranges(marks()))
    print_table("inert", ranges(young_for_normalization()))
    print_table("young_lower_case", mapped_ranges(young_lower_case(), 1))
    print_table("stand_in", mapped_ranges(stand_ins(), 0))


if __name__ == "__main__":
    main()
