"""Latent attention in vLLM: its MLAAttention gets the backend of latent_backend.py where the cache type is ours. vLLM
has no extension point for it, so this module wraps the constructor, get_kv_cache_spec() and what follows loading."""

import dataclasses
import inspect
from collections.abc import Callable
from typing import Any

from vllm.compilation import backends
from vllm.model_executor.layers.attention.mla_attention import MLAAttention

from ...cache.latent_kv import latent_unsupported
from ...files.errors import InputError
from ..names import CACHE_DTYPE, VLLM_BACKEND
from . import backend as adapter
from .backend import layer_index, serving_of
from .layers import DRAFTS
from .wraps import wrap_once


def refusal(given: dict[str, Any]) -> str | None:
    """Why a layer cannot have the 2-bit cache, or None. given: arguments of MLAAttention."""
    if given["use_sparse"] or given["indexer"] is not None:
        return "latent attention with an indexer (sparse MLA) is not served"
    if given["sliding_window"] is not None or given["non_causal_multi_token_decode"] or given["extra_impl_args"]:
        return "latent attention with windows or further arguments is not served"
    return latent_unsupported(given["kv_lora_rank"], given["qk_rope_head_dim"], False)


def install() -> None:
    """Wraps vLLM's MLAAttention once. Layers of other cache types pass through unchanged."""
    wrap_once(MLAAttention, "__init__", _make)
    wrap_once(MLAAttention, "get_kv_cache_spec", _specify)
    wrap_once(MLAAttention, "forward_impl", _attend)
    wrap_once(MLAAttention, "process_weights_after_loading", _process)


def _make(make: Callable[..., None], self: Any, *arguments: Any, **named: Any) -> None:
    given = inspect.signature(make).bind(self, *arguments, **named)
    given.apply_defaults()
    of = given.arguments
    cache = of["cache_config"]
    if cache is None or cache.cache_dtype != CACHE_DTYPE or of["attn_backend"] is not None:
        make(self, *arguments, **named)
        return
    from .latent_backend import OscarLatentBackend

    serving = serving_of(adapter.get_current_vllm_config())
    reason = "a model that proposes tokens has it" if backends.model_tag in DRAFTS else refusal(of)
    if reason is not None:
        raise InputError(f"{of['prefix']} cannot be served with the 2-bit cache: {reason}")
    index = layer_index(of["prefix"])
    serving.cell(index)  # InputError if the bundle lacks the layer
    of["attn_backend"] = OscarLatentBackend
    make(*given.args, **given.kwargs)
    self.impl.index = index


def _specify(specify: Callable[..., Any], self: Any, vllm_config: Any) -> Any:
    spec = specify(self, vllm_config)
    if vllm_config.cache_config.cache_dtype != CACHE_DTYPE:
        return spec
    return dataclasses.replace(spec, state_content_bytes=serving_of(vllm_config).cell(layer_index(self.layer_name)))


def _attend(attend: Callable[..., Any], self: Any, q: Any, k_c_normed: Any, k_pe: Any, *more: Any, **named: Any) -> Any:
    if self.attn_backend.get_name() == VLLM_BACKEND:
        self.impl.receive(k_c_normed, k_pe)
    return attend(self, q, k_c_normed, k_pe, *more, **named)


def _process(process: Callable[..., None], self: Any, act_dtype: Any) -> None:
    process(self, act_dtype)
    absorb(self)


def absorb(layer: Any) -> None:
    """Brings the matrices of absorbed attention into the cache basis. vLLM's are views of kv_b_proj's weight, which
    prompts multiply by, so these have memory of their own. Reloaded weights go there again, where graphs look."""
    if layer.attn_backend.get_name() == VLLM_BACKEND:
        code, own = layer.impl.cache(layer.W_UV.device).code, layer.impl.absorbed
        for name, made in zip(("W_UK_T", "W_UV"), code.absorb(layer.W_UK_T, layer.W_UV)):
            own[name] = own[name].copy_(made) if name in own else made.contiguous()
            getattr(layer, name).data = own[name]
