"""Random checkpoints of the families beyond the four of random_checkpoints.py: small, at odd sizes, saved by transformers.

Three query heads read each KV head, the vocabulary is that of the sample tokenizer, and there are two layers of each kind."""

import json
import shutil

import safetensors.torch
import torch
import transformers

BASE = dict(vocab_size=8192, hidden_size=120, intermediate_size=88, num_hidden_layers=4, num_attention_heads=6,
            num_key_value_heads=2, head_dim=32, max_position_embeddings=4096, tie_word_embeddings=False,
            bos_token_id=1, eos_token_id=2, pad_token_id=None)
PERIODIC = ["sliding_attention", "full_attention"] * 2
LAYERED_ROPE = dict(full_attention=dict(rope_type="linear", factor=8.0, rope_theta=1000000.0),
                    sliding_attention=dict(rope_type="default", rope_theta=10000.0))
YARN = dict(rope_type="yarn", rope_theta=150000.0, factor=32.0, beta_fast=32.0, beta_slow=1.0, truncate=False,
            original_max_position_embeddings=64)
VISION = dict(gemma3=dict(hidden_size=16, intermediate_size=16, num_hidden_layers=1, num_attention_heads=2, image_size=28,
                          patch_size=14),
              qwen3=dict(hidden_size=16, intermediate_size=16, depth=1, num_heads=2, patch_size=4, out_hidden_size=120,
                         num_position_embeddings=16),
              llama4=dict(hidden_size=16, intermediate_size=64, num_hidden_layers=1, num_attention_heads=2, image_size=28,
                          patch_size=14, vision_output_dim=16, projector_input_dim=16, projector_output_dim=16),
              mistral3=dict(hidden_size=16, intermediate_size=16, num_hidden_layers=1, num_attention_heads=2, image_size=28,
                            patch_size=14, head_dim=8),
              gemma4=dict(hidden_size=16, intermediate_size=16, num_hidden_layers=1, num_attention_heads=2, num_key_value_heads=2,
                          head_dim=8, patch_size=4, position_embedding_size=16),
              gemma4_unified=dict(patch_size=4, mm_embed_dim=16, mm_posemb_size=8, output_proj_dims=120))
GEMMA3 = dict(sliding_window=17, layer_types=PERIODIC, query_pre_attn_scalar=24, rope_parameters=LAYERED_ROPE,
              tie_word_embeddings=True)

# Value heads in groups of three for each key head; heads of three sizes, none of them that of attention.
HYBRID_LAYERS = ["linear_attention", "full_attention"] * 2
HYBRID = dict(layer_types=HYBRID_LAYERS, linear_num_key_heads=2, linear_num_value_heads=6, linear_key_head_dim=12,
              linear_value_head_dim=20, linear_conv_kernel_dim=3,
              rope_parameters=dict(rope_type="default", rope_theta=10000.0, partial_rotary_factor=0.25))

OLMO3_ROPE = dict(full_attention=YARN | dict(rope_theta=500000.0, truncate=True),
                  sliding_attention=dict(rope_type="default", rope_theta=500000.0))

# Chunks shorter than the sequences, and scales of queries that begin inside of them.
LLAMA4 = dict(intermediate_size_mlp=72, num_local_experts=5, num_experts_per_tok=2, no_rope_layers=[1, 0, 1, 0],
              attention_chunk_size=37, floor_scale=16, attn_scale=0.4,
              rope_parameters=dict(rope_type="llama3", rope_theta=10000.0, factor=8.0, low_freq_factor=1.0, high_freq_factor=4.0,
                                   original_max_position_embeddings=64))
MINISTRAL3 = dict(rope_parameters=YARN | dict(truncate=True, mscale=1.0, mscale_all_dim=1.0, llama_4_scaling_beta=0.4))

# Latent attention: sizes of a head's parts all differ, and none divides the latent.
LATENT = dict(head_dim=None, num_key_value_heads=6, kv_lora_rank=64, qk_rope_head_dim=20, qk_nope_head_dim=24, v_head_dim=28,
              n_routed_experts=8, num_experts_per_tok=3, moe_intermediate_size=20, n_shared_experts=2)
