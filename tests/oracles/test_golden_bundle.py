"""The golden bundle and its tokens against a reader written from docs/format-*.md alone: from the files of the bundle and
the keys and values of a model to the bytes in the cache, and back."""
import hashlib
import json
import pathlib
import subprocess

import numpy as np
import pytest

import test_codec_vectors as codec
from conftest import BUILD_DIR, SOURCE_DIR

jsonschema = pytest.importorskip("jsonschema")
safetensors = pytest.importorskip("safetensors.numpy")

GOLDEN = SOURCE_DIR / "sample_data" / "golden"
BUNDLE = GOLDEN / "bundle"
MANIFEST = json.loads((BUNDLE / "oscar_bundle.json").read_text())
TENSORS = safetensors.load_file(BUNDLE / "rotations.safetensors")
TOKENS = json.loads((GOLDEN / "bundle_rows.json").read_text())["tokens"]


def matrix(token, name):
    return TENSORS[f"layers.{token['layer']}.{'k' if token['side'] == 'key' else 'v'}.{name}"][token["head"]]


def code_of(token):
    """The case that the codec's functions take."""
    d = MANIFEST["model"]["head_dim"]
    side = MANIFEST["layers"][token["layer"]][token["side"]]
    case = {"side": token["side"], "encoder": MANIFEST["code"]["encoder"]}
    if "widths" in side:
        return case | {"widths": side["widths"], "sigma": matrix(token, "sigma").tolist()}
    return case | {"group": MANIFEST["code"]["group"] or d, "params": "float16"}


def test_manifest_files_and_tensors():
    jsonschema.validate(MANIFEST, json.loads((SOURCE_DIR / "schemas" / "bundle.schema.json").read_text()))
    for name, facts in MANIFEST["files"].items():
        data = (BUNDLE / name).read_bytes()
        assert len(data) == facts["bytes"] and hashlib.sha256(data).hexdigest() == facts["sha256"]
    expected = set()
    for layer in MANIFEST["layers"]:
        for side, letter in (("key", "k"), ("value", "v")):
            names = ["forward", "eigenvalues", "inverse_or_query", "mean"] + (["sigma"] if "widths" in layer[side] else [])
            expected |= {f"layers.{layer['layer']}.{letter}.{name}" for name in names}
            forward, back = (TENSORS[f"layers.{layer['layer']}.{letter}.{n}"].astype(float) for n in ("forward", "inverse_or_query"))
            product = forward.transpose(0, 2, 1) @ back if side == "key" else back @ forward
            assert np.array_equal(product, np.broadcast_to(np.eye(product.shape[-1]), product.shape))
    assert set(TENSORS) == expected


def test_tokens():
    kinds = set()
    for token in TOKENS:
        row = np.frombuffer(bytes.fromhex(token["row"]), "<f4")
        case = code_of(token)
        kinds.add((token["side"], tuple(case.get("widths", "uniform"))))
        # Products are exact in FP64, and their sums are what FP32 gives in any order.
        moved = ((row.astype(float) - matrix(token, "mean")) @ matrix(token, "forward").astype(float)).astype(np.float32)
        bits = np.array([codec.bfloat16_bits(v) for v in moved], "<u2")
        assert bits.tobytes().hex() == token["window"]
        stored = (bits.astype("<u4") << 16).view("<f4")
        _, packed, params, decoded = (codec.encode_blocks if "widths" in case else codec.encode_uniform)(case, stored)
        assert (packed.hex(), params.hex()) == (token["packed"], token["stored"])
        decoded = np.array(decoded, "<f4")
        assert decoded.tobytes().hex() == token["decoded"]
    assert len(kinds) == 3 and len(TOKENS) == 32


def read_blocks(token, widths, sigma):
    """A token of layout blocks from its bytes, with nothing of the encoder."""
    packed, scales = bytes.fromhex(token["packed"]), list(bytes.fromhex(token["stored"]))
    n, row, at = MANIFEST["model"]["head_dim"] // 4, [], 0
    for w, s in zip(widths, sigma):
        if w == 0:
            row += [0.0] * n
            continue
        bits = int.from_bytes(packed[at:at + n * w // 8], "little")
        at += n * w // 8
        e = (scales.pop(0) + 128) % 256 - 128
        scale = np.float32(np.float32(s) * np.float32(2.0 ** (e % 32 / 32))) * np.float32(2.0 ** (e // 32))
        row += [np.float32((2 * (bits >> w * i & (1 << w) - 1) + 1 - (1 << w)) / 2) * scale for i in range(n)]
    assert at == len(packed) and not scales
    return np.array(row, "<f4")


def test_block_tokens_read_from_their_bytes():
    found = [(t, code_of(t)) for t in TOKENS if "widths" in code_of(t)]
    assert len(found) == 24
    for token, case in found:
        assert read_blocks(token, case["widths"], case["sigma"]).tobytes().hex() == token["decoded"]


def test_logits_and_values_come_back():
    """q' k'^T + q mean^T = q k^T for BF16 rows, to their rounding; quantized rows are near."""
    rng = np.random.default_rng(1)
    for token in TOKENS:
        row = np.frombuffer(bytes.fromhex(token["row"]), "<f4").astype(float)
        window = (np.frombuffer(bytes.fromhex(token["window"]), "<u2").astype("<u4") << 16).view("<f4").astype(float)
        back, mean = matrix(token, "inverse_or_query").astype(float), matrix(token, "mean").astype(float)
        if token["side"] == "key":
            q = rng.standard_normal((20, len(row)))
            assert np.allclose((q @ back) @ window + q @ mean, q @ row, atol=0.02 * np.abs(q @ row).max())
        else:
            assert np.allclose(window @ back + mean, row, atol=0.02 * np.abs(row).max())


def test_the_program_writes_the_same_files(tmp_path):
    program = pathlib.Path(BUILD_DIR) / "tests" / "write_golden_bundle"
    if not program.exists():
        pytest.skip("write_golden_bundle is not built")
    subprocess.run([program, tmp_path], check=True)
    for path in ["bundle_rows.json", *(f"bundle/{p.name}" for p in BUNDLE.iterdir())]:
        assert (tmp_path / path).read_bytes() == (GOLDEN / path).read_bytes(), path
