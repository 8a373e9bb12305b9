"""The operators of latent attention (latent_operators.py) in torch, on any device: the specification of kernels/latent.
Rows are [N, 512]; their RoPE parts [N, 64] stay as they are."""

import functools

import torch

from ..format.codec import code_of, decode_rows
from ..format.latent_layout import CHANNELS, LatentPages
from ..format.page_layout import PAGE_TOKENS
from ..format.window_layout import WindowLayout
from ..format.windows import quantized_end
from . import reference
from .chunk_reference import tokens
from .merge import Parts
from .view import StepView


@functools.lru_cache(maxsize=64)
def _pages(code: tuple[int, ...], device: torch.device) -> LatentPages:
    return LatentPages(code_of(code)).to(device)


def _windows(a: StepView) -> tuple[WindowLayout, torch.Tensor]:
    """And the windows as those of one head."""
    return reference.window_layout(a.windows, a.window_table, a.sink), a.windows[:, None]


def rotate(
    x: torch.Tensor, before: torch.Tensor | None, matrix: torch.Tensor, after: torch.Tensor | None
) -> torch.Tensor:
    """(x - before) matrix + after in FP32, rounded to BF16. matrix [512, 512]."""
    y = (x.float() if before is None else x.float() - before) @ matrix
    return (y if after is None else y + after).bfloat16()


def _write_codes(a: StepView, page: torch.Tensor, slot: torch.Tensor, rows: torch.Tensor, rope: torch.Tensor) -> None:
    """Encodes rows [N, 512] in the cache basis and writes them, with RoPE parts, to token slot [N] of page [N]."""
    codes, params = reference.encode(rows[:, None], a.sigma, a.clip, a.bad, a.search, a.code, False)
    layout = _pages(tuple(a.code), a.pool.device)
    touched, index = torch.unique(page, return_inverse=True)
    pages = a.pool[touched]
    stored = [part.clone() for part in layout.read(pages)]
    for to, new in zip(stored, (codes[:, 0], params[:, 0], rope)):
        to[index, slot] = new
    layout.write(pages, *stored)
    a.pool[touched] = pages


def latent_append(a: StepView) -> None:
    sequence = (a.lengths > 0).nonzero().flatten()
    rows = torch.cat([rotate(a.rows, a.mean, a.matrix, None), a.rope], dim=-1)
    layout, windows = _windows(a)
    layout.write(windows, a.window_table, sequence, a.lengths[sequence].long() - 1, rows[sequence, None])


def latent_flush(a: StepView) -> None:
    sequence = (a.lengths > a.sink).nonzero().flatten()
    if len(sequence) == 0:
        return
    position = a.lengths[sequence].long() - 1
    layout, windows = _windows(a)
    rows, body = layout.rows(windows, a.window_table, sequence, position)[0][:, 0], position - a.sink
    _write_codes(
        a, a.table[sequence, body // PAGE_TOKENS].long(), body % PAGE_TOKENS, rows[:, :CHANNELS], rows[:, CHANNELS:]
    )


def latent_new(a: StepView) -> None:
    runs = a.runs.long()
    run, i = tokens(runs[:, 1])
    first, _, page, slot, position, window = runs[run].unbind(1)
    rows, rope = rotate(a.rows[first + i], a.mean, a.matrix, None), a.rope[first + i]
    kept, coded = window >= 0, page >= 0
    windows = a.windows[:, None]
    (index,) = reference.window_layout(a.windows).index(windows, window[kept], (position + i)[kept] % PAGE_TOKENS)
    windows[index] = torch.cat([rows, rope], dim=-1)[kept, None]
    if bool(coded.any()):
        _write_codes(a, page[coded], (slot + i)[coded], rows[coded], rope[coded])


def _read_pages(a: StepView, pages: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Rows FP32 [..., 64, 512] and RoPE parts [..., 64, 64] of pages of any shape."""
    layout = _pages(tuple(a.code), a.pool.device)
    codes, params, rope = layout.read(a.pool[pages.long()])
    rows = decode_rows(layout.code, a.sigma, codes.unsqueeze(-2), params.unsqueeze(-2)).squeeze(-2)
    return rows, rope


def latent_past(a: StepView) -> None:
    request, count = a.sequence.long(), len(a.sequence)
    position = a.starts[request].long() + torch.arange(count, device=request.device) - a.firsts[request]
    coded = (position >= a.sink) & (position < a.ends[request])
    layout, windows = _windows(a)
    out = layout.rows(windows, a.window_table, request, position)[0][:, 0]
    which = coded.nonzero().flatten()
    if len(which):
        body = position[which] - a.sink
        rows, rope = _read_pages(a, a.table[request[which], body // PAGE_TOKENS])
        token = torch.arange(len(which), device=which.device), body % PAGE_TOKENS
        out[which] = torch.cat([rows[token].bfloat16(), rope[token]], dim=-1)
    a.output[:count, CHANNELS:] = out[:, CHANNELS:]
    a.output[:count, :CHANNELS] = rotate(out[:, :CHANNELS], None, a.matrix, a.mean)


def latent_decode(a: StepView) -> torch.Tensor:
    batch, heads = a.query.shape[:2]
    lengths = a.lengths.long()
    ends, query, rope_query = quantized_end(lengths, a.sink, a.recent), a.query.float(), a.rope_query.float()
    parts = Parts()

    def add(rows: torch.Tensor, rope: torch.Tensor, held: torch.Tensor) -> None:
        """rows [B, N, 512], rope [B, N, 64], held [B, N]: the token exists."""
        logits = query @ rows.float().transpose(1, 2) + rope_query @ rope.float().transpose(1, 2)
        parts.add((logits * a.scale).masked_fill(~held[:, None], -torch.inf), rows.float())

    layout, windows = _windows(a)
    positions, rows = layout.positions(ends), layout.read(windows, a.window_table)[0, :, 0]
    add(rows[..., :CHANNELS], rows[..., CHANNELS:], (positions >= 0) & (positions < lengths[:, None]))
    body = (ends - a.sink)[:, None]
    for begin in range(0, -(-int(body.max()) // PAGE_TOKENS), reference.BLOCK_PAGES):
        pages = a.table[:, begin : begin + reference.BLOCK_PAGES].clamp(min=0, max=max(len(a.pool) - 1, 0))
        coded, rope = _read_pages(a, pages)
        index = begin * PAGE_TOKENS + torch.arange(pages.shape[1] * PAGE_TOKENS, device=body.device)
        add(coded.flatten(1, 2), rope.flatten(1, 2), index < body)
    if parts.output is None:
        return query.new_zeros((batch, heads, CHANNELS)).bfloat16()
    found = parts.found()[0] if a.after is None else parts.found()[0] + a.after
    return torch.where(lengths[:, None, None] > 0, found, 0.0).bfloat16()
