"""LoRA adapters in vLLM. A worker loads one at the start (--lora-modules), when a client asks for it, or with the first
request that names it, always by one method, which this module wraps: vLLM has no hook for it. The tensors that were
loaded are the truth; an adapter's configuration may name a pattern or modules that the model lacks."""
import functools
from typing import Any

from ...files.errors import InputError
from ...format.bundle import adapter_refusal
from ..names import VLLM_BACKEND

MARK = "_oscar_adapters"  # of the wrapped method


def install() -> None:
    """Wraps vLLM's worker manager once. Models without the 2-bit cache load adapters as before."""
    from vllm.lora.worker_manager import WorkerLoRAManager
    load = WorkerLoRAManager._load_adapter
    if hasattr(load, MARK):
        return

    @functools.wraps(load)
    def _load_adapter(self: Any, lora_request: Any) -> Any:
        found = load(self, lora_request)
        reason = adapter_refusal(lora_request.lora_name, found.loras)
        backends = (getattr(one, "attn_backend", None) for one in self._adapter_manager.model.modules())
        if reason and any(one is not None and one.get_name() == VLLM_BACKEND for one in backends):
            raise InputError(reason)
        return found

    setattr(_load_adapter, MARK, None)
    WorkerLoRAManager._load_adapter = _load_adapter
