"""Windows that go by block (oscar_kv.cache.overlay_kv) under a simulated block manager with prefix caching: shared first tokens, blocks that
are found again, preemption, chunks mixed with single tokens, padded rows. Every output is compared with textbook attention over what
the request should hold, BF16 where its blocks still have their copies and codes where not."""
import pytest

torch = pytest.importorskip("torch")

from block_engine import PrefixEngine, Request, families  # noqa: E402
from oscar_kv.ops import load  # noqa: E402
from oscar_kv.files.errors import InputError  # noqa: E402
from oscar_kv.cache.overlay_kv import OverlayKV  # noqa: E402
from oscar_kv.cache.overlay_table import OverlayTable, blocks_of_window  # noqa: E402
from oscar_kv.cache.paged_kv import LayerCode  # noqa: E402
from oscar_kv.cache.transform import Phases  # noqa: E402
from random_bundles import random_bundle  # noqa: E402

DEVICES = ["cpu", "cuda"] if load.missing() is None else ["cpu"]
BLOCKS = (4, 2, 1, 1)


def engine_of(widths, device="cpu", d=32, rotated_mean=False, blocks=24, seed=3):
    bundle = random_bundle(d=d if device == "cpu" else 64, key=widths, value=widths, sink=64, recent=40, rotated_mean=rotated_mean)
    d = bundle.layers[0].head_dim
    phases = Phases(10000.0 ** -(torch.arange(d // 2) / (d // 2))) if rotated_mean else None
    return PrefixEngine(bundle, 0, blocks=blocks, seed=seed, device=device, phases=phases)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("widths,rotated_mean", [(None, False), (BLOCKS, False), (BLOCKS, True)])
def test_requests_that_share_blocks(widths, rotated_mean, device):
    engine = engine_of(widths, device, rotated_mean=rotated_mean)
    engine.run(families(5, 330))
    assert engine.kinds >= {"decode", "mixed"} and engine.preempted > 1 and engine.compared > 80
    assert engine.hits > 10 and engine.coded > 10 and engine.kept > 10, (engine.hits, engine.coded, engine.kept)
    assert sorted(engine.free_slots) == [0, 1, 2, 3] and len(set(engine.free_blocks)) == 23


@pytest.mark.parametrize("device", DEVICES)
def test_sink_logits(device):
    engine = engine_of(BLOCKS, device)
    engine.oracle.sinks = torch.tensor([0.5, -1.0, 2.5, 0.0])
    engine.run(families(4, 330))
    assert engine.kinds >= {"decode", "mixed"} and engine.compared > 50 and engine.hits > 5 and engine.coded > 5


def test_the_simulator_sees_a_copy_of_other_tokens():
    """The comparison can fail: a block's entry is that of another block."""
    engine = engine_of(BLOCKS)
    request = Request(300, 1, 299, slot=engine.free_slots.pop())
    engine.running.append(request)
    engine.forward([(request, 250)])
    entry = engine.table._entry_of
    entry[request.blocks[0]] = entry[request.blocks[3]]
    with pytest.raises(AssertionError, match="after 250"):
        engine.forward([(request, 1)])


def test_a_whole_prompt_that_is_found_decodes_at_once():
    """All but one token of a prompt are another's blocks: its first pass is a single token in a batch of single tokens."""
    engine = engine_of(BLOCKS, seed=8)
    first, other = (Request(200, seed, 193, family=1, shared=193) for seed in (1, 2))
    for request in (first, other):
        request.slot = engine.free_slots.pop()
        engine.admit(request)
        engine.running.append(request)
        if request is first:
            engine.forward([(request, 193)])
    assert other.done == 192
    engine.forward([(first, 1), (other, 1)])
    assert engine.kinds == {"prefill", "decode"} and engine.kept > 0


def test_chunks_leave_no_copies_of_what_was_there():
    """A block that a chunk has written past its entry has none, although one of its last life was there."""
    engine = engine_of(BLOCKS, blocks=8)
    a, b = Request(130, 1, 129), Request(380, 2, 379)
    for request in (a, b):
        request.slot = engine.free_slots.pop()
        engine.running.append(request)
    engine.forward([(a, 129)])
    old = list(a.blocks)
    engine.release(a)
    engine.free_blocks = [x for x in engine.free_blocks if x not in old] + old  # taken next
    engine.forward([(b, 370)])
    middle = [block for block in b.blocks[1:4]]
    assert set(middle) & set(old) and not any(engine.table.has_entry(block) for block in middle)
    assert all(engine.table.has_entry(block) for block in (b.blocks[0], *b.blocks[4:]))


def test_tensors_stay_where_a_captured_graph_has_read_them():
    table, places = OverlayTable(4, 1, 2, "cpu", blocks=20), set()
    blocks = torch.arange(24, dtype=torch.int32).view(4, 6) % 20
    for count in (4, 4, 2):
        rows = table.rows([2, 0][:count], [5, 6], [1, 1], torch.arange(6, 6 + count, dtype=torch.int32), blocks[:count], torch.arange(count))
        overlay = rows.overlay
        places.add(tuple(t.data_ptr() for t in (rows.lengths, rows.table, rows.window_table, overlay.blocks, overlay.ring)))
        assert rows.lengths.tolist()[2:] == [0, 0][:count - 2] and rows.table[1, 0] == 7
        assert rows.window_table[0, 0] == overlay.ring[0, 0] != rows.window_table[1, 0] and rows.window_table[0, 2] == table.entries
    assert len(places) == 1


def test_a_request_that_waits_keeps_its_entries():
    """Others come and go in the slot beside it, each with fresh blocks; there are no more entries than running requests need."""
    table, one = OverlayTable(2, 1, 2, "cpu", spare=0, blocks=200), torch.tensor([0])
    held = torch.tensor([[1, 2, 3, 4]], dtype=torch.int32)
    table.rows([0], [0], [200], torch.tensor([200], dtype=torch.int32), held, torch.arange(200))
    for turn in range(20):
        fresh = torch.arange(10 + 4 * turn, 14 + 4 * turn, dtype=torch.int32)[None]
        table.rows([1], [0], [200], torch.tensor([200], dtype=torch.int32), fresh, torch.arange(200))
    assert all(table.has_entry(block) for block in (1, 3, 4)) and not table.has_entry(2)
    rows = table.rows([0], [200], [1], torch.tensor([201], dtype=torch.int32), held, one)
    assert rows.overlay.fills is None and len(set(rows.window_table[0].tolist())) == 3


def test_a_block_that_two_requests_find_has_one_entry():
    table = OverlayTable(2, 1, 2, "cpu", blocks=20)
    blocks = torch.tensor([[1, 2, 3], [1, 2, 4]], dtype=torch.int32)
    table.rows([0], [0], [64], torch.tensor([64], dtype=torch.int32), blocks[:1], torch.arange(64))
    rows = table.rows([0, 1], [128, 128], [1, 1], torch.tensor([129, 129], dtype=torch.int32), blocks, torch.arange(2))
    assert rows.overlay.fills[0].tolist() == [2] and torch.equal(rows.window_table[0, [0, 2]], rows.window_table[1, [0, 2]])
    assert [(table._block_of == block).sum() for block in (1, 2, 3, 4)] == [1, 1, 1, 1]


def test_sinks_are_the_last_to_go():
    """Requests of 200 tokens each, one after another: windows of ended ones give their entries up, and then the sinks that ended first."""
    table, known = OverlayTable(1, 1, 2, "cpu", spare=5, blocks=200), []
    for turn in range(20):
        blocks = torch.arange(4 * turn, 4 * turn + 4, dtype=torch.int32)[None]
        table.rows([0], [0], [200], torch.tensor([200], dtype=torch.int32), blocks, torch.arange(200))
        known.append(4 * turn)
        assert [table.has_entry(block) for block in known[-6:]] == [True] * min(turn + 1, 6)
    assert not table.has_entry(known[-7]) and table.keep(torch.tensor([known[-6]]))
    table.rows([0], [0], [200], torch.tensor([200], dtype=torch.int32), torch.tensor([[190, 191, 192, 193]]), torch.arange(200))
    assert table.has_entry(known[-6]) and not table.keep(torch.tensor([known[-5]]))


def test_a_request_without_its_sink_is_refused():
    table = OverlayTable(2, 1, 2, "cpu", blocks=20)
    with pytest.raises(InputError, match="64 tokens of another one that are no longer in BF16"):
        table.rows([0], [128], [90], torch.tensor([218], dtype=torch.int32), torch.tensor([[1, 2, 3, 4]], dtype=torch.int32), torch.arange(90))


def test_windows_in_blocks():
    assert [blocks_of_window(n) for n in (1, 2, 64, 65, 66, 256)] == [1, 2, 2, 2, 3, 5]


def test_an_engine_that_moves_requests_is_told():
    table = OverlayTable(4, 1, 2, "cpu", blocks=20)
    step = dict(lengths=torch.tensor([71], dtype=torch.int32), table=torch.tensor([[3, 4, 5]], dtype=torch.int32), slot_mapping=torch.tensor([0]))
    table.rows([1], [70], [1], **step)  # nothing was known of its 70 tokens
    with pytest.raises(InputError, match="moved a running request to another slot"):
        table.rows([1], [128], [1], torch.tensor([129], dtype=torch.int32), step["table"], step["slot_mapping"])


def test_blocks_of_another_request_in_the_same_step_are_refused():
    """A request of 300 tokens and one whose first 128 tokens are in its blocks. Decode steps and a later pass are served."""
    def rows(starts, counts):
        table = OverlayTable(2, 1, 2, "cpu", blocks=20)
        blocks = torch.tensor([[1, 2, 3, 4, 5], [1, 2, 6, 7, 8]], dtype=torch.int32)
        table.rows([0], [0], [64], torch.tensor([64], dtype=torch.int32), blocks[:1], torch.arange(64))
        lengths = torch.tensor([n + c for n, c in zip(starts, counts)], dtype=torch.int32)
        return table.rows([0, 1], starts, counts, lengths, blocks, torch.arange(sum(counts)))

    for starts, counts in (([0, 128], [300, 90]), ([64, 128], [200, 1])):
        with pytest.raises(InputError, match="another request writes in the same step"):
            rows(starts, counts)
    for starts, counts in (([128, 128], [170, 90]), ([128, 128], [1, 1]), ([300, 128], [1, 90]), ([128, 128], [90, 1])):
        assert len(rows(starts, counts).chunks) == sum(c > 1 for c in counts)


def test_refusals():
    bundle = random_bundle(d=32, sink=16, recent=40)
    with pytest.raises(InputError, match="a sink of whole blocks of 64 tokens, the bundle has 16"):
        OverlayKV(LayerCode(bundle, bundle.layers[0]), 2, 100, 2)
    bundle = random_bundle(d=32, sink=64, recent=40)
    kv = OverlayKV(LayerCode(bundle, bundle.layers[0]), 2, 100, 2)
    with pytest.raises(InputError, match="before the engine has shown its memory"):
        kv.fill(torch.tensor([1]), torch.tensor([0]))
    with pytest.raises(InputError, match="block tables of 1 blocks have no room behind the 1 of the sink"):
        OverlayTable(2, 1, 2, "cpu").rows([0], [0], [1], torch.ones(1, dtype=torch.int32), torch.zeros(1, 1, dtype=torch.int32), torch.zeros(1))
