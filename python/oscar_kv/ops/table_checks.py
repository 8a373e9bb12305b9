"""What the tables of a step must be before an operator follows them: ids of pages and window pages inside their pools,
no more pages of codes than a row of the table has, runs inside their rows and pages. Operators check where
OSCAR_KV_CHECK_TABLES is set to anything but 0, on any device, which then reads one flag (operators.check_kernels()). A
server may call check_step() itself.

Without the checks the tables are trusted: an id of -1 or beyond the pool reads or writes memory of another sequence."""

import os
from collections.abc import Callable, Sequence
from typing import Any, NoReturn

import torch

from ..format.codec import code_of
from ..format.latent_layout import LatentPages
from ..format.page_layout import PAGE_TOKENS, PageLayout
from ..format.windows import quantized_end, sink_pages
from .tables import CODES, NEW, NEW_RUN, RUN, TILE
from .view import StepView

VARIABLE, MOST = "OSCAR_KV_CHECK_TABLES", 2**31 - 1
OF_PASS = ("pool", "windows", "phases", "sink", "recent", "key_code", "value_code")
_passes: dict[int, dict[str, Any]] = {}  # by the address of a state: arguments of describe_pass that layer_pass reads
Fault = tuple[torch.Tensor, Callable[[int], str]]  # mask [N], sentence of an item


def enabled() -> bool:
    return os.environ.get(VARIABLE, "") not in ("", "0")


def _refuse(op: str, sentence: str) -> NoReturn:
    raise RuntimeError(f"oscar_kv::{op}: {sentence}")


def check_call(op: str, a: StepView) -> None:
    """Before a call of an operator, by the names in its schema: tables of int32, a pool of the codes' pages, windows of
    at least 0, and what the tables name."""
    if op == "describe_pass":
        _passes[a.state.data_ptr()] = {name: value for name, value in vars(a).items() if name in OF_PASS}
    given = _passes.get(a.state.data_ptr(), {}) | vars(a) if op == "layer_pass" else vars(a)
    a = StepView.of({name: value for name, value in given.items() if value is not None})
    for name in ("lengths", "table", "window_table", "runs", "tiles"):
        if name in a and getattr(a, name).dtype != torch.int32:
            _refuse(op, f"{name} is {getattr(a, name).dtype}, expected torch.int32")
    if "window" in a and a.window < 0:
        _refuse(op, f"window is {a.window}, expected 0 or more")
    if "pool" in a:
        _check_pool(op, a)
    if "key_clip" in a:
        _check_writes(op, a)
    if op == "append_tokens":
        _check_appended(op, a)
    pages, window_pages = (len(getattr(a, name)) if name in a else MOST for name in ("pool", "windows"))
    positions = len(given["phases"]) if "phases" in a else 0
    rows = min((len(getattr(a, name)) for name in ("key", "value", "rows", "rope") if name in a), default=None)
    if "lengths" in a and "sink" in a:
        recent, table = (a.recent if "recent" in a else 0), (a.table if "table" in a else None)
        check_step(
            op, a.lengths, a.window_table, window_pages, a.sink, table, pages, recent, positions, "recent" not in a
        )
    if "runs" in a and "windows" in a:
        check_shapes(op, runs=(a.runs, (None, len(NEW_RUN))))
        check_new_runs(op, a.runs, rows or 0, pages, window_pages, positions)
    elif "runs" in a:
        check_shapes(op, runs=(a.runs, (None, len(RUN))))
        check_runs(op, a.runs, rows, pages)
    if "tiles" in a:
        check_shapes(op, tiles=(a.tiles, (None, len(TILE))))
        check_tiles(op, a.tiles, rows or 0, min(len(a.key_out), len(a.value_out)), pages, window_pages, positions)


def _check_pool(op: str, a: StepView) -> None:
    pool = a.pool
    if "code" in a:  # latent attention, whose pages may be farther apart
        if pool.dtype != torch.uint8 or pool.dim() != 2 or pool.shape[1] < LatentPages(code_of(a.code)).bytes:
            _refuse(op, f"pool is {pool.dtype} {list(pool.shape)}, which are no pages of this code")
        return
    size = PageLayout(code_of(a.key_code), code_of(a.value_code)).bytes
    if pool.dtype != torch.uint8 or pool.dim() != 3 or pool.shape[2] != size:
        _refuse(op, f"pool is {pool.dtype} {list(pool.shape)}, expected bytes in pages of {size} for these codes")


def _check_writes(op: str, a: StepView) -> None:
    """What every operator that writes codes is given for its heads."""
    heads = a.pool.shape[1]
    sides = {name: (getattr(a, name), (heads, 4)) for name in ("key_sigma", "value_sigma")}
    clips = {name: getattr(a, name) for name in ("key_clip", "value_clip")}
    check_shapes(op, **sides, **{name: (clip, (heads,)) for name, clip in clips.items()}, bad=(a.bad, (2,)))
    for name, clip in clips.items():  # ratios of all heads: 0 is off, others up to 1
        if not bool(((clip >= 0) & (clip <= 1)).all()):
            _refuse(op, f"{name} is {clip.tolist()}, expected numbers from 0 to 1")
    if op == "quantize_rows":
        shape = (len(a.key), heads, code_of(a.key_code).head_dim)
        check_shapes(op, key=(a.key, shape), value=(a.value, shape))


