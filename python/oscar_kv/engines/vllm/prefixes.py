"""Prefix caching in vLLM: which blocks of other requests a request may begin with. vLLM's own backends can read any
cached block; the 2-bit cache cannot, for three reasons.

Blocks of this step. vLLM offers a block as soon as the step that will write it is planned, because its backends write
before they attend. The 2-bit cache attends first, so a request that would read such a block waits for the next step.

The recent window. Only its own request has it in BF16. So a request computes its last tokens itself, whatever is cached
(computed_tokens), and its answer begins with a complete window.

The sink. Its BF16 tokens are kept for a number of ended requests. A prefix whose sink may be gone is not offered: read
as codes, a sink ruins every token after it.

vLLM has no hook for this, so this module replaces methods of one scheduler's own objects, and wraps the scheduler's
constructor, which knows the cache type."""
import collections
import functools
from collections.abc import Callable
from typing import Any

from ...cache.overlay_table import computed_tokens, spare_entries
from ...format.windows import sink_pages
from ..names import CACHE_DTYPE
from .gauges import facts

MARK = "_oscar_prefixes"  # of the scheduler's wrapped constructor
LATE = 3  # steps that a worker may be after the scheduler


class Sinks:
    """First blocks of requests whose sinks the workers still have in BF16, by what the scheduler knows. kept: sinks
    that OverlayTable keeps at least, beside those of running requests; it gives up the one that ended first."""

    def __init__(self, kept: int) -> None:
        self.kept, self.step = kept, 0
        self._used: collections.OrderedDict[int, int] = collections.OrderedDict()  # {block: step}, the latest last
        self._running: collections.Counter[int] = collections.Counter()
        self._first: dict[str, int] = {}  # of running requests

    def begin(self, request_id: str, block: int) -> None:
        if request_id not in self._first:
            self._first[request_id] = block
            self._running[block] += 1
            self._use(block)

    def end(self, request_id: str) -> None:
        block = self._first.pop(request_id, None)
        if block is not None:
            self._running -= collections.Counter([block])
            self._use(block)

    def _use(self, block: int) -> None:
        self._used.pop(block, None)
        self._used[block] = self.step
        while len(self._used) > 2 * self.kept + 64:
            self._used.popitem(last=False)

    def held(self, block: int) -> bool:
        """Whether a worker surely has the sink: too few others were used since."""
        if self._running[block] > 0 or block not in self._used:
            return block in self._used
        since, later = self._used[block] - LATE, 0
        for step in reversed(self._used.values()):
            if step < since or later > self.kept:
                break
            later += 1
        return later - 1 < self.kept


class Prefixes:
    """What one scheduler offers of one group of layers. windows: sink and recent window of the bundle; most_new: tokens
    of a request in a decode step."""

    def __init__(self, coordinator: Any, group: int, windows: tuple[int, int], slots: int, most_new: int) -> None:
        self.manager, self.pool, self.group = coordinator.single_type_managers[group], coordinator.block_pool, group
        self.sink, self.own = windows[0], computed_tokens(windows[1], most_new)
        self.sinks = Sinks(spare_entries(slots) // max(1, sink_pages(self.sink)))
        self.written: set[int] = set()  # blocks that this step writes and offers
        for owner, name in ((self.manager, "cache_blocks"), (self.manager, "get_num_blocks_to_allocate"),
                            (self.manager, "new_step_starts"), (self.manager, "pop_blocks_for_free"),
                            (coordinator, "find_longest_cache_hit")):
            setattr(owner, name, functools.partial(getattr(self, name), getattr(owner, name)))

    def new_step_starts(self, original: Callable[..., Any]) -> None:
        original()
        self.sinks.step += 1
        self.written.clear()

    def cache_blocks(self, original: Callable[..., Any], request: Any, *given: Any, **named: Any) -> None:
        manager, name = self.manager, request.request_id
        first = manager.num_cached_block.get(name, 0)
        original(request, *given, **named)
        blocks, until = manager.req_to_blocks[name], manager.num_cached_block.get(name, 0)
        if until > first:
            self.written.update(block.block_id for block in blocks[first:until])
        if blocks:
            self.sinks.begin(name, blocks[0].block_id)

    def pop_blocks_for_free(self, original: Callable[..., Any], request_id: str) -> Any:
        self.sinks.end(request_id)
        return original(request_id)

    def get_num_blocks_to_allocate(self, original: Callable[..., int], request_id: str, num_tokens: int,
                                   new_computed_blocks: Any, *given: Any, **named: Any) -> int:
        if new_computed_blocks and any(block.block_id in self.written for block in new_computed_blocks):
            return self.pool.num_gpu_blocks + 1  # more than there are: the scheduler tries again in the next step
        return original(request_id, num_tokens, new_computed_blocks, *given, **named)

    def find_longest_cache_hit(self, original: Callable[..., Any], block_hashes: Any, max_cache_hit_length: int) -> Any:
        """max_cache_hit_length: vLLM's, which is one less than the request has tokens."""
        most = max_cache_hit_length + 1 - self.own
        found = original(block_hashes, most if most >= self.sink else 0)
        blocks = found[0][self.group]
        if not blocks or (len(blocks) * self.manager.block_size >= self.sink and self.sinks.held(blocks[0].block_id)):
            return found
        self.pool.evict_blocks({blocks[0].block_id})  # or it would hide the copy that the request will make
        return original(block_hashes, 0)


def watch(scheduler: Any, config: Any) -> None:
    """With a 2-bit cache and prefix caching, this scheduler offers what the cache can read."""
    if config.cache_config.cache_dtype != CACHE_DTYPE or not config.cache_config.enable_prefix_caching:
        return
    from vllm.v1.core.single_type_kv_cache_manager import FullAttentionManager
    speculative, coordinator = config.speculative_config, scheduler.kv_cache_manager.coordinator
    known = facts(config)
    for group, manager in enumerate(coordinator.single_type_managers):
        if isinstance(manager, FullAttentionManager):
            Prefixes(coordinator, group, (known.sink, known.recent), config.scheduler_config.max_num_seqs,
                     1 + (speculative.num_speculative_tokens if speculative is not None else 0))


def install() -> None:
    """Wraps the constructor of vLLM's scheduler once. Engines with other cache types work as before."""
    from vllm.v1.core.sched.scheduler import Scheduler
    make = Scheduler.__init__
    if hasattr(make, MARK):
        return

    @functools.wraps(make)
    def __init__(self: Any, vllm_config: Any, *arguments: Any, **named: Any) -> None:
        make(self, vllm_config, *arguments, **named)
        watch(self, vllm_config)

    setattr(__init__, MARK, None)
    Scheduler.__init__ = __init__
