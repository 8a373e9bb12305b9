"""The 2-bit cache of one layer in a serving engine, on raw tensors. The engine owns the pages (its block tables
assign them to requests). This class owns the BF16 windows: one set of rings per slot of the engine's request
table.

Page i of a request holds its tokens from sink + 64 i on, in the request's block i. A token is written into its page
when it comes. A request of n tokens has ceil(n / 64) blocks, so the block always exists.

Requests whose first tokens are in another's blocks are not supported, because the windows of those tokens are not in
the request's slot; prefix_kv.py supports them. A restarted request, in any slot, counts as a new one."""

import dataclasses
import itertools
from collections.abc import Callable, Sequence
from typing import Protocol

import torch

from ..files.errors import InputError
from ..format.page_layout import PAGE_TOKENS
from ..format.windows import ring_pages
from ..ops import operators
from ..ops.rule import Rule
from . import chunk_pass
from .chunk_plan import Chunk
from .layer_code import LayerCode
from .rows import Batch, Rows, StepRows
from .shared import MOST_ITEMS
from .step_flush import StepFlush
from .step_rows import StepTables, sent
from .tiers import Held, Tiers


class SlotTable:
    """Converts an engine's batches to Rows. slots: concurrent requests of the engine. One additional slot takes the
    padding. most_new: new tokens of a request in a decode step; a request with more has a chunk of a prompt."""

    def __init__(self, slots: int, window_pages: int, device: torch.device | str, most_new: int = 1) -> None:
        device, self.slots, self.window_pages = torch.device(device), slots, window_pages
        self._steps = StepTables(slots, window_pages, most_new, device)
        pages = torch.arange((slots + 1) * window_pages, dtype=torch.int32, device=device)
        self._pages = pages.view(slots + 1, window_pages)
        self._window_table = self._pages[slots:].repeat(slots, 1)
        self._lengths = torch.zeros(slots, dtype=torch.int32, device=device)
        self._table: torch.Tensor | None = None
        self._columns = 0  # of the engine's block tables, known from the first batch

    @property
    def on_cuda(self) -> bool:
        return self._lengths.is_cuda

    def rows(
        self,
        slots: Sequence[int] | torch.Tensor,
        starts: Sequence[int],
        counts: Sequence[int],
        lengths: torch.Tensor,
        table: torch.Tensor,
        slot_mapping: torch.Tensor,
    ) -> Rows:
        """The batch whose row b is the request in slot slots[b], with counts[b] new tokens after starts[b]; tokens
        of the rows are consecutive. Padding: rows beyond `slots`, slots of -1, counts of 0 and rows whose last
        token has slot_mapping -1.
        slots, starts, counts: sequences on the host; starts is read only for chunks. lengths [R], table [R, P] and
        slot_mapping [tokens]: on the device, without waiting for it. slots may also be a tensor [R] on the device."""
        made, batch = self._requests(slots, starts, counts, lengths, table, slot_mapping)
        return self._with_steps(made, batch, slot_mapping)

    def _requests(
        self,
        slots: Sequence[int] | torch.Tensor,
        starts: Sequence[int],
        counts: Sequence[int],
        lengths: torch.Tensor,
        table: torch.Tensor,
        slot_mapping: torch.Tensor,
    ) -> tuple[Rows, Batch]:
        """Rows without steps, and data about the batch for _with_steps()."""
        count, device = lengths.shape[0], lengths.device
        if count > self.slots:
            raise InputError(
                f"a batch of {count} requests came to a cache of {self.slots}; start the engine with more "
                "(max_num_seqs)"
            )
        counts = list(counts) + [0] * (count - len(counts))
        each = counts[0] if len(slots) > 0 else 1  # of a step without chunks
        uniform = (
            1 <= each <= self._steps.most_new
            and all(c == each for c in counts[: len(slots)])
            and slot_mapping.shape[0] >= count * each
        )
        firsts = [0, *itertools.accumulate(counts)][:count]
        last = None if uniform else [max(0, f + c - 1) for f, c in zip(firsts, counts)]
        on_device, known, places = self._slots_of(slots, counts, last)
        torch.index_select(self._pages, 0, on_device, out=self._window_table[:count])
        held = (slot_mapping[each - 1 : count * each : each] if places is None else slot_mapping[places]) >= 0
        if isinstance(slots, torch.Tensor) or not all(known):
            held &= on_device < self.slots
        torch.mul(lengths, held, out=self._lengths[:count])
        self._columns = self._columns or table.shape[1]
        if self._columns != table.shape[1]:  # recorded graphs read the old ones
            raise InputError(
                f"block tables came with {table.shape[1]} columns after {self._columns}; this engine is "
                "not one that oscar-kv was written for"
            )
        if not table.is_contiguous() or table.dtype != torch.int32:
            if self._table is None:
                self._table = torch.zeros((self.slots, self._columns), dtype=torch.int32, device=device)
            self._table[:count] = table
            table = self._table[:count]
        made = Rows(self._lengths[:count], table, self._window_table[:count])
        few = []
        if not uniform:
            few = [b for b in range(count) if 1 <= counts[b] <= self._steps.most_new and known[b]]
            made.chunks = tuple(
                Chunk(b, firsts[b], int(starts[b]), counts[b])
                for b in range(count)
                if counts[b] > self._steps.most_new and known[b]
            )
        return made, Batch(counts, firsts, few, each if uniform else None)

    def _with_steps(self, made: Rows, batch: Batch, slot_mapping: torch.Tensor) -> Rows:
        if batch.each is not None:
            made.steps = self._steps.uniform(made, batch.each, slot_mapping)
        else:
            made.steps = self._steps.mixed(made, batch.counts, batch.firsts, batch.few)
        return made

    def _slots_of(
        self, slots: Sequence[int] | torch.Tensor, counts: Sequence[int], last: list[int] | None = None
    ) -> tuple[torch.Tensor, list[bool], torch.Tensor | None]:
        """Slots [count] int64 on the device, where `self.slots` is padding; whether the host takes a row for a request;
        and `last`, a list of as many integers, on the device, if given."""
        device = self._lengths.device
        if isinstance(slots, torch.Tensor):
            return (
                torch.where((slots >= 0) & (slots < self.slots), slots.long(), self.slots),
                [c > 0 for c in counts],
                None if last is None else sent(last, device),
            )
        named = [s if 0 <= s < self.slots and c > 0 else self.slots for s, c in zip(slots, counts)]
        named += [self.slots] * (len(counts) - len(named))
        known = [n < self.slots for n in named]
        if last is None:
            return sent(named, device), known, None
        on_device, places = sent([named, last], device)
        return on_device, known, places


