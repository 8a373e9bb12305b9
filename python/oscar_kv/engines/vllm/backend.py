"""vLLM's attention backend OSCAR: SlotKV with the interfaces of vLLM 0.33 (v1/attention/backend.py there),
which are those of 0.32. vLLM owns the pages, in blocks of 64 tokens and the layout LBHNC, in which a layer's block is
[Hkv, page bytes]. The BF16 windows are in rings by request slot. Only vLLM's second model runner gives slots to a
backend."""

import dataclasses
import logging
from collections.abc import Mapping
from typing import Any

import torch

from ..names import CACHE_DTYPE, VLLM_BACKEND
from .release import check_release

check_release()

from vllm.config import get_current_vllm_config
from vllm.v1.attention.backend import (
    AttentionBackend,
    AttentionCGSupport,
    AttentionImpl,
    AttentionMetadata,
    AttentionMetadataBuilder,
    AttentionType,
)
from vllm.v1.kv_cache_interface import KVCacheLayout

from ...cache.rows import Rows
from ...cache.slot_kv import SlotKV
from ...cache.step_flush import StepFlush
from ...files.errors import InputError
from ...format.limits import HEAD_SIZES
from ...format.page_layout import PAGE_TOKENS
from ...ops.load import capability_unsupported
from . import adapters, requests, states
from .pages import Places
from .serving import SERVING, Serving, layer_refusal

SHARED = ("num_heads", "num_kv_heads", "head_size", "scale")  # by a layer and the one whose cache it reads


def _rank() -> int:
    from vllm.distributed.parallel_state import get_tensor_model_parallel_rank, model_parallel_is_initialized

    return get_tensor_model_parallel_rank() if model_parallel_is_initialized() else 0


def serving_of(config: Any) -> Serving:
    """The Serving of a vLLM configuration, made at the first call: a worker makes it when its model is built. Wrappers
    of several models build the language model with a configuration of its own, which shares the table of layers."""
    held = vars(config.compilation_config)
    if SERVING not in held:
        held[SERVING] = Serving(config, _rank(), config.parallel_config.tensor_parallel_size)
        if getattr(config, "lora_config", None) is not None:
            adapters.install()
    return held[SERVING]


def layer_index(name: str) -> int:
    from vllm.model_executor.models.utils import extract_layer_index

    return extract_layer_index(name)


def source_of(layer: Any) -> str | None:
    """The layer whose cache a layer of vLLM reads, None if it has one of its own."""
    return getattr(layer, "kv_sharing_target_layer_name", None)


class OscarPages:
    """What vLLM asks of a backend, as far as our pages answer it."""

    supported_dtypes = [torch.bfloat16]
    supported_kv_cache_dtypes = [CACHE_DTYPE]

    @staticmethod
    def get_name() -> str:
        return VLLM_BACKEND

    @staticmethod
    def get_supported_kernel_block_sizes(kv_cache_spec: Any = None) -> list[int]:
        return [PAGE_TOKENS]

    @classmethod
    def supported_kv_cache_layouts(cls) -> tuple[KVCacheLayout, ...]:
        return (KVCacheLayout.LBHNC,)

    @classmethod
    def supports_kv_connector(cls) -> bool:
        return True  # that of offloading.py; serving.refusals() has the others

    @classmethod
    def supports_compute_capability(cls, capability: Any) -> bool:
        return capability_unsupported(capability.major, capability.minor) is None


class OscarBackend(OscarPages, AttentionBackend):
    forward_includes_kv_cache_update = True  # a chunk attends to its past before its tokens overwrite the ring's oldest

    @staticmethod
    def get_impl_cls() -> type["OscarImpl"]:
        return OscarImpl

    @staticmethod
    def get_builder_cls() -> type["OscarMetadataBuilder"]:
        return OscarMetadataBuilder

    @classmethod
    def get_supported_head_sizes(cls) -> list[int]:
        return list(HEAD_SIZES)

    @classmethod
    def supports_sink(cls) -> bool:
        return True

    @classmethod
    def supports_per_head_quant_scales(cls) -> bool:
        return True  # of a checkpoint's kv_cache_scheme; no page reads them

    @classmethod
    def supports_device_cpu_query_lens_mismatch(cls) -> bool:
        return False

    @classmethod
    def customize_spec(cls, spec: Any) -> Any:
        """A layer tells its bytes per token and head (layers.layer_spec)."""
        if spec.state_content_bytes is None:
            raise InputError(
                f"vLLM asks for the pages of {VLLM_BACKEND} without a layer; this release is not one "
                "that oscar-kv was written for"
            )
        return spec


