"""The golden codec vectors against an implementation written from docs/format-codec.md alone: scalar loops over numpy
single-precision numbers."""
import json
import os
import pathlib
import struct

import numpy as np
import pytest

np.seterr(all="ignore")
F = np.float32
SOURCE = pathlib.Path(os.environ.get("OSCAR_SOURCE_DIR", pathlib.Path(__file__).resolve().parents[2]))
CASES = json.loads((SOURCE / "sample_data/golden/codec_vectors.json").read_text())["cases"]


def bfloat16_bits(x):
    (bits,) = struct.unpack("<I", struct.pack("<f", float(x)))
    low, high = bits & 0xFFFF, bits >> 16
    if low > 0x8000 or (low == 0x8000 and high & 1):
        high += 1
    return high


class Float16:
    most, least = F(65504), F(2.0**-24)

    @staticmethod
    def bits(x):
        return int(np.float16(F(x)).view(np.uint16))

    @staticmethod
    def value(bits):
        return F(np.uint16(bits).view(np.float16))


class BFloat16:
    most, least = F(2.0**96), F(2.0**-100)
    bits = staticmethod(bfloat16_bits)

    @staticmethod
    def value(bits):
        return F(struct.unpack("<f", struct.pack("<I", bits << 16))[0])


def fixed_sum(terms):
    lanes = [F(0)] * 32
    for i, term in enumerate(terms):
        lanes[i % 32] = F(lanes[i % 32] + term)
    for width in (16, 8, 4, 2, 1):
        for l in range(width):
            lanes[l] = F(lanes[l] + lanes[l + width])
    return lanes[0]


def fixed_dot(x, y):
    return fixed_sum([F(a * b) for a, b in zip(x, y)])


def truncated(x, most):
    return int(min(max(F(x), F(0)), F(most)))


def clipped(row, rho):
    if not 0 < rho < 1:
        return row
    index = min(int(F(F(rho) * F(len(row)))), len(row) - 1)
    t = np.sort(np.abs(row))[index]
    return np.clip(row, -t, t)


def total_order(x):
    """-0 below +0."""
    return (x, 0 if np.signbit(x) else 1)


def stored_scale(kind, a):
    bits = kind.bits(min(F(a), kind.most))
    return kind.bits(kind.least) if kind.value(bits) < kind.least else bits


def constant(kind, n, lo, hi):
    m = F(F(F(0.5) * lo) + F(F(0.5) * hi))
    zero = F(0) if abs(m) < kind.least else F(1) if m < 0 else F(-1)
    return [0] * n, stored_scale(kind, abs(m)), kind.bits(zero)


def minmax(kind, x, lo, hi):
    scale = stored_scale(kind, F(max(F(hi - lo), F(1e-8)) / F(3)))
    s = kind.value(scale)
    if abs(lo) > F(F(2048) * s):
        return constant(kind, len(x), lo, hi)
    zero = kind.bits(F(F(0) - F(lo / s)))
    z = kind.value(zero)
    return [truncated(F(F(F(v / s) + z) + F(0.5)), 3) for v in x], scale, zero


def products(x, h):
    """x H, summed over the rows of H from the first to the last."""
    total = np.zeros(len(x), F)
    for v, row in zip(x, h):
        total = total + F(v) * row  # arrays of singles: rounded element by element
    return total


def search(kind, x, lo, hi, side):
    n, width = len(x), F(hi - lo)
    if not F(2.0**-40) <= width <= F(2.0**40):
        return minmax(kind, x, lo, hi)
    mean = F(fixed_sum(x) / F(n))
    y = [F(v - mean) for v in x]
    energy = fixed_dot(y, y)
    middle = F(F(F(0.5) * lo) + F(F(0.5) * hi))
    best = None
    for f in map(F, (1.0, 0.95, 0.9, 0.85, 0.8, 0.75, 0.7, 0.65, 0.6, 0.55)):
        low = F(middle - F(f * F(F(0.5) * width)))
        r = F(F(1) / F(F(f * width) / F(3)))
        c = [truncated(F(F(F(v - low) * r) + F(0.5)), 3) for v in x]
        a, b = fixed_dot(y, [F(q) for q in c]), n * sum(q * q for q in c) - sum(c) ** 2
        if a > 0 and b > 0:
            score = F(F(a * a) / F(b))
            if best is None or score > best[0]:
                best = (score, a, b, c)
    if best is None:
        return minmax(kind, x, lo, hi)
    _, a, b, c = best
    ideal, level = F(energy / a) if side == "key" else F(F(a * F(n)) / F(b)), F(F(sum(c)) / F(n))
    scale = stored_scale(kind, ideal)
    s = kind.value(scale)
    if abs(mean) > F(F(2048) * s):
        return constant(kind, n, lo, hi)
    return c, scale, kind.bits(F(level - F(mean / s)))


