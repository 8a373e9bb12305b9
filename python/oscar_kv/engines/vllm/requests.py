"""Which requests are new to a worker. vLLM tells a backend the slots of requests and their tokens, but not when a slot
gets another request, which may begin with blocks of others. So this module wraps the method of vLLM's model runner that
gives slots to requests, preempted ones included, and counts in the Serving of its configuration. It is called before a
step is planned, so sinks come from host memory there (offloading.py)."""

import functools
from collections.abc import Callable
from typing import Any

from .wraps import wrap_once


def _add_requests(serving_name: str, original: Callable[..., Any], self: Any, scheduler_output: Any) -> Any:
    serving = vars(self.vllm_config.compilation_config).get(serving_name)
    if serving is None:
        return original(self, scheduler_output)
    if moves := getattr(getattr(scheduler_output, "kv_connector_metadata", None), "coming", None):
        from . import offloading

        offloading.come(serving, moves)
    slots, names = self.req_states.req_id_to_index, [one.req_id for one in scheduler_output.scheduled_new_reqs]
    before = [slots.get(name) for name in names]  # a session with streaming input comes again, and keeps its slot
    made = original(self, scheduler_output)
    serving.requests.update(slots[name] for name, slot in zip(names, before) if slots[name] != slot)
    return made


def install(serving_name: str) -> None:
    """Wraps vLLM's model runner once. Engines with other cache types work as before. serving_name: of the Serving in a
    compilation configuration."""
    from vllm.v1.worker.gpu.model_runner import GPUModelRunner

    wrap_once(GPUModelRunner, "add_requests", functools.partial(_add_requests, serving_name))
