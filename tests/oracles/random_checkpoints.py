"""Random checkpoints of every supported family at odd sizes, saved by transformers itself."""

import json

import torch
import transformers

# Nothing divides anything: hidden != heads * head_dim, vocabulary is prime, 7 query heads on 1 KV head.
BASE = dict(vocab_size=331, hidden_size=120, intermediate_size=200, num_hidden_layers=3, num_attention_heads=6,
            num_key_value_heads=2, head_dim=48, max_position_embeddings=4096, tie_word_embeddings=False,
            bos_token_id=1, eos_token_id=2, pad_token_id=None)
ONE_KV_HEAD = dict(hidden_size=112, num_attention_heads=7, num_key_value_heads=1, head_dim=80)


def rope(kind, **values):
    return dict(rope_parameters=dict(rope_type=kind, rope_theta=values.pop("theta", 10000.0), **values))


# name -> (model type, changes to BASE, saving: dtype and sharded)
CASES = {
    "llama": ("llama", {}, {}),
    "llama-bias-tied": ("llama", dict(attention_bias=True, mlp_bias=True, tie_word_embeddings=True, **ONE_KV_HEAD),
                        dict(dtype="bfloat16")),
    "llama-llama3": ("llama", dict(max_position_embeddings=1024, **rope(
        "llama3", theta=500000.0, factor=8.0, low_freq_factor=1.0, high_freq_factor=4.0,
        original_max_position_embeddings=128)), {}),
    "llama-linear": ("llama", rope("linear", factor=4.0), dict(sharded=True)),
    "llama-yarn": ("llama", dict(head_dim=80, **rope("yarn", factor=4.0, original_max_position_embeddings=128)), {}),
    "llama-yarn-options": ("llama", rope("yarn", theta=150000.0, factor=8.0, original_max_position_embeddings=64,
                                         attention_factor=1.3, beta_fast=16.0, beta_slow=2.0, truncate=False), {}),
    "llama-yarn-mscale": ("llama", rope("yarn", factor=40.0, original_max_position_embeddings=64, mscale=1.2,
                                        mscale_all_dim=0.7), {}),
    "mistral-window": ("mistral", dict(sliding_window=17), {}),
    "mistral-full": ("mistral", dict(sliding_window=None, head_dim=None, tie_word_embeddings=True),
                     dict(dtype="float16")),
    "qwen2": ("qwen2", {}, dict(sharded=True, dtype="bfloat16")),
    "qwen2-window": ("qwen2", dict(use_sliding_window=True, sliding_window=19, max_window_layers=1,
                                   num_attention_heads=4, num_key_value_heads=4), {}),
    "qwen2-layer-types": ("qwen2", dict(use_sliding_window=True, sliding_window=23, layer_types=[
        "sliding_attention", "full_attention", "sliding_attention"]), {}),
    "qwen3": ("qwen3", dict(attention_bias=True, **ONE_KV_HEAD), {}),
    "qwen3-window-tied": ("qwen3", dict(use_sliding_window=True, sliding_window=40, max_window_layers=2,
                                        tie_word_embeddings=True), dict(sharded=True)),
    "qwen3-yarn": ("qwen3", dict(rms_norm_eps=1e-5, **rope("yarn", theta=1000000.0, factor=4.0,
                                                           original_max_position_embeddings=256)), {}),
}


def randomize(model, seed):
    """Weights at which every part matters: attention far from uniform, biases large, norms away from 1."""
    generator = torch.Generator().manual_seed(seed)

    def normal(parameter, std, mean=0.0):
        parameter.data.copy_(torch.randn(parameter.shape, generator=generator) * std + mean)

    for name, parameter in model.named_parameters():
        if "norm" in name:
            normal(parameter, 0.3, mean=1.5 if "q_norm" in name or "k_norm" in name else 1.0)
        elif name.endswith(".bias"):
            normal(parameter, 2.0 if "k_proj" in name or "q_proj" in name else 0.5)
        elif "embed" in name:
            normal(parameter, 0.3 if model.config.tie_word_embeddings else 1.0)
        else:
            normal(parameter, (1.5 if "q_proj" in name or "k_proj" in name else 1.0) * parameter.shape[1] ** -0.5)


def make(name, directory):
    """Writes the case to `directory` in the spelling of the installed transformers (v5)."""
    kind, changes, saving = CASES[name]
    settings = {**BASE, **changes}
    if settings["head_dim"] is None:
        del settings["head_dim"]
    if kind == "qwen2" and "head_dim" not in changes:
        del settings["head_dim"]  # the family's config has no such key
    config = transformers.AutoConfig.for_model(kind, **settings)
    model = transformers.AutoModelForCausalLM.from_config(config)
    randomize(model, seed=sorted(CASES).index(name))
    model = model.to(getattr(torch, saving.get("dtype", "float32")))
    model.save_pretrained(directory, max_shard_size="300KB" if saving.get("sharded") else "5GB")
    assert (directory / "model.safetensors.index.json").exists() == bool(saving.get("sharded"))
    return directory


def respell_as_v4(directory):
    """Rewrites config.json as transformers 4 wrote it: rope_theta, rope_scaling, torch_dtype."""
    path = directory / "config.json"
    config = json.loads(path.read_text())
    parameters = config.pop("rope_parameters")
    config["rope_theta"] = parameters.pop("rope_theta")
    config["rope_scaling"] = None if parameters["rope_type"] == "default" else parameters
    config["torch_dtype"] = config.pop("dtype")
    config["transformers_version"] = "4.51.0"
    path.write_text(json.dumps(config, indent=2))
