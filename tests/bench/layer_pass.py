"""layer_pass.py [ROWS ...]: what an engine's pass costs in a layer on this GPU, without an engine: microseconds, as a mean over 12 layers that were
recorded as one CUDA graph (the least of eight times). Keys, values and queries are random, each sequence has its own pages and windows, and the layers
have the widths that oscar-fit chose (served_rows.py), without their mean before RoPE.

ROWS: SEQUENCESxTOKENS for a decode step, or TOKENS for the rows of a prompt that enter the cache (60x460 60x760 60x2300 16x700 128 512 2048 8192).
60x2300r: lengths of half to one and a half times as many tokens, as in traffic.
Environment: GEOMETRY=1.5b (Qwen2.5-Coder-1.5B's in place of Qwen3-8B's), PROFILE=1 (kernels of a layer by their time), PAGES (columns of the
page tables, 128: as many as the longest request that a server takes may need), BF16=1 (decode
steps of vLLM's BF16 cache beside them: FlashAttention 3 and the write of the new rows)."""
import json
import os
import pathlib
import random
import sys

import torch

HERE = pathlib.Path(__file__).resolve().parent
sys.path[:0] = [str(HERE), str(HERE / "vllm")]
os.environ.setdefault("LAYERS", "12")
import graph_time  # noqa: E402
import served_rows  # noqa: E402
from oscar_kv.cache.layer_code import LayerCode  # noqa: E402
from oscar_kv.cache.layer_pass import LayerPass  # noqa: E402
from oscar_kv.cache.paged_kv import PagedKV, PageTable  # noqa: E402
from oscar_kv.cache.shared import Shared  # noqa: E402
from oscar_kv.cache.slot_kv import MOST_ITEMS, WIDER_TABLE  # noqa: E402
from oscar_kv.cache.transform import Phases  # noqa: E402
from oscar_kv.ops.support import page_queries  # noqa: E402
from traffic import profiled  # noqa: E402

MOST, PAGES = 8192, int(os.environ.get("PAGES", 128))
HEADS, D = served_rows.KV_HEADS, served_rows.HEAD_DIM
GROUP = served_rows.CONFIG["num_attention_heads"] // HEADS


