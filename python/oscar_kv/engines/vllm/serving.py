"""State shared by the layers of one vLLM worker: the bundle, or the worker's heads of it, checked against the model
and vLLM's settings. Implements no interface of vLLM; reads its configuration as in 0.32 and 0.33."""

import collections
import functools
import importlib
import logging
import os
import pathlib
from collections.abc import Callable, Mapping
from typing import Any

import torch

from ...cache.slot_kv import SlotKV
from ...files.checkpoint import checkpoint_of
from ...files.errors import InputError
from ...format.bundle import load_bundle
from ...format.page_layout import PAGE_TOKENS
from ...ops.support import shape_unsupported
from .. import bundles
from ..names import BUNDLE_VARIABLE, existing_folder, folder_name, is_release, known_names
from ..port import Settings
from ..serving import EngineServing, is_set, layers_by_reason, plain_torch, unserved
from . import metrics
from .limits import IN_BF16, MODEL, RELEASE
from .pages import Places, nominal_cell

# Methods of speculation that are served; vLLM names all MTP heads mtp.
SPECULATION = ("ngram", "ngram_gpu", "draft_model", "eagle", "eagle3", "mtp")
DIVIDES = ("decode_context_parallel_size", "prefill_context_parallel_size", "pipeline_parallel_size")  # options of vLLM
# What vLLM makes of --kv-offloading-size.
OFFLOADING_CONNECTOR, OFFLOADING_BYTES = "OffloadingConnector", "cpu_bytes_to_use"
SERVING = "oscar_kv_serving"  # of the part of an engine's configuration that configurations derived from it share
BUNDLE_OPTION, CHECKPOINT_OPTION = "oscar_bundle", "oscar_checkpoint"  # of --additional-config


def _option(config: Any, name: str, read: Callable[[Any, str], str | None]) -> str | None:
    """An option of --additional-config, None if it is not given. read: folder_name or existing_folder."""
    options = config.additional_config if isinstance(config.additional_config, dict) else {}
    known_names(options, (BUNDLE_OPTION, CHECKPOINT_OPTION), "--additional-config")
    return read(options.get(name), f"'{name}' of --additional-config")


def bundle_path(config: Any) -> pathlib.Path:
    """--additional-config '{"oscar_bundle": DIR}' or the environment; the option takes precedence. Without both, the
    bundle of the checkpoint on this machine. "auto" fits one."""
    name = _option(config, BUNDLE_OPTION, folder_name) or os.environ.get(BUNDLE_VARIABLE)
    if name == bundles.AUTO:
        return bundles.fitted(
            _checkpoint(config), config.model_config.max_model_len, logging.getLogger("vllm.oscar_kv")
        )
    if name:
        return bundles.named(name)
    return bundles.of_checkpoint(_checkpoint(config), f'--additional-config \'{{"{BUNDLE_OPTION}": "DIR"}}\'')


def proposed_tokens(config: Any) -> int:
    """Tokens that speculative decoding proposes to a request in a step."""
    return config.speculative_config.num_speculative_tokens if config.speculative_config is not None else 0


def latent_refusals(config: Any) -> list[tuple[bool, str]]:
    """Of models with latent attention: whether it applies, and the sentence."""
    if not getattr(config.model_config, "use_mla", False):
        return []
    return [
        (
            getattr(config.attention_config, "use_prefill_query_quantization", False),
            "FP8 queries of prompts are asked for (use_prefill_query_quantization), and stored latents come back in "
            "BF16; leave the option out",
        ),
        (
            not is_release(vllm_version(), RELEASE),
            f"the model has latent attention (MLA), which oscar-kv serves in vLLM {RELEASE} only; install "
            f"vllm=={RELEASE}.0",
        ),
        (
            config.model_config.is_hybrid,
            "the model has latent attention (MLA) beside linear attention, which the 2-bit cache does not serve; leave "
            "--kv-cache-dtype oscar out",
        ),
        (
            config.speculative_config is not None,
            "speculative decoding is asked for, which the 2-bit cache of latent attention (MLA) does not have; leave "
            "--speculative-config out",
        ),
        (
            config.kv_transfer_config is not None,
            "host memory is asked for, where no GPU has moved latents of the 2-bit cache yet; leave "
            "--kv-offloading-size out",
        ),
    ]


