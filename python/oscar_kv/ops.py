"""What the cache calls, and the one place where kernels replace the torch reference: CUDA operators, once they are part of
the package, are chosen here by the device of the pool. All take the cache's own tensors (pool [pages, Hkv, bytes],
windows, page table, lengths), as the kernels in kernels/ of the toolchain do."""
from . import reference


def write_rows(pool, side, page, slot, codes, params):
    """Codes and parameters of rows into their places in pages."""
    reference.write_rows(pool, side, page, slot, codes, params)


def dequantize_pages(cache, begin, end):
    """Pages [begin, end) of every sequence as FP32 rows in the basis of the cache: keys, values [B, Hkv, T, d]."""
    return reference.dequantize_pages(cache, begin, end)


def decode_attention(cache, query, scale, new, window):
    """PagedKV.attend."""
    return reference.decode_attention(cache, query, scale, new, window)
