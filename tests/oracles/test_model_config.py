"""config.json as we read it against transformers: defaults, both spellings, rope, windows, biases."""
import copy
import itertools
import json
import math
import re

import pytest

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")
from conftest import SOURCE_DIR  # noqa: E402
from transformers import AutoConfig, AutoModelForCausalLM  # noqa: E402
from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS  # noqa: E402

SMALL = {
    "vocab_size": 96, "hidden_size": 48, "intermediate_size": 80, "num_hidden_layers": 3, "num_attention_heads": 4,
}
ARCHITECTURES = {
    "llama": "LlamaForCausalLM", "mistral": "MistralForCausalLM", "qwen2": "Qwen2ForCausalLM",
    "qwen3": "Qwen3ForCausalLM",
}
ROPES = {
    "none": {},
    "v4 theta": {"rope_theta": 500000.0},
    "v4 integer theta": {"rope_theta": 1000000, "rope_scaling": None},
    "v4 linear, old key": {"rope_theta": 5e4, "rope_scaling": {"type": "linear", "factor": 4}},
    "v4 llama3": {"rope_theta": 5e5, "rope_scaling": {
        "rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
        "original_max_position_embeddings": 512}},
    "v4 yarn": {"rope_theta": 1e6, "max_position_embeddings": 4096, "rope_scaling": {
        "rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 1024}},
    "v4 yarn, both types": {"rope_theta": 1e6, "rope_scaling": {
        "rope_type": "yarn", "type": "yarn", "factor": 2.5, "beta_fast": 16, "beta_slow": 2, "truncate": False,
        "original_max_position_embeddings": 64, "attention_factor": 1.75}},
    "v4 yarn, mscale": {"rope_scaling": {
        "type": "yarn", "factor": 40, "original_max_position_embeddings": 128, "mscale": 1.0, "mscale_all_dim": 0.8}},
    "v4 yarn, length of the model": {"max_position_embeddings": 300, "rope_scaling": {"type": "yarn", "factor": 2}},
    "v4 llama3, length beside": {"original_max_position_embeddings": 77, "rope_scaling": {
        "rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0}},
    "v4 llama3, both lengths": {"original_max_position_embeddings": 77, "rope_scaling": {
        "rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
        "original_max_position_embeddings": 512}},
    "v4 yarn, factor null": {"max_position_embeddings": 600, "rope_scaling": {
        "type": "yarn", "factor": None, "original_max_position_embeddings": 100}},
    "v5 default": {"rope_parameters": {"rope_type": "default", "rope_theta": 7e5}},
    "v5 without type": {"rope_parameters": {"rope_theta": 123456}},
    "v5 without theta": {"rope_theta": 3e4, "rope_parameters": {"rope_type": "linear", "factor": 3.0}},
    "v5 yarn": {"rope_parameters": {
        "rope_type": "yarn", "rope_theta": 2e5, "factor": 8.0, "original_max_position_embeddings": 256,
        "beta_fast": 0, "beta_slow": None, "attention_factor": None}},
    "v4 longrope, length beside": {"head_dim": 12, "original_max_position_embeddings": 64, "max_position_embeddings": 512, "rope_scaling": {
        "type": "longrope", "short_factor": [1.0 + j / 8 for j in range(6)], "long_factor": [2.0 + j for j in range(6)]}},
    "v5 longrope": {"head_dim": 12, "rope_parameters": {
        "rope_type": "longrope", "rope_theta": 2e5, "factor": 8.0, "original_max_position_embeddings": 256,
        "short_factor": [1] * 6, "long_factor": [4.5] * 6, "attention_factor": 1.25}},
    "v4 dynamic": {"rope_theta": 1e5, "max_position_embeddings": 96, "rope_scaling": {"type": "dynamic", "factor": 3}},
    "both": {"rope_theta": 11111.0, "rope_scaling": {"rope_type": "linear", "factor": 2.0},
             "rope_parameters": {"rope_type": "linear", "factor": 3.0, "rope_theta": 22222.0}},
    "empty scaling": {"rope_scaling": {}, "rope_parameters": {"rope_type": "linear", "factor": 3.0, "rope_theta": 9e4}},
}
SHAPES = {
    "none": {},
    "kv": {"num_key_value_heads": 2},
    "kv null": {"num_key_value_heads": None},
    "head_dim": {"num_key_value_heads": 1, "head_dim": 16},
    "bias": {"num_key_value_heads": 4, "attention_bias": True, "mlp_bias": True},
    "tied": {"num_key_value_heads": 4, "tie_word_embeddings": True, "rms_norm_eps": 1e-5, "hidden_act": "silu"},
    "tokens": {"num_key_value_heads": 4, "bos_token_id": 5, "eos_token_id": [6, 7], "dtype": "bfloat16"},
    "tokens -1": {"num_key_value_heads": 4, "bos_token_id": -1, "eos_token_id": -1},
    "tokens null": {"num_key_value_heads": 4, "bos_token_id": None, "eos_token_id": None, "torch_dtype": "float16"},
}
WINDOWS = {
    "none": {},
    "null": {"sliding_window": None},
    "off": {"use_sliding_window": False, "sliding_window": 64, "max_window_layers": 0},
    "off and 0": {"use_sliding_window": False, "sliding_window": 0},
    "full and 0": {"sliding_window": 0, "layer_types": ["full_attention"] * 3},
    "all": {"use_sliding_window": True, "sliding_window": 64, "max_window_layers": 0},
    "last": {"use_sliding_window": True, "sliding_window": 33, "max_window_layers": 2},
    "above": {"use_sliding_window": True, "sliding_window": 33, "max_window_layers": 28},
    "no size": {"use_sliding_window": True, "max_window_layers": 1},
    "types": {"use_sliding_window": True, "sliding_window": 12,
              "layer_types": ["sliding_attention", "full_attention", "sliding_attention"]},
    "types full": {"use_sliding_window": False, "sliding_window": None, "layer_types": ["full_attention"] * 3},
}


def cases():
    for family in ARCHITECTURES:
        for group, options in (("rope", ROPES), ("shape", SHAPES), ("window", WINDOWS)):
            for name, extra in options.items():
                if family == "mistral" and name == "kv null":
                    continue  # version 5 refuses it, version 4 read it as one KV head for each query head
                if family == "mistral" and name == "off and 0":
                    continue  # it has no switch, and in a window of no tokens nothing is visible: refused
                config = {"architectures": [ARCHITECTURES[family]], "model_type": family, **SMALL, **extra}
                if "layer_types" in extra:
                    config["head_dim"] = 12  # Ministral, which Mistral becomes with layer_types, needs it written
                config.setdefault("num_key_value_heads", 4 if group != "shape" else None)
                if group == "shape" and "num_key_value_heads" not in extra:
                    del config["num_key_value_heads"]
                    config["num_attention_heads"] = 32  # the class default of KV heads must divide it
                    config["hidden_size"] = 128
                yield f"{family}/{group}/{name}", config


def expected_windows(config, theirs):
    layers = theirs.num_hidden_layers
    if config["model_type"] == "llama":
        return [0] * layers  # LlamaModel builds one full mask whatever the configuration holds
    types = getattr(theirs, "layer_types", None)
    window = getattr(theirs, "sliding_window", None)
    if types is None:
        types = ["sliding_attention" if window is not None else "full_attention"] * layers
    return [window if t == "sliding_attention" else 0 for t in types]


def test_configs_agree(tool, tmp_path):
    names, configs, paths = [], [], []
    for name, config in cases():
        path = tmp_path / f"{len(paths)}" / "config.json"
        path.parent.mkdir()
        path.write_text(json.dumps(config))
        names.append(name)
        configs.append(config)
        paths.append(path)
    ours = tool("checkpoint_tool", "config", *paths).splitlines()
    assert len(ours) == len(names)
    for name, config, path, line in zip(names, configs, paths, ours):
        assert line.startswith("{"), (name, line)
        mine = json.loads(line)
        theirs = AutoConfig.from_pretrained(path.parent)
        for key in ("num_hidden_layers", "hidden_size", "intermediate_size", "vocab_size", "num_attention_heads",
                    "num_key_value_heads", "max_position_embeddings", "rms_norm_eps", "tie_word_embeddings"):
            expected = getattr(theirs, key)
            rope = getattr(theirs, "rope_parameters", None) or {}
            if key == "max_position_embeddings" and rope.get("rope_type") in ("dynamic", "linear", "yarn"):  # a factor raises the length
                expected = max(expected, int((rope.get("factor") or 1) * (rope.get("original_max_position_embeddings") or expected)))
            assert mine[key] == expected, (name, key)
        assert mine["windows"] == expected_windows(config, theirs), name
        assert mine["bos"] == (-1 if theirs.bos_token_id is None else theirs.bos_token_id), name
        eos = None if theirs.eos_token_id == -1 else theirs.eos_token_id  # -1 is no token
        assert mine["eos"] == ([] if eos is None else eos if isinstance(eos, list) else [eos]), name
        assert mine["dtype"] == str(theirs.dtype or "").replace("torch.", ""), name

        with torch.device("meta"):
            model = AutoModelForCausalLM.from_config(theirs)
        attention, mlp = model.model.layers[0].self_attn, model.model.layers[0].mlp
        assert mine["head_dim"] == attention.head_dim, name
        assert mine["qkv_bias"] == (attention.q_proj.bias is not None), name
        assert mine["qkv_bias"] == (attention.v_proj.bias is not None), name
        assert mine["output_bias"] == (attention.o_proj.bias is not None), name
        assert mine["mlp_bias"] == (mlp.gate_proj.bias is not None), name
        assert mine["qk_norm"] == hasattr(attention, "q_norm"), name
        check_rope(name, mine, theirs)


def check_rope(name, mine, theirs):
    rope, expected = mine["rope"], theirs.rope_parameters
    assert rope["rope_type"] == expected["rope_type"], name
    assert rope["rope_theta"] == expected["rope_theta"], name
    kind = rope["rope_type"]
    if kind == "default":
        return
    if expected.get("factor") is not None:
        assert rope["factor"] == expected["factor"], name
    if kind not in ("linear", "dynamic"):
        assert rope["original_max_position_embeddings"] == expected["original_max_position_embeddings"], name
    # The parsed numbers must reproduce the frequencies.
    inverse, factor = ROPE_INIT_FUNCTIONS[kind](theirs, torch.device("cpu"))
    assert math.isclose(rope["attention_factor"], factor, rel_tol=1e-12), name
    d = mine["head_dim"]
    frequencies = torch.tensor([rope["rope_theta"] ** (-2 * j / d) for j in range(d // 2)], dtype=torch.float64)
    torch.testing.assert_close(scaled(frequencies, rope, d), inverse.double(), rtol=1e-5, atol=0, msg=lambda m: name + m)


def scaled(f, rope, d):
    if rope["rope_type"] == "linear":
        return f / rope["factor"]
    if rope["rope_type"] == "dynamic":  # of no length yet
        return f
    if rope["rope_type"] == "longrope":
        return f / torch.tensor(rope["short_factor"], dtype=torch.float64)
    length = rope["original_max_position_embeddings"]
    if rope["rope_type"] == "llama3":
        low, high = rope["low_freq_factor"], rope["high_freq_factor"]
        turns = length * f / (2 * math.pi)
        smooth = ((turns - low) / (high - low)).clamp(0, 1)
        return (1 - smooth) * f / rope["factor"] + smooth * f
    dims = [d * math.log(length / (n * 2 * math.pi)) / (2 * math.log(rope["rope_theta"]))
            for n in (rope["beta_fast"], rope["beta_slow"])]
    if rope["truncate"]:
        dims = [math.floor(dims[0]), math.ceil(dims[1])]
    low, high = max(dims[0], 0), min(dims[1], d - 1)
    ramp = ((torch.arange(d // 2) - low) / (high - low if high != low else 0.001)).clamp(0, 1).double()
    return f / rope["factor"] * ramp + f * (1 - ramp)


def test_configs_saved_by_transformers_are_read_back(tool, tmp_path):
    """save_pretrained writes the v5 spelling; it must mean the same to us as the v4 text it came from."""
    paths = []
    for i, (_, config) in enumerate(cases()):
        before, after = tmp_path / f"{i}.json", tmp_path / f"{i}"
        before.write_text(json.dumps(config))
        after.mkdir()
        (after / "config.json").write_text(json.dumps(config))
        theirs = AutoConfig.from_pretrained(after)
        if theirs.model_type != config["model_type"]:
            continue  # Mistral with layer_types becomes Ministral, another architecture, when saved
        theirs.architectures = copy.copy(config["architectures"])
        theirs.save_pretrained(after)
        paths.append((before, after / "config.json"))
    lines = tool("checkpoint_tool", "config", *itertools.chain(*paths)).splitlines()
    for (before, _), first, second in zip(paths, lines[::2], lines[1::2]):
        assert first == second, before.read_text()


@pytest.mark.parametrize("change, words", [
    ({"architectures": ["GPT2LMHeadModel"], "model_type": "gpt2"}, ["'GPT2LMHeadModel'", "Qwen3ForCausalLM"]),
    ({"rope_scaling": {"rope_type": "su", "factor": 2}}, ["'su'", "longrope"]),
    ({"rope_scaling": {"rope_type": "dynamic"}}, ["'factor'"]),
    ({"rope_scaling": {"rope_type": "longrope", "long_factor": [1]}}, ["'short_factor'"]),
    ({"rope_scaling": {"rope_type": "longrope", "short_factor": [1] * 6, "long_factor": [1] * 5}}, ["'long_factor' has 5", "expected 6"]),
    ({"rope_scaling": {"rope_type": "longrope", "short_factor": [1] * 6, "long_factor": [1] * 5 + [0]}}, ["'long_factor' is 0"]),
    ({"rope_scaling": {"rope_type": "longrope", "short_factor": ["a"] * 6, "long_factor": []}}, ["'short_factor' holds string"]),
    ({"partial_rotary_factor": 0.5}, ["partial_rotary_factor"]),
    ({"quantization_config": {"quant_method": "hqq"}}, ["'hqq'", "those that are read: fp8, "]),
    ({"num_attention_heads": 6, "num_key_value_heads": 4}, ["6 query heads", "4 KV heads"]),
])
def test_refusals_name_the_reason(tool, tmp_path, change, words):
    path = tmp_path / "config.json"
    config = {"architectures": ["LlamaForCausalLM"], "model_type": "llama", "num_key_value_heads": 4, **SMALL, **change}
    path.write_text(json.dumps(config))
    line = tool("checkpoint_tool", "config", path)
    assert line.startswith(f"refused: {path}: ") and all(word in line for word in words), line


def test_every_file_of_a_family_is_in_the_registry(tool, tmp_path):
    """CMake lists the rows of the files; a refusal names every architecture that is supported, in the order of files."""
    written = [name for file in sorted((SOURCE_DIR / "lib/checkpoint/families").glob("*.cpp"))
               for name in re.findall(r'\.architecture = "(\w+)"', file.read_text())]
    path = tmp_path / "config.json"
    path.write_text(json.dumps({"architectures": ["GPT2LMHeadModel"]}))
    listed = tool("checkpoint_tool", "config", path).split("all that are supported are ")[1].strip().split(", ")
    assert len(written) >= 31 and [name for name in listed if name.endswith("ForCausalLM")] == written


FAMILIES = {
    "qwen3_moe": "Qwen3MoeForCausalLM", "mixtral": "MixtralForCausalLM", "gemma2": "Gemma2ForCausalLM",
    "gemma3_text": "Gemma3ForCausalLM", "gpt_oss": "GptOssForCausalLM", "glm4": "Glm4ForCausalLM", "phi3": "Phi3ForCausalLM",
    "olmo2": "Olmo2ForCausalLM", "smollm3": "SmolLM3ForCausalLM", "seed_oss": "SeedOssForCausalLM",
    "granite": "GraniteForCausalLM", "olmo3": "Olmo3ForCausalLM", "exaone4": "Exaone4ForCausalLM",
    "ernie4_5": "Ernie4_5ForCausalLM", "cohere2": "Cohere2ForCausalLM", "hunyuan_v1_dense": "HunYuanDenseV1ForCausalLM",
    "glm4_moe": "Glm4MoeForCausalLM", "ernie4_5_moe": "Ernie4_5_MoeForCausalLM", "minimax_m2": "MiniMaxM2ForCausalLM",
    "hunyuan_v1_moe": "HunYuanMoEV1ForCausalLM", "llama4_text": "Llama4ForCausalLM",
}
LAYERED_ROPE = ("gemma3_text", "olmo3")


def test_defaults_of_families(tool, tmp_path):
    """What a config.json of the newer families leaves unsaid, and both spellings of their RoPE."""
    ropes = [{}, {"rope_theta": 7e5}, {"rope_parameters": {"rope_type": "default", "rope_theta": 9e4}}]
    cases = []
    for family, architecture in FAMILIES.items():
        for i, rope in enumerate(ropes):
            if family in LAYERED_ROPE and "rope_parameters" in rope:
                rope = {"rope_parameters": {"full_attention": {"rope_type": "default", "rope_theta": 9e4}}}
            config = {"architectures": [architecture], "model_type": family, **SMALL, "num_key_value_heads": 2, **rope}
            path = tmp_path / f"{family}{i}"
            path.mkdir()
            (path / "config.json").write_text(json.dumps(config))
            cases.append(path)
    lines = tool("checkpoint_tool", "config", *[path / "config.json" for path in cases]).splitlines()
    for path, line in zip(cases, lines):
        mine, theirs = json.loads(line), AutoConfig.from_pretrained(path)
        for key in ("max_position_embeddings", "tie_word_embeddings"):
            assert mine[key] == getattr(theirs, key), (path.name, key)
        assert mine["rms_norm_eps"] == getattr(theirs, "rms_norm_eps" if hasattr(theirs, "rms_norm_eps") else "layer_norm_eps"), path.name
        assert mine["head_dim"] == (getattr(theirs, "head_dim", None) or 48 // 4), path.name
        assert mine["bos"] == (-1 if theirs.bos_token_id is None else theirs.bos_token_id), path.name
        eos = theirs.eos_token_id
        assert mine["eos"] == ([] if eos is None else eos if isinstance(eos, list) else [eos]), path.name
        types = getattr(theirs, "layer_types", None) or ["full_attention"] * 3
        assert mine["windows"] == [theirs.sliding_window if t == "sliding_attention" else 0 for t in types], path.name
        expected = theirs.rope_parameters.get("full_attention", theirs.rope_parameters)
        assert mine["rope"]["rope_type"] == expected["rope_type"], path.name
        assert mine["rope"]["rope_theta"] == expected["rope_theta"], path.name
        assert mine["rope"]["partial"] == expected.get("partial_rotary_factor", 1.0), path.name
        without = theirs.model_type in ("glm4", "seed_oss")
        assert mine["output_bias"] == (getattr(theirs, "attention_bias", False) and not without), path.name
