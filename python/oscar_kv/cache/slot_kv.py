"""The 2-bit cache of one layer in a serving engine, on raw tensors. The engine owns the pages (its block tables
assign them to requests). This class owns the BF16 windows: one set of rings per slot of the engine's request
table.

Page i of a request holds its tokens from sink + 64 i on, in the request's block i. A token is written into its page
when it comes. A request of n tokens has ceil(n / 64) blocks, so the block always exists.

Codes depend only on the token, and all tokens after the sink have them, so a request may read the blocks of others as
codes (prefix caching). The sink of such a request is copied from a kept one (prefix_table.py), because codes of a sink
ruin every token after it. A restarted request, in any slot, counts as a new one."""

import itertools
from collections.abc import Callable, Sequence
from typing import NamedTuple, Protocol

import torch

from ..files.errors import InputError
from ..format.page_layout import PAGE_TOKENS
from ..format.windows import ring_pages
from ..ops import operators
from ..ops.rule import Rule
from ..ops.support import page_queries
from . import chunk_pass
from .chunk_plan import Chunk
from .layer_code import LayerCode
from .layer_pass import LayerPass
from .packed import sent
from .rows import Rows
from .slot_cache import SlotCache
from .step_rows import StepTables
from .tiers import Held, Tiers

MOST_ITEMS = 4096  # rows times KV heads of a launch, for which the kernel's workspace serves launches of all sizes
# columns by which an engine's block table may exceed its longest request's need, because some engines round up
WIDER_TABLE = 16


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
        self._named: list[int] = []  # slots of the last pass without chunks, and on the device
        self._sent = self._windows_of = self._lengths  # the second: those that _window_table is for
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
            and counts[: len(slots)].count(each) == len(slots)
            and slot_mapping.shape[0] >= count * each
        )
        ends = [0, *itertools.accumulate(counts)]
        firsts, last = ends[:count], None if uniform else [max(0, end - 1) for end in ends[1:]]
        on_device, known, places = self._slots_of(slots, counts, last)
        if on_device is not self._windows_of:
            torch.index_select(self._pages, 0, on_device, out=self._window_table[:count])
            self._windows_of = on_device
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
        if uniform:
            made.steps = self._steps.uniform(made, each, slot_mapping)
            return made
        most = self._steps.most_new
        few = [b for b, n in enumerate(counts) if 1 <= n <= most and known[b]]
        many = [b for b, n in enumerate(counts) if n > most and known[b]]
        made.chunks = tuple(Chunk(b, firsts[b], int(starts[b]), counts[b]) for b in many)
        made.steps = self._steps.mixed(made, counts, firsts, few)
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
                None if last is None else sent([last], device)[0],
            )
        if len(slots) == len(counts) > 0 and min(counts) > 0 and min(slots) >= 0 and max(slots) < self.slots:
            named, known = list(slots), [True] * len(counts)
        else:
            named = [s if 0 <= s < self.slots and c > 0 else self.slots for s, c in zip(slots, counts)]
            named += [self.slots] * (len(counts) - len(named))
            known = [n < self.slots for n in named]
        if last is None:
            if named != self._named:
                self._named, self._sent = named, sent([named], device)[0]
            return self._sent, known, None
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


class NewTokens(NamedTuple):
    """Rows of the model that SlotKV.forward() was given."""

    query: torch.Tensor  # [N, Hq, d]
    key: torch.Tensor  # [N, Hkv, d]
    value: torch.Tensor
    output: torch.Tensor  # [N, Hq, d], written
    scale: float
    sinks: torch.Tensor | None