class Places(Protocol):
    """engines/vllm/pages.py: where this layer's pages are, if layers with larger pages share the engine's blocks."""

    @property
    def block_bytes(self) -> int: ...

    @property
    def pages(self) -> int: ...  # of a block

    def __call__(self, numbers: torch.Tensor) -> torch.Tensor:
        """The pages of the kernels for page numbers of the engine."""


class SlotKV:
    """The cache of one layer. slots: as in SlotTable; most_tokens: per request; group:
    query heads per KV head; most_new: as in SlotTable. Everything that outlives a forward pass is allocated here."""

    def __init__(self, code: LayerCode, slots: int, most_tokens: int, group: int, most_new: int = 1) -> None:
        if most_new > code.recent:  # a step reads its tokens in BF16, before they have codes
            raise InputError(
                f"steps of {most_new} tokens do not fit into a recent window of {code.recent} tokens; "
                "speculate fewer tokens, or fit with a longer window (--windows)"
            )
        self.code, self.tiers, self.group = code, Tiers(code, ring_pages(code.recent, most_new)), group
        self.places_of: Callable[[], Places | None] | None = None  # None: the engine's own numbers
        unsupported = self.tiers.step_unsupported or self.tiers.decode_unsupported(group)
        if code.device.type == "cuda" and unsupported is not None:
            raise InputError(f"layer {code.layer.layer} cannot be served: {unsupported}")
        self.windows = self._new_windows(slots)
        self.bad = torch.full((2,), operators.NO_FAULT, dtype=torch.int32, device=code.device)
        self.space = torch.empty(0, dtype=torch.uint8, device=code.device)
        if self.tiers.decode_unsupported(group) is None:
            self.space = code.shared.space(
                code.device,
                code.layer,
                code.transform.rotated_mean,
                group,
                slots * most_new,
                most_tokens,
                self.tiers.layout.pages,
            )
        code.transform.reserve(most_tokens, code.device)
        self.policy, layer = self.tiers.policy(), code.layer
        self.room = chunk_pass.room(layer.kv_heads, layer.head_dim, slots * most_tokens)
        self.buffer = (
            code.shared.buffer(code.device, layer.kv_heads, layer.head_dim, self.room)
            if code.device.type == "cuda"
            else None
        )
        # so that the engine's profile counts their memory
        code.transform.products("key_forward", "value_forward", "key_back", "value_back")

    def _new_windows(self, slots: int) -> torch.Tensor:
        return self.tiers.new_windows(slots + 1)

    @property
    def window_pages(self) -> int:
        """Per slot; the same in all layers of a bundle."""
        return self.tiers.layout.pages

    def pool(self, blocks: torch.Tensor) -> torch.Tensor:
        """Views the engine's memory [blocks, Hkv, 64, bytes of a token] uint8 or int8 as pages [blocks, Hkv, page
        bytes]. If layers with larger pages share the engine's blocks (Places of engines/vllm/pages.py), there are more
        pages."""
        if blocks.dtype != torch.uint8:
            blocks = blocks.view(torch.uint8)
        code, places = self.code, self._places()
        heads, page_bytes = code.layer.kv_heads, code.page_bytes
        size = heads * max(page_bytes, PAGE_TOKENS) if places is None else places.block_bytes // places.pages
        expected = (heads, PAGE_TOKENS, size // (heads * PAGE_TOKENS))
        if tuple(blocks.shape[1:]) != expected or not blocks.is_contiguous():
            raise InputError(
                f"layer {code.layer.layer}: the engine's cache is {list(blocks.shape)} with strides "
                f"{list(blocks.stride())}, expected contiguous blocks of {list(expected)} bytes"
            )
        flat = blocks.view(-1)
        if page_bytes == 0:  # a layer without bits; any number of a page is in range
            return flat.new_empty(len(flat), heads, 0)
        return flat[: len(flat) // (heads * page_bytes) * heads * page_bytes].view(-1, heads, page_bytes)

    def placed(self, numbers: torch.Tensor) -> torch.Tensor:
        """The pages of the kernels for page numbers of the engine."""
        places = self._places()
        return numbers if places is None else places(numbers)

    def _places(self) -> Places | None:
        return None if self.places_of is None else self.places_of()

    def forward(
        self,
        pool: torch.Tensor,
        rows: Rows,
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        scale: float,
        output: torch.Tensor,
        sinks: torch.Tensor | None = None,
    ) -> None:
        """New tokens attend and enter the cache. query [N, Hq, d], key and value [N, Hkv, d] of the model, after
        RoPE. sinks: logits [Hq] or None (rule.Rule). Writes output [N, Hq, d]; rows of padding stay unchanged
        or become meaningless.

        Tokens of rows.steps are appended, then attend to the three tiers. All chunks attend in one call to their stored
        tokens and to their own unquantized tokens, then they are appended."""
        held = self._held(pool, rows)
        if rows.chunks:
            self._run_chunks(held, rows, query, key, value, scale, output, sinks)
        if rows.steps is None:
            return
        token = rows.steps.tokens
        query, key, value = query[token], key[token], value[token]
        made = output[token] if isinstance(token, slice) else torch.empty_like(query)
        self._step(held, rows.steps, rows.flush, query, key, value, scale, made, sinks)
        if not isinstance(token, slice):
            output[token] = made.to(output.dtype)

    def _step(
        self,
        held: Held,
        steps: StepRows,
        flush: StepFlush | None,
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        scale: float,
        output: torch.Tensor,
        sinks: torch.Tensor | None,
    ) -> None:
        """Rows of steps: append, then attention that writes the engine's output. Sinks need the log-sum-exp, so they
        take more launches."""
        other = self.buffer is not None and sinks is None and output.dtype != torch.bfloat16
        made = torch.empty(output.shape, dtype=torch.bfloat16, device=output.device) if other else output
        most, count = max(1, MOST_ITEMS // self.code.layer.kv_heads), steps.lengths.shape[0]
        if 0 < count <= most:
            stored = Held(held.pool, steps.table, self.windows, steps.window_table, steps.lengths)
            self._launch(stored, query, key, value, scale, made, sinks)
        else:  # rows of a request are in order, so that later ones may follow in another launch
            for part in (slice(first, first + most) for first in range(0, count, most)):
                one = Held(held.pool, steps.table[part], self.windows, steps.window_table[part], steps.lengths[part])
                self._launch(one, query[part], key[part], value[part], scale, made[part], sinks)
        if made is not output:
            output.copy_(made)
        self._flush(held, steps.after, flush)

    def _launch(
        self,
        held: Held,
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        scale: float,
        output: torch.Tensor,
        sinks: torch.Tensor | None,
    ) -> None:
        code = self.code
        if sinks is not None:
            output.copy_(
                self.tiers.step(held, query, key, value, scale, self.bad, Rule(sinks=sinks), self.space, flushes=False)
            )
            return
        code.call(
            operators.step_tokens,
            output=output,
            query=query,
            key=key,
            value=value,
            pool=held.pool,
            table=held.table,
            windows=held.windows,
            window_table=held.window_table,
            lengths=held.lengths,
            phases=code.phases(),
            tile_phases=code.tile_phases(self.space.is_cuda),
            workspace=self.space,
            scale=float(scale),
        )

    def _flush(self, held: Held, after: Sequence[torch.Tensor], flush: StepFlush | None) -> None:
        """Writes the new tokens from the windows into pages; the last layer does it for all layers of `flush`. after:
        StepRows.after; two tokens of a launch may not go into one page."""
        if flush is not None and flush.last is not self:
            return
        for lengths in after:
            one = dataclasses.replace(held, lengths=lengths)
            if flush is None:
                self.tiers.flush_tokens(one, self.bad)
            else:
                flush.run(one)

    def _held(self, pool: torch.Tensor, rows: Rows) -> Held:
        """The storage of these rows' cache."""
        return Held(pool, rows.table, self.windows, rows.window_table, rows.lengths)

    def _run_chunks(
        self,
        held: Held,
        rows: Rows,
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        scale: float,
        output: torch.Tensor,
        sinks: torch.Tensor | None,
    ) -> None:
        """All chunks attend in one call before any is appended."""
        work = rows.work(self.policy, self.room)
        if not work.whole:
            query, key, value = query[work.tokens], key[work.tokens], value[work.tokens]
        if self.buffer is not None and query.dtype != torch.bfloat16:
            query, key, value = query.bfloat16(), key.bfloat16(), value.bfloat16()
        direct = isinstance(work.tokens, slice) and output.dtype == query.dtype
        out = (output if work.whole else output[work.tokens]) if direct else torch.empty_like(query)
        chunk_pass.attend(self.code, held, work, query, key, value, scale, out, self.buffer, sinks)
        if not direct:
            output[work.tokens] = out.to(output.dtype)
        chunk_pass.append(self.code, held, work, key, value, self.bad)
