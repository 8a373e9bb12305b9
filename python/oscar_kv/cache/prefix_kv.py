"""SlotKV for engines that share blocks among requests (prefix caching). Codes depend only on the token, and all tokens
after the sink have them, so a request can read the blocks of others as codes. Windows stay by slot.

The sink of a request that begins with others' blocks is copied from the kept ones (prefix_table.py), because codes of a
sink ruin every token after it."""

import torch

from ..files.errors import InputError
from ..format.page_layout import PAGE_TOKENS
from .layer_code import LayerCode
from .slot_kv import SlotKV


class PrefixKV(SlotKV):
    """The cache of one layer. Arguments as in SlotKV; kept: sinks of other requests, as in PrefixTable."""

    def __init__(self, code: LayerCode, slots: int, most_tokens: int, group: int, kept: int, most_new: int = 1) -> None:
        if code.sink % PAGE_TOKENS:
            raise InputError(
                f"prefix caching needs a sink of whole blocks of {PAGE_TOKENS} tokens, the bundle has "
                f"{code.sink}; fit with --windows 64,256, or switch prefix caching off"
            )
        self._kept = kept
        super().__init__(code, slots, most_tokens, group, most_new)

    def _new_windows(self, slots: int) -> torch.Tensor:
        return self.tiers.new_windows(slots + 1, self._kept)

    @torch.no_grad()
    def restore(self, places: torch.Tensor, sources: torch.Tensor) -> None:
        """Copies window pages `sources` [F] to `places` [F], both int64."""
        self.windows.index_copy_(0, places, self.windows.index_select(0, sources))
