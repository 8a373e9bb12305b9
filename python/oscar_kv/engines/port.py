"""What a serving engine and this package owe each other. An adapter is a folder here with a `plugin` (the engine's
entry point), a `serving` (its settings as `Settings`, what it cannot serve) and a `backend` (each batch to a SlotTable,
or a PrefixTable with `shares`, one for all layers that share block tables; each layer's rows to a SlotKV).

| what | owner | rule |
|---|---|---|
| pages | engine | It allocates [blocks, Hkv, 64, cell bytes], and gives a request a block for each 64 tokens. |
| windows | this package | BF16, of a fixed number of requests. They exist before the engine measures its free memory. |
| tables | engine | Its block tables and slots come with each batch. SlotTable copies them to addresses that stay. |
| graphs | engine | What a graph reads, rows() writes before its replay. SlotKV.forward() waits for nothing. |

A request stays in its slot. With `shares` it may begin with blocks of others, once these are written."""

import dataclasses
import pathlib
import typing


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
