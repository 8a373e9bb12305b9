"""Files that a stranger made: every reader of the package ends in InputError with one sentence that a terminal shows as text, within
seconds, whatever the bytes are. The faults are those that the four commands are tested with (tests/apps), and some of Python's own."""
import hashlib
import json
import os
import random
import shutil
import subprocess
import sys
import threading
import time

import pytest

torch = pytest.importorskip("torch")

from conftest import GOLDEN, PACKAGE_PATH, SAMPLES, SOURCE_DIR  # noqa: E402
from oscar_kv.format.bundle import load_bundle  # noqa: E402
from oscar_kv.files.errors import InputError  # noqa: E402
from oscar_kv.files.fingerprint import checkpoint_fingerprint, first_values, tensors_of  # noqa: E402
from oscar_kv.files.safetensors_file import SafetensorsFile  # noqa: E402
from oscar_kv.files.strict_json import Fields, parse_json  # noqa: E402

sys.path.append(str(SOURCE_DIR / "tests" / "apps"))
import harness  # noqa: E402
import test_hostile_bundle as bundles  # noqa: E402
import test_hostile_model as models  # noqa: E402

MANIFEST, ROTATIONS = "oscar_bundle.json", "rotations.safetensors"
SECONDS = 20.0  # on two busy cores


def refusal(call):
    """The sentence with which call() refuses a file."""
    start = time.monotonic()
    with pytest.raises(InputError) as caught:
        call()
    text = str(caught.value)
    assert text.isprintable() and text.strip() and time.monotonic() - start < SECONDS, text[:200]
    return text


@pytest.fixture
def bundle(tmp_path):
    shutil.copytree(GOLDEN / "bundle", tmp_path / "bundle")
    return tmp_path / "bundle"


@pytest.fixture
def model(tmp_path):
    return harness.make_model(tmp_path / "model")


# Faults that only the geometry of a model shows, or what a number means to a family: the commands refuse those.
OF_GEOMETRY = {"layer missing", "head_dim other"}
SOUND_JSON = {name for name, text in models.CONFIGS.items() if isinstance(text, str) and text.startswith("{")} - {
    "not json", "truncated", "trailing text", "deep"}
SOUND_WEIGHTS = {"integer weights", "missing tensor", "missing norm", "other shape", "embedding too small"}
SOUND_INDEXES = {"wrong shard"}  # what the shards hold counts


@pytest.mark.parametrize("case", sorted(bundles.CASES.keys() - OF_GEOMETRY))
def test_bundles_of_the_commands(case, bundle):
    bundles.CASES[case](bundle)
    if case == "not orthogonal":  # a golden bundle has transforms that are none
        assert "do not cancel" in refusal(lambda: load_bundle(bundle))
    else:
        refusal(lambda: load_bundle(bundle))


@pytest.mark.parametrize("case", models.CONFIGS)
def test_configs_of_the_commands(case, model):
    harness_text = models.CONFIGS[case]
    data = harness_text if isinstance(harness_text, bytes) else harness_text.encode()
    (model / "config.json").write_bytes(data)
    start = time.monotonic()
    if case in SOUND_JSON:  # a fingerprint interprets nothing
        assert checkpoint_fingerprint(model).startswith("v2:sha256:")
    else:
        assert "config.json" in refusal(lambda: checkpoint_fingerprint(model))
    assert time.monotonic() - start < SECONDS


@pytest.mark.parametrize("case", models.WEIGHTS)
def test_weights_of_the_commands(case, model):
    (model / "model.safetensors").write_bytes(models.WEIGHTS[case])
    if case in SOUND_WEIGHTS:
        assert checkpoint_fingerprint(model).startswith("v2:sha256:")
    else:
        assert "model.safetensors" in refusal(lambda: checkpoint_fingerprint(model))


@pytest.mark.parametrize("case", models.INDEXES)
def test_indexes_of_the_commands(case, model, tmp_path):
    (tmp_path / "outside.safetensors").write_bytes(models.GOOD)
    bad = models.sharded(model, tmp_path / "bad", models.INDEXES[case])
    if case in SOUND_INDEXES:
        assert checkpoint_fingerprint(bad) == checkpoint_fingerprint(model)
    else:
        assert str(bad) in refusal(lambda: checkpoint_fingerprint(bad))


