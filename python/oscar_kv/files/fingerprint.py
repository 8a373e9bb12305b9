"""The fingerprint of a checkpoint on disk, as the toolchain writes it into a bundle. It covers config.json without
keys that programs rewrite, then names, types, shapes and samples of all tensors. lib/checkpoint/fingerprint.cpp
is the definition."""

import hashlib
import pathlib
from typing import Any

import torch

from .canonical_json import canonical_json
from .errors import InputError, quoted
from .foreign_files import CHUNK, FileName, is_present
from .safetensors_file import SafetensorsFile
from .strict_json import Fields, read_json

SAMPLE = 4096
MOST_CONFIG, MOST_INDEX = 4 << 20, 128 << 20

# Keys of config.json that change for an unchanged model; lib/checkpoint/canonical_config.cpp has the same list.
VOLATILE = frozenset(
    (
        "_attn_implementation",
        "_attn_implementation_autoset",
        "_commit_hash",
        "_name_or_path",
        "attn_implementation",
        "auto_map",
        "bos_token_id",
        "dtype",
        "eos_token_id",
        "output_attentions",
        "output_hidden_states",
        "pad_token_id",
        "return_dict",
        "torch_dtype",
        "torchscript",
        "transformers_version",
        "unsloth_fixed",
        "unsloth_version",
        "use_cache",
    )
)


def _without_volatile(config: dict[str, Any]) -> dict[str, Any]:
    def nested(key: str, value: object) -> bool:
        return isinstance(value, dict) and key.endswith("_config") and key != "quantization_config"

    return {
        key: _without_volatile(value) if nested(key, value) else value
        for key, value in config.items()
        if key not in VOLATILE
    }


def canonical_config(config: dict[str, Any]) -> str:
    """The text of a config.json that identifies its model."""
    return canonical_json(_without_volatile(config))


def _shards(index: pathlib.Path) -> list[str]:
    """The files named by an index, each inside the checkpoint's folder."""
    placed = Fields(read_json(index, MOST_INDEX, strict=False), index).object("weight_map").value
    if not placed:
        raise InputError(f"{index}: 'weight_map' names no tensor; complete the checkpoint")
    for tensor, name in placed.items():
        if not isinstance(name, str):
            raise InputError(f"{index}: the shard of the tensor {quoted(tensor)} is no name of a file")
        if (
            not name
            or name.startswith("/")
            or name.endswith("/")
            or len(name) > 1024
            or "\0" in name
            or "\\" in name
            or ".." in name.split("/")
        ):
            raise InputError(
                f"{index}: the file {quoted(name)} of the tensor {quoted(tensor)} is not inside the "
                "checkpoint's directory"
            )
    return sorted(set(placed.values()))


def _same(one: SafetensorsFile, other: SafetensorsFile, name: str) -> bool:
    """Whether two files hold the same tensor under a name."""
    if one is other:
        return True
    a, b = one.entries[name], other.entries[name]
    if (a.dtype, a.shape, a.end - a.begin) != (b.dtype, b.shape, b.end - b.begin):
        return False
    return all(
        one.bytes_of(name, at, CHUNK) == other.bytes_of(name, at, CHUNK) for at in range(0, a.end - a.begin, CHUNK)
    )


def tensors_of(directory: FileName) -> dict[str, SafetensorsFile]:
    """name -> SafetensorsFile with the tensor, over all shards of a checkpoint. The index entries of single tensors
    do not count."""
    directory = pathlib.Path(directory)
    single, index = directory / "model.safetensors", directory / "model.safetensors.index.json"
    if is_present(single):
        file = SafetensorsFile(single)
        return dict.fromkeys(file.entries, file)
    if not is_present(index):
        raise InputError(
            f"{directory}: has neither model.safetensors nor model.safetensors.index.json; the "
            "fingerprint of the checkpoint is taken from them"
        )
    held: dict[str, SafetensorsFile] = {}
    opened = set()
    for name in _shards(index):
        if not is_present(directory / name):
            raise InputError(f"{index}: the shard {quoted(name)} is missing; complete the checkpoint")
        file = SafetensorsFile(directory / name)
        if file.identity in opened:  # one file under two names
            continue
        opened.add(file.identity)
        for tensor in file.entries:
            if not _same(held.setdefault(tensor, file), file, tensor):
                raise InputError(
                    f"{directory}: two shards hold the tensor {quoted(tensor)} with different numbers, "
                    "and engines do not agree which of them counts; remove one of them"
                )
    return held


def checkpoint_fingerprint(directory: FileName) -> str:
    """ "v2:sha256:..." of the checkpoint in a directory; reads 12 KiB per tensor."""
    directory = pathlib.Path(directory)
    path = directory / "config.json"
    config = Fields(read_json(path, MOST_CONFIG, strict=False), path).value
    digest = hashlib.sha256(f"oscar-fingerprint-2\n{canonical_config(config)}\n".encode())
    for name, file in sorted(tensors_of(directory).items(), key=lambda item: item[0].encode()):
        entry = file.entries[name]
        size = entry.end - entry.begin
        digest.update(f"{len(name.encode())}:{name} {entry.dtype} {entry.shape_text()}\n".encode())
        if size <= 3 * SAMPLE:
            digest.update(file.bytes_of(name))
            continue
        for start in (0, (size - SAMPLE) // 2, size - SAMPLE):
            digest.update(file.bytes_of(name, start, SAMPLE))
    return "v2:sha256:" + digest.hexdigest()


def first_values(tensors: dict[str, SafetensorsFile], name: str, count: int) -> torch.Tensor | None:
    """The first values of a tensor from tensors_of(), in its stored dtype; None if there is no such float tensor."""
    file = tensors.get(name)
    if file is None or file.entries[name].begin == file.entries[name].end:
        return None
    kind = {"F32": torch.float32, "F16": torch.float16, "BF16": torch.bfloat16}.get(file.entries[name].dtype)
    if kind is None:
        return None
    return torch.frombuffer(bytearray(file.bytes_of(name, 0, count * kind.itemsize)), dtype=kind)
