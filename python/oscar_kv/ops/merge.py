"""Attention over parts of the context that are never in memory together. Each part gives its output and log-sum-exp,
and two parts merge by their weights."""

import torch


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
