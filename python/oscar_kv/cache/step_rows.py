"""New tokens of requests that bring few of them: the one token of a decode step, or this token and those that
speculative decoding proposes after it. Each token is one row of the kernels. Rows of a request share its page table
and windows, and each row has its own length. So every token sees what it would see in a step of its own.

The engine may take tokens back: the next pass of a request then starts before their end. Windows have room for
most_new - 1 such tokens. A token is quantized when it leaves the windows of the last new one. By then it is older than
all new tokens, which are fewer than the recent window, so nothing can take it back. Quantizing it again in the next
pass writes the same codes."""
import dataclasses

import torch


def sent(numbers, device):
    """Host integers as int64 on the device. The copy is from pageable memory, which is read before the call returns."""
    return torch.tensor(numbers, dtype=torch.int64).to(device, non_blocking=True)


@dataclasses.dataclass
class StepRows:
    """S tokens of R requests."""
    tokens: object              # their places among the batch's tokens: a slice, or [S] int64
    lengths: torch.Tensor       # [S] int32 tokens of the request up to this one; 0: padding
    table: torch.Tensor         # [S, P] int32
    window_table: torch.Tensor  # [S, window pages of a slot] int32
    after: tuple                # for each new token of a request: [R] int32 lengths up to it; 0: it has none here


class StepTables:
    """Makes StepRows. Its tensors are at fixed addresses if every request has the same number of tokens, as captured
    graphs have them."""

    def __init__(self, slots, window_pages, most_new, device):
        self.slots, self.most_new = slots, most_new
        rows = slots * most_new if most_new > 1 else 0
        whole = dict(dtype=torch.int32, device=device)
        self._lengths, self._windows = torch.zeros(rows, **whole), torch.zeros((rows, window_pages), **whole)
        self._after = torch.zeros((most_new, slots), **whole)
        self._table = None

    def uniform(self, made, count, slot_mapping):
        """Every request of made (slot_kv.Rows) has `count` tokens. slot_mapping: -1 for tokens of padding."""
        requests = made.lengths.shape[0]
        if count == 1:
            return StepRows(slice(0, requests), made.lengths, made.table, made.window_table, (made.lengths,))
        rows, width = requests * count, made.table.shape[1]
        if self._table is None or self._table.shape[1] != width:
            self._table = made.table.new_zeros(self.slots * self.most_new, width)
        back = torch.arange(count - 1, -1, -1, dtype=torch.int32, device=made.lengths.device)
        held = (made.lengths > 0)[:, None] & (slot_mapping[:rows].view(requests, count) >= 0)
        lengths = torch.where(held, made.lengths[:, None] - back, 0)
        for to, of in ((self._table, made.table), (self._windows, made.window_table)):
            to[:rows].view(requests, count, -1).copy_(of[:, None].expand(-1, count, -1))
        self._lengths[:rows] = lengths.flatten()
        self._after[:count, :requests] = lengths.t()
        return StepRows(slice(0, rows), self._lengths[:rows], self._table[:rows], self._windows[:rows],
                        tuple(self._after[i, :requests] for i in range(count)))

    def mixed(self, made, counts, firsts, short):
        """The requests `short` of a batch that has chunks, too. counts, firsts: new tokens of each request, and its
        first one among the batch's tokens. None without such requests."""
        if not short:
            return None
        device, count = made.lengths.device, len(short)
        if all(b == i == firsts[b] and counts[b] == 1 for i, b in enumerate(short)):  # an engine that sorts its batch
            rows = slice(0, count)
            after = torch.nn.functional.pad(made.lengths[rows], (0, len(counts) - count))
            return StepRows(rows, made.lengths[rows], made.table[rows], made.window_table[rows], (after,))
        tokens = [firsts[b] + i for b in short for i in range(counts[b])]
        row, back = sent([[b for b in short for _ in range(counts[b])],
                          [counts[b] - 1 - i for b in short for i in range(counts[b])]], device)
        few = [0] * len(counts)
        for b in short:
            few[b] = counts[b]
        most, few = max(few), sent(few, device)
        held = made.lengths > 0
        after = tuple(torch.where(held & (i < few), made.lengths - (few - 1 - i), 0).int() for i in range(most))
        places = slice(0, len(tokens)) if tokens == list(range(len(tokens))) else sent(tokens, device)
        lengths = torch.where(held[row], made.lengths[row] - back, 0).int()
        return StepRows(places, lengths, made.table[row], made.window_table[row], after)
