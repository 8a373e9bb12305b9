"""A damaged checkpoint ends oscar-collect with exit code 3 and one sentence that names the file; no output appears."""
import json
import struct

import pytest

from harness import BAD_INPUT, CONFIG, ENVIRONMENT, damaged_copy, make_model, refuse, run, safetensors_bytes, tensors_of, tree


def edit_config(**changes):
    config = CONFIG | changes
    return json.dumps({k: v for k, v in config.items() if v is not Ellipsis})


CONFIGS = {
    "empty": "",
    "not json": "{",
    "truncated": json.dumps(CONFIG)[:100],
    "a list": "[1, 2]",
    "a number": "7",
    "trailing text": json.dumps(CONFIG) + "}",
    "repeated key": json.dumps(CONFIG)[:-1] + ', "hidden_size": 64}',  # the last one counts; the weights have 32
    "deep": '{"a":' * 5000 + "1" + "}" * 5000,
    "deep lists": "[" * 100000,
    "invalid UTF-8": json.dumps(CONFIG).encode().replace(b'"silu"', b'"si\xff\xfeu"'),
    "NaN": json.dumps(CONFIG).replace("1e-06", "NaN"),
    "missing hidden_size": edit_config(hidden_size=...),
    "missing layers": edit_config(num_hidden_layers=...),
    "missing architectures": edit_config(architectures=..., model_type=...),
    "text for a number": edit_config(hidden_size="large"),
    "fraction for a number": edit_config(num_hidden_layers=2.5),
    "null for a number": edit_config(num_attention_heads=None),
    "list for a number": edit_config(head_dim=[64]),
    "zero layers": edit_config(num_hidden_layers=0),
    "negative heads": edit_config(num_attention_heads=-4),
    "zero heads": edit_config(num_key_value_heads=0),
    "heads not divisible": edit_config(num_attention_heads=5),
    "huge layers": edit_config(num_hidden_layers=10**18),
    "huge hidden": edit_config(hidden_size=2**62),
    "beyond 64 bits": json.dumps(CONFIG).replace('"hidden_size": 32', '"hidden_size": 1' + "0" * 40),
    "unknown architecture": edit_config(architectures=["MambaForCausalLM"], model_type="mamba"),
    "unknown activation": edit_config(hidden_act="relu6"),
    "unknown rope": edit_config(rope_scaling={"rope_type": "spiral", "factor": 2.0}),
    "zero theta": edit_config(rope_theta=0),
    "odd head_dim": edit_config(head_dim=63),
}


@pytest.mark.parametrize("case", CONFIGS)
def test_config(case, model, prompts, tmp_path):
    bad = damaged_copy(model, tmp_path / "bad", "config.json", CONFIGS[case])
    out = tmp_path / "out"
    out.mkdir()
    refuse(BAD_INPUT, "collect", "--model", bad, "--prompts", prompts, "-o", out / "s.safetensors", names="config.json")
    assert tree(out) == {}


def weights(change=None, header=None, **options):
    tensors = tensors_of(CONFIG)
    if change is not None:
        tensors = change(tensors) or tensors
    return safetensors_bytes(tensors, header, **options)


def without(name):
    return lambda tensors: {k: v for k, v in tensors.items() if k != name}


def reshaped(name, shape):
    def change(tensors):
        tensors[name] = tensors[name].reshape(-1)[: shape[0] * shape[1]].reshape(shape)

    return change


def entry(name, **changes):
    def change(entries):
        entries[name] = entries[name] | changes

    return change


