"""What the caches of a layer in a serving engine share, of ordinary and of latent attention: the BF16 windows, by slot
of the engine's request table, and what happens to them between passes."""

import dataclasses
from typing import Any

import torch

from ..format.windows import Policy
from ..ops import operators
from .rows import Rows
from .tiers import Held


class SlotCache:
    """code: of the layer; policy: of its windows; windows: of all slots, then `kept` sinks of other requests
    (prefix_table.PrefixTable)."""

    def __init__(self, code: Any, group: int, policy: Policy, windows: torch.Tensor) -> None:
        self.code, self.group, self.policy, self.windows = code, group, policy, windows
        self.bad = torch.full((2,), operators.NO_FAULT, dtype=torch.int32, device=code.device)

    @property
    def window_pages(self) -> int:
        """Per slot; the same in all layers of a bundle."""
        return self.policy.sink_pages + self.policy.ring_pages

    @torch.no_grad()
    def restore(self, places: torch.Tensor, sources: torch.Tensor) -> None:
        """Copies window pages `sources` [F] to `places` [F], both int64."""
        self.windows.index_copy_(0, places, self.windows.index_select(0, sources))

    def held(self, pool: torch.Tensor, rows: Rows) -> Held:
        """The storage of these rows."""
        return Held(pool, rows.table, self.windows, rows.window_table, rows.lengths)

    def flush(self, pool: torch.Tensor, rows: Rows) -> None:
        """Writes the new tokens of steps from the windows into pages; the last layer does it for all layers of
        rows.flush. Two tokens of a launch may not go into one page."""
        if rows.steps is None or (rows.flush is not None and rows.flush.last is not self):
            return
        held = self.held(pool, rows)
        for lengths in rows.steps.after:
            one = dataclasses.replace(held, lengths=lengths)
            if rows.flush is None:
                self.flush_alone(one)
            else:
                rows.flush.run(one)

    def flush_alone(self, held: Held) -> None:
        """The newest token of each sequence, in this layer."""
        raise NotImplementedError

    def describe(self, pool: torch.Tensor) -> torch.Tensor:
        """For step_flush.StepFlush: descriptors [sides, SIDE_BYTES] with the addresses of this layer's tensors."""
        raise NotImplementedError
