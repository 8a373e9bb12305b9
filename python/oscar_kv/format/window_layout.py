"""The BF16 windows of a layer: pages of 64 tokens with rows in the operand order of the tensor-core kernels
(kernels/common/fragment_pages.h of the toolchain), so that kernels can read a window written here. A sequence has
pages for its first tokens (the sink), then a ring of R pages for its last ones. Token p is in slot p of the sink,
or in slot p mod 64 R of the ring."""

import torch

from .page_layout import PAGE_TOKENS
from .windows import sink_pages


def element_places(head_dim: int) -> torch.Tensor:
    """[2, 64, d] int64: the element of each (keys or values, token, channel) inside a page of one KV head."""
    token, channel = torch.arange(PAGE_TOKENS)[:, None], torch.arange(head_dim)[None, :]
    if head_dim % 16:  # no kernel has operands for such heads: plain order
        key = token * head_dim + channel
        return torch.stack([key, key + PAGE_TOKENS * head_dim])
    places = []
    for value in (False, True):
        tile, row_token, step, c = token // 16, token % 16, channel // 16, channel % 16
        row, column = (c, row_token) if value else (row_token, c)
        lane = 4 * (row % 8) + column % 8 // 2
        register = row // 8 + 2 * (column // 8)
        place = tile * 32 * head_dim + value * 16 * head_dim + (step * 32 + lane) * 8 + register * 2 + column % 2
        places.append(place)
    return torch.stack(places)


class WindowLayout:
    """Windows of sequences: `sink` first tokens and a ring of `ring_pages` pages. places [sides, 64, d]: of
    element_places(), or of another kind of rows."""

    def __init__(self, places: torch.Tensor, sink: int, ring_pages: int) -> None:
        self.sink, self.ring_pages, self.sink_pages = sink, ring_pages, sink_pages(sink)
        self.pages = self.sink_pages + ring_pages  # per sequence
        self.elements = places.numel()  # per page of one KV head
        self._place = places

    def to(self, device: torch.device | str) -> "WindowLayout":
        self._place = self._place.to(device)
        return self

    def index(self, windows: torch.Tensor, page: torch.Tensor, slot: torch.Tensor) -> list[tuple[torch.Tensor, ...]]:
        """Of each side: the index of rows [N, Hkv, d] in windows [pages, Hkv, elements], which are in slots of pages
        [N]."""
        head = torch.arange(windows.shape[1], device=windows.device)[None, :, None]
        return [(page[:, None, None], head, side[slot][:, None, :]) for side in self._place]

    def _index_of(
        self, windows: torch.Tensor, table: torch.Tensor, sequence: torch.Tensor, position: torch.Tensor
    ) -> list[tuple[torch.Tensor, ...]]:
        """The same of tokens."""
        ring = self.sink_pages * PAGE_TOKENS + position % (self.ring_pages * PAGE_TOKENS)
        slot = torch.where(position < self.sink, position, ring)
        return self.index(windows, table[sequence, slot // PAGE_TOKENS], slot % PAGE_TOKENS)

    def write(
        self,
        windows: torch.Tensor,
        table: torch.Tensor,
        sequence: torch.Tensor,
        position: torch.Tensor,
        *sides: torch.Tensor,
    ) -> None:
        """Writes rows [N, Hkv, d] BF16 of each side, at position [N] of sequences [N], into windows."""
        for index, rows in zip(self._index_of(windows, table, sequence, position), sides):
            windows[index] = rows

    def rows(
        self, windows: torch.Tensor, table: torch.Tensor, sequence: torch.Tensor, position: torch.Tensor
    ) -> list[torch.Tensor]:
        """The inverse: rows [N, Hkv, d] of each side."""
        return [windows[index] for index in self._index_of(windows, table, sequence, position)]

    def read(self, windows: torch.Tensor, table: torch.Tensor) -> torch.Tensor:
        """All slots of sequences: [sides, B, Hkv, 64 pages, d]."""
        rows = windows[table][..., self._place.flatten()].unflatten(-1, self._place.shape)
        return rows.permute(3, 0, 2, 1, 4, 5).flatten(3, 4)  # of [B, pages, Hkv, sides, 64, d]

    def positions(self, ends: torch.Tensor) -> torch.Tensor:
        """[B, 64 pages]: the token in each slot if the ring holds tokens from ends [B] on; -1 for slots that cannot
        have one."""
        device, ring = ends.device, self.ring_pages * PAGE_TOKENS
        slot = torch.arange(self.sink_pages * PAGE_TOKENS, device=device)
        sink = torch.where(slot < self.sink, slot, -1).expand(ends.shape[0], -1)
        body = ends[:, None]
        return torch.cat([sink, body + (torch.arange(ring, device=device) - body) % ring], dim=1)
