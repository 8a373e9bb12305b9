"""Families in the formats that their published checkpoints have: latent attention, experts and delta nets from quantized weights
give the logits and the moments that plain weights of the same numbers give, to the bit."""
import json
import re

import pytest

np = pytest.importorskip("numpy")
torch = pytest.importorskip("torch")
pytest.importorskip("transformers")
safetensors_torch = pytest.importorskip("safetensors.torch")
pytest.importorskip("compressed_tensors")

import family_checkpoints  # noqa: E402  (needs the packages above)
import quantized_checkpoints  # noqa: E402
from conftest import DEVICE, SOURCE_DIR  # noqa: E402
from test_families import LENGTHS, sequences  # noqa: E402

torch.set_num_threads(1)
EXPERTS = r"experts\.\d+\.\w+_proj"
ALL = rf"(self_attn\.(q|k|v|o|q_a|q_b|kv_a|kv_b)_proj(_with_mqa)?|mlp\.\w+_proj|{EXPERTS}|shared_experts?\.\w+_proj|block_sparse_moe\.{EXPERTS}|experts\.\d+\.w\d|" \
      r"linear_attn\.(in_proj_qkvz|in_proj_qkv|in_proj_z|out_proj))$"
WHOLE_GROUPS = dict(hidden_size=128, moe_intermediate_size=32)  # groups of 32 columns
# name -> (case of family_checkpoints.py, format, which modules are quantized, settings)
CASES = {
    "deepseek-v3 in FP8": ("deepseek-v3", "fp8-blocks", ALL, {}),
    "Kimi K2 Thinking": ("deepseek-v3", "int4-group", EXPERTS, WHOLE_GROUPS),
    "GLM-4.7 in INT4": ("glm4-moe", "int4-group", EXPERTS, WHOLE_GROUPS),
    "GLM-4.7-FP8": ("glm4-moe", "fp8-channel", ALL, {}),
    "MiniMax-M2": ("minimax-m2", "fp8-blocks", ALL, {}),
    "Qwen3-Next-FP8": ("qwen3-next", "fp8-blocks", ALL, {}),
    "Qwen3-MoE in NVFP4": ("qwen3-moe", "nvfp4", EXPERTS, WHOLE_GROUPS),
    "Qwen3-MoE by GPTQ": ("qwen3-moe", "gptq", EXPERTS, WHOLE_GROUPS),
}


def make(name, folder):
    """(quantized folder, plain folder, number of quantized modules)"""
    family, form, pattern, settings = CASES[name]
    plain = family_checkpoints.make(family, folder / "plain", SOURCE_DIR / "sample_data" / "tiny-qwen3", **settings)
    quantize, quantization, _ = quantized_checkpoints.FORMATS[form]
    stored, meant, count = {}, {}, 0
    for key, tensor in safetensors_torch.load_file(plain / "model.safetensors").items():
        module, _, last = key.rpartition(".")
        if last != "weight" or tensor.dim() != 2 or not re.search(pattern, module):
            stored[key] = meant[key] = tensor
            continue
        parts, meant[key] = quantize(tensor)
        stored.update({f"{module}.{part}": value for part, value in parts.items() if value is not None})
        count += 1
    if quantization["quant_method"] == "compressed-tensors":
        quantization = {**quantization, "config_groups": {"group_0": dict(targets=["Linear"], weights={})}, "ignore": ["lm_head"]}
    config = json.loads((plain / "config.json").read_text())
    quantized_checkpoints.save(folder / "quantized", {**config, "quantization_config": quantization}, stored)
    safetensors_torch.save_file({key: tensor.contiguous() for key, tensor in meant.items()}, plain / "model.safetensors", {"format": "pt"})
    return folder / "quantized", plain, count


def results(tool, model, folder, *options):
    """Logits and moments."""
    folder.mkdir()
    ids, rows = folder / "ids.txt", folder / "rows.jsonl"
    ids.write_text("\n".join(" ".join(map(str, s)) for s in sequences()) + "\n")
    rows.write_text("".join(json.dumps({"input_ids": s}) + "\n" for s in sequences()))
    tool("oscar_logits", model, ids, folder / "logits.bin", "--device", DEVICE, *options)
    tool("oscar-collect", "--model", model, "--prompts", rows, "-o", folder / "s", "--tokens", sum(LENGTHS), "--seq-len", max(LENGTHS),
         "--rows", 20, "--far-pairs", "6,20", "--dtype", "float32", "--device", DEVICE, "-q", *options)
    return torch.from_numpy(np.fromfile(folder / "logits.bin", np.float32)), safetensors_torch.load_file(folder / "s")


@pytest.mark.parametrize("name", CASES)
def test_quantized_weights_are_what_they_mean(name, tool, tmp_path):
    quantized, plain, count = make(name, tmp_path)
    assert count >= 12
    expected, moments = results(tool, plain, tmp_path / "a")
    logits, found = results(tool, quantized, tmp_path / "b")
    assert torch.equal(logits, expected) and torch.isfinite(logits).all()
    assert found.keys() == moments.keys()
    for key, tensor in moments.items():
        assert torch.equal(found[key], tensor), key
