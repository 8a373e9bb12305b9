"""The fingerprint of checkpoints against the toolchain's and against one that is computed here by hand: sample models, random checkpoints of
every family, rotary type and spelling of config.json."""
import hashlib
import json
import struct
import sys

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("transformers")

from conftest import SAMPLES, SOURCE_DIR, program  # noqa: E402
from oscar_kv.files.canonical_json import canonical_json  # noqa: E402
from oscar_kv.files.errors import InputError  # noqa: E402
from oscar_kv.files.fingerprint import VOLATILE, canonical_config, checkpoint_fingerprint  # noqa: E402

sys.path.insert(0, str(SOURCE_DIR / "tests" / "oracles"))
import family_checkpoints  # noqa: E402
import quantized_checkpoints  # noqa: E402
import random_checkpoints  # noqa: E402


def expected(folder):
    return program("checkpoint_tool", "open", folder).splitlines()[0]


def write(folder, config, tensors):
    """tensors: {name: bytes}, of type U8."""
    folder.mkdir(exist_ok=True)
    (folder / "config.json").write_text(json.dumps(config))
    entries, at = {}, 0
    for name, data in tensors.items():
        entries[name] = {"dtype": "U8", "shape": [len(data)], "data_offsets": [at, at + len(data)]}
        at += len(data)
    header = json.dumps(entries).encode()
    (folder / "model.safetensors").write_bytes(struct.pack("<Q", len(header)) + header + b"".join(tensors.values()))
    return checkpoint_fingerprint(folder)


def test_known_text(tmp_path):
    """The text that is hashed, written out."""
    long = bytes(i % 251 for i in range(20000))
    found = write(tmp_path / "m", {"b": [1, 2.5, None], "a": {"z": True, "y": "\u00e9\n"}, "torch_dtype": "bfloat16"}, {"w": long, "b": b"abc"})
    text = b'oscar-fingerprint-2\n{"a":{"y":"\xc3\xa9\\n","z":true},"b":[1.0,2.5,null]}\n'
    text += b"1:b U8 [3]\nabc" + b"1:w U8 [20000]\n" + long[:4096] + long[7952:7952 + 4096] + long[-4096:]
    assert found == "v2:sha256:" + hashlib.sha256(text).hexdigest()


def test_what_programs_rewrite(tmp_path):
    """Volatile keys at the top and in parts of a multimodal model, but not among numbers of a quantization."""
    config = {"model_type": "x", "text_config": {"hidden_size": 8, "deep_config": {"n": 1}}, "quantization_config": {"bits": 4}, "other": {"n": 1}}
    first = write(tmp_path / "m", config, {"w": b"abcd"})
    for key in VOLATILE:
        for place in ((), ("text_config",), ("text_config", "deep_config")):
            changed = json.loads(json.dumps(config))
            inside = changed
            for name in place:
                inside = inside[name]
            inside[key] = {"any": [1]}
            assert write(tmp_path / "m", changed, {"w": b"abcd"}) == first, (key, place)
        for place in ("quantization_config", "other"):
            changed = json.loads(json.dumps(config))
            changed[place][key] = 1
            assert write(tmp_path / "m", changed, {"w": b"abcd"}) != first, (key, place)
    for change in ({"hidden_size": 9}, {"rope_theta": 1.0}, {"sliding_window": None}, {"architectures": ["X"]}):
        assert write(tmp_path / "m", config | change, {"w": b"abcd"}) != first, change
    assert write(tmp_path / "m", config, {"w": b"abce"}) != first and write(tmp_path / "m", config, {"v": b"abcd"}) != first


def test_config_as_python_reads_it(tmp_path):
    """NaN and repeated keys, of which the last counts, in config.json and in the index; the commands have the same fingerprint."""
    import shutil
    folder = tmp_path / "m"
    shutil.copytree(SAMPLES / "tiny-qwen3", folder)
    text = (folder / "config.json").read_text().strip()
    plain = expected(folder)
    (folder / "config.json").write_text('{"hidden_size": 7, "x": 1, ' + text[1:-1].rstrip() + ', "x": NaN, "y": [-Infinity]}')
    assert checkpoint_fingerprint(folder) == expected(folder) != plain
    (folder / "config.json").write_text('{"hidden_size": 7, ' + text[1:])
    assert checkpoint_fingerprint(folder) == expected(folder) == plain
    (folder / "model.safetensors").rename(folder / "a.safetensors")
    (folder / "model.safetensors.index.json").write_text(
        '{"weight_map": {"x": "none"}, "weight_map": {"model.norm.weight": "none", "model.norm.weight": "a.safetensors"}}')
    assert checkpoint_fingerprint(folder) == expected(folder) == plain


def test_lists_are_those_of_the_toolchain():
    """One list of keys in two languages and on one page."""
    import re
    source = (SOURCE_DIR / "lib" / "checkpoint" / "canonical_config.cpp").read_text()
    listed = "".join(re.findall(r'"([a-z_ ]+)"', source[source.index("kVolatile ="):source.index(";", source.index("kVolatile ="))]))
    page = (SOURCE_DIR / "docs" / "format-bundle.md").read_text()
    line = next(line for line in page.splitlines() if "keys that programs rewrite" in line)
    assert set(listed.split()) == VOLATILE == set(re.findall(r"`([a-z_]+)`", line[line.index("rewrite"):]))


