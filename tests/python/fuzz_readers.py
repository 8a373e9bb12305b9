"""The readers of the package under atheris, guided by what their lines reach: the first byte chooses one, the rest is its file. Any
exception but an InputError of one printable sentence is a finding. python fuzz_readers.py FOLDER [options of libFuzzer]; FOLDER gets
the files that are read, and seeds."""
import json
import pathlib
import shutil
import sys

import atheris

with atheris.instrument_imports(include=["oscar_kv"]):
    import oscar_kv.format.bundle
    import oscar_kv.files.fingerprint
    import oscar_kv.format.manifest
    import oscar_kv.files.safetensors_file
    import oscar_kv.files.strict_json

from oscar_kv.files.errors import InputError  # noqa: E402

SOURCE_DIR = pathlib.Path(__file__).resolve().parents[2]
sys.path.append(str(SOURCE_DIR / "tests" / "apps"))
import harness  # noqa: E402

FOLDER = pathlib.Path(sys.argv.pop(1))
BUNDLE, MODEL, SHARDS = FOLDER / "bundle", FOLDER / "model", FOLDER / "shards"


def json_text(data):
    oscar_kv.files.strict_json.parse_json(data, "text.json")


def manifest(data):
    oscar_kv.format.manifest.parse_manifest(oscar_kv.files.strict_json.parse_json(data, "oscar_bundle.json"), BUNDLE / "oscar_bundle.json")


def whole_bundle(data):
    (BUNDLE / "oscar_bundle.json").write_bytes(data)
    oscar_kv.format.bundle.load_bundle(BUNDLE)


def safetensors(data):
    (FOLDER / "one.safetensors").write_bytes(data)
    file = oscar_kv.files.safetensors_file.SafetensorsFile(FOLDER / "one.safetensors")
    for name, entry in file.entries.items():
        assert len(file.bytes_of(name)) == entry.end - entry.begin


def config(data):
    (MODEL / "config.json").write_bytes(data)
    oscar_kv.files.fingerprint.checkpoint_fingerprint(MODEL)


def index(data):
    (SHARDS / "model.safetensors.index.json").write_bytes(data)
    oscar_kv.files.fingerprint.checkpoint_fingerprint(SHARDS)


READERS = [json_text, manifest, whole_bundle, safetensors, config, index]


def read(data):
    if not data:
        return
    try:
        READERS[data[0] % len(READERS)](data[1:])
    except InputError as error:
        assert str(error).strip() and str(error).isprintable(), repr(str(error))


def prepare():
    """Files that stand beside the one that is read, and a seed for each reader."""
    shutil.copytree(SOURCE_DIR / "sample_data" / "golden" / "bundle", BUNDLE)
    harness.make_model(MODEL)
    SHARDS.mkdir()
    shutil.copy(MODEL / "config.json", SHARDS)
    tensors = {"a.weight": {"dtype": "F32", "shape": [2, 2], "data_offsets": [0, 16]}, "b": {"dtype": "F8_E8M0", "shape": [3], "data_offsets": [16, 19]}}
    text = json.dumps(tensors).encode()
    small = len(text).to_bytes(8, "little") + text + bytes(19)
    for folder, name in ((SHARDS, "model-1.safetensors"), (SHARDS, "model-2.safetensors")):
        (folder / name).write_bytes(small)
    written = (BUNDLE / "oscar_bundle.json").read_bytes()
    named = {"metadata": {"total_size": 19}, "weight_map": {"a.weight": "model-1.safetensors", "b": "model-2.safetensors"}}
    seeds = [written[:4000], written, written, small, (MODEL / "config.json").read_bytes(), json.dumps(named).encode()]
    (FOLDER / "seeds").mkdir()
    for number, seed in enumerate(seeds):
        read(bytes([number]) + seed)
        (FOLDER / "seeds" / str(number)).write_bytes(bytes([number]) + seed)
    (MODEL / "model.safetensors").write_bytes(small)  # which is quicker to read
    (FOLDER / "words").write_text("".join(f'"{w}"\n' for w in ("[[[[[[[[", "99999999999999999999", "1e999", "\\\\ud800", "null", "true", "{}", "-1",
                                                             "__metadata__", "data_offsets", "weight_map", "../", "\\x00", "\\xff")))


prepare()
atheris.Setup([sys.argv[0], f"-dict={FOLDER / 'words'}", f"-artifact_prefix={FOLDER}/", *sys.argv[1:], str(FOLDER / "seeds")], read)
atheris.Fuzz()
