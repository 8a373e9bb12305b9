"""Transforms rows and queries of one layer into the cache basis and back. Row vectors, FP32: x' = (x - mean)
forward; q' = q back(key); o = o' back(value) + mean; logits gain <q, mean> scale."""

import torch

from ..format.manifest import Layer
from ..ops import chunk_reference, operators, reference


class Phases:
    """cos and sin of RoPE at each position, [T, d], as in lib/model/rope_phases.h of the toolchain. A row depends
    only on its position. Needed only for keys whose mean was taken before RoPE."""

    def __init__(self, inverse: torch.Tensor, attention_factor: float = 1.0) -> None:
        self.inverse, self.factor = inverse.detach().float().cpu(), float(attention_factor)
        self._tables: dict[torch.device, torch.Tensor] = {}
        self._tiles: dict[torch.device, torch.Tensor] = {}

    def rows(self, positions: torch.Tensor) -> torch.Tensor:
        angle = (positions.float().cpu()[:, None] * self.inverse).double()
        return (torch.cat([angle.cos(), angle.sin()], dim=-1) * self.factor).float().to(positions.device)

    def tile(self, device: torch.device) -> torch.Tensor:
        """The table that the decode kernel reads beside table(), kept on the device."""
        if device not in self._tiles:
            self._tiles[device] = operators.tile_phases(self.inverse).to(device)
        return self._tiles[device]

    def table(self, count: int, device: torch.device) -> torch.Tensor:
        """Rows of positions [0, count) or more, kept on the device."""
        held = self._tables.get(device)
        if held is None or held.shape[0] < count:
            held = self._tables[device] = self.rows(torch.arange(max(1024, count + count // 4))).to(device)
        return held


class LayerTransform:
    """The matrices of a layer. heads_of: Hq / Hkv query heads per KV head."""

    def __init__(self, layer: Layer, phases: Phases | None = None) -> None:
        key, value = layer.key, layer.value
        self.key_forward, self.value_forward = key.forward, value.forward  # [1 or Hkv, d, d]
        self.query, self.output = key.back(True), value.back(False)
        self.key_mean, self.value_mean = key.mean, value.mean  # [Hkv, d] or None
        self.rotated_mean, self.phases = key.rotated_mean, phases
        self._products: dict[str, torch.Tensor] = {}
        self._positions = 1  # minimum size of the phase table
        if self.rotated_mean and phases is None:
            raise ValueError("keys with a rotated mean need the phases of RoPE")

    def to(self, device: torch.device | str) -> "LayerTransform":
        for name in ("key_forward", "value_forward", "query", "output", "key_mean", "value_mean"):
            tensor = getattr(self, name)
            setattr(self, name, tensor if tensor is None else tensor.to(device))
        return self

    def products(self, *names: str) -> tuple[torch.Tensor, ...]:
        """Matrices for the chunk operators: key_forward and value_forward, and their inverses key_back and
        value_back; on CUDA in two terms. Cached."""
        for name in names:
            if name not in self._products:
                if name == "key_back":
                    matrix = self.query.transpose(1, 2).contiguous()
                else:
                    matrix = self.output if name == "value_back" else getattr(self, name)
                self._products[name] = chunk_reference.split_matrix(matrix) if matrix.is_cuda else matrix
        return tuple(self._products[name] for name in names)

    def reserve(self, tokens: int, device: torch.device | str) -> None:
        """Reserves phases for this many positions, if means are rotated."""
        if self.rotated_mean:
            self._positions = max(self._positions, tokens)
            self.phase_table(device)

    def _before_rope(self) -> tuple[torch.Tensor, Phases]:
        """A rotated mean and its phases."""
        assert self.key_mean is not None and self.phases is not None
        return self.key_mean, self.phases

    def phase_table(self, device: torch.device | str) -> torch.Tensor:
        return self._before_rope()[1].table(self._positions, torch.device(device))

    def phase_tiles(self, device: torch.device) -> torch.Tensor:
        return self._before_rope()[1].tile(device)

    def mean_at(self, positions: torch.Tensor) -> torch.Tensor:
        """The mean keys with RoPE applied at each position: [T, Hkv, d]. reserve() must have covered the positions."""
        return reference.rotated(self._before_rope()[0], self.phase_table(positions.device)[positions])

    # Queries and outputs are [B, Hkv, R, d]: R rows (tokens times query heads of the group) per KV head.

    def queries(self, q: torch.Tensor) -> torch.Tensor:
        return torch.matmul(q.float(), self.query)

    def outputs(self, o: torch.Tensor) -> torch.Tensor:
        o = torch.matmul(o, self.output)
        return o if self.value_mean is None else o + self.value_mean[:, None, :]

    def shift(self, q: torch.Tensor) -> torch.Tensor | None:
        """[B, Hkv, R]: the mean key's contribution to every logit, before the scale; None without a mean."""
        if self.key_mean is None or self.rotated_mean:
            return None
        return (q.float() * self.key_mean[:, None, :]).sum(dim=-1)

    def phase_queries(self, q: torch.Tensor) -> torch.Tensor | None:
        """u(q) [B, Hkv, R, d] with <q, RoPE_p(mean)> = <u(q), c_p>; None if means are not rotated."""
        if not self.rotated_mean:
            return None
        return reference.phase_queries(q, self._before_rope()[0])
