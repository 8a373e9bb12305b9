"""The bundle reader: the golden bundle and its tokens, slices of heads, and refusals of damaged bundles."""
import hashlib
import json
import shutil

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from conftest import GOLDEN  # noqa: E402
from interchange import pack_codes, unpack_codes  # noqa: E402
from oscar_kv.format.codec import RowCode  # noqa: E402
from latent_bundles import LATENT, make_latent  # noqa: E402
from oscar_kv.format.bundle import check_geometry, load_bundle  # noqa: E402
from oscar_kv.format.manifest import parse_manifest, side_codec  # noqa: E402
from oscar_kv.files.errors import InputError  # noqa: E402

MANIFEST, ROTATIONS = "oscar_bundle.json", "rotations.safetensors"
TOKENS = json.loads((GOLDEN / "bundle_rows.json").read_text())["tokens"]


@pytest.fixture(scope="module")
def golden():
    return load_bundle(GOLDEN / "bundle")


def floats(text):
    return torch.from_numpy(np.frombuffer(bytes.fromhex(text), "<f4").copy())


@pytest.mark.parametrize("part", [None, (0, 1), (1, 2)])
def test_golden_tokens(golden, part):
    """From a model's row to the bytes of the cache and back: of the whole bundle, and of each rank of two."""
    bundle = golden.slice_heads(*part) if part else golden
    first, done = (part or (0, 2))[0], 0
    for token in TOKENS:
        head = token["head"] - first
        if part and head != 0:
            continue
        layer, key = bundle.layers[token["layer"]], token["side"] == "key"
        side = layer.key if key else layer.value
        codec = side_codec(layer, key, bundle.encoder, bundle.group)
        moved = (floats(token["row"]) - side.mean[head]) @ side.forward[head if side.heads > 1 else 0]
        window = moved.bfloat16()
        assert window.view(torch.uint8).numpy().tobytes().hex() == token["window"]
        rows = torch.zeros(1, layer.kv_heads, layer.head_dim)
        rows[0, head] = window.float()
        codes, params = codec.encode(rows)
        packed = pack_codes(codec.code, codes)
        assert packed[0, head].numpy().tobytes().hex() == token["packed"]
        assert params[0, head].numpy().tobytes().hex() == token["stored"]
        decoded = codec.decode(unpack_codes(codec.code, packed), params)
        assert decoded[0, head].numpy().tobytes().hex() == token["decoded"]
        done += 1
    assert done == (16 if part else 32)


def test_layers_that_are_left_out(golden, tmp_path):
    """A layer may be missing for a reason that the manifest tells, and for no other."""
    def load(layers, left_out):
        shutil.rmtree(tmp_path / "b", ignore_errors=True)
        shutil.copytree(GOLDEN / "bundle", tmp_path / "b")
        manifest = json.loads((tmp_path / "b" / MANIFEST).read_text())
        manifest["model"] |= dict(layers=layers, left_out=left_out)
        (tmp_path / "b" / MANIFEST).write_text(json.dumps(manifest))
        return load_bundle(tmp_path / "b")

    sparse = load(4, [dict(layer=2, reason="linear attention"), dict(layer=3, reason="linear attention")])
    check_geometry(sparse, 4, 2, 32)
    with pytest.raises(InputError, match="lacks layer 4 of the model's 5"):
        check_geometry(sparse, 5, 2, 32)
    with pytest.raises(InputError, match="lacks layer 2 of the model's 4"):
        check_geometry(golden, 4, 2, 32)
    for layers, left_out, message in (
            (4, [dict(layer=2, reason="x")], "layer 3 is neither in 'layers' nor in 'left_out'"),
            (3, [dict(layer=1, reason="x")], "layer 1 is in 'layers' and in 'left_out'"),
            (3, [dict(layer=2, reason="")], "without a reason"),
            (3, [dict(layer=3, reason="x")], "'layer' is 3")):
        with pytest.raises(InputError, match=message):
            load(layers, left_out)


def test_facts(golden):
    assert (golden.sink, golden.recent, golden.encoder) == (4, 8, "search")
    assert [layer.key.widths for layer in golden.layers][0] == (4, 2, 1, 0)
    check_geometry(golden, 2, 2, 32, golden.fingerprint)


