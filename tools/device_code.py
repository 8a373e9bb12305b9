#!/usr/bin/env python3
"""Prints for which GPUs a shared object holds CUDA code: sm_80 is machine code, sm_90a is machine code for that GPU only, and
compute_90 is PTX, which drivers of newer GPUs translate. With a list of CMake after the file, fails unless each of its fat
binaries holds exactly this code.

    tools/device_code.py build/oscar_kv/liboscar_kv_cuda.so "80-real;90a-real"
    tools/device_code.py build-wheel/oscar_kv/liboscar_kv_cuda.so release

`release` stands for the list of cmake/OscarCuda.cmake. Needs no CUDA."""
import pathlib
import re
import struct
import sys

MAGIC = struct.pack("<IHH", 0xBA55ED50, 1, 16)  # of a fat binary: magic, version, size of its header
PTX, EXACT = 1, 1 << 20                         # kind of an entry; flag of code that only one GPU runs


def fat_binaries(content):
    """The names of the code in each fat binary of a file, as nvcc's linker lays it out (and cuobjdump reads it)."""
    found, at = [], content.find(MAGIC)
    while at >= 0:
        entry = at + 16
        end, names = entry + struct.unpack_from("<Q", content, at + 8)[0], set()
        while entry < end:
            kind, _, header, size = struct.unpack_from("<HHIQ", content, entry)
            number, = struct.unpack_from("<I", content, entry + 28)
            flags, = struct.unpack_from("<Q", content, entry + 40)
            names.add(f"{'compute' if kind == PTX else 'sm'}_{number}{'a' if flags & EXACT else ''}")
            entry += header + size
        found.append(names)
        at = content.find(MAGIC, end)
    return found


def names_of(architectures):
    """CMake's list "80-real;90-virtual" as names."""
    return {f"{'compute' if item.endswith('-virtual') else 'sm'}_{item.split('-')[0]}" for item in architectures.split(";")}


def release():
    """CMake's list for packages and the wheel."""
    text = (pathlib.Path(__file__).parents[1] / "cmake" / "OscarCuda.cmake").read_text(encoding="utf-8")
    return re.search(r'STREQUAL "release"\)\n +set\(OSCAR_CUDA_ARCHITECTURES "([^"]+)"', text).group(1)


def main():
    path, *listed = sys.argv[1:]
    found = fat_binaries(pathlib.Path(path).read_bytes())
    every = set().union(*found)
    print(*sorted(every))
    if not listed:
        return
    wanted = names_of(release() if listed == ["release"] else listed[0])
    if not found or any(names != wanted for names in found):
        sys.exit(f"error: {path} holds code for {', '.join(sorted(every)) or 'no GPU'}, expected {', '.join(sorted(wanted))}")


if __name__ == "__main__":
    main()
