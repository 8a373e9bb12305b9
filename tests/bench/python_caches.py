"""generate() of a model of 8B geometry with random weights behind caches that are already full of random keys and values: tokens per
second and memory of the 2-bit cache, with recorded steps and without, against the caches that transformers brings. One line of JSON for
each measurement. A prompt is not computed, so that long contexts and large batches fit into minutes; its first token is.

  OSCAR_KV_OPERATORS=liboscar_kv_cuda.so python tests/bench/python_caches.py [one] [batches] [flash] [quantized] [compiled] --seconds 560 |
    tee caches.jsonl
  python tests/bench/python_caches_table.py caches.jsonl     # the table, and which goals hold

--resume caches.jsonl measures what an earlier run had no time for; both files together are the table, if the GPU was the same."""
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
# Batches by context: of BF16 caches, of ours, of the compiled StaticCache. Of the first and the last the first that fits counts; ours
# runs at the batch of BF16, too. For GPUs with 80 GB, and with 141.
SIZES = {80: "8192:52,48|256|40;32768:13,12|72|12;100000:4|24|4", 141: "8192:100,96|512|80;32768:26,24|144|24;100000:8|48|8"}


class Plan:
    """Which measurements are still to be made: those of an earlier run are not repeated, and none begins too late to end in time."""

    def __init__(self, seconds, earlier=()):
        self.begin, self.seconds, self.left = time.perf_counter(), seconds, 0
        self.done = {key_of(line): "error" not in line for line in earlier if line.get("what") == "decode"}

    def elapsed(self):
        return round(time.perf_counter() - self.begin, 1)

    def answer(self, name, batch, context, takes):
        """None: to be measured, which may need `takes` seconds. Else whether it fitted, or is left for want of time."""
        known = self.done.get((name, batch, context))
        if known is None and self.elapsed() + takes > self.seconds:
            self.left += 1
            return True
        return known


def key_of(line):
    return line["cache"], line["batch"], line["context"]


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
    if hasattr(cache, "attached"):
        return cache.nbytes
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


