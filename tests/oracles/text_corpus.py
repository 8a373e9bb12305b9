"""Texts for comparing tokenizers, written by program: every script, emoji, white space, control characters, broken
UTF-8, long runs, code, numbers, and mixtures of all of them. The same seed gives the same bytes."""

import random

# First and last code point of the blocks of most scripts, symbols and special areas.
BLOCKS = [
    (0x20, 0x7E), (0xA0, 0xFF), (0x100, 0x24F), (0x250, 0x2FF), (0x300, 0x36F), (0x370, 0x3FF), (0x400, 0x52F),
    (0x530, 0x58F), (0x590, 0x5FF), (0x600, 0x6FF), (0x700, 0x74F), (0x780, 0x7BF), (0x7C0, 0x7FF), (0x800, 0x8FF),
    (0x900, 0x97F), (0x980, 0x9FF), (0xA00, 0xA7F), (0xA80, 0xAFF), (0xB00, 0xB7F), (0xB80, 0xBFF), (0xC00, 0xC7F),
    (0xC80, 0xCFF), (0xD00, 0xD7F), (0xD80, 0xDFF), (0xE00, 0xE7F), (0xE80, 0xEFF), (0xF00, 0xFFF), (0x1000, 0x109F),
    (0x10A0, 0x10FF), (0x1100, 0x11FF), (0x1200, 0x139F), (0x13A0, 0x13FF), (0x1400, 0x167F), (0x1680, 0x16FF),
    (0x1700, 0x177F), (0x1780, 0x17FF), (0x1800, 0x18AF), (0x1900, 0x1AAF), (0x1AB0, 0x1AFF), (0x1B00, 0x1BFF),
    (0x1C00, 0x1C8F), (0x1CD0, 0x1CFF), (0x1D00, 0x1DFF), (0x1E00, 0x1FFF), (0x2000, 0x206F), (0x2070, 0x209F),
    (0x20A0, 0x20FF), (0x2100, 0x218F), (0x2190, 0x23FF), (0x2400, 0x24FF), (0x2500, 0x27BF), (0x27C0, 0x2BFF),
    (0x2C00, 0x2DFF), (0x2E00, 0x2FDF), (0x2FF0, 0x303F), (0x3040, 0x30FF), (0x3100, 0x31FF), (0x3200, 0x33FF),
    (0x3400, 0x4DBF), (0x4E00, 0x9FFF), (0xA000, 0xA4CF), (0xA4D0, 0xA6FF), (0xA700, 0xA7FF), (0xA800, 0xA8FF),
    (0xA900, 0xAAFF), (0xAB00, 0xABFF), (0xAC00, 0xD7FF), (0xE000, 0xF8FF), (0xF900, 0xFAFF), (0xFB00, 0xFDFF),
    (0xFE00, 0xFE6F), (0xFE70, 0xFFEF), (0xFFF0, 0xFFFF), (0x10000, 0x101FF), (0x10200, 0x10FFF), (0x11000, 0x11FFF),
    (0x12000, 0x123FF), (0x13000, 0x1467F), (0x16800, 0x16FFF), (0x17000, 0x18CFF), (0x1B000, 0x1BCFF),
    (0x1CC00, 0x1CFFF), (0x1D000, 0x1D7FF), (0x1D800, 0x1E4FF), (0x1E500, 0x1EFFF), (0x1F000, 0x1F2FF),
    (0x1F300, 0x1F6FF), (0x1F700, 0x1FAFF), (0x1FB00, 0x1FBFF), (0x20000, 0x2A6DF), (0x2A700, 0x323AF),
    (0xE0000, 0xE01EF), (0xF0000, 0xF0100), (0x10FF00, 0x10FFFF), (0x0, 0x1F), (0x7F, 0x9F),
]  # fmt: skip

WHITE_SPACE = ["\t", "\n", "\v", "\f", "\r", " ", "\x85", "\xa0", "\u1680", *map(chr, range(0x2000, 0x200B)),
               "\u2028", "\u2029", "\u202f", "\u205f", "\u3000", "\u200b", "\ufeff", "\u180e", "\r\n"]  # fmt: skip

EMOJI = [
    "\U0001f600", "\U0001f44d\U0001f3fd", "\U0001f468\u200d\U0001f469\u200d\U0001f467\u200d\U0001f466", "\u2764\ufe0f",
    "\u2764\ufe0f\u200d\U0001f525", "\U0001f1eb\U0001f1f7", "\U0001f1fa\U0001f1f8\U0001f1ef\U0001f1f5", "1\ufe0f\u20e3",
    "\U0001f3f4\U000e0067\U000e0062\U000e0073\U000e0063\U000e0074\U000e007f", "\U0001f9d1\u200d\U0001f4bb",
    "\U0001f3f3\ufe0f\u200d\U0001f308", "\u00a9\ufe0f", "\U0001fae8", "\U0001f926\U0001f3fe\u200d\u2642\ufe0f",
]  # fmt: skip

