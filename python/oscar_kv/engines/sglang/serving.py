"""State shared by the layers of one SGLang worker: the bundle, or the worker's heads of it, checked against the model
and SGLang's settings, as in 0.5.23."""

import collections
import functools
import logging
import operator
import os
import pathlib
from collections.abc import Callable
from typing import Any

import torch

from ...cache.prefix_table import PrefixTable
from ...cache.slot_kv import SlotKV, SlotTable
from ...files.checkpoint import checkpoint_of
from ...files.errors import InputError
from ...format.bundle import load_bundle
from ...format.page_layout import PAGE_TOKENS
from ...ops.support import shape_unsupported
from .. import bundles
from ..names import BUNDLE_VARIABLE, CHECKPOINT_VARIABLE, VARIABLES, existing_folder, folder_name, known_names
from ..port import Settings
from ..serving import EngineServing, is_set, layers_by_reason, plain_torch, unserved
from .limits import IN_BF16, LAYERS

SEE_IMAGES = ("gemma3_text", "gemma4_text", "gemma4_unified_text")  # model types
SHAPE = ("tp_q_head_num", "tp_k_head_num", "head_dim", "scaling", "sliding_window_size")
PLAIN_TYPES = ("auto", "bf16", "bfloat16")


def settings() -> dict[str, Any]:
    """The groups of SGLang's resolved settings."""
    from sglang.srt import runtime_context as context

    names = ("disagg", "exec", "memory", "model", "parallel", "schedule", "serving", "spec")
    return {name: getattr(context, f"get_{name}")() for name in names}


# (group, dotted name, what is served, the feature, what to do; None: leave out the option of that name)
OPTIONS: tuple[tuple[str, str, Any, str, str | None], ...] = (
    ("spec", "speculative_algorithm", None, "speculative decoding", None),
    ("disagg", "disaggregation_mode", "null", "disaggregation of prefill and decode", None),
    ("disagg", "enable_pdmux", False, "PD multiplexing", None),
    ("memory", "enable_hierarchical_cache", False, "the hierarchical cache", None),
    ("memory", "enable_lmcache", False, "LMCache", None),
    ("memory", "enable_flexkv", False, "FlexKV", None),
    ("memory", "enable_hisparse", False, "hierarchical sparse attention", None),
    ("memory", "enable_unified_memory", False, "the unified memory pool", None),
    ("memory", "enable_unified_cache_external_linker", False, "an external KV store", None),
    ("memory", "radix_cache_backend", None, "another radix cache", None),
    ("memory", "enable_session_radix_cache", False, "the session radix cache", None),
    ("serving", "enable_streaming_session", False, "streaming sessions", None),
    ("parallel", "dcp_size", 1, "decode context parallelism", "use --tp-size"),
    ("parallel", "attn_cp_size", 1, "attention context parallelism", "use --tp-size"),
    ("parallel", "pp_size", 1, "pipeline parallelism", "use --tp-size"),
    ("parallel", "attn_dp_size", 1, "data-parallel attention", "leave --enable-dp-attention out"),
    ("parallel", "enable_kv_cache_sharding", False, "sharding of the cache", None),
    ("exec", "overlap.enable_two_batch_overlap", False, "two overlapping batches", None),
    ("exec", "features.enable_memory_saver", False, "the memory saver", None),
    ("exec", "dllm.dllm_algorithm", None, "diffusion language models", None),
    (
        "schedule",
        "prefill_only_disable_kv_cache",
        False,
        "prefill without a cache",
        "leave --is-embedding and --prefill-only-disable-kv-cache out",
    ),
    ("schedule", "page_size", PAGE_TOKENS, "another page size", f"pass --page-size {PAGE_TOKENS}"),
    ("model", "kv_cache_dtype", PLAIN_TYPES, "another type of the cache", "pass --kv-cache-dtype auto"),
)


