"""Attention features beyond plain softmax over earlier tokens: windows, chunks, soft caps, learned sink logits.
lib/attention of the toolchain computes the same."""

import dataclasses

import torch


@dataclasses.dataclass(frozen=True, eq=False)
class Rule:
    """The rule of one layer. A logit is <query, key> scale."""

    window: int = 0  # tokens that a query sees, including its own; 0: all
    chunk: int = 0  # positions [0, chunk), [chunk, 2 chunk), ...: a query sees only its own chunk; 0: all
    cap: float = 0.0  # logits x become cap tanh(x / cap); 0: unchanged
    # [Hq] a logit per query head, added to the softmax denominator without a value
    sinks: torch.Tensor | None = None

    @property
    def hides(self) -> bool:
        """Whether queries see only part of the earlier tokens."""
        return bool(self.window or self.chunk)

    @property
    def sums_differ(self) -> bool:
        """Whether SDPA cannot compute it with any mask."""
        return bool(self.cap) or self.sinks is not None

    def first(self, positions: torch.Tensor) -> torch.Tensor:
        """The first position that queries at `positions` see; may be negative."""
        first = positions - (self.window - 1) if self.window else torch.zeros_like(positions)
        if self.chunk:
            first = torch.maximum(first, torch.div(positions, self.chunk, rounding_mode="floor") * self.chunk)
        return first

    def capped(self, logits: torch.Tensor) -> torch.Tensor:
        return self.cap * torch.tanh(logits / self.cap) if self.cap else logits

    def with_sinks(self, output: torch.Tensor, lse: torch.Tensor) -> torch.Tensor:
        """Adds the sink to the softmax of output [B, Hq, T, d] with log-sum-exp [B, Hq, T]. 0 for queries that saw
        nothing."""
        if self.sinks is None:
            return output
        sinks = self.sinks.detach().to(lse.device, torch.float32)
        return output * torch.sigmoid(lse - sinks[:, None]).unsqueeze(-1)


ALL = Rule()
