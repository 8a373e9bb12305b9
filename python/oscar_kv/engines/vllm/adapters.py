"""LoRA adapters in vLLM. A worker loads one at the start (--lora-modules), when a client asks for it, or with the first
request that names it, always by one method, which this module wraps: vLLM has no hook for it. The tensors that were
loaded are the truth; an adapter's configuration may name a pattern or modules that the model lacks."""

from collections.abc import Callable
from typing import Any

from ...files.errors import InputError
from ...format.bundle import adapter_refusal
from ..names import VLLM_BACKEND
from .wraps import wrap_once


def _load_adapter(original: Callable[..., Any], self: Any, lora_request: Any) -> Any:
    found = original(self, lora_request)
    reason = adapter_refusal(lora_request.lora_name, found.loras)
    backends = (getattr(one, "attn_backend", None) for one in self._adapter_manager.model.modules())
    if reason and any(one is not None and one.get_name() == VLLM_BACKEND for one in backends):
        raise InputError(reason)
    return found


def install() -> None:
    """Wraps vLLM's worker manager once. Models without the 2-bit cache load adapters as before."""
    from vllm.lora.worker_manager import WorkerLoRAManager

    wrap_once(WorkerLoRAManager, "_load_adapter", _load_adapter)