def speculation_refusals(config: Any) -> list[tuple[bool, str]]:
    """The same for speculative decoding. config: of it, or None."""
    method, draft = (getattr(config, name, None) for name in ("method", "draft_model_config"))
    return [
        (
            method not in (None, *SPECULATION),
            f"speculative decoding with the method {method} is asked for, which "
            f"oscar-kv does not serve; use one of {', '.join(SPECULATION)}, or leave --speculative-config out",
        ),
        (
            getattr(getattr(draft, "hf_config", None), "model_type", None) == "gemma4_mtp",
            "gemma4_mtp reads the cache "
            "of the model's own layers, and only in BF16; use ngram, or leave --speculative-config out",
        ),
        (
            getattr(draft, "use_mla", False),
            "the draft model has latent attention (MLA), which has no cache beside this "
            "one; use ngram, or leave --speculative-config out",
        ),
        (
            getattr(config, "kv_cache_dtype", None) is not None,
            "a cache type of the draft model is "
            "given, but it keeps BF16; leave kv_cache_dtype out of --speculative-config",
        ),
    ]


def vllm_version() -> str:
    from vllm import __version__

    return __version__


def offloading_refusal(config: Any) -> str | None:
    """Why blocks cannot go where --kv-offloading-size or --kv-transfer-config wants them, or None."""
    given = config.kv_transfer_config
    if given is None:
        return None
    other = sorted(set(given.kv_connector_extra_config) - {OFFLOADING_BYTES})
    if given.kv_connector != OFFLOADING_CONNECTOR or given.kv_connector_module_path is not None or other:
        return (
            f"KV transfer by {given.kv_connector}{' with ' + other[0] if other else ''} would leave the BF16 windows "
            "behind; leave --kv-transfer-config out, and use --kv-offloading-size for host memory"
        )
    if not config.cache_config.enable_prefix_caching:
        return "--kv-offloading-size is given, and requests share no prefixes; pass --enable-prefix-caching"
    if not is_release(vllm_version(), RELEASE):
        return f"--kv-offloading-size needs vLLM {RELEASE} here; leave it out, or install vllm=={RELEASE}.0"
    return None


def refusals(config: Any) -> list[str]:
    """Sentences for vLLM settings that this adapter does not support."""
    cache, parallel = config.cache_config, config.parallel_config
    cases = [
        *latent_refusals(config),
        *speculation_refusals(config.speculative_config),
        (
            getattr(config.model_config, "enable_sleep_mode", False),
            "no GPU has woken with the 2-bit cache, whose "
            "BF16 windows are not in the memory that vLLM saves; leave --enable-sleep-mode out",
        ),
        (
            cache.kv_cache_dtype_skip_layers,
            "--kv-cache-dtype-skip-layers is given, but the bundle says which layers stay in BF16; leave it out",
        ),
        (
            cache.kv_sharing_fast_prefill,
            "layers that read another's cache would get a part of the tokens; leave --kv-sharing-fast-prefill out",
        ),
        (
            cache.prefix_match_unit is not None and config.model_config.is_hybrid,
            "prefixes shorter than a block are to "
            "be found (--prefix-match-unit), which the 2-bit cache cannot beside linear attention; leave it out",
        ),
        (config.kv_transfer_config is not None, offloading_refusal(config)),
        *(
            (
                getattr(parallel, name) > 1,
                f"--{name.replace('_', '-')} {getattr(parallel, name)} would divide the cache "
                "of a request among GPUs, which oscar-kv does not serve; use --tensor-parallel-size",
            )
            for name in DIVIDES
        ),
        (
            parallel.data_parallel_size > 1 and config.model_config.is_moe,
            "the model has experts, and with "
            "--data-parallel-size idle ranks run passes that would overwrite BF16 windows; use --tensor-parallel-size",
        ),
        (
            getattr(parallel, "use_ubatching", False),
            "batches are cut into overlapping parts (DBO), which share memory "
            "that this backend has once; leave --enable-dbo and --ubatch-size out",
        ),
        (
            config.model_config.dtype != torch.bfloat16,
            "the model computes in "
            f"{str(config.model_config.dtype).removeprefix('torch.')}, and windows and queries are BF16; pass --dtype "
            "bfloat16",
        ),
        (
            not config.use_v2_model_runner,
            "vLLM's first model runner does not tell a backend the slots of requests; "
            "unset VLLM_USE_V2_MODEL_RUNNER and leave out what needs that runner",
        ),
    ]
    return [sentence for found, sentence in cases if found and sentence]


