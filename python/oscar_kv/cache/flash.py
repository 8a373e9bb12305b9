"""Attention of sequences with consecutive rows, with its log-sum-exp. Uses the FlashAttention that an engine hands in,
otherwise torch's, which has no heads above 256 channels. For them and on the CPU, tiles of scores are computed."""

from collections.abc import Callable
from typing import Any

import torch

from ..ops.merge import block_attention
from .chunk_plan import Pass

MOST_CHANNELS = 256  # of a head in torch's FlashAttention


def attention(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    plan: Pass,
    scale: float,
    out: torch.Tensor,
    function: Callable[..., Any] | None = None,
) -> torch.Tensor:
    """query [N, Hq, d], key and value [M, Hkv, d] of the sequences of plan; writes out [N, Hq, d].
    Returns the log-sum-exp [Hq, N] FP32. If the plan is causal, the queries of a sequence are its last rows; otherwise
    they see all rows. function: an engine's flash_attn_varlen_func for this head size; None: torch's."""
    wide = function is None and query.shape[2] > MOST_CHANNELS
    if wide or not query.is_cuda or query.dtype != torch.bfloat16:
        lse = query.new_empty(query.shape[1], query.shape[0], dtype=torch.float32)
        for begin, end, first, last in zip(plan.ends, plan.ends[1:], plan.key_ends, plan.key_ends[1:]):
            if end > begin:
                q, k, v = (x.transpose(0, 1)[None] for x in (query[begin:end], key[first:last], value[first:last]))
                made, sums = block_attention(q, k, v, None, scale, plan.causal)
                out[begin:end], lse[:, begin:end] = made[0].transpose(0, 1), sums[0]
        return lse
    if function is None:
        places = plan.device_ends, plan.device_key_ends, plan.longest, plan.longest_key
        made, lse, *_ = torch.ops.aten._flash_attention_forward(
            query, key, value, *places, 0.0, plan.causal, False, scale=scale
        )
        out.copy_(made)
        return lse
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
        causal=plan.causal,
        return_softmax_lse=True,
    )
    return made[1]
