"""Integer tables that the host plans and the device completes: some of their numbers are entries of tables that only
the device knows, such as an engine's block table. All of them travel in one copy and are looked up together."""

import array
import itertools
from collections.abc import Sequence

import torch


def sent(rows: Sequence[Sequence[int]], device: torch.device) -> torch.Tensor:
    """Host integers [len(rows), n] as int64 on the device. The copy is from pageable memory, which is read before the
    call returns."""
    numbers = array.array("q", itertools.chain.from_iterable(rows))  # torch.tensor() takes four times as long for lists
    if not numbers:
        return torch.empty((len(rows), 0), dtype=torch.int64, device=device)
    held = torch.frombuffer(numbers, dtype=torch.int64).view(len(rows), -1)
    return held.to(device, non_blocking=True, copy=True)


class Lookup(int):
    """In a row given to Packed.put(): the entry of the device's tables that will stand there."""


class Packed:
    """tables: int32 tensors [R, C] on the device."""

    def __init__(self, *tables: torch.Tensor) -> None:
        self._held: list[torch.Tensor] = []
        self._begins: dict[int, int] = {}
        at = 0
        for table in tables:
            if id(table) not in self._begins:
                self._begins[id(table)] = at
                self._held.append(table)
                at += table.numel()
        self._numbers: list[int] = []
        self._places: list[int] = []
        self._sources: list[int] = []

    def at(self, table: torch.Tensor, row: int, column: int) -> Lookup:
        """The entry [row, column] of one of the tables."""
        rows, width = table.shape
        if not (0 <= row < rows and 0 <= column < width):
            raise IndexError(f"entry {row}, {column} of a table of {rows} rows and {width} columns")
        return Lookup(self._begins[id(table)] + row * width + column)

    def put(self, rows: Sequence[Sequence[int]], columns: tuple[int, ...] = ()) -> tuple[int, int]:
        """Adds a table of equally long rows, which may have lookups in these columns; its place for take()."""
        begin = len(self._numbers)
        for row in rows:
            for column in columns:
                if type(row[column]) is Lookup:
                    self._places.append(len(self._numbers) + column)
                    self._sources.append(row[column])
            self._numbers.extend(row)
        return begin, len(rows)

    def send(self, device: torch.device) -> "Sent":
        size, count = len(self._numbers), len(self._places)
        moved = sent([self._numbers + self._places + self._sources], device)[0]
        flat = moved[:size].int()
        if count > 0:
            known = torch.cat([table.reshape(-1) for table in self._held])
            flat.index_copy_(0, moved[size : size + count], known.index_select(0, moved[size + count :]))
        return Sent(flat)


class Sent:
    """The tables on the device."""

    def __init__(self, flat: torch.Tensor) -> None:
        self._flat = flat

    def take(self, place: tuple[int, int], width: int) -> torch.Tensor | None:
        """The table [rows, width] int32 of a place; None without rows."""
        begin, rows = place
        return self._flat[begin : begin + rows * width].view(rows, width) if rows > 0 else None