def lengths_of(sequences, tokens, ragged):
    if not ragged:
        return [tokens] * sequences
    lengths = [tokens // 2 + tokens * i // max(1, sequences - 1) for i in range(sequences)]
    return random.Random(1).sample(lengths, sequences)


def random_rows(count, heads):
    return torch.randn(count, heads, D, device="cuda").bfloat16()


class Layer:
    """One layer with `tokens` of a sequence in its cache."""

    def __init__(self, code, tokens):
        self.code, self.kv = code, PagedKV(code, PageTable(1))
        code.transform.reserve(MOST + 64, "cuda")
        self.kv.append(random_rows(tokens, HEADS), random_rows(tokens, HEADS), [tokens])

    def call(self, pool, windows, rows, window_pages, tables):
        queries = page_queries(PAGES + WIDER_TABLE, window_pages)
        space = self.code.shared.space(torch.device("cuda"), D, GROUP, min(rows, MOST_ITEMS // HEADS), HEADS, queries)
        query = random_rows(rows, HEADS * GROUP)
        run = LayerPass(self.code, pool, windows, self.kv.bad, space, D ** -0.5)
        return run, (torch.empty_like(query), query, random_rows(rows, HEADS), random_rows(rows, HEADS), tables)

    def step(self, lengths):
        """A decode step of sequences of these lengths with copies of what this one holds."""
        sequences = len(lengths)
        held, number = self.kv.held(), torch.arange(sequences, device="cuda", dtype=torch.int32)[:, None]
        pool, windows = (x.repeat(sequences, *[1] * (x.dim() - 1)) for x in (held.pool, held.windows))
        table = held.table.cuda() + number * len(held.pool)
        table = torch.nn.functional.pad(table, (0, max(0, PAGES - table.shape[1]))).contiguous()  # graphs have tables for the longest
        window_table = (held.window_table + number * len(held.windows)).contiguous()
        lengths = torch.tensor(lengths, device="cuda", dtype=torch.int32)
        return self.call(pool, windows, sequences, window_table.shape[1], (table, window_table, lengths, None))

    def prompt(self, tokens):
        """The rows of a prompt, 64 at a time (NewRun of kernels/chunks/new_rows.h)."""
        held = self.kv.held()
        runs = [(64 * i, 64, -1 if i == 0 else (i - 1) % len(held.pool), 0, 64 * i, i % len(held.windows)) for i in range(tokens // 64)]
        runs = torch.tensor(runs, dtype=torch.int32, device="cuda")
        return self.call(held.pool, held.windows, tokens, held.window_table.shape[1], (None, None, None, runs))


def flash_layer(lengths):
    """A decode step of one layer of vLLM's BF16 cache, planned as in its graphs."""
    from vllm import _custom_ops as ops
    from vllm.vllm_flash_attn.flash_attn_interface import flash_attn_varlen_func, get_scheduler_metadata
    sequences, block, longest = len(lengths), 16, max(lengths)
    blocks = -(-longest // block)
    keys, values = (torch.randn(sequences * blocks, block, HEADS, D, device="cuda").bfloat16() for _ in range(2))
    table = torch.randperm(sequences * blocks, device="cuda").int().view(sequences, blocks)
    used, starts = torch.tensor(lengths, device="cuda", dtype=torch.int32), torch.arange(sequences + 1, device="cuda", dtype=torch.int32)
    last = used.long() - 1
    places = table.gather(1, (last // block)[:, None])[:, 0].long() * block + last % block
    query, key, value = random_rows(sequences, HEADS * GROUP), random_rows(sequences, HEADS), random_rows(sequences, HEADS)
    out, one = torch.empty_like(query), torch.ones(1, device="cuda")
    plan = get_scheduler_metadata(sequences, 1, longest, HEADS * GROUP, HEADS, D, used, cu_seqlens_q=starts, page_size=block, causal=True, num_splits=32)

    def step():
        ops.reshape_and_cache_flash(key, value, keys, values, places, "auto", one, one)
        flash_attn_varlen_func(query, keys, values, 1, starts, longest, seqused_k=used, softmax_scale=D ** -0.5, causal=True, block_table=table, out=out,
                               scheduler_metadata=plan, num_splits=32, fa_version=3)
    return step


@torch.no_grad()
def main():
    shared, bundle, phases = Shared(), served_rows.bundle_of("mixed"), Phases(1e6 ** -(torch.arange(D // 2) / (D // 2)))
    codes = [LayerCode(bundle, layer, phases, "cuda", shared) for layer in bundle.layers]
    for rows in sys.argv[1:] or "60x460 60x760 60x2300 16x700 128 512 2048 8192".split():
        sequences, _, tokens = rows.removesuffix("r").rpartition("x")
        lengths = lengths_of(int(sequences or 1), int(tokens), rows.endswith("r"))
        layers = [Layer(code, max(lengths)) for code in codes]
        calls = [layer.step(lengths) if sequences else layer.prompt(int(tokens)) for layer in layers]
        graph = graph_time.recorded(lambda calls=calls: [run(*given) for run, given in calls])
        found = graph_time.microseconds(graph, len(calls), 20)
        beside = {}
        if os.environ.get("BF16") and sequences:
            steps = [flash_layer(lengths) for _ in codes]
            of_flash = graph_time.recorded(lambda steps=steps: [step() for step in steps])
            beside = {"bf16_us_a_layer": graph_time.microseconds(of_flash, len(steps), 20)}
        print(json.dumps(dict(model=served_rows.NAME, rows=rows, us_a_layer=found, gpu=torch.cuda.get_device_name()) | beside), flush=True)
        if os.environ.get("PROFILE"):
            profiled(lambda graph=graph: [graph.replay() for _ in range(4)], 4 * len(calls))


if __name__ == "__main__":
    main()
