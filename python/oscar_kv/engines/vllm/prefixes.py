"""Prefix caching in vLLM: a request does not read blocks that another request writes in the same step.

vLLM's scheduler offers a block to other requests as soon as the step that will write it is planned, because its own
backends write a layer's new keys and values before any token of the step attends. The 2-bit cache attends first:
new tokens push others out of the windows (slot_kv.SlotKV.forward). So a request that would read such a block waits
for the next step, as with vLLM's own cache of Mamba states. vLLM has no hook for this in its manager of full
attention, so this module wraps three of its methods, and the scheduler's constructor, which knows the cache type."""
import functools
from typing import Any

from ..names import CACHE_DTYPE

MARK = "_oscar_written"  # of a manager: the blocks that this step writes and offers


def managers() -> Any:
    from vllm.v1.core.single_type_kv_cache_manager import FullAttentionManager
    return FullAttentionManager


def defer(scheduler: Any, vllm_config: Any) -> None:
    """With a 2-bit cache, requests of this scheduler wait for blocks that are written in the same step."""
    if vllm_config.cache_config.cache_dtype != CACHE_DTYPE:
        return
    for one in scheduler.kv_cache_manager.coordinator.single_type_managers:
        if isinstance(one, managers()):
            setattr(one, MARK, set())


def install() -> None:
    """Wraps vLLM's scheduler and its manager once. Engines with other cache types work as before."""
    from vllm.v1.core.sched.scheduler import Scheduler
    if hasattr(Scheduler.__init__, MARK):
        return
    make, manager = Scheduler.__init__, managers()
    cache, count, begin = manager.cache_blocks, manager.get_num_blocks_to_allocate, manager.new_step_starts

    @functools.wraps(make)
    def __init__(self: Any, vllm_config: Any, *arguments: Any, **named: Any) -> None:
        make(self, vllm_config, *arguments, **named)
        defer(self, vllm_config)

    @functools.wraps(cache)
    def cache_blocks(self: Any, request: Any, *arguments: Any, **named: Any) -> None:
        first = self.num_cached_block.get(request.request_id, 0)
        cache(self, request, *arguments, **named)
        if hasattr(self, MARK):
            until = self.num_cached_block.get(request.request_id, 0)
            self._oscar_written.update(block.block_id for block in self.req_to_blocks[request.request_id][first:until])

    @functools.wraps(count)
    def get_num_blocks_to_allocate(self: Any, request_id: str, num_tokens: int, new_computed_blocks: Any,
                                   *arguments: Any, **named: Any) -> int:
        if any(block.block_id in getattr(self, MARK, ()) for block in new_computed_blocks):
            return self.block_pool.num_gpu_blocks + 1  # more than there are: the scheduler tries again in the next step
        return count(self, request_id, num_tokens, new_computed_blocks, *arguments, **named)

    @functools.wraps(begin)
    def new_step_starts(self: Any) -> None:
        begin(self)
        getattr(self, MARK, set()).clear()

    setattr(__init__, MARK, None)
    Scheduler.__init__ = __init__
    manager.cache_blocks, manager.new_step_starts = cache_blocks, new_step_starts
    manager.get_num_blocks_to_allocate = get_num_blocks_to_allocate
