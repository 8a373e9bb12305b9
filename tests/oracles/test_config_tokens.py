"""Tokens beside tokenizer.json (tokenizer_config.json, special_tokens_map.json, added_tokens.json): ids of AutoTokenizer."""
import json
import random

import pytest

transformers = pytest.importorskip("transformers")

from conftest import SOURCE_DIR  # noqa: E402
from cpp_tokenizer import CppTokenizer  # noqa: E402

SAMPLE = SOURCE_DIR / "sample_data" / "tiny-qwen3" / "tokenizer.json"
TEXTS = ["a <|new|> b", " <|new|>  x <|other|>y<|im_end|> z", "<image> <|im_start|>user\n<tool>{}</tool>", "<|new|><|new|>", "plain"]


def token(content, **flags):
    return {"content": content, "lstrip": False, "rstrip": False, "single_word": False, "normalized": False, "special": True, **flags}


def decoder(*tokens, first=9000):
    return {"added_tokens_decoder": {str(first + 3 * i): t for i, t in enumerate(tokens)}}


CONFIG = {
    "nothing": {},
    "added_tokens_decoder": decoder(token("<|new|>"), token("<|other|>")),
    "in another order": {"added_tokens_decoder": {"9001": token("<|other|>"), "9000": token("<|new|>"), "10000": token("<tool>")}},
    "with flags": decoder(token("<|new|>", lstrip=True), token("<|other|>", rstrip=True, special=False), token("<tool>", normalized=True)),
    "other flags of a known token": decoder(token("<|im_end|>", lstrip=True, rstrip=True)),
    "a word": decoder(token("plain", special=False, single_word=True)),
    "additional_special_tokens": {"additional_special_tokens": ["<|new|>", "<tool>"]},
    "extra_special_tokens": {"extra_special_tokens": ["<|other|>", "<|new|>"]},
    "named tokens": {"extra_special_tokens": {"image_token": "<image>", "tool_token": "<tool>"}},
    "model_specific_special_tokens": {"model_specific_special_tokens": {"image_token": "<image>", "x_token": "<|new|>"}},
    "both kinds of names": {"extra_special_tokens": {"x_token": "<|new|>"}, "model_specific_special_tokens": {"image_token": "<image>"}},
    "both": {"image_token": "<tool>", "model_specific_special_tokens": {"image_token": "<image>", "x_token": "<|new|>"}},
    "an object without a type": {"image_token": token("<image>"), "pad_token": "<|new|>"},
    "a token of its own": {"image_token": "<image>", "pad_token": "<|new|>"},
    "standard tokens": {"bos_token": "<|other|>", "unk_token": "<tool>", "eos_token": "<|im_end|>"},
    "a name of a known token": {"eos_token": "<|new|>", **decoder(token("<|new|>", special=False))},
}
FILES = {
    "special_tokens_map.json": {"bos_token": token("<|new|>", lstrip=True), "additional_special_tokens": ["<tool>"], "image_token": "<image>"},
    "added_tokens.json": {"<|other|>": 9001, "<|new|>": 9000},
}


def compare(folder, config, files):
    ours = CppTokenizer(folder, SAMPLE.read_text())
    (folder / "tokenizer_config.json").write_text(json.dumps({"tokenizer_class": "PreTrainedTokenizerFast", **config}))
    for name, content in files.items():
        (folder / name).write_text(json.dumps(content))
    theirs = transformers.AutoTokenizer.from_pretrained(folder)
    expected = [theirs(text, add_special_tokens=False)["input_ids"] for text in TEXTS]
    assert ours.encode([t.encode() for t in TEXTS]) == expected
    return expected


@pytest.mark.parametrize("name", CONFIG)
def test_tokenizer_config(name, tmp_path):
    plain = transformers.PreTrainedTokenizerFast(tokenizer_file=str(SAMPLE))
    found = compare(tmp_path, CONFIG[name], {})
    changes = found != [plain(text, add_special_tokens=False)["input_ids"] for text in TEXTS]
    assert changes == (name != "nothing")  # or the case shows nothing


@pytest.mark.parametrize("text", ['"x": NaN, "y": [-Infinity]', '"bos_token": "a", "x": 1, "bos_token": "<|new|>", "x": 2'])
def test_config_with_nan_and_repeated_keys(text, tmp_path):
    """Python's json reads both, and the last key counts."""
    ours = CppTokenizer(tmp_path, SAMPLE.read_text())
    (tmp_path / "tokenizer_config.json").write_text('{"tokenizer_class": "PreTrainedTokenizerFast", ' + text + "}")
    theirs = transformers.AutoTokenizer.from_pretrained(tmp_path)
    assert ours.encode([t.encode() for t in TEXTS]) == [theirs(t, add_special_tokens=False)["input_ids"] for t in TEXTS]


