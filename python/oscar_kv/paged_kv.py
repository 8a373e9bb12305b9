"""The 2-bit cache of one layer on raw tensors: the first tokens and the last ones of each sequence in BF16, those between
as codes in pages of 64 tokens. A token is quantised once, when it leaves the recent window. No engine is imported here:
an adapter brings keys, values and queries, and a page table that all layers share.

Letters: B sequences, Hkv KV heads, Hq query heads, d head size, T tokens."""
import torch

from . import ops
from .codec import side_codec
from .errors import InputError, NumericalError
from .page_layout import PAGE_TOKENS, PageLayout
from .transform import LayerTransform


class PageTable:
    """Which page of every layer's pool holds which tokens: entry i of a sequence is tokens sink + 64 i onwards."""

    def __init__(self, batch, most_pages=None):
        self.pages = [[] for _ in range(batch)]
        self.most_pages, self.used = most_pages, 0  # of a sequence; None: it grows as needed

    def reserve(self, sequence, count):
        held = self.pages[sequence]
        if self.most_pages is not None and count > self.most_pages:
            raise InputError(f"sequence {sequence} needs {count} pages of {PAGE_TOKENS} tokens, the page table has "
                             f"{self.most_pages}; attach with a larger max_tokens")
        while len(held) < count:
            held.append(self.used)
            self.used += 1
        return held

    def tensor(self, device):
        """[B, most pages held] int64; unused entries are page 0."""
        width = max((len(p) for p in self.pages), default=0)
        rows = [p + [0] * (width - len(p)) for p in self.pages]
        return torch.tensor(rows, dtype=torch.int64, device=device).view(len(rows), width)

    def release(self):
        self.pages, self.used = [[] for _ in self.pages], 0


class LayerCode:
    """What the caches of one layer share: transform, codecs and page layout on one device."""

    def __init__(self, bundle, layer, phases=None, device="cpu"):
        self.layer = layer
        self.transform = LayerTransform(layer, phases).to(device)
        self.key, self.value = (side_codec(layer, key, bundle.encoder, bundle.group).to(device) for key in (True, False))
        self.page_bytes = PageLayout(self.key.code, self.value.code).bytes
        self.numbers = (self.key.code.numbers(), self.value.code.numbers())
        self.sink, self.recent, self.device = bundle.sink, bundle.recent, torch.device(device)


