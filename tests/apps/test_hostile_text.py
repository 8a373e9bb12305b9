"""Damaged or unusable prompts and texts: exit code 3, the file and the line named, nothing written."""
import json

import pytest

from harness import BAD_INPUT, USAGE, refuse, run, succeed, tree

GOOD = '{"text": "The pump runs at forty percent of its load."}\n'

PROMPTS = {
    "empty file": b"",
    "only blank lines": b"\n\n  \n",
    "not json": GOOD.encode() + b"{text}\n",
    "truncated row": GOOD.encode() + b'{"text": "abc',
    "row is a list": GOOD.encode() + b"[1, 2]\n",
    "row is a number": b"7\n",
    "no known key": b'{"body": "text"}\n',
    "two kinds in a row": b'{"text": "a", "prompt": "b"}\n',
    "duplicate key": b'{"text": "a", "text": "b"}\n',
    "text is a number": b'{"text": 7}\n',
    "text is null": b'{"text": null}\n',
    "messages is text": b'{"messages": "hello"}\n',
    "messages is empty": b'{"messages": []}\n',
    "message without role": b'{"messages": [{"content": "hello"}]}\n',
    "message without content": b'{"messages": [{"role": "user"}]}\n',
    "unknown role": b'{"messages": [{"role": 3, "content": "hello"}]}\n',
    "input_ids is text": b'{"input_ids": "1 2 3"}\n',
    "input_ids with text": b'{"input_ids": [1, "2"]}\n',
    "input_ids with a fraction": b'{"input_ids": [1, 2.5]}\n',
    "negative id": b'{"input_ids": [1, -2]}\n',
    "id beyond the vocabulary": b'{"input_ids": [1, 8192]}\n',
    "id beyond 64 bits": b'{"input_ids": [1, 99999999999999999999999]}\n',
    "deep": b'{"text": ' + b"[" * 3000 + b"]" * 3000 + b"}\n",
    "invalid UTF-8": b'{"text": "ab\xff\xfe"}\n',
    "binary": bytes(range(256)) * 8,
    "only empty texts": b'{"text": ""}\n{"text": ""}\n',
}


@pytest.mark.parametrize("case", PROMPTS)
def test_prompts(case, model, tmp_path):
    file = tmp_path / "prompts.jsonl"
    file.write_bytes(PROMPTS[case])
    before = tree(tmp_path)
    refuse(BAD_INPUT, "collect", "--model", model, "--prompts", file, "-o", tmp_path / "s.safetensors", names="prompts.jsonl")
    assert tree(tmp_path) == before


def test_the_line_is_named(model, tmp_path):
    file = tmp_path / "prompts.jsonl"
    file.write_text(GOOD * 4 + '{"text": 5}\n' + GOOD)
    sentence = refuse(BAD_INPUT, "collect", "--model", model, "--prompts", file, "-o", tmp_path / "s.safetensors")
    assert "prompts.jsonl:5" in sentence, sentence


def test_missing_prompts(model, tmp_path):
    refuse(BAD_INPUT, "collect", "--model", model, "--prompts", tmp_path / "no.jsonl", "-o", tmp_path / "s", names="no.jsonl")


def test_prompts_are_a_folder(model, tmp_path):
    refuse((BAD_INPUT, 4), "collect", "--model", model, "--prompts", tmp_path, "-o", tmp_path / "s")


def test_unknown_extension(model, tmp_path):
    file = tmp_path / "prompts.csv"
    file.write_text(GOOD)
    refuse((BAD_INPUT, USAGE), "collect", "--model", model, "--prompts", file, "-o", tmp_path / "s", names="prompts.csv")


def test_a_prompt_longer_than_the_context_is_reported_not_cut_in_silence(model, tmp_path):
    file = tmp_path / "prompts.jsonl"
    file.write_text(json.dumps({"input_ids": [100 + i % 900 for i in range(3000)]}) + "\n" + GOOD)
    result = run("collect", "--model", model, "--prompts", file, "-o", tmp_path / "s.safetensors", "--seq-len", 128)
    # Used in pieces with a message, or refused: the text must say which.
    assert result.code in (0, BAD_INPUT), str(result)
    assert any(word in result.err + result.out for word in ("3000", "pieces", "split", "longer")), str(result)


def test_seq_len_beyond_the_model_is_said(model, prompts, tmp_path):
    result = succeed("collect", "--model", model, "--prompts", prompts, "-o", tmp_path / "s", "--seq-len", 100000)
    assert "1024" in result.err, str(result)


def test_some_rows_empty_is_said(model, tmp_path):
    file = tmp_path / "prompts.jsonl"
    file.write_text(GOOD + '{"text": ""}\n' + GOOD)
    result = succeed("collect", "--model", model, "--prompts", file, "-o", tmp_path / "s.safetensors")
    assert "prompts.jsonl:2" in result.err, str(result)


TEXTS = {"empty": b"", "one word": b"word", "blank": b"\n\n\n"}


@pytest.mark.parametrize("case", TEXTS)
def test_text_too_short(case, model, bundle, tmp_path):
    file = tmp_path / "text.txt"
    file.write_bytes(TEXTS[case])
    before = tree(tmp_path)
    refuse((BAD_INPUT, USAGE), "verify", "--model", model, "--bundle", bundle, "--text", file, "--context", 512,
           "--report", tmp_path / "r.json", "--html", tmp_path / "r.html", names="text.txt")
    assert tree(tmp_path) == before


def test_missing_text(model, bundle, tmp_path):
    refuse(BAD_INPUT, "verify", "--model", model, "--bundle", bundle, "--text", tmp_path / "no.txt", "--context", 512, names="no.txt")


def test_context_beyond_the_model(model, bundle, text, tmp_path):
    refuse((USAGE, BAD_INPUT), "verify", "--model", model, "--bundle", bundle, "--text", text, "--context", 4096, names="1024")


def test_context_inside_the_windows(model, bundle, text, tmp_path):
    """With 64 + 256 tokens in BF16 a context of 256 holds nothing quantised: the run would prove nothing."""
    refuse((USAGE, BAD_INPUT), "verify", "--model", model, "--bundle", bundle, "--text", text, "--context", 256)


def test_text_with_invalid_utf8_is_read_like_python_does(model, bundle, text, tmp_path):
    file = tmp_path / "text.txt"
    file.write_bytes(text.read_bytes()[:2000] + b"\xff\xfe\x80" + text.read_bytes()[2000:])
    result = run("verify", "--model", model, "--bundle", bundle, "--text", file, "--context", 512, "--methods", "oscar")
    assert result.code in (0, BAD_INPUT), str(result)
