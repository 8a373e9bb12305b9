"""Which BF16 pages the blocks of an engine have: an overlay of entries, each of which holds one block's tokens as they were before
they became codes. A running request has entries of its first blocks (the sink) and of its newest ones; an entry goes by the block and
not by the request, so that a request which finds its first tokens in another's blocks (prefix caching) finds their entries, too. A
block without one is read from its codes: its entry is filled with them (Overlay.fills).

Who has which entry is decided on the device, because an engine's block tables are there. The host waits for it only in
passes in which a request may be new: one that starts with tokens of others starts at a whole block."""
import dataclasses

import torch

from .errors import InputError
from .page_layout import PAGE_TOKENS
from .slot_kv import SlotTable

NONE = -1


def blocks_of_window(recent):
    """Blocks that the last `recent` tokens of a request can touch, the new one counted."""
    return (recent + PAGE_TOKENS - 2) // PAGE_TOKENS + 1


@dataclasses.dataclass
class Overlay:
    """What a pass needs beside slot_kv.Rows, whose table starts behind the sink; same addresses in each pass."""
    blocks: torch.Tensor  # [R, P] int32: the whole block table
    ring: torch.Tensor    # [R, ring pages] int32: entries of the newest blocks; block j stands in column j mod ring pages
    before: torch.Tensor  # [R, sink + ring pages] int32: entries before the new tokens of chunks
    fills: tuple = None   # blocks [F] and entries [F] int64 to be filled with the codes of these blocks, before anything else


