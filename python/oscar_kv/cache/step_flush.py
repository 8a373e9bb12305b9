"""Quantizes the new tokens of a step in all layers, with one launch for layers of any codes. It finds their pools,
windows and codes through descriptors on the device, made once."""

from collections.abc import Mapping
from typing import Any

import torch

from ..format.windows import Policy
from ..ops import operators
from .tiers import Held


class StepFlush:
    """caches: slot_cache.SlotCache of layers that share block tables, by index; pools: their pages. Tensors must not
    move. It runs after the step of the layer `last`, when the windows of all layers have their new tokens."""

    def __init__(self, caches: Mapping[int, Any], pools: Mapping[int, torch.Tensor]) -> None:
        order = sorted(caches)
        by_shape: dict[tuple[int, int, bool, Policy], list[int]] = {}
        for index in order:
            code = caches[index].code
            shape = (code.layer.kv_heads, code.row, code.search, caches[index].policy)
            by_shape.setdefault(shape, []).append(index)
        self.groups = []  # layers of one shape: one launch; (their shape, their descriptors)
        for shape, indices in by_shape.items():
            sides = torch.cat([caches[index].describe(pools[index]) for index in indices])
            self.groups.append((shape, sides.to(caches[order[0]].code.device)))
        self.pools, self.kept = pools, caches  # keeps the objects alive whose addresses are stored
        self.last = caches[order[-1]]

    def run(self, held: Held) -> None:
        """held: the storage, in any of the layers, of the rows with a new token."""
        for (kv_heads, row, search, policy), sides in self.groups:
            operators.flush_layers(
                held.lengths, held.table, held.window_table, sides, kv_heads, row, policy.sink, search
            )