class SlotKV(SlotCache):
    """The cache of one layer. slots: as in SlotTable; most_tokens: per request; group: query heads per KV head;
    most_new: as in SlotTable; kept: sinks of other requests, as in PrefixTable. Everything that outlives a forward pass
    is allocated here."""

    def __init__(
        self, code: LayerCode, slots: int, most_tokens: int, group: int, most_new: int = 1, kept: int = 0
    ) -> None:
        if most_new > code.recent:  # a step reads its tokens in BF16, before they have codes
            raise InputError(
                f"steps of {most_new} tokens do not fit into a recent window of {code.recent} tokens; "
                "speculate fewer tokens, or fit with a longer window (--windows)"
            )
        if kept and code.sink % PAGE_TOKENS:
            raise InputError(
                f"prefix caching needs a sink of whole blocks of {PAGE_TOKENS} tokens, the bundle has "
                f"{code.sink}; fit with --windows 64,256, or switch prefix caching off"
            )
        self.tiers = Tiers(code, ring_pages(code.recent, most_new))
        self.places_of: Callable[[], Places | None] | None = None  # None: the engine's own numbers
        unsupported = self.tiers.step_unsupported or self.tiers.decode_unsupported(group)
        if code.device.type == "cuda" and unsupported is not None:
            raise InputError(f"layer {code.layer.layer} cannot be served: {unsupported}")
        super().__init__(code, group, self.tiers.policy(), self.tiers.new_windows(slots + 1, kept))
        layer = code.layer
        self._most = max(1, MOST_ITEMS // layer.kv_heads)  # rows of steps in a launch
        self.space = torch.empty(0, dtype=torch.uint8, device=code.device)
        if self.tiers.decode_unsupported(group) is None:
            columns = most_tokens // PAGE_TOKENS + WIDER_TABLE
            queries = page_queries(columns, self.tiers.layout.pages) if code.transform.rotated_mean else 0
            rows = min(slots * most_new, self._most)
            self.space = code.shared.space(code.device, layer.head_dim, group, rows, layer.kv_heads, queries)
        code.transform.reserve(most_tokens, code.device)
        self._pass: LayerPass | None = None
        self.readers = 0  # layers of the model that read this cache later in a pass, with queries of their own
        self._lent: tuple[torch.Tensor, torch.Tensor] | None = None  # keys and values of the pass
        self._awaited = 0  # of the readers in this pass
        self.room = chunk_pass.room(layer.kv_heads, layer.head_dim, slots * most_tokens)
        self.buffer = (
            code.shared.buffer(code.device, layer.kv_heads, layer.head_dim, self.room)
            if code.device.type == "cuda"
            else None
        )
        # so that the engine's profile counts their memory
        code.transform.products("key_forward", "value_forward", "key_back", "value_back")

    def describe(self, pool: torch.Tensor) -> torch.Tensor:
        sides = torch.zeros((2, operators.SIDE_BYTES), dtype=torch.uint8)
        self.code.call(operators.describe_layer, sides=sides, pool=pool, windows=self.windows, bad=self.bad)
        return sides

    def flush_alone(self, held: Held) -> None:
        self.tiers.flush_tokens(held, self.bad)

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
        key: torch.Tensor | None,
        value: torch.Tensor | None,
        scale: float,
        output: torch.Tensor,
        sinks: torch.Tensor | None = None,
    ) -> None:
        """New tokens attend and enter the cache. query [N, Hq, d], key and value [N, Hkv, d] of the model, after
        RoPE; None: of a layer that reads this cache, whose keys and values are those of the layer that holds it. sinks:
        logits [Hq] or None (rule.Rule). Writes output [N, Hq, d]; rows of padding stay unchanged or become meaningless.

        Tokens of rows.steps are appended, then attend to the three tiers. All chunks attend in one call to their stored
        tokens and to their own unquantized tokens, then they are appended; with readers, once the last of them has
        attended. A reader writes the rows of steps again, with the same bytes."""
        reads = key is None or value is None
        new = NewTokens(query, *self._shared(key, value), output, scale, sinks)
        if rows.chunks:
            self._attend_chunks(pool, rows, new)
        if self._pass is None or not self._pass.of(pool, scale):
            self._pass = LayerPass(self.code, pool, self.windows, self.bad, self.space, scale)
        tables = None if sinks is not None else rows.tables(self.policy, self.room, self._most)
        if tables is not None and self._awaited:
            tables = (*tables[:3], None)
        if tables is None:
            self._apart(self._pass, rows, new)
        elif tables[2] is not None or tables[3] is not None:
            self._pass(output, new.query, new.key, new.value, tables)
        if not reads:
            self.flush(pool, rows)

    def _shared(self, key: torch.Tensor | None, value: torch.Tensor | None) -> tuple[torch.Tensor, torch.Tensor]:
        """Keys and values of a pass: those given, kept for readers, or those that are kept."""
        if key is None or value is None:
            if self._lent is None:
                raise InputError(f"layer {self.code.layer.layer}: a layer reads its cache before it has run")
            key, value = self._lent
            self._awaited -= 1
        else:  # copies, because an engine uses the memory again before the readers run
            self._awaited = self.readers
            key, value = (key.clone(), value.clone()) if self.readers else (key, value)
        self._lent = (key, value) if self._awaited else None
        return key, value

    def _apart(self, run: LayerPass, rows: Rows, of: NewTokens) -> None:
        """A pass in several calls: its tokens are in another order, or too many for a launch, or need the log-sum-exp
        for sinks."""
        query, key, value, output, _, sinks = of
        if rows.chunks and self._awaited == 0:
            work = rows.work(self.policy, self.room)
            new = (key, value) if isinstance(work.tokens, slice) else (key[work.tokens], value[work.tokens])
            run(output, new[0], *new, (None, None, None, work.new))
        if (steps := rows.steps) is None:
            return
        token, count = steps.tokens, steps.lengths.shape[0]
        query, key, value = query[token], key[token], value[token]
        made = output[token] if isinstance(token, slice) else torch.empty_like(query)
        # rows of a request are in order, so that later ones may follow in another launch
        for part in (slice(first, first + self._most) for first in range(0, count, self._most)):
            q, k, v, at = query[part], key[part], value[part], (steps.table[part], steps.window_table[part])
            if sinks is None:
                run(made[part], q, k, v, (*at, steps.lengths[part], None))
                continue
            held = Held(run.pool, at[0], self.windows, at[1], steps.lengths[part])
            rule = Rule(sinks=sinks)
            made[part].copy_(self.tiers.step(held, q, k, v, run.scale, self.bad, rule, self.space, flushes=False))
        if not isinstance(token, slice):
            output[token] = made

    def _attend_chunks(self, pool: torch.Tensor, rows: Rows, new: NewTokens) -> None:
        """All chunks attend in one call before any is appended."""
        query, key, value, output, scale, sinks = new
        work, held = rows.work(self.policy, self.room), self.held(pool, rows)
        if not work.whole:
            query, key, value = query[work.tokens], key[work.tokens], value[work.tokens]
        direct = isinstance(work.tokens, slice)
        out = (output if work.whole else output[work.tokens]) if direct else torch.empty_like(query)
        chunk_pass.attend(self.code, held, work, query, key, value, scale, out, self.buffer, sinks)
        if not direct:
            output[work.tokens] = out
