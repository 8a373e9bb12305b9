"""Layers of one model with two kinds of cache in vLLM. A layer that a bundle and the kernels serve gets the backend
OSCAR. Every other layer keeps BF16 and the backend that vLLM would choose without oscar-kv. vLLM passes no layer to a
backend before it is chosen, so this module wraps the constructor of vLLM's Attention, its get_kv_cache_spec(), and the
method that makes blocks as large as a state of linear attention."""

import contextlib
import copy
import dataclasses
import functools
import inspect
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from vllm.compilation import backends
from vllm.model_executor.layers.attention import Attention
from vllm.platforms.interface import Platform
from vllm.v1.kv_cache_interface import SlidingWindowSpec

from ...files.errors import InputError
from ...format.page_layout import PAGE_TOKENS
from ..names import CACHE_DTYPE, VLLM_BACKEND
from . import backend as adapter
from .backend import OscarImpl, backend_of, layer_index, serving_of
from .pages import FEWEST_PAGES, nominal_cell, pages_of_block, tokens_of_block
from .serving import Serving, layer_refusal
from .wraps import MARK, wrap_once

# vLLM's tags while it builds a model that proposes tokens. It has no bundle, and perhaps the served model's numbers.
DRAFTS = ("draft_model", "eagle_head")


def install() -> None:
    """Wraps vLLM's Attention once. Layers of other cache types pass through unchanged."""
    if hasattr(Attention.__init__, MARK):
        return
    wrap_once(Attention, "__init__", _make)
    wrap_once(Attention, "get_kv_cache_spec", _specify)
    align = Platform._align_hybrid_block_size.__func__

    @functools.wraps(align)
    def _align_hybrid_block_size(cls: Any, vllm_config: Any, backend_cls: Any) -> None:
        if vllm_config.cache_config.cache_dtype == CACHE_DTYPE:
            align_blocks(align, cls, vllm_config)
        else:
            align(cls, vllm_config, backend_cls)

    Platform._align_hybrid_block_size = classmethod(_align_hybrid_block_size)


def _make(make: Callable[..., None], self: Any, *arguments: Any, **named: Any) -> None:
    given = inspect.signature(make).bind(self, *arguments, **named)
    cache = given.arguments.get("cache_config")
    if cache is None or cache.cache_dtype != CACHE_DTYPE or given.arguments.get("attn_backend") is not None:
        make(self, *arguments, **named)
        return
    config = adapter.get_current_vllm_config()
    if backends.model_tag not in DRAFTS and bf16_reason(config, given) is None:
        make(self, *arguments, **named)
        return
    scheme = getattr(given.arguments.get("quant_config"), "kv_cache_scheme", None)
    # "auto" would follow a checkpoint that asks for an FP8 cache.
    given.arguments["cache_config"] = _with_type(cache, "auto" if scheme is None else "bfloat16")
    with _vllm_chooses(config.attention_config):
        make(*given.args, **given.kwargs)
    self.attn_backend = in_bf16(self.attn_backend)


def _specify(specify: Callable[..., Any], self: Any, vllm_config: Any) -> Any:
    spec = specify(self, vllm_config)
    if spec is None or vllm_config.cache_config.cache_dtype != CACHE_DTYPE:
        return spec
    return layer_spec(self, spec, vllm_config, specify)


@functools.cache
def in_bf16(backend: Any) -> Any:
    """A backend of vLLM whose metadata builder sees a BF16 cache. FlashAttention plans its work by the cache type of
    the whole model, which it takes for FP8 if it is quantized."""
    build: Any = backend.get_builder_cls()

    class Builder(build):
        def __init__(
            self, kv_cache_spec: Any, layer_names: list[str], vllm_config: Any, device: Any, **extra: Any
        ) -> None:
            config = copy.copy(vllm_config)
            object.__setattr__(config, "cache_config", _with_type(vllm_config.cache_config, "auto"))
            super().__init__(kv_cache_spec, layer_names, config, device, **extra)

    return type(f"{backend.__name__}InBf16", (backend,), {"get_builder_cls": staticmethod(lambda: Builder)})


def _with_type(cache_config: Any, name: str) -> Any:
    made = copy.copy(cache_config)
    object.__setattr__(made, "cache_dtype", name)
    return made


@contextlib.contextmanager
def _vllm_chooses(attention_config: Any) -> Iterator[None]:
    """Inside, the option --attention-backend OSCAR does not hold; another backend, or one for a kind of layer, does."""
    named = attention_config.backend
    if named is None or named.name != VLLM_BACKEND:
        yield
        return
    attention_config.backend = None
    try:
        yield
    finally:
        attention_config.backend = named


