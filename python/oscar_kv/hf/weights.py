"""Facts from a loaded model's weights: the projection that makes keys, its compute dtype, and whether its numbers
equal the checkpoint's. Layers loaded in 4 or 8 bits (bitsandbytes, AWQ, GPTQ, HQQ, FP8, compressed-tensors,
torchao) hold codes instead of a weight; their keys and values are activations in the model's dtype."""

from collections.abc import Mapping

import torch
from torch import nn
from transformers import PreTrainedModel

from ..files.errors import InputError
from ..files.fingerprint import first_values, tensors_of
from ..files.foreign_files import FileName
from .adapters import base_of
from .offload import device_of, held

COMPUTED_IN = (torch.bfloat16, torch.float32)
FLOATS = (torch.bfloat16, torch.float32, torch.float16, torch.float64)
SAMPLE = 64


def key_projection(module: nn.Module) -> tuple[str, nn.Module] | tuple[None, None]:
    """(name, projection) that makes keys; Phi-3 has one for queries, keys and values. A layer that reads the cache of
    another one (Gemma 4) has only that of queries. (None, None) if it is not an attention module."""
    for name in ("q_proj",) if getattr(module, "is_kv_shared_layer", False) else ("k_proj", "qkv_proj"):
        if hasattr(module, name):
            return name, base_of(getattr(module, name))
    return None, None


def projection_of(module: nn.Module) -> nn.Module:
    """The projection of an attention module that makes keys."""
    projection = key_projection(module)[1]
    assert projection is not None
    return projection


def plain_weight(projection: nn.Module) -> torch.Tensor | None:
    """The weight of a projection, None if it holds codes. InputError if it is only a piece of a weight."""
    weight = getattr(projection, "weight", None)
    if not isinstance(weight, torch.Tensor):
        return None
    if hasattr(weight, "device_mesh"):
        raise InputError(
            "the weights of the model are divided among devices (tensor parallelism or FSDP), and "
            "oscar-kv reads whole projections; load the model without tp_plan and sharding"
        )
    plain = type(weight) in (torch.Tensor, torch.nn.Parameter) and weight.dtype in FLOATS
    return weight if plain and weight.dim() == 2 and not hasattr(weight, "quant_state") else None


def computed_in(projection: nn.Module, model: PreTrainedModel) -> torch.dtype:
    """The dtype of the keys from a projection."""
    weight = plain_weight(projection)
    return weight.dtype if weight is not None else model.get_input_embeddings().weight.dtype


def device_of_keys(projection: nn.Module) -> torch.device:
    """The device where a projection runs."""
    tensors = dict(projection.named_parameters(recurse=False)) | dict(projection.named_buffers(recurse=False))
    name = "weight" if isinstance(getattr(projection, "weight", None), torch.Tensor) else next(iter(tensors), None)
    if name is None:
        raise InputError(
            f"a {type(projection).__name__} that makes keys holds no tensors, so the device of its layer "
            "is not known; oscar-kv cannot serve it"
        )
    return device_of(projection, name)


def _samples(
    model: PreTrainedModel, names: Mapping[int, str], index: int, module: nn.Module
) -> list[tuple[str, torch.Tensor]]:
    """(name in the checkpoint, tensor) to compare for a layer: its key projection, or its norms if that holds codes."""
    name, projection = key_projection(module)
    if projection is not None and plain_weight(projection) is not None:
        return [(f"{names[id(module)]}.{name}.weight", held(projection, "weight"))]
    layer = names[id(module)].rpartition(".")[0]
    found = []
    for name, child in model.get_submodule(layer).named_modules():
        weight = getattr(child, "weight", None)
        if isinstance(weight, torch.Tensor) and weight.dim() == 1 and weight.dtype in FLOATS:
            found.append((f"{layer}.{name}.weight", held(child, "weight")))
    return found


def check_weights(model: PreTrainedModel, modules: Mapping[int, nn.Module], directory: FileName) -> None:
    """InputError if samples of a model in memory differ from its checkpoint: it only has the same name, or was
    trained further."""
    tensors = tensors_of(directory)
    names = {id(module): name for name, module in model.named_modules()}
    for index, module in modules.items():
        for name, weight in _samples(model, names, index, module):
            # Files saved from the model without its head lack the prefix.
            stored = first_values(tensors, name if name in tensors else name.removeprefix("model."), SAMPLE)
            if stored is not None and not torch.equal(
                stored.to(weight.dtype), weight.detach().flatten()[:SAMPLE].cpu()
            ):
                raise InputError(
                    f"the weights of layer {index} are not those of the checkpoint {directory}, which "
                    "the bundle was fitted on; pass checkpoint=DIR, or fit a bundle for this model"
                )
