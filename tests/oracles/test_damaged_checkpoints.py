"""Damaged checkpoints: each is refused before anything is computed, with exit code 3 and one sentence that names the tensor, what
was found and what was expected. One table for all weight formats; edges that must be read are beside it."""
import json
import shutil

import pytest

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")
safetensors_torch = pytest.importorskip("safetensors.torch")
pytest.importorskip("compressed_tensors")

import family_checkpoints  # noqa: E402  (needs the packages above)
import quantized_checkpoints  # noqa: E402
from conftest import SOURCE_DIR  # noqa: E402

torch.set_num_threads(1)
Q = "model.layers.1.self_attn.q_proj"
UP = "model.layers.0.mlp.up_proj"
EXPERTS = "model.layers.1.mlp.experts"


def drop(name):
    return lambda tensors, config: tensors.pop(name)


def put(name, make):
    """The tensor becomes make(what was there), or make() where nothing was."""
    def change(tensors, config):
        tensors[name] = make(tensors[name]) if name in tensors else make()
    return change


def rename(name, other):
    return lambda tensors, config: tensors.update({other: tensors.pop(name)})


def say(**changes):
    return lambda tensors, config: config.update(changes)


def quantized_by(**changes):
    return lambda tensors, config: config.setdefault("quantization_config", {}).update(changes)


def spoilt(value):
    def change(tensor):
        tensor = tensor.clone()
        tensor.view(torch.uint8 if tensor.dtype == quantized_checkpoints.FP8 else tensor.dtype).view(-1)[-1] = value
        return tensor
    return change


NAN, INFINITE, NAN_FP8 = float("nan"), float("inf"), 0x7F


def shorter(tensor):
    return tensor[..., :-1]


def longer(tensor):
    return torch.cat([tensor, tensor[:1]])


def twice(tensor):
    return torch.cat([tensor, tensor], 1)


