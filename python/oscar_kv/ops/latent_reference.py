"""The operators of latent attention (latent_operators.py) in torch, on any device: the specification of kernels/latent.
Rows are [N, 512]; their RoPE parts [N, 64] stay as they are."""

import functools

import torch

from ..format.codec import RowCodec, code_of, decode_rows
from ..format.latent_layout import CHANNELS, ROW, LatentPages, window_places
from ..format.page_layout import PAGE_TOKENS
from ..format.windows import quantized_end, sink_pages
from .merge import Parts
from .view import StepView

BLOCK_PAGES = 16  # pages of every sequence that are read at a time


@functools.lru_cache(maxsize=64)
def _pages(code: tuple[int, ...], device: torch.device) -> LatentPages:
    return LatentPages(code_of(code)).to(device)


@functools.lru_cache(maxsize=8)
def _places(device: torch.device) -> torch.Tensor:
    return window_places().to(device)


def rotate(
    x: torch.Tensor, before: torch.Tensor | None, matrix: torch.Tensor, after: torch.Tensor | None
) -> torch.Tensor:
    """(x - before) matrix + after in FP32, rounded to BF16. matrix [512, 512]."""
    y = (x.float() if before is None else x.float() - before) @ matrix
    return (y if after is None else y + after).bfloat16()