DIGITS = "1" * 5000
JSONS = {"400 digits": b'{"a": ' + b"1" * 400 + b"}", "5,000 digits": f'{{"a": {DIGITS}}}'.encode(), "an exponent": b'{"a": 1e999}',
         "900 lists": b'{"a": ' + b"[" * 900 + b"]" * 900 + b"}", "65 levels": b"[" * 65 + b"]" * 65, "half a pair": b'{"a": "\\ud800"}',
         "half a pair as a key": b'{"\\udfff": 1}', "a mark before": b"\xef\xbb\xbf{}", "UTF-16": '{"a": 1}'.encode("utf-16"),
         "infinity": b'{"a": -Infinity}', "a control character": b'{"a": "\x1b"}', "many lists": b"[" + b"[]," * 20_000_000 + b"[]]"}


@pytest.mark.parametrize("case", JSONS)
def test_json(case):
    refusal(lambda: parse_json(JSONS[case], "a\x1b.json"))


def test_json_within_the_limits():
    assert parse_json(b"[" * 64 + b"]" * 64, "x") is not None
    assert parse_json(b'{"a": 18446744073709551615, "b": -9223372036854775808, "c": 123456789012345678901234567890}', "x") == {
        "a": 2**64 - 1, "b": -2**63, "c": 123456789012345678901234567890.0}
    assert parse_json('{"a": "\\ud83d\\ude00 \\\\ud800"}'.encode(), "x") == {"a": "\U0001f600 \\ud800"}
    refusal(lambda: Fields(parse_json(b'{"a": [[[1]]]}', "x"), "x").integer("a"))


def header(entries, data=b""):
    text = entries if isinstance(entries, bytes) else json.dumps(entries).encode()
    return len(text).to_bytes(8, "little") + text + data


ONE = {"dtype": "F32", "shape": [1], "data_offsets": [0, 4]}
HEADERS = {"a type that is a list": {"t": ONE | {"dtype": []}}, "a type that is an object": {"t": ONE | {"dtype": {}}},
           "no object": {"t": 7}, "a member too many": {"t": ONE | {"more": 1}}, "metadata of numbers": {"__metadata__": {"a": 1}, "t": ONE},
           "300,000 extents": {"t": ONE | {"shape": [2**61] * 300_000}}, "an extent of 400 digits": header(
               json.dumps({"t": ONE}).replace("[1]", "[" + "9" * 400 + "]").encode()), "true": {"t": ONE | {"shape": [True]}},
           "a name that moves the cursor": {"a\x1b[2J\u202e": ONE | {"dtype": "F9"}}, "half a pair": header(json.dumps({"\ud800": ONE}).encode()),
           "half a byte": {"t": {"dtype": "F4", "shape": [1], "data_offsets": [0, 4]}}}


@pytest.mark.parametrize("case", HEADERS)
def test_headers(case, tmp_path):
    path, made = tmp_path / "a\x1b[31m.safetensors", HEADERS[case]
    path.write_bytes(made if isinstance(made, bytes) else header(made, bytes(4)))
    assert "\\x1b[31m" in refusal(lambda: SafetensorsFile(path))


def test_types_of_which_nothing_is_read(tmp_path):
    """Codes of 4 bits have a size and no values here."""
    path = tmp_path / "model.safetensors"
    path.write_bytes(header({"t": {"dtype": "F4", "shape": [3, 2], "data_offsets": [0, 3]}}, b"abc"))
    file = SafetensorsFile(path)
    assert file.bytes_of("t") == b"abc" and file.bytes_of("t", 1, 9) == b"bc"
    assert first_values(tensors_of(tmp_path), "t", 4) is None and first_values(tensors_of(tmp_path), "none", 4) is None


@pytest.mark.parametrize("name", [MANIFEST, ROTATIONS])
@pytest.mark.parametrize("kind", ["pipe", "device", "folder", "cyclic link", "broken link", "empty"])
def test_no_regular_file_in_a_bundle(name, kind, bundle):
    replace(bundle / name, kind)
    assert name in refusal(lambda: load_bundle(bundle))


@pytest.mark.parametrize("name", ["config.json", "model.safetensors", "model.safetensors.index.json", "shard.safetensors"])
@pytest.mark.parametrize("kind", ["pipe", "device", "folder", "cyclic link", "broken link", "empty"])
def test_no_regular_file_in_a_checkpoint(name, kind, model):
    if name not in ("config.json", "model.safetensors"):
        (model / "model.safetensors").rename(model / "shard.safetensors")
        (model / "model.safetensors.index.json").write_text('{"weight_map": {"a": "shard.safetensors"}}')
    replace(model / name, kind)
    refusal(lambda: checkpoint_fingerprint(model))