# (checkpoint, what is done to it, words of the sentence)
DAMAGES = [
    # Missing, extra and misshapen tensors without any quantization.
    ("qwen3-moe", drop("model.norm.weight"), ["The tensor model.norm.weight is missing", "[120]"]),
    ("qwen3-moe", drop("model.layers.3.self_attn.k_proj.weight"), ["model.layers.3.self_attn.k_proj.weight is missing", "[64, 120]"]),
    ("qwen3-moe", put("model.embed_tokens.weight", shorter), ["model.embed_tokens.weight", "[8192, 119]", "[8192, 120]"]),
    ("qwen3-moe", put("model.layers.2.input_layernorm.weight", longer), ["input_layernorm.weight", "[121]", "[120]"]),
    ("qwen3-moe", put("lm_head.weight", lambda t: t.to(torch.int32)), ["lm_head.weight", "I32", "BF16, F16, F32"]),
    ("qwen3-moe", put("model.layers.0.self_attn.q_proj.bias", lambda: torch.ones(192)), ["q_proj.bias", "ignore"]),
    ("qwen3-moe", put("model.layers.0.mlp.extra.weight", lambda: torch.zeros(3)), ["model.layers.0.mlp.extra.weight", "ignore"]),
    ("qwen3-moe", put("model.layers.0.mlp.extra.qweight", lambda: torch.zeros(3, 4)), ["extra.qweight", "ignore"]),
    ("qwen3-moe", put("model.layers.0.mlp.extra.scales", lambda: torch.ones(3, 4)), ["extra.scales", "ignore"]),
    ("qwen3-moe", put("model.layers.0.mlp.extra.weight_scale_2", lambda: torch.ones(1)), ["extra.weight_scale_2", "ignore"]),
    # Embeddings of each layer, and layers that read the cache of another.
    ("gemma4-shared", drop("model.embed_tokens_per_layer.weight"), ["embed_tokens_per_layer.weight is missing", "[8192, 120]"]),
    ("gemma4-shared", put("model.per_layer_projection_norm.weight", longer), ["per_layer_projection_norm.weight", "[21]", "[20]"]),
    ("gemma4-shared", drop("model.layers.2.per_layer_input_gate.weight"), ["2.per_layer_input_gate.weight is missing", "[20, 120]"]),
    ("gemma4-shared", drop("model.layers.1.self_attn.k_proj.weight"), ["layers.1.self_attn.k_proj.weight is missing", "[64, 120]"]),
    ("gemma4-shared", say(use_double_wide_mlp=False), ["layers.3.mlp.gate_proj.weight", "[176, 120]", "[88, 120]"]),
    ("gemma4-shared", say(num_kv_shared_layers=2), ["layers.3.self_attn.k_proj.weight is missing"]),
    ("gemma4-shared", say(vocab_size_per_layer_input=100), ["'vocab_size_per_layer_input' is 100", "8192"]),
    # Latent attention.
    ("deepseek-v3", drop("model.layers.1.self_attn.kv_b_proj.weight"), ["1.self_attn.kv_b_proj.weight is missing", "[312, 64]"]),
    ("deepseek-v3", drop("model.layers.0.self_attn.kv_a_layernorm.weight"), ["kv_a_layernorm.weight is missing", "[64]"]),
    ("deepseek-v3", put("model.layers.2.self_attn.kv_a_proj_with_mqa.weight", shorter), ["kv_a_proj_with_mqa.weight", "[84, 119]", "[84, 120]"]),
    ("deepseek-v3", say(kv_lora_rank=66), ["kv_a_proj_with_mqa", "[84, 120]", "[86, 120]"]),
    ("deepseek-v3", say(qk_rope_head_dim=19), ["'qk_rope_head_dim' is 19", "even number"]),
    ("deepseek-v3", say(v_head_dim=29), ["kv_b_proj.weight", "[312, 64]", "[318, 64]"]),
    ("deepseek-v3", say(n_routed_experts=12), ["mlp.gate.weight", "[8, 120]", "[12, 120]"]),
    # Counts of experts that disagree with config.json.
    ("qwen3-moe", say(num_experts=8), ["mlp.gate.weight", "[7, 120]", "[8, 120]"]),
    ("qwen3-moe", say(num_experts=6), ["mlp.gate.weight", "[7, 120]", "[6, 120]"]),
    ("qwen3-moe", say(num_experts_per_tok=9), ["'num_experts_per_tok' is 9", "7 experts"]),
    ("qwen3-moe", drop("model.layers.2.mlp.experts.4.up_proj.weight"), ["experts.4.up_proj.weight is missing", "[20, 120]"]),
    ("qwen3-moe", say(moe_intermediate_size=21), ["experts.0.", "[20, 120]", "[21, 120]"]),
    ("mixtral-fused", say(num_local_experts=4), ["4"]),
    ("mxfp4-experts", say(num_local_experts=6), ["[5, ", "[6, "]),
    # Formats that are not read.
    ("qwen3-moe", quantized_by(quant_method="hqq"), ["'hqq'", "those that are read: fp8, mxfp8, compressed-tensors"]),
    ("qwen3-moe", quantized_by(bits=4), ["'quant_method'"]),
    ("fp8-blocks", quantized_by(weight_block_size=[0, 128]), ["'weight_block_size'", "two whole numbers"]),
    ("fp8-blocks", quantized_by(weight_block_size=[64, 128]), [".weight_scale_inv", "64 x 128"]),
    # FP8 in blocks, by channel, for the tensor.
    ("fp8-blocks", drop(Q + ".weight_scale_inv"), [Q + ".weight_scale", "is missing", "the weight " + Q + ".weight [192, 130]"]),
    ("fp8-blocks", put(UP + ".weight_scale_inv", spoilt(NAN)), [UP + ".weight_scale_inv", "NaN or infinite"]),
    ("fp8-blocks", put(UP + ".weight_scale_inv", spoilt(INFINITE)), [UP + ".weight_scale_inv", "NaN or infinite"]),
    ("fp8-blocks", put(Q + ".weight_scale_inv", longer), [Q + ".weight_scale_inv", "[3, 2]", "128 x 128, [2, 2]"]),
    ("fp8-blocks", put(Q + ".weight_scale_inv", lambda t: t.to(torch.int32)), [Q + ".weight_scale_inv", "I32", "F32"]),
    ("fp8-blocks", put(Q + ".weight", shorter), [Q + ".weight", "[192, 129]", "[192, 130]"]),
    ("fp8-blocks", put(Q + ".weight_scale", lambda: torch.ones(1)), [Q + ".weight_scale_inv and " + Q + ".weight_scale", "one of them"]),
    ("fp8-blocks", drop(Q + ".weight"), [Q + ".weight_scale_inv", "but " + Q + ".weight is missing"]),
    ("fp8-blocks", put(Q + ".weight", lambda t: t.float()), [Q + ".weight_scale_inv", Q + ".weight is F32"]),
    ("fp8-channel", drop(Q + ".weight_scale"), [Q + ".weight_scale is missing", "[192, 130]"]),
    ("fp8-channel", put(Q + ".weight_scale", longer), [Q + ".weight_scale", "[193, 1]", "[192, 1]"]),
    ("fp8-channel", put(Q + ".weight_scale", spoilt(NAN)), [Q + ".weight_scale", "NaN or infinite"]),
    ("fp8-channel", put(Q + ".weight_zero_point", lambda: torch.zeros(192, 1)), [Q + ".weight_zero_point"]),
    ("fp8-tensor", put(Q + ".weight_scale", lambda t: torch.ones(2)), [Q + ".weight_scale", "[2]", "[1], [192]"]),
    ("fp8-modelopt", put(UP + ".weight_scale", spoilt(NAN)), [UP + ".weight_scale", "NaN or infinite"]),
    ("fp8-modelopt", drop(UP + ".weight_scale"), [UP + ".weight_scale is missing", "[200, 130]"]),
    ("int8-channel", drop(Q + ".weight_scale"), [Q + ".weight_scale is missing"]),
    # MXFP4 and NVFP4.
    ("mxfp4-experts", drop(EXPERTS + ".down_proj_scales"), [EXPERTS + ".down_proj_scales is missing"]),
    ("mxfp4-experts", drop(EXPERTS + ".down_proj_blocks"), [EXPERTS + ".down_proj_scales", "missing"]),
    ("mxfp4-experts", put(EXPERTS + ".down_proj_scales", spoilt(255)), [EXPERTS + ".down_proj_scales", "NaN"]),
    ("mxfp4-experts", put(EXPERTS + ".down_proj_blocks", shorter), [EXPERTS + ".down_proj_blocks", "15]", "16]"]),
    ("mxfp4-linear", drop(Q + ".weight_scale"), [Q + ".weight_scale", "missing"]),
    ("mxfp4-linear", put(Q + ".weight_scale", spoilt(255)), [Q + ".weight_scale", "NaN"]),
    ("mxfp4-linear", put(Q + ".weight_packed", shorter), [Q + ".weight_packed", "[192, 95]", "[192, 96]"]),
    ("nvfp4", drop(Q + ".weight_global_scale"), [Q + ".weight_global_scale is missing"]),
    ("nvfp4", drop(Q + ".weight_scale"), [Q + ".weight_scale is missing"]),
    ("nvfp4", put(Q + ".weight_scale", spoilt(NAN_FP8)), [Q + ".weight_scale", "NaN or infinite"]),
    ("nvfp4", put(Q + ".weight_global_scale", torch.zeros_like), [Q + ".weight_global_scale", "is 0"]),
    ("nvfp4", put(Q + ".weight_global_scale", lambda t: torch.ones(2)), [Q + ".weight_global_scale", "[2]", "[1]"]),
    ("nvfp4", say(hidden_size=200), ["input_layernorm.weight", "[192]", "[200]"]),
    ("nvfp4-modelopt", drop(Q + ".weight_scale_2"), [Q + ".weight_scale_2 is missing"]),
    ("nvfp4-modelopt", put(Q + ".weight_scale_2", spoilt(NAN)), [Q + ".weight_scale_2", "NaN or infinite"]),
    # Packed integers, AWQ, GPTQ.
    ("int4-group", drop(Q + ".weight_scale"), [Q + ".weight_scale is missing"]),
    ("int4-group", drop(Q + ".weight_shape"), [Q + ".weight_shape is missing"]),
    ("int4-group", put(Q + ".weight_shape", lambda t: t + 1), [Q + ".weight_shape", "[193, 193]", "[192, 192]"]),
    ("int4-group", put(Q + ".weight_packed", shorter), [Q + ".weight_packed", "[192, 23]", "[192, 24]"]),
    ("int4-group", put(Q + ".weight_scale", shorter), [Q + ".weight_scale", "[192, 5]", "[192, 1]"]),
    ("int4-group", put(Q + ".weight_scale", spoilt(NAN)), [Q + ".weight_scale", "NaN or infinite"]),
    ("int4-group", drop(Q + ".weight_packed"), [Q + ".weight_scale", Q + ".weight is missing"]),
    ("int4-asymmetric", put(Q + ".weight_zero_point", shorter), [Q + ".weight_zero_point", "[24, 11]", "[24, 12]"]),
    ("int8-packed", put(Q + ".weight_scale", longer), [Q + ".weight_scale", "[193, 1]", "[192, 1]"]),
    ("awq", drop(Q + ".scales"), [Q + ".scales is missing"]),
    ("awq", drop(Q + ".qzeros"), [Q + ".qzeros is missing"]),
    ("awq", drop(Q + ".qweight"), [Q + ".qzeros", Q + ".weight is missing"]),
    ("awq", put(Q + ".scales", spoilt(NAN)), [Q + ".scales", "NaN or infinite"]),
    ("awq", put(Q + ".qzeros", twice), [Q + ".qzeros", "[6, 48]", "[6, 24]"]),
    ("gptq", drop(Q + ".scales"), [Q + ".scales is missing"]),
    ("gptq", put(Q + ".scales", spoilt(NAN)), [Q + ".scales", "NaN or infinite"]),
    ("gptq", put(Q + ".g_idx", lambda t: t + 1), [Q + ".g_idx", "6"]),
    ("gptq", put(Q + ".qweight", lambda t: t[:-1]), [Q + ".qweight", "[23, 192]", "[24, 192]"]),
]


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """name -> (tensors, config) of the checkpoint before it is damaged, made once."""
    made = {}

    def get(name):
        if name not in made:
            folder = tmp_path_factory.mktemp(name)
            if name in family_checkpoints.CASES:
                model = family_checkpoints.make(name, folder / "model")
            else:
                model = quantized_checkpoints.make(name, folder)[0]
            tensors = {}
            for shard in sorted(model.glob("*.safetensors")):
                tensors.update(safetensors_torch.load_file(shard))
            made[name] = tensors, json.loads((model / "config.json").read_text())
            shutil.rmtree(folder)
        return made[name]

    return get


