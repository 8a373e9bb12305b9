"""Keys and values that are not finite, while an engine serves. Kernels count such a number as zero and note it on the
device (SlotCache.bad); here the notes are read from time to time, without a wait, and logged."""

import logging
from collections.abc import Callable, Mapping, Sequence

import torch

from ..cache.later import Later
from ..cache.slot_cache import SlotCache
from ..ops.operators import NO_FAULT

EVERY = 256  # passes from one look to the next


class Faults:
    """Of the layers of one worker. caches(): {layer index: its cache}; count: gets the number of rows."""

    def __init__(
        self, caches: Callable[[], Mapping[int, SlotCache]], log: logging.Logger, count: Callable[[int], None]
    ) -> None:
        self._caches, self._log, self._count, self._passes = caches, log, count, 0
        self._read: tuple[list[SlotCache], Later] | None = None

    def passed(self) -> None:
        """Called once a forward pass, outside graphs. Logs what an earlier look found."""
        self._passes += 1
        if self._read is not None:
            layers, notes = self._read
            if notes.ready:
                self._read = None
                self._report(layers, notes.tolist())
        elif self._passes % EVERY == 0 and self._caches():
            layers = list(self._caches().values())
            if layers[0].bad.is_cuda and torch.cuda.is_current_stream_capturing():
                return
            self._read = layers, Later(torch.stack([kv.bad for kv in layers]))

    def _report(self, layers: Sequence[SlotCache], notes: list[list[int]]) -> None:
        found = []
        for kv, sides in zip(layers, notes):
            for side, note in zip(("key", "value"), sides):
                if note != NO_FAULT:
                    found.append(f"layer {kv.code.layer.layer}, {side}: KV head {note % kv.code.layer.kv_heads}")
                    kv.bad.fill_(NO_FAULT)
        if found:
            self._count(len(found))
            more = f" and {len(found) - 1} more" if len(found) > 1 else ""
            self._log.error(
                "oscar-kv: a NaN or an infinity came from the model in the last %d passes (%s%s); the "
                "cache holds a zero in its place, and answers may be wrong",
                EVERY,
                found[0],
                more,
            )