Q, EMBED = "model.layers.0.self_attn.q_proj.weight", "model.embed_tokens.weight"
GOOD = weights()
WEIGHTS = {
    "empty": b"",
    "seven bytes": GOOD[:7],
    "only the length": GOOD[:8],
    "half a header": GOOD[:200],
    "header but no data": GOOD[: 8 + struct.unpack("<Q", GOOD[:8])[0]],
    "cut in the data": GOOD[:-1],
    "one byte too many": GOOD + b"\0",
    "huge header length": struct.pack("<Q", 2**63) + GOOD[8:],
    "length of all bits": struct.pack("<Q", 2**64 - 1) + GOOD[8:],
    "zero header length": struct.pack("<Q", 0) + GOOD[8:],
    "header is a list": weights(header=lambda e: b"[]"),
    "header is not JSON": weights(header=lambda e: b"{'a'}"),
    "duplicate tensor": weights(header=lambda e: (json.dumps(e)[:-1] + f', "{Q}": {json.dumps(e[Q])}}}').encode()),
    "invalid UTF-8 in a name": weights(header=lambda e: json.dumps(e).encode().replace(b"q_norm", b"q_n\xffrm", 1)),
    "negative offset": weights(header=entry(Q, data_offsets=[-8, 16])),
    "offsets reversed": weights(header=lambda e: {**e, Q: {**e[Q], "data_offsets": e[Q]["data_offsets"][::-1]}}),
    "offset beyond the file": weights(header=entry(Q, data_offsets=[0, 2**60])),
    "offset beyond 64 bits": weights(header=lambda e: json.dumps({**e, Q: {**e[Q], "data_offsets": [0, 10**30]}}).encode()),
    "overlapping tensors": weights(header=lambda e: {**e, Q: {**e[Q], "data_offsets": [0, 256 * 32 * 2]}}),
    "shape does not match bytes": weights(header=entry(Q, shape=[255, 32])),
    "shape overflows": weights(header=entry(Q, shape=[2**32, 2**32, 2**32])),
    "negative shape": weights(header=entry(Q, shape=[-256, -32])),
    "shape of text": weights(header=entry(Q, shape="256x32")),
    "unknown dtype": weights(header=entry(Q, dtype="F12")),
    "integer weights": weights(header=entry(Q, dtype="I16")),
    "missing offsets": weights(header=lambda e: {**e, Q: {"dtype": "F16", "shape": [256, 32]}}),
    "missing tensor": weights(without(Q)),
    "missing norm": weights(without("model.norm.weight")),
    "other shape": weights(reshaped(Q, (128, 32))),
    "embedding too small": weights(reshaped(EMBED, (100, 32))),
}


@pytest.mark.parametrize("case", WEIGHTS)
def test_weights(case, model, prompts, tmp_path):
    bad = damaged_copy(model, tmp_path / "bad", "model.safetensors", WEIGHTS[case])
    out = tmp_path / "out"
    out.mkdir()
    sentence = refuse(BAD_INPUT, "collect", "--model", bad, "--prompts", prompts, "-o", out / "s.safetensors")
    assert "model.safetensors" in sentence or str(bad) in sentence or "model.layers" in sentence or "model." in sentence
    assert tree(out) == {}


@pytest.mark.parametrize("seed", range(12))
def test_flipped_header_bytes(seed, model, prompts, tmp_path):
    """A flipped byte of the header is refused or, where it only renames an unused thing, harmless; never a crash."""
    import random

    random = random.Random(seed)
    data = bytearray(GOOD)
    for _ in range(3):
        data[random.randrange(0, 8 + struct.unpack("<Q", GOOD[:8])[0])] ^= 1 << random.randrange(8)
    bad = damaged_copy(model, tmp_path / "bad", "model.safetensors", bytes(data))
    result = run("collect", "--model", bad, "--prompts", prompts, "-o", tmp_path / "s.safetensors", "--seq-len", 64)
    assert result.code in (0, BAD_INPUT), str(result)
    assert result.code == 0 or len(result.errors()) == 1, str(result)


def nan_weights(tensors):
    tensors[Q][3, 5] = float("nan")


def test_nan_weights(model, prompts, tmp_path):
    bad = damaged_copy(model, tmp_path / "bad", "model.safetensors", weights(nan_weights))
    refuse((BAD_INPUT, 5), "collect", "--model", bad, "--prompts", prompts, "-o", tmp_path / "s.safetensors")
    assert not (tmp_path / "s.safetensors").exists()


def sharded(model, folder, index, files=None):
    damaged_copy(model, folder, "model.safetensors", None)
    tensors = tensors_of(CONFIG)
    names = sorted(tensors)
    half = len(names) // 2
    parts = {"model-00001-of-00002.safetensors": names[:half], "model-00002-of-00002.safetensors": names[half:]}
    for file, held in parts.items():
        if files is None or file in files:
            (folder / file).write_bytes(safetensors_bytes({n: tensors[n] for n in held}))
    table = {"metadata": {"total_size": 1}, "weight_map": {n: f for f, held in parts.items() for n in held}}
    table = index(table) or table
    (folder / "model.safetensors.index.json").write_text(table if isinstance(table, str) else json.dumps(table))
    return folder


def moved(name, file):
    def change(table):
        table["weight_map"][name] = file

    return change