def write(folder, tensors, config):
    folder.mkdir()
    safetensors_torch.save_file({name: tensor.contiguous() for name, tensor in tensors.items()}, folder / "model.safetensors")
    (folder / "config.json").write_text(json.dumps(config))
    for file in ("tokenizer.json", "tokenizer_config.json"):
        shutil.copyfile(SOURCE_DIR / "sample_data" / "tiny-qwen3" / file, folder / file)
    return folder


def collect(tool, model, folder, code=0):
    prompts = folder / "rows.jsonl"
    prompts.write_text(json.dumps({"input_ids": list(range(40, 80))}) + "\n")
    return tool("oscar-collect", "--model", model, "--prompts", prompts, "-o", folder / "s.safetensors", "--tokens", 40, "--rows", 1,
                "--far-pairs", "none", "--dtype", "float32", "--device", "cpu", "-q", code=code)


@pytest.mark.parametrize("number", range(len(DAMAGES)))
def test_damage_is_named(number, whole, tool, tmp_path):
    name, damage, words = DAMAGES[number]
    tensors, config = whole(name)
    tensors, config = dict(tensors), json.loads(json.dumps(config))
    damage(tensors, config)
    message = collect(tool, write(tmp_path / "model", tensors, config), tmp_path, code=3)
    errors = [line for line in message.splitlines() if line.startswith("error: ")]
    assert len(errors) == 1 and all(word in errors[0] for word in words), message
    assert not (tmp_path / "s.safetensors").exists()


