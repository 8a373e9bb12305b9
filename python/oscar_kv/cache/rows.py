"""One forward pass of a serving engine, as its layers take it."""
import dataclasses

import torch

from ..format.windows import Policy
from .chunk_plan import Chunk, ChunkWork
from .step_flush import StepFlush


@dataclasses.dataclass
class StepRows:
    """S tokens of R requests."""
    tokens: slice | torch.Tensor  # their places among the batch's tokens; [S] int64
    lengths: torch.Tensor       # [S] int32 tokens of the request up to this one; 0: padding
    table: torch.Tensor         # [S, P] int32
    window_table: torch.Tensor  # [S, window pages of a slot] int32
    after: tuple[torch.Tensor, ...]  # for each new token of a request: [R] int32 lengths up to it; 0: it has none here


@dataclasses.dataclass
class Overlay:
    """Data for a pass beside slot_kv.Rows, whose table starts after the sink; addresses are the same in each pass."""
    blocks: torch.Tensor  # [R, P] int32: the full block table
    ring: torch.Tensor    # [R, ring pages] int32: entries of the newest blocks; block j is in column j mod ring pages
    before: torch.Tensor  # [R, sink + ring pages] int32: entries before the new tokens of chunks
    # blocks [F] and entries [F] int64; the entries must first be filled with the codes of these blocks
    fills: tuple[torch.Tensor, torch.Tensor] | None = None


@dataclasses.dataclass
class Rows:
    """One forward pass over R requests (rows), some of them padding. The tensors belong to SlotTable, so that a
    captured graph finds the next batch at the same addresses."""
    lengths: torch.Tensor       # [R] int32 tokens, including new ones; 0: padding
    table: torch.Tensor         # [R, P] int32 blocks
    window_table: torch.Tensor  # [R, window pages of a slot] int32
    steps: StepRows | None = None   # of requests with few new tokens
    chunks: tuple[Chunk, ...] = ()  # of the others
    overlay: Overlay | None = None  # if windows are by block
    flush: StepFlush | None = None  # of the layers; None: each layer flushes itself
    # by policy and room, made by the first layer that needs it
    works: dict[tuple[Policy, int], ChunkWork] = dataclasses.field(default_factory=dict)

    @property
    def only_steps(self) -> bool:
        """Whether every token of the batch is one of steps, in order."""
        return not self.chunks and self.steps is not None and isinstance(self.steps.tokens, slice)

    def work(self, policy: Policy, room: int) -> ChunkWork:
        """The work on chunks, shared by all layers of one policy."""
        if (policy, room) not in self.works:
            overlay = self.overlay
            if overlay is None:
                work = ChunkWork(policy, self.chunks, room, self.table, self.window_table)
            else:
                work = ChunkWork(policy, self.chunks, room, self.table, overlay.before, overlay.blocks,
                                 self.window_table)
            self.works[policy, room] = work
        return self.works[policy, room]


@dataclasses.dataclass
class Batch:
    """New tokens of the requests in a pass, on the host."""
    counts: list[int]  # [R]
    firsts: list[int]  # [R] first token among the batch's tokens
    few: list[int]     # requests that are no chunk; empty if `each` tells all
    each: int | None   # tokens of every request, None if they differ or there are chunks
