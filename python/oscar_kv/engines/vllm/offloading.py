"""KV offloading in vLLM (--kv-offloading-size): blocks go to host memory, and come back with a request that begins with
them. vLLM's OffloadingConnector moves the blocks, which hold codes; this module moves with them what is not in blocks,
the BF16 sink of each prefix (host_sinks.py).

The scheduler gives a sink a place in host memory when a request has computed it, and tells the workers with vLLM's
metadata. A request loads blocks only if the host has their sink. It comes back in the step that first runs the request,
before that step is planned (requests.py), so that it needs no signal of its own."""

import collections
import dataclasses
from typing import Any

import torch
from vllm.distributed.kv_transfer.kv_connector.v1.offloading.common import OffloadingConnectorMetadata
from vllm.distributed.kv_transfer.kv_connector.v1.offloading_connector import OffloadingConnector

from ...cache.host_sinks import HostSinks, Move
from ...files.errors import InputError
from ...format.page_layout import PAGE_TOKENS
from .gauges import facts
from .serving import OFFLOADING_BYTES, SERVING

SHARE = 8  # the sinks have an eighth of vLLM's bytes, beside them


def host_places(config: Any) -> int:
    """Sinks that host memory holds, of the whole model."""
    known = facts(config)
    sink = known.sink * known.bytes_per_token * 16 / known.bits
    return max(1, int(config.kv_transfer_config.kv_connector_extra_config[OFFLOADING_BYTES] / SHARE / max(1, sink)))


class Places:
    """Which sinks host memory holds, by the hash of their first block. The least recently used one goes, but none that
    a request waits for."""

    def __init__(self, count: int) -> None:
        self._free, self._wanted = list(range(count))[::-1], collections.Counter[Any]()
        self._of: collections.OrderedDict[Any, int] = collections.OrderedDict()

    def find(self, key: Any) -> int | None:
        if key in self._of:
            self._of.move_to_end(key)
        return self._of.get(key)

    def add(self, key: Any) -> int | None:
        """A place for a new sink; None: it is there, or there is none."""
        if self.find(key) is not None:
            return None
        if not self._free:
            self.drop(1)
        if not self._free:
            return None
        place = self._of[key] = self._free.pop()
        return place

    def __len__(self) -> int:
        return len(self._of)

    def want(self, key: Any, by: int) -> None:
        self._wanted[key] += by

    def drop(self, most: int) -> None:
        """The sinks that were used longest ago."""
        for key in [key for key in self._of if not self._wanted[key]][:most]:
            self._free.append(self._of.pop(key))


class HostPrefixes:
    """What one scheduler knows of prefixes in host memory. prefixes: prefixes.Prefixes of the same scheduler."""

    def __init__(self, prefixes: Any, places: int) -> None:
        self.prefixes, self.places = prefixes, Places(places)
        self.loading: dict[str, Any] = {}  # {request that loads, or has loaded and did not run: key}
        self._begun: list[tuple[Any, int]] = []  # (key, first block) of this step
        self._coming: list[Move] = []

    def loadable(self, request: Any, computed: int) -> int:
        """Tokens after `computed` that a request may load."""
        most = (request.num_tokens - self.prefixes.own - computed) // PAGE_TOKENS * PAGE_TOKENS
        known = bool(request.block_hashes) and self.places.find(request.block_hashes[0]) is not None
        return max(0, most) if known and self.prefixes.offers else 0

    def waits(self, request: Any, new: int) -> bool:
        """Whether a request that has loaded waits for a step with room for a window, as steps of single tokens need."""
        return request.request_id in self.loading and request.num_computed_tokens > 0 and new < self.prefixes.recent

    def begins(self, request: Any, first: int, loads: bool, whole: bool) -> None:
        """A request has blocks, the first of them `first`. loads: of which some come from the host; whole: it computes
        a whole sink in this step."""
        name = request.request_id
        if loads:
            self.loading[name] = request.block_hashes[0]
            self.places.want(request.block_hashes[0], 1)
        elif whole and request.block_hashes:
            self._begun.append((request.block_hashes[0], first))
        elif name in self.loading:
            if not self.prefixes.sinks.held(first):
                place = self.places.find(self.loading[name])
                assert place is not None  # it is wanted
                self._coming.append((first, place))
                self.prefixes.sinks.begin([first], True)
            self.leaves(name)

    def leaves(self, name: str) -> None:
        key = self.loading.pop(name, None)
        if key is not None:
            self.places.want(key, -1)

    def moves(self) -> dict[str, list[Move]]:
        """Of this step."""
        leaving = []
        for key, block in self._begun:
            if self.prefixes.sinks.held(block) and (place := self.places.add(key)) is not None:
                leaving.append((block, place))
        made = {"leaving": leaving, "coming": self._coming}
        self._begun, self._coming = [], []
        return made


@dataclasses.dataclass
class OscarOffloadingMetadata(OffloadingConnectorMetadata):
    leaving: list[Move] = dataclasses.field(default_factory=list)
    coming: list[Move] = dataclasses.field(default_factory=list)


class OscarOffloadingConnector(OffloadingConnector):
    def __init__(self, vllm_config: Any, role: Any, kv_cache_config: Any) -> None:
        groups = kv_cache_config.kv_cache_groups
        if len(groups) != 1:
            raise InputError(
                f"the model has {len(groups)} groups of layers with blocks of their own, and the 2-bit cache goes to "
                "host memory only with one; leave --kv-offloading-size out"
            )
        super().__init__(vllm_config, role, kv_cache_config)
        self._config = vllm_config
        self._host: Any = None  # HostPrefixes of a scheduler

    # The scheduler's
    def watch(self, prefixes: Any, manager: Any) -> None:
        self._host = prefixes.host = HostPrefixes(prefixes, host_places(self._config))
        free = manager.free

        def freed(request: Any, *given: Any, **named: Any) -> Any:
            prefixes.host.leaves(request.request_id)
            return free(request, *given, **named)

        manager.free = freed

    def _max_loadable_tokens(self, request: Any, num_computed_tokens: int) -> int:
        most, own = (
            super()._max_loadable_tokens(request, num_computed_tokens),
            self._host.loadable(request, num_computed_tokens),
        )
        return own if most is None else min(most, own)

    def get_num_new_matched_tokens(self, request: Any, num_computed_tokens: int) -> tuple[int | None, bool]:
        found, later = super().get_num_new_matched_tokens(request, num_computed_tokens)
        if found and num_computed_tokens + found < self._host.prefixes.sink:
            return 0, False
        return found, later

    def build_connector_meta(self, scheduler_output: Any) -> OscarOffloadingMetadata:
        made = super().build_connector_meta(scheduler_output)
        return OscarOffloadingMetadata(**vars(made), **self._host.moves())

    def reset_cache(self) -> bool | None:
        self._host.places.drop(len(self._host.places))
        return super().reset_cache()

    # A worker's
    def register_kv_caches(self, kv_caches: dict[str, torch.Tensor]) -> None:
        super().register_kv_caches(kv_caches)
        self._serving = vars(self._config.compilation_config)[SERVING]
        self.sinks = HostSinks(self._serving.caches(), host_places(self._config))

    def wait_for_save(self) -> None:
        super().wait_for_save()
        moves = self._connector_metadata.leaving
        if moves:
            self.sinks.leave(self._serving.table, moves)


def come(serving: Any, moves: list[Move]) -> None:
    """In a worker, before a step is planned: its sinks come from the host."""
    from vllm.distributed.kv_transfer import get_kv_transfer_group

    get_kv_transfer_group().sinks.come(serving.table, moves)
