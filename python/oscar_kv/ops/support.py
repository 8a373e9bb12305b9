"""Which caches the CUDA operators support. Unsupported cases use the torch reference; functions return the reason."""
from typing import Any, Protocol

import torch

from ..format.codec import RowCodec, code_unsupported
from ..format.limits import HEAD_SIZES, MOST_GROUP, MOST_WINDOW
from ..format.page_layout import PAGE_TOKENS
from .rule import Rule

MOST_WINDOW_PAGES, TILES_OF_PAGE = MOST_WINDOW // PAGE_TOKENS, 4


class Layer(Protocol):
    """What is asked of cache.paged_kv.LayerCode."""
    key: RowCodec
    value: RowCodec
    without_kernels: str | None
    transform: Any


def codes_unsupported(layer_code: Layer) -> str | None:
    """Why the kernels do not support the codes of a side, or None."""
    return code_unsupported(layer_code.key.code) or code_unsupported(layer_code.value.code)


def step_unsupported(layer_code: Layer, flush: int) -> str | None:
    """Why a step of one token in this layer cannot append and flush with kernels, or None."""
    d = layer_code.key.code.head_dim
    if d not in HEAD_SIZES:
        return f"the append kernel has head sizes 64, 128 and 256, not {d}"
    if flush & (flush - 1):
        return f"kernels flush powers of two, not {flush} tokens"
    return codes_unsupported(layer_code)


def decode_unsupported(layer_code: Layer, flush: int, group: int, window_pages: int) -> str | None:
    """Why the kernel does not support decode attention over this layer, or None. group: query heads per KV head."""
    key, value = layer_code.key.code, layer_code.value.code
    if key.head_dim not in HEAD_SIZES:
        return f"the decode kernel has head sizes 64, 128 and 256, not {key.head_dim}"
    if group > MOST_GROUP:
        return f"the decode kernel has at most {MOST_GROUP} query heads on a KV head, not {group}"
    if key.layout != value.layout:
        return f"the decode kernel reads one layout, not {key.layout} keys and {value.layout} values"
    for side in (key, value):
        if side.layout == "uniform" and (side.group != side.head_dim or side.params != "float16"):
            return "of layout uniform the decode kernel reads one FP16 scale and zero for each head"
    if layer_code.transform.rotated_mean and key.layout != "blocks":
        return f"the decode kernel has no term of keys centered before RoPE in layout {key.layout}"
    if layer_code.transform.rotated_mean and layer_code.transform.phases.inverse.abs().max() > 1:
        return "the decode kernel has no term of keys centered before RoPE with frequencies above one radian a token"
    if flush & (flush - 1):
        return f"kernels flush powers of two, not {flush} tokens"
    if window_pages > MOST_WINDOW_PAGES:
        return f"the decode kernel has windows of at most {MOST_WINDOW_PAGES * PAGE_TOKENS} tokens"
    return None


def chunks_unsupported(layer_code: Layer) -> str | None:
    """Why the chunk kernels do not support this layer, or None."""
    key, value = layer_code.key.code, layer_code.value.code
    if layer_code.without_kernels is not None:
        return layer_code.without_kernels
    if key.head_dim not in HEAD_SIZES:
        return f"the chunk kernels have head sizes 64, 128 and 256, not {key.head_dim}"
    if key.layout != value.layout:
        return f"the chunk kernels read one layout, not {key.layout} keys and {value.layout} values"
    if any(side.layout == "uniform" and (side.group != side.head_dim or side.params != "float16")
           for side in (key, value)):
        return "of layout uniform the chunk kernels read one FP16 scale and zero for each head"
    return codes_unsupported(layer_code)


def rule_unsupported(rule: Rule) -> str | None:
    """Why the decode kernel does not support a rule.Rule, or None. Sink logits are applied with its
    log-sum-exp."""
    if rule.cap:
        return f"the decode kernel has no soft cap of logits (at {rule.cap:g})"
    if rule.chunk:
        return f"the decode kernel has no chunks of the sequence (of {rule.chunk} tokens)"
    return None


def page_queries(table: torch.Tensor, window_table: torch.Tensor) -> int:
    """Number of entries per sequence that decode_attention stores for pages and tiles of 16 tokens with rotated
    means."""
    return table.shape[1] + TILES_OF_PAGE * window_table.shape[1]
