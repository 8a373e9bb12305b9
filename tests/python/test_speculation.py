"""Steps of several tokens of a request, most of which may be taken back (speculative decoding), in the caches of serving engines. A plain
cache that gets the kept tokens one at a time says what codes, windows and outputs should be."""
import dataclasses

import pytest

torch = pytest.importorskip("torch")

from block_engine import SCALE, Engine, PrefixEngine, Request, families, requests  # noqa: E402
from oscar_kv.ops import load, operators  # noqa: E402
from oscar_kv.files.errors import InputError  # noqa: E402
from oscar_kv.cache.paged_kv import LayerCode  # noqa: E402
from oscar_kv.cache.prefix_table import PrefixTable  # noqa: E402
from oscar_kv.cache.slot_kv import SlotKV, SlotTable  # noqa: E402
from oscar_kv.cache.transform import Phases  # noqa: E402
from random_bundles import exact_bundle, random_bundle  # noqa: E402

DEVICES = ["cpu", "cuda"] if load.missing() is None else ["cpu"]
WIDTHS = {"uniform": None, "blocks": (4, 2, 1, 1)}


def exact_code(sink, recent):
    bundle = exact_bundle(d=32, key=(4, 2, 1, 1), value=(4, 2, 1, 1), sink=sink, recent=recent, centered=False)
    return LayerCode(bundle, bundle.layers[0])


