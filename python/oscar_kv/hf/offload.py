"""Weights that accelerate keeps on the CPU or on disk (device_map="auto" on a GPU that is too small, cpu_offload,
disk_offload). The parameter of such a module is on the meta device. A hook copies it to a device before the
module runs and frees it afterward. Only attributes of that hook are read, so accelerate is not needed here."""

from typing import Any

import torch
from torch import nn

from ..files.errors import InputError


def _hooks(module: nn.Module) -> list[Any]:
    hook = getattr(module, "_hf_hook", None)
    return [h for h in getattr(hook, "hooks", (hook,)) if getattr(h, "offload", False)]


def is_offloaded(model: nn.Module) -> bool:
    """Whether a hook loads any weights of a model only during use."""
    return any(_hooks(module) for module in model.modules())


def _hook_of(module: nn.Module, name: str) -> Any:
    """The hook that loads a parameter or buffer from the meta device."""
    hook = next((h for h in _hooks(module) if getattr(h, "weights_map", None) is not None), None)
    if hook is None:
        raise InputError(
            f"'{name}' of a {type(module).__name__} is on the meta device and no hook of accelerate "
            "loads it; load the weights of the model before attach()"
        )
    return hook


def device_of(module: nn.Module, name: str) -> torch.device:
    """The device of a module's parameter or buffer while the module runs."""
    tensor = getattr(module, name)
    return torch.device(_hook_of(module, name).execution_device) if tensor.is_meta else tensor.device


def held(module: nn.Module, name: str) -> torch.Tensor:
    """A parameter or buffer of a module, from wherever it is stored."""
    tensor = getattr(module, name)
    return _hook_of(module, name).weights_map[name] if tensor.is_meta else tensor
