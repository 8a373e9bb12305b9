"""The arguments of an operator by name. Schemas of torch are flat lists; the reference takes one of these in their
place."""

from collections.abc import Sequence
from typing import Any

import torch


class StepView:
    """Attributes are those of the operator's schema (operators.py). Letters: B sequences, N rows, Hq query heads, Hkv
    KV heads, d head size, P pages and W window pages of a sequence."""

    query: torch.Tensor  # [B, Hq, d], or [B, Hkv, g, d] in the cache basis
    key: torch.Tensor  # [N, Hkv, d]
    value: torch.Tensor
    rows: torch.Tensor  # [N, H, d] keys or values
    pool: torch.Tensor  # [pages, Hkv, bytes] uint8
    table: torch.Tensor  # [B, P] int32
    windows: torch.Tensor  # [window pages, Hkv, 128 d] BF16
    window_table: torch.Tensor  # [B, W] int32
    lengths: torch.Tensor  # [B] int32
    runs: torch.Tensor  # tables.RUN or NEW_RUN
    tiles: torch.Tensor  # tables.TILE
    key_sigma: torch.Tensor  # [Hkv, 4]
    value_sigma: torch.Tensor
    key_clip: torch.Tensor  # [Hkv]
    value_clip: torch.Tensor
    bad: torch.Tensor  # [2]
    key_code: Sequence[int]  # RowCode.numbers()
    value_code: Sequence[int]
    query_matrix: torch.Tensor  # [1 or Hkv, d, d]
    key_matrix: torch.Tensor
    value_matrix: torch.Tensor
    output_matrix: torch.Tensor
    key_mean: torch.Tensor | None
    value_mean: torch.Tensor | None
    phases: torch.Tensor | None  # [positions, d], of means before RoPE
    turned: torch.Tensor | None  # [B, Hkv, g, d]
    frequencies: torch.Tensor  # [d / 2]
    scale: float
    sink: int
    recent: int
    window: int  # sliding window, 0 for none
    search: bool
    want_lse: bool
    output: torch.Tensor  # [B, Hq, d], written
    state: torch.Tensor  # of layer_pass
    key_out: torch.Tensor  # [M, Hkv, d], written
    value_out: torch.Tensor
    # Latent attention: rows are [N, 512], query is [B, Hq, 512], pool [pages, bytes], windows [window pages, 36864]
    rope: torch.Tensor  # [N, 64] BF16
    rope_query: torch.Tensor  # [B, Hq, 64] BF16
    matrix: torch.Tensor  # [512, 512]
    mean: torch.Tensor | None  # [512]
    after: torch.Tensor | None  # [512]
    sigma: torch.Tensor  # [1, 4]
    clip: torch.Tensor  # [1]
    code: Sequence[int]
    sequence: torch.Tensor  # [N] int32
    starts: torch.Tensor  # [R] int32
    firsts: torch.Tensor
    ends: torch.Tensor

    def __init__(self, **given: Any) -> None:
        self.__dict__.update(given)

    @classmethod
    def of(cls, given: dict[str, Any]) -> "StepView":
        """A view with the values of a dictionary, which it keeps."""
        made = cls.__new__(cls)
        made.__dict__ = given
        return made

    def __contains__(self, name: str) -> bool:
        return name in self.__dict__

    def but(self, **changed: Any) -> "StepView":
        """A view with other values of some names, or more names."""
        return StepView.of(self.__dict__ | changed)

    @property
    def codes(self) -> tuple[torch.Tensor, torch.Tensor, Sequence[int], Sequence[int]]:
        """What pages are read with."""
        return self.key_sigma, self.value_sigma, self.key_code, self.value_code
