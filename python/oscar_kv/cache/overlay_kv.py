"""SlotKV with windows by block instead of by request (overlay_table.py), for engines that share blocks among
requests (prefix caching). Every token is written into its page when it arrives. Its codes depend only on the
token, so they equal the codes that it would get on leaving the window. Block j of a request holds its tokens from
64 j on, no matter which request wrote them.

From other requests, a request reads codes, or BF16 tokens if the overlay still has them. Its own new tokens are BF16
until they leave the window, as usual. The sink must consist of complete blocks."""
import dataclasses
from collections.abc import Sequence

import torch

from ..files.errors import InputError
from ..format.page_layout import PAGE_TOKENS
from ..format.window_layout import WindowLayout
from ..format.windows import Policy
from ..ops import operators
from .layer_code import LayerCode
from .overlay_table import blocks_of_window, entries
from .rows import Rows
from .slot_kv import SlotKV
from .step_flush import StepFlush
from .tiers import Held, Tiers


@dataclasses.dataclass
class Written(Held):
    """Held with a table that starts after the sink, plus the tables for writing new tokens."""
    blocks: torch.Tensor  # [B, P] int32, starting with the first block
    ring: torch.Tensor    # [B, ring pages] int32

    def flushed(self) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        return self.lengths, self.blocks, self.ring


class WriteThrough(Tiers):
    """Tiers whose pages hold all tokens. flush_tokens() writes a page as if there were no windows: the newest token
    then leaves at once, from its place in the ring of the newest blocks."""

    def __init__(self, code: LayerCode, most_new: int = 1) -> None:
        super().__init__(code, 1, blocks_of_window(code.recent + most_new - 1))

    def flushed_at(self) -> tuple[int, int, int]:
        return 0, 0, 1

    def policy(self) -> Policy:
        return dataclasses.replace(super().policy(), write_through=True)


class OverlayKV(SlotKV):
    """The cache of one layer. Arguments as in SlotKV; spare: as in OverlayTable."""

    def __init__(self, code: LayerCode, slots: int, most_tokens: int, group: int, spare: int | None = None,
                 most_new: int = 1) -> None:
        if code.sink % PAGE_TOKENS:
            raise InputError(f"prefix caching needs a sink of whole blocks of {PAGE_TOKENS} tokens, the bundle has "
                             f"{code.sink}; fit with --windows 64,256, or switch prefix caching off")
        self._spare, self._entry = spare, WindowLayout(code.layer.head_dim, 0, 1).to(code.device)  # of one block
        self.pages: torch.Tensor | None = None  # the engine's memory, once known
        super().__init__(code, slots, most_tokens, group, WriteThrough(code, most_new), most_new)

    def _new_windows(self, slots: int) -> torch.Tensor:
        count = entries(slots, self.tiers.layout.pages, self._spare) + 1
        shape = (count, self.code.layer.kv_heads, self.tiers.layout.elements)
        return torch.zeros(shape, dtype=torch.bfloat16, device=self.code.device)

    def pool(self, blocks: torch.Tensor) -> torch.Tensor:
        self.pages = pages = super().pool(blocks)
        return pages

    @torch.no_grad()
    def fill(self, blocks: torch.Tensor, entry: torch.Tensor) -> None:
        """Fills entries [F] with the codes of blocks [F], as BF16. InputError before the engine's memory is known."""
        if self.pages is None:
            raise InputError(f"layer {self.code.layer.layer}: blocks of another request are to be read before the "
                             "engine has shown its memory; this release is not one that oscar-kv was written for")
        code = self.code
        runs = operators.page_runs(self.placed(blocks)[None].int(), self.pages.shape[0])
        rows = operators.dequantize_pages(self.pages, runs, code.key.sigma, code.value.sigma, *code.numbers)
        table = entry[:, None].int()
        sequence = torch.arange(len(blocks), device=blocks.device).repeat_interleave(PAGE_TOKENS)
        token = torch.arange(PAGE_TOKENS, device=blocks.device).repeat(len(blocks))
        # Slots without a token may contain any bytes, but data read by kernels must be finite.
        self._entry.write(self.windows, table, sequence, token,
                               *(r.nan_to_num(0, 0, 0).clamp(-3e38, 3e38).bfloat16() for r in rows))

    def _held(self, pool: torch.Tensor, rows: Rows) -> Written:
        overlay = rows.overlay
        assert overlay is not None  # the rows of an OverlayTable
        return Written(pool, rows.table, self.windows, rows.window_table, rows.lengths, overlay.blocks, overlay.ring)

    def _flush(self, held: Held, after: Sequence[torch.Tensor], flush: StepFlush | None) -> None:
        """Before the step, does only the work that must not delay other layers: the new tokens must be in the
        windows first."""

    def _flush_after(self, held: Held, after: Sequence[torch.Tensor], flush: StepFlush | None) -> None:
        if flush is None or flush.last is self:
            self._run_flush(held, after, flush)
