"""Damaged statistics: oscar-fit, show and merge refuse them with exit code 3 and write nothing."""
import json
import random
import struct

import pytest

from harness import BAD_INPUT, NUMERICAL, USAGE, make_model, refuse, run, succeed, tree


def rewrite(data, change):
    """The file with its header changed by `change` (dictionary in, dictionary or bytes out)."""
    length = struct.unpack("<Q", data[:8])[0]
    header = json.loads(data[8 : 8 + length])
    header = change(header) or header
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    return struct.pack("<Q", len(text)) + text + data[8 + length :]


def drop(part):
    def change(header):
        return {k: v for k, v in header.items() if part not in k}

    return change


def meta(**changes):
    def change(header):
        header["__metadata__"] = {k: v for k, v in (header["__metadata__"] | changes).items() if v is not None}

    return change


def metas_where(change_value):
    """Applies change_value to every JSON document inside the metadata (their keys are the writer's own)."""

    def change(header):
        for key, value in header["__metadata__"].items():
            try:
                document = json.loads(value)
            except ValueError:
                continue
            header["__metadata__"][key] = json.dumps(change_value(document))

    return change


def fill(part, number):
    """Overwrites a tensor's data with one number."""

    def change(data):
        length = struct.unpack("<Q", data[:8])[0]
        header = json.loads(data[8 : 8 + length])
        name = next(n for n in sorted(header) if part in n)
        assert header[name]["dtype"] == "F64", header[name]
        begin, end = header[name]["data_offsets"]
        start = 8 + length
        return data[: start + begin] + struct.pack("<d", number) * ((end - begin) // 8) + data[start + end :]

    return change


CASES = {
    "empty": lambda d: b"",
    "text": lambda d: b"not a safetensors file at all, just words\n",
    "cut": lambda d: d[:-9],
    "half": lambda d: d[: len(d) // 2],
    "longer": lambda d: d + b"\0" * 8,
    "no metadata": lambda d: rewrite(d, lambda h: {k: v for k, v in h.items() if k != "__metadata__"}),
    "newer version": lambda d: rewrite(d, meta(format_version="99")),
    "version is text": lambda d: rewrite(d, meta(format_version="one")),
    "missing q_gram": lambda d: rewrite(d, drop("layers.0.q_gram")),
    "missing a layer": lambda d: rewrite(d, drop("layers.1.")),
    "metadata of lists": lambda d: rewrite(d, metas_where(lambda v: [])),
    "metadata of nulls": lambda d: rewrite(d, metas_where(lambda v: None)),
    "NaN": lambda d: fill("layers.0.q_gram", float("nan"))(d),
    "infinity": lambda d: fill("layers.1.o_gram", float("inf"))(d),
    "negative diagonal": lambda d: fill("layers.0.q_gram", -1.0)(d),
}


@pytest.mark.parametrize("case", CASES)
def test_fit_refuses(case, statistics, tmp_path):
    bad = tmp_path / "bad.safetensors"
    bad.write_bytes(CASES[case](statistics.read_bytes()))
    before = tree(tmp_path)
    refuse(NUMERICAL if case in ("NaN", "infinity") else BAD_INPUT, "fit", bad, "-o", tmp_path / "bundle",
           names="bad.safetensors")
    assert tree(tmp_path) == before


@pytest.mark.parametrize("case", ["empty", "cut", "newer version", "missing q_gram", "metadata of lists"])
@pytest.mark.parametrize("verb", ["show", "merge"])
def test_show_and_merge_refuse(verb, case, statistics, tmp_path):
    bad = tmp_path / "bad.safetensors"
    bad.write_bytes(CASES[case](statistics.read_bytes()))
    before = tree(tmp_path)
    rest = [bad] if verb == "show" else [statistics, bad, "-o", tmp_path / "merged.safetensors"]
    refuse(BAD_INPUT, "collect", verb, *rest, names="bad.safetensors")
    assert tree(tmp_path) == before


def test_a_newer_version_has_its_own_sentence(statistics, tmp_path):
    bad = tmp_path / "bad.safetensors"
    bad.write_bytes(CASES["newer version"](statistics.read_bytes()))
    sentence = refuse(BAD_INPUT, "collect", "show", bad)
    assert "newer" in sentence or "version" in sentence, sentence


@pytest.mark.parametrize("seed", range(10))
def test_flipped_bytes(seed, statistics, tmp_path):
    """Bytes flipped anywhere in the header are refused, or meet nothing that matters; never a crash."""
    source = random.Random(seed)
    data = bytearray(statistics.read_bytes())
    for _ in range(4):
        data[source.randrange(8 + struct.unpack("<Q", data[:8])[0])] ^= 1 << source.randrange(8)
        if struct.unpack("<Q", data[:8])[0] > len(data):
            break
    bad = tmp_path / "bad.safetensors"
    bad.write_bytes(bytes(data))
    result = run("collect", "show", bad)
    assert result.code in (0, BAD_INPUT), str(result)
    assert result.code == 0 or len(result.errors()) == 1, str(result)


def test_merge_of_another_model(statistics, prompts, tmp_path):
    other = make_model(tmp_path / "other", seed=2)
    succeed("collect", "--model", other, "--prompts", prompts, "-o", tmp_path / "other.safetensors", "--seq-len", 128)
    refuse(BAD_INPUT, "collect", "merge", statistics, tmp_path / "other.safetensors", "-o", tmp_path / "m.safetensors")
    assert not (tmp_path / "m.safetensors").exists()


def test_merge_with_itself_counts_the_prompts_twice(statistics, tmp_path):
    refuse((BAD_INPUT, USAGE), "collect", "merge", statistics, statistics, "-o", tmp_path / "m.safetensors")
    assert not (tmp_path / "m.safetensors").exists()


def test_merge_of_one_file(statistics, tmp_path):
    refuse(USAGE, "collect", "merge", statistics, "-o", tmp_path / "m.safetensors")


def test_missing_file(tmp_path):
    refuse(BAD_INPUT, "fit", tmp_path / "no.safetensors", "-o", tmp_path / "bundle", names="no.safetensors")
    refuse(BAD_INPUT, "collect", "show", tmp_path / "no.safetensors", names="no.safetensors")
    assert tree(tmp_path) == {}


def test_statistics_are_a_folder(tmp_path):
    refuse((BAD_INPUT, 4), "fit", tmp_path, "-o", tmp_path / "bundle")


def test_a_checkpoint_instead_of_statistics(model, tmp_path):
    refuse(BAD_INPUT, "fit", model / "model.safetensors", "-o", tmp_path / "bundle", names="model.safetensors")


@pytest.mark.parametrize("arguments", [["--method", "magic"], ["--scope", "token"], ["--clip", "2,3"],
                                       ["--clip", "x"], ["--windows", "64"], ["--windows", "-1,256"], ["--windows", "a,b"],
                                       ["--bits", "-2"], ["--nonsense"]])
def test_wrong_options(arguments, statistics, tmp_path):
    refuse(USAGE, "fit", statistics, "-o", tmp_path / "bundle", *arguments)
    assert tree(tmp_path) == {}
