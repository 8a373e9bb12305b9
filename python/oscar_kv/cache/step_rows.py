"""New tokens of requests that bring few of them: the one token of a decode step, or this token and those that
speculative decoding proposes after it. Each token is one row of the kernels. Rows of a request share its page table and
windows, and each row has its own length. So every token sees what it would see in a step of its own.

The engine may take tokens back: the next pass of a request then starts before their end. Windows have room for most_new
- 1 such tokens. All new tokens get codes; those that are taken back are written again by the next pass, before anything
reads them as codes, because new tokens are no more than the recent window."""

import torch

from .packed import sent
from .rows import Rows, StepRows


class StepTables:
    """Makes StepRows. Its tensors are at fixed addresses if every request has the same number of tokens, as captured
    graphs have them."""

    def __init__(self, slots: int, window_pages: int, most_new: int, device: torch.device) -> None:
        self.slots, self.most_new = slots, most_new
        rows = slots * most_new if most_new > 1 else 0
        self._lengths = torch.zeros(rows, dtype=torch.int32, device=device)
        self._windows = self._lengths.new_zeros(rows, window_pages)
        self._after = self._lengths.new_zeros(most_new, slots)
        self._table: torch.Tensor | None = None

    def uniform(self, made: Rows, count: int, slot_mapping: torch.Tensor) -> StepRows:
        """Every request of made has `count` tokens. slot_mapping: -1 for tokens of padding."""
        requests = made.lengths.shape[0]
        if count == 1:
            return StepRows(slice(0, requests), made.lengths, made.table, made.window_table, (made.lengths,))
        rows = requests * count
        if self._table is None:
            self._table = made.table.new_zeros(self.slots * self.most_new, made.table.shape[1])
        back = torch.arange(count - 1, -1, -1, dtype=torch.int32, device=made.lengths.device)
        held = (made.lengths > 0)[:, None] & (slot_mapping[:rows].view(requests, count) >= 0)
        lengths = torch.where(held, made.lengths[:, None] - back, 0)
        for to, of in ((self._table, made.table), (self._windows, made.window_table)):
            to[:rows].view(requests, count, -1).copy_(of[:, None].expand(-1, count, -1))
        self._lengths[:rows] = lengths.flatten()
        self._after[:count, :requests] = lengths.t()
        return StepRows(
            slice(0, rows),
            self._lengths[:rows],
            self._table[:rows],
            self._windows[:rows],
            tuple(self._after[i, :requests] for i in range(count)),
        )

    def mixed(self, made: Rows, counts: list[int], firsts: list[int], short: list[int]) -> StepRows | None:
        """The requests `short` of a batch that has chunks, too. counts, firsts: new tokens of each request, and its
        first one among the batch's tokens. None without such requests."""
        if not short:
            return None
        device, count = made.lengths.device, len(short)
        first = list(range(count))
        if short == first == firsts[:count] and counts[:count] == [1] * count:  # an engine that sorts its batch
            rows = slice(0, count)
            single = torch.nn.functional.pad(made.lengths[rows], (0, len(counts) - count))
            return StepRows(rows, made.lengths[rows], made.table[rows], made.window_table[rows], (single,))
        tokens = [firsts[b] + i for b in short for i in range(counts[b])]
        of = [b for b in short for _ in range(counts[b])]
        row, back = sent([of, [counts[b] - 1 - i for b in short for i in range(counts[b])]], device)
        few = sent([[count if b in short else 0 for b, count in enumerate(counts)]], device)[0]
        most = max(counts[b] for b in short)
        held = made.lengths > 0
        after = tuple(torch.where(held & (i < few), made.lengths - (few - 1 - i), 0).int() for i in range(most))
        places = slice(0, len(tokens)) if tokens == list(range(len(tokens))) else sent([tokens], device)[0]
        lengths = torch.where(held[row], made.lengths[row] - back, 0).int()
        return StepRows(places, lengths, made.table[row], made.window_table[row], after)
