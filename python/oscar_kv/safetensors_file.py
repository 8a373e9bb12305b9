"""Tensors of a safetensors file: u64 little-endian header length, JSON header, data. Every number of the header is
checked before it is used, so that a damaged file ends in a sentence."""
import dataclasses
import math
import mmap
import pathlib

import torch

from .errors import InputError, quoted
from .strict_json import parse_json

SIZES = {"BOOL": 1, "U8": 1, "I8": 1, "U16": 2, "I16": 2, "U32": 4, "I32": 4, "U64": 8, "I64": 8, "F16": 2, "BF16": 2,
         "F32": 4, "F64": 8, "F8_E4M3": 1, "F8_E5M2": 1}
MOST_HEADER = 100 << 20


@dataclasses.dataclass(frozen=True)
class Entry:
    dtype: str
    shape: tuple
    begin: int  # bytes from the start of the file
    end: int

    def shape_text(self):
        return "[" + ", ".join(map(str, self.shape)) + "]"


class SafetensorsFile:
    def __init__(self, path):
        self.path = pathlib.Path(path)
        try:
            with open(self.path, "rb") as file:
                size = self.path.stat().st_size
                if size < 8:
                    raise InputError(f"{self.path}: has {size} bytes, too few for a safetensors file")
                self._data = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
        except OSError as error:
            raise InputError(f"{self.path}: cannot be read ({error.strerror})") from None
        self.entries = self._read_header(size)

    def _read_header(self, size):
        length = int.from_bytes(self._data[:8], "little")
        if length > MOST_HEADER or 8 + length > size:
            raise InputError(f"{self.path}: its header of {length} bytes does not fit into the file of {size} bytes; "
                             "the file is cut or no safetensors file")
        header = parse_json(self._data[8:8 + length], self.path)
        if not isinstance(header, dict):
            raise InputError(f"{self.path}: its header is no JSON object")
        entries = {}
        for name, fact in header.items():
            if name == "__metadata__":
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

    def _entry(self, name, fact, start, size):
        def bad(what):
            return InputError(f"{self.path}: the tensor {quoted(name)} has {what}")

        if not isinstance(fact, dict) or fact.get("dtype") not in SIZES:
            raise bad("no known dtype")
        shape, offsets = fact.get("shape"), fact.get("data_offsets")
        for numbers in (shape, offsets):
            if not isinstance(numbers, list) or not all(type(n) is int and 0 <= n < 1 << 62 for n in numbers):
                raise bad("a shape or offsets that are no lists of numbers")
        if len(offsets) != 2 or offsets[1] - offsets[0] != math.prod(shape) * SIZES[fact["dtype"]]:
            raise bad("offsets that do not fit its shape")
        if start + offsets[1] > size:
            raise bad("data beyond the end of the file; the file is cut")
        return Entry(fact["dtype"], tuple(shape), start + offsets[0], start + offsets[1])

    def bytes_of(self, name):
        entry = self.entries[name]
        return memoryview(self._data)[entry.begin:entry.end]

    def float32(self, name):
        """A copy of an F32 tensor."""
        entry = self.entries[name]
        if entry.begin == entry.end:
            return torch.empty(entry.shape)
        return torch.frombuffer(bytearray(self.bytes_of(name)), dtype=torch.float32).reshape(entry.shape)