@pytest.mark.parametrize("facts,what", [((3, 2, 32), "lacks layer 2 of the model's 3"), ((1, 2, 32), "only 1 layers"),
                                        ((2, 4, 32), "KV heads of layer 0 2, the model 4"), ((2, 2, 64), "head_dim of layer 0 32, the model 64")])
def test_other_geometry(golden, facts, what):
    with pytest.raises(InputError, match=what):
        check_geometry(golden, *facts)


def test_other_fingerprint(golden):
    with pytest.raises(InputError, match="fitted on another model"):
        check_geometry(golden, 2, 2, 32, "v2:sha256:" + "1" * 64)


def test_slice_beyond_the_heads(golden):
    with pytest.raises(InputError, match="KV heads 1 to 3"):
        golden.slice_heads(1, 3)


def edit_manifest(change):
    def edit(folder):
        document = json.loads((folder / MANIFEST).read_text())
        document = change(document) or document
        (folder / MANIFEST).write_text(json.dumps(document))

    return edit


def put(path, value):
    def change(document):
        *parents, last = path.split(".")
        for part in parents:
            document = document[int(part) if part.isdigit() else part]
        if value is ...:
            del document[last]
        else:
            document[last] = value

    return edit_manifest(change)


def raw(name, change):
    return lambda folder: (folder / name).write_bytes(change((folder / name).read_bytes()))


def edit_numbers(part, change):
    """Changes one tensor and signs the file anew, so that only the numbers are wrong."""
    def edit(folder):
        path = folder / ROTATIONS
        data = bytearray(path.read_bytes())
        length = int.from_bytes(data[:8], "little")
        header = json.loads(data[8:8 + length])
        begin, end = (8 + length + x for x in header[part]["data_offsets"])
        data[begin:end] = change(np.frombuffer(bytes(data[begin:end]), "<f4").copy()).astype("<f4").tobytes()
        path.write_bytes(data)
        document = json.loads((folder / MANIFEST).read_text())
        document["files"][ROTATIONS]["sha256"] = hashlib.sha256(bytes(data)).hexdigest()
        (folder / MANIFEST).write_text(json.dumps(document))

    return edit


def with_nan(values):
    values[5] = np.nan
    return values


@pytest.fixture
def latent(tmp_path):
    return make_latent(tmp_path / "latent")


def test_values_of_latent_attention_are_its_keys(latent):
    bundle = load_bundle(latent, latent=True)
    assert bundle.rope_dim == 16 and load_bundle(GOLDEN / "bundle").rope_dim == 0
    for layer in bundle.layers:
        x = torch.randn(5, layer.head_dim)
        moved = x @ layer.value.forward[0]
        assert torch.equal(moved, x @ layer.key.forward[0])
        assert torch.allclose(moved @ layer.value.back(False)[0], x, atol=1e-4)
        assert layer.value.widths == layer.key.widths and layer.value.clip == layer.key.clip
    with pytest.raises(InputError, match="latent attention .MLA., which only oscar-verify and vLLM run"):
        load_bundle(latent)


@pytest.mark.parametrize("facts,what", [
    ({"attention": "grouped"}, "'attention' is '\"grouped\"', expected \"latent\""), ({"attention": None}, "'attention' is 'null'"),
    ({"rope_dim": 0}, "'rope_dim' is 0, expected 1 to"), ({"rope_dim": None}, "'rope_dim' is missing"),
    ({"latent_dim": 64}, "'latent_dim' is 64, expected layers with one KV head of this size.*found 1 of 32 in layer 0"),
    ({"latent_dim": "32"}, "'latent_dim' is")])
def test_damaged_facts_of_latent_attention(facts, what, tmp_path):
    bad = make_latent(tmp_path / "bad", **facts)
    with pytest.raises(InputError, match=what):
        load_bundle(bad, latent=True)


def refine(folder, change=lambda document: None):
    """Layer 0 of a latent bundle with a last block that refines the first."""
    document = json.loads((folder / MANIFEST).read_text())
    document["format_version"] = 5
    document["layers"][0]["key"].update(widths=[4, 2, 1, 2], refined=True)
    change(document)
    (folder / MANIFEST).write_text(json.dumps(document))
    return folder


def test_refined_codes_of_latent_attention(latent):
    assert not load_bundle(latent, latent=True).layers[0].key.refined
    bundle = load_bundle(refine(latent), latent=True)
    first, second = bundle.layers[:2]
    for side in (first.key, first.value):
        assert side.code(32, 0) == RowCode("blocks", 32, widths=(4, 2, 1, 2), refined=True)
    assert not second.key.refined


