"""The chunks of a forward pass in one layer. All requests attend in one call of flash attention to their stored
tokens and their own new rows; then the new rows enter the cache. Keys and values are in the model's basis. Stored
rows are transformed back into one buffer. New rows are read in place if no request has earlier tokens."""

import torch

from ..format.codec import code_unsupported
from ..ops import chunk_reference, operators, reference
from . import flash
from .chunk_plan import ChunkWork, Pass
from .layer_code import LayerCode
from .tiers import Held

BUFFER_MIB = 256  # for keys and values gathered for one call; longer pasts are read in parts


def room(kv_heads: int, head_dim: int, tokens: int) -> int:
    """Rows in the buffer, given the maximum that can be requested."""
    return max(64, min(tokens, (BUFFER_MIB << 20) // (4 * kv_heads * head_dim)))


def _part(rows: torch.Tensor, one: Pass) -> torch.Tensor:
    """The rows of a pass, mostly all."""
    return rows[one.begin : one.end] if one.end > 0 else rows


def _rows_of(
    layer_code: LayerCode, held: Held, one: Pass, key: torch.Tensor, value: torch.Tensor, buffer: torch.Tensor | None
) -> tuple[torch.Tensor, torch.Tensor]:
    """Keys and values of a pass: gathered into the buffer, or the new rows themselves."""
    if one.device_tiles is None:
        return _part(key, one), _part(value, one)
    if buffer is None:
        buffer = key.new_empty((2, one.keys, *key.shape[1:]))
    keys, values = buffer[:, : one.keys]
    key_back, value_back = layer_code.transform.products("key_back", "value_back")
    layer_code.call(
        operators.past_rows,
        pool=held.pool,
        windows=held.windows,
        tiles=one.device_tiles,
        key=key,
        value=value,
        key_matrix=key_back,
        value_matrix=value_back,
        phases=layer_code.phases(),
        key_out=keys,
        value_out=values,
    )
    return keys, values


def attend(
    layer_code: LayerCode,
    held: Held,
    work: ChunkWork,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    scale: float,
    out: torch.Tensor,
    buffer: torch.Tensor | None = None,
    sinks: torch.Tensor | None = None,
) -> None:
    """query [N, Hq, d], key and value [N, Hkv, d] of the chunks of work (chunk_plan.ChunkWork); writes out [N, Hq,
    d]. buffer: from Shared.buffer(); None: separate memory in the keys' dtype. sinks: logits [Hq] or None."""
    lse = {}
    for one in work.passes:
        keys, values = _rows_of(layer_code, held, one, key, value, buffer)
        queries, place = _part(query, one), _part(out, one)
        if not one.merged:
            lse[one.begin] = flash.attention(queries, keys, values, one, scale, place, layer_code.shared.flash)
            continue
        part = torch.empty_like(place, memory_format=torch.contiguous_format)
        found = flash.attention(queries, keys, values, one, scale, part, layer_code.shared.flash)
        operators.merge_outputs(place, lse[one.begin], part, found)
    if sinks is not None:  # they count once, over all parts
        for begin, found in lse.items():
            place = out[begin : begin + found.shape[1]]
            place.copy_(place.float() * torch.sigmoid(found.t() - sinks.detach().float()).unsqueeze(-1))


def append(
    layer_code: LayerCode,
    pool: torch.Tensor,
    windows: torch.Tensor,
    runs: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    bad: torch.Tensor,
) -> None:
    """Writes new rows into windows and pages, as given by runs (ChunkWork.new). Without kernels of chunks, torch brings
    the rows into the cache basis, and the kernel that encodes rows serves more heads than those do."""
    transform = layer_code.transform
    given = dict(pool=pool, windows=windows, bad=bad, key=key, value=value, runs=runs, phases=layer_code.phases())
    if layer_code.chunks_unsupported is None:
        forward = transform.products("key_forward", "value_forward")
        layer_code.call(operators.new_rows, key_matrix=forward[0], value_matrix=forward[1], **given)
        return
    view = layer_code.view(**given)
    rows = chunk_reference.cache_rows(view)
    view = view.but(key=rows[0], value=rows[1], runs=chunk_reference.coded_runs(runs))
    if layer_code.without_kernels is None and code_unsupported(layer_code.key.code) is None:
        operators.run(operators.quantize_rows, view)
    else:
        reference.quantize_rows(view)
