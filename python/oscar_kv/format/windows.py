"""Which tokens of a sequence are BF16 and which are codes, and where the BF16 ones are: lib/layout/cache_windows.h of
the toolchain."""

import dataclasses
from typing import TypeVar

import torch

from .limits import RING_SLACK
from .page_layout import PAGE_TOKENS

Tokens = TypeVar("Tokens", int, torch.Tensor)  # of a sequence, or lengths of many


def quantized_end(tokens: Tokens, sink: int, recent: int) -> Tokens:
    """Tokens [sink, end) of a sequence of `tokens` tokens are read as codes."""
    end = tokens - recent
    return end.clamp(min=sink) if isinstance(end, torch.Tensor) else max(sink, end)


def sink_pages(sink: int) -> int:
    """Window pages for the first tokens of a sequence."""
    return -(-sink // PAGE_TOKENS)


def ring_pages(recent: int, new: int) -> int:
    """Window pages for the last tokens of a sequence, and for as many new ones in a step or to be taken back."""
    return -(-(recent + new + RING_SLACK) // PAGE_TOKENS)


@dataclasses.dataclass(frozen=True)
class Policy:
    """The windows of a layer. Every token after the sink has a code in its page; tokens in the windows are also
    BF16."""

    sink: int
    recent: int
    ring_pages: int

    @property
    def sink_pages(self) -> int:
        return sink_pages(self.sink)

    def quantized_end(self, tokens: Tokens) -> Tokens:
        return quantized_end(tokens, self.sink, self.recent)

    def window_column(self, position: int) -> int:
        """The column in a row of window_table; the slot is position mod 64."""
        if position < self.sink:
            return position // PAGE_TOKENS
        return self.sink_pages + position % (self.ring_pages * PAGE_TOKENS) // PAGE_TOKENS
