"""Adapters (LoRA, IA3 ...) that are applied beside the weights of a model. Their layers are recognized by their
attributes, not by a class of peft, which need not be installed. base_layer is the checkpoint's layer; an active
adapter that is not merged changes its output. original_module is one that peft trains a copy of (modules_to_save)."""

import warnings
from collections.abc import Iterator, Mapping
from typing import Any

from torch import nn

from ..files.errors import InputError, quoted
from ..format.bundle import adapter_refusal


def base_of(module: nn.Module) -> nn.Module:
    """The checkpoint's layer below any adapters."""
    while (inner := getattr(module, "base_layer", None)) is not None:
        module = inner
    return module


def _applied(module: nn.Module) -> list[str]:
    """Names of the adapters that currently change a layer's output."""
    copies: Any = getattr(module, "modules_to_save", None)
    if hasattr(module, "original_module") and hasattr(copies, "keys"):
        active = getattr(module, "active_adapters", None) or getattr(module, "active_adapter", None) or []
        active = [active] if isinstance(active, str) else list(active)
        return [] if getattr(module, "disable_adapters", False) else [name for name in active if name in copies]
    if (
        not hasattr(module, "base_layer")
        or getattr(module, "merged", False)
        or getattr(module, "disable_adapters", False)
    ):
        return []
    active = getattr(module, "active_adapters", None) or getattr(module, "active_adapter", None) or ["default"]
    active = [active] if isinstance(active, str) else list(active)
    names = getattr(module, "adapter_layer_names", ())
    held = [getattr(module, name) for name in names if hasattr(module, name)]
    return [name for name in active if not held or any(hasattr(x, "keys") and name in x for x in held)]


def applied(model: nn.Module) -> Iterator[tuple[str, str]]:
    """(layer name, adapter name) of applied adapters, one a layer."""
    return ((name, names[0]) for name, module in model.named_modules() if (names := _applied(module)))


def check_adapters(modules: Mapping[int, nn.Module]) -> None:
    """InputError if queries, keys or values of an attention module have an adapter that is not merged. modules: by
    layer."""
    for index, module in modules.items():
        for name, adapter in applied(module):
            if reason := adapter_refusal(adapter, [name], f" of layer {index}"):
                raise InputError(reason)


def warn_of_adapters(model: nn.Module) -> None:
    """Warns if another layer has an adapter, which affects keys and values indirectly."""
    found = next(applied(model), None)
    if found:
        warnings.warn(
            f"oscar-kv: {found[0]} has the adapter {quoted(found[1])}, which the bundle was fitted without; "
            "a bundle for the merged model may lose less",
            stacklevel=4,
        )