def backend_of(serving: Serving) -> type[OscarBackend]:
    """OscarBackend where vLLM asks it for the pages of a model: those of the widest layer."""

    def customize_spec(cls: type[OscarBackend], spec: Any) -> Any:
        return dataclasses.replace(spec, state_content_bytes=serving.cell())

    return type(OscarBackend.__name__, (OscarBackend,), {"customize_spec": classmethod(customize_spec)})


@dataclasses.dataclass
class OscarMetadata(AttentionMetadata):
    rows: Rows
    # {Places: Rows} of layers whose pages have other numbers than vLLM's; the others use `rows`
    placed: dict[Places, Rows] = dataclasses.field(default_factory=dict)

    def of(self, places: Places) -> Rows:
        return self.placed.get(places, self.rows)


class OscarMetadataBuilder(AttentionMetadataBuilder):
    """One forward pass as SlotTable sees it. Everything that a captured graph reads is written here, before its
    replay."""

    _cudagraph_support = AttentionCGSupport.UNIFORM_BATCH  # of as many tokens a request as a decode step has

    def __init__(self, kv_cache_spec: Any, layer_names: list[str], vllm_config: Any, device: torch.device) -> None:
        super().__init__(kv_cache_spec, layer_names, vllm_config, device)
        self.serving = serving_of(vllm_config)
        context = vllm_config.compilation_config.static_forward_context
        layer_names = [name for name in layer_names if source_of(context.get(name)) is None]
        self.serving.check(
            logging.getLogger("vllm.oscar_kv"),
            self.serving.tokens(kv_cache_spec.block_size),
            vllm_config.model_config.max_model_len,
        )
        if vllm_config.model_config.is_hybrid:
            states.install()
        if self.serving.shares:
            requests.install(SERVING)
        self.reorder_batch_threshold = self.serving.most_new
        self.table, self.layers = self.serving.new_table(device), [layer_index(name) for name in layer_names]
        self.names, self.members = dict(zip(self.layers, layer_names)), [self]
        self._flush: dict[Places | None, Bound] = {}
        self._tables: dict[object, torch.Tensor] = {}
        self.direct: list[int] = []  # layers with vLLM's page numbers
        self.by_places: dict[Places, list[int]] = {}  # the others
        for index in self.layers:
            places = self.serving.places(index)
            (self.direct if places.direct else self.by_places.setdefault(places, [])).append(index)

    def build(self, common_prefix_len: int, common_attn_metadata: Any, fast_build: bool = False) -> OscarMetadata:
        plan = self.serving.plan
        if plan is None or plan.common is not common_attn_metadata or self in plan.builders:
            made = self._other_blocks(plan, common_attn_metadata) or self._rows(common_attn_metadata)
            plan = self.serving.plan = Plan(common_attn_metadata, made, [], OscarMetadata(made))
        rows = plan.join(self)
        self.serving.restore(self.layers, rows)  # before the forward, which may be a graph replay
        if not self.by_places:
            return plan.metadata
        return OscarMetadata(
            rows, {places: self._placed(rows, places, self.step_flush(places)) for places in self.by_places}
        )

    def _other_blocks(self, plan: "Plan | None", common: Any) -> Rows | None:
        """The rows of a group of layers whose pass another group has planned, if all requests have equally many tokens:
        the same with this group's blocks. None: they need a plan of their own."""
        table, each = common.block_table_tensor[: common.num_reqs], common.max_query_len
        if (
            plan is None
            or plan.common.seq_lens is not common.seq_lens
            or self in plan.builders
            or self.serving.shares
            or plan.rows.chunks
            or common.causal is not True
            or (steps := plan.rows.steps) is None
            or steps.lengths.shape[0] != len(table) * each
        ):
            return None
        table = table if table.is_contiguous() and table.dtype == torch.int32 else self._kept("rows", table.int())
        own = table if each == 1 else self._kept("steps", table.repeat_interleave(each, 0))
        return dataclasses.replace(plan.rows, table=table, steps=dataclasses.replace(steps, table=own))

    def _rows(self, common: Any) -> Rows:
        """The batch as SlotTable sees it, for all builders that vLLM gives the same metadata."""
        self.serving.passed()
        count = common.num_reqs
        slots = states.slots() if common.req_idx is None else common.req_idx
        if slots is None:
            raise InputError(
                "vLLM did not tell the slots of the requests (req_idx), which its second model runner "
                "does; unset VLLM_USE_V2_MODEL_RUNNER"
            )
        if common.causal is not True:
            raise InputError("attention that is not causal was asked for, which the 2-bit cache does not have")
        ends = common.query_start_loc_cpu[: count + 1].tolist()
        counts = [end - begin for begin, end in zip(ends, ends[1:])]
        self.serving.table = self.table
        slots = slots[:count].tolist()
        counts = counts[: len(slots)]  # further rows are padding
        upper = common.seq_lens_cpu_upper_bound  # exact for chunks, and for requests that are new
        starts = [0] * len(slots) if upper is None else [n - c for n, c in zip(upper[: len(slots)].tolist(), counts)]
        if upper is None and (self.serving.shares or any(c > self.serving.most_new for c in counts)):
            raise InputError("vLLM did not tell the lengths of prompts on the host (seq_lens_cpu_upper_bound)")
        return self.table.rows(
            slots, starts, counts, common.seq_lens[:count], common.block_table_tensor[:count], common.slot_mapping
        )

    def _kept(self, name: object, table: torch.Tensor) -> torch.Tensor:
        """The table at a fixed address."""
        if name not in self._tables:
            self._tables[name] = table.new_zeros(self.serving.slots * self.serving.most_new, table.shape[1])
        return self._tables[name][: table.shape[0]].copy_(table)

    def _placed(self, rows: Rows, places: Places, flush: StepFlush | None) -> Rows:
        """The rows with the kernels' page numbers, in tables at fixed addresses."""
        table, steps = self._kept((places, "table"), places(rows.table)), rows.steps
        if steps is not None:
            own = table if steps.table is rows.table else self._kept((places, "steps"), places(steps.table))
            steps = dataclasses.replace(steps, table=own)
        return dataclasses.replace(rows, table=table, steps=steps, flush=flush)

    def step_flush(self, places: Places | None) -> StepFlush | None:
        """The StepFlush of this builder's layers with these places; None: of all layers with vLLM's page numbers whose
        builders share this one's rows. Made when vLLM's memory is bound to the layers, and again when the memory
        changes, because graphs are first recorded for a trial."""
        held = self._flush.get(places)
        count = len(self.by_places[places]) if places is not None else sum(len(one.direct) for one in self.members)
        if held is not None and len(held.layers) == count and held.still():
            return held.flush
        return self._bind(
            places,
            {i: self.names[i] for i in self.by_places[places]}
            if places is not None
            else {i: one.names[i] for one in self.members for i in one.direct},
        )

    def _bind(self, places: Places | None, names: Mapping[int, str]) -> StepFlush | None:
        """names: {layer index: vLLM's name}."""
        if not self.table.on_cuda or not names:
            return None
        context = self.vllm_config.compilation_config.static_forward_context
        layers = [context[name] for name in names.values()]
        memory = {i: layer.kv_cache for i, layer in zip(names, layers)}
        if not all(isinstance(m, torch.Tensor) and m.numel() > 0 for m in memory.values()):
            return None
        self._flush[places] = Bound(layers, list(memory.values()), self.serving.flush_of(list(memory), memory))
        return self._flush[places].flush


