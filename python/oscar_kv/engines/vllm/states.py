"""Models that have states of linear attention beside attention (Qwen3-Next, Qwen3.5) in vLLM. Their model state
prepares attention by a method of its own, which leaves out the slots of the requests (req_idx). So this module wraps
that method and keeps the slots for the metadata builders that it calls."""

import contextvars
from collections.abc import Callable
from typing import Any

from .wraps import wrap_once

# of the batch that is being prepared: request -> slot, as in req_idx
_slots = contextvars.ContextVar("_oscar_slots", default=None)


def slots() -> Any:
    """The slots of the batch that vLLM prepares now, None outside."""
    return _slots.get()


def _prepare_attn(original: Callable[..., Any], self: Any, input_batch: Any, *arguments: Any, **named: Any) -> Any:
    token = _slots.set(input_batch.idx_mapping_np)
    try:
        return original(self, input_batch, *arguments, **named)
    finally:
        _slots.reset(token)


def install() -> None:
    """Wraps vLLM's model state once."""
    from vllm.v1.worker.gpu.model_states.mamba_hybrid import MambaHybridModelState

    wrap_once(MambaHybridModelState, "prepare_attn", _prepare_attn)
