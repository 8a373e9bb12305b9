"""The codec of oscar_kv against the golden vectors of the C++ codec: every layout, encoder and side, bit for bit."""
import json
import struct

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from conftest import GOLDEN  # noqa: E402
from interchange import pack_codes, unpack_codes  # noqa: E402
from oscar_kv.format.codec import RowCode, RowCodec, validate  # noqa: E402
from oscar_kv.files.errors import InputError, NumericalError  # noqa: E402

CASES = json.loads((GOLDEN / "codec_vectors.json").read_text())["cases"]


def name(case):
    shape = f"g{case['group']}-{case['params']}" if case["layout"] == "uniform" else "-".join(map(str, case["widths"])) + "-refined" * ("refined" in case)
    return f"{case['layout']}-d{case['head_dim']}-{shape}-{case['side']}-{case['encoder']}"


def code_of(case):
    if case["layout"] == "uniform":
        return RowCode("uniform", case["head_dim"], group=case["group"], params=case["params"])
    return RowCode("blocks", case["head_dim"], widths=tuple(case["widths"]), refined="refined" in case)


def codec_of(case, heads=1):
    code = code_of(case)
    sigma = torch.tensor([case["sigma"]] * heads) if "sigma" in case else None
    clip = struct.unpack("<f", bytes.fromhex(case["clip"]))[0]
    return RowCodec(code, case["side"] == "key", heads, case["encoder"], (clip,), sigma)


def rows_of(case):
    return torch.from_numpy(np.stack([np.frombuffer(bytes.fromhex(r["row"]), "<f4") for r in case["rows"]]).copy())


@pytest.mark.parametrize("case", CASES, ids=name)
def test_golden_vectors(case):
    codec, rows = codec_of(case), rows_of(case)
    codes, params = codec.encode(rows.unsqueeze(1))
    decoded = codec.decode(codes, params)
    packed = pack_codes(codec.code, codes)
    assert torch.equal(unpack_codes(codec.code, packed), codes)
    for i, expected in enumerate(case["rows"]):
        kind = expected["kind"]
        assert "".join("%x" % q for q in codes[i, 0].tolist()) == expected["codes"], kind
        assert packed[i, 0].numpy().tobytes().hex() == expected["packed"], kind
        assert params[i, 0].numpy().tobytes().hex() == expected["stored"], kind
        assert decoded[i, 0].numpy().tobytes().hex() == expected["decoded"], kind
    assert packed.shape[-1] == codec.code.code_bytes() and params.shape[-1] == codec.code.param_bytes()


def test_heads_keep_their_own_numbers():
    """Rows of three heads at once, each with its own clip ratio and deviations, are those of each head alone."""
    generator = torch.Generator().manual_seed(1)
    rows = torch.randn(7, 3, 64, generator=generator)
    sigma = torch.rand(3, 4, generator=generator) + 0.5
    clips = [0.0, 0.9, 0.97]
    code = RowCode("blocks", 64, widths=(4, 2, 1, 0))
    together = RowCodec(code, True, 3, "search", clips, sigma).encode(rows)
    for h in range(3):
        alone = RowCodec(code, True, 1, "search", clips[h:h + 1], sigma[h:h + 1]).encode(rows[:, h:h + 1])
        assert torch.equal(together[0][:, h:h + 1], alone[0]) and torch.equal(together[1][:, h:h + 1], alone[1])
    assert not torch.equal(together[0][:, 1], RowCodec(code, True, 1, "search", (0.0,), sigma[1:2]).encode(rows[:, 1:2])[0][:, 0])


@pytest.mark.parametrize("value,what", [(float("nan"), "a NaN"), (float("inf"), "an infinity")])
def test_rows_that_are_not_finite(value, what):
    rows = torch.zeros(2, 1, 32)
    rows[1, 0, 7] = value
    with pytest.raises(NumericalError, match=f"row 1 .* {what} in channel 7"):
        RowCodec(RowCode("uniform", 32, group=32), True, 1).encode(rows)


@pytest.mark.parametrize("code,what", [(RowCode("uniform", 6, group=6), "multiple of 4"), (RowCode("uniform", 64, group=24), "does not divide"),
                                       (RowCode("blocks", 48, widths=(2, 2, 2, 2)), "32 divides"), (RowCode("uniform", 2048, group=64), "4 to 1024"),
                                       (RowCode("blocks", 64, widths=(0, 2, 1, 1), refined=True), "cannot refine the first"),
                                       (RowCode("blocks", 64, widths=(4, 2, 1, 0), refined=True), "cannot refine the first")])
def test_codes_that_no_layout_carries(code, what):
    with pytest.raises(InputError, match=what):
        validate(code)
