"""Prefix caching in vLLM: which blocks of other requests a request may begin with. vLLM's own backends can read any
cached block; the 2-bit cache cannot, for three reasons.

Blocks of this step. vLLM offers a block as soon as the step that will write it is planned, because its backends write
before they attend. The 2-bit cache attends first, so a request that would read such a block waits for the next step.

The recent window. Only its own request has it in BF16. So a request computes its last tokens itself, whatever is cached
(computed_tokens). It waits for a step with room for a window of them, because steps of single tokens read the window.

The sink. Its BF16 tokens are kept for the last requests that began without a prefix. A prefix whose sink may be gone is
not offered: read as codes, a sink ruins every token after it.

vLLM has no hook for this, so this module replaces methods of one scheduler's own objects, and wraps the scheduler's
constructor, which knows the cache type."""

import functools
import logging
from collections.abc import Callable, Iterable
from typing import Any

from ...cache.prefix_table import computed_tokens, kept_sinks
from ...format.page_layout import PAGE_TOKENS
from ...format.windows import sink_pages
from .gauges import facts, ours
from .serving import proposed_tokens
from .wraps import wrap_once

PATIENCE = 16  # steps that a request waits for room, before it begins without a prefix


class Sinks:
    """First blocks of requests, one a group of layers, whose sinks the workers have in BF16, as PrefixTable keeps them:
    of the last `kept` that began. Those of one step count as the first of them, because workers may differ in order."""

    def __init__(self, kept: int) -> None:
        self.kept, self.begun, self._at_step = kept, 0, 0
        self._number: dict[int, int] = {}  # {block: sinks before its step}

    def new_step(self) -> None:
        self._at_step = self.begun
        if len(self._number) > 4 * self.kept + 1024:
            self._number = {block: n for block, n in self._number.items() if self.begun - n <= self.kept}

    def begin(self, blocks: Iterable[int], whole: bool) -> None:
        """A request begins with these blocks. whole: its first step has the whole sink, which is then kept."""
        for block in blocks:
            self._number.pop(block, None)
            if whole:
                self._number[block] = self._at_step
        self.begun += whole

    def held(self, block: int) -> bool:
        return block in self._number and self.begun - self._number[block] <= self.kept