def measured(plan, name, model, make, batch, context, tokens=32, takes=20, **options):
    """One line: make() gives the full cache. Out of memory is a result. Returns whether there is one with this batch."""
    answer = plan.answer(name, batch, context, takes)
    if answer is not None:
        return answer
    gc.collect(), torch.cuda.empty_cache(), torch.cuda.reset_peak_memory_stats()
    weights = torch.cuda.memory_allocated()
    cache = None
    line = dict(what="decode", cache=name, batch=batch, context=context)
    try:
        cache, begin = make(), time.perf_counter()
        torch.cuda.synchronize()
        ids = torch.randint(10, 150000, (batch, context + 1), device="cuda")
        torch.cuda.reset_peak_memory_stats()
        clock = Clock()
        model.generate(ids, past_key_values=cache, max_new_tokens=tokens, do_sample=False, logits_processor=[clock], pad_token_id=0, **options)
        steps = [b - a for a, b in zip(clock.times, clock.times[1:])][tokens // 2:]
        per = statistics.median(steps)
        say(**line, ms_per_token=round(1000 * per, 2), tokens_per_s=round(batch / per, 1), cache_mib=round(held_bytes(cache) / 2 ** 20, 1),
            peak_over_weights_gib=round((torch.cuda.max_memory_allocated() - weights) / 2 ** 30, 2),
            took_s=round(time.perf_counter() - begin, 1), at_s=plan.elapsed())
        return True
    except Exception as error:
        say(**line, error=f"{type(error).__name__}: {str(error).splitlines()[0][:160] if str(error) else ''}",
            at_s=plan.elapsed())
        return False
    finally:
        del cache
        gc.collect(), torch.cuda.empty_cache()


def with_bundle(plan, model, bundle, batch, context, graphs, name, **options):
    oscar_kv.attach(model, bundle, graphs=graphs)
    try:
        return measured(plan, name, model, lambda: ours(model, batch, context), batch, context, **options)
    finally:
        oscar_kv.detach(model)


def dynamic(plan, model, batch, context, **options):
    from transformers import DynamicCache
    return measured(plan, "DynamicCache, SDPA", model, lambda: filled_by(DynamicCache(config=model.config), batch, context), batch, context, **options)


def static(plan, model, batch, context, compiles, **options):
    """Compiled: as generate() does it by itself; the time of compiling is that of its first tokens, which are not counted."""
    from transformers import StaticCache
    if compiles:
        torch.compiler.reset()
    else:
        options["disable_compile"] = True
    return measured(plan, f"StaticCache, SDPA, {'compiled' if compiles else 'eager'}", model, lambda: filled_by(
        StaticCache(config=model.config, max_cache_len=context + 64), batch, context), batch, context, takes=90 if compiles else 20, **options)


def one(plan, model, bundles, contexts):
    """Batch 1."""
    for context in contexts:
        dynamic(plan, model, 1, context, tokens=16)
        static(plan, model, 1, context, False, tokens=16)
        for name, bundle in bundles.items():
            with_bundle(plan, model, bundle, 1, context, False, f"{name}, no graphs", tokens=16)
            with_bundle(plan, model, bundle, 1, context, True, name)


def batches(plan, model, bundles, sizes):
    """The largest batches that fit, and ours at those of BF16."""
    for context, (base, many, _) in sizes.items():
        fits = next((batch for batch in base if dynamic(plan, model, batch, context, tokens=12)), base[-1])
        any(static(plan, model, batch, context, False, tokens=12) for batch in base)
        for name, bundle in bundles.items():
            with_bundle(plan, model, bundle, fits, context, True, name, tokens=16)
            any(with_bundle(plan, model, bundle, batch, context, True, name, tokens=16) for batch in many)


def compiled(plan, model, sizes, alone):
    """alone: at batch 1; else the largest that fits."""
    for context, (_, _, batches) in reversed(list(sizes.items())):
        any(static(plan, model, batch, context, True, tokens=20) for batch in ([1] if alone else batches))
    torch.compiler.reset()


def flash(plan, model, sizes):
    """FlashAttention of the package of that name."""
    from transformers import DynamicCache
    from transformers.utils import is_flash_attn_2_available, is_flash_attn_3_available
    for name, found in (("flash_attention_2", is_flash_attn_2_available()), ("flash_attention_3", is_flash_attn_3_available())):
        if not found:
            say(what="decode", cache=f"DynamicCache, {name}", batch=1, context=0, skipped=f"transformers finds no package for {name}")
            continue
        before = model.config._attn_implementation
        model.set_attn_implementation(name)
        for context, (base, _, _) in sizes.items():
            for candidates in ([1], base):
                any(measured(plan, f"DynamicCache, {name}", model, lambda: filled_by(DynamicCache(config=model.config), batch, context), batch, context,
                             tokens=16) for batch in candidates)
        model.set_attn_implementation(before)


def quantized(plan, model, contexts):
    """What a user of transformers picks today."""
    from transformers import QuantizedCache
    for context in contexts:
        for backend, axis in (("quanto", 0), ("hqq", 1)):
            for bits in (2, 4):
                measured(plan, f"QuantizedCache, {backend}, {bits} bits", model, lambda: filled_by(
                    QuantizedCache(backend, model.config, nbits=bits, axis_key=axis, axis_value=axis), 1, context), 1, context, tokens=8)


def sizes_of(text):
    """{context: (batches of BF16, of ours, of the compiled StaticCache)}"""
    pairs = (entry.split(":") for entry in text.split(";"))
    return {int(context): tuple([int(n) for n in side.split(",")] for side in rest.split("|")) for context, rest in pairs}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", nargs="*", help="one, batches, flash, quantized, compiled (default: all)")
    parser.add_argument("--sizes", help="CONTEXT:batches of BF16|of ours|of the compiled StaticCache;... (default: by the memory of the GPU)")
    parser.add_argument("--seconds", type=float, default=3600, help="begin no measurement that may end later")
    parser.add_argument("--resume", type=pathlib.Path, help="output of an earlier run, whose measurements are not repeated")
    given = parser.parse_args()
    earlier = given.resume.read_text().splitlines() if given.resume else []
    plan = Plan(given.seconds, [json.loads(line) for line in earlier if line.startswith("{")])  # packages print lines of their own
    memory = torch.cuda.get_device_properties(0).total_memory
    sizes = sizes_of(given.sizes or SIZES[141 if memory > 120e9 else 80])
    wanted = given.what or ["one", "compiled", "batches", "quantized", "flash"]
    say(what="machine", device=torch.cuda.get_device_name(), torch=torch.__version__, memory_gib=round(memory / 2 ** 30, 1))
    with torch.no_grad():
        model = model_8b()
        bundles = {name: random_bundle(LAYERS, KV_HEADS, D, widths, widths) for name, widths in LAYOUTS.items()}
        say(what="model", weights_gib=round(torch.cuda.memory_allocated() / 2 ** 30, 2), at_s=plan.elapsed())
        if "one" in wanted:
            one(plan, model, bundles, sizes)
        if "compiled" in wanted:
            compiled(plan, model, sizes, True)
        if "quantized" in wanted:
            quantized(plan, model, sizes)
        if "batches" in wanted:
            batches(plan, model, bundles, sizes)
        if "compiled" in wanted:
            compiled(plan, model, sizes, False)
        if "flash" in wanted:
            flash(plan, model, sizes)
    say(what="end", left=plan.left, at_s=plan.elapsed())


if __name__ == "__main__":
    main()
