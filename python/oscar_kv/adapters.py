"""Adapters (LoRA, IA3 ...) that are applied beside the weights of a model. Their layers are told by their shape, not by a class of
peft, which need not be installed: base_layer is the layer of the checkpoint, and what is active and not merged changes its output."""
import warnings

from .errors import InputError, quoted

# Whose outputs a bundle was fitted to.
PROJECTIONS = ("q_proj", "k_proj", "v_proj", "qkv_proj")


def base_of(module):
    """The layer of the checkpoint below any adapters."""
    while hasattr(module, "base_layer"):
        module = module.base_layer
    return module


def _applied(module):
    """Names of the adapters that change what a layer computes now."""
    if not hasattr(module, "base_layer") or getattr(module, "merged", False) or getattr(module, "disable_adapters", False):
        return []
    active = getattr(module, "active_adapters", None) or getattr(module, "active_adapter", None) or ["default"]
    active = [active] if isinstance(active, str) else list(active)
    names = getattr(module, "adapter_layer_names", ())
    held = [getattr(module, name) for name in names if hasattr(module, name)]
    return [name for name in active if not held or any(hasattr(x, "keys") and name in x.keys() for x in held)]


def applied(model, only=None):
    """(name of a layer, name of its adapter) of the first adapter that is applied; only: names of layers. None: there is none."""
    for name, module in model.named_modules():
        if only is None or name.rpartition(".")[2] in only:
            names = _applied(module)
            if names:
                return name, names[0]
    return None


def check_adapters(modules):
    """InputError where queries, keys or values of an attention module have an adapter that is not merged. modules: by their layers."""
    for index, module in modules.items():
        found = applied(module, PROJECTIONS)
        if found:
            raise InputError(f"{found[0]} of layer {index} has the adapter {quoted(found[1])}, which is not merged, and the bundle was "
                             "fitted without it; merge it (merge_and_unload), save the model and fit a bundle for that checkpoint")


def warn_of_adapters(model):
    """One sentence where an adapter stands elsewhere: what it does to keys and values is indirect."""
    found = applied(model)
    if found:
        warnings.warn(f"oscar-kv: {found[0]} has the adapter {quoted(found[1])}, which the bundle was fitted without; a bundle for the "
                      "merged model may lose less", stacklevel=4)
