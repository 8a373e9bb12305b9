"""The 2-bit cache of one layer on raw tensors: the first and last tokens of each sequence in BF16, the tokens in
between as codes in pages of 64. No engine is imported here: an adapter provides keys, values and queries, and a page
table that all layers share.

Letters: B sequences, Hkv KV heads, Hq query heads, d head size, T tokens."""

from collections.abc import Sequence
from typing import Any

import torch

from ..files.errors import InputError, NumericalError
from ..format.page_layout import PAGE_TOKENS
from ..format.windows import Policy, ring_pages
from ..ops import operators
from ..ops.rule import ALL, Rule
from . import chunk_pass
from .chunk_plan import Chunk, ChunkWork
from .layer_code import LayerCode
from .tiers import Held, Tiers


class PageTable:
    """Maps pages of every layer's pool to tokens: entry i of a sequence holds tokens from sink + 64 i on."""

    def __init__(self, batch: int, most_pages: int | None = None) -> None:
        self.pages: list[list[int]] = [[] for _ in range(batch)]
        self.most_pages, self.used = most_pages, 0  # per sequence; None: it grows as needed
        self._tensors: dict[torch.device, torch.Tensor] = {}
        self._copied: dict[torch.device, int] = {}
        self._work: tuple[Any, ChunkWork] | None = None  # with its key, of the last pass, shared by layers

    def reserve(self, sequence: int, count: int) -> list[int]:
        held = self.pages[sequence]
        if self.most_pages is not None and count > self.most_pages:
            raise InputError(
                f"sequence {sequence} needs {count} pages of {PAGE_TOKENS} tokens, the page table has "
                f"{self.most_pages}; attach with a larger max_tokens"
            )
        while len(held) < count:
            held.append(self.used)
            self.used += 1
        return held

    def tensor(self, device: torch.device | str) -> torch.Tensor:
        """[B, pages of the longest sequence, or a few more] int32; unused entries are page 0. Returns the same
        tensor while it has room, so that a captured graph may read it."""
        device, most = torch.device(device), max((len(p) for p in self.pages), default=0)
        held = self._tensors.get(device)
        if held is None or held.shape[1] < most:
            width = max(self.most_pages or 0, most + most // 8 + 1)
            held = self._tensors[device] = torch.zeros((len(self.pages), width), dtype=torch.int32, device=device)
            self._copied[device] = -1
        if self._copied[device] != self.used:
            rows = [p + [0] * (held.shape[1] - len(p)) for p in self.pages]
            held.copy_(torch.tensor(rows, dtype=torch.int32).view(held.shape))
            self._copied[device] = self.used
        return held

    def work(self, policy: Policy, chunks: Sequence[Chunk], room: int, window_table: torch.Tensor) -> ChunkWork:
        """The plan of a pass for all layers of one policy and device. Their windows have the same places."""
        device = window_table.device
        key = (device, policy, tuple((c.row, c.first, c.start, c.count) for c in chunks), room, self.used)
        if self._work is not None and self._work[0] == key:
            return self._work[1]
        work = ChunkWork(policy, chunks, room, self.tensor(device), window_table)
        self._work = key, work
        return work

    def release(self) -> None:
        self.pages, self.used, self._work = [[] for _ in self.pages], 0, None
        self._copied = dict.fromkeys(self._copied, -1)  # as many pages may be others the next time


class PagedKV:
    """The cache of B sequences in one layer."""

    def __init__(self, code: LayerCode, table: PageTable) -> None:
        self.code, self.table, self.tiers = code, table, Tiers(code)
        self.batch = len(table.pages)
        self.lengths = [0] * self.batch
        self.oldest = [0] * self.batch  # the ring has BF16 rows of all tokens from here on
        heads, device, pages = code.layer.kv_heads, code.device, self.tiers.layout.pages
        self.windows = self.tiers.new_windows(self.batch)
        self.window_table = torch.arange(self.batch * pages, dtype=torch.int32, device=device).view(self.batch, pages)
        self.pool = torch.zeros((0, heads, code.page_bytes), dtype=torch.uint8, device=device)
        # Other tensors that a step on the device reads and writes.
        self.device_lengths = torch.zeros(self.batch, dtype=torch.int32, device=device)
        self.bad = torch.full((2,), operators.NO_FAULT, dtype=torch.int32, device=device)
        self.step_unsupported = self.tiers.step_unsupported

    def make_room(self, tokens: int) -> None:
        """Lengthens the rings so that crop() can take back this many tokens that come one at a time."""
        code, old = self.code, self.tiers
        pages = ring_pages(code.recent, 1 + tokens)
        if pages <= old.layout.ring_pages:
            return
        was, table = self.windows, self.window_table
        self.tiers = Tiers(code, pages)
        self.windows = self.tiers.new_windows(self.batch)
        self.window_table = torch.arange(
            self.batch * self.tiers.layout.pages, dtype=torch.int32, device=code.device
        ).view(self.batch, -1)
        for b, (length, oldest) in enumerate(zip(self.lengths, self.oldest)):
            spans = [range(min(code.sink, length)), range(max(code.sink, oldest), length)]
            position = torch.tensor([p for span in spans for p in span], dtype=torch.int64, device=code.device)
            sequence = torch.full_like(position, b)
            self.tiers.layout.write(
                self.windows, self.window_table, sequence, position, *old.layout.rows(was, table, sequence, position)
            )

    def crop_refusal(self, lengths: Sequence[int]) -> str | None:
        """Why crop() cannot shorten the sequences to these lengths, or None."""
        for b, (length, oldest) in enumerate(zip(lengths, self.oldest)):
            if length > self.code.sink and self.quantized_end(length) < oldest and length < self.lengths[b]:
                return (
                    f"sequence {b} cannot go from {self.lengths[b]} back to {length} tokens, because its recent "
                    f"window would begin at token {self.quantized_end(length)}, and BF16 copies are kept from "
                    f"token {oldest} on"
                )
        return None

    def crop(self, lengths: Sequence[int]) -> None:
        """Takes back the last tokens of every sequence. InputError if tokens of the new recent windows have no BF16
        copies."""
        if (reason := self.crop_refusal(lengths)) is not None:
            raise InputError(reason)
        self.lengths, self.oldest = list(lengths), [min(o, n) for o, n in zip(self.oldest, lengths)]
        self.device_lengths.copy_(torch.tensor(self.lengths, dtype=torch.int32))

    def state(self) -> tuple[list[int], list[int], torch.Tensor]:
        """For rewind(). Pages need no copy: earlier codes stay, later ones are written anew."""
        return self.lengths, list(self.oldest), self.windows.clone()

    def rewind(self, state: tuple[list[int], list[int], torch.Tensor]) -> None:
        """Takes back all tokens since state()."""
        self.lengths, self.oldest, windows = state
        self.windows.copy_(windows)
        self.device_lengths.copy_(torch.tensor(self.lengths, dtype=torch.int32))

    def _grow_to(self, lengths: list[int]) -> None:
        """The host's part of new tokens. Of a chunk, the ring gets the tokens that are not quantized at once."""
        ring = PAGE_TOKENS * self.tiers.layout.ring_pages
        for b, (start, end) in enumerate(zip(self.lengths, lengths)):
            coded = self.quantized_end(end)
            self.oldest[b] = coded if coded > start else max(self.oldest[b], end - ring)
        self.lengths = lengths

    def held(self) -> Held:
        table = self.table.tensor(self.code.device)
        return Held(self.pool, table, self.windows, self.window_table, self.device_lengths)

    def quantized_end(self, tokens: int) -> int:
        return self.tiers.quantized_end(tokens)

    def pass_unsupported(self, rule: Rule = ALL) -> str | None:
        """Why attend_chunks() does not serve a layer with this rule, or None."""
        if self.code.chunks_unsupported is not None:
            return self.code.chunks_unsupported
        return "windows, chunks of the sequence and soft caps are computed in torch" if rule.hides or rule.cap else None

    def _chunks(self, counts: Sequence[int]) -> list[Chunk]:
        first, made = 0, []
        for b, count in enumerate(counts):
            if count > 0:
                made.append(Chunk(b, first, self.lengths[b], count))
            first += count
        return made

    def work_of(self, counts: Sequence[int]) -> tuple[ChunkWork, int]:
        """The plan of a pass with counts[b] new tokens per sequence, and pages for them."""
        lengths = [n + c for n, c in zip(self.lengths, counts)]
        self._reserve_pages(lengths)
        layer = self.code.layer
        room = chunk_pass.room(layer.kv_heads, layer.head_dim, sum(lengths))
        return self.table.work(self.tiers.policy(), self._chunks(counts), room, self.window_table), room

    @torch.no_grad()
    def attend_chunks(
        self,
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        counts: Sequence[int],
        scale: float,
        sinks: torch.Tensor | None = None,
    ) -> torch.Tensor:
        """query [N, Hq, d], key and value [N, Hkv, d] of the model, after RoPE: counts[b] new tokens per sequence,
        concatenated, which attend to their sequence's tokens and to one another. append() must follow. Returns [N, Hq,
        d] in the queries' dtype."""
        work, room = self.work_of(counts)
        if self.code.device.type == "cuda":
            layer = self.code.layer
            q, key, value = (x.bfloat16().contiguous() for x in (query, key, value))
            buffer = self.code.shared.buffer(self.code.device, layer.kv_heads, layer.head_dim, room)
        else:  # stored rows are not rounded to BF16
            q, key, value = (x.float() for x in (query, key, value))
            buffer = None
        out = torch.empty_like(q)
        chunk_pass.attend(self.code, self.held(), work, q, key, value, scale, out, buffer, sinks)
        return out.to(query.dtype)

    @torch.no_grad()
    def append(self, key: torch.Tensor, value: torch.Tensor, counts: Sequence[int]) -> None:
        """key, value: [N, Hkv, d] of the model, after RoPE: counts[b] new tokens per sequence, concatenated."""
        if any(counts):
            work, _ = self.work_of(counts)
            assert work.new is not None
            rows = key.contiguous(), value.contiguous()
            chunk_pass.append(self.code, self.pool, self.windows, work.new, *rows, self.bad)
            self.check_finite()
        self._grow_to([n + c for n, c in zip(self.lengths, counts)])
        self.device_lengths.copy_(torch.tensor(self.lengths, dtype=torch.int32))

    def check_finite(self) -> None:
        """NumericalError if a kernel met a key or value that is not finite. Waits for the device. Appending chunks
        calls it; after single-token steps, the caller must."""
        for side, row in zip(("key", "value"), self.bad.tolist()):
            if row != operators.NO_FAULT:
                self.bad.fill_(operators.NO_FAULT)
                raise NumericalError(
                    f"layer {self.code.layer.layer}, {side}: KV head "
                    f"{row % self.code.layer.kv_heads} of a row to be quantized holds a NaN or an "
                    "infinity; expected finite keys and values"
                )

    def _reserve_pages(self, lengths: Sequence[int]) -> None:
        for b, n in enumerate(lengths):
            self.table.reserve(b, self.tiers.pages_of(n))
        self._grow(self.table.used)
        self.code.transform.reserve(max(lengths), self.code.device)

    def _grow(self, pages: int) -> None:
        """Makes room for this many pages, plus an eighth to keep copies rare."""
        if pages <= self.pool.shape[0]:
            return
        more = torch.zeros((pages + pages // 8, *self.pool.shape[1:]), dtype=torch.uint8, device=self.pool.device)
        more[: self.pool.shape[0]] = self.pool
        self.pool = more

    def reserve(self, tokens: int, more: bool = False) -> None:
        """Reserves memory for sequences of this many tokens, or for so many more of every sequence. Until then no
        tensor moves, and step_on_device() may be captured."""
        self._reserve_pages([tokens + (n if more else 0) for n in self.lengths])
        self.table.tensor(self.code.device)

    def tensors(self) -> list[torch.Tensor]:
        """The tensors that step_on_device() reads and writes; a captured graph is valid while their addresses do not
        change."""
        made = [
            self.pool,
            self.table.tensor(self.code.device),
            self.windows,
            self.window_table,
            self.device_lengths,
            self.bad,
        ]
        return made + ([self.code.transform.phase_table(self.code.device)] if self.code.transform.rotated_mean else [])

    def count(self, tokens: int) -> None:
        """advance() after replays with reserved memory."""
        self._grow_to([n + tokens for n in self.lengths])

    @torch.no_grad()
    def step(
        self, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, scale: float, rule: Rule = ALL
    ) -> torch.Tensor:
        """Appends one new token of every sequence, query [B, Hq, 1, d], key and value [B, Hkv, 1, d], then attends.
        rule: rule.Rule of the layer. Returns output [B, Hq, 1, d] FP32."""
        if self.step_unsupported is not None:
            self.append(key.squeeze(2), value.squeeze(2), [1] * self.batch)
            return rule.with_sinks(*self.attend(query, scale, None, rule))
        self.advance(1)
        return self.step_on_device(query, key, value, scale, rule)

    def advance(self, tokens: int) -> None:
        """The host's part of steps: pages for more tokens of every sequence. After replays of a captured graph, it
        updates the host's lengths to the device's."""
        self._grow_to([n + tokens for n in self.lengths])
        self._reserve_pages(self.lengths)

    @torch.no_grad()
    def step_on_device(
        self, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, scale: float, rule: Rule = ALL
    ) -> torch.Tensor:
        """The device's part of step(): no lasting allocation, no waiting; lengths are read and written on the
        device. After reserve() it may be captured into a CUDA graph; call advance() after the replays."""
        held = self.held()
        self.device_lengths.add_(1)
        query, key, value = (x.squeeze(2) for x in (query, key, value))
        return self.tiers.step(held, query, key, value, scale, self.bad, rule).unsqueeze(2)

    @torch.no_grad()
    def attend(
        self, query: torch.Tensor, scale: float, new: Sequence[int] | None = None, rule: Rule = ALL
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """query [B, Hq, T, d] of the model, after RoPE, attends to everything in the cache.

        new: None if the query belongs to the last appended token (T = 1). Otherwise the number of tokens per
        sequence that follow the cache's; query i of sequence b has position lengths[b] + i. rule: the layer's.
        Returns output [B, Hq, T, d] FP32 and log-sum-exp [B, Hq, T], without the rule's sinks (rule.with_sinks())."""
        return self.tiers.attend(self.held(), query, scale, new, rule)

    def allocated_bytes(self) -> int:
        return sum(t.numel() * t.element_size() for t in (self.windows, self.pool))

    def reset(self) -> None:
        """Removes all tokens; keeps the memory of the windows."""
        self.lengths, self.oldest = [0] * self.batch, [0] * self.batch
        self.device_lengths.zero_()
        self.pool = self.pool[:0].clone()
