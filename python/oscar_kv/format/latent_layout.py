"""Pages of latent attention (MLA): one KV head, whose key and value are one vector of 512 channels, and 64 channels of
the key after RoPE in BF16. kernels/common/latent_page.h of the toolchain is the definition."""

import torch

from .codec import RowCode
from .page_layout import PAGE_TOKENS, SidePages

CHANNELS, ROPE_CHANNELS = 512, 64
ROW = CHANNELS + ROPE_CHANNELS
HALF_TOKENS = 32  # of half a window page
WINDOW_ELEMENTS = PAGE_TOKENS * ROW  # of a window page


def operand_places(tokens: int, channels: int) -> torch.Tensor:
    """[tokens, channels] int64: the element of each in operand order, blocks of 16 x 16 for tensor cores."""
    token, channel = torch.arange(tokens)[:, None], torch.arange(channels)[None, :]
    row, column = token % 16, channel % 16
    block = channel // 16 * (tokens // 16) + token // 16
    return block * 256 + (4 * (row % 8) + column % 8 // 2) * 8 + (row // 8 + 2 * (column // 8)) * 2 + column % 2


def window_places() -> torch.Tensor:
    """[1, 64, 576] int64: the element of each token and channel (latent, then RoPE) in a window page."""
    half = operand_places(HALF_TOKENS, ROW)
    return torch.cat([half, half + HALF_TOKENS * ROW])[None]


def matrix_operand(terms: torch.Tensor) -> torch.Tensor:
    """Matrices [..., 512, 512] in the order of the kernels: latent_matrix_element() of kernels/latent/latent_rows.h."""
    blocks = terms.unflatten(-2, (CHANNELS // 16, 2, 4, 2)).unflatten(-1, (CHANNELS // 16, 2, 8))
    n = terms.dim() - 2  # dimensions: k / 16, k / 8, k / 2, k, n / 16, n / 8, n
    order = [*range(n), n, n + 4, n + 6, n + 2, n + 5, n + 1, n + 3]
    return blocks.permute(order).reshape(terms.shape).contiguous()


class LatentPages:
    """Pages of 64 tokens: codes and scales of the rows, then their RoPE channels."""

    def __init__(self, code: RowCode) -> None:
        self.code, self.side = code, SidePages(code, True, 0)
        self.rope_offset = self.side.end
        self.bytes = self.rope_offset + PAGE_TOKENS * ROPE_CHANNELS * 2
        self._rope = operand_places(PAGE_TOKENS, ROPE_CHANNELS)

    def to(self, device: torch.device | str) -> "LatentPages":
        self.side.to(device)
        self._rope = self._rope.to(device)
        return self

    def read(self, pages: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """pages [..., bytes] -> codes [..., 64, 512], params [..., 64, param_bytes], RoPE channels [..., 64, 64]."""
        rope = pages[..., self.rope_offset : self.bytes].contiguous().view(torch.bfloat16)
        return *self.side.read(pages), rope[..., self._rope]

    def write(self, pages: torch.Tensor, codes: torch.Tensor, params: torch.Tensor, rope: torch.Tensor) -> None:
        """The inverse, in place."""
        self.side.write(pages, codes, params)
        stored = torch.empty_like(rope.flatten(-2))
        stored[..., self._rope.flatten()] = rope.flatten(-2)
        pages[..., self.rope_offset : self.bytes] = stored.view(torch.uint8)
