"""The fingerprint of a checkpoint on disk, as the toolchain writes it into a bundle: geometry, rotary parameters and a
sample of every tensor's bytes. lib/checkpoint/fingerprint.cpp is the definition, and model_families.py the first part."""
import hashlib
import pathlib

import torch

from .errors import InputError, quoted
from .model_families import geometry_text
from .safetensors_file import SafetensorsFile
from .strict_json import Fields, read_json

SAMPLE = 4096


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
