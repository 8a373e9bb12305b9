"""A page of the cache: 64 tokens of one (layer, KV head), keys and values, as contiguous bytes.
kernels/common/page_layout.h of the toolchain is the definition. Codes are in the operand order of the tensor-core
kernels, so kernels can read a page written here."""

import dataclasses

import torch

from .codec import RowCode

PAGE_TOKENS = 64


@dataclasses.dataclass(frozen=True)
class Plane:
    """The codes of consecutive channels with equal bit width."""

    first_channel: int
    channels: int  # n
    width: int  # w
    offset: int  # bytes from the start of the page

    def bytes(self) -> int:
        return PAGE_TOKENS // 8 * self.channels * self.width

    def _vector_words(self) -> int:
        bits = self.channels * self.width
        return 4 if bits % 256 == 0 else 2 if bits % 128 == 0 else 1

    def _field_bit(
        self, word: torch.Tensor, lane: torch.Tensor, half: torch.Tensor, field: torch.Tensor
    ) -> torch.Tensor:
        v = self._vector_words()
        return 32 * (word // v * 32 * v + lane * v + word % v) + 16 * half + self.width * field

    def bits(self, key: bool) -> torch.Tensor:
        """[64, n] int64: the lowest bit of each code, relative to the start of the plane."""
        token, channel = torch.arange(PAGE_TOKENS)[:, None], torch.arange(self.channels)[None, :]
        n, w = self.channels, self.width
        if n % 16:
            return (token * n + channel) * w
        fields = 16 // w
        if key:
            lane = 4 * (token % 8) + channel % 8 // 2
            p = token // 8 * (n // 8) + channel // 8
            return self._field_bit(p // fields, lane, channel % 2, p % fields)
        lane, half = 4 * (channel % 8) + token % 8 // 2, token % 16 // 8
        p = token // 16 * (n // 8) + channel // 8
        if n * w % 32 == 0:
            return self._field_bit(2 * (p // fields) + half, lane, token % 2, p % fields)
        p = half * (n // 2) + p
        return self._field_bit(p // fields, lane, token % 2, p % fields)


class SidePages:
    """Keys or values of a page: converts codes and parameters to bytes and back, for any number of pages at once."""

    def __init__(self, code: RowCode, key: bool, offset: int) -> None:
        self.code, self.key, self.planes = code, key, []
        widths = (
            [(0, code.head_dim, 2)]
            if code.layout == "uniform"
            else [(b * code.block, code.block, w) for b, w in enumerate(code.widths) if w]
        )
        self.begin = offset
        for first, channels, width in widths:
            self.planes.append(Plane(first, channels, width, offset))
            offset += self.planes[-1].bytes()
        self.param_size = 4 if code.layout == "uniform" else 1
        self.groups = code.param_bytes() // self.param_size
        self.param_offset = offset
        self.end = offset + PAGE_TOKENS * code.param_bytes()
        # The codes in bit order, and the index of each (token, channel) in that order.
        self._place = [(plane.bits(key) // plane.width).flatten() for plane in self.planes]
        self._order = [torch.argsort(place) for place in self._place]

    def to(self, device: torch.device | str) -> "SidePages":
        self._place = [t.to(device) for t in self._place]
        self._order = [t.to(device) for t in self._order]
        return self

    def read(self, pages: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """pages [..., bytes] uint8 -> codes [..., 64, d] uint8, params [..., 64, param_bytes] uint8."""
        shape = (*pages.shape[:-1], PAGE_TOKENS, self.code.head_dim)
        codes = torch.zeros(shape, dtype=torch.uint8, device=pages.device)
        for plane, place in zip(self.planes, self._place):
            data = pages[..., plane.offset : plane.offset + plane.bytes()]
            shifts = torch.arange(0, 8, plane.width, dtype=torch.uint8, device=pages.device)
            in_order = (data.unsqueeze(-1) >> shifts & (1 << plane.width) - 1).flatten(-2)
            block = in_order[..., place].unflatten(-1, (PAGE_TOKENS, plane.channels))
            codes[..., plane.first_channel : plane.first_channel + plane.channels] = block
        stored = pages[..., self.param_offset : self.end].unflatten(-1, (self.groups, PAGE_TOKENS, self.param_size))
        return codes, stored.transpose(-3, -2).flatten(-2)

    def write(self, pages: torch.Tensor, codes: torch.Tensor, params: torch.Tensor) -> None:
        """The inverse: fills this side's sections of pages, in place."""
        for plane, order in zip(self.planes, self._order):
            block = codes[..., plane.first_channel : plane.first_channel + plane.channels].flatten(-2)
            in_order = block[..., order].unflatten(-1, (-1, 8 // plane.width))
            shifts = torch.arange(0, 8, plane.width, dtype=torch.uint8, device=pages.device)
            pages[..., plane.offset : plane.offset + plane.bytes()] = (in_order << shifts).sum(
                dim=-1, dtype=torch.uint8
            )
        stored = params.unflatten(-1, (self.groups, self.param_size)).transpose(-3, -2).flatten(-3)
        pages[..., self.param_offset : self.end] = stored


class PageLayout:
    """Pages of one layer: keys, then values."""

    def __init__(self, key_code: RowCode, value_code: RowCode) -> None:
        self.key = SidePages(key_code, True, 0)
        self.value = SidePages(value_code, False, self.key.end)
        self.bytes = self.value.end

    def to(self, device: torch.device | str) -> "PageLayout":
        self.key.to(device), self.value.to(device)
        return self
