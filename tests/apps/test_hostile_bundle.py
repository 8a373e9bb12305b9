"""Damaged, foreign and mismatched bundles and published rotation files: verify --check-only and export refuse them with
exit code 3 and the reason; nothing is written."""
import hashlib
import json
import pathlib
import shutil
import struct
import zipfile

import pytest

from harness import BAD_INPUT, USAGE, make_model, refuse, run, succeed, tree

MANIFEST, ROTATIONS = "oscar_bundle.json", "rotations.safetensors"


def edit_manifest(change):
    def edit(folder):
        path = folder / MANIFEST
        document = json.loads(path.read_text())
        document = change(document) or document
        path.write_text(json.dumps(document, indent=2) + "\n")

    return edit


def put(key, value):
    def change(document):
        parts = key.split(".")
        for part in parts[:-1]:
            document = document[int(part) if part.isdigit() else part]
        if value is Ellipsis:
            del document[parts[-1]]
        else:
            document[int(parts[-1]) if parts[-1].isdigit() else parts[-1]] = value

    return edit_manifest(change)


def raw(name, change):
    def edit(folder):
        path = folder / name
        path.write_bytes(change(path.read_bytes()))

    return edit


def edit_tensor(change):
    """Changes the first matrix and signs the file anew, so that only the numbers are wrong."""

    def edit(folder):
        import numpy

        path = folder / ROTATIONS
        data = path.read_bytes()
        length = struct.unpack("<Q", data[:8])[0]
        header = json.loads(data[8 : 8 + length])
        name = next(n for n in sorted(header) if n.endswith(".forward"))
        begin, end = (8 + length + x for x in header[name]["data_offsets"])
        values = numpy.frombuffer(data[begin:end], "<f4").reshape(header[name]["shape"]).copy()
        values = change(values)
        path.write_bytes(data[:begin] + values.astype("<f4").tobytes() + data[end:])
        edit_manifest(lambda m: m["files"][ROTATIONS].update(sha256=hashlib.sha256(path.read_bytes()).hexdigest()))(folder)

    return edit


def nan(values):
    values.flat[5] = float("nan")
    return values


def half(values):
    return values * 0.5


def remove(name):
    return lambda folder: (folder / name).unlink()