def refusals(kvc: Any, groups: dict[str, Any]) -> list[str]:
    """Sentences for SGLang settings that this adapter does not support. kvc: SGLang's KVCacheConfigurator."""
    made = []
    for group, name, served, feature, advice in OPTIONS:
        found, option = operator.attrgetter(name)(groups[group]), name.rpartition(".")[2]
        if found not in served if isinstance(served, tuple) else found != served:
            leave = advice or f"leave --{option.replace('_', '-')} out"
            made.append(f"{feature} ({option} {found}) is not served with the 2-bit cache; {leave}")
    model, graphs = kvc.model_config, groups["exec"].graph.cuda_graph_config
    cases = [
        (
            groups["schedule"].max_running_requests is None,
            "the BF16 windows of each request take memory, and SGLang "
            "would make room for 2,048 of them; pass --max-running-requests, for example 32",
        ),
        (
            torch.device(kvc.device).type == "cuda" and graphs.prefill.backend != "disabled",
            "prompts run without CUDA graphs here; pass --disable-prefill-cuda-graph",
        ),
        (
            kvc.model_dtype != torch.bfloat16,
            f"the model computes in {str(kvc.model_dtype).removeprefix('torch.')}, "
            "and windows and queries are BF16; pass --dtype bfloat16",
        ),
        (kvc.kv_cache_dtype != kvc.model_dtype, "the checkpoint asks for an FP8 cache; pass --kv-cache-dtype bfloat16"),
        (
            kvc.post_capture_kv_active,
            "SGLang sizes its cache after graphs are captured; unset SGLANG_ENABLE_POST_CAPTURE_KV_SIZING",
        ),
        (kvc.is_draft_worker, "a draft model has no bundle"),
        (model.has_attention_sinks, f"the model has {LAYERS['sinks']}, which the 2-bit cache does not serve in SGLang"),
        (kvc.use_mla_backend, "the model has latent attention (MLA), which has no 2-bit cache"),
        (
            kvc.mambaish_config is not None and kvc.hybrid_gdn_config is None,
            "the model has states of another kind than gated delta nets, which no bundle is fitted beside",
        ),
        (
            model.is_multimodal and model.hf_text_config.model_type in SEE_IMAGES,
            "image tokens of Gemma see one another, which SGLang does "
            "only in its Triton backend; leave --enable-multimodal out",
        ),
        (model.is_encoder_decoder, "the model has an encoder and cross-attention, which have no 2-bit cache"),
    ]
    return made + [sentence for found, sentence in cases if found and sentence]


def attention_refusal(layer: Any) -> str | None:
    """One sentence for a RadixAttention of SGLang that makes the model unserved, or None."""
    if layer.attn_type.value != "decoder" or layer.is_cross_attention:
        kind = "cross" if layer.is_cross_attention else layer.attn_type.value
        return f"attention of the type {kind} has no 2-bit cache"
    if layer.xai_temperature_len > 0:
        return "layers whose logits are scaled by position are not served"
    return unserved(
        LAYERS,
        {
            "use_irope": layer.use_irope or None,
            "pos_encoding_mode": layer.pos_encoding_mode.replace("NONE", "") or None,
        },
    )


