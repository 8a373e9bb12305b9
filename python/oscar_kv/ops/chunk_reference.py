"""The chunk operators (kernels/chunks/) in torch, on any device: the reference for tests of the kernels.
tables.py lists the columns of runs and tiles."""

import torch

from ..format.page_layout import PAGE_TOKENS
from . import reference
from .tables import CODES, NEW, RUN, WINDOW
from .view import StepView


def split_matrix(matrix: torch.Tensor) -> torch.Tensor:
    """[h, d, d] FP32 as [h, 2, d, d] BF16, high and low terms, as tensor cores multiply it: exact to 2^-16."""
    high = matrix.bfloat16()
    return torch.stack([high, (matrix - high.float()).bfloat16()], dim=1).contiguous()


def _whole(matrix: torch.Tensor) -> torch.Tensor:
    return matrix if matrix.dim() == 3 else matrix.float().sum(dim=1)


def _mean(mean: torch.Tensor | None, phases: torch.Tensor | None, positions: torch.Tensor) -> torch.Tensor | None:
    return mean if mean is None or phases is None else reference.rotated(mean, phases[positions])


def tokens(counts: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """For tables with counts [R]: each token's row and its index within the row."""
    row = torch.arange(len(counts), device=counts.device).repeat_interleave(counts)
    first = counts.cumsum(0) - counts
    return row, torch.arange(len(row), device=counts.device) - first[row]


def past_rows(a: StepView) -> None:
    tiles = a.tiles.long()
    for kind in (CODES, WINDOW, NEW):
        mine = tiles[tiles[:, 0] == kind]
        tile, i = tokens(mine[:, 2])
        if len(tile) == 0:
            continue
        _, out_row, _, page, slot, position = mine[tile].unbind(1)
        at = out_row + i
        if kind == NEW:
            a.key_out[at] = a.key[page + i].to(a.key_out.dtype)
            a.value_out[at] = a.value[page + i].to(a.value_out.dtype)
            continue
        if kind == CODES:
            runs = reference.page_runs(mine[:, 3], a.pool.shape[0])
            rows = [r[tile * PAGE_TOKENS + slot + i] for r in reference.dequantize(a, runs)]
        else:
            layout = reference.window_layout(a.windows)
            rows = [a.windows[index].float() for index in layout.index(a.windows, page, slot + i)]
        mean = _mean(a.key_mean, a.phases, position + i)
        for side, out, matrix, added in (
            (rows[0], a.key_out, a.key_matrix, mean),
            (rows[1], a.value_out, a.value_matrix, a.value_mean),
        ):
            made = reference.multiply(side, _whole(matrix))
            out[at] = (made if added is None else made + added).to(out.dtype)


def cache_rows(a: StepView) -> tuple[torch.Tensor, torch.Tensor]:
    """Keys and values [N, Hkv, d] of new_rows in the cache basis, BF16, after they are written into the windows."""
    runs = a.runs.long()
    run, i = tokens(runs[:, 1])
    first, _, _, _, position, window = runs[run].unbind(1)
    positions = torch.zeros(len(a.key), dtype=torch.long, device=a.key.device).index_copy_(0, first + i, position + i)
    rows = (
        reference.rotate_rows(a.key, _mean(a.key_mean, a.phases, positions), _whole(a.key_matrix)),
        reference.rotate_rows(a.value, a.value_mean, _whole(a.value_matrix)),
    )
    kept = (window >= 0).nonzero().flatten()
    layout, slot = reference.window_layout(a.windows), (position + i)[kept] % PAGE_TOKENS
    for index, side in zip(layout.index(a.windows, window[kept], slot), rows):
        a.windows[index] = side[(first + i)[kept]]
    return rows


def coded_runs(runs: torch.Tensor) -> torch.Tensor:
    """Of runs [R, 6] (tables.NEW_RUN) those that go to pages, as tables.RUN."""
    return runs[runs[:, 2] >= 0][:, : len(RUN)].contiguous()


def new_rows(a: StepView) -> None:
    key, value = cache_rows(a)
    reference.quantize_rows(a.but(key=key, value=value, runs=coded_runs(a.runs)))


def merge_outputs(out: torch.Tensor, lse: torch.Tensor, part: torch.Tensor, part_lse: torch.Tensor) -> None:
    both = torch.logaddexp(lse, part_lse)
    base = torch.where(both > -torch.inf, both, torch.zeros_like(both))
    old, new = ((x - base).exp().transpose(0, 1).unsqueeze(-1) for x in (lse, part_lse))  # [N, H, 1]
    out.copy_(out.float() * old + part.float() * new)
    lse.copy_(both)
