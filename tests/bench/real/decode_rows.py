"""decode_rows.py ROWS BUNDLE MODEL [OUT.jsonl]: the decode kernels on a real model's queries, keys and values against the torch reference, which
reads the same cache: every layer of the bundle, one workspace, sequences of 330 to 32,000 tokens (a chunk of a prompt, too), and batches of every
size that chooses another kernel. Then steps of all layers, recorded and replayed 1,000 times in the model's order and shuffled.

ROWS: a file of capture.py. MODEL: the checkpoint's folder, for its RoPE. Prints a line of JSON for each length and batch: the largest difference
of any layer in parts of the output's length, and that layer. Exit code 1: one is above LIMIT. QUICK=1: one length and one replay, for
compute-sanitizer."""
import json
import os
import pathlib
import random
import sys

import torch
from safetensors.torch import load_file
from transformers import AutoConfig

from oscar_kv import load_bundle
from oscar_kv.cache.layer_code import LayerCode
from oscar_kv.cache.layer_pass import LayerPass
from oscar_kv.cache.paged_kv import PagedKV, PageTable
from oscar_kv.cache.shared import Shared
from oscar_kv.cache.slot_kv import SlotKV
from oscar_kv.engines import self_check
from oscar_kv.engines.check_rows import CheckRows, turned
from oscar_kv.engines.rope import phases_of

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1]))
import graph_time  # noqa: E402

BATCHES, LENGTHS, SLOTS, ROUNDS, LIMIT = (1, 2, 5, 8, 15, 16, 22, 23, 44, 67, 133), (330, 700, 7000, 32000), 133, 1000, 0.1
DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
QUICK = bool(os.environ.get("QUICK"))


class Rows:
    """Of the layers: `count` tokens, which come again, turned to their new places."""

    def __init__(self, path):
        self.file = load_file(path)

    def __call__(self, code, group, count):
        key, value, query = (self.file[f"{code.layer.layer}.{side}"].to(code.device) for side in "kvq")
        positions = torch.arange(count, device=code.device)
        again = positions % len(key)
        places = torch.arange(len(key) - len(query), len(key), device=code.device)
        return CheckRows(turned(key[again], positions - again, code.transform).bfloat16().contiguous(), value[again].contiguous(), query.float(),
                         places)


class Steps:
    """A decode step of every layer for one batch size, whose sequences read one sequence's cache."""

    def __init__(self, caches, rows, tokens, size):
        self.calls, self.scale, shared = [], caches[0].code.layer.head_dim ** -0.5, []
        for kv in caches:
            code, made = kv.code, rows(kv.code, kv.group, tokens + 1)
            cache = PagedKV(code, PageTable(1))
            cache.append(made.key[:tokens], made.value[:tokens], [tokens])
            held = self_check._stepped(cache, tokens)
            expected = self_check._expected(held, made, code, self.scale)
            query = made.query_at(self_check._newest(made, tokens), code.transform)
            of = torch.arange(size, device=code.device) % len(query)
            output = torch.full((size, *query.shape[1:]), torch.nan, dtype=torch.bfloat16, device=code.device)
            k, v = (r[-1:].expand(size, -1, -1).contiguous() for r in (made.key, made.value))
            table = held.table.expand(size, -1).contiguous()
            tables = table, held.window_table.expand(size, -1).contiguous(), held.lengths.expand(size).contiguous(), None
            run = LayerPass(code, held.pool, held.windows, cache.bad, kv.space, self.scale)  # as engines call it
            self.calls.append((run, (output, query[of], k, v, tables), expected[of]))
            shared.append(kv.space.data_ptr())
        assert len(set(shared)) == 1, "the layers do not share one workspace"

    def run(self, order):
        for i in order:
            run, given, _ = self.calls[i]
            run(*given)

    def errors(self):
        return torch.stack([self_check.largest_error(given[0], expected) for _, given, expected in self.calls])


def replayed(caches, rows, tokens, size, rounds):
    """The largest error of `rounds` replays in each of two orders, looked at 20 times, and the time of a layer."""
    steps, found = Steps(caches, rows, tokens, size), []
    shuffled = list(range(len(caches)))
    random.Random(size).shuffle(shuffled)
    for order in (range(len(caches)), shuffled):
        graph = graph_time.recorded(lambda order=order: steps.run(order))
        for turn in range(rounds):
            graph.replay()
            if turn % max(1, rounds // 20) == 0:
                found.append(steps.errors().amax())
        found.append(steps.errors().amax())
    return {"error": round(float(torch.stack(found).amax()), 5), "us_a_layer": graph_time.microseconds(graph, len(caches), 50)}


@torch.no_grad()
def main():
    rows, bundle = Rows(sys.argv[1]), load_bundle(sys.argv[2])
    config = json.loads((pathlib.Path(sys.argv[3]) / "config.json").read_text())
    group = config["num_attention_heads"] // config["num_key_value_heads"]
    lengths, batches = ((330,), (1, 16, 23, 133)) if QUICK else (LENGTHS, BATCHES)
    shared, caches, room = Shared(), [], max(lengths) * 9 // 8 + 200  # tables of sequences have room to grow
    rotated = any(layer.key.rotated_mean for layer in bundle.layers)
    phases = phases_of(AutoConfig.from_pretrained(sys.argv[3]), bundle.layers[0].head_dim) if rotated else None
    for layer in bundle.layers[:3] if QUICK else bundle.layers:
        caches.append(SlotKV(LayerCode(bundle, layer, phases, DEVICE, shared), SLOTS, room, group))
    out, worst = open(sys.argv[4], "a") if len(sys.argv) > 4 else None, 0.0
    base = dict(model=pathlib.Path(sys.argv[3]).name, bundle=pathlib.Path(sys.argv[2]).name, gpu=torch.cuda.get_device_name() if DEVICE == "cuda" else "none")

    def line(**more):
        nonlocal worst
        worst = max(worst, more["error"])
        for to in filter(None, (sys.stdout, out)):
            print(json.dumps(base | more), file=to, flush=True)

    self_check.SEQUENCES = batches
    for length in lengths:
        self_check.TOKENS, found = length, {}
        for kv in caches:
            for path, error in self_check.errors_of(kv, SLOTS, room, rows, own=length <= 330 and not QUICK):
                found.setdefault(path, []).append(error)
        for path, errors in found.items():
            errors = torch.stack(errors)
            line(length=length, path=path, layers=len(errors), error=round(float(errors.amax()), 5), layer=bundle.layers[int(errors.argmax())].layer,
                 median=round(float(errors.median()), 5))
    for size in () if DEVICE == "cpu" else batches if QUICK else (1, 8, 16, 23, 64, 67, 133):
        length, rounds = (lengths[-1], 1) if QUICK else (700, ROUNDS)
        line(length=length, path=f"{size} sequences, replayed", rounds=rounds, **replayed(caches, rows, length, size, rounds))
    sys.exit(worst > LIMIT)


main()
