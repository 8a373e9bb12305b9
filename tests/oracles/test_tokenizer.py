"""Token ids and decoded text equal those of the Python package `tokenizers`."""

import json
import os
import pathlib
import random

import pytest

tokenizers = pytest.importorskip("tokenizers")

from cpp_tokenizer import CppTokenizer
from text_corpus import corpus
from tokenizer_zoo import added_token_zoo, build_zoo

ROOT = pathlib.Path(__file__).resolve().parents[2]
SAMPLE = ROOT / "sample_data/tiny-qwen3/tokenizer.json"
# Strings for each tokenizer. A longer comparison by hand: OSCAR_CORPUS=50000 pytest test_tokenizer.py
COUNT = int(os.environ.get("OSCAR_CORPUS", "10000"))

compared = {"texts": 0, "bytes": 0, "tokens": 0}


@pytest.fixture(scope="module", autouse=True)
def summary():
    yield
    print("\ncompared {texts} texts, {bytes} bytes, {tokens} tokens".format(**compared))


def compare(folder, description, texts, decode=True):
    text = description if isinstance(description, str) else json.dumps(description)
    theirs = tokenizers.Tokenizer.from_str(text)
    ours = CppTokenizer(folder, text)
    strings = [t.decode(errors="replace") for t in texts]
    for special in (False, True) if decode else (False,):
        encoded = ours.encode(texts, special)
        expected = [e.ids for e in theirs.encode_batch(strings, add_special_tokens=special)]
        for raw, got, want in zip(texts, encoded, expected):
            assert got == want, raw
        compared["tokens"] += sum(map(len, encoded))
    compared["texts"] += len(texts)
    compared["bytes"] += sum(map(len, texts))
    if not decode:
        return
    rng = random.Random(5)
    size = theirs.get_vocab_size(with_added_tokens=True)
    rows = expected[: len(expected) // 2] + [[rng.randrange(size + 3) for _ in range(rng.randint(0, 12))] for _ in range(400)]
    for keep in (False, True):
        for row, got in zip(rows, ours.decode(rows, keep)):
            assert got == theirs.decode(row, skip_special_tokens=not keep), row


def test_sample_tokenizer(tmp_path):
    texts = corpus(COUNT, ["<|im_start|>", "<|im_end|>", "<|endoftext|>"])
    compare(tmp_path, SAMPLE.read_text(), texts)


@pytest.fixture(scope="module")
def zoo():
    return build_zoo()


NAMES = [
    "gpt2", "gpt2-prefix-space", "gpt2-split", "starcoder", "llama3", "qwen2", "tekken", "han", "nfd-lower", "nfkd-strip",
    "deepseek", "llama2", "llama2-first", "mistral", "metaspace-never", "gemma", "unknown-fused", "unknown-single",
    "whitespace", "no-unknown", "merges-as-lines", "byte-level-normalizer", "unigram-charsmap", "unigram-bytes",
    "unigram-some-bytes", "unigram-words", "unigram-ties", "unigram-positive",
]  # fmt: skip


def test_zoo_is_complete(zoo):
    assert sorted(zoo) == sorted(NAMES)


@pytest.mark.parametrize("name", NAMES)
def test_kinds(tmp_path, zoo, name):
    description = zoo[name]
    specials = [t["content"] for t in description["added_tokens"]]
    compare(tmp_path, description, corpus(COUNT, specials, seed=len(name)))


@pytest.mark.parametrize("kind", ["added-special", "added-plain"])
def test_added_tokens(tmp_path, kind):
    description, contents = added_token_zoo()[kind]
    rng = random.Random(11)
    between = ["", " ", "  ", "\n", "a", "_", "\u00e9", "\u3000", "-", "\t\n", "9", "\u200d"]
    texts = corpus(COUNT, contents)
    for _ in range(COUNT):
        parts = []
        for _ in range(rng.randint(1, 6)):
            content = rng.choice(contents)
            parts += [rng.choice(between), rng.choice([content, content.upper(), content.lower()]), rng.choice(between)]
        texts.append("".join(parts).encode())
    compare(tmp_path, description, texts)


def bytes_only(pre_tokenizers, normalizer=None):
    """One token for each byte; a space put before every word makes the words visible."""
    alphabet = json.loads(SAMPLE.read_text())["model"]["vocab"]
    prefix = {"type": "ByteLevel", "add_prefix_space": True, "trim_offsets": True, "use_regex": False}
    return {
        "version": "1.0",
        "added_tokens": [],
        "normalizer": normalizer,
        "pre_tokenizer": {"type": "Sequence", "pretokenizers": [*pre_tokenizers, prefix]},
        "model": {"type": "BPE", "vocab": {t: i for t, i in alphabet.items() if i < 256}, "merges": []},
    }


@pytest.mark.parametrize("behavior", ["Removed", "Isolated", "MergedWithPrevious", "MergedWithNext", "Contiguous"])
@pytest.mark.parametrize("invert", [False, True])
@pytest.mark.parametrize(
    "pattern", [{"String": "a"}, {"String": " "}, {"String": ".."}, {"Regex": r"\s"}, {"Regex": r"\w*"}, {"Regex": r"(?=\d)|b+"}]
)
def test_split(tmp_path, behavior, invert, pattern):
    rng = random.Random(2)
    texts = ["".join(rng.choices("aab  .1b\u00e9\u6771\n", k=rng.randint(0, 14))).encode() for _ in range(300)]
    split = {"type": "Split", "pattern": pattern, "behavior": behavior, "invert": invert}
    compare(tmp_path, bytes_only([split]), texts, decode=False)


# Everything up to the last assigned letter, and the tags and selectors of plane 14; of the long runs of ideographs and
# syllables, whose members are alike, one in eleven.
RUNS = [(0x3500, 0x4D00), (0x4F00, 0x9E00), (0xAD00, 0xD600), (0xE100, 0xF800), (0x20100, 0x2A600), (0x2AA00, 0x2F700)]
POINTS = [*range(1, 10), *range(11, 0xD800), *range(0xE000, 0x32400), *range(0xE0000, 0xE0200)]
ASSIGNED = [c for c in POINTS if c % 11 == 0 or not any(first <= c < last for first, last in RUNS)]


def every_character(make):
    lines = [make(chr(c)) for c in ASSIGNED]
    return ["\n".join(lines[i : i + 512]).encode() for i in range(0, len(lines), 512)]


@pytest.mark.parametrize("form", ["NFC", "NFD", "NFKC", "NFKD", "Lowercase", "StripAccents"])
def test_every_character_normalized(tmp_path, form):
    # The marks around the character show its combining class.
    for make in (lambda c: c, lambda c: "\u0301" + c + "\u0323"):
        compare(tmp_path, bytes_only([], {"type": form}), every_character(make), decode=False)


@pytest.mark.parametrize(
    "step",
    [
        {"type": "Whitespace"},
        {"type": "WhitespaceSplit"},
        {"type": "Punctuation"},
        {"type": "Digits", "individual_digits": True},
        {"type": "Split", "pattern": {"Regex": r"\p{Lu}|\p{Ll}+|\p{Lm}{2}"}, "behavior": "Isolated", "invert": False},
        {"type": "Split", "pattern": {"Regex": r"\p{N}|\p{M}+|\p{P}"}, "behavior": "Isolated", "invert": False},
        {"type": "Split", "pattern": {"Regex": r"\s+|\p{Han}+|\p{S}"}, "behavior": "Isolated", "invert": False},
    ],
    ids=lambda step: step["type"] + step.get("pattern", {}).get("Regex", ""),
)
def test_every_character_split(tmp_path, step):
    compare(tmp_path, bytes_only([step]), every_character(lambda c: "\u4e00a" + c + "a" + c + c), decode=False)


def test_long_texts(tmp_path, zoo):
    rng = random.Random(9)
    for name in ("qwen2", "llama2"):
        texts = [unit * 20000 for unit in (b"a", b" ", b"\n", b"ab", b"stran", "\u8a9e".encode(), b"0", b"! ")]
        texts.append("".join(rng.choices("abcdefghij \n", k=200000)).encode())
        compare(tmp_path, zoo[name], texts, decode=False)
