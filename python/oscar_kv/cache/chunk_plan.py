"""The plan of a forward pass of a serving engine for requests with several new tokens (chunks). It says which rows
flash attention reads, and where new rows go. The plan is made of integers, once on the host for all layers. It contains
a few int32 tables that kernels read (kernels/chunks/)."""

import dataclasses
from collections.abc import Iterable, Iterator, Sequence

import torch

from ..format.page_layout import PAGE_TOKENS
from ..format.windows import Policy
from ..ops.tables import CODES, NEW, WINDOW
from .packed import Packed


@dataclasses.dataclass
class Chunk:
    """A request with more than one new token."""

    row: int  # row of the batch
    first: int  # its first token among the batch's tokens
    start: int  # earlier tokens
    count: int  # new tokens
    # Where requests may begin with others' tokens (prefix_table.PrefixTable):
    own: int = 0  # the first token that its request computes itself; earlier ones are read as codes
    kept: int = -1  # first window page of the sink's copy, which its new tokens fill, too


@dataclasses.dataclass
class Pass:
    """One call of flash attention. Tokens [begin, end) belong to the chunks, counted from the first chunk's first
    token. After move() both are 0: it takes the rows of the whole batch."""

    begin: int
    end: int
    ends: list[int]  # [sequences + 1] start of each sequence's queries
    key_ends: list[int]  # start of each sequence's keys
    # TILE entries with a batch row, and a place for `page`; None: the keys are the new rows themselves
    tiles: list[tuple[int, ...]] | None = None
    causal: bool = True
    merged: bool = False  # merge the output with the output of earlier passes
    # by ChunkWork: the longest sequence of queries and of keys, all keys, and tables on the device
    longest: int = 0
    longest_key: int = 0
    keys: int = 0
    device_ends: torch.Tensor = torch.empty(0)
    device_key_ends: torch.Tensor = torch.empty(0)
    device_tiles: torch.Tensor | None = None

    def move(self, base: int) -> None:
        """Counts rows from the batch's first one, `base` before the first chunk's, and takes the whole batch."""
        if self.tiles is None:
            self.key_ends = [base + end for end in self.key_ends]
        else:
            self.tiles = [(*tile[:4], tile[4] + base, *tile[5:]) if tile[0] == NEW else tile for tile in self.tiles]
        self.ends = [base + end for end in self.ends]
        self.begin = self.end = 0


def cut(begin: int, end: int, origin: int) -> Iterator[tuple[int, int]]:
    """Splits [begin, end) at page boundaries: every 64 tokens from origin."""
    while begin < end:
        until = min(end, begin + PAGE_TOKENS - (begin - origin) % PAGE_TOKENS)
        yield begin, until
        begin = until


def past_tiles(policy: Policy, chunk: Chunk, begin: int, end: int, out_row: int) -> list[tuple[int, ...]]:
    """Stored tokens [begin, end) of a chunk's request: (kind, out row, count, row of the batch, place, slot,
    position). place is a column of the page table or the window table."""
    coded = min(max(policy.quantized_end(chunk.start), chunk.own), chunk.start)
    made: list[tuple[int, ...]] = []
    for first, last, kind, origin in (
        (0, policy.sink, WINDOW, 0),
        (policy.sink, coded, CODES, policy.sink),
        (max(coded, policy.sink), chunk.start, WINDOW, 0),
    ):
        for at, until in cut(max(first, begin), min(last, end, chunk.start), origin):
            place = (at - origin) // PAGE_TOKENS if kind == CODES else policy.window_column(at)
            made.append((kind, out_row + at - begin, until - at, chunk.row, place, (at - origin) % PAGE_TOKENS, at))
    return made


def new_tiles(chunk: Chunk, source: int, out_row: int) -> list[tuple[int, ...]]:
    """The chunk's own rows, starting at row `source` of the new ones."""
    return [
        (NEW, out_row + at, until - at, chunk.row, source + at, 0, chunk.start + at)
        for at, until in cut(0, chunk.count, 0)
    ]


def _sums(counts: Iterable[int]) -> list[int]:
    ends = [0]
    for n in counts:
        ends.append(ends[-1] + n)
    return ends


def plan_passes(policy: Policy, chunks: Sequence[Chunk], room: int) -> list[Pass]:
    """Calls of flash attention for chunks with consecutive tokens, each with at most `room` gathered rows of keys. A
    request with more rows attends to its past in parts."""
    made: list[Pass] = []
    held: list[Chunk] = []
    base = chunks[0].first

    def close() -> None:
        if not held:
            return
        begin, end = held[0].first - base, held[-1].first + held[-1].count - base
        ends = _sums(c.count for c in held)
        if not any(c.start for c in held):
            made.append(Pass(begin, end, ends, ends))
        else:
            key_ends, tiles = _sums(c.start + c.count for c in held), []
            for chunk, row in zip(held, key_ends):
                tiles += past_tiles(policy, chunk, 0, chunk.start, row)
                tiles += new_tiles(chunk, chunk.first - base, row + chunk.start)
            made.append(Pass(begin, end, ends, key_ends, tiles))
        held.clear()

    if not any(c.start for c in chunks):
        held += chunks
    else:
        for chunk in chunks:
            if sum(c.start + c.count for c in held) + chunk.start + chunk.count > room:
                close()
            if chunk.start == 0 or chunk.start + chunk.count <= room:
                held.append(chunk)
                if chunk.count > room:  # a single chunk, with new rows only
                    close()
                continue
            begin, end, ends = chunk.first - base, chunk.first + chunk.count - base, [0, chunk.count]
            made.append(Pass(begin, end, ends, ends))
            for at in range(0, chunk.start, room):
                until = min(at + room, chunk.start)
                tiles = past_tiles(policy, chunk, at, until, 0)
                made.append(Pass(begin, end, ends, [0, until - at], tiles, causal=False, merged=True))
    close()
    return made


