"""RoPE from a configuration alone, against the rotary embedding of the model that transformers makes of it."""
import copy
import types

import pytest

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

from conftest import SAMPLES  # noqa: E402
from oscar_kv.engines.rope import phases_of  # noqa: E402
from oscar_kv.files.errors import InputError  # noqa: E402
from oscar_kv.files.rope_settings import check_reach, check_rope  # noqa: E402
from oscar_kv.hf.attach import _phases  # noqa: E402

SCALED = [{"rope_type": "default", "rope_theta": 5e5}, {"rope_type": "linear", "rope_theta": 1e4, "factor": 4.0},
          {"rope_type": "llama3", "rope_theta": 5e5, "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
           "original_max_position_embeddings": 256},
          {"rope_type": "yarn", "rope_theta": 1e6, "factor": 4.0, "original_max_position_embeddings": 256}]


def made(name, parameters):
    """A model of one small layer of a family, on no device."""
    sizes = dict(num_hidden_layers=1, hidden_size=128, intermediate_size=64, num_attention_heads=4, num_key_value_heads=2, head_dim=64,
                 vocab_size=64, max_position_embeddings=1024)
    return transformers.AutoModel.from_config(transformers.AutoConfig.for_model(name, rope_parameters=parameters, **sizes))


@pytest.mark.parametrize("parameters", SCALED, ids=lambda p: p["rope_type"])
@pytest.mark.parametrize("family", ["llama", "qwen3", "mistral", "qwen3_moe", "seed_oss"])
def test_phases_are_those_of_the_model(family, parameters):
    model = made(family, parameters)
    from_config, from_model = phases_of(model.config, 64), _phases(model)
    assert torch.equal(from_config.inverse, from_model.inverse) and from_config.factor == from_model.factor
    assert (from_config.factor != 1) == (parameters["rope_type"] == "yarn")


@pytest.mark.parametrize("name", ["tiny-qwen3", "tiny-llama", "tiny-qwen2"])
def test_phases_of_the_samples(name):
    config = transformers.AutoConfig.from_pretrained(SAMPLES / name)
    model = transformers.AutoModel.from_config(config)
    size = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
    assert torch.equal(phases_of(config, size).inverse, _phases(model).inverse)


@pytest.mark.parametrize("parameters,word", [
    (None, "None"), ({"rope_type": "dynamic", "rope_theta": 1e4}, "dynamic"), ({"rope_type": "longrope", "rope_theta": 1e4}, "longrope"),
    ({"full_attention": {"rope_type": "default", "rope_theta": 1e4}}, "full_attention")])
def test_other_configurations_are_refused(parameters, word):
    with pytest.raises(InputError, match=f"says of RoPE .*{word}.*--center mean"):
        phases_of(types.SimpleNamespace(rope_parameters=parameters), 64)


def test_a_part_of_the_channels_is_refused():
    model = made("llama", {"rope_type": "default", "rope_theta": 1e4})
    with pytest.raises(InputError, match="turns 64 of 128 channels"):
        phases_of(model.config, 128)


# What engines write into rope_parameters while they build a model, of the family that they do it for.
WRITTEN = [("phi3", {}, {"original_max_position_embeddings": 4096}),  # SGLang, in llama.py
           ("minimax_m2", {"rotary_dim": 64, "head_dim": 128}, {"partial_rotary_factor": 0.5}), ("glm4", {}, {"partial_rotary_factor": 0.5}),  # vLLM
           ("llama", {"rope_parameters": SCALED[2], "original_max_position_embeddings": 256}, {"original_max_position_embeddings": 256}),
           ("qwen3", {}, {"type": "default", "mrope_section": [8, 12, 12]})]


@pytest.mark.parametrize("family,given,written", WRITTEN, ids=lambda one: one if isinstance(one, str) else "")
def test_what_engines_write_is_no_difference(family, given, written):
    plain, running = (transformers.AutoConfig.for_model(family, **copy.deepcopy(given)) for _ in range(2))
    running.rope_parameters.update(written)
    check_rope(running, plain, "")
    check_rope(plain, running, "")
    running.rope_parameters["rope_theta"] += 1
    with pytest.raises(InputError, match="rope_theta [0-9]*1.0 for [0-9]*0.0;"):
        check_rope(running, plain, "")


@pytest.mark.parametrize("family,changed,words", [
    ("gemma3_text", {"layer_types": ["full_attention"] * 26}, r"layer_types\[0\] 'full_attention' for 'sliding_attention', .* and 18 more;"),
    ("gemma3_text", {"rope_parameters": {"full_attention": SCALED[1], "sliding_attention": {"rope_type": "default", "rope_theta": 1e4}}},
     "full_attention factor 4.0 for None"),
    ("smollm3", {"no_rope_layers": [1] * 36}, r"no_rope_layers\[11\] 1 for 0"),
    ("llama", {"partial_rotary_factor": 0.5}, "partial_rotary_factor 0.5 for 1.0")])
def test_layers_that_turn_otherwise_are_named(family, changed, words):
    running = transformers.AutoConfig.for_model(family)
    for name, value in changed.items():
        setattr(running, name, value)
    with pytest.raises(InputError, match=f"another RoPE than those that the bundle was fitted on: .*{words}"):
        check_rope(running, transformers.AutoConfig.for_model(family), "leave it out")


def test_factors_of_longrope_follow_the_longest_request():
    """As in vLLM's and SGLang's Phi3LongRoPEScaledRotaryEmbedding and in set_run_length() of a collecting run."""
    factors = {"short_factor": [1.0] * 48, "long_factor": [2.0] * 48}
    config = transformers.AutoConfig.for_model("phi3", max_position_embeddings=131072, original_max_position_embeddings=4096,
                                               rope_parameters={"rope_type": "longrope", "rope_theta": 1e4, **factors})
    for seen, served in ((2048, 4096), (4097, 131072), (131072, 8192)):
        check_reach(config, seen, served, "--max-model-len")
    for seen, served, advice in ((4096, 131072, "pass --max-model-len 4096, or collect with --context 131072"),
                                 (8192, 4096, "pass a larger --max-model-len, or collect with --context 4096")):
        with pytest.raises(InputError, match=f"--max-model-len is {served}, and longrope has other factors above 4096; {advice}"):
            check_reach(config, seen, served, "--max-model-len")
    check_reach(transformers.AutoConfig.for_model("phi3"), 2048, 131072, "--max-model-len")
