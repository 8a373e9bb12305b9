"""generate() of a model of 8B geometry with random weights behind caches that are already full of random keys and values: tokens per
second and memory of the 2-bit cache, with recorded steps and without, against the caches that transformers brings. One line of JSON for
each measurement. A prompt is not computed, so that long contexts and large batches fit into minutes; its first token is.

  OSCAR_KV_OPERATORS=liboscar_kv_cuda.so python tests/bench/python_caches.py [one] [batches] [flash] [quantised] [compiled]"""
import argparse
import gc
import json
import pathlib
import statistics
import sys
import time

import torch

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT / "python"), str(ROOT / "tests" / "python"), str(ROOT / "tests" / "bench")]

from python_serving import D, KV_HEADS, LAYOUTS, Clock, model_8b, say  # noqa: E402
from random_bundles import random_bundle  # noqa: E402

import oscar_kv  # noqa: E402

LAYERS = 36


def rows(batch, context, seed):
    generator = torch.Generator("cuda").manual_seed(seed)
    return [torch.randn(batch, KV_HEADS, context, D, device="cuda", dtype=torch.bfloat16, generator=generator) for _ in range(2)]


def filled_by(cache, batch, context):
    """A cache of transformers with `context` tokens."""
    for layer in range(LAYERS):
        cache.update(*rows(batch, context, layer), layer)
    return cache


def ours(model, batch, context):
    """The same in the cache of the attached bundle: one sequence is appended, the others get its pages and windows."""
    cache = oscar_kv.new_cache(model)
    for index, layer in enumerate(cache.layers):
        key, value = rows(1, context, index)
        layer.lazy_initialization(key.expand(batch, -1, -1, -1), value)
        kv = layer.kv
        kv.reserve(context)
        kv.append(*(x[0].transpose(0, 1).contiguous() for x in (key, value)), [context] + [0] * (batch - 1))
        first, windows = kv.table.pages[0], kv.windows.view(batch, -1, *kv.windows.shape[1:])
        for pages in kv.table.pages[1:]:
            kv.pool[pages] = kv.pool[first]
        windows[1:] = windows[:1]
        kv.lengths = [context] * batch
        kv.device_lengths.fill_(context)
        layer.columns = context
    return cache


def held_bytes(cache):
    if hasattr(cache, "allocated_bytes"):
        return cache.allocated_bytes()
    found = 0
    for layer in cache.layers:
        for name in ("keys", "values", "_quantized_keys", "_quantized_values"):
            found += size_of(getattr(layer, name, None))
    return found


def size_of(value):
    """Bytes of a tensor, of one of quanto (codes, scales and shifts), or of what HQQ has: codes, and a dictionary of scales and zeros."""
    if isinstance(value, (tuple, list)):
        return sum(map(size_of, value))
    if isinstance(value, dict):
        return sum(map(size_of, value.values()))
    parts = [getattr(value, name, None) for name in ("_data", "_scale", "_shift")]
    if any(p is not None for p in parts):
        return sum(size_of(p) for p in parts)
    return value.untyped_storage().nbytes() if isinstance(value, torch.Tensor) else 0


