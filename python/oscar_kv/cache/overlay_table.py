"""Maps the blocks of an engine to BF16 pages: an overlay of entries, each with one block's tokens before
quantization. A running request has entries for its first blocks (the sink) and its newest ones. An entry belongs
to the block, not to the request. A request whose first tokens are in another's blocks (prefix caching) thus finds
their entries too. A block without an entry is read from its codes: its entry is filled with them (Overlay.fills).

Entries are assigned on the device, where the engine's block tables are. The host waits for this only in passes that
may contain a new request. A request that starts with others' tokens starts at a complete block."""
from collections.abc import Mapping, Sequence

import torch

from ..files.errors import InputError
from ..format.page_layout import PAGE_TOKENS
from .chunk_plan import Chunk
from .rows import Batch, Overlay, Rows
from .slot_kv import SlotTable
from .step_rows import sent

NONE = -1


def blocks_of_window(recent: int) -> int:
    """Blocks that the last `recent` tokens of a request can touch, including the new one."""
    return (recent + PAGE_TOKENS - 2) // PAGE_TOKENS + 1


class OverlayTable(SlotTable):
    """Converts an engine's batches to Rows with an Overlay. ring_pages: blocks_of_window(); spare: entries beyond
    the needs of `slots` running requests, which keep tokens of ended ones; blocks: number in the engine; None:
    found in the tables, which waits. most_new: as in SlotTable; above 1 it needs recent, the window in tokens."""

    def __init__(self, slots: int, sink_pages: int, ring_pages: int, device: torch.device | str,
                 spare: int | None = None, blocks: int | None = None, most_new: int = 1,
                 recent: int | None = None) -> None:
        super().__init__(slots, sink_pages + ring_pages, device, most_new)
        self.sink_pages, self.ring_pages, self._recent = sink_pages, ring_pages, recent if most_new > 1 else None
        self.entries = entries(slots, sink_pages + ring_pages, spare)
        device = self._lengths.device
        self._lost = torch.zeros((), dtype=torch.int64, device=device)
        self._wanted = self._lost.new_full((slots + 1, self.window_pages), NONE)   # blocks of each slot's windows
        # the last one receives discarded data
        self._block_of = self._lost.new_full((self.entries + 1,), NONE)
        self._used_at = self._lost.new_zeros(self.entries + 1)
        # for each block; the last one likewise
        self._entry_of = self._lost.new_full((1,), NONE)
        self._known, self._now = False, 0
        self.cover(blocks or 0)
        self._ring = self._pages.new_zeros(slots, ring_pages)
        self._entries = self._pages.new_zeros(slots, self.window_pages)
        self._before = self._pages.new_zeros(slots, self.window_pages)
        self._copies: tuple[torch.Tensor, torch.Tensor] | None = None
        # slots, starts of the next tokens and shape of the table of a pass of steps
        self._last: tuple[list[int], list[int], tuple[int, ...]] | None = None
        # Set by an engine's adapter for the next pass, if the engine put other blocks with the same tokens into the
        # table of a running request.
        self.exchanged = False

    def cover(self, blocks: int) -> None:
        """Sets the engine's number of blocks; 0: unknown."""
        self._known = self._known or blocks > 0
        self._grow(blocks)

    def _grow(self, blocks: int) -> None:
        held = self._entry_of.shape[0] - 1
        if blocks > held:
            more = torch.full((blocks - held,), NONE, dtype=torch.int64, device=self._entry_of.device)
            self._entry_of = torch.cat([self._entry_of[:held], more, self._entry_of[held:]])

    def _check(self) -> None:
        if int(self._lost) > 0:
            raise InputError("the engine moved a running request to another slot, or took blocks from it, which "
                             "oscar-kv does not follow; switch prefix caching off")

    def _check_written(self, old: Mapping[int, int], chunks: Sequence[Chunk], table: torch.Tensor) -> None:
        """InputError if a request that may be new reads blocks that a chunk of another writes in this pass: chunks
        attend before any token of the pass is written. Such requests must wait for the next pass. old: {row: tokens
        before the new ones} of those requests; others go on with blocks of their own. Decode steps are not checked as
        writers, because the engine may tell their starts only approximately."""
        if not old or not chunks:
            return
        written = torch.zeros_like(self._entry_of, dtype=torch.bool)
        written[torch.cat([table[c.row, c.start // PAGE_TOKENS:(c.start + c.count - 1) // PAGE_TOKENS + 1]
                           for c in chunks]).long()] = True
        if bool(written[torch.cat([table[row, :tokens // PAGE_TOKENS] for row, tokens in old.items()]).long()].any()):
            raise InputError("a request was given blocks that another request writes in the same step, which oscar-kv "
                             "does not follow; switch prefix caching off")

    def has_entry(self, block: int) -> bool:
        """Whether the block has a BF16 copy. For tests, because it waits."""
        return block < self._entry_of.shape[0] - 1 and int(self._entry_of[block]) != NONE

    def _of_window(self, lengths: torch.Tensor, table: torch.Tensor,
                   start: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Blocks [R, sink + ring pages] in the windows of requests with these lengths, and their index in the
        request; NONE if absent. start [R]: tokens before the new ones. If tokens were taken back, the first of the
        newest blocks may have lost its entry, but all its tokens are older than the windows: it counts as absent."""
        last = (lengths.long() - 1) // PAGE_TOKENS  # -1 without tokens
        column = torch.arange(self.ring_pages, device=table.device)
        newest = last[:, None] - (last[:, None] - column) % self.ring_pages
        first = torch.arange(self.sink_pages, device=table.device).expand(len(last), -1)
        number = torch.cat([first, newest], dim=1)
        there = (number >= 0) & (number <= last[:, None]) & (lengths[:, None] > 0)
        if self._recent is not None:
            there &= (number < self.sink_pages) | (PAGE_TOKENS * (number + 1) > start[:, None] - self._recent)
        number = torch.where(there, number, 0)
        return torch.where(there, table.long().gather(1, number.clamp(max=table.shape[1] - 1)), NONE), number

    def _assign(self, slots: torch.Tensor, blocks: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Assigns entries [R, ...] to blocks, which become the windows of their slots. Blocks without an entry get
        the least recently used free one. Also returns which [R, ...] got a new entry; a block requested by
        several rows is listed once."""
        self._now += 1
        self._wanted[slots] = blocks
        self._wanted[self.slots] = NONE
        nobody = self._entry_of.shape[0] - 1
        flat = torch.where(blocks >= 0, blocks, nobody).flatten()
        held = self._entry_of[torch.where(self._wanted >= 0, self._wanted, nobody).flatten()]
        taken = torch.zeros_like(self._used_at)
        taken[torch.where(held >= 0, held, self.entries)] = 1
        taken[self.entries] = 1  # not owned
        order = torch.argsort(self._used_at + (taken << 40), stable=True)
        missing = (flat != nobody) & (self._entry_of[flat] < 0)
        index = torch.arange(len(flat), device=flat.device)
        first = torch.full_like(self._entry_of, len(flat)).scatter_reduce(0, flat, index, "amin")
        new = missing & (first[flat] == index)
        entry = torch.where(new, order[(new.cumsum(0) - 1).clamp(min=0, max=self.entries)], self.entries)
        old = self._block_of[entry]
        gone = torch.where(new & (old >= 0) & (self._entry_of[old.clamp(min=0)] == entry), old, nobody)
        self._entry_of[gone] = NONE
        self._block_of[entry] = torch.where(new, flat, NONE)
        self._entry_of[torch.where(new, flat, nobody)] = torch.where(new, entry, NONE)
        self._entry_of[nobody] = NONE
        found = self._entry_of[flat]
        found = torch.where(found >= 0, found, self.entries)
        self._used_at[found] = self._now
        return found.view(blocks.shape), new.view(blocks.shape)

    def rows(self, slots: Sequence[int] | torch.Tensor, starts: Sequence[int], counts: Sequence[int],
             lengths: torch.Tensor, table: torch.Tensor, slot_mapping: torch.Tensor,
             new: Sequence[bool] | None = None) -> Rows:
        made, batch = self._requests(slots, starts, counts, lengths, table, slot_mapping)
        count, table = lengths.shape[0], made.table
        whole, behind = self._tables(table)
        made.overlay = Overlay(whole, self._ring[:count], self._before[:count])
        if not self._goes_on(slots, starts, counts, new, table):
            self._find_entries(made, batch, slots, starts, counts, new)
        made.table, made.window_table = behind, self._entries[:count]
        return self._with_steps(made, batch, slot_mapping)

    def _find_entries(self, made: Rows, batch: Batch, slots: Sequence[int] | torch.Tensor, starts: Sequence[int],
                      counts: Sequence[int], new: Sequence[bool] | None) -> None:
        """The entries of all windows, before and after the new tokens of chunks. Sets made.overlay.fills."""
        table, count, overlay = made.table, made.lengths.shape[0], made.overlay
        assert overlay is not None
        if not self._known:
            self._grow(int(table.max()) + 1)
        device = table.device
        slot, *_ = self._slots_of(slots, [1] * len(slots) + [0] * (count - len(slots)))
        chunk = {c.row: c for c in made.chunks}
        # First the data read before new tokens are written: windows of chunks before the pass, windows of others after
        # it.
        known, few = sent([[chunk[b].start if b in chunk else -1 for b in range(count)], batch.counts], device)
        until = torch.where(known >= 0, known, made.lengths)
        start = torch.where(known >= 0, known, (made.lengths - few).clamp(min=0))
        blocks, number = self._of_window(until, table, start)
        found, fresh = self._assign(slot, blocks)
        read = fresh & (number * PAGE_TOKENS < start[:, None])  # they hold tokens and had no entry
        exchanged, self.exchanged = self.exchanged, False
        old = {b: s for b, (s, c) in enumerate(zip(starts, counts))
               if c > 0 and s > 0 and s % PAGE_TOKENS == 0 and (new is None or new[b])}
        if exchanged or old:
            self._check()
            self._check_written(old, made.chunks, table)
            at = read.nonzero(as_tuple=True)
            if len(at[0]) > 0:
                overlay.fills = blocks[at], found[at]
        else:  # no request can be new
            self._lost += read.sum()
        self._before[:count] = found
        if chunk:
            for c in made.chunks:  # blocks that are written beyond their entries
                first = max(c.start // PAGE_TOKENS, self.sink_pages)
                end = (c.start + c.count - 1) // PAGE_TOKENS - self.ring_pages + 1
                if end > first:
                    self._entry_of[table[c.row, first:end].long()] = NONE
            found, _ = self._assign(slot, self._of_window(made.lengths, table, start)[0])
        self._entries[:count] = found
        self._ring[:count] = found[:, self.sink_pages:]

    def _goes_on(self, slots: Sequence[int] | torch.Tensor, starts: Sequence[int], counts: Sequence[int],
                 new: Sequence[bool] | None, table: torch.Tensor) -> bool:
        """Whether the pass is the last one with one more token for each request, none of which begins a block, so that
        every window has the entries it had."""
        last, self._last = self._last, None
        if (new is None or any(new) or isinstance(slots, torch.Tensor) or self._recent is not None
                or any(c != 1 for c in counts)):
            return False
        self._last = list(slots), [s + 1 for s in starts], tuple(table.shape)
        return (last == (list(slots), list(starts), tuple(table.shape)) and not self.exchanged
                and all(s % PAGE_TOKENS for s in starts))

    def _tables(self, table: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Copies of the block table at fixed addresses: the full table, and the part from the first block after the
        sink on."""
        if self._copies is None or self._copies[0].shape[1] != table.shape[1]:
            if table.shape[1] <= self.sink_pages:
                raise InputError(f"block tables of {table.shape[1]} blocks have no room behind the {self.sink_pages} "
                                 "of the sink; start the engine with a larger maximum length")
            self._copies = (table.new_zeros(self.slots, table.shape[1]),
                            table.new_zeros(self.slots, table.shape[1] - self.sink_pages))
        whole, behind = (copy[:table.shape[0]] for copy in self._copies)
        whole.copy_(table)
        behind.copy_(table[:, self.sink_pages:])
        return whole, behind


def entries(slots: int, window_pages: int, spare: int | None = None) -> int:
    """Number of entries of an overlay, with the default of `spare`."""
    return slots * window_pages + (slots // 4 + 8 if spare is None else spare)
