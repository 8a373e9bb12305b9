"""RoPE from a configuration alone, against the rotary embedding of the model that transformers makes of it."""
import types

import pytest

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

from conftest import SAMPLES  # noqa: E402
from oscar_kv.files.errors import InputError  # noqa: E402
from oscar_kv.engines.rope import phases_of  # noqa: E402
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
