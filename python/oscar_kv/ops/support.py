"""Which caches the CUDA operators support. Unsupported cases use the torch reference; functions return the reason."""

from typing import Any, Protocol

from ..format.codec import RowCodec
from ..format.limits import HEAD_SCALE, HEAD_SIZES, MOST_FREQUENCY, MOST_HEAD_SCALE, MOST_WINDOW, ROTATED_MEAN
from ..format.page_layout import PAGE_TOKENS
from .rule import Rule

MOST_WINDOW_PAGES = MOST_WINDOW // PAGE_TOKENS


class Layer(Protocol):
    """What is asked of cache.layer_code.LayerCode."""

    key: RowCodec
    value: RowCodec
    without_kernels: str | None
    transform: Any


def shape_unsupported(head_dim: int, group: int = 1) -> str | None:
    """Why no kernel serves heads of this size, or `group` query heads on a KV head, or None."""
    if head_dim not in HEAD_SIZES:
        return f"the kernels have head sizes {', '.join(map(str, HEAD_SIZES))}, not {head_dim}"
    if group > HEAD_SIZES[head_dim]:
        of = f"{HEAD_SIZES[head_dim]} query heads on a KV head"
        return f"the kernels have at most {of} of {head_dim} channels, not {group}"
    return None


def layout_unsupported(layer_code: Layer) -> str | None:
    """Why the kernels do not read the codes of this layer, or None."""
    key, value = layer_code.key.code, layer_code.value.code
    if key.layout != value.layout:
        return f"the kernels read one layout, not {key.layout} keys and {value.layout} values"
    if key.layout == HEAD_SCALE and key.head_dim > MOST_HEAD_SCALE:
        return f"of layout {key.layout} the kernels read heads of up to {MOST_HEAD_SCALE} channels, not {key.head_dim}"
    if any(
        side.layout == HEAD_SCALE and (side.group != side.head_dim or side.params != "float16") for side in (key, value)
    ):
        return f"of layout {key.layout} the kernels read one FP16 scale and zero for each head"
    return None


def step_unsupported(layer_code: Layer) -> str | None:
    """Why a step of one token in this layer cannot append and flush with kernels, or None."""
    return shape_unsupported(layer_code.key.code.head_dim)


def decode_unsupported(layer_code: Layer, group: int, window_pages: int) -> str | None:
    """Why the kernel does not support decode attention over this layer, or None. group: query heads per KV head."""
    code, transform = layer_code.key.code, layer_code.transform
    reason = shape_unsupported(code.head_dim, group) or layout_unsupported(layer_code)
    if reason is not None:
        return reason
    if transform.rotated_mean and code.layout != ROTATED_MEAN:
        return f"the decode kernel has no term of keys centered before RoPE in layout {code.layout}"
    if transform.rotated_mean and transform.phases.inverse.abs().max() > MOST_FREQUENCY:
        return (
            "the decode kernel has no term of keys centered before RoPE with frequencies above "
            f"{MOST_FREQUENCY} radian a token"
        )
    if window_pages > MOST_WINDOW_PAGES:
        return f"the decode kernel has windows of at most {MOST_WINDOW_PAGES * PAGE_TOKENS} tokens"
    return None


def chunks_unsupported(layer_code: Layer) -> str | None:
    """Why the chunk kernels do not support this layer, or None."""
    head_dim = layer_code.key.code.head_dim
    return layer_code.without_kernels or shape_unsupported(head_dim) or layout_unsupported(layer_code)


def rule_unsupported(rule: Rule) -> str | None:
    """Why the decode kernel does not support a rule.Rule, or None. Sink logits are applied with its
    log-sum-exp."""
    if rule.cap:
        return f"the decode kernel has no soft cap of logits (at {rule.cap:g})"
    if rule.chunk:
        return f"the decode kernel has no chunks of the sequence (of {rule.chunk} tokens)"
    return None


def page_queries(pages: int, window_pages: int) -> int:
    """Number of entries per sequence that decode_attention stores for pages and windows with rotated means."""
    return pages + window_pages + 1
