"""The attention function registered in transformers as "oscar". A single new token is appended, then attends to the
cache. The first chunk of a prompt attends to its raw keys and values by SDPA. A further one attends to them and to the
stored tokens in the chunk passes of serving engines (cache/chunk_pass.py). If they do not serve a layer, log-sum-exp
merges both parts in torch. Then the chunk is appended.

If several layers read one cache (Gemma 4 E2B and E4B), each of them does this with the same keys and values, and the
tokens enter the cache with the last one. So all of them see the same."""

from typing import Any

import torch
from torch import nn
from torch.nn.functional import pad
from transformers.masking_utils import flash_attention_mask

from ..cache.chunk_attention import causal_parts, plain, whole
from ..files.errors import InputError
from ..ops.merge import Parts
from ..ops.rule import Rule
from . import cache_use
from .attached import rule_of
from .cache import CARRIER, OscarLayer


def padding_mask(*args: Any, config: Any = None, **kwargs: Any) -> torch.Tensor | None:
    """None, or which keys are not padding: [B, keys], as for flash attention. Gemma 4 cuts the rows of queries out of
    masks before layers that read another's cache, so there the shape is [B, 1, 1, keys]."""
    mask = flash_attention_mask(*args, config=config, **kwargs)
    cut = getattr(config, "num_kv_shared_layers", None)
    return mask[:, None, None] if mask is not None and cut else mask


@torch.compiler.disable  # the cache counts in Python, so a compiled model has a graph break here
def attention(
    module: nn.Module,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: torch.Tensor | None,
    scaling: float | None = None,
    dropout: float = 0.0,
    sliding_window: int | None = None,
    **kwargs: Any,
) -> tuple[torch.Tensor, None]:
    """The signature of AttentionInterface: query [B, Hq, q, d] -> ([B, q, Hq, d], None). The queries are the last rows
    of the keys."""
    scale = scaling if scaling is not None else query.shape[-1] ** -0.5
    if dropout:
        raise InputError(f"attention dropout {dropout} is not supported with a 2-bit cache; call model.eval()")
    if kwargs.get("position_bias") is not None:
        raise InputError("attention with 'position_bias' is not supported by oscar-kv")
    if (
        attention_mask is not None
        and hasattr(module, "is_kv_shared_layer")
        and attention_mask.dtype == torch.bool
        and attention_mask.shape[1:-1] == (1, 1)
    ):
        attention_mask = attention_mask.flatten(1)  # of padding_mask()
    if attention_mask is not None and attention_mask.dim() != 2:
        raise InputError(
            f"an attention mask of {attention_mask.dim()} dimensions is not supported; pass [batch, tokens]"
        )
    _refuse_packed(module, key, attention_mask, kwargs)
    rule = rule_of(module, sliding_window, kwargs.get("softcap"), kwargs.get("s_aux"))
    layer = getattr(key, CARRIER, None)
    if layer is None:  # no cache, or another kind: the model's original attention
        causal = kwargs.get("is_causal")
        # an image encoder beside the decoder
        if not (getattr(module, "is_causal", True) if causal is None else causal):
            return whole(query, key, value, attention_mask, scale).transpose(1, 2), None
        cache_use.without_cache(module, query.shape[2], key.shape[2])
        return plain(query, key, value, attention_mask, scale, rule).transpose(1, 2), None
    if module not in layer.owner.attached.modules:
        raise InputError("the cache was made for another model; make one with oscar_kv.new_cache(model)")
    if layer.owner.is_recording:  # one token per sequence; the cache has checked the mask, and counts the replays
        layer.pending = None
        return layer.kv.step_on_device(query, key, value, scale, rule).to(query.dtype).transpose(1, 2), None
    valid, count, proposed = layer.valid(attention_mask), key.shape[2], layer.owner.proposed
    # Proposals see what they would see in steps of their own, so that assisted decoding writes the same text.
    first = max(1, count - proposed)
    pieces = [slice(0, first), *(slice(i, i + 1) for i in range(first, count))]
    outputs, without = [], count - query.shape[2]  # first tokens without queries
    state = layer.state() if module.layer_idx != layer.last_reader else None
    for piece in pieces:
        k, v = layer.pending = key[:, :, piece], value[:, :, piece]
        own = None if valid is None else valid[:, piece]
        q = query[:, :, max(0, piece.start - without) : piece.stop - without]
        outputs.append(_cached(layer, q, k, v, own, scale, rule, state is None or piece is not pieces[-1]))
    if state is not None:
        layer.rewind(state)
    return (outputs[0] if len(outputs) == 1 else torch.cat(outputs, dim=2)).transpose(1, 2), None


