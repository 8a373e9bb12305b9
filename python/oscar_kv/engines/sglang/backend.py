"""SGLang's attention backend `oscar`: SlotKV with the interfaces of SGLang 0.5.23
(srt/layers/attention/base_attn_backend.py there). A request's slot is its row of SGLang's ReqToTokenPool; row 0 is
padding. SGLang maps tokens to memory one by one, and with pages of 64 tokens every 64th entry names a block."""

import logging
import types
from collections.abc import Sequence
from typing import Any

import torch
from sglang.srt.layers.attention.base_attn_backend import AttentionBackend

from ...files.errors import InputError
from ...format.page_layout import PAGE_TOKENS
from ..names import BUNDLE_VARIABLE, SGLANG_BACKEND
from ..serving import is_set
from . import hooks
from .limits import LAYERS
from .pool import OscarPool


class OscarAttentionBackend(AttentionBackend):
    """One runner of SGLang. Everything that a captured graph reads is written by init_forward_metadata_out_graph(),
    before its replay."""

    extend_dummy_seqs_capped_by_req_pool = True  # tables have a row for each request that may run

    def __init__(self, runner: Any) -> None:
        given = runner.token_to_kv_pool
        pool = getattr(given, "full_kv_pool", given)  # beside SGLang's pool of windows
        left = hooks.missing()
        if not isinstance(pool, OscarPool) or left:
            unchanged = f" ({', '.join(left)} unchanged)" if left else ""
            raise InputError(
                f"--attention-backend {SGLANG_BACKEND} found SGLang's own memory pool{unchanged}; name "
                f"the bundle's folder in {BUNDLE_VARIABLE} for all processes"
            )
        # SGLang reads both names from here where it wraps this backend for models with states.
        self.token_to_kv_pool, self.req_to_token_pool, self._pool = given, runner.req_to_token_pool, pool
        self.serving = pool.serving
        self.serving.check(logging.getLogger("sglang.oscar_kv"), (pool.blocks - 1) * PAGE_TOKENS)
        self.req_to_token = runner.req_to_token_pool.req_to_token
        self.serving.generations = runner.req_to_token_pool.req_generation
        device, slots = self.req_to_token.device, self.serving.slots
        self.table = self.serving.table = self.serving.new_table(device)
        self._blocks = torch.zeros(
            (slots, -(-self.req_to_token.shape[1] // PAGE_TOKENS)), dtype=torch.int32, device=device
        )
        self._indices = sorted(self.serving.attention)
        self._flush = self.serving.flush_of(self._indices, pool.memory) if self.table.on_cuda else None
        heads = {layer.tp_q_head_num * layer.head_dim for layer in self.serving.attention.values()}
        self._output = torch.zeros((slots, max(heads)), dtype=torch.bfloat16, device=device)
        self._mapped = torch.zeros(slots, dtype=torch.int64, device=device)
        self._ends: dict[int, int] = {}  # {slot: tokens after its last chunk}, where windows are by slot
        self.beside: Any = None  # SGLang's backend of layers that stay in BF16
        if self.serving.beside:
            from sglang.srt.layers.attention.attention_registry import ATTENTION_BACKENDS

            name = "torch_native" if torch.device(runner.device).type == "cpu" else "triton"
            self.beside = ATTENTION_BACKENDS[name](runner)
        self._windows_by_torch = self.beside is not None and given is not pool and name == "torch_native"

    def init_cuda_graph_state(self, max_bs: int, max_num_tokens: int) -> None:
        if max_bs > self.serving.slots:
            raise InputError(
                f"graphs of {max_bs} requests are asked for, and windows are kept for "
                f"{self.serving.slots}; pass --cuda-graph-max-bs-decode {self.serving.slots} or a larger "
                "--max-running-requests"
            )

        if self.beside is not None:
            self.beside.init_cuda_graph_state(max_bs, max_num_tokens)

    def get_cuda_graph_seq_len_fill_value(self) -> int:
        return 1  # rows of padding are known by their slot

    def init_forward_metadata(self, forward_batch: Any) -> None:
        self._prepare(forward_batch, False)
        if self._windows_by_torch:  # which writes windows in their pool and reads them where other layers are
            places = self.token_to_kv_pool.translate_loc_from_full_to_swa(self.req_to_token)
            self.beside.req_to_token_pool = types.SimpleNamespace(req_to_token=places)
        if self.beside is not None:
            self.beside.init_forward_metadata(forward_batch)

    def init_forward_metadata_out_graph(self, forward_batch: Any, in_capture: bool = False) -> None:
        self._prepare(forward_batch, in_capture)
        if self.beside is not None:
            self.beside.init_forward_metadata_out_graph(forward_batch, in_capture=in_capture)

    def init_forward_metadata_in_graph(self, forward_batch: Any) -> None:
        if self.beside is not None:
            self.beside.init_forward_metadata_in_graph(forward_batch)

    def on_after_cuda_graph_warmup(self) -> None:
        if self.beside is not None:
            self.beside.on_after_cuda_graph_warmup()

    def _prepare(self, forward_batch: Any, in_capture: bool) -> None:
        batch, mode = forward_batch, forward_batch.forward_mode
        if mode.is_idle():
            return
        if not in_capture:
            self.serving.passed()
        count, rows = batch.batch_size, batch.req_pool_indices[: batch.batch_size]
        slots: Any = rows - 1
        if mode.is_decode():
            starts, counts = [1] * count, [1] * count  # only extending passes hold requests that begin
        elif mode.name in ("EXTEND", "MIXED") and batch.extend_prefix_lens_cpu is not None:
            starts, counts = list(batch.extend_prefix_lens_cpu), list(batch.extend_seq_lens_cpu)
            if batch.req_pool_indices_cpu is not None:
                slots = [row - 1 for row in batch.req_pool_indices_cpu.tolist()]
                self._check_starts(slots, starts, counts)
        else:
            raise InputError(
                f"SGLang asks for a pass of the kind {mode.name}, which the 2-bit cache of oscar-kv does not serve"
            )
        if is_set(getattr(batch, "multi_item_delimiter_indices", None)):
            raise InputError(
                "scoring of several items in one prompt has a mask of its own, which the 2-bit cache "
                "does not serve; leave --multi-item-scoring-delimiter out"
            )
        table = self._blocks[:count]
        table.copy_(torch.div(self.req_to_token[:, ::PAGE_TOKENS][rows], PAGE_TOKENS, rounding_mode="floor"))
        # A replay has rows of padding and no places for their tokens.
        places = self._mapped[:count] if mode.is_decode() else batch.out_cache_loc
        made = self.table.rows(slots, starts, counts, batch.seq_lens[:count], table, places)
        self.serving.restore(self._indices, made)
        made.flush = self._flush
        self.forward_metadata = made

    def _check_starts(self, slots: Sequence[int], starts: Sequence[int], counts: Sequence[int]) -> None:
        """Without the radix cache, a chunk may only follow what its slot has seen, because no other slot's windows are
        known."""
        if self.serving.shares:
            return
        for slot, start, count in zip(slots, starts, counts):
            if count > 1 and start > 0 and self._ends.get(slot) != start and slot >= 0:
                raise InputError(
                    f"a request begins with {start} tokens that its slot has not seen; the radix cache "
                    "is off, so this feature of SGLang is not served with oscar-kv"
                )
            self._ends[slot] = start + count

    def forward_extend(
        self,
        q: torch.Tensor,
        k: torch.Tensor | None,
        v: torch.Tensor | None,
        layer: Any,
        forward_batch: Any,
        save_kv_cache: bool = True,
        **kwargs: Any,
    ) -> torch.Tensor:
        """q [N, Hq d], k and v [N, Hkv, d] after RoPE. Returns [N, Hq d]."""
        if layer.layer_id in self.serving.beside:
            return self.beside.forward(q, k, v, layer, forward_batch, save_kv_cache, **kwargs)
        asked = next((name for name, value in kwargs.items() if is_set(value)), None)
        holds = layer is self.serving.attention[layer.layer_id]  # or reads a cache that an earlier layer fills
        if asked is not None or (k is not None) != holds or save_kv_cache != holds:
            words = LAYERS.get(asked, f"the argument {asked}") if asked else "a cache that SGLang fills otherwise"
            raise InputError(f"layer {layer.layer_id} of the model has {words}, which the 2-bit cache does not serve")
        heads, d = layer.tp_q_head_num, layer.head_dim
        query = q.view(-1, heads, d)
        key, value = (None if x is None else x.view(-1, layer.tp_k_head_num, d) for x in (k, v))
        rows, count = self.forward_metadata, query.shape[0]
        kept = rows.only_steps and count <= self._output.shape[0] and q.dtype == self._output.dtype
        # A decode step's output stays finite in rows of padding, and needs no fill, because layers run one after
        # another.
        output = self._output[:count, : heads * d] if kept else q.new_zeros(count, heads * d)
        if not output.is_contiguous():
            output = q.new_zeros(count, heads * d)
        pages = self._pool.pages[layer.layer_id]
        self.serving.kv(layer.layer_id).forward(
            pages, rows, query, key, value, layer.scaling, output.view(count, heads, d)
        )
        return output

    forward_decode = forward_extend