class Plain:
    """A cache of one request that gets its tokens in order, in passes of any size."""

    def __init__(self, code, most_new, shares):
        self.code, sink_pages = code, -(-code.sink // 64)
        if shares:
            self.kv = SlotKV(code, 2, 512, 2, most_new, 4)
            self.table = PrefixTable(2, sink_pages, self.kv.tiers.layout.ring_pages, "cpu", 4, code.recent, lambda slot: 1, most_new)
        else:
            self.kv = SlotKV(code, 2, 512, 2, most_new=most_new)
            self.table = SlotTable(2, self.kv.window_pages, "cpu", most_new)
        self.pool = self.kv.pool(torch.zeros(20, code.layer.kv_heads, 64, code.page_bytes // 64, dtype=torch.uint8))
        self.blocks = torch.tensor([[3, 1, 4, 15, 9, 2, 6, 5]], dtype=torch.int32)

    def run(self, start, query, key, value):
        """New tokens after `start`: their outputs."""
        count, output = len(query), torch.zeros_like(query)
        mapping = torch.arange(start, start + count)
        rows = self.table.rows([1], [start], [count], torch.tensor([start + count], dtype=torch.int32), self.blocks, mapping)
        assert rows.sinks is None
        self.rows = rows
        self.kv.forward(self.pool, rows, query, key, value, SCALE, output)
        return output

    def codes(self, tokens):
        """Keys and values of the tokens that are read as codes."""
        code, first = self.code, self.code.sink // 64 if isinstance(self.table, PrefixTable) else 0
        runs = operators.page_runs(self.blocks[:, first:].contiguous(), len(self.pool))
        rows = operators.dequantize_pages(self.pool, runs, code.key.sigma, code.value.sigma, *code.numbers)
        end = self.kv.tiers.quantized_end(tokens)
        return [r[:end - code.sink] for r in rows]

    def window(self, tokens):
        """Keys and values of the tokens that are read in BF16."""
        end = self.kv.tiers.quantized_end(tokens)
        position = torch.tensor([p for p in range(tokens) if p < self.code.sink or p >= end], dtype=torch.int64)
        return self.kv.tiers.layout.rows(self.kv.windows, self.rows.window_table, torch.zeros_like(position), position)


@pytest.mark.parametrize("shares", [False, True], ids=["slots", "shared_blocks"])
@pytest.mark.parametrize("k", range(1, 8))
def test_kept_tokens_are_all_that_counts(k, shares):
    """Codes, windows and outputs after every step. The tokens pass the end of the sink, of the window, of pages and of the ring."""
    prompt = (1, 50, 125)[k % 3]  # inside the sink, with few codes, and near the end of a block
    sink, recent, total = (64, 40, prompt + 180) if shares else (16, 40, prompt + 150)
    code, generator = exact_code(sink, recent), torch.Generator().manual_seed(7 * k)
    heads = code.layer.kv_heads
    rows = [torch.randn(total + k, n, 32, generator=generator).bfloat16().float() for n in (2 * heads, heads, heads)]
    wrong = [3 * torch.randn(k, n, 32, generator=generator).bfloat16().float() for n in (2 * heads, heads, heads)]
    plain, speculating = Plain(code, 1, shares), Plain(code, 1 + k, shares)
    for cache in (plain, speculating):
        cache.run(0, *(r[:prompt] for r in rows))
    n, refused = prompt, 0
    while n < total:
        kept = int(torch.randint(1, k + 2, (), generator=generator))
        count = int(torch.randint(kept, k + 2, (), generator=generator))
        given = [torch.cat([r[n:n + kept], w[:count - kept]]) for r, w in zip(rows, wrong)]
        found = speculating.run(n, *given)[:kept]
        expected = torch.cat([plain.run(n + i, *(r[n + i:n + i + 1] for r in rows)) for i in range(kept)])
        n, refused = n + kept, refused + count - kept
        assert torch.allclose(found, expected, rtol=0, atol=1e-5), (n, kept, count, float((found - expected).abs().max()))
        assert all(torch.equal(a, b) for a, b in zip(speculating.codes(n), plain.codes(n))), (n, kept, count)
        assert all(torch.equal(a, b) for a, b in zip(speculating.window(n), plain.window(n))), (n, kept, count)
    assert refused > 3 * k


def test_a_ring_without_room_for_proposals_is_seen(monkeypatch):
    """The comparison above can fail: rejected tokens overwrite the window."""
    from oscar_kv.cache import slot_kv
    monkeypatch.setattr(slot_kv, "ring_pages", lambda recent, flush: 1)
    with pytest.raises(AssertionError):
        code = exact_code(16, 60)
        rows = [torch.randn(200, n, 32).bfloat16().float() for n in (4, 2, 2)]
        plain, speculating = Plain(code, 1, False), Plain(code, 8, False)
        for cache in (plain, speculating):
            cache.run(0, *(r[:150] for r in rows))
        for n in range(150, 190):
            found, expected = speculating.run(n, *(r[n:n + 8] for r in rows))[:1], plain.run(n, *(r[n:n + 1] for r in rows))
            assert torch.allclose(found, expected, rtol=0, atol=1e-5)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("most_new,layout,rotated", [(2, "uniform", False), (4, "blocks", True), (8, "blocks", False)])
def test_requests_by_slot(most_new, layout, rotated, device):
    bundle = exact_bundle(d=64, key=WIDTHS[layout], value=WIDTHS[layout], sink=16, recent=40, rotated_mean=rotated)
    phases = Phases(10000.0 ** -(torch.arange(32) / 32)) if rotated else None
    engine = Engine(bundle, 0, seed=most_new, device=device, phases=phases, most_new=most_new)
    engine.run([Request(r.total, r.seed, max(1, r.total - 60)) for r in requests(5 + most_new, 330, 6)])
    assert engine.kinds >= {"decode", "mixed"} and engine.preempted > 1 and engine.compared > 60 and engine.rejected > 40


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("most_new,layout,rotated", [(2, "uniform", False), (4, "blocks", True), (8, "blocks", False)])
def test_requests_that_share_blocks(most_new, layout, rotated, device):
    bundle = exact_bundle(d=64, key=WIDTHS[layout], value=WIDTHS[layout], sink=64, recent=40, rotated_mean=rotated)
    phases = Phases(10000.0 ** -(torch.arange(32) / 32)) if rotated else None
    engine = PrefixEngine(bundle, 0, blocks=27, seed=most_new, device=device, phases=phases, most_new=most_new)
    made = families(5 + most_new, 330, 20)
    for request in made:
        request.prompt = max(1, request.total - 30)
    engine.run(made)
    assert engine.kinds >= {"decode", "mixed"} and engine.preempted > 1 and engine.compared > 60 and engine.rejected > 20
    assert engine.hits > 5 and engine.coded > 0, (engine.hits, engine.lost, engine.coded, engine.whole)


@pytest.mark.parametrize("device", DEVICES)
def test_sink_logits(device):
    bundle = exact_bundle(d=64, key=(4, 2, 1, 1), value=(4, 2, 1, 1), sink=16, recent=40)
    engine = Engine(bundle, 0, seed=7, device=device, most_new=4)
    engine.oracle.sinks = torch.tensor([0.5, -1.0, 2.5, 0.0])
    engine.run([Request(r.total, r.seed, max(1, r.total - 40)) for r in requests(5, 330, 4)])
    assert engine.compared > 30 and engine.rejected > 10


def test_tensors_stay_where_a_captured_graph_has_read_them():
    table, places = SlotTable(4, 3, "cpu", 4), set()
    for count in (4, 4, 2):
        blocks = torch.arange(6 * count, dtype=torch.int32).view(count, 6)
        mapping = torch.tensor([0] * 7 + [-1] * (4 * count - 7))  # a request may have fewer places than tokens
        rows = table.rows([2, 0][:count], [5, 6], [4, 4], torch.arange(9, 9 + count, dtype=torch.int32), blocks, mapping)
        steps = rows.steps
        places.add(tuple(t.data_ptr() for t in (steps.lengths, steps.table, steps.window_table, *steps.after)))
        assert rows.only_steps and steps.tokens == slice(0, 4 * count)
        assert steps.lengths.tolist() == ([6, 7, 8, 9] + [0] * 12)[:4 * count]  # the second is padding: its last token has no place
        assert steps.table[:8].tolist() == [list(range(6))] * 4 + [list(range(6, 12))] * 4
        assert steps.window_table[:4].tolist() == [[6, 7, 8]] * 4
        assert [a.tolist()[:2] for a in steps.after] == [[6, 0], [7, 0], [8, 0], [9, 0]]
    assert len(places) == 1


def test_short_and_long_requests_of_a_batch():
    table = SlotTable(4, 3, "cpu", 3)
    lengths = torch.tensor([12, 103, 1, 52], dtype=torch.int32)
    rows = table.rows([0, 1, 2, 3], [10, 3, 0, 50], [2, 100, 1, 2], lengths, torch.zeros(4, 6, dtype=torch.int32), torch.arange(105))
    assert [(c.row, c.first, c.start, c.count) for c in rows.chunks] == [(1, 2, 3, 100)]
    assert rows.steps.tokens.tolist() == [0, 1, 102, 103, 104] and rows.steps.lengths.tolist() == [11, 12, 1, 51, 52]
    assert [a.tolist() for a in rows.steps.after] == [[11, 0, 1, 51], [12, 0, 0, 52]]


def test_more_rows_than_one_launch_takes(monkeypatch):
    """Rows of one request in two launches."""
    from oscar_kv.cache import slot_kv
    monkeypatch.setattr(slot_kv, "MOST_ITEMS", 6)  # three rows of two KV heads
    bundle = exact_bundle(d=64, sink=16, recent=40)
    engine = Engine(bundle, 0, seed=2, most_new=4)
    engine.run([Request(r.total, r.seed, max(1, r.total - 40)) for r in requests(3, 200, 4)])
    assert engine.compared > 20 and engine.rejected > 10


def test_steps_beyond_the_window_are_refused():
    bundle = random_bundle(d=32, sink=16, recent=6)
    SlotKV(LayerCode(bundle, bundle.layers[0]), 2, 100, 2, most_new=6)
    with pytest.raises(InputError, match="steps of 7 tokens do not fit into a recent window of 6 tokens"):
        SlotKV(LayerCode(bundle, bundle.layers[0]), 2, 100, 2, most_new=7)
    none = dataclasses.replace(bundle, recent=0)  # a step would read its own token as a code, which comes later
    with pytest.raises(InputError, match="steps of 1 tokens do not fit into a recent window of 0 tokens"):
        SlotKV(LayerCode(none, none.layers[0]), 2, 100, 2)
