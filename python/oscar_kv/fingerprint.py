"""The fingerprint of a checkpoint on disk, as the toolchain writes it into a bundle: geometry, rotary parameters and a
sample of every tensor's bytes. lib/checkpoint/fingerprint.cpp and model_config.cpp are the definition."""
import hashlib
import math
import pathlib

import torch

from .errors import InputError, quoted
from .safetensors_file import SafetensorsFile
from .strict_json import Fields, read_json

SAMPLE = 4096
ROPE_TYPES = ("default", "linear", "llama3", "yarn")
# architecture: model_type, head_dim and KV heads where config.json is silent, and which layers slide.
FAMILIES = {
    "LlamaForCausalLM": ("llama", None, None, "none"),
    "MistralForCausalLM": ("mistral", None, 8, "every layer"),
    "Qwen2ForCausalLM": ("qwen2", None, 32, "by layer"),
    "Qwen3ForCausalLM": ("qwen3", 128, 32, "by layer"),
}


def _architecture(fields):
    names, kind = fields.value.get("architectures"), fields.text("model_type", "")
    name = names[0] if names else kind
    for architecture, (model_type, *_) in FAMILIES.items():
        if name in (architecture, model_type):
            return architecture
    raise InputError(f"{fields.where}: the architecture {quoted(name)} is not one that bundles are made for; those are "
                     f"{', '.join(FAMILIES)}")


def _windows(fields, layers, kind):
    if kind == "none":
        return [0] * layers
    window = fields.value.get("sliding_window", 4096) or 0
    first = 0
    if kind == "by layer":
        window = window if fields.flag("use_sliding_window", False) else 0
        first = fields.integer("max_window_layers", default=28)
    types = fields.value.get("layer_types")
    slides = [t == "sliding_attention" for t in types] if types else [window > 0 and i >= first for i in range(layers)]
    return [window if s else 0 for s in slides]


def _rope(fields, most_positions):
    """theta, factor, low, high, original length, beta_fast, beta_slow, attention factor; and type, truncate."""
    rope = fields.value.get("rope_scaling") or fields.value.get("rope_parameters") or {}
    given = Fields(rope, f"{fields.where}, rope_parameters")
    theta = given.number("rope_theta", fields.number("rope_theta", 10000.0))
    kind = given.text("rope_type", given.text("type", "default"))
    if kind not in ROPE_TYPES:
        raise InputError(f"{fields.where}: the rope type {quoted(kind)} is not supported; supported are {', '.join(ROPE_TYPES)}")
    factor, low, high, original, fast, slow, attention, truncate = 1.0, 1.0, 4.0, 0, 32.0, 1.0, 1.0, True
    if kind in ("llama3", "yarn"):
        name = "original_max_position_embeddings"
        original = fields.integer(name, default=given.integer(name, default=most_positions))
    if kind in ("linear", "llama3"):
        factor = given.number("factor")
    if kind == "llama3":
        low, high = given.number("low_freq_factor"), given.number("high_freq_factor")
    if kind == "yarn":
        factor = given.number("factor", most_positions / original)
        fast, slow = given.number("beta_fast", 0) or 32.0, given.number("beta_slow", 0) or 1.0
        truncate = given.flag("truncate", True)

        def temperature(scale):
            return 1.0 if factor <= 1 else 0.1 * scale * math.log(factor) + 1.0

        scale, all_dim = given.number("mscale", 0.0), given.number("mscale_all_dim", 0.0)
        both = temperature(scale) / temperature(all_dim) if scale and all_dim else temperature(1.0)
        attention = given.number("attention_factor", both)
    return ROPE_TYPES.index(kind), truncate, [theta, factor, low, high, original, fast, slow, attention]


def _number(value):
    return "%.17g" % value


def geometry_text(config, where):
    fields = Fields(config, where)
    architecture = _architecture(fields)
    _, head_dim, kv_heads, kind = FAMILIES[architecture]
    layers, hidden = fields.integer("num_hidden_layers"), fields.integer("hidden_size")
    heads = fields.integer("num_attention_heads")
    if "num_key_value_heads" in config or kv_heads is None:
        kv_heads = fields.integer("num_key_value_heads", default=heads)
    head_dim = fields.integer("head_dim", default=head_dim or hidden // heads)
    sizes = [layers, hidden, fields.integer("intermediate_size"), fields.integer("vocab_size"), heads, kv_heads, head_dim]
    most = {"llama": 2048, "mistral": 131072}.get(FAMILIES[architecture][0], 32768)
    rope, truncate, numbers = _rope(fields, fields.integer("max_position_embeddings", default=most))
    text = "oscar-fingerprint-1\n" + architecture + "\n" + "".join(f"{n} " for n in sizes)
    text += _number(fields.number("rms_norm_eps", 1e-6)) + (" tied\n" if fields.flag("tie_word_embeddings", False) else " untied\n")
    text += f"rope {rope}" + (" 1 " if truncate else " 0 ") + "".join(f"{_number(x)} " for x in numbers)
    return text + "\nwindows" + "".join(f" {w}" for w in _windows(fields, layers, kind)) + "\n"


def _tensors(directory):
    """name -> file that holds it."""
    single, index = directory / "model.safetensors", directory / "model.safetensors.index.json"
    if single.exists():
        file = SafetensorsFile(single)
        return {name: file for name in file.entries}
    if not index.exists():
        raise InputError(f"{directory}: has neither model.safetensors nor model.safetensors.index.json; the fingerprint of "
                         "the checkpoint is taken from them")
    placed = Fields(read_json(index, 128 << 20), index).object("weight_map").value
    files = {name: SafetensorsFile(directory / name) for name in set(placed.values())}
    for tensor, name in placed.items():
        if tensor not in files[name].entries:
            raise InputError(f"{index}: the shard {quoted(name)} lacks the tensor {quoted(tensor)}; complete the checkpoint")
    return {tensor: files[name] for tensor, name in placed.items()}


def checkpoint_fingerprint(directory):
    """"sha256:..." of the checkpoint in a directory; reads 12 KiB of each tensor."""
    directory = pathlib.Path(directory)
    config = directory / "config.json"
    digest = hashlib.sha256(geometry_text(read_json(config, 4 << 20), config).encode())
    for name, file in sorted(_tensors(directory).items(), key=lambda item: item[0].encode()):
        entry, data = file.entries[name], file.bytes_of(name)
        digest.update(f"{len(name.encode())}:{name} {entry.dtype} {entry.shape_text()}\n".encode())
        if len(data) <= 3 * SAMPLE:
            digest.update(data)
            continue
        for start in (0, (len(data) - SAMPLE) // 2, len(data) - SAMPLE):
            digest.update(data[start:start + SAMPLE])
    return "sha256:" + digest.hexdigest()


def first_values(directory, name, count):
    """The first values of a tensor of the checkpoint, in the type that it is stored in; None where it has no such float."""
    file = _tensors(pathlib.Path(directory)).get(name)
    kind = file and {"F32": torch.float32, "F16": torch.float16, "BF16": torch.bfloat16}.get(file.entries[name].dtype)
    if not kind or file.entries[name].begin == file.entries[name].end:
        return None
    return torch.frombuffer(bytearray(file.bytes_of(name)[:count * kind.itemsize]), dtype=kind)
