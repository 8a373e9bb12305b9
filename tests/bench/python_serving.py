"""What the Python package costs on a GPU: operators against the torch reference, and generate() of a model of 8B geometry with
random weights against the caches that transformers brings. One line of JSON for each measurement.

  OSCAR_KV_OPERATORS=liboscar_kv_cuda.so python tests/bench/python_serving.py [operators] [generate] [captured] [--contexts 8192,32768,100000]"""
import argparse
import gc
import json
import pathlib
import statistics
import sys
import time

import torch

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT / "python"), str(ROOT / "tests" / "python")]

from random_bundles import random_bundle  # noqa: E402

from oscar_kv.ops import load, operators, reference  # noqa: E402
from oscar_kv.cache.shared import Shared  # noqa: E402
from oscar_kv.cache.paged_kv import LayerCode, PagedKV, PageTable  # noqa: E402

HEADS, KV_HEADS, D = 32, 8, 128
LAYOUTS = {"uniform": None, "blocks 4-2-1-1": (4, 2, 1, 1)}


def say(**fields):
    print(json.dumps(fields), flush=True)


def median_us(call, repeats=25):
    for _ in range(3):
        call()
    times = []
    for _ in range(repeats):
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        begin.record()
        call()
        end.record()
        end.synchronize()
        times.append(1000 * begin.elapsed_time(end))
    return round(statistics.median(times), 1)


def graph_of(call):
    """The launches of `call` as a CUDA graph, so that Python's time is not measured."""
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        call()
        side.synchronize()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, stream=side):
            call()
    return graph.replay


