"""The check that an engine makes on its device before it serves: in every layer, a decode step of each batch size that
chooses another kernel, against the torch reference on the same pages. A wrong cache answers nonsense without an error,
so it must not start.

Rows are made of what the bundle knows of its model: the mean of its keys and values, and their deviations in the
cache's basis. Queries look at their own position as strongly as those of real models do (MOST_QUERY), where the logits
of large key means are in the thousands."""
import dataclasses
import logging
import math
import os
import time
from collections.abc import Sequence
from typing import Any

import torch

from ..cache.layer_code import LayerCode
from ..cache.paged_kv import PagedKV, PageTable
from ..cache.slot_kv import SlotKV
from ..cache.tiers import Held
from ..files.errors import InputError
from ..format.manifest import Side
from ..format.page_layout import PAGE_TOKENS
from ..ops import operators, reference

VARIABLE = "OSCAR_KV_SELF_CHECK"  # of the environment; "off": no check
TOKENS = 700          # of the sequence: both windows, and six pages with codes
SEQUENCES = (1, 4, 16, 24, 48)  # and as many as the engine serves at a time
MOST_QUERY = 150.0    # length of a query; layer 0 of Qwen2.5-Coder-1.5B has such, and key means of 350
# Difference of an output from the reference's, in parts of the reference's length. Right kernels have .002 to .01; a
# wrong page, scale or sum has .5 and more, or no number at all.
LIMIT = 0.1


def passed(serving: Any, log: logging.Logger) -> None:
    """Checks the layers of an EngineServing once and logs the time. InputError names the layer, the batch and the
    difference."""
    if os.environ.get(VARIABLE, "").lower() == "off":
        log.warning("oscar-kv: self-check skipped (%s=off)", VARIABLE)
        return
    begin, found = time.perf_counter(), []
    for index, kv in sorted(serving.caches().items()):
        found += [(index, kv, size, error) for size, error in errors_of(kv, serving.slots, serving.room())]
    errors = torch.stack([error for *_, error in found]).tolist() if found else []  # the only time that it waits
    for (index, kv, size, _), error in zip(found, errors):
        if not error <= LIMIT:
            layer = kv.code.layer
            raise InputError(f"{serving.bundle.path}: the self-check of layer {index} ({_code(layer.key)} keys, "
                             f"{_code(layer.value)} values) with {size} sequences found outputs that differ from the "
                             f"reference by {error:.3g} of their size, expected at most {LIMIT:g}; the kernels are "
                             "wrong on this GPU or for this bundle: serve without the 2-bit cache, and report it. "
                             f"{VARIABLE}=off starts anyway")
    log.info("oscar-kv: self-check of %d layers passed in %.1f s, largest difference %.4f (limit %g)",
             len({i for i, *_ in found}), time.perf_counter() - begin, max(errors, default=0.0), LIMIT)


def errors_of(kv: SlotKV, slots: int, most_tokens: int) -> list[tuple[int, torch.Tensor]]:
    """[(sequences, error)] of one layer (slot_kv.SlotKV); errors are tensors on the device. most_tokens: of a request,
    for the width of the page table, by which kernels divide their work."""
    code, generator = kv.code, torch.Generator().manual_seed(kv.code.layer.layer)
    heads, d, transform = code.layer.kv_heads, code.layer.head_dim, code.transform
    tokens = min(TOKENS, most_tokens - 1)
    transform.reserve(tokens + 1, code.device)
    key, value = _rows(code, tokens + 1, generator)
    cache = PagedKV(code, PageTable(1), 1)
    cache.append(key[:-1], value[:-1], [tokens])
    cache.advance(1)
    held = dataclasses.replace(cache.held(), lengths=torch.tensor([tokens + 1], dtype=torch.int32, device=code.device))
    cache.tiers.flush_tokens(held, cache.bad)
    scale, made = d ** -0.5, []
    phases, tile = code.phases(), code.tile_phases(kv.space.is_cuda)
    for query in _queries(code, key, kv.group, generator):
        row = (query[None].bfloat16(), key[-1:], value[-1:])
        expected = _expected(held, row, code, phases, scale).flatten(1, 2)
        for size in sorted({min(s, slots) for s in (*SEQUENCES, slots)}):
            table = held.table.new_zeros(size, max(held.table.shape[1], -(-most_tokens // PAGE_TOKENS)))
            table[:, :held.table.shape[1]] = held.table
            output = torch.full((size, heads * kv.group, d), math.nan, dtype=torch.bfloat16, device=code.device)
            q, k, v = (r.expand(size, -1, -1).contiguous() for r in row)
            operators.run(operators.step_tokens, code.view(
                output=output, query=q, key=k, value=v, pool=held.pool, table=table, windows=held.windows,
                window_table=held.window_table.expand(size, -1).contiguous(),
                lengths=held.lengths.expand(size).contiguous(), phases=phases, tile_phases=tile, workspace=kv.space,
                scale=float(scale), flush=1))
            apart = (output.float() - expected).flatten(1).norm(dim=1).amax() / expected.norm().clamp(min=1e-20)
            made.append((size, torch.where(torch.isfinite(output).all(), apart, torch.inf)))
    return made


def _code(side: Side) -> str:
    return "uniform" if side.widths is None else "-".join(map(str, side.widths))


def _rows(code: LayerCode, count: int, generator: torch.Generator) -> list[torch.Tensor]:
    """Keys and values [count, Hkv, d] of the model at positions [0, count), BF16."""
    layer, transform, made = code.layer, code.transform, []
    for codec, back, mean in ((code.key, transform.query.transpose(1, 2), transform.key_mean),
                              (code.value, transform.output, transform.value_mean)):
        spread = codec.sigma.repeat_interleave(layer.head_dim // 4, dim=1) if codec.sigma is not None else 1.0
        rows = torch.randn(layer.kv_heads, count, layer.head_dim, generator=generator).to(code.device) * (
            spread if isinstance(spread, float) else spread[:, None])
        rows = torch.matmul(rows, back).transpose(0, 1)
        if codec is code.key and transform.rotated_mean:
            rows = rows + transform.mean_at(torch.arange(count, device=code.device))
        elif mean is not None:
            rows = rows + mean
        made.append(rows.bfloat16().contiguous())
    return made


def _queries(code: LayerCode, key: torch.Tensor, group: int, generator: torch.Generator) -> list[torch.Tensor]:
    """Queries [Hq, d] of the newest token: random ones, and one along the mean of its own key, if that was taken before
    RoPE."""
    heads, d = code.layer.kv_heads, code.layer.head_dim
    noise = torch.randn(heads * group, d, generator=generator).to(code.device)
    made = [noise * 3 * d ** 0.5 / key[-1].float().norm(dim=-1).clamp(min=1e-6).repeat_interleave(group)[:, None]]
    if code.transform.rotated_mean:
        own = code.transform.mean_at(torch.tensor([key.shape[0] - 1], device=code.device))[0]
        own = own / own.norm(dim=-1, keepdim=True).clamp(min=1e-6) * MOST_QUERY
        made.append(own.repeat_interleave(group, 0) + noise)
    return made


def _expected(held: Held, row: Sequence[torch.Tensor], code: LayerCode, phases: torch.Tensor | None,
              scale: float) -> torch.Tensor:
    """The reference's output [1, Hkv, g, d] from the same pages and windows."""
    query, key, value = (r.float() for r in row)
    return reference.step_output(code.view(**vars(held), query=query, key=key, value=value, phases=phases,
                                           scale=float(scale), flush=1))