class OverlayTable(SlotTable):
    """Batches of an engine as Rows with their Overlay. ring_pages: blocks_of_window(); spare: entries beyond those of `slots` running
    requests, in which ended ones live on; blocks: of the engine, None: looked up in the tables, which waits."""

    def __init__(self, slots, sink_pages, ring_pages, device, spare=None, blocks=None):
        super().__init__(slots, sink_pages + ring_pages, device)
        self.sink_pages, self.ring_pages = sink_pages, ring_pages
        self.entries = entries(slots, sink_pages + ring_pages, spare)
        device = self._lengths.device
        whole = dict(dtype=torch.int64, device=device)
        self._wanted = torch.full((slots + 1, self.window_pages), NONE, **whole)   # blocks of each slot's windows
        self._block_of = torch.full((self.entries + 1,), NONE, **whole)            # the last one takes what is for nobody
        self._used_at = torch.zeros(self.entries + 1, **whole)
        self._entry_of = torch.full((1,), NONE, **whole)                           # of a block; the last one likewise
        self._lost = torch.zeros((), **whole)
        self._known, self._now = False, 0
        self.cover(blocks or 0)
        self._ring = self._pages.new_zeros(slots, ring_pages)
        self._entries = self._pages.new_zeros(slots, self.window_pages)
        self._before = self._pages.new_zeros(slots, self.window_pages)
        self._behind = self._whole = None

    def cover(self, blocks):
        """The engine has so many blocks; 0: not known."""
        self._known = self._known or blocks > 0
        self._grow(blocks)

    def _grow(self, blocks):
        held = self._entry_of.shape[0] - 1
        if blocks > held:
            more = torch.full((blocks - held,), NONE, dtype=torch.int64, device=self._entry_of.device)
            self._entry_of = torch.cat([self._entry_of[:held], more, self._entry_of[held:]])

    def _check(self):
        if int(self._lost) > 0:
            raise InputError("the engine moved a running request to another slot, or took blocks from it, which oscar-kv does not "
                             "follow; switch prefix caching off")

    def has_entry(self, block):
        """Whether the block has a BF16 copy. For tests: it waits."""
        return block < self._entry_of.shape[0] - 1 and int(self._entry_of[block]) != NONE

    def _of_window(self, lengths, table):
        """Blocks [R, sink + ring pages] of the windows of requests of so many tokens, and their numbers in the request; NONE: none."""
        last = (lengths.long() - 1) // PAGE_TOKENS  # -1 where there are no tokens
        column = torch.arange(self.ring_pages, device=table.device)
        newest = last[:, None] - (last[:, None] - column) % self.ring_pages
        first = torch.arange(self.sink_pages, device=table.device).expand(len(last), -1)
        number = torch.cat([first, newest], dim=1)
        there = (number >= 0) & (number <= last[:, None]) & (lengths[:, None] > 0)
        number = torch.where(there, number, 0)
        return torch.where(there, table.long().gather(1, number.clamp(max=table.shape[1] - 1)), NONE), number

    def _assign(self, slots, blocks):
        """Entries [R, ...] of blocks, which become the windows of their slots; those without one get the one that was used longest
        ago and is nobody's. Also which [R, ...] got one; a block that several rows want is named once."""
        self._now += 1
        self._wanted[slots] = blocks
        self._wanted[self.slots] = NONE
        nobody = self._entry_of.shape[0] - 1
        flat = torch.where(blocks >= 0, blocks, nobody).flatten()
        held = self._entry_of[torch.where(self._wanted >= 0, self._wanted, nobody).flatten()]
        taken = torch.zeros_like(self._used_at)
        taken[torch.where(held >= 0, held, self.entries)] = 1
        taken[self.entries] = 1  # nobody's
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

    def rows(self, slots, starts, counts, lengths, table, slot_mapping):
        made = super().rows(slots, starts, counts, lengths, table, slot_mapping)
        count, table = lengths.shape[0], made.table
        if not self._known:
            self._grow(int(table.max()) + 1)
        self._tables(table)
        device = table.device
        named = [s if 0 <= s < self.slots else self.slots for s in slots] + [self.slots] * (count - len(slots))
        slot = torch.tensor(named, dtype=torch.int64).to(device, non_blocking=True)
        chunk = {c.row: c for c in made.chunks}
        # First what is read before anything new is written: windows of chunks as they were, of single tokens as they will be.
        known = torch.tensor([chunk[b].start if b in chunk else -1 for b in range(count)]).to(device, non_blocking=True)
        until = torch.where(known >= 0, known, made.lengths)
        blocks, number = self._of_window(until, table)
        found, new = self._assign(slot, blocks)
        overlay = Overlay(self._whole[:count], self._ring[:count], self._before[:count])
        start = torch.where(known >= 0, known, (made.lengths - 1).clamp(min=0))
        read = new & (number * PAGE_TOKENS < start[:, None])  # they hold tokens, and had no entry
        if any(s > 0 and s % PAGE_TOKENS == 0 for s, c in zip(starts, counts) if c > 0):
            self._check()
            at = read.nonzero(as_tuple=True)
            if len(at[0]) > 0:
                overlay.fills = blocks[at], found[at]
        else:  # nobody can be new
            self._lost += read.sum()
        self._before[:count] = found
        if chunk:
            for c in made.chunks:  # blocks that are written past their entries
                first = max(c.start // PAGE_TOKENS, self.sink_pages)
                end = (c.start + c.count - 1) // PAGE_TOKENS - self.ring_pages + 1
                if end > first:
                    self._entry_of[table[c.row, first:end].long()] = NONE
            found, _ = self._assign(slot, self._of_window(made.lengths, table)[0])
        self._entries[:count] = found
        self._ring[:count] = found[:, self.sink_pages:]
        made.table, made.window_table, made.overlay = self._behind[:count], self._entries[:count], overlay
        return made

    def _tables(self, table):
        """Copies of the block table at addresses of their own: whole, and from the block behind the sink on."""
        if self._whole is None or self._whole.shape[1] != table.shape[1]:
            if table.shape[1] <= self.sink_pages:
                raise InputError(f"block tables of {table.shape[1]} blocks have no room behind the {self.sink_pages} of the sink; "
                                 "start the engine with a larger maximum length")
            self._whole = table.new_zeros(self.slots, table.shape[1])
            self._behind = table.new_zeros(self.slots, table.shape[1] - self.sink_pages)
        self._whole[:table.shape[0]] = table
        self._behind[:table.shape[0]] = table[:, self.sink_pages:]


def entries(slots, window_pages, spare=None):
    """Entries of an overlay, and the default of `spare`."""
    return slots * window_pages + (slots // 4 + 8 if spare is None else spare)