def replace(path, kind):
    path.unlink()
    if kind == "pipe":
        os.mkfifo(path)
    elif kind == "device":
        path.symlink_to("/dev/zero")
    elif kind == "folder":
        path.mkdir()
    elif kind == "cyclic link":
        path.symlink_to(path.name)
    elif kind == "broken link":
        path.symlink_to("nowhere")
    else:
        path.write_bytes(b"")


def test_a_file_that_shrinks(model):
    """What was mapped would end the process; what is read ends in a sentence."""
    tensors = tensors_of(model)
    name = max(tensors, key=lambda n: tensors[n].entries[n].end)
    os.truncate(model / "model.safetensors", 4096)
    assert "has become shorter" in refusal(lambda: tensors[name].bytes_of(name))


def test_a_bundle_that_is_replaced_while_it_is_read(bundle, tmp_path):
    """What was hashed is what is read: the bundle of before, or a sentence, never numbers of one file under the hash of another."""
    good = load_bundle(bundle).layers[0].key.forward.clone()
    data = (bundle / ROTATIONS).read_bytes()
    stop = threading.Event()

    def swap():
        while not stop.is_set():
            for content in (data[:-4] + b"\0\0\0\1", data):
                (tmp_path / "new").write_bytes(content)
                os.replace(tmp_path / "new", bundle / ROTATIONS)

    thread = threading.Thread(target=swap)
    thread.start()
    try:
        for _ in range(60):
            try:
                loaded = load_bundle(bundle)
            except InputError:
                continue
            assert torch.equal(loaded.layers[0].key.forward, good)
    finally:
        stop.set()
        thread.join()


@pytest.mark.parametrize("name", ["x" * 5000, "a\0b", "\ud800", "\x1b[31mred"])
def test_names_of_places(name, tmp_path):
    for call in (load_bundle, checkpoint_fingerprint):
        refusal(lambda call=call: call(str(tmp_path / name)))


def test_members_that_nobody_reads(bundle):
    """The hash over the numbers of a manifest walks through all of them."""
    path = bundle / MANIFEST
    good = path.read_text()
    document = json.loads(good)
    document["numbers_sha256"] = "0" * 64
    for text in ("1" * 400, DIGITS, "[" * 900 + "]" * 900, "[" * 70 + "]" * 70, '"\\ud800"', "1e999"):
        path.write_text(json.dumps(document).replace('"layers": [{', f'"layers": [{{"more": {text}, ', 1))
        refusal(lambda: load_bundle(bundle))
    document["model"]["layers"] = 2**62
    document["model"]["left_out"] = []
    path.write_text(json.dumps(document))
    assert "expected 1 to 10000" in refusal(lambda: load_bundle(bundle))


def test_names_of_tensors_are_escaped(bundle):
    data = (bundle / ROTATIONS).read_bytes()
    length = int.from_bytes(data[:8], "little")
    entries = json.loads(data[8:8 + length])
    end = len(data) - 8 - length
    entries["\x1b[2J"] = {"dtype": "F32", "shape": [0], "data_offsets": [end, end]}
    made = header(entries, data[8 + length:])
    (bundle / ROTATIONS).write_bytes(made)
    manifest = json.loads((bundle / MANIFEST).read_text())
    manifest["files"][ROTATIONS] = {"bytes": len(made), "sha256": hashlib.sha256(made).hexdigest()}
    (bundle / MANIFEST).write_text(json.dumps(manifest))
    assert "\\x1b[2J" in refusal(lambda: load_bundle(bundle))


def mutated(data, chosen):
    """A few bytes flipped, cut, repeated or replaced by what readers are most likely to trip over."""
    data = bytearray(data)
    for _ in range(chosen.randrange(1, 4)):
        at = chosen.randrange(len(data))
        kind = chosen.randrange(5)
        if kind == 0:
            data[at] ^= 1 << chosen.randrange(8)
        elif kind == 1:
            del data[at:at + chosen.randrange(1, 40)]
        elif kind == 2:
            data[at:at] = data[at:at + chosen.randrange(1, 40)]
        else:
            data[at:at + chosen.randrange(3)] = chosen.choice([b"[" * 70, b"9" * 400, b"{}", b"null", b"-1", b"1e999", b'"\\ud800"', b"\xff", b"\0", b",", b'"'])
        if not data:
            data += b"0"
    return bytes(data)


