#!/usr/bin/env python3
"""Rivals of build/bench/latent_decode_bench: what vLLM has for decode attention of latent attention over a cache in BF16, pages of 64
tokens: FlashMLA and FlashAttention 3. A rival that does not load is named with the reason.

Same shapes and method: L2 flushed before each call, CUDA graph replay, median of 25, microseconds. One line of JSON for each.

usage: latent_decode_rivals.py [BATCHxCONTEXTxHEADS ...]
"""
import json
import sys

import torch

import decode_attention_rivals as method

PAGE, RANK, ROPE = 64, 512, 64
SHAPES = [(batch, context, heads) for heads in (16, 128) for batch in (1, 32) for context in (8192, 32768, 100000)]


def flash_mla(q, cache, table, lengths, scale):
    from vllm.v1.attention.ops.flashmla import flash_mla_with_kvcache, get_mla_metadata
    plan = get_mla_metadata(lengths, q.shape[1], 1)[0]
    return lambda: flash_mla_with_kvcache(q=q[:, None], k_cache=cache[:, :, None], block_table=table, cache_seqlens=lengths, head_dim_v=RANK,
                                          tile_scheduler_metadata=plan, softmax_scale=scale, causal=True)


def flash_attention(q, cache, table, lengths, scale):
    from vllm.vllm_flash_attn import flash_attn_varlen_func
    starts = torch.arange(len(q) + 1, dtype=torch.int32, device="cuda")
    latents, rope = cache[..., None, :RANK], cache[..., None, RANK:]
    return lambda: flash_attn_varlen_func(q=q[..., RANK:], k=rope, v=latents, q_v=q[..., :RANK], max_seqlen_q=1, cu_seqlens_q=starts,
                                          max_seqlen_k=int(table.shape[1]) * PAGE, seqused_k=lengths, block_table=table, softmax_scale=scale,
                                          causal=True, fa_version=3)


def measure(name, rival, batch, context, heads):
    pages = -(-context // PAGE)
    cache = torch.randn(batch * pages, PAGE, RANK + ROPE, device="cuda", dtype=torch.bfloat16)
    table = torch.randperm(batch * pages, device="cuda").int().view(batch, pages)
    lengths = torch.full((batch,), context, dtype=torch.int32, device="cuda")
    q = torch.randn(batch, heads, RANK + ROPE, device="cuda", dtype=torch.bfloat16)
    call = rival(q, cache, table, lengths, 0.05)
    call()
    time = method.median_us(method.replay(call))
    read = batch * context * (RANK + ROPE) * 2
    return {"kernel": name, "batch": batch, "context": context, "heads": heads, "us": round(time, 2), "bytes": read,
            "tb_per_s": round(read / time * 1e-6, 3)}


def main():
    shapes = [tuple(map(int, text.split("x"))) for text in sys.argv[1:]] or SHAPES
    method.flush = torch.empty(256 << 20, dtype=torch.uint8, device="cuda")
    for shape in shapes:
        for name, rival in (("FlashMLA BF16", flash_mla), ("FlashAttention 3 MLA BF16", flash_attention)):
            try:
                print(json.dumps(measure(name, rival, *shape)), flush=True)
            except (ImportError, RuntimeError, TypeError, AttributeError, NotImplementedError) as error:
                print(json.dumps({"kernel": name, "shape": shape, "failed": f"{type(error).__name__}: {str(error)[:200]}"}), flush=True)


if __name__ == "__main__":
    main()
