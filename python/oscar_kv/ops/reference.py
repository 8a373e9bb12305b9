"""The operators in torch, on any device: slow, exact, and what the kernels are tested against. Earlier tokens are
dequantized a block of pages at a time and merged by log-sum-exp, so that the buffer does not grow with the context."""

import functools
from collections.abc import Sequence

import torch

from ..format.codec import RowCodec, code_of, code_unsupported, decode_rows
from ..format.latent_layout import window_places
from ..format.page_layout import PAGE_TOKENS, PageLayout
from ..format.window_layout import WindowLayout, element_places
from ..format.windows import quantized_end, sink_pages
from .merge import Parts
from .rule import Rule
from .view import StepView

BLOCK_PAGES = 16  # pages of every sequence that are dequantized at a time: 1024 tokens
MOST_SCORES = 1 << 24  # that are held at a time


@functools.lru_cache(maxsize=256)
def _page_layout(key: tuple[int, ...], value: tuple[int, ...], device: torch.device) -> PageLayout:
    return PageLayout(code_of(key), code_of(value)).to(device)


def page_layout(key_code: Sequence[int], value_code: Sequence[int], device: torch.device) -> PageLayout:
    return _page_layout(tuple(key_code), tuple(value_code), device)


@functools.lru_cache(maxsize=64)
def _window_layout(head_dim: int, sink: int, ring_pages: int, device: torch.device) -> WindowLayout:
    """head_dim 0: of latents."""
    return WindowLayout(element_places(head_dim) if head_dim else window_places(), sink, ring_pages).to(device)


def window_layout(windows: torch.Tensor, window_table: torch.Tensor | None = None, sink: int = 0) -> WindowLayout:
    """Without a table: for index() only."""
    pages = sink_pages(sink) + 1 if window_table is None else window_table.shape[1]
    head_dim = windows.shape[-1] // (2 * PAGE_TOKENS) if windows.dim() == 3 else 0
    return _window_layout(head_dim, sink, pages - sink_pages(sink), windows.device)


def page_runs(table: torch.Tensor, pages: int) -> torch.Tensor:
    """Runs of complete pages, [B P, 5], of a table [B, P] that may name pages beyond the first `pages`. Layers share
    a table, and another layer may have used pages for tokens that are not yet quantized here."""
    page = table.flatten().clamp(max=max(pages - 1, 0)).int()
    first, none = torch.arange(len(page), device=table.device, dtype=torch.int32) * PAGE_TOKENS, torch.zeros_like(page)
    return torch.stack([first, none + PAGE_TOKENS, page, none, none], dim=1)