def layer_refusal(
    num_heads: int, num_kv_heads: int, head_size: int, attn_type: str, given: Mapping[str, Any]
) -> str | None:
    """Why a layer cannot have the 2-bit cache, or None. given: further arguments of vLLM's AttentionImpl."""
    if (reason := shape_unsupported(head_size, num_heads // num_kv_heads)) is not None:
        return reason
    if attn_type != "decoder":
        return f"attention of the type {attn_type} has no 2-bit cache"
    found = next((f"it has {words}" for name, words in IN_BF16.items() if is_set(given.get(name))), None)
    unknown = sorted(name for name, value in given.items() if name not in ("sinks", *IN_BF16) and is_set(value))
    return found or (
        f"its attention has the argument '{unknown[0]}', which oscar-kv does not know" if unknown else None
    )


def model_refusal(text_config: Any) -> str | None:
    """One sentence for unsupported layers that AttentionImpl's arguments do not show, or None. text_config:
    transformers' own."""
    found = {"attention_chunk_size": getattr(text_config, "attention_chunk_size", None)}
    return unserved(MODEL, found)


def _checkpoint(config: Any) -> pathlib.Path:
    named = _option(config, CHECKPOINT_OPTION, existing_folder) or config.model_config.model
    return checkpoint_of(
        named, config.model_config.revision, f'pass --additional-config \'{{"{CHECKPOINT_OPTION}": "DIR"}}\''
    )


def _plain(model: Any, folder: pathlib.Path) -> Any:
    """The decoder's configuration as vLLM reads it without --hf-overrides and --hf-config-path."""
    from vllm.transformers_utils.config import get_config, get_hf_text_config

    return get_hf_text_config(get_config(str(folder), getattr(model, "trust_remote_code", False)))


def flash_attention(head_size: int) -> Callable[..., Any] | None:
    """vLLM's function, of version 3 on Hopper; None without one for this GPU. Only version 4 has heads above 256."""
    try:
        from vllm.v1.attention.backends.fa_utils import get_flash_attn_version
        from vllm.vllm_flash_attn import flash_attn_varlen_func

        wide = head_size > 256
        version = get_flash_attn_version(head_size=head_size) if wide else get_flash_attn_version()
        if wide and version == 4:
            importlib.import_module("vllm.vllm_flash_attn.cute.interface")  # which needs nvidia-cutlass-dsl
    except (ImportError, AssertionError, AttributeError):
        return None
    served = (4,) if wide else (2, 3)
    return functools.partial(flash_attn_varlen_func, fa_version=version) if version in served else None


class Serving(EngineServing):
    """The bundle of one worker. rank, ranks: tensor parallelism."""

    def __init__(self, config: Any, rank: int = 0, ranks: int = 1) -> None:
        for sentence in refusals(config):
            raise InputError(sentence)
        model = config.model_config
        latent = bool(getattr(model, "use_mla", False))
        with plain_torch():
            bundle = load_bundle(bundle_path(config), latent)
        if latent != bool(bundle.rope_dim):
            raise InputError(
                f"{bundle.path}: is a bundle for {'latent attention' if bundle.rope_dim else 'keys and values apart'}, "
                f"and the model has {'' if latent else 'no '}latent attention; take the bundle of this model"
            )
        if reason := model_refusal(model.hf_text_config):
            raise InputError(f"the model cannot be served with the 2-bit cache: {reason}")
        self._config = config.cache_config
        # of the bundle's layers: those of other kinds may have other heads (Gemma 4)
        heads = model.model_arch_config[min(layer.layer for layer in bundle.layers)]
        super().__init__(
            bundle,
            Settings(
                text=model.hf_text_config,
                kv_heads=1 if latent else heads.total_num_kv_heads,
                head_size=heads.head_size - bundle.rope_dim,
                checkpoint=functools.partial(_checkpoint, config),
                slots=config.scheduler_config.max_num_seqs,
                most_tokens=model.max_model_len,
                shares=bool(config.cache_config.enable_prefix_caching),
                length_option="--max-model-len",
                rank_option="--tensor-parallel-size",
                no_sharing_option="--no-enable-prefix-caching",
                plain=functools.partial(_plain, model),
                override_option="--hf-overrides",
                proposed=proposed_tokens(config),
                rank=rank,
                ranks=ranks,
                flash=flash_attention(heads.head_size) if torch.cuda.is_available() else None,
            ),
        )
        self.nominal_cell = nominal_cell(self.cells.values())
        self.pages_of_block: int | None = None  # if layers of other kinds share the blocks
        self._in_bf16: dict[int, str] = {}  # reasons
        self.requests: collections.Counter[int] = collections.Counter()  # {slot: requests that have had it}
        self.plan: Any = None  # backend.Plan of the pass that is prepared
        self.readers: collections.Counter[int] = collections.Counter()  # {layer: layers that read its cache}
        self.table: Any = None  # SlotTable of the last pass

    def keep_in_bf16(self, index: int, reason: str) -> str:
        """Notes that vLLM serves a layer in BF16; returns the reason."""
        self._in_bf16[index] = reason
        return reason

    def bf16_text(self) -> str:
        return layers_by_reason(self._in_bf16)

    def nominal_page(self, kv_heads: int) -> int:
        """Bytes of 64 tokens in a block that layers of other kinds share."""
        return kv_heads * PAGE_TOKENS * self.nominal_cell

    def share_blocks(self, pages: int) -> None:
        """Blocks hold this many pages of a layer, and layers of other kinds use them, too."""
        self.pages_of_block = pages

    def places(self, index: int) -> Places:
        """pages.Places of a layer."""
        layer, pages = self.layers[index], self.pages_of_block or 1
        page = layer.kv_heads * PAGE_TOKENS * self.cells[index]
        return Places(pages, page if self.pages_of_block is None else pages * self.nominal_page(layer.kv_heads), page)

    def tokens(self, block_tokens: int) -> int:
        """That fit into vLLM's memory, if layers of other kinds took none of it. block_tokens: in a block."""
        return (self._config.num_gpu_blocks or 0) * block_tokens

    def cell(self, index: int | None = None) -> int:
        """Without a layer, the room in blocks that all layers share."""
        return self.nominal_cell if index is None else super().cell(index)

    def request_of(self, slot: int) -> int:
        return self.requests[slot]

    def count_nonfinite(self, rows: int) -> None:
        metrics.count_nonfinite(rows)

    def room(self) -> int:
        """Block tables have whole blocks."""
        return self.most_tokens + PAGE_TOKENS * (self.pages_of_block or 0)

    def cache(self, index: int, group: int, device: torch.device) -> SlotKV:
        kv = super().cache(index, group, device)
        kv.places_of, kv.readers = functools.partial(self.places, index), self.readers[index]
        return kv
