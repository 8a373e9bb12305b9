"""Small checkpoints with quantized weights, each beside a plain one of exactly the numbers that it means.

A format is a function: weight [N, K] -> the tensors that are stored for it, and the weight that they mean, in FP32. Those of
compressed-tensors are packed and unpacked by that package; the others by plain torch here, from the published layouts."""

import json
import shutil

import torch
import transformers
from safetensors.torch import save_file

FP8 = torch.float8_e4m3fn


def fp8_codes(weight, scale):
    return (weight / scale).clamp(-448, 448).to(FP8)


def fp8_blocks(weight, rows=128, columns=128):
    """DeepSeek and Qwen: X.weight_scale_inv, which multiplies; the last blocks are cut."""
    n, k = weight.shape
    padded = torch.zeros(-(-n // rows) * rows, -(-k // columns) * columns)
    padded[:n, :k] = weight
    tiles = padded.view(padded.shape[0] // rows, rows, -1, columns)
    scale = tiles.abs().amax((1, 3)) / 448
    wide = scale.repeat_interleave(rows, 0).repeat_interleave(columns, 1)[:n, :k]
    codes = fp8_codes(weight, wide)
    return {"weight": codes, "weight_scale_inv": scale}, codes.float() * wide


def fp8_tensor(weight):
    """modelopt: one scale, and one of activations, which is not for us."""
    scale = weight.abs().max() / 448
    codes = fp8_codes(weight, scale)
    return {"weight": codes, "weight_scale": scale, "input_scale": torch.tensor(0.01)}, codes.float() * scale


def words(codes, bits, place=None):
    """[R, C] -> int32 [R, C bits / 32]; place[j]: where in its word code j stands, counted from the lowest bits."""
    n = 32 // bits
    place = torch.tensor(list(range(n)) if place is None else place)
    value = (codes.long().view(codes.shape[0], -1, n) << (place * bits)).sum(-1)
    return torch.where(value >= 2**31, value - 2**32, value).to(torch.int32)


def levels(weight, groups, bits):
    """codes [N, K], zero points and FP16 scales [N, G], of groups[k] for column k."""
    n, count = weight.shape[0], int(groups.max()) + 1
    low, high = torch.zeros(n, count), torch.zeros(n, count)
    index = groups.expand(n, -1)
    low.scatter_reduce_(1, index, weight, "amin"), high.scatter_reduce_(1, index, weight, "amax")
    scale = ((high - low) / (2**bits - 1)).half()
    zero = (-low / scale.float()).round().clamp(1, 2**bits - 1)  # 0 has no stored form in the first version of GPTQ
    codes = (weight / scale.float()[:, groups] + zero[:, groups]).round().clamp(0, 2**bits - 1)
    return codes, zero, scale, (codes - zero[:, groups]) * scale.float()[:, groups]


def awq(weight, group=32):
    codes, zero, scale, meant = levels(weight, torch.arange(weight.shape[1]) // group, 4)
    place = [0, 4, 1, 5, 2, 6, 3, 7]  # of columns 0 to 7
    return {"qweight": words(codes.t(), 4, place), "qzeros": words(zero.t(), 4, place), "scales": scale.t()}, meant


def gptq(bits, offset, order):
    def quantize(weight, group=32):
        groups = torch.arange(weight.shape[1]) // group
        if order:
            groups = groups[torch.randperm(len(groups), generator=torch.Generator().manual_seed(weight.shape[0]))]
        codes, zero, scale, meant = levels(weight, groups, bits)
        return {"qweight": words(codes, bits).t(), "qzeros": words(zero.t() - offset, bits), "scales": scale.t(),
                "g_idx": groups.to(torch.int32)}, meant

    return quantize


def nvfp4_modelopt(weight):
    """The numbers of compressed-tensors in the tensors of modelopt: the global scale multiplies."""
    from compressed_tensors.compressors.nvfp4.helpers import unpack_fp4_from_uint8

    stored, _ = NVFP4(weight)
    whole = 1 / stored["weight_global_scale"].reshape(())
    codes = unpack_fp4_from_uint8(stored["weight_packed"], *weight.shape, dtype=torch.float32)
    scale = stored["weight_scale"].float() * whole
    return {"weight": stored["weight_packed"], "weight_scale": stored["weight_scale"], "weight_scale_2": whole,
            "input_scale": torch.tensor(0.5)}, codes * scale.repeat_interleave(16, 1)


def nvfp4_awq(weight):
    """The same of a weight whose columns were divided by factors, which multiply what the layer reads."""
    factors = torch.rand(weight.shape[1], generator=torch.Generator().manual_seed(weight.shape[0])) + 0.5
    stored, meant = nvfp4_modelopt(weight / factors)
    return {**stored, "pre_quant_scale": factors}, meant * factors


def mxfp8(weight):
    """OCP Microscaling: E4M3 codes, 32 of which share a power of two."""
    grouped = weight.view(weight.shape[0], -1, 32)
    power = torch.floor(torch.log2(grouped.abs().amax(-1).clamp_min(2.0**-100))) - 7
    codes = (grouped / torch.exp2(power)[..., None]).to(torch.float8_e4m3fn)
    meant = (codes.float() * torch.exp2(power)[..., None]).view(weight.shape)
    return {"weight": codes.view(weight.shape), "weight_scale": (power + 127).to(torch.uint8)}, meant


def compressed(kind, **arguments):
    """A format of compressed-tensors, packed and unpacked by that package."""

    def quantize(weight):
        from compressed_tensors.compressors import BaseCompressor
        from compressed_tensors.compressors.nvfp4.helpers import unpack_fp4_from_uint8
        from compressed_tensors.quantization import QuantizationArgs, QuantizationScheme
        from compressed_tensors.quantization.lifecycle.forward import dequantize
        from compressed_tensors.quantization.utils import calculate_qparams, generate_gparam

        compressor = BaseCompressor.get_value_from_registry(kind)
        args = QuantizationArgs(**arguments)
        scheme = QuantizationScheme(targets=["Linear"], weights=args)
        n, k = weight.shape
        grouped = weight.view(n, -1, args.group_size) if args.group_size else weight.view(n, 1, k)
        if args.strategy == "tensor":
            grouped = weight.view(1, 1, -1)
        low, high, whole = grouped.amin(-1), grouped.amax(-1), None
        if args.strategy == "tensor_group":
            whole = generate_gparam(weight.min(), weight.max())
        scale, zero = calculate_qparams(low, high, args, global_scale=whole)
        state = {"weight": weight, "weight_scale": scale, "weight_zero_point": zero}
        if whole is not None:
            state["weight_global_scale"] = whole
        stored = compressor.compress(state, scheme)
        if whole is not None:  # decompress() would round the scales to BF16
            codes = unpack_fp4_from_uint8(stored["weight_packed"], n, k, dtype=torch.float32)
            return dict(stored), dequantize(codes, stored["weight_scale"].float(), args=args, global_scale=whole)
        return dict(stored), compressor.decompress(stored, scheme)["weight"].float()

    return quantize


NVFP4 = compressed("nvfp4-pack-quantized", num_bits=4, type="float", strategy="tensor_group", group_size=16, symmetric=True)


def packed(**arguments):
    return compressed("pack-quantized", type="int", **arguments), dict(quant_method="compressed-tensors", format="pack-quantized")


# name -> (format, quantization_config, changes to the model)
CUT = dict(hidden_size=130, intermediate_size=200)
WHOLE = dict(hidden_size=256, intermediate_size=128, num_attention_heads=12, num_key_value_heads=4)
BLOCKS = dict(quant_method="fp8", activation_scheme="dynamic", fmt="e4m3", weight_block_size=[128, 128],
              modules_to_not_convert=["lm_head", "model.layers.1.mlp.down_proj"])
FORMATS = {
    "fp8-blocks": (fp8_blocks, BLOCKS, CUT),
    "fp8-whole-blocks": (fp8_blocks, BLOCKS, WHOLE),
    "fp8-channel": (compressed("float-quantized", num_bits=8, type="float", strategy="channel", symmetric=True),
                    dict(quant_method="compressed-tensors", format="float-quantized"), CUT),
    "fp8-fbgemm": (compressed("float-quantized", num_bits=8, type="float", strategy="channel", symmetric=True),
                   dict(quant_method="fbgemm_fp8", activation_scale_ub=1200.0, modules_to_not_convert=["lm_head"]), CUT),
    "fp8-tensor": (compressed("float-quantized", num_bits=8, type="float", strategy="tensor", symmetric=True),
                   dict(quant_method="compressed-tensors", format="float-quantized"), CUT),
    "fp8-modelopt": (fp8_tensor, dict(quant_method="modelopt", quant_algo="FP8", ignore=["lm_head"]), CUT),
    "int8-channel": (compressed("int-quantized", num_bits=8, type="int", strategy="channel", symmetric=True),
                     dict(quant_method="compressed-tensors", format="int-quantized"), CUT),
    "mxfp4-linear": (compressed("mxfp4-pack-quantized", num_bits=4, type="float", strategy="group", group_size=32,
                                symmetric=True, scale_dtype=torch.uint8),
                     dict(quant_method="compressed-tensors", format="mxfp4-pack-quantized"), {}),
    "int4-group": (*packed(num_bits=4, strategy="group", group_size=32, symmetric=True), {}),
    "int4-asymmetric": (*packed(num_bits=4, strategy="group", group_size=16, symmetric=False), {}),
    "int4-channel": (*packed(num_bits=4, strategy="channel", symmetric=False), CUT),
    "int8-packed": (*packed(num_bits=8, strategy="channel", symmetric=True), CUT),
    "nvfp4": (NVFP4, dict(quant_method="compressed-tensors", format="nvfp4-pack-quantized"), {}),
    "nvfp4-modelopt": (nvfp4_modelopt, dict(quant_method="modelopt", quant_algo="NVFP4", ignore=["lm_head"]), {}),
    "nvfp4-awq": (nvfp4_awq, dict(quant_method="modelopt", quant_algo="NVFP4_AWQ", ignore=["lm_head"]), {}),
    "mxfp8": (mxfp8, dict(quant_method="mxfp8", ignore=["lm_head"]), {}),
    "auto-round": (gptq(4, 0, False), dict(quant_method="auto-round", bits=4, packing_format="auto_round"), {}),
    "auto-round-gptq": (gptq(4, 1, False), dict(quant_method="auto-round", packing_format="auto_round:auto_gptq"), {}),
    "awq": (awq, dict(quant_method="awq", bits=4, group_size=32, zero_point=True, version="gemm"), {}),
    "gptq": (gptq(4, 1, False), dict(quant_method="gptq", bits=4, group_size=32, checkpoint_format="gptq"), {}),
    "gptq-order": (gptq(8, 1, True), dict(quant_method="gptq", bits=8, group_size=32, desc_act=True), {}),
    "gptq-v2": (gptq(4, 0, True), dict(quant_method="gptq", bits=4, desc_act=True, checkpoint_format="gptq_v2"), {}),
}
NAMES = [*FORMATS, "mxfp4-experts"]
# Left out of quantization in every checkpoint, so that plain and quantized modules stand side by side.
PLAIN = "model.layers.1.mlp.down_proj"
IGNORE = ["lm_head", r"re:.*layers\.1\.mlp\.down_.*"]


def qwen3(changes, seed=11):
    from family_checkpoints import randomize

    settings = dict(vocab_size=8192, hidden_size=192, intermediate_size=160, num_hidden_layers=2, num_attention_heads=6,
                    num_key_value_heads=2, head_dim=32, max_position_embeddings=4096, tie_word_embeddings=False,
                    bos_token_id=1, eos_token_id=2, pad_token_id=None)
    model = transformers.AutoModelForCausalLM.from_config(transformers.AutoConfig.for_model("qwen3", **{**settings, **changes}))
    randomize(model, seed)
    return model


def save(folder, config, tensors):
    """Two shards: scales lie in another one than what they scale."""
    folder.mkdir()
    shards = {"model-00001-of-00002.safetensors": {}, "model-00002-of-00002.safetensors": {}}
    first, second = shards
    for name, tensor in tensors.items():
        shards[second if "scale" in name or "zeros" in name else first][name] = tensor.contiguous()
    placed = {name: file for file, content in shards.items() for name in content}
    for file, content in shards.items():
        save_file(content, folder / file, metadata={"format": "pt"})
    (folder / "model.safetensors.index.json").write_text(json.dumps(dict(metadata={}, weight_map=placed)))
    (folder / "config.json").write_text(json.dumps(config))


def copy_tokenizer(tokenizer, folder):
    for file in ("tokenizer.json", "tokenizer_config.json") if tokenizer is not None else ():
        for kind in ("quantized", "plain"):
            shutil.copyfile(tokenizer / file, folder / kind / file)


def make(name, folder, tokenizer=None):
    """(quantized folder, plain folder, name -> FP32 weight of the quantized modules)."""
    if name == "mxfp4-experts":
        return make_gpt_oss(folder, tokenizer)
    quantize, quantization, changes = FORMATS[name]
    model = qwen3(changes)
    stored, meant = {}, {}
    for key, tensor in model.state_dict().items():
        if not key.endswith("_proj.weight") or key == PLAIN + ".weight":
            stored[key] = tensor
            continue
        parts, meant[key] = quantize(tensor)
        module = key.removesuffix("weight")
        stored.update({module + part: value for part, value in parts.items() if value is not None})
    if quantization["quant_method"] == "compressed-tensors":
        # The key of the group is any text, and says nothing.
        quantization = {**quantization, "config_groups": {"FP8_OR_NOT": dict(targets=["Linear"], weights={})}, "ignore": IGNORE}
    config = {**model.config.to_dict(), "architectures": ["Qwen3ForCausalLM"], "quantization_config": quantization}
    save(folder / "quantized", config, stored)
    model.load_state_dict({**model.state_dict(), **meant})
    model.save_pretrained(folder / "plain")
    copy_tokenizer(tokenizer, folder)
    return folder / "quantized", folder / "plain", meant


E2M1 = torch.tensor([0, 0.5, 1, 1.5, 2, 3, 4, 6, -0.0, -0.5, -1, -1.5, -2, -3, -4, -6])


def mxfp4_experts(weight):
    """[E, K, N] of gpt-oss -> blocks [E, N, K / 32, 16] and scales [E, N, K / 32]."""
    e, k, n = weight.shape
    grouped = weight.transpose(1, 2).reshape(e, n, k // 32, 32)
    exponent = grouped.abs().amax(-1).log2().floor().clamp(-100, 100) - 2
    codes = ((grouped / exponent.exp2().unsqueeze(-1)).unsqueeze(-1) - E2M1).abs().argmin(-1)
    return ((codes[..., ::2] + 16 * codes[..., 1::2]).to(torch.uint8), (exponent + 127).to(torch.uint8))


def make_gpt_oss(folder, tokenizer=None):
    """As make(): gpt-oss with experts in MXFP4; what they mean is told by transformers."""
    import family_checkpoints
    from transformers.integrations.mxfp4 import convert_moe_packed_tensors

    _, changes, _ = family_checkpoints.CASES["gpt-oss"]
    settings = {**family_checkpoints.BASE, **changes, "hidden_size": 96, "intermediate_size": 64, "num_hidden_layers": 2,
                "layer_types": family_checkpoints.PERIODIC[:2]}
    model = transformers.AutoModelForCausalLM.from_config(transformers.AutoConfig.for_model("gpt_oss", **settings))
    family_checkpoints.randomize(model, seed=21)
    stored, meant = {}, {}
    for key, tensor in model.state_dict().items():
        if key.endswith(("experts.gate_up_proj", "experts.down_proj")):
            blocks, scales = mxfp4_experts(tensor)
            stored[key + "_blocks"], stored[key + "_scales"] = blocks, scales
            meant[key] = convert_moe_packed_tensors(blocks, scales, dtype=torch.float32).contiguous()
            assert (meant[key] - tensor).abs().max() < 0.3 * tensor.abs().max()
        else:
            stored[key] = tensor
    quantization = dict(quant_method="mxfp4", modules_to_not_convert=["model.layers.*.self_attn", "lm_head"])
    save(folder / "quantized", {**model.config.to_dict(), "architectures": ["GptOssForCausalLM"],
                                "quantization_config": quantization}, stored)
    model.load_state_dict({**model.state_dict(), **meant})
    model.save_pretrained(folder / "plain")
    copy_tokenizer(tokenizer, folder)
    return folder / "quantized", folder / "plain", meant
