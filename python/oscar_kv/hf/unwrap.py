"""Finds the transformers model that computes, inside wrappers of peft, torch.compile, DataParallel, accelerate and
others. They keep it as a submodule. The model's own generate() would never call a hook on the wrapper."""

from typing import Any

from torch import nn
from transformers import PreTrainedModel

from ..files.errors import InputError, quoted

# Their parameters are pieces of flat tensors, so no projection holds its weight.
SHARDED = ("FullyShardedDataParallel", "FSDPModule", "DeepSpeedEngine")


def _outermost(module: nn.Module) -> list[PreTrainedModel]:
    """Transformers models in a module that are not part of another one."""
    found = []
    for child in module.children():
        found += [child] if isinstance(child, PreTrainedModel) else _outermost(child)
    return found


def _refuse_prefixes(model: nn.Module) -> None:
    """peft adapters that put their own keys and values into a cache; these are not activations of the model."""
    for module in model.modules():
        configs = getattr(module, "peft_config", None)
        for config in configs.values() if isinstance(configs, dict) else ():
            kind = str(getattr(getattr(config, "peft_type", ""), "value", getattr(config, "peft_type", "")))
            if kind in ("PREFIX_TUNING", "CARTRIDGE"):
                raise InputError(
                    f"the adapter of this {type(model).__name__} is of the kind {kind}, which brings "
                    "keys and values of its own; the 2-bit cache holds those of the model only"
                )


def unwrapped(model: Any) -> PreTrainedModel:
    """The transformers model inside any wrapper. InputError if there is none or more than one, or if its weights are
    in pieces."""
    name = type(model).__name__
    if not isinstance(model, nn.Module):
        held = getattr(model, "model", None)  # a pipeline
        hint = "pass what from_pretrained() of transformers returns"
        if isinstance(held, nn.Module):
            hint = "pass its attribute .model"
        raise InputError(f"a {quoted(name)} is no model; {hint}")
    if any(kind.__name__ in SHARDED for module in model.modules() for kind in type(module).__mro__):
        raise InputError(
            f"the weights of this {name} are sharded (FSDP or DeepSpeed), and oscar-kv reads whole "
            "projections; load the model without sharding"
        )
    _refuse_prefixes(model)
    if not isinstance(model, PreTrainedModel):
        found = {id(inner): inner for inner in _outermost(model)}
        if len(found) != 1:
            raise InputError(
                f"{quoted(name)} holds {len(found)} models of transformers, expected one; pass the model "
                "whose generate() shall use the bundle"
            )
        model = next(iter(found.values()))
    if getattr(model, "_compiled_call_impl", None) is not None:
        raise InputError(
            f"{type(model).__name__} was compiled in place by model.compile(), and the 2-bit cache "
            "cannot be compiled; attach the bundle to a model that is not compiled"
        )
    return model
