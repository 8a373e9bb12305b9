"""Attention inside a chunk of a prompt, on the model's raw keys and values. Without earlier tokens, SDPA computes
it. It is computed in parts with their log-sum-exp if earlier tokens are merged, or if SDPA does not support the
softmax (ops/rule.py)."""

from collections.abc import Callable

import torch
from torch.nn.functional import scaled_dot_product_attention

from ..ops.merge import Parts
from ..ops.rule import ALL, Rule

QUERY_BLOCK, KEY_BLOCK = 256, 1024  # scores in memory at a time


def _in_parts(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    visible: Callable[[torch.Tensor, torch.Tensor], torch.Tensor],
    scale: float,
    rule: Rule,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Output [B, Hq, q, d] and log-sum-exp [B, Hq, q] in FP32, without the rule's sinks. The queries are the last
    rows of the keys. visible(rows, columns): mask [B or 1, q, N] of a block, in addition to the causal mask."""
    batch, heads, tokens, d = query.shape
    kv_heads, held, outputs, sums = key.shape[1], key.shape[2], [], []
    group = heads // kv_heads
    query, key, value = query.float().view(batch, kv_heads, group, tokens, d), key.float(), value.float()
    for first in range(0, tokens, QUERY_BLOCK):
        last = min(first + QUERY_BLOCK, tokens)
        at, until = torch.arange(first, last, device=query.device), last + held - tokens
        q, parts = query[:, :, :, first:last].reshape(batch, kv_heads, -1, d), Parts()
        for begin in range(0, until, KEY_BLOCK):
            end = min(begin + KEY_BLOCK, until)
            column = torch.arange(begin, end, device=query.device)
            seen = (column <= at[:, None] + (held - tokens)) & visible(at, column)
            logits = rule.capped(torch.matmul(q, key[:, :, begin:end].transpose(-1, -2)) * scale)
            seen = seen.expand(batch, -1, -1)[:, None, None].expand(-1, -1, group, -1, -1)
            seen = seen.reshape(batch, 1, -1, end - begin)
            parts.add(logits.masked_fill(~seen, -torch.inf), value[:, :, begin:end])
        output, lse = parts.found()
        outputs.append(output.view(batch, heads, last - first, d))
        sums.append(lse.view(batch, heads, last - first))
    return torch.cat(outputs, dim=2), torch.cat(sums, dim=2)


def causal_parts(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    counts: torch.Tensor,
    scale: float,
    rule: Rule = ALL,
    starts: torch.Tensor | None = None,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Causal attention inside a chunk with its log-sum-exp, which SDPA does not return. FP32; rows [counts, q) are
    padding. starts: [B] positions of the first rows, None for 0. Excludes the rule's sinks."""
    starts = torch.zeros_like(counts) if starts is None else starts

    def visible(at: torch.Tensor, column: torch.Tensor) -> torch.Tensor:
        seen = column < counts[:, None, None]  # [B, 1, N]
        if rule.hides:
            seen = seen & (starts[:, None, None] + column >= rule.first(starts[:, None] + at)[:, :, None])
        return seen

    return _in_parts(query, key, value, visible, scale, rule)


def whole(
    query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, mask: torch.Tensor | None, scale: float
) -> torch.Tensor:
    """SDPA in which every token sees all keys, for encoders such as image encoders. mask: as in plain()."""
    visible = None if mask is None else mask.bool()[:, None, None, :]
    return scaled_dot_product_attention(
        query, key, value, attn_mask=visible, scale=scale, enable_gqa=query.shape[1] > key.shape[1]
    )


def plain(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    mask: torch.Tensor | None,
    scale: float,
    rule: Rule = ALL,
) -> torch.Tensor:
    """Causal attention with SDPA if possible: [B, Hq, q, d]. The queries are the last rows of the keys. mask: [B,
    keys], true for tokens that are not padding, or None."""
    tokens, held, group = query.shape[2], key.shape[2], query.shape[1] // key.shape[1]
    offset, mask = held - tokens, None if mask is None else mask.bool()
    # Positions do not count padding, which precedes a sequence.
    padding = torch.zeros(1, 1, dtype=torch.long, device=query.device)
    if mask is not None:
        padding = (~mask).sum(dim=1, keepdim=True)

    def visible(at: torch.Tensor, column: torch.Tensor) -> torch.Tensor:
        seen = torch.ones(1, 1, len(column), dtype=torch.bool, device=query.device)
        if rule.hides:
            seen = seen & (column - padding[:, :, None] >= rule.first(at + offset - padding)[:, :, None])
        return seen if mask is None else seen & mask[:, None, column[0] : column[-1] + 1]

    if rule.sums_differ:
        return rule.with_sinks(*_in_parts(query, key, value, visible, scale, rule)).to(query.dtype)
    seen, causal = None, False
    if mask is None and not rule.hides and tokens == held:
        causal = tokens > 1
    else:
        at, column = torch.arange(tokens, device=query.device), torch.arange(held, device=query.device)
        seen = ((column <= at[:, None] + offset) & visible(at, column)).unsqueeze(1)
    output = scaled_dot_product_attention(
        query, key, value, attn_mask=seen, is_causal=causal, scale=scale, enable_gqa=group > 1
    )
    if seen is not None:  # a row that sees nothing is padding; SDPA returns NaN for it
        output = torch.where(seen.any(dim=-1, keepdim=True), output, torch.zeros_like(output))
    return output