LATENT_YARN = dict(rope_type="yarn", rope_theta=10000.0, factor=40.0, original_max_position_embeddings=64, beta_fast=32.0,
                   beta_slow=1.0, mscale=0.707, mscale_all_dim=0.9)

# Layers that see all have heads of another size and number than those with a window.
GEMMA4 = dict(sliding_window=17, layer_types=PERIODIC, head_dim=24, num_key_value_heads=3, global_head_dim=32,
              num_global_key_value_heads=2, attention_k_eq_v=True, hidden_size_per_layer_input=0, tie_word_embeddings=True,
              pad_token_id=0)

GEMMA4_SHARED = GEMMA4 | dict(num_hidden_layers=6, layer_types=["sliding_attention", "full_attention"] * 3, num_kv_shared_layers=3,
                              num_key_value_heads=2, attention_k_eq_v=False, hidden_size_per_layer_input=20,
                              vocab_size_per_layer_input=8192)

# name -> (model type, changes to BASE, saving: fused experts, wrapper, a layer of multi-token prediction). The place is the seed:
# new cases go to the end, or the weights of others change.
CASES = {
    "gemma2": ("gemma2", dict(sliding_window=17, query_pre_attn_scalar=24, attn_logit_softcapping=4.0,
                              final_logit_softcapping=2.5, tie_word_embeddings=True), {}),
    "gemma3": ("gemma3_text", GEMMA3, {}),
    "gemma3-wrapped": ("gemma3", GEMMA3, dict(wrapper=True)),
    "glm4": ("glm4", dict(attention_bias=True, rope_parameters=dict(rope_type="default", rope_theta=10000.0,
                                                                    partial_rotary_factor=0.5)), {}),
    "gpt-oss": ("gpt_oss", dict(num_local_experts=5, num_experts_per_tok=2, sliding_window=17, layer_types=PERIODIC,
                                rope_parameters=YARN, swiglu_limit=1.5, attention_bias=True), {}),
    "mixtral": ("mixtral", dict(num_local_experts=5, num_experts_per_tok=2), {}),
    "mixtral-fused": ("mixtral", dict(num_local_experts=3, num_experts_per_tok=3, sliding_window=23), dict(fused=True)),
    "olmo2": ("olmo2", {}, {}),
    "phi3": ("phi3", dict(sliding_window=21), {}),
    "phi3-partial": ("phi3", dict(head_dim=None, hidden_size=192, tie_word_embeddings=True, rope_parameters=dict(
        rope_type="default", rope_theta=10000.0, partial_rotary_factor=0.75)), {}),
    "qwen3-moe": ("qwen3_moe", dict(num_experts=7, num_experts_per_tok=3, moe_intermediate_size=20, norm_topk_prob=True,
                                    mlp_only_layers=[1], decoder_sparse_step=1), {}),
    "qwen3-moe-fused": ("qwen3_moe", dict(num_experts=5, num_experts_per_tok=2, moe_intermediate_size=36, norm_topk_prob=False,
                                          decoder_sparse_step=2, use_sliding_window=True, sliding_window=19), dict(fused=True)),
    "smollm3": ("smollm3", dict(no_rope_layers=[1, 0, 1, 0], mlp_bias=True, tie_word_embeddings=True), {}),
    "seed-oss": ("seed_oss", dict(attention_bias=True, attention_out_bias=True), {}),
    "granite": ("granite", dict(embedding_multiplier=1.75, attention_multiplier=0.3, residual_multiplier=0.6,
                                logits_scaling=3.0), {}),
    "olmo3": ("olmo3", dict(sliding_window=17, layer_types=PERIODIC, rope_parameters=OLMO3_ROPE), {}),
    "exaone4": ("exaone4", dict(sliding_window=17, sliding_window_pattern="LG", layer_types=PERIODIC), {}),
    "ernie4-5": ("ernie4_5", dict(use_bias=True), {}),
    "cohere2": ("cohere2", dict(head_dim=None, hidden_size=192, sliding_window=17, layer_types=PERIODIC, logit_scale=0.25,
                                layer_norm_eps=1e-5), {}),
    "hunyuan": ("hunyuan_v1_dense", dict(rope_parameters=dict(rope_type="dynamic", rope_theta=10000.0, factor=1.0, alpha=50.0)),
                {}),
    "glm4-moe": ("glm4_moe", dict(n_routed_experts=8, num_experts_per_tok=3, moe_intermediate_size=20, n_shared_experts=2,
                                  first_k_dense_replace=1, n_group=4, topk_group=2, routed_scaling_factor=1.5, use_qk_norm=True,
                                  attention_bias=True), dict(prediction=True)),
    "ernie4-5-moe": ("ernie4_5_moe", dict(moe_num_experts=5, moe_k=2, moe_intermediate_size=20, moe_num_shared_experts=2,
                                          moe_layer_start_index=1), {}),
    "ernie4-5-moe-fused": ("ernie4_5_moe", dict(moe_num_experts=3, moe_k=2, moe_intermediate_size=36, moe_num_shared_experts=0,
                                                moe_layer_interval=2, moe_layer_start_index=0, moe_layer_end_index=2),
                           dict(fused=True)),
    "minimax-m2": ("minimax_m2", dict(num_local_experts=5, num_experts_per_tok=2, rotary_dim=16), {}),
    "qwen3-next": ("qwen3_next", HYBRID | dict(num_experts=7, num_experts_per_tok=3, moe_intermediate_size=20,
                                               shared_expert_intermediate_size=28, mlp_only_layers=[2]), {}),
    "qwen3-5": ("qwen3_5_text", HYBRID | dict(layer_types=HYBRID_LAYERS[::-1], attention_bias=True), {}),
    "qwen3-5-wrapped": ("qwen3_5", HYBRID | dict(tie_word_embeddings=True), dict(wrapper=True)),
    "qwen3-5-moe": ("qwen3_5_moe_text", HYBRID | dict(num_experts=5, num_experts_per_tok=2, moe_intermediate_size=20,
                                                      shared_expert_intermediate_size=36), {}),
    "qwen3-5-moe-wrapped": ("qwen3_5_moe", HYBRID | dict(num_experts=3, num_experts_per_tok=2, moe_intermediate_size=28,
                                                         shared_expert_intermediate_size=12), dict(wrapper=True)),
    "hunyuan-moe": ("hunyuan_v1_moe", dict(num_experts=5, moe_topk=[3] * 4, attention_bias=True, rope_parameters=dict(
        rope_type="dynamic", rope_theta=10000.0, factor=1.0, alpha=50.0)), {}),
    "llama4": ("llama4_text", LLAMA4 | dict(interleave_moe_layer_step=2), {}),
    "llama4-wrapped": ("llama4", LLAMA4 | dict(model_type="llama4_text", moe_layers=[1], attention_bias=True, use_qk_norm=False),
                       dict(wrapper=True)),
    "ministral3": ("ministral3", MINISTRAL3 | dict(sliding_window=29), {}),
    "ministral3-wrapped": ("mistral3", MINISTRAL3 | dict(model_type="ministral3"), dict(wrapper=True)),
    "mistral-wrapped": ("mistral3", dict(model_type="mistral", sliding_window=None), dict(wrapper=True)),
    "gemma4": ("gemma4_text", GEMMA4 | dict(final_logit_softcapping=2.5), {}),
    "gemma4-moe-wrapped": ("gemma4", GEMMA4 | dict(num_key_value_heads=2, attention_k_eq_v=False, enable_moe_block=True, num_experts=5,
                                                   top_k_experts=2, moe_intermediate_size=20), dict(wrapper=True)),
    "gemma4-alike": ("gemma4_text", GEMMA4 | dict(head_dim=32, num_key_value_heads=2, attention_bias=True, rope_parameters=dict(
        full_attention=dict(rope_type="proportional", rope_theta=500000.0, partial_rotary_factor=0.6, factor=2.0),
        sliding_attention=dict(rope_type="default", rope_theta=20000.0))), {}),
    "gemma4-unified-wrapped": ("gemma4_unified", {k: v for k, v in GEMMA4.items() if k != "hidden_size_per_layer_input"} | dict(
        num_key_value_heads=6, head_dim=40, layer_types=PERIODIC[::-1]), dict(wrapper=True)),
    # Embeddings of each layer, and last layers that read the cache of an earlier one: E2B and E4B.
    "gemma4-shared": ("gemma4_text", GEMMA4_SHARED | dict(use_double_wide_mlp=True, final_logit_softcapping=2.5), {}),
    "gemma4-shared-wrapped": ("gemma4", GEMMA4_SHARED | dict(global_head_dim=24), dict(wrapper=True)),
    "deepseek-v2": ("deepseek_v2", LATENT | dict(q_lora_rank=None, topk_method="greedy", first_k_dense_replace=2), {}),
    "deepseek-v2-groups": ("deepseek_v2", LATENT | dict(
        q_lora_rank=36, topk_method="group_limited_greedy", n_group=4, topk_group=2, first_k_dense_replace=1,
        routed_scaling_factor=1.5, attention_bias=True, rope_parameters=LATENT_YARN), {}),
    "deepseek-v3": ("deepseek_v3", LATENT | dict(q_lora_rank=36, n_group=4, topk_group=2, first_k_dense_replace=1,
                                                 attention_bias=True, rope_parameters=LATENT_YARN), dict(prediction=True)),
    "deepseek-v3-halves": ("deepseek_v3", LATENT | dict(q_lora_rank=None, n_group=1, topk_group=1, first_k_dense_replace=2,
                                                        rope_interleave=False), {}),
    "glm4-moe-lite": ("glm4_moe_lite", LATENT | dict(q_lora_rank=36, mlp_layer_types=["dense", "sparse"] * 2), {}),
}
LATENT_CASES = {name for name, (kind, *_) in CASES.items() if kind in ("deepseek_v2", "deepseek_v3", "glm4_moe_lite")}