def bf16_reason(layer: Any) -> str | None:
    """Why a RadixAttention of SGLang stays in BF16, or None."""
    if (reason := shape_unsupported(layer.head_dim, layer.tp_q_head_num // layer.tp_k_head_num)) is not None:
        return reason
    if layer.v_head_dim != layer.head_dim:
        return f"keys of {layer.head_dim} and values of {layer.v_head_dim} channels have no common page"
    values = {
        "sliding_window_size": layer.sliding_window_size if layer.sliding_window_size > 0 else None,
        "logit_cap": layer.logit_cap,
    }
    return next((f"it has {words}" for name, words in IN_BF16.items() if is_set(values[name])), None)


def bundle_path(model: Any = None) -> pathlib.Path:
    """model: SGLang's ModelConfig, for `auto`, which fits a bundle."""
    known_names(os.environ, VARIABLES, "the environment")
    path = folder_name(os.environ.get(BUNDLE_VARIABLE) or None, BUNDLE_VARIABLE)
    if path is None:
        raise InputError(f"the attention backend needs a bundle of oscar-fit; name its folder in {BUNDLE_VARIABLE}")
    if path == bundles.AUTO:
        return bundles.fitted(_checkpoint(model), model.context_len, logging.getLogger("sglang.srt.oscar_kv"))
    return bundles.named(path)


def _checkpoint(model: Any) -> pathlib.Path:
    named = existing_folder(os.environ.get(CHECKPOINT_VARIABLE) or None, CHECKPOINT_VARIABLE) or model.model_path
    return checkpoint_of(named, model.revision, f"name its folder in {CHECKPOINT_VARIABLE}")


def _plain(model: Any, folder: pathlib.Path) -> Any:
    """The decoder's configuration as SGLang reads it without --json-model-override-args."""
    from sglang.srt.utils.hf_transformers.common import get_hf_text_config
    from sglang.srt.utils.hf_transformers.config import get_config

    return get_hf_text_config(get_config(str(folder), getattr(model, "trust_remote_code", False)))


def flash_attention() -> Callable[..., Any] | None:
    """What SGLang's backend fa3 loads on Hopper: its own kernels, or those of a package; None without them."""
    if torch.cuda.get_device_capability()[0] != 9:
        return None
    try:
        from sglang.kernels.ops.attention.flash_attention_v3 import _load_fa3_kernels

        return _load_fa3_kernels()["flash_attn_varlen_func"]
    except (ImportError, AttributeError, KeyError, OSError):
        return None


class Serving(EngineServing):
    """kvc: SGLang's KVCacheConfigurator, once the model is loaded and before memory is measured."""

    def __init__(self, kvc: Any) -> None:
        groups = settings()
        for sentence in refusals(kvc, groups):
            raise InputError(sentence)
        model, parallel = kvc.model_config, groups["parallel"]
        with plain_torch():
            bundle = load_bundle(bundle_path(model))
        super().__init__(
            bundle,
            Settings(
                text=model.hf_text_config,
                kv_heads=model.get_total_num_kv_heads(),
                head_size=model.head_dim,
                checkpoint=functools.partial(_checkpoint, model),
                slots=groups["schedule"].max_running_requests,
                most_tokens=model.context_len,
                shares=not groups["memory"].disable_radix_cache,
                length_option="--context-length",
                rank_option="--tp-size",
                no_sharing_option="--disable-radix-cache",
                plain=functools.partial(_plain, model),
                override_option="--json-model-override-args",
                rank=parallel.attn_tp_rank,
                ranks=parallel.attn_tp_size,
                flash=flash_attention() if torch.cuda.is_available() and model.head_dim <= 256 else None,
            ),
        )
        layers, self._readers = _attention_layers(kvc.model)
        reasons = {
            index: bf16_reason(layer) or (None if index in self.layers else "the bundle leaves it out")
            for index, layer in layers.items()
        }
        # with the 2-bit cache
        self.attention = {index: layer for index, layer in layers.items() if reasons[index] is None}
        self.beside = {index: layer for index, layer in layers.items() if index not in self.attention}  # in BF16
        text = layers_by_reason({index: reason for index, reason in reasons.items() if reason is not None})
        if not self.attention:
            raise InputError(
                f"{bundle.path}: no layer of the model can have the 2-bit cache: {text}; leave "
                f"--attention-backend oscar and {BUNDLE_VARIABLE} out"
            )
        self.in_pool = {} if kvc.is_hybrid_swa else self.beside  # of the latter: those without a pool of SGLang
        if kvc.is_hybrid_swa and not set(self.beside) <= set(kvc.layer_info.swa_attention_layer_ids):
            raise InputError(
                f"SGLang keeps windowed layers in a pool of their own, and others would stay in BF16: {text}; pass "
                "--disable-hybrid-swa-memory"
            )
        self._in_bf16 = text
        self.table: SlotTable | None = None  # of the backend
        self.generations: torch.Tensor | None = None  # of the rows of SGLang's table: how often each was given away

    def request_of(self, slot: int) -> int:
        return 0 if self.generations is None else int(self.generations[slot + 1])

    def allocate(self, device: torch.device | str) -> "Serving":
        """Makes the caches of all layers; returns itself."""
        for index, layer in self.attention.items():
            kv = self.cache(index, layer.tp_q_head_num // layer.tp_k_head_num, torch.device(device))
            kv.readers = self._readers[index]
        return self

    def bf16_text(self) -> str:
        return self._in_bf16

    def holds_sink(self, tokens: torch.Tensor) -> bool:
        """Whether the sink that begins at the first of these places of SGLang's memory is in BF16. Waits."""
        assert isinstance(self.table, PrefixTable)
        return self.table.holds(torch.div(tokens[0], PAGE_TOKENS, rounding_mode="floor"))

    def kv(self, index: int) -> SlotKV:
        return self._caches[index]

    def token_bytes(self) -> int:
        """Of all layers in the pool; windows are allocated before."""
        return sum(self.layers[index].kv_heads * self.cells[index] for index in self.attention) + sum(
            2 * layer.tp_k_head_num * (layer.head_dim + layer.v_head_dim) for layer in self.in_pool.values()
        )


def _attention_layers(model: Any) -> tuple[dict[int, Any], collections.Counter[int]]:
    """{layer index: RadixAttention that fills its cache} of SGLang's model, and how many others read that cache.
    InputError for a layer that is not served."""
    from sglang.srt.layers.radix_attention import RadixAttention

    found: dict[int, Any] = {}
    readers: collections.Counter[int] = collections.Counter()
    for module in model.modules():
        if not isinstance(module, RadixAttention):
            continue
        reason, held = attention_refusal(module), found.setdefault(module.layer_id, module)
        if any(getattr(held, name) != getattr(module, name) for name in SHAPE):
            reason = "a layer that reads the cache of another has other heads, another scale or another window"
        if reason:
            raise InputError(f"the model cannot be served with the 2-bit cache: {reason}")
        readers[module.layer_id] += held is not module
    return found, readers
