"""Attention of sequences with consecutive rows, with its log-sum-exp. Uses the FlashAttention that an engine hands in,
otherwise torch's. On the CPU, torch computes it in FP32."""

from collections.abc import Callable, Sequence
from typing import Any, Protocol

import torch

from .merge import Parts

QUERY_BLOCK, KEY_BLOCK = 256, 1024  # scores in memory at a time


class Sequences(Protocol):
    """Where rows of sequences start (cache.chunk_plan.Pass): [sequences + 1] on the host and the device."""

    ends: list[int]
    key_ends: list[int]
    device_ends: torch.Tensor
    device_key_ends: torch.Tensor
    longest: int
    longest_key: int


def _by_torch(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    ends: torch.Tensor,
    key_ends: torch.Tensor,
    longest: int,
    longest_key: int,
    causal: bool,
    scale: float,
    out: torch.Tensor,
) -> torch.Tensor:
    made, lse, *_ = torch.ops.aten._flash_attention_forward(
        query, key, value, ends, key_ends, longest, longest_key, 0.0, causal, False, scale=scale
    )
    out.copy_(made)
    return lse


def _in_fp32(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    ends: Sequence[int],
    key_ends: Sequence[int],
    causal: bool,
    scale: float,
    out: torch.Tensor,
) -> torch.Tensor:
    """Arguments are host lists; causal: queries are the last rows of the keys."""
    heads, kv_heads = query.shape[1], key.shape[1]
    lse = query.new_empty(heads, query.shape[0], dtype=torch.float32)
    for begin, end, first, last in zip(ends, ends[1:], key_ends, key_ends[1:]):
        k, v = (
            x[first:last].float().transpose(0, 1).repeat_interleave(heads // kv_heads, dim=0).unsqueeze(0)
            for x in (key, value)
        )
        for at in range(begin, end, QUERY_BLOCK):
            until, parts = min(at + QUERY_BLOCK, end), Parts()
            q = query[at:until].float().transpose(0, 1).unsqueeze(0)
            seen = torch.arange(at, until, device=q.device)[:, None] - end + last - first if causal else None
            for column in range(0, last - first, KEY_BLOCK):
                logits = torch.matmul(q, k[:, :, column : column + KEY_BLOCK].transpose(-1, -2)) * scale
                if seen is not None:
                    logits.masked_fill_(
                        torch.arange(column, column + logits.shape[-1], device=q.device) > seen, -torch.inf
                    )
                parts.add(logits, v[:, :, column : column + KEY_BLOCK])
            made, made_lse = parts.found()
            out[at:until] = made[0].transpose(0, 1).to(out.dtype)
            lse[:, at:until] = made_lse[0]
    return lse


def attention(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    plan: Sequences,
    causal: bool,
    scale: float,
    out: torch.Tensor,
    function: Callable[..., Any] | None = None,
) -> torch.Tensor:
    """query [N, Hq, d], key and value [M, Hkv, d] of the sequences of plan; writes out [N, Hq, d].
    Returns the log-sum-exp [Hq, N] FP32. causal: the queries of a sequence are its last rows; otherwise they see
    all rows. function: an engine's flash_attn_varlen_func; None: torch's."""
    if not query.is_cuda or query.dtype != torch.bfloat16:
        return _in_fp32(query, key, value, plan.ends, plan.key_ends, causal, scale, out)
    if function is None:
        return _by_torch(
            query,
            key,
            value,
            plan.device_ends,
            plan.device_key_ends,
            plan.longest,
            plan.longest_key,
            causal,
            scale,
            out,
        )
    made = function(
        q=query,
        k=key,
        v=value,
        out=out,
        cu_seqlens_q=plan.device_ends,
        max_seqlen_q=plan.longest,
        cu_seqlens_k=plan.device_key_ends,
        max_seqlen_k=plan.longest_key,
        softmax_scale=scale,
        causal=causal,
        return_softmax_lse=True,
    )
    return made[1]