CASES = {
    "manifest missing": remove(MANIFEST),
    "manifest empty": raw(MANIFEST, lambda d: b""),
    "manifest cut": raw(MANIFEST, lambda d: d[: len(d) // 2]),
    "manifest of another kind": raw(MANIFEST, lambda d: b"[1, 2, 3]"),
    "manifest with duplicate key": raw(MANIFEST, lambda d: d.rstrip()[:-1] + b', "format_version": 1}'),
    "manifest deep": raw(MANIFEST, lambda d: b'{"a":' * 5000 + b"1" + b"}" * 5000),
    "manifest not UTF-8": raw(MANIFEST, lambda d: d.replace(b'"', b'"\xff', 1)),
    "newer version": put("format_version", 99),
    "version is text": put("format_version", "1"),
    "no layers": put("layers", []),
    "layers missing": put("layers", ...),
    "layer missing": edit_manifest(lambda m: m["layers"].pop()),
    "layer twice": edit_manifest(lambda m: m["layers"].append(m["layers"][-1])),
    "layer id huge": put("layers.0.layer", 2**62),
    "layer id negative": put("layers.0.layer", -1),
    "head_dim zero": put("layers.0.head_dim", 0),
    "head_dim huge": put("layers.0.head_dim", 2**40),
    "head_dim other": put("layers.0.head_dim", 32),
    "kv_heads text": put("layers.0.kv_heads", "two"),
    "clip of 7": put("layers.0.key.clip", [7]),
    "clip of text": put("layers.0.key.clip", ["0.9"]),
    "unknown layout": put("code.layout", "spiral"),
    "seven bits": put("code.bits", 7),
    "wrong hash": edit_manifest(lambda m: m["files"][ROTATIONS].update(sha256="0" * 64)),
    "hash is no hash": edit_manifest(lambda m: m["files"][ROTATIONS].update(sha256="abc")),
    "path traversal": edit_manifest(lambda m: m["files"].update({"../outside": m["files"][ROTATIONS]})),
    "rotations missing": remove(ROTATIONS),
    "rotations empty": raw(ROTATIONS, lambda d: b""),
    "rotations cut": raw(ROTATIONS, lambda d: d[:-4]),
    "rotations flipped bit": raw(ROTATIONS, lambda d: d[:-9] + bytes([d[-9] ^ 1]) + d[-8:]),
    "NaN": edit_tensor(nan),
    "not orthogonal": edit_tensor(half),
}


# One reader serves both commands, so oscar-export is tried with a fault of each kind: of the manifest, of a hash, of a number.
@pytest.mark.parametrize("name,case", [*(("verify", case) for case in CASES), *(("export", case) for case in ("manifest cut", "wrong hash", "NaN"))])
def test_bundle(name, case, bundle, tmp_path):
    bad = tmp_path / "bad-bundle"
    shutil.copytree(bundle, bad)
    CASES[case](bad)
    before = tree(tmp_path)
    if name == "verify":
        refuse(BAD_INPUT, "verify", "--bundle", bad, "--check-only")
    else:
        refuse(BAD_INPUT, "export", bad, "--format", "sglang-branch", "-o", tmp_path / "out")
    assert tree(tmp_path) == before


def test_a_sound_bundle_passes(bundle, model):
    succeed("verify", "--bundle", bundle, "--check-only")
    succeed("verify", "--bundle", bundle, "--check-only", "--model", model)


def test_bundle_of_another_model(bundle, text, tmp_path):
    other = make_model(tmp_path / "other", seed=2)
    sentence = refuse(BAD_INPUT, "verify", "--bundle", bundle, "--check-only", "--model", other)
    assert "model" in sentence
    wider = make_model(tmp_path / "wider", head_dim=128)
    refuse(BAD_INPUT, "verify", "--bundle", bundle, "--check-only", "--model", wider)
    refuse(BAD_INPUT, "verify", "--bundle", bundle, "--model", wider, "--text", text, "--context", 512)
    refuse(BAD_INPUT, "export", bundle, "--format", "sglang-branch", "--model", other, "-o", tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_no_such_bundle(tmp_path):
    refuse(BAD_INPUT, "verify", "--bundle", tmp_path / "none", "--check-only", names="none")
    refuse(BAD_INPUT, "export", tmp_path / "none", "--format", "sglang-branch", "-o", tmp_path / "out", names="none")


def test_bundle_is_a_file(bundle, tmp_path):
    refuse(BAD_INPUT, "verify", "--bundle", bundle / MANIFEST, "--check-only")


def test_unknown_export_format_lists_the_known_ones(bundle, tmp_path):
    sentence = refuse((USAGE, BAD_INPUT), "export", bundle, "--format", "sglagn", "-o", tmp_path / "out")
    assert "sglang-branch" in sentence and "sglang-branch-v2" in sentence, sentence
    assert tree(tmp_path) == {}


@pytest.mark.parametrize("arguments", [["--methods", "oscarr"], ["--methods", ","], ["--path", "sideways"], ["--max-kl", "x"],
                                       ["--windows", "64"], ["--context", "-5"], ["--context", "x"], ["--tasks", "chess"],
                                       ["--min-top1", "3"], ["--max-kl", "-1"], ["--clip", "1,1"]])
def test_wrong_verify_options(arguments, model, bundle, text, tmp_path):
    refuse(USAGE, "verify", "--model", model, "--bundle", bundle, "--text", text, "--context", 512, *arguments, "--report",
           tmp_path / "r.json")
    assert tree(tmp_path) == {}


def test_an_unknown_method_gets_a_suggestion(model, bundle, text):
    sentence = refuse(USAGE, "verify", "--model", model, "--bundle", bundle, "--text", text, "--context", 512, "--methods", "oscar,naiv2")
    assert "naive2" in sentence


# Published .pt files, made from the good bundle by export and then damaged.


@pytest.fixture(scope="module")
def published(bundle, tmp_path_factory):
    folder = tmp_path_factory.mktemp("published") / "sglang-branch"
    succeed("export", bundle, "--format", "sglang-branch", "-o", folder)
    files = sorted(folder.glob("*.pt"))
    assert len(files) == 2, files
    keys, values = sorted(files, key=lambda f: "v_rot" in f.name)
    return keys, values


def test_published_files_pass(published, model):
    succeed("verify", "--rotations", f"{published[0]},{published[1]}", "--check-only")
    succeed("verify", "--rotations", f"{published[0]},{published[1]}", "--check-only", "--model", model)


class Evil:
    """A pickle that would run a command."""

    def __init__(self, mark):
        self.mark = mark

    def __reduce__(self):
        import os

        return os.system, (f"touch {self.mark}",)


def rewrite_torch(change):
    def edit(source, target):
        import torch

        value = torch.load(source, weights_only=True)
        torch.save(change(value) or value, target)

    return edit


def first_rotation(value):
    table = value["layers"]
    return table, sorted(k for k in table if isinstance(k, int))[0]


def set_rotation(function):
    def change(value):
        table, key = first_rotation(value)
        table[key]["rotation"] = function(table[key]["rotation"].clone())

    return rewrite_torch(change)


def set_nan(matrix):
    matrix[0, 0] = float("nan")
    return matrix


def drop_layer(value):
    table, key = first_rotation(value)
    del table[key]


def newer(value):
    value["format_version"] = 99


PT_CASES = {
    "empty": lambda s, t: t.write_bytes(b""),
    "text": lambda s, t: t.write_text("rotation"),
    "cut": lambda s, t: t.write_bytes(s.read_bytes()[:-100]),
    "half": lambda s, t: t.write_bytes(s.read_bytes()[: s.stat().st_size // 2]),
    "flipped bit": lambda s, t: t.write_bytes(s.read_bytes()[:5000] + bytes([s.read_bytes()[5000] ^ 4]) + s.read_bytes()[5001:]),
    "an empty archive": lambda s, t: zipfile.ZipFile(t, "w").close(),
    "archive of something else": lambda s, t: zipfile.ZipFile(t, "w").writestr("a/b", "c"),
    "NaN": set_rotation(set_nan),
    "not orthogonal": set_rotation(lambda m: m * 2),
    "wrong shape": set_rotation(lambda m: m[:-1]),
    "one dimension": set_rotation(lambda m: m.reshape(-1)),
    "text for a matrix": set_rotation(lambda m: "identity"),
    "a layer missing": rewrite_torch(drop_layer),
    "newer version": rewrite_torch(newer),
    "a list": rewrite_torch(lambda v: [1, 2]),
    "an empty dictionary": rewrite_torch(lambda v: {"layers": {}}),
}


@pytest.mark.parametrize("case", PT_CASES)
@pytest.mark.parametrize("side", ["K", "V"])
def test_published(side, case, published, tmp_path):
    keys, values = published
    bad = tmp_path / ("bad_k_rotation.pt" if side == "K" else "bad_v_rotation.pt")
    PT_CASES[case](keys if side == "K" else values, bad)
    pair = f"{bad},{values}" if side == "K" else f"{keys},{bad}"
    refuse(BAD_INPUT, "verify", "--rotations", pair, "--check-only")


def test_a_pickle_that_runs_code_is_not_run(published, tmp_path):
    import pickle
    import torch

    mark = tmp_path / "executed"
    bad = tmp_path / "bad.pt"
    torch.save({"rotations": Evil(mark)}, bad, pickle_module=pickle)
    refuse(BAD_INPUT, "verify", "--rotations", f"{bad},{published[1]}", "--check-only", names="bad.pt")
    assert not mark.exists()


def test_pair_of_different_models(published, tmp_path, prompts):
    wide = make_model(tmp_path / "wide", head_dim=128)
    succeed("collect", "--model", wide, "--prompts", prompts, "-o", tmp_path / "s.safetensors", "--seq-len", 128)
    succeed("fit", tmp_path / "s.safetensors", "--method", "oscar", "-o", tmp_path / "bundle")
    succeed("export", tmp_path / "bundle", "--format", "sglang-branch", "-o", tmp_path / "out")
    values = next(p for p in (tmp_path / "out").glob("*.pt") if "v_rot" in p.name)
    refuse(BAD_INPUT, "verify", "--rotations", f"{published[0]},{values}", "--check-only")


def test_keys_and_values_swapped_or_the_same(published):
    keys, values = published
    refuse((BAD_INPUT, USAGE), "verify", "--rotations", f"{values},{keys}", "--check-only")
    refuse((BAD_INPUT, USAGE), "verify", "--rotations", f"{keys},{keys}", "--check-only")


@pytest.mark.parametrize("pair", ["one.pt", "a.pt,b.pt,c.pt", ",", "a.pt,"])
def test_not_a_pair(pair):
    refuse(USAGE, "verify", "--rotations", pair, "--check-only")


def test_missing_pt(published, tmp_path):
    refuse(BAD_INPUT, "verify", "--rotations", f"{tmp_path / 'no.pt'},{published[1]}", "--check-only", names="no.pt")


@pytest.mark.parametrize("case", ["text", "a list", "another kind"])
def test_report_for_the_card(case, bundle, tmp_path):
    report = tmp_path / "report.json"
    report.write_text({"text": "{", "a list": "[]", "another kind": '{"format_version": 1, "tool": "x"}'}[case])
    refuse(BAD_INPUT, "export", bundle, "--format", "sglang-branch", "--report", report, "-o", tmp_path / "out", names="report.json")
    assert not (tmp_path / "out").exists()
