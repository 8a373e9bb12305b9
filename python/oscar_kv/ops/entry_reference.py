"""The torch reference of assign_entries, which gives the windows of running requests their BF16 entries where engines
share blocks among requests (cache/overlay_table.py)."""
import torch

from ..format.page_layout import PAGE_TOKENS
from .view import StepView

NONE = -1
SINKS_LAST = 1 << 38  # entries of sinks count as used this much later, so that windows never take them


def windows_of(a: StepView) -> tuple[torch.Tensor, torch.Tensor]:
    """Blocks [R, sink + ring pages] in the windows of requests, NONE if absent, and whether they have tokens before the
    new ones. If tokens were taken back, the first of the newest blocks may have lost its entry, but all its tokens are
    older than the windows: it counts as absent."""
    lengths = a.lengths.long()
    until = lengths if a.after else torch.where(a.known >= 0, a.known, lengths)
    start = torch.where(a.known >= 0, a.known, (lengths - a.few).clamp(min=0))
    last = torch.div(until - 1, PAGE_TOKENS, rounding_mode="floor")  # -1 without tokens
    column = torch.arange(a.ring_pages, device=last.device)
    newest = last[:, None] - (last[:, None] - column) % a.ring_pages
    first = torch.arange(a.sink_pages, device=last.device).expand(len(last), -1)
    number = torch.cat([first, newest], dim=1)
    there = (number >= 0) & (number <= last[:, None]) & (until[:, None] > 0)
    if a.recent > 0:
        there &= (number < a.sink_pages) | (PAGE_TOKENS * (number + 1) > start[:, None] - a.recent)
    number = torch.where(there, number, 0)
    blocks = a.table.long().gather(1, number.clamp(max=a.table.shape[1] - 1))
    there &= (blocks >= 0) & (blocks < a.entry_of.shape[0] - 1)
    return torch.where(there, blocks, NONE), there & (number * PAGE_TOKENS < start[:, None])


def assign_entries(a: StepView) -> None:
    """Blocks without an entry get the least recently used one that is in nobody's window, and a sink's only if no other
    is left. The first request that wants a block has the new entry."""
    blocks, old = windows_of(a)
    slots, nobody, entries = a.wanted.shape[0] - 1, a.entry_of.shape[0] - 1, a.block_of.shape[0] - 1
    a.wanted[a.slots] = blocks
    a.wanted[slots] = NONE
    flat = torch.where(blocks >= 0, blocks, nobody).flatten()
    held = a.entry_of[torch.where(a.wanted >= 0, a.wanted, nobody).flatten()]
    a.marked[held[held >= 0]] = a.now
    unused = (a.marked[:entries] != a.now).nonzero()[:, 0]
    free = unused[torch.argsort(a.used_at[unused], stable=True)].tolist()
    fresh = torch.zeros_like(flat, dtype=torch.bool)
    for place in ((flat != nobody) & (a.entry_of[flat] < 0)).nonzero()[:, 0].tolist():
        block = flat[place]
        if a.entry_of[block] >= 0 or not free:
            continue
        entry = free.pop(0)
        before = a.block_of[entry]
        if before >= 0 and a.entry_of[before] == entry:
            a.entry_of[before] = NONE
        a.block_of[entry], a.entry_of[block], a.marked[entry] = block, entry, a.now
        fresh[place] = True
    found = a.entry_of[flat]
    missing = (flat != nobody) & (found < 0)
    sinks = found.view(blocks.shape)[:, :a.sink_pages]
    a.used_at[found[found >= 0]] = a.now
    a.used_at[sinks[sinks >= 0]] = a.now + SINKS_LAST
    found = torch.where(found >= 0, found, entries)
    a.found.copy_(found.view(blocks.shape))
    a.ring.copy_(a.found[:, a.sink_pages:])
    a.blocks.copy_(blocks)
    a.read.copy_(old & fresh.view(blocks.shape))
    a.lost += missing.sum() + (a.read.sum() if a.counts else 0)
