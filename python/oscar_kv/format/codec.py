"""The row codec in torch, bit for bit equal to the toolchain's lib/codec; docs/format-codec.md defines the
arithmetic. A row is one token of one KV head, d channels. Tensors are [..., H, d]. Heads have separate clip
ratios and deviations; all other dimensions are tokens."""

import dataclasses
from collections.abc import Sequence

import torch

from ..files.errors import InputError, NumericalError
from .float_math import clip_rows, fixed_dot, fixed_sum, truncated

MOST_HEAD_DIM = 1024
MOST_OFFSET = 2048.0  # largest distance of a group from zero, in scales, that 16-bit zero points resolve
FRACTIONS = (1.0, 0.95, 0.9, 0.85, 0.8, 0.75, 0.7, 0.65, 0.6, 0.55)
BLOCK_FRACTIONS = {
    1: (1.0,),
    2: tuple(round(1 - 0.55 * j / 7, 10) for j in range(8)),
    4: tuple(round(1 - 0.4 * j / 7, 10) for j in range(8)),
}
GRID = torch.tensor([2.0 ** (k / 32) for k in range(32)], dtype=torch.float64).float()
BOUNDARY = torch.tensor([2.0 ** ((k + 0.5) / 32) for k in range(32)], dtype=torch.float64).float()


