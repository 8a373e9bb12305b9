"""The operators in torch, on any device: slow, exact, and what the kernels are tested against. Earlier tokens are
dequantised a block of pages at a time and merged by log-sum-exp, so that the buffer does not grow with the context."""
import torch

from .page_layout import PAGE_TOKENS
from .softmax_merge import Parts

BLOCK_PAGES = 16   # pages of every sequence that are dequantised at a time: 1024 tokens
MOST_SCORES = 1 << 24  # that are held at a time


def write_rows(pool, side, page, slot, codes, params):
    """Rows [N, Hkv, ...] to token `slot` of page `page`, both [N]; the other tokens of the pages stay as they are."""
    touched, index = torch.unique(page, return_inverse=True)
    pages = pool[touched]
    page_codes, page_params = side.read(pages)
    page_codes[index, :, slot] = codes
    page_params[index, :, slot] = params
    side.write(pages, page_codes, page_params)
    pool[touched] = pages


def dequantize_pages(cache, begin, end):
    code = cache.code
    # The table is shared: it may already name pages that another layer took for tokens that are not codes here yet.
    ids = cache.table.tensor(code.device)[:, begin:end].clamp(max=max(cache.pool.shape[0] - 1, 0))
    pages = cache.pool[ids].transpose(1, 2)  # [B, Hkv, pages, bytes]
    rows = []
    for side, codec in ((code.pages.key, code.key), (code.pages.value, code.value)):
        codes, params = (x.flatten(2, 3).transpose(1, 2) for x in side.read(pages))  # [B, T, Hkv, ...]
        rows.append(codec.decode(codes, params).transpose(1, 2))
    return rows


class _Past:
    """Queries [B, Hkv, R, d] of tokens at positions [B, T] against parts of the cache; R = T times the group."""

    def __init__(self, cache, query, scale, positions, window):
        batch, heads, tokens, d = query.shape
        kv_heads = cache.code.layer.kv_heads
        self.cache, self.scale, self.window = cache, scale, window
        q = query.reshape(batch, kv_heads, -1, d)  # query head h reads KV head h / group
        transform = cache.code.transform
        self.q, self.shift, self.turned = transform.queries(q), transform.shift(q), transform.phase_queries(q)
        self.positions = positions.repeat(1, heads // kv_heads)  # [B, R]
        self.shape = (batch, heads, tokens, d)
        rows = max(1, MOST_SCORES // (batch * kv_heads * BLOCK_PAGES * PAGE_TOKENS))
        self.blocks = [(slice(r, r + rows), Parts()) for r in range(0, self.q.shape[2], rows)]

    def add(self, key, value, positions, held):
        """key, value [B, Hkv, N, d] at positions [B, N]; held [B, N]: the token exists."""
        phases = None
        if self.turned is not None:
            phases = self.cache.code.transform.phases.rows(positions.flatten()).view(*positions.shape, -1)
            phases = phases.transpose(-1, -2).unsqueeze(1)
        for rows, parts in self.blocks:
            logits = torch.matmul(self.q[:, :, rows], key.transpose(-1, -2))
            if self.shift is not None:
                logits = logits + self.shift[:, :, rows].unsqueeze(-1)
            if phases is not None:
                logits = logits + torch.matmul(self.turned[:, :, rows], phases)
            visible = held[:, None, :]
            if self.window > 0:
                visible = visible & (positions[:, None, :] > self.positions[:, rows, None] - self.window)
            parts.add((logits * self.scale).masked_fill(~visible.unsqueeze(1), -torch.inf), value)

    def result(self):
        shape, device = self.q.shape, self.q.device
        output, lse = torch.zeros(shape, device=device), torch.full(shape[:-1], -torch.inf, device=device)
        for rows, parts in self.blocks:
            if parts.output is not None:  # else there was nothing to see
                output[:, :, rows], lse[:, :, rows] = parts.output, parts.lse
        return self.cache.code.transform.outputs(output).reshape(self.shape), lse.reshape(self.shape[:-1])


def decode_attention(cache, query, scale, new, window):
    code, device = cache.code, cache.code.device
    lengths = torch.tensor(cache.lengths, device=device)
    ends = torch.tensor([cache.quantised_end(n) for n in cache.lengths], device=device)
    tokens = query.shape[2]
    first = lengths - 1 if new is None else lengths
    past = _Past(cache, query, scale, first[:, None] + torch.arange(tokens, device=device), window)
    # Windows: slot s of the sink holds token s; slot r of the ring the one token of [ends, lengths) that maps to it.
    slots = torch.arange(code.sink, device=device).expand(cache.batch, -1)
    ring = torch.arange(cache.ring, device=device)
    body = (ends - code.sink)[:, None]
    ring_positions = ends[:, None] + (ring - body) % cache.ring
    positions = torch.cat([slots, ring_positions], dim=1)
    if positions.numel():
        key, value = (w.transpose(1, 2).float() for w in (cache.window_key, cache.window_value))
        past.add(key, value, positions, positions < lengths[:, None])
    coded = ends - code.sink
    count = -(-max((cache.quantised_end(n) - code.sink for n in cache.lengths), default=0) // PAGE_TOKENS)
    least = 0
    if window > 0:  # pages that every query's window has left behind
        least = max(0, min(cache.lengths) - window - code.sink) // PAGE_TOKENS
    for begin in range(least, count, BLOCK_PAGES):
        end = min(begin + BLOCK_PAGES, count)
        key, value = dequantize_pages(cache, begin, end)
        index = torch.arange(begin * PAGE_TOKENS, end * PAGE_TOKENS, device=device).expand(cache.batch, -1)
        past.add(key, value, code.sink + index, index < coded[:, None])
    return past.result()