def _check_appended(op: str, a: StepView) -> None:
    shape = (len(a.lengths), a.windows.shape[1], a.windows.shape[2] // (2 * PAGE_TOKENS))
    check_shapes(op, key=(a.key, shape), value=(a.value, shape))
    for name in ("key_mean", "value_mean"):
        if name in a:  # one for each token where RoPE turns it
            mean = getattr(a, name)
            check_shapes(op, **{name: (mean, shape if mean.dim() == 3 else shape[1:])})


def _first_fault(op: str, faults: Sequence[Fault]) -> None:
    """faults: those that are looked for first in front. One flag is read where there is none."""
    masks = torch.stack([mask for mask, _ in faults])
    if not bool(masks.any()):
        return
    item = int(masks.any(dim=0).nonzero()[0])
    _refuse(op, next(sentence(item) for mask, sentence in faults if bool(mask[item])))


def _ids(mask: torch.Tensor, ids: torch.Tensor, limit: int, name: str, of: str) -> Fault:
    """A fault in a row of ids [N, columns]."""

    def sentence(item: int) -> str:
        column = int(mask[item].nonzero()[0])
        return f"{name} {column} of {of} {item} is {int(ids[item, column])}, expected 0 to {limit - 1}"

    return mask.any(dim=1), sentence


def check_step(
    op: str,
    lengths: torch.Tensor,
    window_table: torch.Tensor,
    window_pages: int,
    sink: int,
    table: torch.Tensor | None = None,
    pages: int = 0,
    recent: int = 0,
    positions: int = 0,
    newest_only: bool = False,
) -> None:
    """lengths [B] with the newest token; window_table [B, W] of a pool of window_pages; table [B, P] of a pool of
    pages, where codes are read; positions: of phases, 0 for none; newest_only: of the windows only the
    newest token's place is used. RuntimeError names what is wrong, op in front."""
    first_pages = sink_pages(sink)
    if min(sink, recent) < 0 or lengths.dim() != 1 or window_table.dim() != 2 or len(window_table) != len(lengths):
        _refuse(
            op,
            f"sink and recent are {sink} and {recent}, lengths {list(lengths.shape)}, window_table "
            f"{list(window_table.shape)}; expected numbers of at least 0, and tables of the same sequences",
        )
    if table is not None and (table.dim() != 2 or len(table) != len(lengths)):
        _refuse(op, f"table is {list(table.shape)}, expected a row for each of {len(lengths)} sequences")
    ring_pages = window_table.shape[1] - first_pages
    if ring_pages < 1:
        _refuse(
            op,
            f"window_table has {window_table.shape[1]} pages for a sequence, expected {first_pages} of the "
            "sink and at least one of the ring",
        )
    held = 1 if newest_only else recent
    if held > ring_pages * PAGE_TOKENS:
        _refuse(op, f"the ring of {ring_pages} pages is too short for {held} tokens")
    if len(lengths) == 0:
        return
    n, device = lengths.long(), lengths.device

    end = quantized_end(n, sink, recent)
    faults = [(n < 0, lambda b: f"the length of sequence {b} is {int(n[b])}, expected 0 or more")]
    if positions > 0:
        faults.append(
            (n > positions, lambda b: f"sequence {b} has positions up to {int(n[b])}, and phases have {positions}")
        )
    if table is not None:
        needed = -(-(end - sink) // PAGE_TOKENS)
        faults.append(
            (
                needed > table.shape[1],
                lambda b: f"sequence {b} has codes in {int(needed[b])} pages, and its table has {table.shape[1]}",
            )
        )
        used = torch.arange(table.shape[1], device=device) < needed[:, None]
        faults.append(_ids(used & ((table < 0) | (table >= pages)), table, pages, "page", "sequence"))
    first = n - 1 if newest_only else end
    block, last = first // PAGE_TOKENS, (n - 1) // PAGE_TOKENS  # of tokens in the ring
    column = torch.arange(window_table.shape[1], device=device)[None]
    of_sink = column < first_pages
    if newest_only:
        in_sink = column == block[:, None]
    else:
        in_sink = column * PAGE_TOKENS < torch.minimum(n, torch.full_like(n, sink))[:, None]
    in_ring = (column - first_pages - block[:, None]) % ring_pages <= (last - block)[:, None]
    ringed = (first >= sink) & (first < n)
    used = (n > 0)[:, None] & torch.where(
        of_sink, in_sink & ~(ringed[:, None] & newest_only), in_ring & ringed[:, None]
    )
    faults.append(
        _ids(
            used & ((window_table < 0) | (window_table >= window_pages)),
            window_table,
            window_pages,
            "window page",
            "sequence",
        )
    )
    _first_fault(op, faults)


def _leaves(first: torch.Tensor, count: torch.Tensor, limit: int) -> torch.Tensor:
    return (first < 0) | (count < 0) | (first + count > limit)


# Faults of items [N] of a list, such as runs: which items, and the sentence of one. `held`: the items that are looked
# at.
def _rows(
    held: torch.Tensor, item: str, first: torch.Tensor, count: torch.Tensor, limit: int, verb: str = "reads"
) -> Fault:
    return (
        held & _leaves(first, count, limit),
        lambda i: f"{item} {i} {verb} {int(count[i])} rows from {int(first[i])} on, and there are {limit}",
    )


def _slots(held: torch.Tensor, item: str, slot: torch.Tensor, count: torch.Tensor) -> Fault:
    return (
        held & _leaves(slot, count, PAGE_TOKENS),
        lambda i: f"{item} {i} takes {int(count[i])} slots from {int(slot[i])} on, and a page has {PAGE_TOKENS}",
    )


def _page(held: torch.Tensor, item: str, page: torch.Tensor, limit: int, name: str = "page") -> Fault:
    return (
        held & ((page < 0) | (page >= limit)),
        lambda i: f"{name} 0 of {item} {i} is {int(page[i])}, expected 0 to {limit - 1}",
    )


def _positions(held: torch.Tensor, item: str, position: torch.Tensor, count: torch.Tensor, limit: int) -> list[Fault]:
    """limit: of phases, 0 for none."""
    faults = [
        (held & (position < 0), lambda i: f"the position of {item} {i} is {int(position[i])}, expected 0 or more")
    ]
    if limit > 0:
        faults.append(
            (
                held & _leaves(position, count, limit),
                lambda i: f"{item} {i} has positions up to {int(position[i] + count[i])}, and phases have {limit}",
            )
        )
    return faults


def _shared(writes: torch.Tensor, page: torch.Tensor) -> Fault:
    same = ((page[:, None] == page) & writes[:, None] & writes).tril(-1)
    first = same.int().argmax(dim=1)
    return same.any(dim=1), lambda i: f"run {i} writes page {int(page[i])}, which run {int(first[i])} writes"


def check_runs(op: str, runs: torch.Tensor, rows: int | None, pages: int) -> None:
    """Runs [R, 5] (tables.RUN) of `rows` rows into a pool of pages; rows None: whole pages that are read."""
    first, count, page, slot, position = runs.long().unbind(1)
    held = count != 0
    faults = [_slots(held, "run", slot, count)]
    if rows is not None:
        faults.append(_rows(held, "run", first, count, rows))
    faults += [_page(held, "run", page, pages), *_positions(held, "run", position, count, 0)]
    _first_fault(op, faults if rows is None else [*faults, _shared(held, page)])


def check_new_runs(op: str, runs: torch.Tensor, rows: int, pages: int, window_pages: int, positions: int = 0) -> None:
    """Runs [R, 6] (tables.NEW_RUN); -1: no page, or no window page."""
    first, count, page, slot, position, window = runs.long().unbind(1)
    held = count != 0
    paged, kept = held & (page != -1), held & (window != -1)
    _first_fault(
        op,
        [
            _rows(held, "run", first, count, rows),
            *_positions(held, "run", position, count, positions),
            _page(paged, "run", page, pages),
            _slots(paged, "run", slot, count),
            _shared(paged, page),
            _page(kept, "run", window, window_pages, "window page"),
            _slots(kept, "run", position % PAGE_TOKENS, count),
        ],
    )


def check_tiles(
    op: str, tiles: torch.Tensor, rows: int, out_rows: int, pages: int, window_pages: int, positions: int = 0
) -> None:
    """Tiles [T, 6] (tables.TILE)."""
    kind, out, count, page, slot, position = tiles.long().unbind(1)
    held, new = count != 0, kind == NEW
    stored, codes = held & ~new, kind == CODES
    _first_fault(
        op,
        [
            (held & ((kind < 0) | (kind > 2)), lambda t: f"the kind of tile {t} is {int(kind[t])}, expected 0 to 2"),
            _rows(held, "tile", out, count, out_rows, "writes"),
            _rows(held & new, "tile", page, count, rows),
            _page(stored & codes, "tile", page, pages),
            _page(stored & ~codes, "tile", page, window_pages, "window page"),
            _slots(stored, "tile", slot, count),
            *_positions(stored, "tile", position, count, positions),
        ],
    )


def check_shapes(op: str, **tensors: tuple[torch.Tensor | None, Sequence[int | None]]) -> None:
    """name=(tensor or None, shape): as the CUDA operators compare them; None in a shape takes any number."""
    for name, (tensor, shape) in tensors.items():
        if tensor is None:
            continue
        found = list(tensor.shape)
        if len(found) != len(shape) or any(n is not None and n != f for n, f in zip(shape, found)):
            _refuse(op, f"{name} is {found}, expected {['any' if n is None else n for n in shape]}")