@pytest.mark.parametrize("seed", range(4))
def test_mutations(seed, bundle, model):
    """400 damaged files for each seed: read, or refused with one sentence."""
    chosen = random.Random(seed)
    index = json.dumps({"metadata": {}, "weight_map": {"a": "model.safetensors"}}).encode()
    manifest, rotations, config, weights = ((folder / name).read_bytes() for folder, name in (
        (bundle, MANIFEST), (bundle, ROTATIONS), (model, "config.json"), (model, "model.safetensors")))
    refused = 0
    for i in range(400):
        kind = i % 4
        if kind == 0:
            (bundle / MANIFEST).write_bytes(mutated(manifest, chosen))
        elif kind == 1:
            (bundle / ROTATIONS).write_bytes(mutated(rotations[:2000], chosen) + rotations[2000:])
        elif kind == 2:
            (model / "config.json").write_bytes(mutated(config, chosen))
        else:
            (model / "model.safetensors").write_bytes(mutated(weights[:6000], chosen) + weights[6000:])
        try:
            if kind < 2:
                load_bundle(bundle)
            elif i % 8 < 4:
                checkpoint_fingerprint(model)
            else:
                parse_json(mutated(index, chosen), "index")
        except InputError as error:
            assert str(error).isprintable()
            refused += 1
        (bundle / MANIFEST).write_bytes(manifest)
        (bundle / ROTATIONS).write_bytes(rotations)
        (model / "config.json").write_bytes(config)
        (model / "model.safetensors").write_bytes(weights)
    assert 200 < refused < 400, refused
    assert load_bundle(bundle) is not None and checkpoint_fingerprint(model)


def command(*arguments, **options):
    environment = {**os.environ, "PYTHONPATH": PACKAGE_PATH or os.environ.get("PYTHONPATH", ""), "CUDA_VISIBLE_DEVICES": ""}
    done = subprocess.run([sys.executable, "-m", "oscar_kv", *map(os.fsencode, arguments)], capture_output=True, env=environment, timeout=120,
                          **options)
    said = done.stderr.decode()
    assert "Traceback" not in said and all(c.isprintable() or c == "\n" for c in said), said
    return done.returncode, said.strip().split("\n")[-1]


@pytest.mark.parametrize("arguments,code,sentence", [
    (["M", "B", "--prompt", "a", "--device", "cuda"], 4, "torch finds 0 GPUs"),
    (["M", "B", "--prompt", "a", "--device", "\x1b[31mfoo"], 2, r"'\x1b[31mfoo' is no device of torch"),
    (["M", "B", "--prompt", "\udcff\udcfe"], 2, "--prompt is not UTF-8"),
    (["M", "B", "--prompt-file", "/dev/zero"], 3, "/dev/zero: is not a regular file"),
    (["M", "B", "--prompt-file", "P"], 3, "is not a regular file"),
    (["M", "F", "--prompt", "a"], 3, "is not a regular file"),
    (["C", "B", "--prompt", "a"], 3, "config.json: is not a regular file")])
def test_exit_codes_of_the_command(arguments, code, sentence, bundle, model, tmp_path):
    os.mkfifo(tmp_path / "pipe")
    shutil.copytree(bundle, tmp_path / "piped")
    replace(tmp_path / "piped" / MANIFEST, "pipe")
    shutil.copytree(model, tmp_path / "config")
    replace(tmp_path / "config" / "config.json", "pipe")
    places = {"M": SAMPLES / "tiny-qwen3", "B": bundle, "P": tmp_path / "pipe", "F": tmp_path / "piped", "C": tmp_path / "config"}
    found, said = command(*[str(places.get(a, a)) for a in arguments])
    assert found == code and sentence in said, (found, said)


@pytest.mark.parametrize("locked", ["model", "bundle"])
def test_a_folder_without_permission_is_said(locked, bundle, model, tmp_path):
    places = {"model": model, "bundle": bundle}
    (tmp_path / "parent").mkdir()
    places[locked] = shutil.move(places[locked], tmp_path / "parent" / locked)
    (tmp_path / "parent").chmod(0)
    try:
        found, said = command(str(places["model"]), str(places["bundle"]), "--prompt", "a", preexec_fn=harness.without_rights)
    finally:
        (tmp_path / "parent").chmod(0o755)
    assert found == 3 and f"{places[locked]}: cannot be seen (Permission denied); change the permissions" in said, (found, said)
