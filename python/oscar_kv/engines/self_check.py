"""The check that an engine makes on its device before it serves: in every layer, a chunk of a prompt, and a decode step
of each batch size that chooses another kernel, against the torch reference, which writes and reads a cache of its own.
A wrong cache answers nonsense without an error, so it must not start.

The rows are the model's own, if the bundle carries them, because made ones were right where the model's were wrong."""

import dataclasses
import logging
import math
import os
import time
from collections.abc import Callable
from typing import Any

import torch

from ..cache import chunk_pass
from ..cache.layer_code import LayerCode
from ..cache.layer_pass import LayerPass
from ..cache.paged_kv import PagedKV, PageTable
from ..cache.slot_kv import SlotKV
from ..cache.tiers import Held, Tiers
from ..files.errors import InputError
from ..format.manifest import Side
from ..format.page_layout import PAGE_TOKENS
from ..ops import operators
from .check_rows import CheckRows, ModelRows, made_rows, model_rows

VARIABLE = "OSCAR_KV_SELF_CHECK"  # of the environment; "off": no check
TOKENS = 700  # of the sequence: both windows, and six pages with codes
CHUNK = 100  # the last of them come in one chunk
SEQUENCES = (1, 4, 16, 24, 48)  # and as many as the engine serves at a time
# Difference of an output from the reference's, in parts of the reference's length. Right kernels have .002 to .01; a
# wrong page, scale or sum has .5 and more, or no number at all.
LIMIT = 0.1
# A chunk attends to keys in BF16. Where means of hundreds make logits of thousands, as in layer 0 of
# Qwen2.5-Coder-1.5B, rounding moves outputs by most of their size in any implementation: differences up to this
# multiple of what it does to the reference tell nothing.
ROUNDINGS = 4.0

Source = Callable[[LayerCode, int, int], CheckRows]


def passed(serving: Any, log: logging.Logger, check: Callable[[Any], str] | None = None) -> str:
    """Checks the layers of an EngineServing once; returns what it found in a few words. InputError names the layer,
    what it did, and the difference. check: of caches of another kind (latent_check.checked)."""
    if os.environ.get(VARIABLE, "").lower() == "off":
        log.warning("oscar-kv: self-check skipped (%s=off)", VARIABLE)
        return "self-check skipped"
    return (check or checked)(serving)


def refuse_large(serving: Any, layer: str, path: str, error: float) -> None:
    """InputError if what a layer did differs too much from the reference."""
    if not error <= LIMIT:
        raise InputError(
            f"{serving.bundle.path}: the self-check of {layer} with {path} found outputs that differ from the "
            f"reference by {error:.3g} of their size, expected at most {LIMIT:g}; the kernels are "
            "wrong on this GPU or for this bundle: serve without the 2-bit cache, and report it. "
            f"{VARIABLE}=off starts anyway"
        )


def told(layers: int, held: ModelRows | None, begin: float, most: float) -> str:
    """What passed. held: the model's rows; None: made ones. begin: by time.perf_counter()."""
    rows = "made" if held is None else "the model's"
    return (
        f"self-check of {layers} layers on {rows} rows passed in {time.perf_counter() - begin:.1f} s, largest "
        f"difference {most:.4f} (limit {LIMIT:g})"
    )


def checked(serving: Any) -> str:
    begin, found, held = time.perf_counter(), [], model_rows(serving.bundle)
    source = made_rows if held is None else held.rows
    codes: set[tuple[Any, ...]] = set()  # that the reference has written; kernels write the sides of a layer apart
    for index, kv in sorted(serving.caches().items()):
        transform, (key, value) = kv.code.transform, map(tuple, kv.code.numbers)
        sides = {("key", key, transform.rotated_mean, transform.key_mean is None), ("value", value)}
        found += [
            (index, kv, path, error)
            for path, error in errors_of(kv, serving.slots, serving.room(), source, not sides <= codes)
        ]
        codes |= sides
    errors = torch.stack([error for *_, error in found]).tolist() if found else []
    for (index, kv, path, _), error in zip(found, errors):
        layer = kv.code.layer
        refuse_large(serving, f"layer {index} ({_code(layer.key)} keys, {_code(layer.value)} values)", path, error)
    return told(len({i for i, *_ in found}), held, begin, max(errors, default=0.0))


