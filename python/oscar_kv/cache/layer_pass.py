"""What a pass does in a layer besides attention inside chunks. On a GPU it is one call of an operator. Mixed steps of
engines wait for the host, so arguments that stay the same from pass to pass are described to the operator once."""

import torch

from ..ops import operators
from . import chunk_pass
from .layer_code import LayerCode
from .tiers import Held, Tiers

Tables = tuple[torch.Tensor | None, torch.Tensor | None, torch.Tensor | None, torch.Tensor | None]


class LayerPass:
    """Of one layer, whose tensors must not move. bad: as in operators.new_rows; space: decode_attention.workspace."""

    def __init__(
        self,
        code: LayerCode,
        pool: torch.Tensor,
        windows: torch.Tensor,
        bad: torch.Tensor,
        space: torch.Tensor,
        scale: float,
    ) -> None:
        self.code, self.pool, self.windows, self.bad, self.space, self.scale = code, pool, windows, bad, space, scale
        self.tiers = Tiers(code)
        self.state: torch.Tensor | None = None  # None: torch serves the layer
        if space.is_cuda and code.without_kernels is None:
            terms = code.transform.products("key_forward", "value_forward")
            self.state = torch.zeros(operators.PASS_BYTES, dtype=torch.uint8)
            self._kept = code.view(  # the state has addresses of these
                state=self.state,
                pool=pool,
                windows=windows,
                bad=bad,
                workspace=space,
                key_terms=terms[0],
                value_terms=terms[1],
                phases=code.phases(),
                tile_phases=code.tile_phases(True),
                scale=float(scale),
            )
            operators.run(operators.describe_pass, self._kept)
        self._of = pool.data_ptr(), pool.shape[0], scale

    def of(self, pool: torch.Tensor, scale: float) -> bool:
        """Whether it is of this pool and scale."""
        return self._of == (pool.data_ptr(), pool.shape[0], scale)

    def __call__(
        self, output: torch.Tensor, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, tables: Tables
    ) -> None:
        """tables: table, window_table and lengths of the first rows, which are tokens of decode steps, or None; runs
        of new rows (chunk_plan.ChunkWork.new), or None. query and output [N, Hq, d], key and value [N, Hkv, d] of the
        model, BF16 on a GPU; the output is 0 for a sequence of length 0. The caller flushes."""
        if self.state is not None and not operators.references():
            operators.layer_pass(output, query, key, value, self.state, *tables)
            return
        table, window_table, lengths, runs = tables
        if runs is not None:
            chunk_pass.append(self.code, self.pool, self.windows, runs, key, value, self.bad)
        if table is None or window_table is None or lengths is None:
            return
        rows, held = slice(0, len(lengths)), Held(self.pool, table, self.windows, window_table, lengths)
        of = query[rows], key[rows], value[rows]
        found = self.tiers.step(held, *of, self.scale, self.bad, space=self.space, flushes=False)
        output[rows] = torch.where((lengths > 0)[:, None, None], found, 0)
