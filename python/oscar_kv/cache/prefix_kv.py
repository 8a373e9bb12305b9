"""SlotKV for engines that share blocks among requests (prefix caching). Every token after the sink is written into its
page when it arrives. Its codes depend only on the token, so they equal the codes that it would get on leaving the
window, and a request can read the blocks of others as codes. Windows stay by slot.

The sink of a request that begins with others' blocks is copied from the kept ones (prefix_table.py), because codes of a
sink ruin every token after it."""
import dataclasses
from collections.abc import Sequence

import torch

from ..files.errors import InputError
from ..format.page_layout import PAGE_TOKENS
from ..format.windows import Policy
from .layer_code import LayerCode
from .slot_kv import SlotKV
from .step_flush import StepFlush
from .tiers import Held, Tiers


class WriteThrough(Tiers):
    """Tiers whose pages hold all tokens after the sink: a new token is coded at once, from its place in the ring."""

    def flushed_at(self) -> tuple[int, int, int]:
        return self.code.sink, 0, 1

    def pages_of(self, tokens: int) -> int:
        return -(-max(0, tokens - self.code.sink) // PAGE_TOKENS)

    def policy(self) -> Policy:
        return dataclasses.replace(super().policy(), write_through=True)


class PrefixKV(SlotKV):
    """The cache of one layer. Arguments as in SlotKV; kept: sinks of other requests, as in PrefixTable."""

    def __init__(self, code: LayerCode, slots: int, most_tokens: int, group: int, kept: int, most_new: int = 1) -> None:
        if code.sink % PAGE_TOKENS:
            raise InputError(f"prefix caching needs a sink of whole blocks of {PAGE_TOKENS} tokens, the bundle has "
                             f"{code.sink}; fit with --windows 64,256, or switch prefix caching off")
        self._kept = kept
        super().__init__(code, slots, most_tokens, group, WriteThrough, most_new)

    def _new_windows(self, slots: int) -> torch.Tensor:
        return self.tiers.new_windows(slots + 1, self._kept)

    @torch.no_grad()
    def restore(self, places: torch.Tensor, sources: torch.Tensor) -> None:
        """Copies window pages `sources` [F] to `places` [F], both int64."""
        self.windows.index_copy_(0, places, self.windows.index_select(0, sources))

    def _flush(self, held: Held, after: Sequence[torch.Tensor], flush: StepFlush | None) -> None:
        """Nothing before the step: the new tokens must be in the windows first."""

    def _flush_after(self, held: Held, after: Sequence[torch.Tensor], flush: StepFlush | None) -> None:
        if flush is None or flush.last is self:
            self._run_flush(held, after, flush)
