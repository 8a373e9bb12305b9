"""Small random Gemma 4 for tests on GPUs: heads of 512 channels in full-attention layers."""
from random_bundles import asked_bundle
from transformers import Gemma4Config, Gemma4ForConditionalGeneration, Gemma4TextConfig

SMALL = dict(vocab_size=512, hidden_size=256, intermediate_size=512, max_position_embeddings=4096, initializer_range=0.06,
             pad_token_id=0, bos_token_id=2, eos_token_id=1, tie_word_embeddings=False)


def gemma4(kinds=("sliding_attention", "full_attention") * 2, **changed):
    """Keys of full-attention layers are also their values."""
    return Gemma4TextConfig(
        **SMALL, num_hidden_layers=len(kinds), num_attention_heads=8, head_dim=256, global_head_dim=512,
        layer_types=list(kinds), vocab_size_per_layer_input=512, architectures=["Gemma4ForCausalLM"],
        **dict(sliding_window=512, num_key_value_heads=2, num_global_key_value_heads=1, attention_k_eq_v=True, hidden_size_per_layer_input=0) | changed)


def gemma4_shared(**changed):
    """The last three layers read the caches of the second and third one, as in E2B and E4B."""
    return gemma4(("sliding_attention", "full_attention", "sliding_attention", "sliding_attention", "full_attention", "full_attention"),
                  num_kv_shared_layers=3, num_key_value_heads=1, attention_k_eq_v=False, num_global_key_value_heads=None,
                  hidden_size_per_layer_input=64, **changed)


def wrapped(text):
    """A model in the form of the released ones, which also see images."""
    vision = dict(hidden_size=16, intermediate_size=16, num_hidden_layers=1, num_attention_heads=2, num_key_value_heads=2, head_dim=8,
                  patch_size=4, position_embedding_size=16)
    tokens = {f"{name}_token_id": 600 for name in ("image", "audio", "boi", "eoi", "boa", "eoa")}  # which nothing here says
    return Gemma4ForConditionalGeneration(Gemma4Config(text_config=text, vision_config=vision, audio_config=None, tie_word_embeddings=text.tie_word_embeddings,
                                                    **tokens))


def soften(model):
    """Logits have no scale but that of the norms, so that a random model would look at one token."""
    for name, weight in model.named_parameters():
        if name.endswith(".self_attn.q_norm.weight"):
            weight.data.fill_(0.05)
    return model


def coded(text):
    """Layers of a configuration that a bundle holds: those that see all and have a cache of their own."""
    holding = text.num_hidden_layers - (getattr(text, "num_kv_shared_layers", None) or 0)
    return [i for i, kind in enumerate(text.layer_types[:holding]) if kind == "full_attention"]


def gemma4_bundle(text, **changed):
    full = coded(text)
    return asked_bundle(**dict(
        layers=len(full), kv_heads=text.per_layer_config["full_attention"].num_key_value_heads, d=512, numbers=full,
        left_out=[i for i in range(text.num_hidden_layers) if i not in full], centered=False) | changed)