@pytest.mark.parametrize("change", [lambda key: key.update(widths=[4, 2, 1, 0]), lambda key: key.update(widths=[0, 2, 1, 2]),
                                    lambda key: key.pop("widths")])
def test_refined_codes_that_no_reader_knows(change, latent):
    with pytest.raises(InputError, match="'refined' is for latent attention whose first and last block have bits"):
        load_bundle(refine(latent, lambda document: change(document["layers"][0]["key"])), latent=True)


@pytest.mark.parametrize("least,what", [(2, "block widths"), (3, "rotated means"), (4, "latent attention"), (5, "refined codes")])
def test_a_version_holds_nothing_that_came_later(least, what, latent):
    """Readers of the version that it names would not know it."""
    folder = refine(latent) if least == 5 else latent if least == 4 else GOLDEN / "bundle"
    document = json.loads((folder / MANIFEST).read_text())
    if least == 3:
        document["layers"][1]["key"]["rotated_mean"] = True
    for version in range(least, 6):
        parse_manifest(document | {"format_version": version}, "f")
    for version in range(1, least):
        with pytest.raises(InputError) as caught:
            parse_manifest(document | {"format_version": version}, "f")
        assert str(caught.value) == f"f: format_version is {version}, expected at least {least} for {what}; fit the model again"


