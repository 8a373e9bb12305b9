"""The cache of a serving engine under a simulated block manager: random physical blocks, slots that are used again, requests
that are preempted and start again, batches of single tokens and chunks, padded rows. Every output is compared with textbook
attention over what the request should hold."""
import dataclasses
import types

import pytest

torch = pytest.importorskip("torch")

from block_engine import SCALE, Engine, PrefixEngine, Request, families, requests  # noqa: E402
from conftest import GOLDEN  # noqa: E402
from cache_rows import cache_rows  # noqa: E402
from oscar_kv.cache import chunk_pass, slot_kv  # noqa: E402
from oscar_kv.ops import load, operators  # noqa: E402
from oscar_kv.format.bundle import load_bundle  # noqa: E402
from oscar_kv.files.errors import InputError  # noqa: E402
from oscar_kv.cache.paged_kv import LayerCode  # noqa: E402
from oscar_kv.cache.slot_kv import SlotKV, SlotTable  # noqa: E402
from oscar_kv.cache.transform import Phases  # noqa: E402
from random_bundles import exact_bundle, random_bundle  # noqa: E402

GOLDEN_BUNDLE = load_bundle(GOLDEN / "bundle")  # sink 4, recent 8, d 32; layer 0 blocks, layer 1 blocks and uniform
DEVICES = ["cpu", "cuda"] if load.missing() is None else ["cpu"]


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("layer", [0, 1])
def test_every_request_sees_its_own_tokens(layer, device):
    widths = (4, 2, 1, 1) if layer == 0 else None
    bundle = GOLDEN_BUNDLE if device == "cpu" else random_bundle(2, d=64, key=widths, value=widths, sink=16, recent=40)  # kernels have no d 32
    engine = Engine(bundle, layer, seed=3 + layer, device=device)
    engine.run(requests(5 + layer, 330))
    assert engine.kinds == {"decode", "mixed", "prefill"} and engine.preempted > 1 and engine.compared > 60
    assert sorted(engine.free_slots) == [0, 1, 2, 3] and len(set(engine.free_blocks)) == 39


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("kind,most_new,room", [(Engine, 1, 10 ** 6), (Engine, 4, 10 ** 6), (Engine, 1, 150), (PrefixEngine, 1, 10 ** 6)])
def test_one_call_for_requests_with_few_tokens_first(kind, most_new, room, device, monkeypatch):
    """Tokens of steps, and chunks in one pass of attention or several, in one call of an operator."""
    monkeypatch.setattr(chunk_pass, "room", lambda *arguments: room)
    monkeypatch.setattr(Engine, "steps_first", True)
    bundle = random_bundle(d=64, key=(4, 2, 1, 1), value=(4, 2, 1, 1), sink=64, recent=40, rotated_mean=True)
    engine, apart = kind(bundle, 0, seed=3, device=device, phases=Phases(10000.0 ** -(torch.arange(32) / 32)), most_new=most_new), []
    monkeypatch.setattr(engine.kv, "_apart", lambda *given: apart.append(given))
    engine.run(requests(7, 330) if kind is Engine else families(5, 330))
    assert engine.kinds >= {"decode", "mixed"} and engine.compared > 40 and apart == []


@pytest.mark.parametrize("device", DEVICES)
def test_keys_centered_before_rope(device):
    bundle = random_bundle(d=64, key=(4, 2, 1, 1), value=(4, 2, 1, 1), sink=16, recent=40, rotated_mean=True)
    phases = Phases(10000.0 ** -(torch.arange(32) / 32))
    engine = Engine(bundle, 0, device=device, phases=phases)
    engine.run(requests(9, 200, 4))
    assert engine.compared > 20


@pytest.mark.parametrize("device", DEVICES)
def test_sink_logits(device, monkeypatch):
    """They count once over all parts: chunks with long pasts in several passes, and single tokens."""
    monkeypatch.setattr(chunk_pass, "room", lambda *arguments: 150)
    bundle = random_bundle(d=64, key=(4, 2, 1, 1), value=(4, 2, 1, 1), sink=16, recent=40)
    engine = Engine(bundle, 0, seed=7, device=device)
    engine.oracle.sinks = torch.tensor([0.5, -1.0, 2.5, 0.0])
    engine.run(requests(5, 330, 4))
    assert engine.kinds >= {"decode", "mixed"} and engine.compared > 30


def codes_of(engine, request):
    """Keys and values [T, Hkv, d] that a request's pages hold for all its tokens after the sink, and those of the codec."""
    code, sink = engine.kv.code, engine.kv.code.sink
    table = torch.tensor([request.blocks], dtype=torch.int32)
    found = operators.dequantize_pages(engine.pool, operators.page_runs(table, len(engine.pool)), code.key.sigma, code.value.sigma, *code.numbers)
    _, key, value = engine.oracle.tokens(request)
    rows = cache_rows(code.transform, key, value, torch.arange(len(key)))
    coded = [codec.decode(*codec.encode(r[sink:request.done].float())) for codec, r in zip((code.key, code.value), rows) if request.done > sink]
    return [f[:max(0, request.done - sink)] for f in found], coded


