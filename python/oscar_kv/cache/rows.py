"""One forward pass of a serving engine, as its layers take it."""

import dataclasses

import torch

from ..format.windows import Policy
from .chunk_plan import Chunk, ChunkWork
from .layer_pass import Tables
from .step_flush import StepFlush


@dataclasses.dataclass
class StepRows:
    """S tokens of R requests."""

    tokens: slice | torch.Tensor  # their places among the batch's tokens; [S] int64
    lengths: torch.Tensor  # [S] int32 tokens of the request up to this one; 0: padding
    table: torch.Tensor  # [S, P] int32
    window_table: torch.Tensor  # [S, window pages of a slot] int32
    after: tuple[torch.Tensor, ...]  # for each new token of a request: [R] int32 lengths up to it; 0: it has none here


@dataclasses.dataclass
class Rows:
    """One forward pass over R requests (rows), some of them padding. The tensors belong to SlotTable, so that a
    captured graph finds the next batch at the same addresses."""

    lengths: torch.Tensor  # [R] int32 tokens, including new ones; 0: padding
    table: torch.Tensor  # [R, P] int32 blocks
    window_table: torch.Tensor  # [R, window pages of a slot] int32
    steps: StepRows | None = None  # of requests with few new tokens
    chunks: tuple[Chunk, ...] = ()  # of the others
    # Window pages [F] and their sources [F] int64, for SlotCache.restore() of all layers before the pass.
    sinks: tuple[torch.Tensor, torch.Tensor] | None = None
    flush: StepFlush | None = None  # of the layers; None: each layer flushes itself
    # of work() and tables(), by policy and room, made by the first layer that needs it
    _works: dict[tuple[Policy, int], ChunkWork] = dataclasses.field(default_factory=dict, init=False)
    _tables: dict[tuple[Policy, int], Tables | None] = dataclasses.field(default_factory=dict, init=False)

    @property
    def only_steps(self) -> bool:
        """Whether every token of the batch is one of steps, in order."""
        return not self.chunks and self.steps is not None and isinstance(self.steps.tokens, slice)

    def work(self, policy: Policy, room: int) -> ChunkWork:
        """The work on chunks, shared by all layers of one policy."""
        if (policy, room) not in self._works:
            self._works[policy, room] = ChunkWork(policy, self.chunks, room, self.table, self.window_table)
        return self._works[policy, room]

    def tables(self, policy: Policy, room: int, most: int) -> Tables | None:
        """What layer_pass.LayerPass takes of this pass. None: its tokens are in another order, or more than `most` of
        them are in steps."""
        if (policy, room) not in self._tables:
            steps, work = self.steps, self.work(policy, room) if self.chunks else None
            count = 0 if steps is None else steps.lengths.shape[0]
            fits = (work is None or isinstance(work.tokens, slice)) and (
                steps is None or count <= most and isinstance(steps.tokens, slice) and not steps.tokens.start
            )
            stored = (steps.table, steps.window_table, steps.lengths) if steps and count else (None, None, None)
            self._tables[policy, room] = (*stored, None if work is None else work.new) if fits else None
        return self._tables[policy, room]
