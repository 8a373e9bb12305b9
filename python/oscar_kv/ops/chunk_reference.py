"""The chunk operators (kernels/chunks/) in torch, on any device: the reference for tests of the kernels.
tables.py lists the columns of runs and tiles."""
import functools

import torch

from . import reference, table_checks
from ..format.page_layout import PAGE_TOKENS
from ..format.window_layout import element_places
from .tables import CODES, NEW, WINDOW


def split_matrix(matrix):
    """[h, d, d] FP32 as [h, 2, d, d] BF16, high and low terms, as tensor cores multiply it: exact to 2^-16."""
    high = matrix.bfloat16()
    return torch.stack([high, (matrix - high.float()).bfloat16()], dim=1).contiguous()


def _whole(matrix):
    return matrix if matrix.dim() == 3 else matrix.float().sum(dim=1)


def _mean(mean, phases, positions):
    return mean if mean is None or phases is None else reference.rotated(mean, phases[positions])


def _tokens(counts):
    """For tables with counts [R]: each token's row and its index within the row."""
    row = torch.arange(len(counts), device=counts.device).repeat_interleave(counts)
    first = counts.cumsum(0) - counts
    return row, torch.arange(len(row), device=counts.device) - first[row]


@functools.lru_cache(maxsize=16)
def _places(head_dim, device):
    return element_places(head_dim).to(device)


def _window_index(windows, page, slot):
    """Index of rows [N, Hkv, d] of one side in windows: pages [N], heads, elements."""
    place = _places(windows.shape[-1] // (2 * PAGE_TOKENS), windows.device)
    head = torch.arange(windows.shape[1], device=windows.device)[None, :, None]
    return [(page[:, None, None], head, side[slot][:, None, :]) for side in place]


def past_rows(pool, windows, tiles, key, value, key_matrix, value_matrix, key_mean, value_mean, phases, key_sigma, value_sigma, key_out,
              value_out, key_code, value_code):
    if table_checks.enabled():
        table_checks.check_shapes("past_rows", tiles=(tiles, (None, 6)))
        table_checks.check_tiles("past_rows", tiles, min(len(key), len(value)), min(len(key_out), len(value_out)), len(pool), len(windows),
                                 0 if phases is None else len(phases))
    tiles = tiles.long()
    for kind in (CODES, WINDOW, NEW):
        mine = tiles[tiles[:, 0] == kind]
        tile, i = _tokens(mine[:, 2])
        if len(tile) == 0:
            continue
        _, out_row, _, page, slot, position = mine[tile].unbind(1)
        at = out_row + i
        if kind == NEW:
            key_out[at], value_out[at] = key[page + i].to(key_out.dtype), value[page + i].to(value_out.dtype)
            continue
        if kind == CODES:
            runs = reference.page_runs(mine[:, 3], pool.shape[0])
            rows = [r[tile * PAGE_TOKENS + slot + i] for r in reference.dequantize(pool, runs, key_sigma, value_sigma, key_code, value_code)]
        else:
            rows = [windows[index].float() for index in _window_index(windows, page, slot + i)]
        mean = _mean(key_mean, phases, position + i)
        for side, out, matrix, added in ((rows[0], key_out, key_matrix, mean), (rows[1], value_out, value_matrix, value_mean)):
            made = reference.multiply(side, _whole(matrix))
            out[at] = (made if added is None else made + added).to(out.dtype)


def new_rows(pool, windows, key, value, runs, key_matrix, value_matrix, key_mean, value_mean, phases, key_sigma, value_sigma, key_clip,
             value_clip, bad, search, key_code, value_code):
    if table_checks.enabled():
        table_checks.check_shapes("new_rows", runs=(runs, (None, 6)))
        reference.check_writes("new_rows", pool.shape[1], key_sigma, value_sigma, key_clip, value_clip, bad)
        table_checks.check_new_runs("new_rows", runs, min(len(key), len(value)), len(pool), len(windows), 0 if phases is None else len(phases))
    runs = runs.long()
    run, i = _tokens(runs[:, 1])
    if len(run) == 0:
        return
    first, _, page, slot, position, window = runs[run].unbind(1)
    mean = _mean(key_mean, phases, position + i)
    rows = (reference.rotate_rows(key[first + i], mean, _whole(key_matrix)),
            reference.rotate_rows(value[first + i], value_mean, _whole(value_matrix)))
    kept = (window >= 0).nonzero().flatten()
    for index, side in zip(_window_index(windows, window[kept], (position + i)[kept] % PAGE_TOKENS), rows):
        windows[index] = side[kept]
    coded = (page >= 0).nonzero().flatten()
    if len(coded) > 0:
        reference.write_rows(pool, page[coded], (slot + i)[coded],
                             *reference.encode(rows[0][coded], key_sigma, key_clip, bad, search, key_code, True),
                             *reference.encode(rows[1][coded], value_sigma, value_clip, bad, search, value_code, False), key_code, value_code)


def quantize_windows(pool, windows, window_table, runs, key_sigma, value_sigma, key_clip, value_clip, bad, sink, search, key_code, value_code):
    if table_checks.enabled():
        table_checks.check_shapes("quantize_windows", runs=(runs, (None, 5)))
        reference.check_writes("quantize_windows", pool.shape[1], key_sigma, value_sigma, key_clip, value_clip, bad)
        table_checks.check_window_runs("quantize_windows", runs, window_table, len(pool), len(windows), sink)
    runs = runs.long()
    run, i = _tokens(runs[:, 1])
    if len(run) == 0:
        return
    first, _, page, slot, _ = runs[run].unbind(1)
    sink_pages = -(-sink // PAGE_TOKENS)
    ring = (window_table.shape[1] - sink_pages) * PAGE_TOKENS
    sequence, at = first // ring, (first % ring + i) % ring
    pages = window_table[sequence, sink_pages + at // PAGE_TOKENS].long()
    rows = [windows[index] for index in _window_index(windows, pages, at % PAGE_TOKENS)]
    reference.write_rows(pool, page, slot + i, *reference.encode(rows[0], key_sigma, key_clip, bad, search, key_code, True),
                         *reference.encode(rows[1], value_sigma, value_clip, bad, search, value_code, False), key_code, value_code)


def merge_outputs(out, lse, part, part_lse):
    both = torch.logaddexp(lse, part_lse)
    base = torch.where(both > -torch.inf, both, torch.zeros_like(both))
    old, new = ((x - base).exp().transpose(0, 1).unsqueeze(-1) for x in (lse, part_lse))  # [N, H, 1]
    out.copy_(out.float() * old + part.float() * new)
    lse.copy_(both)