def test_a_prefix_space_that_only_some_classes_add(tmp_path):
    """Qwen2Tokenizer of transformers follows tokenizer_config.json and adds a space; other classes follow tokenizer.json, which adds none."""
    ours = CppTokenizer(tmp_path, SAMPLE.read_text())
    found = {}
    for kind in ("qwen2", "qwen3"):
        (tmp_path / "tokenizer_config.json").write_text(json.dumps({"tokenizer_class": "PreTrainedTokenizerFast", "add_prefix_space": True}))
        (tmp_path / "config.json").write_text(json.dumps({"model_type": kind}))
        theirs = transformers.AutoTokenizer.from_pretrained(tmp_path)
        found[kind] = theirs("plain")["input_ids"] == theirs(" plain")["input_ids"]
    assert found == {"qwen2": True, "qwen3": False}
    with pytest.raises(ValueError, match="'add_prefix_space' is true, but tokenizer.json adds no space"):
        ours.encode([b"plain"])
    description = json.loads(SAMPLE.read_text())
    for part in description["pre_tokenizer"].get("pretokenizers", [description["pre_tokenizer"]]):
        if part["type"] == "ByteLevel":
            part["add_prefix_space"] = True  # both say the same
    ours = CppTokenizer(tmp_path, description)
    assert ours.encode([b"plain"]) == ours.encode([b" plain"])


@pytest.mark.parametrize("names", [["special_tokens_map.json"], ["added_tokens.json"], ["special_tokens_map.json", "added_tokens.json"]])
@pytest.mark.parametrize("config", ["nothing", "added_tokens_decoder"])
def test_older_files(names, config, tmp_path):
    compare(tmp_path, CONFIG[config], {name: FILES[name] for name in names})


A, B, C = "<|new|>", "<|other|>", "<tool>"


@pytest.mark.parametrize("added", [{}, {C: 9000, A: 9001}])
@pytest.mark.parametrize("older", [{}, {"additional_special_tokens": [A, C]}, {"extra_special_tokens": [A, {"content": C, "lstrip": True}]},
                                   {"extra_special_tokens": {"image_token": A}}, {"additional_special_tokens": [A], "extra_special_tokens": [C, B]},
                                   {"extra_special_tokens": {"x_token": C}, "additional_special_tokens": [A]}])  # fmt: skip
@pytest.mark.parametrize("config", [{}, {"extra_special_tokens": [B]}, {"extra_special_tokens": []}, {"extra_special_tokens": None}, {"additional_special_tokens": [B]},
                                    {"additional_special_tokens": []}, {"extra_special_tokens": [B], "additional_special_tokens": [C]},
                                    {"extra_special_tokens": {"image_token": "<image>"}, "additional_special_tokens": [B]},
                                    {"extra_special_tokens": {}, "additional_special_tokens": [B]}])  # fmt: skip
def test_lists_of_special_tokens_in_two_files(config, older, added, tmp_path):
    """Which list counts depends on the keys of both files, not only on the tokens in them."""
    compare(tmp_path, config, {"special_tokens_map.json": older, "added_tokens.json": added})


NAMES = ["bos_token", "unk_token", "pad_token", "image_token", "x_token", "audio_token"]


def some(draw, rate, **values):
    """A part of these members, each made by its function."""
    return {key: make() for key, make in values.items() if draw.random() < rate}


def random_files(draw):
    def one():
        flags = {flag: draw.random() < 0.5 for flag in ("lstrip", "rstrip", "single_word", "normalized", "special") if draw.random() < 0.4}
        return draw.choice([A, B, C, "<image>", "plain", {"__type": "AddedToken", "content": draw.choice([A, B, C]), **flags}])

    def further():
        return draw.choice([[one() for _ in range(draw.randint(0, 3))], None, {key: one() for key in draw.sample([*NAMES, "foo"], draw.randint(0, 2))}])

    def names():
        return some(draw, 0.3, **{key: lambda: draw.choice([one(), one(), None]) for key in NAMES}, additional_special_tokens=further, extra_special_tokens=further,
                    model_specific_special_tokens=lambda: {key: one() for key in draw.sample(NAMES, draw.randint(0, 2))})  # fmt: skip

    config = {**names(), **some(draw, 0.3, added_tokens_decoder=lambda: decoder(*(token(c, special=draw.random() < 0.5) for c in draw.sample([A, B, C], 2)))["added_tokens_decoder"])}
    return config, some(draw, 0.5, **{"special_tokens_map.json": names, "added_tokens.json": lambda: dict(zip(draw.sample([A, B, C], 2), (9000, 9001)))})


@pytest.mark.parametrize("seed", range(4))
def test_random_files(seed, tmp_path):
    draw, compared = random.Random(seed), 0
    for number in range(16):
        folder = tmp_path / str(number)
        folder.mkdir()
        config, files = random_files(draw)
        try:
            compare(folder, config, files)
            compared += 1
        except (AttributeError, TypeError):  # AutoTokenizer refuses them
            continue
    assert compared > 8, compared


def test_ids_of_tokenizer_json_with_gaps_and_out_of_order(tmp_path):
    for ids in ([9000, 9007], [9001, 9000], [5, 5]):
        description = json.loads(SAMPLE.read_text())
        description["added_tokens"] += [{"id": i, **token(c)} for i, c in zip(ids, ["<|new|>", "<|other|>"])]
        ours = CppTokenizer(tmp_path, description)
        theirs = transformers.PreTrainedTokenizerFast(tokenizer_file=str(tmp_path / "tokenizer.json"))
        assert ours.encode([t.encode() for t in TEXTS]) == [theirs(t, add_special_tokens=False)["input_ids"] for t in TEXTS]