def encode(
    rows: torch.Tensor,
    sigma: torch.Tensor,
    clip: torch.Tensor,
    bad: torch.Tensor,
    search: bool,
    numbers: Sequence[int],
    key: bool,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Codes and parameters of rows [N, Hkv, d]; rows that are not finite count as zeros and are noted in `bad`, [1] or
    more."""
    heads = rows.shape[1]
    finite = rows.isfinite().all(dim=-1)
    if not bool(finite.all()):
        bad[0] = min(int(bad[0]), int((~finite).flatten().nonzero()[0]))
        rows = torch.where(finite.unsqueeze(-1), rows, torch.zeros_like(rows))
    codec = RowCodec(code_of(numbers), key, heads, "search" if search else "minmax", clip.tolist(), sigma)
    return codec.to(rows.device).encode(rows.float())


def write_encoded(a: StepView, page: torch.Tensor, slot: torch.Tensor, key: torch.Tensor, value: torch.Tensor) -> None:
    """Encodes rows [N, Hkv, d] and writes them to token slot [N] of page [N], whose other tokens stay as they are."""
    layout = page_layout(a.key_code, a.value_code, a.pool.device)
    touched, index = torch.unique(page, return_inverse=True)
    pages = a.pool[touched]
    for side, rows, sigma, clip, bad, code in (
        (layout.key, key, a.key_sigma, a.key_clip, a.bad, a.key_code),
        (layout.value, value, a.value_sigma, a.value_clip, a.bad[1:], a.value_code),
    ):
        page_codes, page_params = side.read(pages)
        page_params = page_params.clone()  # it may be a view of pages, which write() does not take
        page_codes[index, :, slot], page_params[index, :, slot] = encode(
            rows, sigma, clip, bad, a.search, code, side.key
        )
        side.write(pages, page_codes, page_params)
    a.pool[touched] = pages


def quantize_rows(a: StepView) -> None:
    places = [(first + i, page, slot + i) for first, count, page, slot, _ in a.runs.tolist() for i in range(count)]
    if places:
        row, page, slot = torch.tensor(places, device=a.pool.device).unbind(1)
        write_encoded(a, page, slot, a.key[row], a.value[row])


def dequantize_pages(a: StepView) -> tuple[torch.Tensor, torch.Tensor]:
    layout = page_layout(a.key_code, a.value_code, a.pool.device)
    pages, rows = a.pool[a.runs[:, 2].long()], []  # [R, Hkv, bytes]
    for side, sigma in ((layout.key, a.key_sigma), (layout.value, a.value_sigma)):
        codes, params = (x.transpose(1, 2).flatten(0, 1) for x in side.read(pages))  # [64 R, Hkv, ...]
        rows.append(decode_rows(side.code, sigma, codes, params).contiguous())
    return rows[0], rows[1]


def dequantize(a: StepView, runs: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """dequantize_pages by the kernel of the device, where one reads these codes."""
    if all(code_unsupported(code_of(numbers)) is None for numbers in (a.key_code, a.value_code)):
        return torch.ops.oscar_kv.dequantize_pages(a.pool, runs, *a.codes)
    return dequantize_pages(a.but(runs=runs))


def multiply(rows: torch.Tensor, matrices: torch.Tensor | None) -> torch.Tensor:
    """rows [N, H, ..., d] times matrices [1 or H, d, d]."""
    return rows if matrices is None else torch.matmul(rows.transpose(0, 1), matrices).transpose(0, 1)


def rotated(mean: torch.Tensor, phases: torch.Tensor) -> torch.Tensor:
    """A mean [H, d] before RoPE as it stands where the phases are [N, d]: [N, H, d]."""
    half, phases = mean.shape[-1] // 2, phases.unsqueeze(1)
    first, second, cos, sin = mean[:, :half], mean[:, half:], phases[..., :half], phases[..., half:]
    return torch.cat([first * cos - second * sin, second * cos + first * sin], dim=-1)


def phase_queries(q: torch.Tensor, mean: torch.Tensor) -> torch.Tensor:
    """u(q) [B, Hkv, R, d] with <q, RoPE_p(mean)> = <u(q), c_p>."""
    half, q = q.shape[-1] // 2, q.float()
    q1, q2, m1, m2 = q[..., :half], q[..., half:], mean[:, None, :half], mean[:, None, half:]
    return torch.cat([q1 * m1 + q2 * m2, q2 * m1 - q1 * m2], dim=-1)


def rotate_rows(rows: torch.Tensor, mean: torch.Tensor | None, matrix: torch.Tensor | None) -> torch.Tensor:
    rows = rows.float() if mean is None else rows.float() - mean
    return multiply(rows, matrix).bfloat16().contiguous()


def append_tokens(a: StepView) -> torch.Tensor:
    windows, window_table, lengths = a.windows, a.window_table, a.lengths
    sides = rotate_rows(a.key, a.key_mean, a.key_matrix), rotate_rows(a.value, a.value_mean, a.value_matrix)
    sequence = (lengths > 0).nonzero().flatten()
    window_layout(windows, window_table, a.sink).write(
        windows, window_table, sequence, lengths[sequence].long() - 1, *(rows[sequence] for rows in sides)
    )
    if a.query is None:
        return windows.new_empty((0,))
    matrix = a.query_matrix
    if matrix is not None and matrix.shape[0] > 1:  # query head h reads KV head h / group
        matrix = matrix.repeat_interleave(a.query.shape[1] // matrix.shape[0], dim=0)
    return multiply(a.query.float(), matrix).bfloat16().contiguous()


def flush_tokens(a: StepView) -> None:
    sequence = (a.lengths > a.sink).nonzero().flatten()
    if len(sequence) == 0:
        return
    position = a.lengths[sequence].long() - 1
    rows = window_layout(a.windows, a.window_table, a.sink).rows(a.windows, a.window_table, sequence, position)
    body = position - a.sink
    write_encoded(a, a.table[sequence, body // PAGE_TOKENS].long(), body % PAGE_TOKENS, *rows)


class _Attention:
    """The queries of attention() against parts of the cache, some rows at a time."""

    def __init__(self, a: StepView, positions: torch.Tensor, shift: torch.Tensor | None, rule: Rule) -> None:
        self.query, self.first, self.turned = a.query, rule.first(positions), a.turned
        self.phases, self.shift, self.scale, self.rule = a.phases, shift, a.scale, rule
        rows = max(1, MOST_SCORES // (a.query.shape[0] * a.query.shape[1] * BLOCK_PAGES * PAGE_TOKENS))
        self.blocks = [(slice(r, r + rows), Parts()) for r in range(0, a.query.shape[2], rows)]

    def add(self, key: torch.Tensor, value: torch.Tensor, positions: torch.Tensor, held: torch.Tensor) -> None:
        """key, value [B, Hkv, N, d] at positions [B, N]; held [B, N]: the token exists."""
        turned, phases = self.turned, None
        if turned is not None and self.phases is not None:
            phases = self.phases[positions.clamp(0, self.phases.shape[0] - 1)].transpose(-1, -2).unsqueeze(1)
        for rows, parts in self.blocks:
            logits = torch.matmul(self.query[:, :, rows], key.transpose(-1, -2))
            if turned is not None and phases is not None:
                logits = logits + torch.matmul(turned[:, :, rows], phases)
            if self.shift is not None:
                logits = logits + self.shift[:, :, rows, None]
            visible = held[:, None, :]
            if self.rule.hides:
                visible = visible & (positions[:, None, :] >= self.first[:, rows, None])
            parts.add(self.rule.capped(logits * self.scale).masked_fill(~visible.unsqueeze(1), -torch.inf), value)

    def result(self) -> tuple[torch.Tensor, torch.Tensor]:
        output = torch.zeros_like(self.query)
        lse = self.query.new_full(self.query.shape[:-1], -torch.inf)
        for rows, parts in self.blocks:
            if parts.output is not None:  # else there was nothing to see
                output[:, :, rows], lse[:, :, rows] = parts.found()
        return output, lse


def attention(
    a: StepView, positions: torch.Tensor, ends: torch.Tensor, rule: Rule, shift: torch.Tensor | None = None
) -> tuple[torch.Tensor, torch.Tensor]:
    """As operators.decode_attention, for query rows [B, Hkv, R, d] FP32 of tokens at any positions [B, R] and any
    rule.Rule, but its sinks; ends [B]: the first token of each sequence that is no code; shift [B, Hkv, R]: added to
    logits before the scale."""
    device, batch, sink = a.query.device, a.query.shape[0], a.sink
    one = _Attention(a, positions, shift, rule)
    layout = window_layout(a.windows, a.window_table, sink)
    held = layout.positions(ends)
    key, value = (w.float() for w in layout.read(a.windows, a.window_table))
    one.add(key, value, held, (held >= 0) & (held < a.lengths[:, None]))
    body = (ends - sink)[:, None]
    most, least = int(body.max()), 0
    if rule.hides and one.first.numel() > 0:  # pages that no query sees any longer
        least = max(0, int(one.first.min()) - sink) // PAGE_TOKENS
    count = -(-most // PAGE_TOKENS)
    for begin in range(least, count, BLOCK_PAGES):
        end = min(begin + BLOCK_PAGES, count)
        rows = dequantize(a, page_runs(a.table[:, begin:end], a.pool.shape[0]))
        index = torch.arange(begin * PAGE_TOKENS, end * PAGE_TOKENS, device=device).expand(batch, -1)
        key, value = (r.unflatten(0, (batch, -1)).transpose(1, 2) for r in rows)
        one.add(key, value, sink + index, index < body)
    return one.result()


def decode_attention(a: StepView) -> tuple[torch.Tensor, torch.Tensor]:
    lengths = a.lengths.long()
    positions = (lengths - 1)[:, None].expand(-1, a.query.shape[2])
    ends = quantized_end(lengths, a.sink, a.recent)
    output, lse = attention(a.but(query=a.query.float(), lengths=lengths), positions, ends, Rule(a.window))
    return output, lse if a.want_lse else lse.new_empty(0)
