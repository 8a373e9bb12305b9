"""The operators of the cache on plain tensors, registered with torch: the names, arguments and shapes that CUDA kernels take
over by registering themselves for that device (kernels/ of the toolchain has the same operations on raw pointers). The
torch reference (reference.py) serves every device that has none.

Codes of a side come as RowCode.numbers(); pool [pages, Hkv, bytes] uint8 holds pages as page_layout.py describes them.
Fakes give shapes without data, for torch.compile and export."""
import torch

from . import reference
from .codec import code_of
from .page_layout import PAGE_TOKENS


@torch.library.custom_op("oscar_kv::write_rows", mutates_args=("pool",))
def write_rows(pool: torch.Tensor, page: torch.Tensor, slot: torch.Tensor, key_codes: torch.Tensor, key_params: torch.Tensor,
               value_codes: torch.Tensor, value_params: torch.Tensor, key: list[int], value: list[int]) -> None:
    """Codes [N, Hkv, d] and parameters [N, Hkv, bytes] of rows to token slot [N] of page page [N]."""
    pages = reference.page_layout(tuple(key), tuple(value), pool.device)
    reference.write_rows(pool, pages, page, slot, (key_codes, key_params), (value_codes, value_params))


@write_rows.register_fake
def _(pool, page, slot, key_codes, key_params, value_codes, value_params, key, value):
    return None


@torch.library.custom_op("oscar_kv::dequantize_pages", mutates_args=())
def dequantize_pages(pool: torch.Tensor, table: torch.Tensor, key_sigma: torch.Tensor, value_sigma: torch.Tensor, key: list[int],
                     value: list[int]) -> tuple[torch.Tensor, torch.Tensor]:
    """Pages table [B, P] as FP32 rows in the basis of the cache: keys, values [B, Hkv, 64 P, d]. sigma: [Hkv, 4]."""
    return reference.dequantize_pages(pool, table, key_sigma, value_sigma, tuple(key), tuple(value))


@dequantize_pages.register_fake
def _(pool, table, key_sigma, value_sigma, key, value):
    shape = (table.shape[0], pool.shape[1], table.shape[1] * PAGE_TOKENS)
    return tuple(pool.new_empty((*shape, code_of(side).head_dim), dtype=torch.float32) for side in (key, value))


@torch.library.custom_op("oscar_kv::decode_attention", mutates_args=())
def decode_attention(query: torch.Tensor, positions: torch.Tensor, pool: torch.Tensor, table: torch.Tensor,
                     window_key: torch.Tensor, window_value: torch.Tensor, lengths: torch.Tensor, ends: torch.Tensor,
                     key_sigma: torch.Tensor, value_sigma: torch.Tensor, shift: torch.Tensor | None,
                     turned: torch.Tensor | None, frequencies: torch.Tensor | None, attention_factor: float, scale: float,
                     sink: int, window: int, key: list[int], value: list[int]) -> tuple[torch.Tensor, torch.Tensor]:
    """Softmax attention over the three tiers, in the basis of the cache.

    query [B, Hkv, R, d] FP32 of tokens at positions [B, R]; table [B, P]; windows [B, sink + ring, Hkv, d] BF16; lengths,
    ends [B]: tokens held, and the first that is no code; shift [B, Hkv, R]: added to every dot product; turned [B, Hkv, R,
    d] and frequencies [d/2]: phase logits of rotated means; window: sliding window, 0 for none. Returns output [B, Hkv, R,
    d] and log-sum-exp [B, Hkv, R], FP32; -inf where nothing is visible."""
    return reference.decode_attention(query, positions, pool, table, window_key, window_value, lengths, ends, key_sigma,
                                      value_sigma, shift, turned, frequencies, attention_factor, scale, sink, window,
                                      tuple(key), tuple(value))


@decode_attention.register_fake
def _(query, positions, pool, table, window_key, window_value, lengths, ends, key_sigma, value_sigma, shift, turned,
      frequencies, attention_factor, scale, sink, window, key, value):
    return torch.empty_like(query), query.new_empty(query.shape[:-1])
