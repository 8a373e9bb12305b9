"""A random cache of one layer of latent attention, on any device, and the loops that say what its operators do."""
import torch

from oscar_kv.format.codec import RowCode, RowCodec
from oscar_kv.format.latent_layout import CHANNELS, ROPE_CHANNELS, WINDOW_ELEMENTS, LatentPages
from oscar_kv.ops import operators

SINK, RECENT, RING = 64, 80, 3  # tokens, tokens, pages


def randn(*shape, seed):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


class LatentState:
    """batch sequences of at most 8 pages after the sink, whose pages and window pages are shuffled."""

    def __init__(self, batch, widths=(4, 2, 1, 1), device="cpu", mean=True, search=True, pages=8, room=0, refined=False):
        self.batch, self.device, self.search = batch, device, search
        self.code = RowCode("blocks", CHANNELS, widths=tuple(widths), refined=refined)
        self.layout = LatentPages(self.code)
        order = torch.randperm(batch * pages, generator=torch.Generator().manual_seed(1))
        self.table = order.int().view(batch, pages).to(device)
        columns = 1 + RING
        order = torch.randperm(batch * columns, generator=torch.Generator().manual_seed(2))
        self.window_table = order.int().view(batch, columns).to(device)
        # the bytes of a page that no token wrote are anything
        self.pool = torch.randint(0, 256, (batch * pages, self.layout.bytes + room), dtype=torch.uint8,
                                  generator=torch.Generator().manual_seed(3)).to(device)
        self.windows = torch.zeros(batch * columns, WINDOW_ELEMENTS, dtype=torch.bfloat16, device=device)
        self.matrix = torch.linalg.qr(randn(CHANNELS, CHANNELS, seed=4))[0].contiguous().to(device)
        self.mean = randn(CHANNELS, seed=5).to(device) if mean else None
        self.sigma = torch.tensor([[0.2, 0.9, 1.0, 0.04 if refined else 1.1]], device=device)
        self.clip = torch.tensor([0.97], device=device)
        self.bad = torch.full((2,), operators.NO_FAULT, dtype=torch.int32, device=device)

    def codec(self):
        return RowCodec(self.code, False, 1, "search" if self.search else "minmax", self.clip.tolist(), self.sigma.cpu())

    def arguments(self, **more):
        """What operators are given."""
        own = {name: getattr(self, name) for name in
               ("table", "window_table", "pool", "windows", "mean", "sigma", "clip", "bad", "search")}
        return own | {"sink": SINK, "recent": RECENT, "code": self.code.numbers()} | more

    def runs(self, sequence, start, count, first_row=0):
        """NEW_RUN of `count` tokens after `start` of a sequence; a token is in the window if a later step may see it there."""
        made, position, end = [], start, start + count
        table, windows = self.table[sequence].tolist(), self.window_table[sequence].tolist()
        while position < end:
            body, ring = position - SINK, position % (64 * RING)
            until = min(end, SINK) if body < 0 else min(end, position + 64 - body % 64, position + 64 - ring % 64)
            kept = windows[0] if body < 0 else windows[1 + ring // 64] if until > end - 64 * (RING - 1) else -1
            page, slot = (-1, 0) if body < 0 else (table[body // 64], body % 64)
            made.append((first_row + position - start, until - position, page, slot, position, kept))
            position = until
        return torch.tensor(made, dtype=torch.int32, device=self.device)


class Plain:
    """Tokens of one sequence as lists: what a query sees of them."""

    def __init__(self, state):
        self.state, self.rows, self.coded, self.rope = state, [], [], []

    def add(self, rows, rope):
        state = self.state
        for row, part in zip(rows.float().cpu(), rope.cpu()):
            centered = row if state.mean is None else row - state.mean.cpu()
            turned = (centered @ state.matrix.cpu()).bfloat16()
            codec = state.codec()
            codes, params = codec.encode(turned.float()[None])
            self.rows.append(turned), self.coded.append(codec.decode(codes, params)[0]), self.rope.append(part)

    def seen(self, length):
        """Rows FP32 [length, 512] and RoPE parts [length, 64] for a query that is token `length - 1`."""
        rows = [self.coded[i] if SINK <= i < length - RECENT else self.rows[i].float() for i in range(length)]
        return torch.stack(rows), torch.stack(self.rope[:length])

    def attend(self, query, rope_query, scale, length):
        rows, rope = self.seen(length)
        out = []
        for q, r in zip(query.float().cpu(), rope_query.float().cpu()):
            logits = torch.tensor([float(q.double() @ row.double() + r.double() @ part.double()) for row, part in zip(rows, rope)])
            out.append((logits * scale).softmax(0) @ rows)
        return torch.stack(out)


def tokens(count, seed):
    return randn(count, CHANNELS, seed=seed).bfloat16(), randn(count, ROPE_CHANNELS, seed=seed + 1000).bfloat16()
