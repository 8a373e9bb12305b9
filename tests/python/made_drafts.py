"""Small random models with heads that propose tokens (speculative decoding): EAGLE-3 for Llama, MTP layers for Qwen3-Next and Qwen3.5.
Embeddings are loud, so that a head which sees little more than the last token is right for a fifth to a half of its proposals. Attention is loud,
too: other tokens in the first two thirds of a prompt move the log-probabilities of the most likely tokens by .3 to .5."""
import json

import torch
from safetensors.torch import load_file, save_file
from transformers import LlamaConfig, Qwen3_5TextConfig, Qwen3NextConfig

LOUD = {"llama": {"embed_tokens": 120, "q_proj": 4, "o_proj": 4}, "qwen3_next": {"embed_tokens": 60, "o_proj": 2}}
LOUD["qwen3_5_text"] = LOUD["qwen3_next"]
SMALL = dict(vocab_size=512, hidden_size=256, intermediate_size=512, num_hidden_layers=4, max_position_embeddings=16384, initializer_range=0.06,
             pad_token_id=0, bos_token_id=2, eos_token_id=1)
# Two layers of attention, so that a head in BF16 gives each of them a group of its own.
LINEAR = dict(num_hidden_layers=8, layer_types=["linear_attention", "linear_attention", "linear_attention", "full_attention"] * 2, num_attention_heads=4,
              num_key_value_heads=2, head_dim=256, linear_num_key_heads=2, linear_num_value_heads=4, linear_key_head_dim=128, linear_value_head_dim=128)


def llama():
    return LlamaConfig(**SMALL, num_attention_heads=4, num_key_value_heads=2, head_dim=64, architectures=["LlamaForCausalLM"])


def qwen3_next():
    return Qwen3NextConfig(**SMALL | LINEAR, num_experts=4, num_experts_per_tok=4, moe_intermediate_size=128, shared_expert_intermediate_size=128,
                           num_nextn_predict_layers=1, architectures=["Qwen3NextForCausalLM"])


def qwen3_5():
    return Qwen3_5TextConfig(**SMALL | LINEAR, mtp_num_hidden_layers=1, architectures=["Qwen3_5ForCausalLM"])


def louder(folder):
    """Scales weights of a saved model."""
    tensors, factors = load_file(folder / "model.safetensors"), LOUD[json.loads((folder / "config.json").read_text())["model_type"]]
    for name, weight in tensors.items():
        weight *= factors.get(name.split(".")[-2], 1)
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})


def add_mtp(folder):
    """An MTP layer in a saved Qwen3-Next or Qwen3.5: the last layer of attention, quieter, after the normed embedding and a tenth of the state."""
    tensors = load_file(folder / "model.safetensors")
    config = json.loads((folder / "config.json").read_text())
    last, size = config["num_hidden_layers"] - 1, config["hidden_size"]
    for name, weight in list(tensors.items()):
        if name.startswith(f"model.layers.{last}."):
            quiet = 0.02 if "o_proj" in name or "down_proj" in name else 1.0
            tensors[name.replace(f"model.layers.{last}.", "mtp.layers.0.")] = quiet * weight
    unit = torch.eye(size, dtype=torch.bfloat16)
    tensors["mtp.fc.weight"] = torch.cat([unit, 0.1 * unit], 1)
    tensors["mtp.norm.weight"] = tensors["model.norm.weight"].clone()
    for name in ("hidden", "embedding"):  # one is added
        tensors[f"mtp.pre_fc_norm_{name}.weight"] = torch.zeros(size, dtype=torch.bfloat16)
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})


def save_eagle3(target, folder, layers=(1, 2, 3)):
    """A head for a saved Llama. Its attention finds the tokens that equal its own and hands on their embedding; layers: whose states it sees."""
    config, tensors = json.loads((target / "config.json").read_text()), load_file(target / "model.safetensors")
    size, heads = config["hidden_size"], config["num_attention_heads"]
    head = LlamaConfig(**SMALL | {"num_hidden_layers": 1}, num_attention_heads=heads, num_key_value_heads=heads, head_dim=size // heads,
                       architectures=["LlamaForCausalLMEagle3"], draft_vocab_size=config["vocab_size"], eagle_aux_hidden_state_layer_ids=list(layers))
    head.save_pretrained(folder)
    generator, kind = torch.Generator().manual_seed(6), torch.bfloat16
    unit, none = torch.eye(size, dtype=kind), torch.zeros(size, size, dtype=kind)

    def noise(*shape):
        return (0.01 * torch.randn(shape, generator=generator)).to(kind)

    made = {f"midlayer.self_attn.{side}_proj.weight": torch.cat([scale * unit, none], 1) for side, scale in (("q", 2), ("k", 2), ("v", 1))}
    made |= {"midlayer.self_attn.o_proj.weight": unit, "fc.weight": 0.02 * noise(size, len(layers) * size), "lm_head.weight": tensors["lm_head.weight"]}
    made |= {f"midlayer.mlp.{side}_proj.weight": noise(512, size) for side in ("gate", "up")} | {"midlayer.mlp.down_proj.weight": noise(size, 512)}
    made |= {f"{name}.weight": torch.ones(size, dtype=kind) for name in ("midlayer.hidden_norm", "midlayer.input_layernorm",
                                                                        "midlayer.post_attention_layernorm", "norm")}
    save_file({name: weight.contiguous() for name, weight in made.items()}, folder / "model.safetensors", metadata={"format": "pt"})