@dataclasses.dataclass(frozen=True)
class RowCode:
    """The stored data of a row."""

    layout: str  # uniform | blocks
    head_dim: int  # d
    group: int = 0  # uniform: channels per scale and zero point; divides d
    widths: tuple[int, ...] = ()  # blocks: bits of each group of d/4 channels
    params: str = "float16"  # uniform: dtype of s and z, float16 | bfloat16
    refined: bool = False  # blocks: the last one codes what the first loses, and its own channels decode to 0

    @property
    def block(self) -> int:
        return self.head_dim // 4

    def code_bytes(self) -> int:
        return self.head_dim // 4 if self.layout == "uniform" else sum(self.widths) * self.block // 8

    def param_bytes(self) -> int:
        return 4 * (self.head_dim // self.group) if self.layout == "uniform" else sum(w > 0 for w in self.widths)

    def numbers(self) -> list[int]:
        """The list of integers that operators take; code_of() is the inverse."""
        widths = list(self.widths) or [0] * 4
        layout = int(self.layout == "blocks") + self.refined
        return [layout, self.head_dim, self.group, int(self.params == "bfloat16"), *widths]


def code_of(numbers: Sequence[int]) -> RowCode:
    blocks, head_dim, group, bfloat16, *widths = numbers
    if blocks:
        return RowCode("blocks", head_dim, widths=tuple(widths), refined=blocks == 2)
    return RowCode("uniform", head_dim, group=group, params="bfloat16" if bfloat16 else "float16")


def code_unsupported(code: RowCode) -> str | None:
    """Why kernels cannot read and write pages of this code, or None."""
    if code.head_dim % 16 or code.head_dim > 512:
        return f"kernels have head sizes up to 512 that 16 divides, not {code.head_dim}"
    return None


def validate(code: RowCode) -> None:
    d = code.head_dim
    if not 4 <= d <= MOST_HEAD_DIM:
        raise InputError(f"head_dim {d} cannot be quantized; expected 4 to {MOST_HEAD_DIM}")
    if code.layout == "uniform":
        if d % 4:
            raise InputError(f"head_dim {d} is not a multiple of 4, as 2-bit packing needs")
        if code.group < 1 or d % code.group:
            raise InputError(f"quantization group {code.group} does not divide head_dim {d}")
    elif d % 32:
        raise InputError(f"layout blocks needs a head_dim that 32 divides; found {d}")
    if code.refined and not (code.widths and code.widths[0] and code.widths[-1]):
        raise InputError("the last block cannot refine the first if one of them has no bits")


class _Stored:
    """16-bit parameters: values rounded to the dtype, and their bits."""

    def __init__(self, params: str) -> None:
        self.dtype = torch.float16 if params == "float16" else torch.bfloat16
        self.most, self.least = (65504.0, 2.0**-24) if params == "float16" else (2.0**96, 2.0**-100)

    def round(self, x: torch.Tensor) -> torch.Tensor:
        return x.to(self.dtype).float()

    def scale(self, a: torch.Tensor) -> torch.Tensor:
        """The stored scale of a positive number. A number not below the limit (including NaN) becomes the limit."""
        s = self.round(torch.where(a < self.most, a, torch.full_like(a, self.most)))
        return torch.where(s < self.least, torch.full_like(s, self.least), s)

    def bytes(self, scale: torch.Tensor, zero: torch.Tensor) -> torch.Tensor:
        """[..., groups] twice -> [..., 4 groups] bytes: s, z per group, little-endian."""
        pair = torch.stack([scale.to(self.dtype), zero.to(self.dtype)], dim=-1)
        return pair.flatten(-2).contiguous().view(torch.uint8)

    def values(self, params: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """[..., 4 groups] bytes -> s, z [..., groups] FP32."""
        pair = params.contiguous().view(self.dtype).float().unflatten(-1, (-1, 2))
        return pair[..., 0], pair[..., 1]


Group = tuple[torch.Tensor, torch.Tensor, torch.Tensor]  # codes, scales, zeros


class RowCodec:
    """Code, side and encoder of the heads of a layer. clip: 1 or H floats; sigma [H, 4] (blocks)."""

    def __init__(
        self,
        code: RowCode,
        key: bool,
        heads: int,
        encoder: str = "minmax",
        clip: Sequence[float] = (0.0,),
        sigma: torch.Tensor | None = None,
    ) -> None:
        validate(code)
        self.code, self.key, self.heads, self.encoder = code, key, heads, encoder
        # Ratios are FP32: 0.9600000 as the codec stores it.
        self.clip = [float(torch.tensor(c)) for c in (list(clip) * heads if len(clip) == 1 else clip)]
        self.sigma = sigma if sigma is not None else torch.ones(heads, 4)
        self._boundary = BOUNDARY

    def to(self, device: torch.device | str) -> "RowCodec":
        self.sigma = self.sigma.to(device)
        self._boundary = self._boundary.to(device)
        return self

    def encode(self, rows: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """rows [..., H, d] FP32 -> codes [..., H, d] uint8, params [..., H, param_bytes] uint8 as stored."""
        if not bool(torch.isfinite(rows).all()):
            flat = rows.reshape(-1, rows.shape[-1])
            row, channel = (~torch.isfinite(flat)).nonzero()[0].tolist()
            what = "a NaN" if bool(flat[row, channel].isnan()) else "an infinity"
            raise NumericalError(
                f"row {row} to be quantized holds {what} in channel {channel}; expected finite keys and values"
            )
        rows = clip_rows(rows, self.clip)
        return self._encode_uniform(rows) if self.code.layout == "uniform" else self._encode_blocks(rows)

    def decode(self, codes: torch.Tensor, params: torch.Tensor) -> torch.Tensor:
        """-> [..., H, d] FP32."""
        return decode_rows(self.code, self.sigma, codes, params)

    # Layout uniform.

    def _encode_uniform(self, rows: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        groups = rows.split(self.code.group, dim=-1)
        encode = self._minmax if self.encoder == "minmax" else self._search
        parts = [encode(x) for x in groups]
        codes = torch.cat([p[0] for p in parts], dim=-1).to(torch.uint8)
        scale, zero = (torch.stack([p[i] for p in parts], dim=-1) for i in (1, 2))
        return codes, _Stored(self.code.params).bytes(scale, zero)

    def _constant(self, low: torch.Tensor, high: torch.Tensor, kind: _Stored) -> tuple[torch.Tensor, torch.Tensor]:
        middle = 0.5 * low + 0.5 * high
        size = middle.abs()
        zero = torch.where(size < kind.least, 0.0, torch.where(middle < 0, 1.0, -1.0))
        return kind.scale(size), zero

    def _with_constant(
        self,
        far: torch.Tensor,
        low: torch.Tensor,
        high: torch.Tensor,
        codes: torch.Tensor,
        scale: torch.Tensor,
        zero: torch.Tensor,
        kind: _Stored,
    ) -> Group:
        """Groups too far from zero for their variation are stored as a constant."""
        constant_scale, constant_zero = self._constant(low, high, kind)
        return (
            torch.where(far.unsqueeze(-1), torch.zeros_like(codes), codes),
            torch.where(far, constant_scale, scale),
            torch.where(far, constant_zero, kind.round(zero)),
        )

    def _minmax(self, x: torch.Tensor) -> Group:
        kind = _Stored(self.code.params)
        low, high = x.amin(dim=-1), x.amax(dim=-1)
        s = kind.scale((high - low).clamp(min=1e-8) / 3.0)
        z = kind.round(0.0 - low / s)
        codes = truncated(x / s.unsqueeze(-1) + z.unsqueeze(-1) + 0.5, 3.0)
        return self._with_constant(low.abs() > MOST_OFFSET * s, low, high, codes, s, z, kind)

    def _search(self, x: torch.Tensor) -> Group:
        kind, count = _Stored(self.code.params), float(x.shape[-1])
        low, high = x.amin(dim=-1), x.amax(dim=-1)
        width = high - low
        usable = (width >= 2.0**-40) & (width <= 2.0**40)
        mean = fixed_sum(x) / count
        y = x - mean.unsqueeze(-1)
        middle = 0.5 * low + 0.5 * high
        best = torch.zeros_like(mean)
        best_dot, best_spread, best_sum = torch.ones_like(mean), torch.ones_like(mean), torch.zeros_like(mean)
        levels = torch.zeros_like(x)
        for fraction in torch.tensor(FRACTIONS).tolist():
            bottom = middle - fraction * (0.5 * width)
            inverse = 1.0 / ((fraction * width) / 3.0)
            c = truncated((x - bottom.unsqueeze(-1)) * inverse.unsqueeze(-1) + 0.5, 3.0)
            dot, whole = fixed_dot(y, c), c.int()
            total = whole.sum(dim=-1, dtype=torch.int32)
            spread = (int(count) * (whole * whole).sum(dim=-1, dtype=torch.int32) - total * total).float()
            score = (dot * dot) / spread
            better = (dot > 0) & (spread > 0) & (score > best)
            best, best_dot = torch.where(better, score, best), torch.where(better, dot, best_dot)
            best_spread = torch.where(better, spread, best_spread)
            best_sum = torch.where(better, total.float(), best_sum)
            levels = torch.where(better.unsqueeze(-1), c, levels)
        usable = usable & (best > 0)
        ideal = fixed_dot(y, y) / best_dot if self.key else (best_dot * count) / best_spread
        level = best_sum / count
        s = kind.scale(ideal)
        codes, s, z = self._with_constant(mean.abs() > MOST_OFFSET * s, low, high, levels, s, level - mean / s, kind)
        plain = self._minmax(x)
        return (
            torch.where(usable.unsqueeze(-1), codes, plain[0]),
            torch.where(usable, s, plain[1]),
            torch.where(usable, z, plain[2]),
        )

    # Layout blocks.

    def _encode_blocks(self, rows: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        n = self.code.block
        codes: list[torch.Tensor] = []
        params: list[torch.Tensor] = []
        for b, width in enumerate(self.code.widths):
            x = rows[..., b * n : (b + 1) * n]
            if self.code.refined and b == 3:
                x = rows[..., :n] - _block(codes[0], params[0], self.code.widths[0], self.sigma[:, 0])
            if width == 0:
                codes.append(torch.zeros(x.shape, dtype=torch.uint8, device=x.device))
                continue
            q, e = self._encode_block(x, width, self.sigma[:, b])
            codes.append(q)
            params.append(e)
        none = torch.empty((*rows.shape[:-1], 0), dtype=torch.uint8, device=rows.device)
        return torch.cat(codes, dim=-1), torch.stack(params, dim=-1) if params else none

    def _encode_block(self, x: torch.Tensor, width: int, sigma: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        levels, top = 1 << width, float((1 << width) - 1)
        largest = x.abs().amax(dim=-1)

        def tried(fraction: float) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
            if width == 1:
                q = (x >= 0).float()
            else:
                # Doubling a fraction is exact, so the product is rounded once, as in C++.
                inverse = 1.0 / (((2.0 * fraction) * largest) / top)
                q = truncated(x * inverse.unsqueeze(-1) + float(levels // 2), top)
            whole = 2 * q.int() + 1 - levels
            o, squares = whole.float(), (whole * whole).sum(dim=-1, dtype=torch.int32).float()
            dot = fixed_dot(x, o)
            return (dot * dot) / squares, o, dot, squares

        first, *others = torch.tensor(BLOCK_FRACTIONS[width] if self.encoder != "minmax" else (1.0,)).tolist()
        best, odd, best_dot, best_squares = tried(first)
        for fraction in others:
            score, o, dot, squares = tried(fraction)
            better = score > best
            best, best_dot = torch.where(better, score, best), torch.where(better, dot, best_dot)
            best_squares, odd = torch.where(better, squares, best_squares), torch.where(better.unsqueeze(-1), o, odd)
        scale = (2.0 * fixed_dot(x, x)) / best_dot if self.key else (2.0 * best_dot) / best_squares
        codes = (odd.int() + levels - 1) // 2
        e = self._scale_byte(scale / sigma)
        small, large = ~(largest >= 2.0**-40), ~(largest <= 2.0**40)
        codes = torch.where(small.unsqueeze(-1), levels // 2, codes)
        codes = torch.where((large & ~small).unsqueeze(-1), torch.where(x < 0, 0, levels - 1), codes)
        e = torch.where(small, -128, torch.where(large, 127, e))
        return codes.to(torch.uint8), e.to(torch.int8).view(torch.uint8)

    def _scale_byte(self, ratio: torch.Tensor) -> torch.Tensor:
        bits = ratio.view(torch.int32)
        mantissa = ((bits & 0x7FFFFF) | 0x3F800000).view(torch.float32)
        e = 32 * ((bits >> 23) - 127) + (mantissa.unsqueeze(-1) >= self._boundary).sum(dim=-1, dtype=torch.int32)
        e = torch.where(ratio >= 32.0, 127, e.clamp(-128, 127))
        return torch.where(ratio >= 2.0**-5, e, -128)


def _scale_value(stored: torch.Tensor, sigma: torch.Tensor) -> torch.Tensor:
    steps = stored.view(torch.int8).int() + 128
    power = ((steps // 32 - 4 + 127) << 23).to(torch.int32).view(torch.float32)
    return sigma * GRID.to(stored.device)[steps % 32] * power


def _block(codes: torch.Tensor, stored: torch.Tensor, width: int, sigma: torch.Tensor) -> torch.Tensor:
    """What codes [..., H, n] of one block decode to, with their scale bytes [..., H]."""
    return ((2 * codes.int() + 1 - (1 << width)).float() * 0.5) * _scale_value(stored, sigma).unsqueeze(-1)


def decode_rows(code: RowCode, sigma: torch.Tensor, codes: torch.Tensor, params: torch.Tensor) -> torch.Tensor:
    """Decodes with only a reader's data, without the encoder: codes [..., H, d], params [..., H, param_bytes] uint8,
    sigma [H, 4] (layout blocks) -> [..., H, d] FP32."""
    if code.layout == "uniform":
        scale, zero = _Stored(code.params).values(params)
        levels = codes.float().unflatten(-1, (-1, code.group))
        return ((levels - zero.unsqueeze(-1)) * scale.unsqueeze(-1)).flatten(-2)
    out, stored, n = torch.zeros(codes.shape, device=codes.device), 0, code.block
    for b, width in enumerate(code.widths):
        if width == 0:
            continue
        block = _block(codes[..., b * n : (b + 1) * n], params[..., stored].contiguous(), width, sigma[:, b])
        out[..., (0 if code.refined and b == 3 else b) * n :][..., :n] += block
        stored += 1
    return out
