"""The cache of one layer of latent attention in a serving engine: as slot_kv.SlotKV, with the operators of
ops/latent_operators.py. Queries are those of absorbed attention, so outputs are sums of latents."""

from typing import Any

import torch

from ..files.errors import InputError
from ..format.bundle import Bundle
from ..format.latent_layout import CHANNELS, ROPE_CHANNELS, ROW, WINDOW_ELEMENTS, LatentPages
from ..format.manifest import Layer, side_codec
from ..format.page_layout import PAGE_TOKENS
from ..format.windows import Policy, ring_pages
from ..ops import latent_operators as latent
from ..ops import operators
from .layer_code import OperatorCode
from .rows import StepRows
from .slot_cache import SlotCache
from .step_flush import StepFlush
from .tiers import Held


def latent_unsupported(rank: int, rope: int, uniform: bool) -> str | None:
    """Why no kernel serves latents of `rank` channels beside `rope` after RoPE, or None. uniform: the codes' layout."""
    if (rank, rope) != (CHANNELS, ROPE_CHANNELS):
        return f"the kernels have latents of {CHANNELS} channels and {ROPE_CHANNELS} after RoPE, not {rank} and {rope}"
    return "the kernels have layout blocks for latents, not uniform; fit with --method waterfill" if uniform else None


class LatentCode(OperatorCode):
    """Transform, codec and pages of a layer on one device. Row vectors: x' = (x - mean) forward, q' = q query, and o =
    o' output + mean = (o' + after) output."""

    def __init__(self, bundle: Bundle, layer: Layer, device: torch.device | str = "cpu") -> None:
        super().__init__(bundle, layer, device, ROW)
        reason = latent_unsupported(layer.head_dim, bundle.rope_dim, layer.key.widths is None)
        if reason is not None:
            raise InputError(f"{bundle.path}: layer {layer.layer} cannot be served: {reason}")
        key = layer.key
        self.codec = side_codec(layer, False, bundle.encoder, bundle.group).to(device)
        self.pages = LatentPages(self.codec.code)
        self.mean = None if key.mean is None else key.mean[0].to(device).contiguous()
        self.forward, self.output = (
            latent.kernel_matrix(matrix[0].to(device).contiguous()) for matrix in (key.forward, layer.value.back(False))
        )
        self.after = None if key.mean is None else (key.mean[0] @ key.forward[0]).to(device)
        self.clip = torch.tensor(self.codec.clip, dtype=torch.float32, device=device)

    def own(self) -> dict[str, Any]:
        return dict(sigma=self.codec.sigma, clip=self.clip, code=self.codec.code.numbers())

    def absorb(self, w_uk: torch.Tensor, w_uv: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """A model's matrices of absorbed attention for queries and sums in the cache basis. w_uk [H, P, 512]: queries
        to latent queries; w_uv [H, 512, V]: sums of latents to outputs."""
        query, output = (
            matrix[0].to(w_uk.device) for matrix in (self.layer.key.back(True), self.layer.value.back(False))
        )
        return (w_uk.float() @ query).to(w_uk.dtype), (output @ w_uv.float()).to(w_uv.dtype)


class LatentKV(SlotCache):
    """slots, most_new: as in SlotTable; heads: query heads on this GPU; kept: sinks of other requests, as in
    prefix_table.PrefixTable; space: the workspace of steps, which layers share as they run one after another. None:
    made here."""

    def __init__(
        self,
        code: LatentCode,
        slots: int,
        heads: int,
        most_new: int = 1,
        kept: int = 0,
        space: torch.Tensor | None = None,
    ) -> None:
        if code.device.type == "cuda" and code.without_kernels is not None:
            raise InputError(f"layer {code.layer.layer} cannot be served: {code.without_kernels}")
        policy = Policy(code.sink, code.recent, ring_pages(code.recent, most_new))
        pages = (slots + 1) * (policy.sink_pages + policy.ring_pages) + kept * policy.sink_pages
        windows = torch.zeros((pages, WINDOW_ELEMENTS), dtype=torch.bfloat16, device=code.device)
        super().__init__(code, heads, policy, windows)
        self._alone: StepFlush | None = None
        if space is None:
            size = latent.latent_workspace_bytes(self.bad, slots * most_new, heads)
            space = torch.empty(size, dtype=torch.uint8, device=code.device)
        self.space = space

    def pool(self, blocks: torch.Tensor) -> torch.Tensor:
        """Views the engine's memory [blocks, 64, bytes of a token] as pages."""
        expected = self.code.pages.bytes
        if blocks.dim() != 3 or blocks.shape[1] * blocks.shape[2] != expected or not blocks.is_contiguous():
            raise InputError(
                f"layer {self.code.layer.layer}: the engine's cache is {list(blocks.shape)} with strides "
                f"{list(blocks.stride())}, expected contiguous blocks of {PAGE_TOKENS} tokens and {expected} bytes"
            )
        return blocks.view(torch.uint8).view(len(blocks), expected)

    def describe(self, pool: torch.Tensor) -> torch.Tensor:
        sides = torch.zeros((1, operators.SIDE_BYTES), dtype=torch.uint8)
        self.code.call(latent.describe_latent, side=sides[0], pool=pool, windows=self.windows, bad=self.bad)
        return sides

    def flush_alone(self, held: Held) -> None:
        if self.code.without_kernels is not None:
            self.code.call(latent.latent_flush, bad=self.bad, **vars(held))
            return
        if self._alone is None or self._alone.pools[0].data_ptr() != held.pool.data_ptr():
            self._alone = StepFlush({0: self}, {0: held.pool})
        self._alone.run(held)

    def attend_step(
        self,
        pool: torch.Tensor,
        steps: StepRows,
        query: torch.Tensor,
        rope_query: torch.Tensor,
        rows: torch.Tensor,
        rope: torch.Tensor,
        scale: float,
    ) -> torch.Tensor:
        """The first tokens, those of steps, enter their windows and attend: query [S, H, 512] in the cache basis and
        rope_query [S, H, 64], rows [N, 512] and rope [N, 64] of the model. Returns sums of latents [S, H, 512] in the
        cache basis, BF16, to which the mean is added: absorb() has the matrices for both. flush() follows."""
        held = dict(window_table=steps.window_table, windows=self.windows, lengths=steps.lengths)
        count, code = len(steps.lengths), self.code
        code.call(
            latent.latent_append, rows=rows[:count], rope=rope[:count], mean=code.mean, matrix=code.forward, **held
        )
        return code.call(
            latent.latent_decode,
            query=query[:count],
            rope_query=rope_query[:count],
            pool=pool,
            table=steps.table,
            after=code.after,
            workspace=self.space,
            scale=float(scale),
            **held,
        )

    def enter(self, pool: torch.Tensor, runs: torch.Tensor, rows: torch.Tensor, rope: torch.Tensor) -> None:
        """New rows of prompts, as given by runs (tables.NEW_RUN)."""
        code = self.code
        code.call(
            latent.latent_new,
            pool=pool,
            windows=self.windows,
            rows=rows,
            rope=rope,
            runs=runs,
            mean=code.mean,
            matrix=code.forward,
            bad=self.bad,
        )

    def past(self, pool: torch.Tensor, **of: torch.Tensor) -> None:
        """Stored tokens as rows of the model. of: further arguments of latent_operators.latent_past."""
        code = self.code
        code.call(latent.latent_past, pool=pool, windows=self.windows, mean=code.mean, matrix=code.output, **of)