@pytest.mark.parametrize("layout,sink,recent,most_new", [("uniform", 0, 1, 1), ("blocks", 16, 40, 1), ("blocks", 64, 40, 4), ("uniform", 100, 9, 4),
                                                         ("no_bits", 130, 64, 1)])
def test_every_token_after_the_sink_has_its_code_at_once(layout, sink, recent, most_new):
    """In the blocks that the engine gives: ceil(n / 64) for n tokens, of which no other is written. Whole pages and partial ones, tokens of
    the window, chunks that end inside pages, steps beside chunks, and tokens that took the place of rejected ones."""
    widths = {"uniform": None, "blocks": (4, 2, 1, 1), "no_bits": (0, 0, 0, 0)}[layout]
    engine = Engine(exact_bundle(d=64, key=widths, value=(2, 1, 0, 1) if layout == "no_bits" else widths, sink=sink, recent=recent), 0,
                    seed=sink + recent, most_new=most_new)
    nobodys, whole, compared = engine.pool[0].clone(), engine.forward, []

    def forward(*given):
        held = [(r, r.seed) for r, _ in given[0]]
        whole(*given)
        for request in (r for r, _ in held if r.done > sink):
            (found, coded), blocks = codes_of(engine, request), len(request.blocks)
            assert blocks == -(-(request.done + request.refused) // 64)
            compared.append(request.done % 64)
            for a, b in zip(found, coded):
                assert torch.equal(a, b), (request.done, int((a != b).any(2).any(1).nonzero()[0]))

    engine.forward = forward
    engine.run([Request(r.total, r.seed, max(1, r.total - 40)) for r in requests(5, 330, 6)])
    assert torch.equal(engine.pool[0], nobodys) and len(compared) > 40 and len(set(compared)) > 20 and "mixed" in engine.kinds


@pytest.mark.parametrize("step", [False, True])
def test_a_number_that_is_not_finite_is_noted_once(step):
    """In the pass that brings it, not again when its token leaves the window; one of the sink has no code."""
    engine = Engine(GOLDEN_BUNDLE, 0)
    engine.right, engine.expected = lambda *given: None, lambda request, count: torch.zeros(count, 4, 32)
    request, tokens = Request(90, 1, 60, slot=2), engine.oracle.tokens
    engine.running.append(request)
    engine.free_slots.remove(2)
    wrong = 62 if step else 30

    def broken(one):
        query, key, value = tokens(one)
        key[1, 0, 3] = value[wrong, 1, 5] = float("nan")
        return query, key, value

    engine.oracle.tokens = broken
    noted = []
    for count in [60] + [1] * 20:
        engine.forward([(request, count)])
        if engine.kv.bad.tolist() != [operators.NO_FAULT] * 2:
            noted.append((request.done, engine.kv.bad[0].item() == operators.NO_FAULT, engine.kv.bad[1].item() % 2))
            engine.kv.bad.fill_(operators.NO_FAULT)
    assert noted == [(63 if step else 60, True, 1)]


def test_steps_of_the_same_requests_send_their_slots_once(monkeypatch):
    """Other slots, as many or fewer, and a pass with a chunk between two steps have the right windows."""
    table, blocks, calls, send = SlotTable(4, 3, "cpu"), torch.arange(12, dtype=torch.int32).view(4, 3), [], slot_kv.sent
    monkeypatch.setattr(slot_kv, "sent", lambda *given: (calls.append(1), send(*given))[1])

    def windows(slots, counts, expected_calls):
        calls.clear()
        n = len(slots)
        made = table.rows(slots, [60] * n, counts, torch.full((n,), 70, dtype=torch.int32), blocks[:n], torch.arange(sum(counts)))
        assert made.window_table.tolist() == [[3 * s, 3 * s + 1, 3 * s + 2] for s in slots] and len(calls) == expected_calls
        assert made.lengths.tolist() == [70] * n

    windows([2, 0, 3], [1, 1, 1], 1)
    windows([2, 0, 3], [1, 1, 1], 0)
    windows([2, 0], [1, 1], 1)
    windows([0, 2, 3], [1, 1, 1], 1)
    windows([0, 2, 1], [1, 1, 9], 1)
    windows([0, 2, 3], [1, 1, 1], 0)
    windows([0, 2, 3], [1, 1, 1], 0)


def test_the_last_layer_codes_for_all():
    """A StepFlush runs once in a pass, when all layers have the step's tokens; without one, each layer codes its own."""
    code = LayerCode(GOLDEN_BUNDLE, GOLDEN_BUNDLE.layers[0])
    layers = [SlotKV(code, 2, 200, 2) for _ in range(3)]
    pools = [kv.pool(torch.zeros(4, 2, 64, code.page_bytes // 64, dtype=torch.uint8)) for kv in layers]
    table, ran = SlotTable(2, layers[0].window_pages, "cpu"), []

    def run(held):
        ran.append([bool(kv.windows.any()) for kv in layers])
        for kv, pool in zip(layers, pools):
            kv.tiers.flush_tokens(dataclasses.replace(held, pool=pool, windows=kv.windows), kv.bad)

    for flush in (types.SimpleNamespace(last=layers[2], run=run), None):
        for kv, pool in zip(layers, pools):
            kv.windows.zero_(), pool.zero_()
        rows = table.rows([1], [5], [1], torch.tensor([6], dtype=torch.int32), torch.tensor([[3, 2]], dtype=torch.int32), torch.tensor([5]))
        rows.flush = flush
        for kv, pool in zip(layers, pools):
            assert not bool(pool.any())
            kv.forward(pool, rows, *(torch.ones(1, h, 32) + torch.arange(32) / 9 for h in (4, 2, 2)), SCALE, torch.empty(1, 4, 32))
        assert all(bool(pool[3].any()) and not bool(pool[:3].any()) for pool in pools)
    assert ran == [[True] * 3]


def test_the_simulator_sees_a_wrong_block():
    """The comparison can fail: one request reads a block that is not its own."""
    engine = Engine(GOLDEN_BUNDLE, 0)
    request = Request(300, 1, 299)
    request.slot = engine.free_slots.pop()
    engine.running.append(request)
    engine.forward([(request, 250)])
    request.blocks[1] = engine.free_blocks[0]
    with pytest.raises(AssertionError, match="after 250"):
        engine.forward([(request, 1)])


@pytest.mark.parametrize("slots", [[-1], [9]])
def test_dummy_requests_touch_nothing(slots):
    engine = Engine(GOLDEN_BUNDLE, 0)
    before = engine.pool.clone()
    for tokens in (1, 90):
        rows = engine.table.rows(slots, [0], [tokens], torch.tensor([tokens], dtype=torch.int32), torch.zeros(1, 6, dtype=torch.int32),
                                 torch.zeros(tokens, dtype=torch.int64))
        assert rows.lengths.tolist() == [0]
        query, key, value = (torch.randn(tokens, h, 32) for h in (4, 2, 2))
        engine.kv.forward(engine.pool, rows, query, key, value, SCALE, torch.empty_like(query))
    assert torch.equal(engine.pool, before) and not bool(engine.kv.windows.any())


def test_tensors_stay_where_a_captured_graph_has_read_them():
    table = SlotTable(4, 3, "cpu")
    places = set()
    for count in (4, 4, 2):
        rows = table.rows([2, 0][:count], [5, 6], [1, 1], torch.arange(1, count + 1, dtype=torch.int32), torch.zeros(count, 8, dtype=torch.int32)[:, :6],
                          torch.arange(count))
        places.add((rows.lengths.data_ptr(), rows.table.data_ptr(), rows.window_table.data_ptr()))
        assert rows.lengths.tolist() == [1, 2, 0, 0][:count]
        assert rows.window_table.tolist() == [[6, 7, 8], [0, 1, 2], [12, 13, 14], [12, 13, 14]][:count]
    assert len(places) == 1


@pytest.mark.parametrize("cut", [slice(None), slice(0, 6)], ids=["the engine's own", "copied"])
def test_tables_of_another_width_are_refused(cut):
    """A captured graph would read the addresses and strides of the first ones."""
    table, batch = SlotTable(2, 3, "cpu"), ([0, 1], [5, 5], [1, 1], torch.ones(2, dtype=torch.int32))
    wide = torch.zeros(2, 8, dtype=torch.int32)[:, cut]
    assert (table.rows(*batch, wide, torch.arange(2)).table.data_ptr() == wide.data_ptr()) == wide.is_contiguous()
    with pytest.raises(InputError, match=f"block tables came with 4 columns after {wide.shape[1]};"):
        table.rows(*batch, torch.zeros(2, 4, dtype=torch.int32), torch.arange(2))


def test_refusals():
    code = LayerCode(GOLDEN_BUNDLE, GOLDEN_BUNDLE.layers[0])
    kv = SlotKV(code, 2, 100, 2)
    with pytest.raises(InputError, match="expected contiguous blocks of .* bytes"):
        kv.pool(torch.zeros(5, 2, 64, 7, dtype=torch.uint8))
    with pytest.raises(InputError, match="expected contiguous blocks"):
        kv.pool(torch.zeros(5, 64, 2, code.page_bytes // 64, dtype=torch.uint8).transpose(1, 2))
    with pytest.raises(InputError, match="a batch of 3 requests came to a cache of 2"):
        SlotTable(2, 2, "cpu").rows([0, 1], [0, 0], [1, 1], torch.ones(3), torch.zeros(3, 2), torch.zeros(3))
