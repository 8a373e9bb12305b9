#!/usr/bin/env python3
"""BF16 rivals of the decode kernel on the shapes of decode_attention_bench's JSON file, in the same session: LibTorch
SDPA (flash, cuDNN; contiguous cache) and FlashInfer paged decode with tensor cores (page 64), where it is installed.

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


def flashinfer_call(flashinfer, q, context, kv_heads):
    batch, heads, _, d = q.shape
    pages = context // PAGE
    cache = torch.randn(batch * pages, 2, PAGE, kv_heads, d, device="cuda", dtype=torch.bfloat16)
    workspace = torch.empty(512 << 20, dtype=torch.uint8, device="cuda")
    wrapper = flashinfer.BatchDecodeWithPagedKVCacheWrapper(workspace, "NHD", use_tensor_cores=True)
    first = torch.arange(batch + 1, dtype=torch.int32, device="cuda") * pages
    table = torch.randperm(batch * pages, device="cuda").to(torch.int32)
    last = torch.full((batch,), PAGE, dtype=torch.int32, device="cuda")
    wrapper.plan(first, table, last, heads, kv_heads, d, PAGE, q_data_type=torch.bfloat16,
                 kv_data_type=torch.bfloat16)
    query = q[:, :, 0].contiguous()
    return lambda: wrapper.run(query, cache)


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
    result["flashinfer"] = None
    if flashinfer is not None:
        try:
            result["flashinfer"] = round(median_us(replay(flashinfer_call(flashinfer, q, context, kv_heads))), 1)
        except Exception as error:  # a group that it does not build
            print(f"{shape} flashinfer: {str(error)[:100]}", file=sys.stderr)
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