# Frequencies by the length of the sequence: the same for both sides of 96 tokens.
_HALVES = 18  # pairs that turn: three quarters of 48 channels
BY_LENGTH = {
    "phi3-longrope": ("phi3", dict(head_dim=None, hidden_size=288, max_position_embeddings=768, original_max_position_embeddings=96,
                                   rope_parameters=dict(
        rope_type="longrope", rope_theta=10000.0, partial_rotary_factor=0.75, original_max_position_embeddings=96,
        short_factor=[1.0 + j / 16 for j in range(_HALVES)], long_factor=[1.5 + j * 0.7 for j in range(_HALVES)])), {}),
    "llama-longrope": ("llama", dict(rope_parameters=dict(
        rope_type="longrope", rope_theta=20000.0, original_max_position_embeddings=96, factor=6.0, attention_factor=1.3,
        short_factor=[1.0] * 16, long_factor=[1.0 + j for j in range(16)])), {}),
    "llama-dynamic": ("llama", dict(max_position_embeddings=96, rope_parameters=dict(rope_type="dynamic", rope_theta=10000.0,
                                                                                      factor=3.0)), {}),
}


def seed_of(name):
    """Five cases before gemma4 are gone; those after them keep their weights."""
    place = list(CASES).index(name)
    return place + 5 if place >= list(CASES).index("gemma4") else place