def _window_at(a: StepView, sequence: torch.Tensor, position: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Window pages [N] and elements [N, 576] of tokens."""
    sinks = sink_pages(a.sink)
    ring = (a.window_table.shape[1] - sinks) * PAGE_TOKENS
    slot = torch.where(position < a.sink, position, sinks * PAGE_TOKENS + position % ring)
    return a.window_table[sequence, slot // PAGE_TOKENS].long(), _places(a.windows.device)[slot % PAGE_TOKENS]


def _write_codes(a: StepView, page: torch.Tensor, slot: torch.Tensor, rows: torch.Tensor, rope: torch.Tensor) -> None:
    """Encodes rows [N, 512] in the cache basis and writes them, with RoPE parts, to token slot [N] of page [N]."""
    finite = rows.isfinite().all(dim=-1)
    if not bool(finite.all()):
        a.bad[0] = min(int(a.bad[0]), int((~finite).nonzero()[0]))
        rows = torch.where(finite[:, None], rows, torch.zeros_like(rows))
    codec = RowCodec(code_of(a.code), False, 1, "search" if a.search else "minmax", a.clip.tolist(), a.sigma)
    codes, params = codec.to(rows.device).encode(rows.float()[:, None])
    layout = _pages(tuple(a.code), a.pool.device)
    touched, index = torch.unique(page, return_inverse=True)
    held = a.pool[touched]
    stored = [part.clone() for part in layout.read(held[:, : layout.bytes])]
    for to, new in zip(stored, (codes[:, 0], params[:, 0], rope)):
        to[index, slot] = new
    made = held[:, : layout.bytes].contiguous()
    layout.write(made, *stored)
    held[:, : layout.bytes] = made
    a.pool[touched] = held


def latent_append(a: StepView) -> None:
    sequence = (a.lengths > 0).nonzero().flatten()
    page, place = _window_at(a, sequence, a.lengths[sequence].long() - 1)
    rows = torch.cat([rotate(a.rows, a.mean, a.matrix, None), a.rope], dim=-1)
    a.windows[page[:, None], place] = rows[sequence]


def latent_flush(a: StepView) -> None:
    sequence = (a.lengths > a.sink).nonzero().flatten()
    if len(sequence) == 0:
        return
    position = a.lengths[sequence].long() - 1
    page, place = _window_at(a, sequence, position)
    rows, body = a.windows[page[:, None], place], position - a.sink
    _write_codes(
        a, a.table[sequence, body // PAGE_TOKENS].long(), body % PAGE_TOKENS, rows[:, :CHANNELS], rows[:, CHANNELS:]
    )


def latent_new(a: StepView) -> None:
    runs = a.runs.tolist()
    tokens = [
        (first + i, page, slot + i, position + i, window)
        for first, count, page, slot, position, window in runs
        for i in range(count)
    ]
    if not tokens:
        return
    row, page, slot, position, window = torch.tensor(tokens, device=a.pool.device).unbind(1)
    rows = rotate(a.rows[row], a.mean, a.matrix, None)
    kept, coded = window >= 0, page >= 0
    place = _places(a.windows.device)[position % PAGE_TOKENS]
    a.windows[window[kept][:, None], place[kept]] = torch.cat([rows, a.rope[row]], dim=-1)[kept]
    if bool(coded.any()):
        _write_codes(a, page[coded], slot[coded], rows[coded], a.rope[row][coded])


def _read_pages(a: StepView, pages: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Rows FP32 [..., 64, 512] and RoPE parts [..., 64, 64] of pages of any shape."""
    layout = _pages(tuple(a.code), a.pool.device)
    codes, params, rope = layout.read(a.pool[pages.long()][..., : layout.bytes])
    rows = decode_rows(layout.code, a.sigma, codes.unsqueeze(-2), params.unsqueeze(-2)).squeeze(-2)
    return rows, rope


def latent_past(a: StepView) -> None:
    request, count = a.sequence.long(), len(a.sequence)
    position = a.starts[request].long() + torch.arange(count, device=request.device) - a.firsts[request]
    coded = (position >= a.sink) & (position < a.ends[request])
    out = a.windows.new_empty((count, ROW))
    page, place = _window_at(a, request, position)
    out[:] = a.windows[page[:, None], place]
    which = coded.nonzero().flatten()
    if len(which):
        body = position[which] - a.sink
        rows, rope = _read_pages(a, a.table[request[which], body // PAGE_TOKENS])
        token = torch.arange(len(which), device=which.device), body % PAGE_TOKENS
        out[which] = torch.cat([rows[token].bfloat16(), rope[token]], dim=-1)
    a.output[:count, CHANNELS:] = out[:, CHANNELS:]
    a.output[:count, :CHANNELS] = rotate(out[:, :CHANNELS], None, a.matrix, a.mean)


def _window_positions(a: StepView, ends: torch.Tensor) -> torch.Tensor:
    """[B, 64 window pages]: the token in each slot, where the ring holds tokens from ends [B] on; -1: none."""
    sinks, device = sink_pages(a.sink), ends.device
    ring = (a.window_table.shape[1] - sinks) * PAGE_TOKENS
    slot = torch.arange(sinks * PAGE_TOKENS, device=device)
    sink = torch.where(slot < a.sink, slot, -1).expand(len(ends), -1)
    return torch.cat([sink, ends[:, None] + (torch.arange(ring, device=device) - ends[:, None]) % ring], dim=1)


def latent_decode(a: StepView) -> torch.Tensor:
    batch, heads = a.query.shape[:2]
    lengths = a.lengths.long()
    ends, query, rope_query = quantized_end(lengths, a.sink, a.recent), a.query.float(), a.rope_query.float()
    parts = Parts()

    def add(rows: torch.Tensor, rope: torch.Tensor, held: torch.Tensor) -> None:
        """rows [B, N, 512], rope [B, N, 64], held [B, N]: the token exists."""
        logits = query @ rows.float().transpose(1, 2) + rope_query @ rope.float().transpose(1, 2)
        parts.add((logits * a.scale).masked_fill(~held[:, None], -torch.inf), rows.float())

    positions = _window_positions(a, ends)
    rows = a.windows[a.window_table.long()][..., _places(a.windows.device).flatten()].unflatten(-1, (PAGE_TOKENS, ROW))
    rows = rows.flatten(1, 2)
    add(rows[..., :CHANNELS], rows[..., CHANNELS:], (positions >= 0) & (positions < lengths[:, None]))
    body = (ends - a.sink)[:, None]
    for begin in range(0, -(-int(body.max()) // PAGE_TOKENS), BLOCK_PAGES):
        pages = a.table[:, begin : begin + BLOCK_PAGES].clamp(min=0, max=max(len(a.pool) - 1, 0))
        coded, rope = _read_pages(a, pages)
        index = begin * PAGE_TOKENS + torch.arange(pages.shape[1] * PAGE_TOKENS, device=body.device)
        add(coded.flatten(1, 2), rope.flatten(1, 2), index < body)
    if parts.output is None:
        return query.new_zeros((batch, heads, CHANNELS)).bfloat16()
    found = parts.found()[0] if a.after is None else parts.found()[0] + a.after
    return torch.where(lengths[:, None, None] > 0, found, 0.0).bfloat16()
