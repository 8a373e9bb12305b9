"""Checks that calls after attach() really use its cache. Results of the BF16 cache must never pass for 2-bit
results. Every way around the cache therefore gives an error, and a forward that inherently reads no cache gives a
warning."""

import functools
import warnings
import weakref
from collections.abc import Callable
from typing import Any, NoReturn

from torch import nn

from ..files.errors import InputError
from .attached import Attached
from .cache import OscarCache

_serving: weakref.WeakKeyDictionary[nn.Module, weakref.ref[Attached]] = weakref.WeakKeyDictionary()  # by module

AROUND = "detach() the bundle to run without it"


def serve(attached: Attached) -> None:
    """Registers `attached` for its attention modules, except layers that keep a cache of transformers."""
    for module in attached.modules:
        if attached.codes[attached.sources.get(module.layer_idx, module.layer_idx)] is not None:
            _serving[module] = weakref.ref(attached)


def release(attached: Attached) -> None:
    for module in attached.modules:
        _serving.pop(module, None)


def without_cache(module: nn.Module, queries: int, keys: int) -> None:
    """Called when an attention module runs without this cache, on the given number of tokens. InputError if it has a
    cache of another kind."""
    attached = _serving.get(module, lambda: None)() if isinstance(module, nn.Module) else None
    if attached is None:
        return
    if keys > queries:
        raise InputError(
            f"a bundle is attached to the model, but layer {module.layer_idx} read {keys - queries} "
            "tokens from a cache of another kind; pass past_key_values=oscar_kv.new_cache(model), or "
            f"{AROUND}"
        )
    if queries > 1:
        warn_of_one_forward(attached)


def warn_of_one_forward(attached: Attached) -> None:
    """Once per attach()."""
    if not attached.warned:
        attached.warned = True
        warnings.warn(
            "oscar-kv: many tokens in one forward attend to each other in BF16, so that perplexity or "
            "logits of this forward do not show what the 2-bit cache costs; feed chunks of a few tokens "
            "with past_key_values=oscar_kv.new_cache(model), or use python -m oscar_kv.lm_eval",
            stacklevel=3,
        )


def watch_forward(attached: Attached, cache_name: str) -> Callable[..., None]:
    """A hook for nn.Module.register_forward_pre_hook. A loss over a prompt in one forward uses BF16 even if there is
    a cache. Assisted decoding shows how many tokens are proposals."""

    def hook(module: nn.Module, args: Any, kwargs: dict[str, Any]) -> None:
        cache = kwargs.get(cache_name)
        if cache is None or getattr(cache, "attached", None) is not attached:
            return
        if kwargs.get("labels") is not None:
            warn_of_one_forward(attached)
        cache.propose(kwargs.get("logits_to_keep"))

    return hook


def checked(attached: Attached, generate: Callable[..., Any]) -> Callable[..., Any]:
    """Wraps the model's generate(), which must use the cache of `attached`. attached.call is set when transformers
    requests a cache."""

    @functools.wraps(generate)
    def checked_generate(*args: Any, **kwargs: Any) -> Any:
        outer, attached.call = attached.call, None  # the model may assist itself
        try:
            made = generate(*args, **kwargs)
            call = attached.call
        finally:
            if attached.call is not None:
                attached.call[0].end_assistance()
            attached.call = outer
        check_use(call)
        return made

    return checked_generate


def columns(cache: OscarCache) -> list[int]:
    return [layer.columns for layer in cache.paged]


def check_use(call: tuple[OscarCache, list[int]] | None) -> None:
    """InputError unless every layer of the cache has received tokens. call: with columns(cache) before it."""
    if call is None:
        raise InputError(
            "generate() did not ask for the cache of the attached bundle, so its result is that of "
            f"another cache; call generate() of the model itself, or {AROUND}"
        )
    cache, before = call
    unused = next((layer.index for layer, n in zip(cache.paged, before) if layer.columns <= n), None)
    if unused is not None:
        raise InputError(
            f"generate() ran, but layer {unused} put no token into the cache of the attached bundle, so "
            "its result is that of another cache; attach() the bundle after all changes to the model "
            f"(attention function, gradient checkpointing), or {AROUND}"
        )


def refuse_continuous_batching(*args: Any, **kwargs: Any) -> NoReturn:
    raise InputError(
        "continuous batching (generate_batch) brings a cache of its own, which would leave the attached "
        f"bundle out; call generate(), or {AROUND}"
    )
