"""The cache of a serving engine under a simulated block manager: random physical blocks, slots that are used again, requests
that are preempted and start again, batches of single tokens and chunks, padded rows. Every output is compared with textbook
attention over what the request should hold."""
import pytest

torch = pytest.importorskip("torch")

from block_engine import SCALE, Engine, Request, requests  # noqa: E402
from conftest import GOLDEN  # noqa: E402
from oscar_kv.cache import chunk_pass  # noqa: E402
from oscar_kv.ops import load  # noqa: E402
from oscar_kv.format.bundle import load_bundle  # noqa: E402
from oscar_kv.files.errors import InputError  # noqa: E402
from oscar_kv.cache.paged_kv import LayerCode  # noqa: E402
from oscar_kv.cache.slot_kv import SlotKV, SlotTable  # noqa: E402
from oscar_kv.cache.transform import Phases  # noqa: E402
from random_bundles import random_bundle  # noqa: E402

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
