"""What a serving engine and this package owe each other. An adapter is a folder here with a `plugin` (the engine's
entry point), a `serving` (its settings as `Settings`, what it cannot serve) and a `backend` (each batch to a Table,
each layer's rows to a LayerCache).

| what | owner | rule |
|---|---|---|
| pages | engine | It allocates [blocks, Hkv, 64, cell bytes], and gives a request a block for each 64 tokens. |
| windows | this package | BF16, of a fixed number of requests. They exist before the engine measures its free memory. |
| tables | engine | Its block tables and slots come with each batch. Table copies them to addresses that stay. |
| graphs | engine | What a graph reads, Table.rows() writes before its replay. LayerCache.forward() waits for nothing. |

A request stays in its slot. With `shares` it may begin with blocks of others, once these are written."""

import dataclasses
import pathlib
import typing

import torch

if typing.TYPE_CHECKING:
    from ..cache.rows import Rows


@dataclasses.dataclass(frozen=True)
class Settings:
    """One worker of an engine. The options are the engine's names, for messages."""

    text: typing.Any  # transformers' configuration of the decoder
    kv_heads: int  # of the model, of all ranks
    head_size: int
    checkpoint: typing.Callable[[], pathlib.Path]  # its folder, asked only for bundles that know their checkpoint
    slots: int  # concurrent requests
    most_tokens: int  # of a request
    shares: bool  # whether requests share blocks
    length_option: str
    rank_option: str
    no_sharing_option: str
    plain: typing.Callable[[pathlib.Path], typing.Any]  # `text` of the checkpoint in a folder, without overrides
    override_option: str  # with which users change it
    proposed: int = 0  # tokens that speculative decoding proposes to a request
    rank: int = 0  # of tensor parallelism
    ranks: int = 1
    flash: typing.Callable[..., typing.Any] | None = None  # the engine's flash_attn_varlen_func, if it serves this GPU


class Table(typing.Protocol):
    """cache.slot_kv.SlotTable, or PrefixTable with `shares`: one for all layers that share block tables."""

    @property
    def on_cuda(self) -> bool:
        """Whether its tensors are on a GPU."""

    def rows(
        self,
        slots: typing.Any,
        starts: typing.Sequence[int],
        counts: typing.Sequence[int],
        lengths: torch.Tensor,
        table: torch.Tensor,
        slot_mapping: torch.Tensor,
    ) -> "Rows":
        """Row b is the request in slot slots[b] with counts[b] new tokens after starts[b]. slot_mapping -1: padding."""


class LayerCache(typing.Protocol):
    """cache.slot_kv.SlotKV."""

    def pool(self, blocks: torch.Tensor) -> torch.Tensor:
        """The engine's memory of this layer as pages. InputError if it has another shape."""

    def forward(
        self,
        pool: torch.Tensor,
        rows: "Rows",
        query: torch.Tensor,
        key: torch.Tensor | None,
        value: torch.Tensor | None,
        scale: float,
        output: torch.Tensor,
        sinks: torch.Tensor | None = None,
    ) -> None:
        """New tokens, after RoPE, attend and enter the cache. Writes output. Layers that read another's cache pass no
        keys and values."""
