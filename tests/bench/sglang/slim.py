"""Shared objects made small for one GPU: zeros, which xz folds up, in place of what the process does not load (symbol tables, debug information)
and of device code that the GPU does not run. Offsets stay as they are, and the driver reads only the code of its own card."""
import re
import struct

CONTAINER = 0xBA55ED50  # of device code, in the section .nv_fatbin
LOADED = 2              # flag of sections that a process loads
# FlashAttention 3: size of a value head, type, whether causal, local, with a soft cap.
FLASH = re.compile(rb"Li(\d+)ENS_(?:10)?(bfloat16|\d*half|\d*float_e4m3)_tEfNS_4arch4Sm90ELb[01]ELb[01]ELb([01])E")


def sections(data):
    """[(name, loaded, offset, size)] of a 64-bit ELF file."""
    table, = struct.unpack_from("<Q", data, 0x28)
    size, count, strings = struct.unpack_from("<HHH", data, 0x3A)
    rows = [struct.unpack_from("<IIQQQQ", data, table + i * size) for i in range(count)]
    names = rows[strings][4]
    return [(bytes(data[names + row[0]:data.index(b"\0", names + row[0])]).decode(), bool(row[2] & LOADED), row[4], row[5])
            for i, row in enumerate(rows) if i != strings and row[1] not in (0, 8)]  # 8: takes no room in the file


def device_code(data, begin, size):
    """[(architecture, offset, size)] of the images in .nv_fatbin."""
    at, end = begin, begin + size
    while at + 16 <= end:
        magic, _, header, length = struct.unpack_from("<IHHQ", data, at)
        if magic != CONTAINER:
            at += 8
            continue
        image, at = at + header, at + header + length
        while image < at:
            head, body = struct.unpack_from("<IQ", data, image + 4)
            yield struct.unpack_from("<I", data, image + 28)[0], image + head, body
            image += head + body


def common_attention(image):
    """Whether an image of FlashAttention 3 serves, without soft caps, heads of 64 or 128 values in BF16 or FP8, or of 256 in BF16 (Gemma).
    Compressed ones, where no name is found, are of other sizes."""
    found = FLASH.findall(image)
    if not found:
        return image[:4] == b"\x7fELF"  # helpers
    return any((size in (b"64", b"128") and b"half" not in kind or (size, kind) == (b"256", b"bfloat16")) and cap == b"0" for size, kind, cap in found)


def slim(data, architecture, wanted=lambda image: True):
    """Zeroes in a bytearray; returns how many bytes."""
    gone = 0

    def zero(offset, size):
        nonlocal gone
        data[offset:offset + size] = bytes(size)
        gone += size
    for name, loaded, offset, size in sections(data):
        if not loaded:
            zero(offset, size)
        elif name == ".nv_fatbin":
            for arch, at, length in list(device_code(data, offset, size)):
                if arch != architecture or not wanted(bytes(data[at:at + length])):
                    zero(at, length)
    return gone