def _cached(
    layer: OscarLayer,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    valid: torch.Tensor | None,
    scale: float,
    rule: Rule,
    keep: bool,
) -> torch.Tensor:
    """Attention of the layer's pending tokens to the cache and to each other, [B, Hq, q, d]. They enter the cache; a
    chunk only if keep."""
    if key.shape[2] == 1 and (valid is None or bool(valid.all())):
        output = layer.kv.step(query, key, value, scale, rule).to(query.dtype)
        layer.count(valid)
        return output
    tokens = torch.ones(key.shape[0], key.shape[2], dtype=torch.bool) if valid is None else valid
    output = _chunk(layer, query, key, value, tokens, scale, rule)
    if keep:
        layer.keep(valid)
    return output


def _refuse_packed(
    module: nn.Module, key: torch.Tensor, attention_mask: torch.Tensor | None, kwargs: dict[str, Any]
) -> None:
    """Several texts in one row, told by position_ids that start again: transformers keeps them apart, this function
    would not."""
    packed = kwargs.get("cu_seq_lens_q") is not None
    positions = kwargs.get("position_ids")
    if (
        positions is not None
        and attention_mask is None
        and getattr(key, CARRIER, None) is None
        and getattr(module, "layer_idx", 0) == 0
        and positions.dim() == 2
        and positions.shape[1] == key.shape[2] > 1
    ):
        packed = packed or bool((positions.diff(dim=1) != 1).any())
    if packed:
        raise InputError(
            "the row holds several texts (position_ids start again), which attend to each other here; "
            "pass one text a row with an attention_mask, or detach() the bundle first"
        )


def _chunk(
    layer: OscarLayer,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    valid: torch.Tensor,
    scale: float,
    rule: Rule,
) -> torch.Tensor:
    """Attention of a chunk before it is appended. [B, Hq, q, d]; rows of padding are zero."""
    if not any(layer.kv.lengths):
        return plain(query, key, value, valid.to(query.device) if not bool(valid.all()) else None, scale, rule)
    rows = query.shape[2]
    query = pad(query, (0, 0, key.shape[2] - rows, 0))
    device, batch, heads, tokens, d = query.device, *query.shape
    if layer.kv.pass_unsupported(rule) is None:
        chosen, output = valid.to(device), query.new_zeros(batch, tokens, heads, d)
        q, k, v = (x.transpose(1, 2)[chosen] for x in (query, key, value))
        output[chosen] = layer.kv.attend_chunks(q, k, v, valid.sum(dim=1).tolist(), scale, rule.sinks)
        return output.transpose(1, 2)[:, :, -rows:]
    # Queries move to the front, because there query i of a sequence has position length + i.
    order = torch.argsort((~valid).int(), dim=1, stable=True).to(device)
    counts, parts = valid.sum(dim=1).tolist(), Parts()
    index = order[:, None, :, None]
    packed = query.gather(2, index.expand(-1, heads, -1, d))
    past, past_lse = layer.kv.attend(packed, scale, counts, rule)
    parts.merge(past, past_lse)
    kv_heads = key.shape[1]
    keys, values = (x.gather(2, index.expand(-1, kv_heads, -1, d)).float() for x in (key, value))
    starts = torch.tensor(layer.kv.lengths, device=device)
    parts.merge(*causal_parts(packed, keys, values, torch.tensor(counts, device=device), scale, rule, starts))
    output = torch.zeros_like(query)
    output.scatter_(2, index.expand(-1, heads, -1, d), rule.with_sinks(*parts.found()).to(query.dtype))
    return (output * valid.to(device)[:, None, :, None])[:, :, -rows:]
