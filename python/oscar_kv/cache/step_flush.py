"""Quantizes the new tokens of a step in all layers, with one launch for layers of any codes. It finds their pools,
windows and codes through descriptors on the device, made once."""

from collections.abc import Mapping
from typing import Any, Protocol

import torch

from ..format.windows import Policy
from ..ops import operators
from .layer_code import LayerCode
from .tiers import Held


class Layer(Protocol):
    """What is asked of slot_kv.SlotKV."""

    code: LayerCode
    policy: Policy
    windows: torch.Tensor
    bad: torch.Tensor

    @property
    def window_pages(self) -> int: ...


class Flush(Protocol):
    """What is asked of StepFlush and of latent_kv.LatentFlush."""

    @property
    def last(self) -> Any: ...  # the layer's cache after whose step it runs

    def run(self, held: Held) -> None: ...


class StepFlush:
    """caches: of layers that share block tables, by index; pools: their pages. Tensors must not move. It runs after
    the step of the layer `last`, when the windows of all layers have their new tokens."""

    def __init__(self, caches: Mapping[int, Layer], pools: Mapping[int, torch.Tensor]) -> None:
        order = sorted(caches)
        by_shape: dict[tuple[int, int, str, Policy, int], list[int]] = {}
        for index in order:
            kv = caches[index]
            layer = kv.code.layer
            by_shape.setdefault(
                (layer.kv_heads, layer.head_dim, kv.code.key.encoder, kv.policy, kv.window_pages), []
            ).append(index)
        self.groups = []  # layers of one shape: one launch; (one of them, their descriptors)
        for indices in by_shape.values():
            sides = torch.zeros((len(indices), 2, operators.SIDE_BYTES), dtype=torch.uint8)
            for i, index in enumerate(indices):
                kv, code = caches[index], caches[index].code
                operators.run(
                    operators.describe_layer,
                    code.view(sides=sides[i], pool=pools[index], windows=kv.windows, bad=kv.bad),
                )
            self.groups.append((kv, sides.flatten(0, 1).to(code.device)))
        self.kept = [caches, pools]  # keeps the objects alive whose addresses are stored
        self.last = caches[order[-1]]

    def run(self, held: Held) -> None:
        """held: the storage, in any of the layers, of the rows with a new token."""
        for kv, sides in self.groups:
            layer = kv.code.layer
            operators.flush_layers(
                held.lengths,
                held.table,
                held.window_table,
                sides,
                layer.kv_heads,
                layer.head_dim,
                kv.code.sink,
                kv.code.key.encoder == "search",
            )