def randomize(model, seed):
    """Weights at which every part matters: attention and routers far from uniform, biases large, norms away from 1."""
    generator = torch.Generator().manual_seed(seed)
    gemma = model.config.model_type.startswith("gemma")
    plain = model.config.model_type.startswith("gemma4")  # weights of its norms are not zero-centered, its logits not scaled
    hybrid = model.config.model_type.startswith(("qwen3_next", "qwen3_5"))
    buffers = [(name, buffer) for name, buffer in model.named_buffers() if name.endswith(("e_score_correction_bias", "layer_scalar"))]
    for name, parameter in [*model.named_parameters(), *buffers]:
        spread, mean = 1.0, 0.0
        if "norm" in name:
            spread, mean = 0.3, (0.5 if "q_norm" in name or "k_norm" in name else 0.0) + (
                0.0 if gemma or hybrid and "linear_attn" not in name else 1.0)
            mean = mean or float(plain)
        elif name.endswith("sinks"):
            spread, mean = 1.0, 2.0
        elif name.endswith("A_log"):
            spread, mean = 0.7, -1.0  # memories of some tokens and of some dozens
        elif name.endswith("bias"):
            spread = 0.1 if "correction" in name else 0.5  # beside scores of experts between 0 and 1
        elif "embed" in name:
            # Gemma scales embeddings up: small ones, or nothing that attention adds would count beside them.
            spread = 0.06 if gemma else 0.3 if model.config.tie_word_embeddings else 1.0
        elif parameter.dim() == 1:  # norms of an image tower, which is not read
            spread, mean = 0.3, 1.0
        elif parameter.dim() > 2:  # experts: [E, out, in], or [E, in, out]
            transposed = model.config.model_type in ("gpt_oss", "llama4", "llama4_text")
            spread = parameter.shape[1 if transposed else 2] ** -0.5
        else:
            gain = 1.5 if any(part in name for part in ("q_proj", "k_proj", "router", ".gate.weight", ".gate.wg.weight")) else 1.0
            spread = gain * parameter.shape[1] ** -0.5
        parameter.data.copy_(torch.randn(parameter.shape, generator=generator) * spread + mean)