PIECES = [
    "'s", "'S", "'re", "'LL", "'d", "'\u017f", "\u2019s", "don't", "I'M", "'", "''", "3.14159", "1,234,567", "0x7fff_ffff",
    "12345678901234567890", "\u0661\u0662\u0663", "\u0967\u0968\u0969", "\u00bd", "\u2163", "x\u00b2", "\uff11\uff12",
    "def f(x):\n    return x[::-1]\n", "for (int i = 0; i < n; ++i) { a[i] += b; }\n", "<div class=\"a\">&amp;</div>",
    "\\frac{a}{b} \\sum_{i=0}^{n}", "https://example.org/a?b=c&d=%20", "user@example.org", "C:\\temp\\new", "#!/bin/sh",
    "--flag=value", "snake_case_name", "camelCaseName", "SCREAMING", "\u00c5ngstr\u00f6m", "A\u030angstro\u0308m",
    "na\u00efve caf\u00e9", "\u01c4 \ufb01ne", "\u0130stanbul", "\u1e9e\u00df", "\uac00\u11a8", "\u1112\u1161\u11ab",
    "\u0e20\u0e32\u0e29\u0e32", "\u0928\u092e\u0938\u094d\u0924\u0947", "\u05e9\u05c1\u05b8", "\u0644\u0627",
    "\u6771\u4eac\u90fd", "\u3053\u3093\u306b\u3061\u306f", "...", "?!?!", "----", "====", "\u2014\u2026", "(([[{{",
]  # fmt: skip

LONG_RUNS = ["a", " ", "\n", "\t", "0", "\u8a9e", "\u0301", "e\u0301", "\u0323\u0301", "!", "ab", " a", "\r\n", "\U0001f600",
             "\u3000", "'s", "\u00a0", "Aa", "\u200d", "a ", "\x00"]  # fmt: skip


def _block_text(rng):
    first, last = rng.choice(BLOCKS)
    points = (rng.randint(first, last) for _ in range(rng.randint(1, 9)))
    return "".join(chr(c) for c in points if not 0xD800 <= c < 0xE000)


def _mixture(rng, specials):
    out = []
    for _ in range(rng.randint(0, 14)):
        kind = rng.random()
        if kind < 0.40:
            out.append(_block_text(rng))
        elif kind < 0.55:
            out.append(rng.choice(PIECES))
        elif kind < 0.70:
            out.append("".join(rng.choice(WHITE_SPACE) for _ in range(rng.randint(1, 4))))
        elif kind < 0.80:
            out.append(" ")
        elif kind < 0.88:
            out.append(rng.choice(EMOJI))
        elif specials:
            special = rng.choice(specials)
            out.append(special if rng.random() < 0.7 else special[: rng.randint(0, len(special))])
    return "".join(out)


def _broken(rng):
    data = bytearray(_mixture(rng, []).encode())
    for _ in range(rng.randint(1, 6)):
        at = rng.randint(0, len(data))
        bad = rng.choice([b"\xff", b"\xc0\xaf", b"\xe0\x80", b"\xed\xa0\x80", b"\xf0\x9f\x98", b"\xf5\x80\x80\x80",
                          b"\x80", b"\xe2\x82", b"\xf4\x90\x80\x80", b"\xc3", b"\xf0\x8f\xbf\xbf", bytes([rng.randint(128, 255)])])  # fmt: skip
        data[at:at] = bad
    return bytes(data)


def corpus(count, specials=(), seed=7, runs=(1, 2, 3, 17, 300)):
    """A list of byte strings; those that are not valid UTF-8 are meant to be read with errors="replace"."""
    rng = random.Random(seed)
    specials = list(specials)
    texts = [b"", *(p.encode() for p in PIECES), *(e.encode() for e in EMOJI), *(w.encode() for w in WHITE_SPACE)]
    texts += [(before + w + after).encode() for w in WHITE_SPACE for before, after in [("a", "b"), (" ", "a"), ("", " ")]]
    texts += [(run * length).encode() for run in LONG_RUNS for length in runs]
    texts += [s.encode() for s in specials]
    while len(texts) < count:
        texts.append(_broken(rng) if rng.random() < 0.15 else _mixture(rng, specials).encode())
    return texts