@pytest.mark.parametrize("text", ['{"a": 1e15, "b": 1e16, "c": 123456789012345678, "d": 1e-5, "e": 0.0001, "f": -0.0, "g": -0, "h": 5e-324}',
                                  '{"\\u00e9\\ud83d\\ude00": "\\u0000\\u001f\\u007f\\\\\\"/", "Z": [], "a": {}, "B": [[1, [2]], false]}',
                                  '{"a": 1.7976931348623157e308, "b": 1234567.0, "c": 999999999999999.9, "d": 1000000000000000.1, "e": 18446744073709551615}'])
def test_numbers_and_texts_are_the_toolchains(text, tmp_path):
    """Spellings in which languages differ, through both programs."""
    config = json.loads((SAMPLES / "tiny-qwen3" / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps(config)[:-1] + ', "more": ' + text + "}")
    (tmp_path / "model.safetensors").symlink_to(SAMPLES / "tiny-qwen3" / "model.safetensors")
    assert checkpoint_fingerprint(tmp_path) == expected(tmp_path)
    assert canonical_json(json.loads(canonical_json(json.loads(text)))) == canonical_json(json.loads(text))


@pytest.mark.parametrize("name", ["tiny-llama", "tiny-qwen2", "tiny-qwen3"])
def test_sample_models(name):
    assert checkpoint_fingerprint(SAMPLES / name) == expected(SAMPLES / name)


@pytest.mark.parametrize("name", sorted(random_checkpoints.CASES))
def test_random_checkpoints(name, tmp_path):
    folder = random_checkpoints.make(name, tmp_path / "model")
    found = checkpoint_fingerprint(folder)
    assert found == expected(folder)
    weights = max(folder.glob("*.safetensors"), key=lambda p: p.stat().st_size)
    data = bytearray(weights.read_bytes())
    data[-1] ^= 1  # the last byte of a tensor is part of its sample
    weights.write_bytes(data)
    assert checkpoint_fingerprint(folder) == expected(folder) != found


@pytest.mark.parametrize("name", sorted(family_checkpoints.CASES | family_checkpoints.BY_LENGTH))
def test_families(name, tmp_path):
    folder = family_checkpoints.make(name, tmp_path / "model")
    assert checkpoint_fingerprint(folder) == expected(folder)
    family_checkpoints.respell_as_v4(folder)
    assert checkpoint_fingerprint(folder) == expected(folder)


@pytest.mark.parametrize("name", ["fp8-blocks", "awq", "mxfp4-experts"])
def test_quantized_checkpoints(name, tmp_path):
    quantized, plain, _ = quantized_checkpoints.make(name, tmp_path)
    found = checkpoint_fingerprint(quantized)
    assert found == expected(quantized) and found != checkpoint_fingerprint(plain) == expected(plain)


def test_what_shards_hold(tmp_path):
    """Names without the prefix, a tensor of a type that nobody reads, an index that names what is absent and misses what is there."""
    from safetensors.torch import load_file, save_file
    tensors = {name.removeprefix("model."): tensor for name, tensor in load_file(SAMPLES / "tiny-qwen3" / "model.safetensors").items()}
    names = sorted(tensors)
    for number, part in enumerate((names[::2], names[1::2])):
        save_file({name: tensors[name] for name in part}, tmp_path / f"{number}.safetensors")
    path = tmp_path / "1.safetensors"
    data = path.read_bytes()
    length = struct.unpack("<Q", data[:8])[0]
    entries, end = json.loads(data[8:8 + length]), len(data) - 8 - length
    entries["unread"] = {"dtype": "F4", "shape": [5, 2], "data_offsets": [end, end + 5]}
    header = json.dumps(entries).encode()
    path.write_bytes(struct.pack("<Q", len(header)) + header + data[8 + length:] + b"abcde")
    placed = {name: "0.safetensors" for name in names[::2]} | {names[1]: "1.safetensors", "mtp.absent": "0.safetensors"}
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps({"weight_map": placed}))
    (tmp_path / "config.json").symlink_to(SAMPLES / "tiny-qwen3" / "config.json")
    assert checkpoint_fingerprint(tmp_path) == expected(tmp_path) != checkpoint_fingerprint(SAMPLES / "tiny-qwen3")


def test_a_bundle_of_version_1(fit, tmp_path):
    """The commands and this package refuse it by name."""
    import shutil
    from oscar_kv import load_bundle
    folder, model = tmp_path / "bundle", SAMPLES / "tiny-qwen3"
    shutil.copytree(fit("tiny-qwen3"), folder)
    manifest = json.loads((folder / "oscar_bundle.json").read_text())
    assert manifest["model"]["fingerprint"] == checkpoint_fingerprint(model)
    del manifest["numbers_sha256"]
    manifest["model"]["fingerprint"] = "sha256:" + "0" * 64
    (folder / "oscar_bundle.json").write_text(json.dumps(manifest))
    program("oscar-verify", "--bundle", folder, "--check-only", "--model", model, codes=(3,))
    with pytest.raises(InputError, match="oscar_bundle.json.*'fingerprint' is of version 1 .*; make the file again"):
        load_bundle(folder)


def test_no_checkpoint(tmp_path):
    with pytest.raises(InputError, match="config.json: cannot be opened"):
        checkpoint_fingerprint(tmp_path)
    (tmp_path / "config.json").write_text((SAMPLES / "tiny-llama" / "config.json").read_text())
    with pytest.raises(InputError, match="neither model.safetensors"):
        checkpoint_fingerprint(tmp_path)
    assert canonical_config({"dtype": 1}) == "{}"
