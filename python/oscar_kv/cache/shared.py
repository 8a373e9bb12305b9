"""What the layers of one model share, because those of a device run one after another: scratch memory, and the flash
attention of the engine that runs them."""

from collections.abc import Callable
from typing import Any

import torch

from ..ops import operators


class Shared:
    """flash: the engine's flash_attn_varlen_func; None: torch's."""

    def __init__(self, flash: Callable[..., Any] | None = None) -> None:
        self.flash = flash
        self._buffers: dict[tuple[torch.device, int, int], torch.Tensor] = {}
        self._spaces: dict[tuple[torch.device, int, int, int, int, int], torch.Tensor] = {}
        self._growing: dict[tuple[torch.device, int], torch.Tensor] = {}  # by device and stream

    def buffer(self, device: torch.device, kv_heads: int, head_dim: int, rows: int) -> torch.Tensor:
        """Keys and values [rows, Hkv, d] BF16 that chunk_pass gathers, for the layers of a device."""
        place = (device, kv_heads, head_dim)
        held = self._buffers.get(place)
        if held is None or held.shape[1] < rows:
            held = self._buffers[place] = torch.empty(
                (2, rows, kv_heads, head_dim), dtype=torch.bfloat16, device=device
            )
        return held

    def space(
        self, device: torch.device, head_dim: int, group: int, rows: int, kv_heads: int, queries: int
    ) -> torch.Tensor:
        """Workspace of a decode step of up to `rows` tokens, at an address that captured graphs keep. queries: as in
        workspace()."""
        place = (device, head_dim, group, rows, kv_heads, queries)
        if place not in self._spaces:
            needed = operators.decode_workspace_bytes(torch.empty(0, device=device), *place[1:])
            self._spaces[place] = torch.zeros(needed, dtype=torch.uint8, device=device)
        return self._spaces[place]

    def workspace(
        self, like: torch.Tensor, head_dim: int, group: int, batch: int, kv_heads: int, queries: int = 0
    ) -> torch.Tensor:
        """Workspace of one decode_attention on the current stream, zeroed once and kept. queries: from
        support.page_queries() with rotated means, otherwise 0."""
        if not like.is_cuda:
            return torch.empty(0, dtype=torch.uint8)
        place = (like.device, torch.cuda.current_stream(like.device).cuda_stream)
        needed = operators.decode_workspace_bytes(like, head_dim, group, batch, kv_heads, queries)
        held = self._growing.get(place)
        if held is None or held.numel() < needed:
            needed += needed // 2 if queries else 0  # they grow with the sequences
            held = self._growing[place] = torch.zeros(needed, dtype=torch.uint8, device=like.device)
        return held