class PagedKV:
    """The cache of B sequences in one layer. flush: tokens leave the recent window in groups of this many."""

    def __init__(self, code, table, flush=1):
        self.code, self.table, self.flush = code, table, flush
        self.batch = len(table.pages)
        self.lengths = [0] * self.batch
        heads, d, device = code.layer.kv_heads, code.layer.head_dim, code.device
        self.ring = code.recent + flush  # tokens that the recent window can hold
        shape = (self.batch, code.sink + self.ring, heads, d)  # the sink first, then the ring
        self.window_key, self.window_value = (torch.zeros(shape, dtype=torch.bfloat16, device=device) for _ in range(2))
        self.pool = torch.zeros((0, heads, code.page_bytes), dtype=torch.uint8, device=device)

    def quantised_end(self, tokens):
        """Tokens [sink, end) of a sequence of so many are codes: lib/layout/cache_windows.h of the toolchain."""
        leaving = max(0, tokens - self.code.sink - self.code.recent)
        return self.code.sink + leaving // self.flush * self.flush

    def window_slot(self, position):
        sink = self.code.sink
        return position if position < sink else sink + (position - sink) % self.ring

    @torch.no_grad()
    def append(self, key, value, counts):
        """key, value: [N, Hkv, d] of the model, after RoPE: the counts[b] new tokens of each sequence one after another."""
        plan = self._plan(counts)
        positions = torch.tensor(plan.positions, dtype=torch.int64, device=self.code.device)
        transform = self.code.transform
        new_key, new_value = transform.key_rows(key, positions), transform.value_rows(value)
        if plan.page:
            self._quantise(plan, new_key, new_value)
        if plan.kept:
            source, sequence, slot = torch.tensor(plan.kept, device=self.code.device).unbind(1)
            self.window_key[sequence, slot] = new_key[source]
            self.window_value[sequence, slot] = new_value[source]
        self.lengths = [n + c for n, c in zip(self.lengths, counts)]

    def _plan(self, counts):
        """Where every new token goes, and which tokens become codes; nothing is changed yet."""
        plan, first = _Plan(), 0
        for b, count in enumerate(counts):
            start, sink = self.lengths[b], self.code.sink
            end = start + count
            begin, until = self.quantised_end(start), self.quantised_end(end)
            pages = self.table.reserve(b, -(-(until - sink) // PAGE_TOKENS))
            for p in range(begin, until):
                body = p - sink
                plan.page.append((pages[body // PAGE_TOKENS], body % PAGE_TOKENS))
                if p < start:
                    plan.from_window.append((len(plan.page) - 1, b, self.window_slot(p)))
                else:
                    plan.from_new.append((len(plan.page) - 1, first + p - start))
            for p in range(start, end):
                plan.positions.append(p)
                if p < sink or p >= until:
                    plan.kept.append((first + p - start, b, self.window_slot(p)))
            first += count
        return plan

    def _quantise(self, plan, new_key, new_value):
        device, count = self.code.device, len(plan.page)
        page, slot = torch.tensor(plan.page, device=device).unbind(1)
        self._grow(self.table.used)
        encoded = []
        for codec, window, new in ((self.code.key, self.window_key, new_key), (self.code.value, self.window_value, new_value)):
            rows = torch.empty((count, *new.shape[1:]), dtype=torch.bfloat16, device=device)
            if plan.from_window:
                to, sequence, at = torch.tensor(plan.from_window, device=device).unbind(1)
                rows[to] = window[sequence, at]
            if plan.from_new:
                to, at = torch.tensor(plan.from_new, device=device).unbind(1)
                rows[to] = new[at]
            try:
                encoded += codec.encode(rows.float())
            except NumericalError as error:
                raise NumericalError(f"layer {self.code.layer.layer}, {'key' if codec.key else 'value'}: {error}") from None
        ops.write_rows(self.pool, page, slot, *encoded, *self.code.numbers)

    def _grow(self, pages):
        """Room for so many pages, an eighth more than asked so that copies stay rare."""
        if pages <= self.pool.shape[0]:
            return
        more = torch.zeros((pages + pages // 8, *self.pool.shape[1:]), dtype=torch.uint8, device=self.pool.device)
        more[:self.pool.shape[0]] = self.pool
        self.pool = more

    @torch.no_grad()
    def attend(self, query, scale, new=None, window=0):
        """query [B, Hq, T, d] of the model, after RoPE, attends to everything that the cache holds.

        new: None where the query is of the last token that was appended (T = 1), else how many tokens of each sequence
        follow the cache's, for which the query rows stand (query i of sequence b has position lengths[b] + i). window:
        sliding window of the layer, 0 for none. Returns output [B, Hq, T, d] FP32 and log-sum-exp [B, Hq, T]."""
        code, (batch, heads, tokens, d) = self.code, query.shape
        kv_heads, transform = code.layer.kv_heads, code.transform
        lengths = torch.tensor(self.lengths, device=code.device)
        ends = torch.tensor([self.quantised_end(n) for n in self.lengths], device=code.device)
        first = lengths - 1 if new is None else lengths
        positions = (first[:, None] + torch.arange(tokens, device=code.device)).repeat(1, heads // kv_heads)
        q = query.reshape(batch, kv_heads, -1, d)  # query head h reads KV head h / group
        phases = transform.phases if transform.rotated_mean else None
        output, lse = ops.decode_attention(
            transform.queries(q), positions, self.pool, self.table.tensor(code.device), self.window_key, self.window_value,
            lengths, ends, code.key.sigma, code.value.sigma, transform.shift(q), transform.phase_queries(q),
            phases and phases.inverse, phases.factor if phases else 1.0, float(scale), code.sink, window, *code.numbers)
        return transform.outputs(output).view(query.shape), lse.view(query.shape[:-1])

    def rows(self, begin, end):
        """Coded tokens of pages [begin, end) of every sequence, FP32 in the basis of the cache: [B, Hkv, T, d] twice."""
        table = self.table.tensor(self.code.device)[:, begin:end]
        return ops.dequantize_pages(self.pool, table, self.code.key.sigma, self.code.value.sigma, *self.code.numbers)

    def allocated_bytes(self):
        return sum(t.numel() * t.element_size() for t in (self.window_key, self.window_value, self.pool))

    def reset(self):
        """Forgets all tokens; the memory of the windows stays."""
        self.lengths = [0] * self.batch
        self.pool = self.pool[:0].clone()


class _Plan:
    def __init__(self):
        self.positions, self.kept = [], []       # of new tokens; (index among the new, sequence, window slot)
        self.page = []                           # (page, token in it) of each token that becomes codes
        self.from_window, self.from_new = [], []  # (index in `page`, its place)