@dataclasses.dataclass
class Bound:
    """A StepFlush, and the memory that it was made for."""

    layers: list[Any]  # vLLM's
    memory: list[torch.Tensor]
    flush: StepFlush | None

    def still(self) -> bool:
        return all(layer.kv_cache is memory for layer, memory in zip(self.layers, self.memory))


@dataclasses.dataclass
class Plan:
    """The rows of one pass, which all builders of a KV cache group share. vLLM makes a builder for every page size, so
    for every pair of codes, and calls them one after another with the same metadata object."""

    common: Any  # vLLM's CommonAttentionMetadata
    rows: Rows
    builders: list[OscarMetadataBuilder]  # that have asked for the rows, the one that made them first
    metadata: OscarMetadata  # of builders whose layers all have vLLM's page numbers

    def join(self, builder: OscarMetadataBuilder) -> Rows:
        first = self.builders[0] if self.builders else builder
        self.builders.append(builder)
        builder.table = first.table  # whichever plans the next pass, windows are where this one left them
        if builder not in first.members:
            first.members.append(builder)
        elif builder is not first:  # known before, so the first one has counted its layers
            return self.rows
        self.rows.flush = first.step_flush(None)
        return self.rows


class BoundPages:
    """The pages of a layer in vLLM's memory, once its cache is made."""

    _cache: Any = None
    _pool: Any = None
    _blocks: torch.Tensor | None = None

    def pool(self, kv_cache: torch.Tensor) -> torch.Tensor:
        """Checked once."""
        if self._blocks is None or self._blocks.data_ptr() != kv_cache.data_ptr():
            self._blocks, self._pool = kv_cache, self._cache.pool(kv_cache)
        return self._pool


