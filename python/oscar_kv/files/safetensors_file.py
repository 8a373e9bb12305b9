"""Tensors of a safetensors file: u64 little-endian header length, JSON header, data. Every number of the header is
checked before use, so a damaged file gives an error."""

import dataclasses
from typing import Any

import torch

from .errors import InputError, quoted
from .foreign_files import FileName, RegularFile
from .strict_json import parse_json

# Bits of an element.
BITS = {
    "BOOL": 8,
    "U8": 8,
    "I8": 8,
    "U16": 16,
    "I16": 16,
    "U32": 32,
    "I32": 32,
    "U64": 64,
    "I64": 64,
    "F16": 16,
    "BF16": 16,
    "F32": 32,
    "F64": 64,
    "F8_E4M3": 8,
    "F8_E5M2": 8,
    "F8_E8M0": 8,
    "F4": 4,
    "F6_E2M3": 6,
    "F6_E3M2": 6,
    "F8_E4M3FNUZ": 8,
    "F8_E5M2FNUZ": 8,
    "C64": 64,
}
MOST_HEADER = 100_000_000  # the limit of the reference reader
MOST_RANK = 32


@dataclasses.dataclass(frozen=True)
class Entry:
    dtype: str
    shape: tuple[int, ...]
    begin: int  # bytes from the start of the file
    end: int

    def shape_text(self) -> str:
        return "[" + ", ".join(map(str, self.shape)) + "]"


def _elements(shape: list[int]) -> int | None:
    """The number of elements; None if it exceeds 62 bits."""
    count = 1
    for extent in shape:
        count *= extent
        if count >= 1 << 62:
            return 0 if 0 in shape else None
    return count


class SafetensorsFile:
    """file: an already opened RegularFile, so that the data read is the data hashed."""

    def __init__(self, path: FileName, file: RegularFile | None = None) -> None:
        self._file = RegularFile(path) if file is None else file
        self.path, self.identity = self._file.path, self._file.identity
        if self._file.size < 8:
            raise InputError(f"{self.path}: has {self._file.size} bytes, too few for a safetensors file")
        self.entries = self._read_header(self._file.size)

    def _read_header(self, size: int) -> dict[str, Entry]:
        length = int.from_bytes(self._file.read(0, 8), "little")
        if length > MOST_HEADER or 8 + length > size:
            raise InputError(
                f"{self.path}: its header of {length} bytes does not fit into the file of {size} bytes; "
                "the file is cut or no safetensors file"
            )
        header = parse_json(self._file.read(8, length), self.path)
        if not isinstance(header, dict):
            raise InputError(f"{self.path}: its header is no JSON object")
        entries = {}
        for name, fact in header.items():
            if name == "__metadata__":
                if not isinstance(fact, dict) or not all(isinstance(text, str) for text in fact.values()):
                    raise InputError(f"{self.path}: __metadata__ is no object of texts")
                continue
            entries[name] = self._entry(name, fact, 8 + length, size)
        covered = 8 + length
        for entry in sorted(entries.values(), key=lambda e: (e.begin, e.end)):
            if entry.begin != covered:
                raise InputError(f"{self.path}: the tensors overlap or leave gaps; copy the file again")
            covered = entry.end
        if covered != size:
            raise InputError(f"{self.path}: has {size} bytes, its header describes {covered}; copy the file again")
        return entries

    def _entry(self, name: str, fact: Any, start: int, size: int) -> Entry:
        def bad(what: str) -> InputError:
            return InputError(f"{self.path}: the tensor {quoted(name)} has {what}")

        if not isinstance(fact, dict) or fact.keys() != {"dtype", "shape", "data_offsets"}:
            raise bad("not exactly the members dtype, shape and data_offsets")
        dtype, shape, offsets = fact["dtype"], fact["shape"], fact["data_offsets"]
        if not isinstance(dtype, str) or dtype not in BITS:
            raise bad(f"the dtype {quoted(dtype)}, expected one of {', '.join(BITS)}")
        for numbers in (shape, offsets):
            if not isinstance(numbers, list) or not all(type(n) is int and 0 <= n < 1 << 62 for n in numbers):
                raise bad("a shape or offsets that are no lists of numbers")
        if len(shape) > MOST_RANK:
            raise bad(f"more than {MOST_RANK} extents")
        elements = _elements(shape)
        if elements is None or len(offsets) != 2 or 8 * (offsets[1] - offsets[0]) != elements * BITS[dtype]:
            raise bad("offsets that do not fit its shape")
        if start + offsets[1] > size:
            raise bad("data beyond the end of the file; the file is cut")
        return Entry(dtype, tuple(shape), start + offsets[0], start + offsets[1])

    def bytes_of(self, name: str, begin: int = 0, count: int | None = None) -> bytes:
        """`count` bytes of a tensor starting at `begin`, by default all."""
        entry = self.entries[name]
        held = entry.end - entry.begin
        return self._file.read(entry.begin + begin, min(held - begin, held if count is None else count))

    def float32(self, name: str) -> torch.Tensor:
        """A copy of an F32 tensor."""
        entry = self.entries[name]
        if entry.begin == entry.end:
            return torch.empty(entry.shape)
        return torch.frombuffer(bytearray(self.bytes_of(name)), dtype=torch.float32).reshape(entry.shape)
