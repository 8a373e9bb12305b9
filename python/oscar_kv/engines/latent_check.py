"""self_check.py for latent attention: in every layer, a prompt, its stored tokens read back, and a step of each batch
size that divides the work otherwise, against the torch reference on the CPU, which writes and reads a cache of its own.
Stored tokens have to be as near to what was put in as the reference's.
Latents and queries are the model's, if the bundle carries them, otherwise made of its deviations and means. Their
parts with RoPE are made."""

import time
from typing import Any, NamedTuple

import torch

from ..cache.chunk_plan import Chunk, ChunkWork
from ..cache.latent_kv import LatentCode, LatentKV
from ..cache.rows import StepRows
from ..format.bundle import Bundle
from ..format.latent_layout import CHANNELS, ROPE_CHANNELS, ROW
from ..format.page_layout import PAGE_TOKENS
from .check_rows import ModelRows, model_rows
from .self_check import SEQUENCES, largest_error, refuse_large, told

TOKENS = 500
QUERY = 3.0  # logits of made rows have about this deviation


class Rows(NamedTuple):
    """Of one sequence [n] and of queries [m, H], BF16."""

    latents: torch.Tensor
    rope: torch.Tensor
    query: torch.Tensor
    rope_query: torch.Tensor


def rows_of(code: LatentCode, heads: int, count: int, held: ModelRows | None = None) -> Rows:
    """code: on the CPU. held: those of the model; None: made ones."""
    generator = torch.Generator().manual_seed(code.layer.layer)

    def randn(*shape: int) -> torch.Tensor:
        return torch.randn(*shape, generator=generator)

    if held is None:
        rows = randn(count, CHANNELS) * code.codec.sigma.repeat_interleave(CHANNELS // 4, dim=1)
        query = randn(4, heads, CHANNELS) * QUERY / rows.norm(dim=1).mean().clamp(min=1e-6)
        rows = rows @ code.output
        rows = rows if code.mean is None else rows + code.mean
    else:
        rows, query = held.latents(code.layer.layer, heads, count)
        query = query * QUERY / (query @ rows.T).std(dim=-1, keepdim=True).clamp(min=1e-6)
        query = query @ code.layer.key.back(True)[0]
    rope_query = randn(len(query), heads, ROPE_CHANNELS) * QUERY / ROPE_CHANNELS**0.5
    made = rows, randn(count, ROPE_CHANNELS), query, rope_query
    return Rows(*(x.bfloat16() for x in made))


class Run:
    """A cache of one sequence with `count` tokens of rows, which came as a prompt."""

    def __init__(self, code: LatentCode, rows: Rows, heads: int, count: int, space: torch.Tensor | None) -> None:
        """space: the workspace of steps; None: one of its own."""
        self.kv, self.count = LatentKV(code, 1, heads, space=space), count
        self.rows = Rows(*(x.to(code.device) for x in rows))
        device, pages = code.device, -(-(len(rows.latents) - code.sink) // PAGE_TOKENS)
        self.pool = torch.zeros((max(1, pages), code.pages.bytes), dtype=torch.uint8, device=device)
        self.table = torch.arange(len(self.pool), dtype=torch.int32, device=device)[None]
        self.windows = torch.arange(self.kv.window_pages, dtype=torch.int32, device=device)[None]
        work = ChunkWork(self.kv.policy, [Chunk(0, 0, 0, count)], 0, self.table, self.windows)
        assert work.new is not None
        self.kv.enter(self.pool, work.new, self.rows.latents[:count], self.rows.rope[:count])

    def past(self) -> torch.Tensor:
        number = torch.zeros(1, dtype=torch.int32, device=self.pool.device)
        output = torch.full((self.count, ROW), torch.nan, dtype=torch.bfloat16, device=self.pool.device)
        each = number.expand(self.count).contiguous()
        ends = number + self.kv.policy.quantized_end(self.count)
        of = dict(table=self.table, window_table=self.windows, sequence=each, firsts=number, starts=number, ends=ends)
        self.kv.past(self.pool, output=output, **of)
        return output

    def step(self, first: int, size: int) -> torch.Tensor:
        """The token after the prompt attends with queries from `first` on, as `size` sequences that share a cache: sums
        of latents without their mean."""
        of = torch.arange(first, first + size, device=self.pool.device) % len(self.rows.query)
        table, windows = (x.expand(size, -1).contiguous() for x in (self.table, self.windows))
        lengths = torch.full((size,), self.count + 1, dtype=torch.int32, device=self.pool.device)
        rows = StepRows(slice(0, size), lengths, table, windows, (lengths,))
        latent, rope = (x[self.count :].expand(size, -1).contiguous() for x in (self.rows.latents, self.rows.rope))
        query, rope_query = self.rows.query[of], self.rows.rope_query[of]
        found = self.kv.attend_step(self.pool, rows, query, rope_query, latent, rope, 1.0).float()
        return found if self.kv.code.after is None else found - self.kv.code.after


def _error(found: torch.Tensor, expected: torch.Tensor) -> float:
    return float(largest_error(found.cpu(), expected.float()))


def _farther(found: torch.Tensor, expected: torch.Tensor, rows: torch.Tensor) -> float:
    """How much farther from its row the worst stored token is than the reference's, in parts of the row's length. Not
    how far both are apart: where two codes are equally near, rounding chooses one, .12 apart at widths 4-2-1-1."""
    found, expected, rows = (x.cpu().float() for x in (found, expected, rows))
    more = (found - rows).norm(dim=1) - (expected - rows).norm(dim=1)
    worst = (more / rows.norm(dim=1).clamp(min=1e-20)).amax().clamp(min=0)
    return float(torch.where(torch.isfinite(found).all(), worst, torch.inf))


@torch.no_grad()
def errors_of(
    bundle: Bundle, kv: LatentKV, slots: int, tokens: int, held: ModelRows | None = None
) -> list[tuple[str, float]]:
    """[("16 sequences", error)] of one layer."""
    plain = LatentCode(bundle, kv.code.layer)
    rows = rows_of(plain, kv.group, tokens + 1, held)
    sizes = sorted({min(s, slots) for s in (*SEQUENCES, slots)})
    ours, right = (Run(code, rows, kv.group, tokens, space) for code, space in ((kv.code, kv.space), (plain, None)))
    put_in = torch.cat((rows.latents, rows.rope), dim=1)[:tokens]
    made = [(f"{tokens} stored tokens", _farther(ours.past(), right.past(), put_in))]
    expected = right.step(0, len(rows.query))
    for size in sizes:
        of = torch.arange(size) % len(rows.query)
        made.append((f"{size} sequences", _error(ours.step(0, size), expected[of])))
    return made


def checked(serving: Any) -> str:
    """For self_check.passed()."""
    begin, most, held = time.perf_counter(), 0.0, model_rows(serving.bundle)
    for index, kv in sorted(serving.caches().items()):
        assert isinstance(kv, LatentKV)
        for path, error in errors_of(serving.bundle, kv, serving.slots, TOKENS, held):
            most = max(most, error)
            refuse_large(serving, f"layer {index}", path, error)
    return told(len(serving.caches()), held, begin, most)
