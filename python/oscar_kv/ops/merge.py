"""Attention over parts of the context that are never in memory together. Each part gives its output and log-sum-exp,
and two parts merge by their weights."""

from collections.abc import Callable

import torch

QUERY_BLOCK, KEY_BLOCK = 256, 1024  # scores in memory at a time


class Parts:
    """Running attention of queries [B, H, R, d]; a part is logits [B, H, R, N] (-inf: not visible) and values [B, H, N,
    d]."""

    def __init__(self) -> None:
        self.output: torch.Tensor | None = None
        self.lse: torch.Tensor | None = None

    def add(self, logits: torch.Tensor, values: torch.Tensor) -> None:
        largest = logits.amax(dim=-1, keepdim=True)
        seen = largest > -torch.inf
        weights = torch.exp(logits - torch.where(seen, largest, torch.zeros_like(largest)))
        total = weights.sum(dim=-1, keepdim=True)
        output = torch.matmul(weights, values) / torch.where(seen, total, torch.ones_like(total))
        self.merge(output, torch.where(seen, largest + total.log(), largest).squeeze(-1))

    def merge(self, output: torch.Tensor, lse: torch.Tensor) -> None:
        """output [B, H, R, d], lse [B, H, R]; rows that saw nothing have lse -inf and weight 0."""
        if self.output is None or self.lse is None:
            self.output, self.lse = output, lse
            return
        both = torch.logaddexp(self.lse, lse)
        base = torch.where(both > -torch.inf, both, torch.zeros_like(both))
        old, new = (self.lse - base).exp().unsqueeze(-1), (lse - base).exp().unsqueeze(-1)
        self.output, self.lse = self.output * old + output * new, both

    def found(self) -> tuple[torch.Tensor, torch.Tensor]:
        """Output and log-sum-exp; there is a part."""
        assert self.output is not None and self.lse is not None
        return self.output, self.lse


def block_attention(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    visible: Callable[[torch.Tensor, torch.Tensor], torch.Tensor] | None,
    scale: float,
    causal: bool = True,
    capped: Callable[[torch.Tensor], torch.Tensor] = lambda logits: logits,
) -> tuple[torch.Tensor, torch.Tensor]:
    """query [B, Hq, q, d], key and value [B, Hkv, N, d] -> output [B, Hq, q, d] and log-sum-exp [B, Hq, q] in FP32.
    causal: the queries are the last rows of the keys, and visible(rows, columns) is a further mask [B or 1, q, N] of a
    block; otherwise they see all keys. capped: changes logits."""
    batch, heads, tokens, d = query.shape
    kv_heads, held, outputs, sums = key.shape[1], key.shape[2], [], []
    query, device = query.view(batch, kv_heads, -1, tokens, d), query.device
    for first in range(0, tokens, QUERY_BLOCK):
        last = min(first + QUERY_BLOCK, tokens)
        at, until = torch.arange(first, last, device=device), last + held - tokens if causal else held
        q, parts = query[:, :, :, first:last].float().reshape(batch, kv_heads, -1, d), Parts()
        for begin in range(0, until, KEY_BLOCK):
            end = min(begin + KEY_BLOCK, until)
            column, (k, v) = torch.arange(begin, end, device=device), (x[:, :, begin:end].float() for x in (key, value))
            logits = capped(torch.matmul(q, k.transpose(-1, -2)) * scale)
            if causal:
                seen = (column <= at[:, None] + (held - tokens))[None]
                seen = seen if visible is None else seen & visible(at, column)
                logits = logits.unflatten(2, (-1, last - first)).masked_fill(~seen[:, None, None], -torch.inf)
                logits = logits.flatten(2, 3)
            parts.add(logits, v)
        output, lse = parts.found()
        outputs.append(output.view(batch, heads, last - first, d))
        sums.append(lse.view(batch, heads, last - first))
    return torch.cat(outputs, dim=2), torch.cat(sums, dim=2)
