"""The chunks of a forward pass in one layer. All requests attend in one call of flash attention to their stored
tokens and their own new rows; then the new rows enter the cache. Keys and values are in the model's basis. Stored
rows are transformed back into one buffer. New rows are read in place if no request has earlier tokens."""
import torch

from ..ops import flash, operators

BUFFER_MIB = 256  # for keys and values gathered for one call; longer pasts are read in parts


def room(kv_heads, head_dim, tokens):
    """Rows in the buffer, given the maximum that can be requested."""
    return max(64, min(tokens, (BUFFER_MIB << 20) // (4 * kv_heads * head_dim)))


def _rows_of(layer_code, held, one, key, value, buffer):
    """Keys and values of a pass: gathered into the buffer, or the new rows themselves."""
    if one.device_tiles is None:
        return key[one.begin:one.end], value[one.begin:one.end]
    if buffer is None:
        buffer = key.new_empty((2, one.keys, *key.shape[1:]))
    keys, values = buffer[:, :one.keys]
    transform = layer_code.transform
    phases = transform.phase_table(layer_code.device) if transform.rotated_mean else None
    operators.past_rows(held.pool, held.windows, one.device_tiles, key, value,
                        *transform.products("key_back", "value_back"), transform.key_mean, transform.value_mean, phases,
                        layer_code.key.sigma, layer_code.value.sigma, keys, values, *layer_code.numbers)
    return keys, values


def attend(layer_code, held, work, query, key, value, scale, out, buffer=None, sinks=None):
    """query [N, Hq, d], key and value [N, Hkv, d] of the chunks of work (chunk_plan.ChunkWork); writes out [N, Hq,
    d]. buffer: from Shared.buffer(); None: separate memory in the keys' dtype. sinks: logits [Hq] or None."""
    lse = {}
    for one in work.passes:
        keys, values = _rows_of(layer_code, held, one, key, value, buffer)
        queries, place = query[one.begin:one.end], out[one.begin:one.end]
        if not one.merged:
            lse[one.begin] = flash.attention(queries, keys, values, one, one.causal, scale, place,
                                             layer_code.shared.flash)
            continue
        part = torch.empty_like(place, memory_format=torch.contiguous_format)
        found = flash.attention(queries, keys, values, one, one.causal, scale, part, layer_code.shared.flash)
        operators.merge_outputs(place, lse[one.begin], part, found)
    if sinks is not None:  # they count once, over all parts
        for begin, found in lse.items():
            place = out[begin:begin + found.shape[1]]
            place.copy_(place.float() * torch.sigmoid(found.t() - sinks.detach().float()).unsqueeze(-1))


def append(layer_code, held, work, key, value, bad, sink):
    """Writes the new rows into windows and pages, after reading the rows that they push out of the windows."""
    code, transform = layer_code, layer_code.transform
    search = code.key.encoder == "search"
    if work.leaving is not None:
        operators.quantize_windows(held.pool, held.windows, held.window_table, work.leaving, code.key.sigma,
                                   code.value.sigma, *code.clip, bad, sink, search, *code.numbers)
    phases = transform.phase_table(code.device) if transform.rotated_mean else None
    operators.new_rows(held.pool, held.windows, key, value, work.new,
                       *transform.products("key_forward", "value_forward"), transform.key_mean, transform.value_mean,
                       phases, code.key.sigma, code.value.sigma, *code.clip, bad, search, *code.numbers)
