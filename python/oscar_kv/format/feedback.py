"""Encoder `feedback`: error-compensated rounding. Steps of single codes make the errors of a block's channels cancel
in the metric that weighs them. Defined in docs/format-codec.md of the toolchain; readers do not need it."""
import dataclasses

import torch

from .float_math import fixed_dot

PASSES, LEAST_GAIN = 2, 1.00001


@dataclasses.dataclass
class Metric:
    """The metric of one block, per head."""
    matrix: torch.Tensor  # [H, n, n] FP32
    offset: torch.Tensor  # [H, n] FP32: h / sum(h), layout uniform
    flat: torch.Tensor    # [H] bool: a multiple of the identity, encoded by search

    def to(self, device: torch.device | str) -> "Metric":
        return Metric(self.matrix.to(device), self.offset.to(device), self.flat.to(device))


def make_metric(matrix: torch.Tensor, uniform: bool) -> Metric:
    """matrix [H, n, n] FP32 as stored. Layout uniform has a free offset, so its component is projected out."""
    n = matrix.shape[-1]
    eye = torch.eye(n, dtype=torch.bool)
    flat = torch.where(eye, matrix == matrix[:, :1, :1], matrix == 0).flatten(1).all(dim=1)
    if not uniform:
        return Metric(matrix, torch.zeros(matrix.shape[:2]), flat)
    wide = matrix.double()
    sums = torch.zeros(wide.shape[0], n, dtype=torch.float64)
    for i in range(n):
        sums = sums + wide[:, i]
    total = torch.zeros(wide.shape[0], dtype=torch.float64)
    for i in range(n):
        total = total + sums[:, i]
    usable = (total > 0)[:, None]
    offset = torch.where(usable, sums / total[:, None], torch.full_like(sums, 1.0)).float()
    offset = torch.where(usable, offset, torch.ones(()) / torch.tensor(float(n)))
    projected = (wide - sums[:, :, None] * sums[:, None, :] / total[:, None, None]).float()
    return Metric(torch.where(usable[..., None], projected, matrix), offset, flat)


def products(x: torch.Tensor, h: torch.Tensor) -> torch.Tensor:
    """x [..., H, n] times h [H, n, n], summed over the rows of h from first to last."""
    total = torch.zeros_like(x)
    for i in range(x.shape[-1]):
        total = total + x[..., i:i + 1] * h[:, i]
    return total


def ascend(x: torch.Tensor, h: torch.Tensor, step: float, low: float, high: float,
           v: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
    """Coordinate ascent of <x, v>^2 / <v, v> in metric h; x, v [..., H, n], h [H, n, n].

    Returns v, xx, xv, vv and a mask of usable entries; elsewhere v is unchanged."""
    hx, hv = products(x, h), products(v, h)
    xx, xv, vv = fixed_dot(x, hx), fixed_dot(v, hx), fixed_dot(v, hv)
    usable = (xx > 0) & (xv > 0) & (vv > 0)
    before, start_xv, start_vv = v, xv, vv
    alive, v, hv = usable, v.clone(), hv.clone()
    gain = torch.tensor(LEAST_GAIN, dtype=x.dtype, device=x.device)
    for _ in range(PASSES):
        a, b = xv, vv
        best = (a * a) / b
        for i in range(x.shape[-1]):
            move = torch.zeros_like(a)
            own = h[:, i, i]
            for delta in (-step, step):
                moved = v[..., i] + delta
                c = a + delta * hx[..., i]
                e = (b + (2.0 * delta) * hv[..., i]) + (delta * delta) * own
                score = (c * c) / e
                better = alive & (moved >= low) & (moved <= high) & (c > 0) & (e > 0) & (score > best * gain)
                best = torch.where(better, score, best)
                move = torch.where(better, torch.full_like(move, delta), move)
            acts = move != 0
            if not bool(acts.any()):
                continue
            a = torch.where(acts, a + move * hx[..., i], a)
            b = torch.where(acts, (b + (2.0 * move) * hv[..., i]) + (move * move) * own, b)
            v[..., i] = v[..., i] + move
            hv = torch.where(acts.unsqueeze(-1), hv + move.unsqueeze(-1) * h[:, i], hv)
        xv, vv = torch.where(alive, fixed_dot(v, hx), xv), torch.where(alive, fixed_dot(v, hv), vv)
        alive = alive & (xv > 0) & (vv > 0)
    # The running sums have rounding errors, so the score of the codes themselves decides.
    kept = alive & ((xv * xv) / vv >= (start_xv * start_xv) / start_vv)
    return (torch.where(kept.unsqueeze(-1), v, before), xx, torch.where(kept, xv, start_xv),
            torch.where(kept, vv, start_vv), usable)
