"""What the caches of one layer share, and the operators' view of it."""

import functools
from typing import Any

import torch

from ..format.bundle import Bundle
from ..format.manifest import Layer, side_codec
from ..format.page_layout import PageLayout
from ..ops import load, operators, support
from ..ops.view import StepView
from .shared import Shared
from .transform import LayerTransform, Phases


class OperatorCode:
    """What operators are told of one layer on one device."""

    def __init__(self, bundle: Bundle, layer: Layer, device: torch.device | str, row: int) -> None:
        """row: channels of a row, or of latents with their RoPE part."""
        self.layer, self.device, self.row = layer, torch.device(device), row
        self.sink, self.recent, self.search = bundle.sink, bundle.recent, bundle.encoder == "search"
        # None: kernels serve this layer's device, within the limits of ops/support.py.
        self.without_kernels = (
            load.missing(self.device) if self.device.type == "cuda" else "the layer is not on a CUDA device"
        )
        self._calls: dict[tuple[torch._ops.OpOverload, tuple[str, ...]], tuple[list[Any], list[int]]] = {}

    @functools.cached_property
    def _own(self) -> dict[str, Any]:
        """Arguments of operators that the layer knows. Made once, because engines call several operators a layer in
        every step."""
        return dict(sink=self.sink, recent=self.recent, search=self.search) | self.own()

    def own(self) -> dict[str, Any]:
        raise NotImplementedError

    def call(self, operator: torch._ops.OpOverload, **more: Any) -> Any:
        """operators.run(operator, self.view(**more)) with less work on the host, which mixed steps of engines wait for:
        the arguments that the layer knows are put in order once."""
        if operators.references():
            return operators.run(operator, self.view(**more))
        names = tuple(more)
        prepared = self._calls.get((operator, names))
        if prepared is None:
            prepared = self._calls[operator, names] = operators.places(operator, names, self._own)
        values, places = prepared[0].copy(), prepared[1]
        for place, value in zip(places, more.values()):
            values[place] = value
        return operator(*values)

    def view(self, **more: Any) -> StepView:
        """Arguments of operators (operators.run()) that the layer knows, and others."""
        return StepView.of(self._own | more)


class LayerCode(OperatorCode):
    """Shared by the caches of one layer: transform, codecs and page layout on one device."""

    def __init__(
        self,
        bundle: Bundle,
        layer: Layer,
        phases: Phases | None = None,
        device: torch.device | str = "cpu",
        shared: Shared | None = None,
    ) -> None:
        """shared: of all layers of the model; None: this layer has its own."""
        super().__init__(bundle, layer, device, layer.head_dim)
        self.shared = shared or Shared()
        self.transform = LayerTransform(layer, phases).to(device)
        self.key, self.value = (
            side_codec(layer, key, bundle.encoder, bundle.group).to(device) for key in (True, False)
        )
        self.clip = tuple(torch.tensor(c.clip, dtype=torch.float32, device=device) for c in (self.key, self.value))
        self.page_bytes = PageLayout(self.key.code, self.value.code).bytes
        self.numbers = (self.key.code.numbers(), self.value.code.numbers())
        # Why the kernels of chunks do not serve this layer on its GPU, or None.
        self.chunks_unsupported = support.chunks_unsupported(self) if self.device.type == "cuda" else None

    def phases(self) -> torch.Tensor | None:
        """Of operators, for a mean before RoPE."""
        return self.transform.phase_table(self.device) if self.transform.rotated_mean else None

    def tile_phases(self, kernels: bool) -> torch.Tensor | None:
        """What the decode kernel reads beside phases()."""
        return self.transform.phase_tiles(self.device) if self.transform.rotated_mean and kernels else None

    def own(self) -> dict[str, Any]:
        transform = self.transform
        return dict(
            query_matrix=transform.query,
            key_matrix=transform.key_forward,
            value_matrix=transform.value_forward,
            output_matrix=transform.output,
            key_mean=transform.key_mean,
            value_mean=transform.value_mean,
            key_sigma=self.key.sigma,
            value_sigma=self.value.sigma,
            key_clip=self.clip[0],
            value_clip=self.clip[1],
            key_code=self.numbers[0],
            value_code=self.numbers[1],
        )