def measured(name, model, make, batch, context, tokens=32, **options):
    """One line: make() gives the full cache. Out of memory is a result."""
    gc.collect(), torch.cuda.empty_cache(), torch.cuda.reset_peak_memory_stats()
    weights = torch.cuda.memory_allocated()
    cache = None
    try:
        cache, begin = make(), time.perf_counter()
        torch.cuda.synchronize()
        filled = time.perf_counter() - begin
        ids = torch.randint(10, 150000, (batch, context + 1), device="cuda")
        torch.cuda.reset_peak_memory_stats()
        clock = Clock()
        model.generate(ids, past_key_values=cache, max_new_tokens=tokens, do_sample=False, logits_processor=[clock], pad_token_id=0, **options)
        steps = [b - a for a, b in zip(clock.times, clock.times[1:])][tokens // 2:]
        per = statistics.median(steps)
        say(what="decode", cache=name, batch=batch, context=context, ms_per_token=round(1000 * per, 2), tokens_per_s=round(batch / per, 1),
            cache_mib=round(held_bytes(cache) / 2 ** 20, 1), peak_over_weights_gib=round((torch.cuda.max_memory_allocated() - weights) / 2 ** 30, 2),
            fill_s=round(filled, 2))
        return True
    except Exception as error:
        say(what="decode", cache=name, batch=batch, context=context, error=f"{type(error).__name__}: {str(error).splitlines()[0][:160] if str(error) else ''}")
        return False
    finally:
        del cache
        gc.collect(), torch.cuda.empty_cache()


def with_bundle(model, bundle, batch, context, graphs, name, **options):
    oscar_kv.attach(model, bundle, graphs=graphs)
    try:
        return measured(name, model, lambda: ours(model, batch, context), batch, context, **options)
    finally:
        oscar_kv.detach(model)


def one(model, bundles, contexts):
    """Batch 1."""
    from transformers import DynamicCache, StaticCache
    for context in contexts:
        measured("DynamicCache, SDPA", model, lambda: filled_by(DynamicCache(config=model.config), 1, context), 1, context, tokens=16)
        measured("StaticCache, SDPA, eager", model, lambda: filled_by(StaticCache(config=model.config, max_cache_len=context + 64), 1, context), 1,
                 context, tokens=16, disable_compile=True)
        for name, bundle in bundles.items():
            with_bundle(model, bundle, 1, context, False, f"{name}, no graphs", tokens=16)
            with_bundle(model, bundle, 1, context, True, name)


def batches(model, bundles, sizes):
    """Batches at equal memory, and the largest that fit. sizes: {context: (batches of BF16, batches of ours)}."""
    from transformers import DynamicCache, StaticCache
    for context, (base, many) in sizes.items():
        for batch in base:
            measured("DynamicCache, SDPA", model, lambda: filled_by(DynamicCache(config=model.config), batch, context), batch, context, tokens=12)
            measured("StaticCache, SDPA, eager", model, lambda: filled_by(StaticCache(config=model.config, max_cache_len=context + 64), batch, context),
                     batch, context, tokens=12, disable_compile=True)
        for batch in many:
            for name, bundle in bundles.items():
                with_bundle(model, bundle, batch, context, True, name, tokens=16)


def pairs(sizes):
    """Every context at batch 1, then with the largest batches of BF16: [(context, batch)]."""
    return [(context, 1) for context in sizes] + [(context, batch) for context, (base, _) in sizes.items() for batch in base]


def compiled(model, sizes):
    """StaticCache as generate() compiles it by itself; the time of compiling is that of its first tokens, which are not counted."""
    from transformers import StaticCache
    for context, batch in pairs(sizes):
        torch.compiler.reset()
        measured("StaticCache, SDPA, compiled", model, lambda: filled_by(StaticCache(config=model.config, max_cache_len=context + 64), batch, context),
                 batch, context, tokens=24)


def flash(model, sizes):
    """FlashAttention of the package of that name."""
    from transformers import DynamicCache
    from transformers.utils import is_flash_attn_2_available, is_flash_attn_3_available
    for name, found in (("flash_attention_2", is_flash_attn_2_available()), ("flash_attention_3", is_flash_attn_3_available())):
        if not found:
            say(what="decode", cache=f"DynamicCache, {name}", skipped=f"transformers finds no package for {name}")
            continue
        before = model.config._attn_implementation
        model.set_attn_implementation(name)
        for context, batch in pairs(sizes):
            measured(f"DynamicCache, {name}", model, lambda: filled_by(DynamicCache(config=model.config), batch, context), batch, context, tokens=16)
        model.set_attn_implementation(before)


def quantised(model, contexts):
    """What a user of transformers picks today."""
    from transformers import QuantizedCache
    for context in contexts:
        for backend, axis in (("quanto", 0), ("hqq", 1)):
            for bits in (2, 4):
                measured(f"QuantizedCache, {backend}, {bits} bits", model, lambda: filled_by(
                    QuantizedCache(backend, model.config, nbits=bits, axis_key=axis, axis_value=axis), 1, context), 1, context, tokens=8)


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("what", nargs="*", help="one, batches, flash, quantised, compiled (default: all)")
    parser.add_argument("--contexts", default="8192,32768,100000")
    parser.add_argument("--sizes", default="8192:48|48,256;32768:12|12,72;100000:4|4,24", help="CONTEXT:BF16 batches|ours;...")
    given = parser.parse_args()
    contexts = [int(c) for c in given.contexts.split(",")]
    sizes = {int(c): tuple([int(n) for n in side.split(",")] for side in rest.split("|")) for c, rest in (s.split(":") for s in given.sizes.split(";"))}
    say(what="machine", device=torch.cuda.get_device_name(), torch=torch.__version__)
    with torch.no_grad():
        model = model_8b()
        bundles = {name: random_bundle(LAYERS, KV_HEADS, D, widths, widths) for name, widths in LAYOUTS.items()}
        wanted = given.what or ["one", "batches", "flash", "quantised", "compiled"]
        if "one" in wanted:
            one(model, bundles, contexts)
        if "batches" in wanted:
            batches(model, bundles, sizes)
        if "quantised" in wanted:
            quantised(model, contexts)
        if "flash" in wanted:
            flash(model, sizes)
        if "compiled" in wanted:
            compiled(model, sizes)


if __name__ == "__main__":
    main()
