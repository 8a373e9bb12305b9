"""Attention inside a chunk of a prompt, on the model's raw keys and values. Without earlier tokens, SDPA computes
it. It is computed in parts with their log-sum-exp if earlier tokens are merged, or if SDPA does not support the
softmax (ops/rule.py)."""

import torch
from torch.nn.functional import scaled_dot_product_attention

from ..ops.merge import block_attention
from ..ops.rule import ALL, Rule


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

    return block_attention(query, key, value, visible, scale, True, rule.capped)


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
        found = block_attention(query, key, value, visible, scale, True, rule.capped)
        return rule.with_sinks(*found).to(query.dtype)
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