def make(name, directory, tokenizer=None, **other):
    """Writes the case to `directory` in the spelling of the installed transformers (v5); `other`: settings in place of its own."""
    kind, changes, saving = (CASES | BY_LENGTH)[name]
    settings = {**BASE, **changes, **other}
    if settings["head_dim"] is None:
        del settings["head_dim"]
    if saving.get("wrapper"):
        config = transformers.AutoConfig.for_model(kind, text_config=settings, vision_config=VISION.get(kind) or VISION[kind.partition("_")[0]],
                                                   tie_word_embeddings=settings["tie_word_embeddings"])
        model = transformers.AutoModelForImageTextToText.from_config(config)
    else:
        config = transformers.AutoConfig.for_model(kind, **settings)
        model = transformers.AutoModelForCausalLM.from_config(config)
    randomize(model, seed_of(name) if name in CASES else 1000)
    model.save_pretrained(directory, **(dict(save_original_format=False) if saving.get("fused") else {}))
    if saving.get("prediction"):
        add_prediction_layer(directory)
    if tokenizer is not None:
        for file in ("tokenizer.json", "tokenizer_config.json"):
            shutil.copyfile(tokenizer / file, directory / file)
    return directory


def add_prediction_layer(directory):
    """What published checkpoints hold behind the last layer, and transformers leaves out when it saves."""
    path = directory / "model.safetensors"
    tensors = safetensors.torch.load_file(path)
    tensors["model.layers.4.eh_proj.weight"] = torch.ones(120, 240)
    tensors["model.layers.4.input_layernorm.weight"] = torch.ones(120)
    safetensors.torch.save_file(tensors, path, metadata=dict(format="pt"))


def _respell_gemma4(text):
    """There is no older form of its RoPE; published files tell the sizes of heads in two keys."""
    by_layer = text.pop("per_layer_config", None) or {}
    assert len({json.dumps(sizes, sort_keys=True) for sizes in by_layer.values()}) <= 1
    full = next(iter(by_layer.values()), {})
    text["global_head_dim"] = full.get("head_dim", text["head_dim"])
    text["num_global_key_value_heads"] = full.get("num_key_value_heads")


def respell_as_v4(directory):
    """Rewrites config.json as transformers 4 wrote it."""
    path = directory / "config.json"
    config = json.loads(path.read_text())
    text = config.get("text_config", config)
    if text["model_type"].startswith("gemma4"):
        _respell_gemma4(text)
        path.write_text(json.dumps(config, indent=2))
        return
    parameters = text.pop("rope_parameters")
    if "full_attention" in parameters:
        parameters, local = parameters["full_attention"], parameters["sliding_attention"]
        text["rope_local_base_freq"] = local["rope_theta"]
        text.pop("layer_types")
        text["sliding_window_pattern"] = 2
    text["rope_theta"] = parameters.pop("rope_theta")
    if (partial := parameters.pop("partial_rotary_factor", 1.0)) != 1.0:
        text["partial_rotary_factor"] = partial
    if text.get("layer_types") == HYBRID_LAYERS:
        text.pop("layer_types")
        text["full_attention_interval"] = 2
    text["rope_scaling"] = None if parameters["rope_type"] == "default" else parameters
    config["torch_dtype"] = config.pop("dtype", "float32")
    config["transformers_version"] = "4.56.0"
    path.write_text(json.dumps(config, indent=2))