class Prefixes:
    """What one scheduler offers of all groups of layers that keep all tokens. windows: sink and recent window of the
    bundle; most_new: tokens of a request in a decode step; room: tokens for a prompt in a step of a busy server."""

    def __init__(self, manager: Any, windows: tuple[int, int], slots: int, most_new: int, room: int) -> None:
        from vllm.v1.core.single_type_kv_cache_manager import FullAttentionManager

        coordinator, self.pool = manager.coordinator, manager.coordinator.block_pool
        self.groups = {
            i: held for i, held in enumerate(coordinator.single_type_managers) if isinstance(held, FullAttentionManager)
        }
        (self.sink, self.recent), self.own = windows, computed_tokens(windows[1], most_new)
        self.offers = room >= self.recent
        self.sinks = Sinks(kept_sinks(slots, sink_pages(self.sink)))
        self.written: set[int] = set()  # blocks that this step writes and offers
        self.waited: dict[str, int] = {}  # {request: steps}
        self.host: Any = None  # offloading.HostPrefixes, if vLLM moves blocks to host memory
        if coordinator.retention_interval == 0 and not coordinator.kv_cache_config.has_mamba_layers:
            coordinator.retention_interval = None  # or windowed layers are kept only where prompts end, and none begins
        for owner, name in (
            (manager, "allocate_slots"),
            (manager, "new_step_starts"),
            (coordinator, "find_longest_cache_hit"),
        ):
            setattr(owner, name, functools.partial(getattr(self, name), getattr(owner, name)))

    def new_step_starts(self, original: Callable[[], Any]) -> None:
        original()
        self.sinks.new_step()
        self.written.clear()

    def allocate_slots(
        self,
        original: Callable[..., Any],
        request: Any,
        num_new_tokens: int,
        num_new_computed_tokens: int = 0,
        new_computed_blocks: Any = None,
        *given: Any,
        **named: Any,
    ) -> Any:
        """None: vLLM tries again in the next step."""
        has = request.num_computed_tokens
        if self.host is not None and self.host.waits(request, num_new_tokens):
            return None
        if has > 0 and num_new_computed_tokens == 0 and has % PAGE_TOKENS + num_new_tokens < PAGE_TOKENS:
            # most calls, one for every request of every step: no block is complete after it that was not before
            return original(request, num_new_tokens, num_new_computed_tokens, new_computed_blocks, *given, **named)
        name, hit = request.request_id, num_new_computed_tokens > 0
        begins = has == 0
        found = {i: new_computed_blocks.blocks[i] if hit else [] for i in self.groups}
        if any(block.block_id in self.written for blocks in found.values() for block in blocks):
            return None
        loads = named.get("num_external_computed_tokens", 0) > 0
        if hit and num_new_tokens < self.recent and not loads:
            waited = self.waited[name] = self.waited.get(name, 0) + 1
            request.skip_reading_prefix_cache = request.skip_reading_prefix_cache or waited > PATIENCE
            return None
        before = {i: max(held.num_cached_block.get(name, 0), len(found[i])) for i, held in self.groups.items()}
        made = original(request, num_new_tokens, num_new_computed_tokens, new_computed_blocks, *given, **named)
        if made is None:
            return None
        for i, held in self.groups.items():
            cached = held.req_to_blocks[name][before[i] : held.num_cached_block.get(name, 0)]
            self.written.update(block.block_id for block in cached)
        if begins:
            self.waited.pop(name, None)
        if self.host is None and not (begins and not hit):
            return made
        firsts = [block.block_id for held in self.groups.values() for block in held.req_to_blocks[name][:1]]
        if begins and not hit:
            self.sinks.begin(firsts, num_new_tokens >= self.sink)
        if self.host is not None:
            self.host.begins(request, firsts[0], loads, begins and not hit and num_new_tokens >= self.sink)
        return made

    def find_longest_cache_hit(self, original: Callable[..., Any], block_hashes: Any, max_cache_hit_length: int) -> Any:
        """max_cache_hit_length: vLLM's, which is one less than the request has tokens."""
        most = max_cache_hit_length + 1 - self.own
        found = original(block_hashes, most if most >= self.sink and self.offers else 0)
        lost = {
            blocks[0].block_id
            for i, held in self.groups.items()
            if (blocks := found[0][i])
            and not (len(blocks) * held.block_size >= self.sink and self.sinks.held(blocks[0].block_id))
        }
        if not lost:
            return found
        self.pool.evict_blocks(lost)  # or they would hide the copies that the request will make
        return original(block_hashes, 0)


def prompt_room(scheduling: Any, most_new: int) -> int:
    """Tokens of a prompt that a step has room for, while all other requests decode."""
    room = scheduling.max_num_batched_tokens - 2 * most_new * (scheduling.max_num_seqs - 1)
    longest = getattr(scheduling, "long_prefill_token_threshold", 0)
    return min(room, longest) if longest > 0 else room


def watch(scheduler: Any, config: Any) -> None:
    """With a 2-bit cache and prefix caching, this scheduler offers what the cache can read."""
    if not ours(config) or not config.cache_config.enable_prefix_caching:
        return
    scheduling, known, most_new = config.scheduler_config, facts(config), 1 + proposed_tokens(config)
    room = prompt_room(scheduling, most_new)
    if room < known.recent:
        logging.getLogger("vllm.oscar_kv").warning(
            "oscar-kv: no request begins with another one's tokens, because a step of a busy server has room for %d "
            "tokens of a prompt, and the recent window has %d; pass a larger --max-num-batched-tokens or a smaller "
            "--max-num-seqs",
            max(0, room),
            known.recent,
        )
    made = Prefixes(scheduler.kv_cache_manager, (known.sink, known.recent), scheduling.max_num_seqs, most_new, room)
    if (watched := getattr(getattr(scheduler, "connector", None), "watch", None)) is not None:
        watched(made, scheduler.kv_cache_manager)


def _constructor(original: Callable[..., None], self: Any, vllm_config: Any, *arguments: Any, **named: Any) -> None:
    original(self, vllm_config, *arguments, **named)
    watch(self, vllm_config)


def install() -> None:
    """Wraps the constructor of vLLM's scheduler once. Engines with other cache types work as before."""
    from vllm.v1.core.sched.scheduler import Scheduler

    wrap_once(Scheduler, "__init__", _constructor)
