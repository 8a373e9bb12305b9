"""Tokens beside tokenizer.json (tokenizer_config.json, special_tokens_map.json, added_tokens.json): ids of AutoTokenizer."""
import json

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


@pytest.mark.parametrize("names", [["special_tokens_map.json"], ["added_tokens.json"], ["special_tokens_map.json", "added_tokens.json"]])
@pytest.mark.parametrize("config", ["nothing", "added_tokens_decoder"])
def test_older_files(names, config, tmp_path):
    compare(tmp_path, CONFIG[config], {name: FILES[name] for name in names})


def test_ids_of_tokenizer_json_with_gaps_and_out_of_order(tmp_path):
    for ids in ([9000, 9007], [9001, 9000], [5, 5]):
        description = json.loads(SAMPLE.read_text())
        description["added_tokens"] += [{"id": i, **token(c)} for i, c in zip(ids, ["<|new|>", "<|other|>"])]
        ours = CppTokenizer(tmp_path, description)
        theirs = transformers.PreTrainedTokenizerFast(tokenizer_file=str(tmp_path / "tokenizer.json"))
        assert ours.encode([t.encode() for t in TEXTS]) == [theirs(t, add_special_tokens=False)["input_ids"] for t in TEXTS]