@torch.no_grad()
def errors_of(
    kv: SlotKV, slots: int, most_tokens: int, source: Source = made_rows, own: bool = True
) -> list[tuple[str, torch.Tensor]]:
    """[("16 sequences", error)] of one layer (slot_kv.SlotKV); errors are tensors on the device. most_tokens: of a
    request, for the width of the page table, by which kernels divide their work. own: the reference writes a cache of
    its own, which takes thousands of launches; otherwise it reads what the kernels wrote."""
    code, d = kv.code, kv.code.layer.head_dim
    tokens = min(TOKENS, most_tokens - 1)
    code.transform.reserve(tokens + 1, code.device)
    rows = source(code, kv.group, tokens + 1)
    scale, made = d**-0.5, []
    ours = PagedKV(code, PageTable(1))
    theirs = PagedKV(code, PageTable(1)) if own else ours
    chunk = _by_chunk(kv, ours, theirs, rows, tokens, scale)
    if chunk is not None:
        difference, rounding = largest_error(chunk[0], chunk[1]), largest_error(chunk[2], chunk[1])
        made.append(
            (
                f"a prompt chunk of {len(chunk[0])} tokens",
                torch.where(difference <= ROUNDINGS * rounding, rounding.new_zeros(()), difference),
            )
        )
    held = _stepped(ours, tokens)
    with operators.by_reference():
        expected = _expected(_stepped(theirs, tokens) if own else held, rows, code, scale)
    served = _served(kv, ours, scale)
    query = rows.query_at(_newest(rows, tokens), code.transform)
    for size in sorted({min(s, slots) for s in (*SEQUENCES, slots)}):
        table = held.table.new_zeros(size, max(held.table.shape[1], -(-most_tokens // PAGE_TOKENS)))
        table[:, : held.table.shape[1]] = held.table
        apart = []
        for first in range(0, len(query), size):
            of = torch.arange(first, first + size, device=code.device) % len(query)
            output = torch.full((size, *query.shape[1:]), math.nan, dtype=torch.bfloat16, device=code.device)
            k, v = (r[-1:].expand(size, -1, -1).contiguous() for r in (rows.key, rows.value))
            many = held.window_table.expand(size, -1).contiguous(), held.lengths.expand(size).contiguous()
            served(output, query[of], k, v, (table, *many, None))
            apart.append(largest_error(output, expected[of]))
        made.append((f"{size} sequences", torch.stack(apart).amax()))
    return made


def _served(kv: SlotKV, cache: PagedKV, scale: float) -> LayerPass:
    """What kv calls in every pass, for another cache of its layer."""
    return LayerPass(kv.code, cache.pool, cache.windows, cache.bad, kv.space, scale)


def largest_error(output: torch.Tensor, expected: torch.Tensor) -> torch.Tensor:
    """The largest difference of a token, in parts of the length of the expected one."""
    apart = (output.float() - expected).flatten(1).norm(dim=1) / expected.flatten(1).norm(dim=1).clamp(min=1e-20)
    return torch.where(torch.isfinite(output).all(), apart.amax(), torch.inf)


def _code(side: Side) -> str:
    return "uniform" if side.widths is None else "-".join(map(str, side.widths))


def _newest(rows: CheckRows, position: int) -> torch.Tensor:
    return torch.full((len(rows.query),), position, device=rows.key.device)


def _by_chunk(
    kv: SlotKV, ours: PagedKV, theirs: PagedKV, rows: CheckRows, tokens: int, scale: float
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor] | None:
    """Fills both caches with `tokens` tokens, the last of which attend as a chunk: outputs [T, Hq, d] by the kernels,
    by the reference, and by the reference with stored rows in BF16; or None if the sequence is too short for one."""
    code, count, outputs = ours.code, min(CHUNK, tokens // 2), None
    for begin, end in ((0, tokens - count), (tokens - count, tokens)):
        key, value = rows.key[begin:end], rows.value[begin:end]
        if begin > 0:
            query = rows.query_at(torch.arange(begin, end, device=key.device), code.transform)
            found = ours.attend_chunks(query, key, value, [count], scale)
            right, rounded = (torch.empty(query.shape, device=key.device) for _ in range(2))
            with operators.by_reference():
                work = theirs.work_of([count])[0]
                buffer = key.new_empty((2, tokens, *key.shape[1:]), dtype=torch.bfloat16)
                for out, place in ((right, None), (rounded, buffer)):  # without a buffer, they stay in FP32
                    chunk_pass.attend(
                        code, theirs.held(), work, query.float(), key.float(), value.float(), scale, out, place
                    )
            outputs = found, right, rounded
        if end > begin:
            work = ours.work_of([end - begin])[0]
            ours.append(key, value, [end - begin])
            if kv.space.is_cuda:  # once more, as passes of the engine write them
                _served(kv, ours, scale)(key, key, key, value, (None, None, None, work.new))
            if theirs is not ours:
                with operators.by_reference():
                    theirs.append(key, value, [end - begin])
    return outputs


def _stepped(cache: PagedKV, tokens: int) -> Held:
    """The storage with room for one more token. The token that it pushes out of the window is written into its page
    again, as steps write theirs."""
    cache.advance(1)
    length = torch.tensor([tokens + 1], dtype=torch.int32, device=cache.code.device)
    held = dataclasses.replace(cache.held(), lengths=length)
    left = (length - cache.code.recent).clamp(min=0)
    cache.tiers.flush_tokens(dataclasses.replace(held, lengths=left), cache.bad)
    return held


def _expected(held: Held, rows: CheckRows, code: LayerCode, scale: float) -> torch.Tensor:
    """The reference's outputs [m, Hq, d] of the newest token for each query."""
    size = len(rows.query)
    query = rows.query_at(_newest(rows, rows.key.shape[0] - 1), code.transform).float()
    many = {
        name: getattr(held, name).expand(size, *getattr(held, name).shape[1:]).contiguous()
        for name in ("table", "window_table", "lengths")
    }
    key, value = (r[-1:].float().expand(size, -1, -1) for r in (rows.key, rows.value))
    bad, space = (torch.zeros(2, dtype=kind, device=code.device) for kind in (torch.int32, torch.uint8))
    one = dataclasses.replace(held, **many)
    with operators.by_reference():  # whatever the device, as there is no workspace
        return Tiers(code).step(one, query, key, value, scale, bad, space=space, flushes=False)