class OscarImpl(BoundPages, AttentionImpl):
    """One layer. vLLM gives its index with the first forward pass."""

    def __init__(
        self,
        num_heads: int,
        head_size: int,
        scale: float,
        num_kv_heads: int | None = None,
        alibi_slopes: Any = None,
        sliding_window: int | None = None,
        kv_cache_dtype: str = "auto",
        logits_soft_cap: float | None = None,
        attn_type: Any = AttentionType.DECODER,
        kv_sharing_target_layer_name: str | None = None,
        **extra: Any,
    ) -> None:
        self.num_heads, self.head_size, self.scale = num_heads, head_size, scale
        self.num_kv_heads = num_heads if num_kv_heads is None else num_kv_heads
        self.kv_cache_dtype = kv_cache_dtype
        given = dict(extra, alibi_slopes=alibi_slopes, sliding_window=sliding_window, logits_soft_cap=logits_soft_cap)
        reason = layer_refusal(num_heads, self.num_kv_heads, head_size, AttentionType(attn_type).value, given)
        if reason is not None:
            raise InputError(f"a layer cannot be served with the 2-bit cache: {reason}")
        self.sinks, self._index, config = extra.get("sinks"), -1, get_current_vllm_config()
        self.serving, self.source = serving_of(config), kv_sharing_target_layer_name
        if self.source is not None:
            held = config.compilation_config.static_forward_context[self.source].impl
            if any(getattr(held, name) != getattr(self, name) for name in SHARED):
                raise InputError(
                    f"a layer that reads the cache of {self.source} has heads of another size or number, or another "
                    "scale, which oscar-kv does not serve; leave --kv-cache-dtype oscar out"
                )
            self.serving.readers[layer_index(self.source)] += 1

    def cache(self, layer: Any, device: torch.device) -> SlotKV:
        if self._cache is None:
            self._index = layer_index(self.source or layer.layer_name)
            self._cache = self.serving.cache(self._index, self.num_heads // self.num_kv_heads, device)
        return self._cache

    def forward(
        self,
        layer: Any,
        query: torch.Tensor,
        key: torch.Tensor | None,
        value: torch.Tensor | None,
        kv_cache: torch.Tensor,
        attn_metadata: OscarMetadata | None,
        output: torch.Tensor,
        output_scale: Any = None,
        output_block_scale: Any = None,
    ) -> torch.Tensor:
        """query [N, Hq, d], key and value [N, Hkv, d], of which a layer that reads another's cache needs none; writes
        output [N, Hq, d]."""
        if output_scale is not None or output_block_scale is not None:
            raise InputError("a quantized attention output was asked for, which the 2-bit cache does not write")
        cache = self.cache(layer, query.device)
        if attn_metadata is None:  # the profile run, which allocates and counts the windows of all layers
            return output.zero_()
        rows = attn_metadata.of(self.serving.places(self._index))
        rows_of = (None, None) if self.source is not None else (key, value)
        cache.forward(self.pool(kv_cache), rows, query, *rows_of, self.scale, output, self.sinks)
        return output