# The scale's shape may be any of these for the same numbers.
@pytest.mark.parametrize("name, scale, other", [
    ("fp8-channel", ".weight_scale", lambda t: t.reshape(-1)), ("int8-channel", ".weight_scale", lambda t: t.reshape(-1)),
    ("fp8-tensor", ".weight_scale", lambda t: t.reshape(())), ("fp8-tensor", ".weight_scale", lambda t: t.reshape(1, 1)),
    ("fp8-blocks", ".weight_scale_inv", lambda t: t), ("fp8-modelopt", ".weight_scale", lambda t: t.reshape(1))])
def test_edges_are_read(name, scale, other, whole, tool, tmp_path):
    tensors, config = whole(name)
    (tmp_path / "a").mkdir(), (tmp_path / "b").mkdir()
    collect(tool, write(tmp_path / "one", tensors, config), tmp_path / "a")
    changed = {key: other(t) if key.endswith(scale) else t for key, t in tensors.items()}
    if name == "fp8-blocks":
        changed = {key.replace("_scale_inv", "_scale"): t for key, t in changed.items()}  # the other name of it
        assert tensors[UP + ".weight"].shape == (200, 130) and tensors[UP + ".weight_scale_inv"].shape == (2, 2)
    collect(tool, write(tmp_path / "two", changed, config), tmp_path / "b")
    first, second = (safetensors_torch.load_file(tmp_path / side / "s.safetensors") for side in "ab")
    assert all(torch.equal(tensor, second[key]) for key, tensor in first.items())
