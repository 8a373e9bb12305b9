#!/usr/bin/env python3
"""Rivals of the decode kernel on the shapes of decode_attention_bench's JSON file, in the same session: LibTorch SDPA (flash, cuDNN;
contiguous cache in BF16) and, where it is installed, FlashInfer with pages of 64 tokens: paged decode with tensor cores on a cache in
BF16 and in FP8 (e4m3), its FA3 kernels and XQA on a cache in FP8.

Same method: L2 flushed before each call, CUDA graph replay, median of 25, microseconds. Writes the measured rows with
their rivals to OUTPUT.

usage: decode_attention_rivals.py OURS.json OUTPUT.json
"""
import datetime
import json
import statistics
import sys

import torch
from torch.nn.attention import SDPBackend, sdpa_kernel

REPEAT, WARM_UP, PAGE = 25, 5, 64
flush = None


def median_us(call):
    times = []
    for i in range(WARM_UP + REPEAT):
        flush.fill_(i)
        begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        begin.record()
        call()
        end.record()
        end.synchronize()
        if i >= WARM_UP:
            times.append(begin.elapsed_time(end) * 1e3)
    return statistics.median(times)


def replay(call):
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        for _ in range(3):
            call()
    torch.cuda.current_stream().wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        call()
    return graph.replay


def sdpa(backend, q, k, v):
    with sdpa_kernel(backend):
        return torch.nn.functional.scaled_dot_product_attention(q, k, v, enable_gqa=True)


def flashinfer_wrapper(flashinfer, q, context, kv_heads, kv_type, q_type=torch.bfloat16, backend="auto"):
    """Paged decode of one layer; kv_type and q_type are dtypes of cache and query."""
    batch, heads, _, d = q.shape
    pages = context // PAGE
    workspace = torch.empty(512 << 20, dtype=torch.uint8, device="cuda")
    wrapper = flashinfer.BatchDecodeWithPagedKVCacheWrapper(workspace, "NHD", use_tensor_cores=True, backend=backend)
    first = torch.arange(batch + 1, dtype=torch.int32, device="cuda") * pages
    table = torch.randperm(batch * pages, device="cuda").to(torch.int32)
    last = torch.full((batch,), PAGE, dtype=torch.int32, device="cuda")
    wrapper.plan(first, table, last, heads, kv_heads, d, PAGE, q_data_type=q_type, kv_data_type=kv_type, o_data_type=torch.bfloat16)
    cache = random_cache((batch * pages, 2, PAGE, kv_heads, d), kv_type)
    query = q[:, :, 0].contiguous().to(q_type)
    return lambda: wrapper.run(query, cache)


def random_cache(shape, dtype):
    """Rows in pieces: a cache in FP8 needs no BF16 copy of the whole."""
    cache = torch.empty(shape, device="cuda", dtype=dtype)
    for piece in cache.split(4096):
        piece.copy_(torch.randn(piece.shape, device="cuda", dtype=torch.bfloat16))
    return cache


def flashinfer_xqa(flashinfer, q, context, kv_heads):
    """The same by XQA, the kernel that FlashInfer picks for FP8 caches on Hopper."""
    batch, _, _, d = q.shape
    pages = context // PAGE
    cache = random_cache((batch * pages, 2, kv_heads, PAGE, d), torch.float8_e4m3fn)
    workspace = torch.zeros(512 << 20, dtype=torch.uint8, device="cuda")
    table = torch.randperm(batch * pages, device="cuda").to(torch.int32).view(batch, pages)
    lengths = torch.full((batch,), context, dtype=torch.int32, device="cuda")
    query = q[:, :, 0].contiguous()
    return lambda: flashinfer.decode.trtllm_batch_decode_with_kv_cache(query, cache, workspace, table, lengths, context, bmm1_scale=d**-0.5,
                                                                       backend="xqa")


FP8 = torch.float8_e4m3fn
FLASHINFER = {
    "flashinfer": lambda *of: flashinfer_wrapper(*of, torch.bfloat16),
    "flashinfer_fp8": lambda *of: flashinfer_wrapper(*of, FP8),
    "flashinfer_fa3_fp8": lambda *of: flashinfer_wrapper(*of, FP8, FP8, "fa3"),
    "flashinfer_xqa_fp8": flashinfer_xqa,
}
refused = set()  # not built for one shape: not tried for the next, which would take as long


def measure(shape, flashinfer):
    batch, context, heads, kv_heads, d = shape
    result = {}
    q = torch.randn(batch, heads, 1, d, device="cuda", dtype=torch.bfloat16)
    k = torch.randn(batch, kv_heads, context, d, device="cuda", dtype=torch.bfloat16)
    v = torch.randn_like(k)
    for name, backend in (("sdpa_flash", SDPBackend.FLASH_ATTENTION), ("sdpa_cudnn", SDPBackend.CUDNN_ATTENTION)):
        try:
            result[name] = round(median_us(replay(lambda: sdpa(backend, q, k, v))), 1)
        except RuntimeError as error:  # a backend that does not serve the shape
            print(f"{shape} {name}: {str(error)[:100]}", file=sys.stderr)
            result[name] = None
    del k, v
    for name, make in FLASHINFER.items():
        result[name] = None
        if flashinfer is None or name in refused:
            continue
        try:
            result[name] = round(median_us(replay(make(flashinfer, q, context, kv_heads))), 1)
        except Exception as error:  # a dtype, group or GPU that it does not build
            print(f"{shape} {name}: {str(error)[:300]}", file=sys.stderr)
            refused.add(name)
        torch.cuda.empty_cache()
    return result


def read_bandwidth():
    x = torch.ones(1 << 30, dtype=torch.int64, device="cuda")
    return round(x.numel() * 8 / median_us(x.sum) / 1e6, 2)


def main():
    if len(sys.argv) != 3:
        sys.exit(__doc__)
    global flush
    flush = torch.empty(256 << 20, dtype=torch.uint8, device="cuda")
    try:
        import flashinfer
    except ImportError as error:
        print(f"FlashInfer is not measured: {error}", file=sys.stderr)
        flashinfer = None
    with open(sys.argv[1], encoding="utf-8") as file:
        rows = json.load(file)
    known = {}
    for row in rows:
        shape = tuple(row[x] for x in ("batch", "context", "q_heads", "kv_heads", "head_dim"))
        if shape not in known:
            known[shape] = measure(shape, flashinfer)
            torch.cuda.empty_cache()
            print(shape, known[shape], file=sys.stderr, flush=True)
        row["rivals_us"] = known[shape]
    document = {
        "date": datetime.date.today().isoformat(),
        "command": "build/bench/decode_attention_bench --json OURS.json; "
                   "python3 tests/bench/decode_attention_rivals.py OURS.json decode_attention.json",
        "versions": {"torch": torch.__version__, "flashinfer": flashinfer.__version__ if flashinfer else None},
        "read_bandwidth_tb_per_s": read_bandwidth(),
        "results": rows,
    }
    with open(sys.argv[2], "w", encoding="utf-8") as file:
        json.dump(document, file, indent=1)
        file.write("\n")


if __name__ == "__main__":
    main()