def encode_uniform(case, row):
    kind = Float16 if case["params"] == "float16" else BFloat16
    codes, params, decoded = [], b"", []
    for start in range(0, len(row), case["group"]):
        x = list(row[start : start + case["group"]])
        lo, hi = min(x, key=total_order), max(x, key=total_order)
        if case["encoder"] == "minmax":
            q, s, z = minmax(kind, x, lo, hi)
        else:
            q, s, z = search(kind, x, lo, hi, case["side"])
        codes += q
        params += struct.pack("<HH", s, z)
        decoded += [F(F(F(c) - kind.value(z)) * kind.value(s)) for c in q]
    quarter = len(row) // 4
    packed = bytes(sum(codes[b + j * quarter] << 2 * j for j in range(4)) for b in range(quarter))
    return codes, packed, params, decoded


def power(exponent):
    return F(2.0**exponent)


def scale_byte(ratio):
    if not ratio >= F(2.0**-5):
        return -128
    if ratio >= F(32):
        return 127
    mantissa, exponent = np.frexp(ratio)  # mantissa in [0.5, 1)
    m = F(mantissa * F(2))
    e = 32 * (int(exponent) - 1) + sum(bool(m >= power((k + 0.5) / 32)) for k in range(32))
    return min(max(e, -128), 127)


def encode_block(case, x, width, sigma):
    largest = max(abs(v) for v in x)
    top = 2**width - 1
    if not largest >= F(2.0**-40):
        return [2 ** (width - 1)] * len(x), -128
    if not largest <= F(2.0**40):
        return [0 if v < 0 else top for v in x], 127
    span = {1: 0.0, 2: 0.55, 4: 0.4}[width]
    count = 8 if case["encoder"] != "minmax" and width > 1 else 1
    best = None
    for j in range(count):
        f = F(round(1 - span * j / 7, 10))
        r = F(F(1) / F(F(F(F(2) * f) * largest) / F(top)))
        if width == 1:
            q = [1 if v >= 0 else 0 for v in x]
        else:
            q = [truncated(F(F(v * r) + F(2 ** (width - 1))), top) for v in x]
        odd = [2 * c + 1 - 2**width for c in q]
        a, b = fixed_dot(x, [F(o) for o in odd]), sum(o * o for o in odd)
        score = F(F(a * a) / F(b))
        if best is None or score > best[0]:
            best = (score, a, b, q)
    _, a, b, q = best
    scale = F(F(F(2) * fixed_dot(x, x)) / a) if case["side"] == "key" else F(F(F(2) * a) / F(b))
    return q, scale_byte(F(scale / sigma))


def encode_blocks(case, row):
    n = len(row) // 4
    codes, packed, params, decoded = [], b"", b"", []
    for i, width in enumerate(case["widths"]):
        x, sigma = list(row[i * n : (i + 1) * n]), F(case["sigma"][i])
        refines = i == 3 and "refined" in case  # it codes what the first block loses
        if refines:
            x = [F(v - w) for v, w in zip(row[:n], decoded)]
        if width == 0:
            codes += [0] * n
            decoded += [F(0)] * n
            continue
        q, e = encode_block(case, x, width, sigma)
        h, k = divmod(e, 32)
        s = F(F(sigma * power(k / 32)) * power(h))
        codes += q
        params += struct.pack("b", e)
        packed += sum(c << width * j for j, c in enumerate(q)).to_bytes(n * width // 8, "little")
        read = [F(F((2 * c + 1 - 2**width) / 2) * s) for c in q]
        if refines:
            decoded[:n], read = [F(v + w) for v, w in zip(decoded, read)], [F(0)] * n
        decoded += read
    return codes, packed, params, decoded


def name(case):
    shape = f"g{case['group']}-{case['params']}" if case["layout"] == "uniform" else "-".join(map(str, case["widths"])) + "-refined" * ("refined" in case)
    return f"{case['layout']}-d{case['head_dim']}-{shape}-{case['side']}-{case['encoder']}"


@pytest.mark.parametrize("case", CASES, ids=name)
def test_vectors(case):
    clip = struct.unpack("<f", bytes.fromhex(case["clip"]))[0]
    encode = encode_uniform if case["layout"] == "uniform" else encode_blocks
    assert case["rows"]
    for expected in case["rows"]:
        row = np.frombuffer(bytes.fromhex(expected["row"]), dtype="<f4")
        assert len(row) == case["head_dim"]
        codes, packed, params, decoded = encode(case, clipped(row, F(clip)))
        kind = expected["kind"]
        assert "".join("%x" % q for q in codes) == expected["codes"], kind
        assert packed.hex() == expected["packed"], kind
        assert params.hex() == expected["stored"], kind
        assert np.array(decoded, dtype="<f4").tobytes().hex() == expected["decoded"], kind


def test_every_layout_encoder_and_side_is_covered():
    seen = {(c["layout"], c["encoder"], c["side"]) for c in CASES}
    assert len(seen) == 8


def test_the_program_writes_the_same_file(tmp_path):
    program = pathlib.Path(os.environ.get("OSCAR_BUILD_DIR", SOURCE / "build")) / "tests" / "write_codec_vectors"
    if not program.exists():
        pytest.skip("write_codec_vectors is not built")
    import subprocess

    out = tmp_path / "codec_vectors.json"
    subprocess.run([program, out], check=True)
    assert out.read_bytes() == (SOURCE / "sample_data/golden/codec_vectors.json").read_bytes()
