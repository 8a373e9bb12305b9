"""FP32 arithmetic with separately rounded operations, in the orders that docs/format-codec.md of the toolchain
defines. The last dimension of a tensor is a row."""

from collections.abc import Sequence

import torch

LANES = 32


def fixed_sum(x: torch.Tensor) -> torch.Tensor:
    """Sum over the last dimension: 32 running sums, then folds 16, 8, 4, 2, 1 apart."""
    n = x.shape[-1]
    if n % LANES:
        x = torch.nn.functional.pad(x, (0, LANES - n % LANES))
    lanes = torch.zeros_like(x[..., :LANES])
    for part in x.split(LANES, dim=-1):
        lanes = lanes + part
    width = LANES // 2
    while width:
        lanes = lanes[..., :width] + lanes[..., width:]
        width //= 2
    return lanes[..., 0]


def fixed_dot(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    return fixed_sum(x * y)


def truncated(x: torch.Tensor, most: float) -> torch.Tensor:
    """trunc(clamp(x, 0, most)), still in FP32."""
    return x.clamp(0.0, most).trunc()


def clip_rows(rows: torch.Tensor, ratio: Sequence[float]) -> torch.Tensor:
    """rows [..., H, d], ratio: H floats; clips at the magnitude with index min(int(ratio d), d - 1); 0 or 1: off."""
    d = rows.shape[-1]
    # int() of an FP32 product, as in the C++ codec.
    index = [min(int(torch.tensor(r) * torch.tensor(float(d))), d - 1) if 0.0 < r < 1.0 else None for r in ratio]
    if all(i is None for i in index):
        return rows
    ordered = rows.abs().sort(dim=-1).values
    limits = [
        ordered[..., h, i] if i is not None else torch.full_like(ordered[..., h, 0], torch.inf)
        for h, i in enumerate(index)
    ]
    limit = torch.stack(limits, dim=-1).unsqueeze(-1)
    return torch.minimum(torch.maximum(rows, -limit), limit)