def bf16_reason(config: Any, given: inspect.BoundArguments) -> str | None:
    """Why vLLM serves a layer in BF16, or None. given: the bound arguments of Attention(). The Serving of the
    configuration notes the reason."""
    given = inspect.BoundArguments(given.signature, dict(given.arguments))
    given.apply_defaults()
    serving, of = serving_of(config), given.arguments
    index, window = layer_index(of["prefix"]), of["per_layer_sliding_window"]
    if window is None:
        window = of["cache_config"].sliding_window
    source, kv_heads = of["kv_sharing_target_layer_name"], of["num_kv_heads"] or of["num_heads"]
    own = {name: of[name] for name in ("use_alibi_sqrt", "alibi_slopes", "logits_soft_cap")}
    asked = dict(of["extra_impl_args"], sliding_window=window, **own)
    if source is not None:
        target = config.compilation_config.static_forward_context.get(source)
        if target is None or not isinstance(target.impl, OscarImpl):
            return serving.keep_in_bf16(index, f"reads the cache of {source}")
        return None  # it has no other; OscarImpl refuses what it cannot read
    reason = layer_refusal(of["num_heads"], kv_heads, of["head_size"], of["attn_type"], asked)
    if reason is None and of["head_size_v"] not in (None, of["head_size"]):
        reason = f"values have {of['head_size_v']} channels, keys {of['head_size']}"
    if reason is None and index not in serving.layers:
        reason = "the bundle leaves it out"
    return None if reason is None else serving.keep_in_bf16(index, reason)


def _attention_layers(config: Any) -> list[Any]:
    return [one for one in config.compilation_config.static_forward_context.values() if isinstance(one, Attention)]


def _bytes_per_token(spec: Any) -> int:
    return spec.real_page_size_bytes // spec.block_size


def layer_spec(layer: Any, spec: Any, config: Any, specify: Callable[..., Any]) -> Any:
    """The spec of one layer. Layers that keep all tokens share one cache group whatever their pages are. Layers with
    windows or states do not, so blocks must then have one size."""
    serving, layers = serving_of(config), _attention_layers(config)
    ours = [one for one in layers if isinstance(one.impl, OscarImpl)]
    if not ours:
        raise InputError(
            f"{serving.bundle.path}: no layer of the model can have the 2-bit cache: "
            f"{serving.bf16_text()}; leave --kv-cache-dtype {CACHE_DTYPE} out"
        )
    others = _other_specs(layers, config, specify)
    windowed = (
        any(isinstance(one, SlidingWindowSpec) for one in others)
        and not config.scheduler_config.disable_hybrid_kv_cache_manager
    )
    if not windowed and not config.model_config.is_hybrid:
        if not isinstance(layer.impl, OscarImpl):
            return spec
        return dataclasses.replace(spec, state_content_bytes=serving.cell(layer_index(layer.layer_name)))
    if config.model_config.is_hybrid and serving.shares and others:
        raise InputError(
            "prefix caching is on, and beside linear attention vLLM would copy parts of blocks unless all "
            "attention layers, a draft model's included, have the 2-bit cache; pass "
            "--no-enable-prefix-caching"
        )
    page = serving.nominal_page(ours[0].num_kv_heads)
    pages = _pages(serving, page, others, config)
    serving.share_blocks(pages)
    if isinstance(layer.impl, OscarImpl):
        return dataclasses.replace(spec, block_size=pages * PAGE_TOKENS, state_content_bytes=serving.nominal_cell)
    size = _bytes_per_token(layer.attn_backend.customize_spec(spec))
    return dataclasses.replace(spec, block_size=tokens_of_block(pages * page, size), page_size_padded=pages * page)


def _other_specs(layers: Sequence[Any], config: Any, specify: Callable[..., Any]) -> list[Any]:
    """Of layers that vLLM serves in BF16 with a cache of their own."""
    return [
        one.attn_backend.customize_spec(made)
        for one in layers
        if not isinstance(one.impl, OscarImpl)
        and one.kv_sharing_target_layer_name is None
        and (made := specify(one, config)) is not None
    ]


def _pages(serving: Serving, page: int, others: Sequence[Any], config: Any) -> int:
    return pages_of_block(
        page, serving.cells.values(), config.cache_config.block_size, max(map(_bytes_per_token, others), default=0)
    )


def align_blocks(align: Callable[..., Any], platform: Any, config: Any) -> None:
    """vLLM's choice of a block that holds a state of linear attention, for blocks of the 2-bit cache. vLLM looks at the
    first attention layer, which a bundle may leave out, and does not know how many pages a block must hold. align:
    vLLM's method."""
    serving, layers, cache = serving_of(config), _attention_layers(config), config.cache_config
    before = cache.block_size, cache.mamba_page_size_padded
    align(platform, config, backend_of(serving))
    # A block of more pages leaves a smaller part of them unused.
    serving.nominal_cell = nominal_cell(serving.cells.values(), max(FEWEST_PAGES, cache.block_size // PAGE_TOKENS))
    cache.block_size, cache.mamba_page_size_padded = before
    align(platform, config, backend_of(serving))
    heads = next((one.num_kv_heads for one in layers if isinstance(one.impl, OscarImpl)), None)
    if heads is None:  # layer_spec() refuses the model
        return
    page = serving.nominal_page(heads)
    pages = _pages(serving, page, _other_specs(layers, config, Attention.get_kv_cache_spec.__wrapped__), config)
    if pages * PAGE_TOKENS != cache.block_size:
        cache.block_size, cache.mamba_page_size_padded = pages * PAGE_TOKENS, pages * page
        if cache.mamba_cache_mode == "align":  # with prefix caching, a state is kept at the end of a block
            cache.mamba_block_size = cache.block_size
