"""The operators in torch, on any device: slow, exact, and what the kernels are tested against. Earlier tokens are
dequantised a block of pages at a time and merged by log-sum-exp, so that the buffer does not grow with the context."""
import functools

import torch

from .codec import code_of, decode_rows
from .page_layout import PAGE_TOKENS, PageLayout
from .softmax_merge import Parts
from .transform import Phases

BLOCK_PAGES = 16   # pages of every sequence that are dequantised at a time: 1024 tokens
MOST_SCORES = 1 << 24  # that are held at a time


@functools.lru_cache(maxsize=256)
def page_layout(key, value, device):
    return PageLayout(code_of(key), code_of(value)).to(device)


def write_rows(pool, layout, page, slot, *sides):
    """The other tokens of the pages stay as they are."""
    touched, index = torch.unique(page, return_inverse=True)
    pages = pool[touched]
    for side, (codes, params) in zip((layout.key, layout.value), sides):
        page_codes, page_params = side.read(pages)
        page_codes[index, :, slot] = codes
        page_params[index, :, slot] = params
        side.write(pages, page_codes, page_params)
    pool[touched] = pages


def dequantize_pages(pool, table, key_sigma, value_sigma, key, value):
    layout = page_layout(key, value, pool.device)
    # A table is shared by layers: it may already name pages that another layer took for tokens that are no codes here yet.
    pages = pool[table.clamp(max=max(pool.shape[0] - 1, 0))].transpose(1, 2)  # [B, Hkv, P, bytes]
    rows = []
    for side, sigma in ((layout.key, key_sigma), (layout.value, value_sigma)):
        codes, params = (x.flatten(2, 3).transpose(1, 2) for x in side.read(pages))  # [B, T, Hkv, ...]
        rows.append(decode_rows(side.code, sigma, codes, params).transpose(1, 2).contiguous())
    return tuple(rows)


class _Attention:
    """Queries [B, Hkv, R, d] against parts of the cache, some rows at a time."""

    def __init__(self, query, positions, shift, turned, phases, scale, window):
        self.query, self.positions, self.shift, self.turned = query, positions, shift, turned
        self.phases, self.scale, self.window = phases, scale, window
        rows = max(1, MOST_SCORES // (query.shape[0] * query.shape[1] * BLOCK_PAGES * PAGE_TOKENS))
        self.blocks = [(slice(r, r + rows), Parts()) for r in range(0, query.shape[2], rows)]

    def add(self, key, value, positions, held):
        """key, value [B, Hkv, N, d] at positions [B, N]; held [B, N]: the token exists."""
        phases = None
        if self.turned is not None:
            phases = self.phases.rows(positions.flatten()).view(*positions.shape, -1).transpose(-1, -2).unsqueeze(1)
        for rows, parts in self.blocks:
            logits = torch.matmul(self.query[:, :, rows], key.transpose(-1, -2))
            if self.shift is not None:
                logits = logits + self.shift[:, :, rows].unsqueeze(-1)
            if phases is not None:
                logits = logits + torch.matmul(self.turned[:, :, rows], phases)
            visible = held[:, None, :]
            if self.window > 0:
                visible = visible & (positions[:, None, :] > self.positions[:, rows, None] - self.window)
            parts.add((logits * self.scale).masked_fill(~visible.unsqueeze(1), -torch.inf), value)

    def result(self):
        output = torch.zeros_like(self.query)
        lse = self.query.new_full(self.query.shape[:-1], -torch.inf)
        for rows, parts in self.blocks:
            if parts.output is not None:  # else there was nothing to see
                output[:, :, rows], lse[:, :, rows] = parts.output, parts.lse
        return output, lse


def decode_attention(query, positions, pool, table, window_key, window_value, lengths, ends, key_sigma, value_sigma, shift, turned,
                     frequencies, attention_factor, scale, sink, window, key, value):
    device = query.device
    phases = None if frequencies is None else Phases(frequencies, attention_factor)
    attention = _Attention(query, positions, shift, turned, phases, scale, window)
    # Slot s of the sink holds token s; slot r of the ring the one token of [ends, lengths) that maps to it.
    ring = window_key.shape[1] - sink
    slots = torch.arange(sink, device=device).expand(query.shape[0], -1)
    body = (ends - sink)[:, None]
    ring_positions = ends[:, None] + (torch.arange(ring, device=device) - body) % ring
    held = torch.cat([slots, ring_positions], dim=1)
    attention.add(*(w.transpose(1, 2).float() for w in (window_key, window_value)), held, held < lengths[:, None])
    most, least = int(body.max()), 0
    if window > 0:  # pages that every query's window has left behind
        least = max(0, int(lengths.min()) - window - sink) // PAGE_TOKENS
    count = -(-most // PAGE_TOKENS)
    for begin in range(least, count, BLOCK_PAGES):
        end = min(begin + BLOCK_PAGES, count)
        rows = dequantize_pages(pool, table[:, begin:end], key_sigma, value_sigma, key, value)
        index = torch.arange(begin * PAGE_TOKENS, end * PAGE_TOKENS, device=device).expand(query.shape[0], -1)
        attention.add(*rows, sink + index, index < body)
    return attention.result()