def new_runs(policy: Policy, chunks: Sequence[Chunk]) -> list[tuple[int, ...]]:
    """New tokens: (first row, count, row of the batch, page of the sequence or -1, first slot, position, column of
    its windows or -1). Rows count from the first chunk's first token. Two runs never share a page, because they are
    written at once and tokens of a page share words. So a run goes to a page and to the windows only where both are
    cut at the same tokens."""
    made: list[tuple[int, ...]] = []
    base = chunks[0].first
    for c in chunks:
        end = c.start + c.count
        coded = policy.quantized_end(end)
        both = max(coded, c.start)  # the first token whose run goes to a page and to the windows
        if policy.sink % PAGE_TOKENS:
            both = end
        elif coded > c.start:
            both = min(end, coded + -coded % PAGE_TOKENS)
        for first, last, paged, recent in (
            (0, policy.sink, False, True),
            (policy.sink, both, True, False),
            (coded, both, False, True),
            (both, end, True, True),
        ):
            origin = policy.sink if paged else 0
            for at, until in cut(max(first, c.start), min(last, end), origin):
                row, body = c.first - base + at - c.start, at - origin
                page = body // PAGE_TOKENS if paged else -1
                column = policy.window_column(at) if recent else -1
                made.append((row, until - at, c.row, page, body % PAGE_TOKENS, at, column))
    return made


def kept_runs(policy: Policy, chunks: Sequence[Chunk]) -> list[tuple[int, ...]]:
    """Copies of new sinks: (first row, count, -1, slot, position, window page)."""
    return [
        (c.first - chunks[0].first + at, until - at, -1, 0, at, c.kept + at // PAGE_TOKENS)
        for c in chunks
        if c.kept >= 0
        for at, until in cut(0, policy.sink, 0)
    ]


class ChunkWork:
    """The plan of one forward pass on the device. table [R, P], window_table [R, W]. tokens: those of the batch whose
    rows the passes count. They are all of them (whole) if one pass covers the chunks, so that layers cut nothing; flash
    attention then leaves the rows of other requests as they are. new: tables.NEW_RUN, which count rows of the batch if
    tokens is a slice. room 0: no passes are planned."""

    def __init__(
        self, policy: Policy, chunks: Sequence[Chunk], room: int, table: torch.Tensor, window_table: torch.Tensor
    ) -> None:
        device = table.device
        chunks = sorted(chunks, key=lambda c: c.first)
        tokens = [(c.first, c.first + c.count) for c in chunks]
        if all(end == begin for (_, end), (begin, _) in zip(tokens, tokens[1:])):
            self.tokens: slice | torch.Tensor = slice(tokens[0][0], tokens[-1][1])
        else:  # of the batch; from here on they are consecutive
            self.tokens = torch.cat([torch.arange(*t) for t in tokens]).to(device)
            at, moved = 0, []
            for c in chunks:
                moved.append(dataclasses.replace(c, first=at))
                at += c.count
            chunks = moved
        self.passes = plan_passes(policy, chunks, room) if room else []
        self.whole, base = False, self.tokens.start if isinstance(self.tokens, slice) else 0
        if isinstance(self.tokens, slice) and len(self.passes) == 1:
            self.tokens, self.whole = slice(None), True
            self.passes[0].move(base)
        packed = Packed(table, window_table)
        written: list[tuple[int, ...]] = []
        for first, count, row, index, slot, position, column in new_runs(policy, chunks):
            page = packed.at(table, row, index) if index >= 0 else -1
            window = packed.at(window_table, row, column) if column >= 0 else -1
            written.append((base + first, count, page, slot, position, window))
        written += [(base + first, *run) for first, *run in kept_runs(policy, chunks)]
        new, tiles = packed.put(written, (2, 5)), []
        tables = {CODES: table, WINDOW: window_table}
        for p in self.passes:
            read = []
            for kind, out_row, count, row, place, slot, position in p.tiles or []:
                page = packed.at(tables[kind], row, place) if kind in tables else place
                read.append((kind, out_row, count, page, slot, position))
            tiles.append(packed.put(read, (3,)))
        ends = [packed.put([p.ends, p.key_ends]) for p in self.passes]
        sent = packed.send(device)
        self.new = sent.take(new, 6)
        for p, of_tiles, of_ends in zip(self.passes, tiles, ends):
            p.longest, p.longest_key = (max(b - a for a, b in zip(e, e[1:])) for e in (p.ends, p.key_ends))
            p.keys, p.device_tiles = p.key_ends[-1], sent.take(of_tiles, 6)
            device_ends = sent.take(of_ends, len(p.ends))
            assert device_ends is not None
            p.device_ends, p.device_key_ends = device_ends