def of_operators(context):
    for name, widths in LAYOUTS.items():
        bundle = random_bundle(1, KV_HEADS, D, widths, widths)
        code = LayerCode(bundle, bundle.layers[0], None, "cuda")
        cache = PagedKV(code, PageTable(1))
        rows = [torch.randn(context, KV_HEADS, D, device="cuda", dtype=torch.bfloat16) for _ in range(2)]
        prompt = time.perf_counter()
        cache.append(*rows, [context])
        torch.cuda.synchronize()
        prompt = time.perf_counter() - prompt
        cache.reserve(context + 4096)
        query = torch.randn(1, HEADS, 1, D, device="cuda", dtype=torch.bfloat16)
        new = [torch.randn(1, KV_HEADS, 1, D, device="cuda", dtype=torch.bfloat16) for _ in range(2)]
        coded = query.view(1, KV_HEADS, -1, D)
        table = cache.table.tensor("cuda")
        space = Shared().workspace(coded, D, HEADS // KV_HEADS, 1, KV_HEADS)

        def decode(run, workspace=space):
            return run(coded, cache.pool, table, cache.windows, cache.window_table, cache.device_lengths, code.key.sigma,
                       code.value.sigma, None, None, None, workspace, D ** -0.5, code.sink, code.recent, 1, 0, False, *code.numbers)

        runs = operators.page_runs(table[:, :16], len(cache.pool))
        pages = (cache.pool, runs, code.key.sigma, code.value.sigma, *code.numbers)
        say(what="operators", layout=name, context=context, append_prompt_ms=round(1000 * prompt, 2),
            decode_us=median_us(graph_of(lambda: decode(operators.decode_attention))),
            decode_from_python_us=median_us(lambda: decode(operators.decode_attention)),
            decode_reference_us=median_us(lambda: decode(reference.decode_attention), 3),
            dequantize_1024_us=median_us(lambda: operators.dequantize_pages(*pages)),
            dequantize_1024_reference_us=median_us(lambda: reference.dequantize_pages(code.view(pool=cache.pool, runs=runs)), 5),
            step_captured_us=median_us(graph_of(lambda: cache.step_on_device(query, *new, D ** -0.5))),
            step_from_python_us=median_us(lambda: cache.step_on_device(query, *new, D ** -0.5)))


def model_8b():
    from transformers import Qwen3Config, Qwen3ForCausalLM
    config = Qwen3Config(hidden_size=4096, intermediate_size=12288, num_hidden_layers=36, num_attention_heads=HEADS,
                         num_key_value_heads=KV_HEADS, head_dim=D, vocab_size=151936, max_position_embeddings=131072)
    torch.set_default_dtype(torch.bfloat16)
    with torch.device("cuda"):
        model = Qwen3ForCausalLM(config).eval()
    torch.set_default_dtype(torch.float32)
    model.generation_config.eos_token_id = None
    return model


class Clock:
    """A logits processor that notes when each token's logits were ready."""

    def __init__(self):
        self.times = []

    def __call__(self, ids, scores):
        torch.cuda.synchronize()
        self.times.append(time.perf_counter())
        return scores


def generate(contexts, model, tokens=24):
    import oscar_kv
    from transformers import DynamicCache
    weights = torch.cuda.memory_allocated()
    bundles = {name: random_bundle(36, KV_HEADS, D, widths, widths) for name, widths in LAYOUTS.items()}
    for context in contexts:
        ids = torch.randint(10, 150000, (1, context), device="cuda")
        for name in ("DynamicCache, SDPA", *LAYOUTS):
            if name in bundles:
                oscar_kv.attach(model, bundles[name])
                cache = oscar_kv.new_cache(model)
            else:
                cache = DynamicCache(config=model.config)
            gc.collect(), torch.cuda.empty_cache(), torch.cuda.reset_peak_memory_stats()
            clock, begin = Clock(), time.perf_counter()
            model.generate(ids, past_key_values=cache, max_new_tokens=tokens, do_sample=False, logits_processor=[clock], pad_token_id=0)
            steps = [b - a for a, b in zip(clock.times, clock.times[1:])]
            if name in bundles:
                held = cache.nbytes
                oscar_kv.detach(model)
            else:
                held = sum(t.numel() * t.element_size() for layer in cache.layers for t in (layer.keys, layer.values))
            say(what="generate", cache=name, context=context, prompt_s=round(clock.times[0] - begin, 2),
                ms_per_token=round(1000 * statistics.median(steps[3:]), 2), tokens_per_s=round(1 / statistics.median(steps[3:]), 1),
                cache_mib=round(held / 2 ** 20, 1), peak_gib=round(torch.cuda.max_memory_allocated() / 2 ** 30, 2),
                peak_over_weights_gib=round((torch.cuda.max_memory_allocated() - weights) / 2 ** 30, 2))
            del cache


def captured(context, model, tokens=32):
    """A whole step of the model as one CUDA graph, which takes Python's time away: the 2-bit cache, whose steps may be captured, and
    StaticCache with SDPA. Greedy tokens, from the second replay on."""
    import oscar_kv
    from transformers import StaticCache
    ids = torch.randint(10, 150000, (1, context), device="cuda")
    for name, widths in (("StaticCache, SDPA", ()), *LAYOUTS.items()):
        if widths != ():
            oscar_kv.attach(model, random_bundle(36, KV_HEADS, D, widths, widths))
            cache = oscar_kv.new_cache(model)
        else:
            cache = StaticCache(config=model.config, max_cache_len=context + 64)
        try:
            token = model(ids, past_key_values=cache, logits_to_keep=1).logits[:, -1:].argmax(-1)
            position = torch.full((1, 1), context, device="cuda")
            for layer in cache.layers if widths != () else ():
                layer.kv.reserve(context + 256)

            def step():
                logits = model(token, position_ids=position, past_key_values=cache, logits_to_keep=1).logits
                token.copy_(logits[:, -1:].argmax(-1))
                position.add_(1)

            replay = graph_of(step)
            replay(), torch.cuda.synchronize()
            begin = time.perf_counter()
            for _ in range(tokens):
                replay()
            torch.cuda.synchronize()
            say(what="captured", cache=name, context=context, ms_per_token=round(1000 * (time.perf_counter() - begin) / tokens, 2))
        except Exception as error:  # StaticCache may read lengths back
            say(what="captured", cache=name, context=context, error=str(error)[:200])
        if widths != ():
            oscar_kv.detach(model)
        del cache
        gc.collect(), torch.cuda.empty_cache()


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("what", nargs="*", help="operators, generate, captured (default: all)")
    parser.add_argument("--contexts", default="8192,32768,100000")
    given = parser.parse_args()
    contexts = [int(c) for c in given.contexts.split(",")]
    if load.missing() is not None:
        sys.exit(f"error: {load.missing()}")
    say(what="machine", device=torch.cuda.get_device_name(), torch=torch.__version__)
    with torch.no_grad():
        if not given.what or "operators" in given.what:
            for context in contexts:
                of_operators(context)
        model = model_8b() if not given.what or {"generate", "captured"} & set(given.what) else None
        if not given.what or "generate" in given.what:
            generate(contexts, model)
        if not given.what or "captured" in given.what:
            captured(contexts[-1], model)


if __name__ == "__main__":
    main()