CASES = {
    "manifest missing": (lambda f: (f / MANIFEST).unlink(), "holds no oscar_bundle.json"),
    "manifest empty": (raw(MANIFEST, lambda d: b""), "not JSON"),
    "manifest cut": (raw(MANIFEST, lambda d: d[:len(d) // 2]), "not JSON"),
    "a list": (raw(MANIFEST, lambda d: b"[1]"), "no JSON object"),
    "a key twice": (raw(MANIFEST, lambda d: d.rstrip()[:-1] + b', "format_version": 1}'), "stands twice"),
    "deep": (raw(MANIFEST, lambda d: b'{"a":' * 100000 + b"1" + b"}" * 100000), "nested deeper than 64 levels"),
    "not UTF-8": (raw(MANIFEST, lambda d: d.replace(b'"', b'"\xff', 1)), "not UTF-8"),
    "NaN in the manifest": (raw(MANIFEST, lambda d: d.replace(b"0.0", b"NaN", 1)), "NaN, which is no JSON"),
    "newer": (put("format_version", 99), "newer than the 5"),
    "early latent": (put("model.latent", {"rank": 12, "rotated": 4}), "early bundle for latent attention"),
    "latent with values": (edit_manifest(lambda m: m["model"].update(LATENT)), "layer 0: has a value side, but"),
    "codebooks": (put("code", {"layout": "codebook", "group": 0, "encoder": "minmax"}), "holds learned codebooks"),
    "version is text": (put("format_version", "1"), "'format_version' is '\"1\"'"),
    "no layers": (put("layers", []), "0 entries"),
    "layers missing": (put("layers", ...), "'layers' is missing"),
    "layer twice": (edit_manifest(lambda m: m["layers"].append(m["layers"][-1])), "ascending order"),
    "layer id huge": (put("layers.0.layer", 2**62), "expected 0 to 9999"),
    "head_dim huge": (put("layers.0.head_dim", 2**40), "expected 1 to 4096"),
    "heads of text": (put("layers.0.kv_heads", "two"), "a whole number"),
    "flag for a number": (put("layers.0.kv_heads", True), "a whole number"),
    "clip of 7": (put("layers.0.key.clip", [7]), "a number from 0 to 1"),
    "refined keys": (put("layers.0.key.refined", True), "'refined' is for latent attention"),
    "width of 3": (put("layers.0.key.widths", [3, 1, 1, 1]), "expected 0, 1, 2 or 4"),
    "three widths": (put("layers.0.key.widths", [2, 2, 2]), "3 entries"),
    "unknown layout": (put("code.layout", "spiral\x1b[2J"), r"spiral\\x1b"),
    "unknown encoder": (put("code.encoder", "best"), "encoder 'best'"),
    "wrong hash": (edit_manifest(lambda m: m["files"][ROTATIONS].update(sha256="0" * 64)), "the manifest says 0000"),
    "no hash": (edit_manifest(lambda m: m["files"][ROTATIONS].update(sha256="abc")), "64 hexadecimal"),
    "path traversal": (edit_manifest(lambda m: m["files"].update({"../outside": m["files"][ROTATIONS]})), "plain name"),
    "rotations missing": (lambda f: (f / ROTATIONS).unlink(), "is missing; the manifest"),
    "rotations cut": (raw(ROTATIONS, lambda d: d[:-4]), "bytes, the manifest says"),
    "flipped bit": (raw(ROTATIONS, lambda d: d[:-9] + bytes([d[-9] ^ 1]) + d[-8:]), "sha256 is"),
    "NaN": (edit_numbers("layers.0.k.forward", with_nan), "layer 0 key rotation holds NaN"),
    "no inverse": (edit_numbers("layers.1.v.forward", lambda v: v * 0.5), "layer 1 value transform .* do not cancel"),
    "negative deviation": (edit_numbers("layers.0.k.sigma", lambda v: -v), "layer 0 key block deviations"),
    "tensor too many": (put("layers.0.key.centered", False), "does not mention"),
    "tensor too few": (edit_manifest(lambda m: m["layers"][0]["key"].update(heads=1)), "expected F32"),
}


@pytest.mark.parametrize("case", CASES)
def test_damaged(case, tmp_path):
    change, what = CASES[case]
    bad = tmp_path / "bad"
    shutil.copytree(GOLDEN / "bundle", bad)
    change(bad)
    with pytest.raises(InputError, match=what) as caught:
        load_bundle(bad)
    text = str(caught.value)
    assert "\n" not in text and text.isprintable() and "bad" in text


@pytest.mark.parametrize("path,value", [("windows.recent", 47), ("layers.0.key.clip", [0.5]), ("global_clip.key", 0.25),
                                        ("method", "other"), ("model.fingerprint", "")])
def test_numbers_changed_after_the_fit(path, value, fit, tmp_path):
    """The hash over a manifest's numbers is the one that oscar-fit wrote, and notices each change."""
    bundle = fit("tiny-qwen3")
    assert load_bundle(bundle).recent == 48 and "numbers_sha256" in (bundle / MANIFEST).read_text()
    shutil.copytree(bundle, tmp_path / "bad")
    put(path, value)(tmp_path / "bad")
    with pytest.raises(InputError, match="were changed after the fit"):
        load_bundle(tmp_path / "bad")
    # People's text may change.
    shutil.copytree(bundle, tmp_path / "good")
    put("model.name", "renamed")(tmp_path / "good")
    assert load_bundle(tmp_path / "good").model["name"] == "renamed"


def test_no_bundle(tmp_path):
    with pytest.raises(InputError, match="is not a directory"):
        load_bundle(tmp_path / "none")


def test_a_changed_card_is_a_warning(tmp_path):
    shutil.copytree(GOLDEN / "bundle", tmp_path / "b")
    (tmp_path / "b" / "README.md").write_text("changed")
    with pytest.warns(UserWarning, match="is not the model card"):
        load_bundle(tmp_path / "b")


def test_safetensors_header(tmp_path):
    from oscar_kv.files.safetensors_file import SafetensorsFile
    path = tmp_path / "a.safetensors"
    good = json.dumps({"t": {"dtype": "F32", "shape": [2], "data_offsets": [0, 8]}}).encode()
    path.write_bytes(len(good).to_bytes(8, "little") + good + np.array([1, 2], "<f4").tobytes())
    assert SafetensorsFile(path).float32("t").tolist() == [1, 2]
    for header in ({"t": {"dtype": "F32", "shape": [3], "data_offsets": [0, 8]}}, {"t": {"dtype": "F9", "shape": [2], "data_offsets": [0, 8]}},
                   {"t": {"dtype": "F32", "shape": [-2], "data_offsets": [0, 8]}}, {"t": {"dtype": "F32", "shape": [2], "data_offsets": [4, 12]}}):
        bad = json.dumps(header).encode()
        path.write_bytes(len(bad).to_bytes(8, "little") + bad + bytes(8))
        with pytest.raises(InputError, match="a.safetensors"):
            SafetensorsFile(path)
    path.write_bytes((1 << 60).to_bytes(8, "little") + b"{}")
    with pytest.raises(InputError, match="does not fit"):
        SafetensorsFile(path)