INDEXES = {
    "not json": lambda t: "{",
    "no weight_map": lambda t: {"metadata": {}},
    "weight_map is a list": lambda t: {"weight_map": []},
    "no tensor": lambda t: {"weight_map": {}},
    "parent folder": moved(Q, "../outside.safetensors"),
    "absolute path": moved(Q, "/etc/hostname"),
    "hidden parent": moved(Q, "sub/../../outside.safetensors"),
    "missing shard": moved(Q, "model-00003-of-00002.safetensors"),
    "file is a number": moved(Q, 7),
    "empty name": moved(Q, ""),
    "the folder itself": moved(Q, "."),
    "zero byte": moved(Q, "model\u0000.safetensors"),
}


@pytest.mark.parametrize("case", INDEXES)
def test_shard_index(case, model, prompts, tmp_path):
    (tmp_path / "outside.safetensors").write_bytes(GOOD)
    bad = sharded(model, tmp_path / "bad", INDEXES[case])
    refuse(BAD_INPUT, "collect", "--model", bad, "--prompts", prompts, "-o", tmp_path / "s.safetensors")
    assert not (tmp_path / "s.safetensors").exists()


def test_missing_shard_file(model, prompts, tmp_path):
    bad = sharded(model, tmp_path / "bad", lambda t: None, files={"model-00001-of-00002.safetensors"})
    refuse(BAD_INPUT, "collect", "--model", bad, "--prompts", prompts, "-o", tmp_path / "s", names="model-00002-of-00002")


TOKENIZERS = {
    "empty": "",
    "not json": "{]",
    "no model": "{}",
    "unknown model": '{"model": {"type": "Unigram", "vocab": []}}',
    "vocab of numbers": '{"model": {"type": "BPE", "vocab": [1, 2], "merges": []}}',
    "negative id": '{"model": {"type": "BPE", "vocab": {"a": -1}, "merges": []}}',
    "huge id": '{"model": {"type": "BPE", "vocab": {"a": 99999999999}, "merges": []}}',
    "merge of unknown parts": '{"model": {"type": "BPE", "vocab": {"a": 0}, "merges": ["x y"]}}',
    "deep": '{"model":' * 3000 + "1" + "}" * 3000,
}


@pytest.mark.parametrize("case", TOKENIZERS)
def test_tokenizer(case, model, prompts, tmp_path):
    bad = damaged_copy(model, tmp_path / "bad", "tokenizer.json", TOKENIZERS[case])
    refuse(BAD_INPUT, "collect", "--model", bad, "--prompts", prompts, "-o", tmp_path / "s", names="tokenizer.json")


@pytest.mark.parametrize("name", ["config.json", "model.safetensors", "tokenizer.json"])
def test_missing_file(name, model, prompts, tmp_path):
    bad = damaged_copy(model, tmp_path / "bad", name, None)
    word = "safetensors" if name == "model.safetensors" else name
    refuse(BAD_INPUT, "collect", "--model", bad, "--prompts", prompts, "-o", tmp_path / "s", names=word)


def test_file_is_a_folder(model, prompts, tmp_path):
    bad = damaged_copy(model, tmp_path / "bad", "config.json", None)
    (bad / "config.json").mkdir()
    refuse((BAD_INPUT, ENVIRONMENT), "collect", "--model", bad, "--prompts", prompts, "-o", tmp_path / "s", names="config.json")


def test_no_such_model(prompts, tmp_path):
    refuse(BAD_INPUT, "collect", "--model", tmp_path / "nowhere", "--prompts", prompts, "-o", tmp_path / "s", names="nowhere")


def test_model_not_in_the_hub_cache_prints_the_download_line(prompts, tmp_path):
    import os

    environment = {**os.environ, "HF_HOME": str(tmp_path / "hf"), "HF_HUB_CACHE": str(tmp_path / "hf" / "hub")}
    sentence = refuse(BAD_INPUT, "collect", "--model", "some-org/some-model", "--prompts", prompts, "-o", tmp_path / "s",
                      env=environment)
    assert "hf download some-org/some-model" in sentence


def test_tokenizer_of_a_larger_vocabulary(prompts, tmp_path):
    small = make_model(tmp_path / "small", vocab_size=1000)
    refuse(BAD_INPUT, "collect", "--model", small, "--prompts", prompts, "-o", tmp_path / "s")


@pytest.mark.parametrize("case", ["config", "weights"])
def test_verify_refuses_the_same(case, model, bundle, text, tmp_path):
    name, content = ("config.json", CONFIGS["truncated"]) if case == "config" else ("model.safetensors", WEIGHTS["half a header"])
    bad = damaged_copy(model, tmp_path / "bad", name, content)
    refuse(BAD_INPUT, "verify", "--model", bad, "--bundle", bundle, "--text", text, "--context", 512,
           "--report", tmp_path / "r.json", names=name)
    assert not (tmp_path / "r.json").exists()
