"""Tokenizers of the kinds that published models use, trained here on text written by program."""

import json
import random

from charsmap_bytes import charsmap, nfkc_replacements
from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers

GPT2_STYLE = r"'(?:[sdmt]|ll|ve|re)| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
LLAMA3_STYLE = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+"
    r"|\s+(?!\S)|\s+"
)
QWEN_STYLE = LLAMA3_STYLE.replace("{1,3}", "")
CASED_STYLE = (
    r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+"
    r"|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*"
    r"|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
HAN_STYLE = r"[\p{Han}&&[\p{L}]]+|[^\p{Han}\s]+|\s+"


def training_text(lines=1500, seed=3):
    """Pronounceable words, numbers, code and a little of other scripts, with a long-tailed distribution."""
    rng = random.Random(seed)
    syllables = [a + b + c for a in "b d f g k l m n p r s t st tr".split() for b in "aeiou" for c in ["", "n", "r", "st"]]
    nouns = ["".join(rng.choices(syllables, k=rng.randint(1, 3))) for _ in range(400)]
    other = ["\u043f\u0440\u0438\u0432\u0435\u0442", "\u6771\u4eac", "\u4e16\u754c", "\u00e9t\u00e9", "\u03bb\u03cc\u03b3\u03bf\u03c2",
             "\U0001f600", "\ud55c\uad6d", "caf\u00e9", "\u0928\u092e", "\u2019s", "don't", "we'll"]  # fmt: skip
    out = []
    for _ in range(lines):
        words = [nouns[min(int(rng.expovariate(0.02)), 399)] for _ in range(rng.randint(3, 12))]
        if rng.random() < 0.3:
            words.insert(rng.randint(0, len(words)), rng.choice(other))
        if rng.random() < 0.3:
            words.append(str(rng.randint(0, 99999)))
        if rng.random() < 0.2:
            words[0] = "    return " + words[0] + "(x)\n"
        if rng.random() < 0.3:
            words[0] = words[0].capitalize()
        out.append(" ".join(words) + rng.choice([".", "!", "?", ";\n", "...", "  ", "\n\n"]))
    return out


def special(content, **flags):
    return AddedToken(content, special=True, normalized=False, **flags)


def byte_level(pattern, normalizer=None, specials=("<|end|>", "<|start|>"), prefix=False, digits=False, **model):
    tokenizer = Tokenizer(models.BPE(**model))
    steps = []
    if digits:
        steps.append(pre_tokenizers.Digits(individual_digits=True))
    if pattern is not None:
        steps.append(pre_tokenizers.Split(Regex(pattern), "isolated"))
    steps.append(pre_tokenizers.ByteLevel(add_prefix_space=prefix, use_regex=pattern is None))
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(steps) if len(steps) > 1 else steps[0]
    if normalizer is not None:
        tokenizer.normalizer = normalizer
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.post_processor = processors.ByteLevel(trim_offsets=False)
    trainer = trainers.BpeTrainer(
        vocab_size=1200,
        show_progress=False,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        special_tokens=[special(s) for s in specials],
    )
    tokenizer.train_from_iterator(training_text(), trainer)
    return json.loads(tokenizer.to_str())


def with_bos(description, bos, before_byte_level=True):
    template = {
        "type": "TemplateProcessing",
        "single": [{"SpecialToken": {"id": bos, "type_id": 0}}, {"Sequence": {"id": "A", "type_id": 0}}],
        "pair": [
            {"SpecialToken": {"id": bos, "type_id": 0}},
            {"Sequence": {"id": "A", "type_id": 0}},
            {"SpecialToken": {"id": bos, "type_id": 1}},
            {"Sequence": {"id": "B", "type_id": 1}},
        ],
        "special_tokens": {bos: {"id": bos, "ids": [token_id(description, bos)], "tokens": [bos]}},
    }
    steps = [description["post_processor"], template] if description["post_processor"] else [template]
    description["post_processor"] = {"type": "Sequence", "processors": steps}
    return description


def token_id(description, content):
    for token in description["added_tokens"]:
        if token["content"] == content:
            return token["id"]
    return description["model"]["vocab"][content]


def whole_words(description, words):
    """Puts words into the vocabulary that no merge makes: ignore_merges must find them."""
    vocab = description["model"]["vocab"]
    for word in words:
        if word not in vocab:
            vocab[word] = max(vocab.values()) + 1
    description["model"]["ignore_merges"] = True
    return description


def byte_fallback(fuse_unk=True, all_bytes=True, specials=("<unk>", "<s>", "</s>")):
    """Characters and merges over text with spaces as U+2581, then the 256 byte tokens."""
    tokenizer = Tokenizer(models.BPE(unk_token="<unk>", fuse_unk=fuse_unk))
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace()
    trainer = trainers.BpeTrainer(vocab_size=900, show_progress=False, special_tokens=[special(s) for s in specials])
    tokenizer.train_from_iterator(training_text(), trainer)
    description = json.loads(tokenizer.to_str())
    model = description["model"]
    model["byte_fallback"] = True
    for byte in range(256 if all_bytes else 0xC4):
        model["vocab"][f"<0x{byte:02X}>"] = len(model["vocab"])
    description["pre_tokenizer"] = None
    description["decoder"] = {
        "type": "Sequence",
        "decoders": [
            {"type": "Replace", "pattern": {"String": "\u2581"}, "content": " "},
            {"type": "ByteFallback"},
            {"type": "Fuse"},
            {"type": "Strip", "content": " ", "start": 1, "stop": 0},
        ],
    }
    return description


def unigram(normalizer=None, pre_tokenizer=None, specials=("<unk>", "<s>", "</s>"), byte_tokens=0):
    """A trained Unigram model; with byte_tokens = n, byte fallback with tokens for the first n bytes."""
    tokenizer = Tokenizer(models.Unigram())
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace()
    trainer = trainers.UnigramTrainer(
        vocab_size=700, show_progress=False, special_tokens=[special(s) for s in specials], unk_token="<unk>"
    )
    tokenizer.train_from_iterator(training_text(), trainer)
    description = json.loads(tokenizer.to_str())
    description["model"]["vocab"] += [[f"<0x{byte:02X}>", 0.0] for byte in range(byte_tokens)]
    description["model"]["byte_fallback"] = byte_tokens > 0
    description["normalizer"] = normalizer
    description["pre_tokenizer"] = pre_tokenizer
    description["decoder"] = {"type": "Metaspace", "replacement": "\u2581", "prepend_scheme": "always", "split": True}
    return description


def metaspace(scheme, split=True):
    return {"type": "Metaspace", "replacement": "\u2581", "prepend_scheme": scheme, "split": split}


def scored(scores, seed, length=60):
    """A Unigram model over few letters and few different scores, so that many paths are equally good."""
    rng = random.Random(seed)
    pieces = ["<unk>", *"abe \u00e9", *{"".join(rng.choices("abe \u00e9", k=rng.randint(2, 5))) for _ in range(length)}]
    vocab = [[piece, rng.choice(scores)] for piece in pieces]
    vocab.append([pieces[7], scores[0]])  # a piece that is listed twice
    model = {"type": "Unigram", "unk_id": 0, "vocab": vocab, "byte_fallback": False}
    return {"version": "1.0", "added_tokens": [], "normalizer": None, "pre_tokenizer": None, "post_processor": None,
            "decoder": None, "model": model}  # fmt: skip


def unigram_zoo():
    zoo = {}
    # The pipeline of T5 and XLM-RoBERTa, and that of Llama-like models with Unigram pieces.
    rules = {"type": "Precompiled", "precompiled_charsmap": charsmap(nfkc_replacements())}
    spaces = {"type": "Replace", "pattern": {"Regex": " {2,}"}, "content": " "}
    zoo["unigram-charsmap"] = unigram(
        {"type": "Sequence", "normalizers": [rules, spaces]},
        {"type": "Sequence", "pretokenizers": [{"type": "WhitespaceSplit"}, metaspace("always")]},
    )
    zoo["unigram-charsmap"]["post_processor"] = {
        "type": "RobertaProcessing", "sep": ["</s>", 2], "cls": ["<s>", 1], "trim_offsets": True, "add_prefix_space": True,
    }  # fmt: skip
    zoo["unigram-bytes"] = with_bos(unigram(sentencepiece_normalizer(), byte_tokens=256), "<s>")
    zoo["unigram-bytes"]["decoder"] = byte_fallback()["decoder"]
    zoo["unigram-some-bytes"] = unigram({"type": "Nmt"}, metaspace("first", split=False), byte_tokens=0xC4)
    zoo["unigram-words"] = unigram({"type": "NFKC"}, metaspace("always"))
    zoo["unigram-words"]["post_processor"] = {"type": "BertProcessing", "sep": ["</s>", 2], "cls": ["<s>", 1]}
    zoo["unigram-ties"] = scored([-1.0, -2, -3.0], seed=1)
    zoo["unigram-positive"] = scored([0, 30.5, -0.5, 40], seed=2)
    del zoo["unigram-positive"]["model"]["type"]
    return zoo


def sentencepiece_normalizer():
    return {
        "type": "Sequence",
        "normalizers": [
            {"type": "Prepend", "prepend": "\u2581"},
            {"type": "Replace", "pattern": {"String": " "}, "content": "\u2581"},
        ],
    }


def build_zoo():
    """Name -> tokenizer.json as a dictionary."""
    zoo = {}
    zoo["gpt2"] = byte_level(None)
    zoo["gpt2-prefix-space"] = byte_level(None, prefix=True)
    zoo["gpt2-split"] = byte_level(GPT2_STYLE)
    zoo["starcoder"] = byte_level(None, digits=True)
    zoo["llama3"] = with_bos(whole_words(byte_level(LLAMA3_STYLE), ["\u0120wholeword", "\u0120zq", "qz"]), "<|start|>")
    zoo["qwen2"] = byte_level(QWEN_STYLE, normalizers.NFC())
    zoo["tekken"] = byte_level(CASED_STYLE, specials=["<unk>", "<s>", "</s>", "[INST]", "[/INST]"])
    zoo["han"] = byte_level(HAN_STYLE, normalizers.NFKC())
    zoo["nfd-lower"] = byte_level(QWEN_STYLE, normalizers.Sequence([normalizers.NFD(), normalizers.Lowercase()]))
    zoo["nfkd-strip"] = byte_level(
        QWEN_STYLE, normalizers.Sequence([normalizers.NFKD(), normalizers.StripAccents(), normalizers.Strip()])
    )

    deepseek = byte_level(QWEN_STYLE)
    deepseek["pre_tokenizer"] = json.loads(
        pre_tokenizers.Sequence(
            [
                pre_tokenizers.Split(Regex(r"\p{N}{1,3}"), "isolated"),
                pre_tokenizers.Split(Regex("[\u4e00-\u9fa5\u3040-\u309f\u30a0-\u30ff]+"), "isolated"),
                pre_tokenizers.Split(Regex(r"[!-/:-~]?[A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+| ?[\p{P}\p{S}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"), "isolated"),
                pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
            ]
        ).__getstate__()
    )  # fmt: skip
    zoo["deepseek"] = deepseek

    zoo.update(metaspace_zoo())
    zoo.update(unknown_token_zoo())
    legacy = json.loads(json.dumps(zoo["qwen2"]))
    legacy["model"]["merges"] = ["#version: 0.2"] + [" ".join(pair) for pair in legacy["model"]["merges"]]
    del legacy["model"]["type"]
    zoo["merges-as-lines"] = legacy

    normalized = byte_level(None, normalizers.ByteLevel())
    normalized["pre_tokenizer"] = None
    zoo["byte-level-normalizer"] = normalized
    zoo.update(unigram_zoo())
    return zoo


def metaspace_zoo():
    """Tokenizers with bytes for what they do not know, and a sign in place of spaces."""
    zoo = {}
    llama2 = with_bos(byte_fallback(), "<s>")
    llama2["normalizer"] = sentencepiece_normalizer()
    zoo["llama2"] = llama2

    first = with_bos(byte_fallback(), "<s>")
    first["pre_tokenizer"] = {"type": "Metaspace", "replacement": "\u2581", "prepend_scheme": "first", "split": False}
    zoo["llama2-first"] = first

    mistral = with_bos(byte_fallback(fuse_unk=False), "<s>")
    mistral["pre_tokenizer"] = {"type": "Metaspace", "replacement": "\u2581", "prepend_scheme": "always", "split": True}
    mistral["decoder"] = mistral["pre_tokenizer"]
    zoo["mistral"] = mistral

    never = byte_fallback()
    never["pre_tokenizer"] = {"type": "Metaspace", "replacement": "\u2581", "prepend_scheme": "never", "split": True}
    never["decoder"] = None
    zoo["metaspace-never"] = never

    gemma = byte_fallback(specials=["<pad>", "<eos>", "<bos>", "<unk>", "\n\n", "\n\n\n", "\u2581\u2581"])
    gemma["normalizer"] = {"type": "Replace", "pattern": {"String": " "}, "content": "\u2581"}
    gemma["pre_tokenizer"] = {
        "type": "Split", "pattern": {"String": " "}, "behavior": "MergedWithPrevious", "invert": False,
    }  # fmt: skip
    zoo["gemma"] = with_bos(gemma, "<bos>")
    return zoo


def unknown_token_zoo():
    """Tokenizers that do not know every character."""
    zoo = {}
    for name, fuse in [("unknown-fused", True), ("unknown-single", False)]:
        partial = byte_fallback(fuse_unk=fuse, all_bytes=False)
        partial["pre_tokenizer"] = {"type": "WhitespaceSplit"}
        zoo[name] = partial
    plain = byte_fallback(fuse_unk=True)
    plain["model"]["byte_fallback"] = False
    plain["normalizer"] = {"type": "Replace", "pattern": {"Regex": r"\s+"}, "content": " "}
    plain["pre_tokenizer"] = {"type": "Sequence", "pretokenizers": [{"type": "Whitespace"}, {"type": "Punctuation"}]}
    zoo["whitespace"] = plain
    without = byte_fallback()
    without["model"].update(byte_fallback=False, unk_token=None)
    without["pre_tokenizer"] = {
        "type": "Sequence",
        "pretokenizers": [{"type": "Digits", "individual_digits": False}, {"type": "Punctuation", "behavior": "Contiguous"}],
    }  # fmt: skip
    zoo["no-unknown"] = without
    return zoo


def added_token_zoo():
    """Every combination of the flags of an added token, over a lower-casing normalizer. No token of white space has
    lstrip: the Python package panics where one lies in space that the token before it has stripped."""
    flags = [(w, left, right, norm) for w in (0, 1) for left in (0, 1) for right in (0, 1) for norm in (0, 1)]
    zoo = {}
    for kind in ("special", "plain"):
        description = byte_level(QWEN_STYLE, normalizers.Sequence([normalizers.NFC(), normalizers.Lowercase()]))
        vocab = len(description["model"]["vocab"])
        contents = []
        for i, (word, left, right, norm) in enumerate(flags):
            contents += [f"Mark{i:02d}", f"<tag {i}>"][i % 2 :][:1]
            description["added_tokens"].append(
                {
                    "id": vocab + i,
                    "content": contents[-1],
                    "single_word": bool(word),
                    "lstrip": bool(left),
                    "rstrip": bool(right),
                    "normalized": bool(norm),
                    "special": kind == "special",
                }
            )
        more = ["<|end|>x", "<|en", "Mark0", "  ", "\n\n", "\u00c9t\u00e9", "E\u0301T", "a b"]
        for i, content in enumerate(more):
            description["added_tokens"].append(
                {"id": vocab + len(flags) + i, "content": content, "single_word": False, "lstrip": False, "rstrip": i == 3,
                 "normalized": i % 2 == 1, "special": kind == "special"}
            )  # fmt: skip
        zoo["added-" + kind] = (description, contents + more)
    return zoo
