"""BF16 sinks of prefixes in host memory, where an engine moves blocks of a prefix there (KV offloading). Blocks hold
codes, and a request that begins with them needs the sink in BF16 (prefix_table.py). A sink leaves after the pass that
computed it, and is back before the pass that reads it. The host waits for neither."""

from collections.abc import Mapping, Sequence

import torch

from .prefix_table import PrefixTable
from .slot_cache import SlotCache

Move = tuple[int, int]  # the engine's first block of a prefix, and a place in host memory


class HostSinks:
    """places: sinks that host memory holds. caches: of all layers of a model."""

    def __init__(self, caches: Mapping[int, SlotCache], places: int) -> None:
        self._caches, self._valid = list(caches.values()), torch.zeros(0, dtype=torch.bool)
        self._rows = [
            torch.empty(
                (places, kv.policy.sink_pages, *kv.windows.shape[1:]),
                dtype=kv.windows.dtype,
                pin_memory=kv.windows.is_cuda,
            )
            for kv in self._caches
        ]
        if self._caches:
            self._valid = torch.zeros(places, dtype=torch.bool, device=self._caches[0].windows.device)
        self._left: torch.cuda.Event | None = None  # after the last copy to the host

    @torch.no_grad()
    def leave(self, table: PrefixTable, moves: Sequence[Move]) -> None:
        """Copies kept sinks to host memory."""
        for block, place in moves:
            pages, found = table.kept_of(block)
            self._valid[place] = found
            for kv, rows in zip(self._caches, self._rows):
                rows[place].copy_(kv.windows.index_select(0, pages), non_blocking=True)
        if moves and self._valid.is_cuda:
            self._left = self._left or torch.cuda.Event()
            self._left.record()

    @torch.no_grad()
    def come(self, table: PrefixTable, moves: Sequence[Move]) -> None:
        """Copies sinks back, as those of requests that began with these blocks."""
        if self._left is not None:  # an engine may prepare a pass on another stream
            self._left.wait()
        for block, place in moves:
            pages = table.keep(block, self._valid[place])
            for kv, rows in zip(self._caches, self._rows):
                kv.windows.index_copy_(0, pages, rows[place].to(kv.windows.device, non_blocking=True))
