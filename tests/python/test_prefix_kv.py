"""Blocks that requests share (oscar_kv.cache.prefix_table) under a simulated block manager with prefix caching: shared first tokens, blocks
that are found again, preemption, chunks mixed with single tokens, padded rows. Every output is compared with textbook attention over what
the request should hold: the sink and its own window in BF16, codes elsewhere."""
import collections
import functools

import pytest

torch = pytest.importorskip("torch")

from block_engine import PrefixEngine, Request, families  # noqa: E402
from oscar_kv.ops import load  # noqa: E402
from oscar_kv.files.errors import InputError  # noqa: E402
from oscar_kv.cache.paged_kv import LayerCode  # noqa: E402
from oscar_kv.cache.slot_kv import SlotKV  # noqa: E402
from oscar_kv.cache.prefix_table import PrefixTable, computed_tokens, kept_sinks  # noqa: E402
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
    engine.run(families(5, 330, 20))
    assert engine.kinds >= {"decode", "mixed"} and engine.preempted > 1 and engine.compared > 80
    assert engine.hits > 10 and engine.lost > 0 and engine.coded > 3 and engine.whole > 5, (engine.hits, engine.lost, engine.coded, engine.whole)
    assert sorted(engine.free_slots) == [0, 1, 2, 3] and len(set(engine.free_blocks)) == 23


@pytest.mark.parametrize("device", DEVICES)
def test_sink_logits(device):
    engine = engine_of(BLOCKS, device)
    engine.oracle.sinks = torch.tensor([0.5, -1.0, 2.5, 0.0])
    engine.run(families(4, 330, 16))
    assert engine.kinds >= {"decode", "mixed"} and engine.compared > 50 and engine.hits > 3


def begin(engine, *made):
    for request in made:
        request.slot = engine.free_slots.pop()
        engine.admit(request)
        engine.running.append(request)


def test_the_simulator_sees_the_sink_of_another():
    """The comparison can fail: a request gets a sink that is not its own."""
    engine = engine_of(BLOCKS)
    first, other, third = Request(200, 1, 193, family=1, shared=130), Request(200, 2, 193), Request(200, 3, 193, family=1, shared=130)
    begin(engine, first, other)
    engine.forward([(first, 193), (other, 193)])
    begin(engine, third)
    assert third.done == 128
    engine.table._tags[:2] = engine.table._tags[[1, 0]]
    with pytest.raises(AssertionError, match="65 tokens after 128"):
        engine.forward([(third, 65)])


def test_a_step_without_a_whole_window_is_refused():
    """The first pass after a hit has fewer tokens than a window. Chunks are right, and steps of single tokens would read another request's."""
    engine = engine_of(BLOCKS)
    first, other = (Request(230, seed, 200, family=1, shared=150) for seed in (1, 2))
    begin(engine, first)
    engine.forward([(first, 200)])
    engine.release(first)
    begin(engine, other)
    assert other.slot == 3 and other.done == 128
    for count in (10, 8):
        engine.forward([(other, count)])
    with pytest.raises(InputError, match="began with 128 tokens of others has computed 18 when .* its window has 40"):
        engine.forward([(other, 1)])
    engine.forward([(other, 30)])
    engine.forward([(other, 1)])


def table_of(slots=4, kept=4, recent=40):
    requests = collections.Counter(range(slots))
    table = PrefixTable(slots, 1, 2, "cpu", kept, recent, requests.__getitem__)
    table.requests = requests
    return table


def chunk(table, slot, start, count, blocks, new=None, columns=0):
    """One request in a pass of its own, in these blocks; new: its first pass, which is also one that begins at 0. columns: of the engine's tables."""
    table.requests[slot] += (start == 0) if new is None else new
    blocks = torch.tensor([blocks + [0] * (columns - len(blocks))], dtype=torch.int32)
    return table.rows([slot], [start], [count], torch.tensor([start + count], dtype=torch.int32), blocks, torch.arange(count))


def test_tensors_stay_where_a_captured_graph_has_read_them():
    table, places = table_of(), set()
    table.requests.clear()
    blocks = torch.arange(24, dtype=torch.int32).view(4, 6) % 20
    for count in (4, 4, 2):
        rows = table.rows([2, 0][:count], [5, 6], [1, 1], torch.arange(6, 6 + count, dtype=torch.int32), blocks[:count], torch.arange(count))
        places.add(tuple(t.data_ptr() for t in (rows.lengths, rows.table, rows.window_table)))
        assert rows.lengths.tolist()[2:] == [0, 0][:count - 2] and rows.table[1, 0] == 7 and rows.sinks is None
        assert rows.window_table[0].tolist() == [6, 7, 8] and rows.window_table[1].tolist() == [0, 1, 2]
    assert len(places) == 1


def test_sinks_are_kept_in_turn():
    """Four are kept: each request that computes a whole one takes the place of the first."""
    table, first = table_of(slots=2), 3 * 3  # window pages of slots
    for turn in range(7):
        rows = chunk(table, turn % 2, 0, 200, [10 * turn, 1, 2, 3])
        assert rows.chunks[0].kept == first + turn % 4
        assert [table.holds(torch.tensor(10 * t)) for t in range(turn + 1)] == [t > turn - 4 for t in range(turn + 1)]
    chunk(table, 0, 0, 30, [40, 1, 2, 3])   # a block that holds other tokens now, and not yet a whole sink
    chunk(table, 1, 0, 1, [50, 1, 2, 3])    # nor here
    assert [table.holds(torch.tensor(10 * t)) for t in (3, 4, 5, 6)] == [True, False, False, True]


def test_more_requests_begin_than_sinks_are_kept():
    table = table_of(slots=6, kept=4)
    rows = table.rows(range(6), [0] * 6, [70] * 6, torch.full((6,), 70, dtype=torch.int32), torch.arange(12, dtype=torch.int32).view(6, 2),
                      torch.arange(420))
    assert [c.kept for c in rows.chunks] == [21, 22, 23, 24, -1, -1] and table._next == 0


def test_where_a_sink_comes_from():
    """From the kept one, once, when the slot gets a request that begins with others' blocks. Without one, the next pass refuses."""
    table, wide = table_of(), functools.partial(chunk, columns=8)
    wide(table, 0, 0, 200, [1, 2, 3, 4])
    rows = wide(table, 3, 128, 90, [1, 2, 6, 7], new=True)
    assert [t.tolist() for t in rows.sinks] == [[9], [15]] and rows.chunks[0].own == 128  # into slot 3, from the first kept one
    for block in range(20, 24):
        wide(table, 1, 0, 70, [block, 30])
    for start in (218, 320):  # later chunks need none, even at a block's end, and know what is their own
        rows = wide(table, 3, start, 70, [1, 2, 6, 7, 8, 9, 9])
        assert rows.sinks is None and rows.chunks[0].own == 128
    rows = wide(table, 1, 64, 70, [23, 30, 31])
    assert rows.sinks is None and rows.chunks[0].own == 0
    assert wide(table, 1, 64, 70, [23, 30, 31], new=True).chunks[0].own == 64  # the same numbers, and another request
    wide(table, 2, 128, 90, [1, 2, 6, 7], new=True)  # no longer kept
    with pytest.raises(InputError, match="64 tokens of another one that are no longer in BF16"):
        wide(table, 2, 218, 1, [1, 2, 6, 7])


def test_what_is_no_request():
    """Passes that an engine makes up for a trial, in slots that no request has had, and rows of padding."""
    table = table_of()
    table.requests.clear()
    rows = table.rows([0, 1, -1], [300, 0, 0], [1, 1, 1], torch.tensor([301, 1, 1], dtype=torch.int32), torch.zeros(3, 6, dtype=torch.int32),
                      torch.arange(3))
    assert rows.sinks is None and table._known == {} and not table.holds(torch.tensor(0))
    with pytest.raises(InputError, match="does not tell the slots of prompts on the host"):
        table.rows(torch.tensor([0]), [0], [70], torch.tensor([70], dtype=torch.int32), torch.zeros(1, 6, dtype=torch.int32), torch.arange(70))


def test_blocks_of_another_request_in_the_same_step_are_refused():
    """A request of 300 tokens and one whose first 128 tokens are in its blocks. Decode steps and a later pass are served."""
    def faults(starts, counts):
        table = table_of(slots=2)
        chunk(table, 0, 0, 64, [1, 2, 3, 4, 5])
        lengths = torch.tensor([n + c for n, c in zip(starts, counts)], dtype=torch.int32)
        blocks = torch.tensor([[1, 2, 3, 4, 5], [1, 2, 6, 7, 8]], dtype=torch.int32)
        table.requests[1] = 2 * (counts[1] > 1)
        table.rows([0, 1], starts, counts, lengths, blocks, torch.arange(sum(counts)))
        return table

    with pytest.raises(InputError, match="another request wrote in the same step"):
        chunk(faults([64, 128], [200, 90]), 0, 264, 1, [1, 2, 3, 4, 5])
    for starts, counts in (([128, 128], [170, 90]), ([128, 128], [1, 1]), ([290, 128], [1, 90]), ([128, 128], [90, 1])):
        chunk(faults(starts, counts), 0, starts[0] + counts[0], 1, [1, 2, 3, 4, 5])


def test_numbers_of_the_engine():
    assert computed_tokens(256) == 769 and computed_tokens(40, 4) == 124 and kept_sinks(64, 1) == 64 and kept_sinks(256, 2) == 80


def test_refusals():
    bundle = random_bundle(d=32, sink=16, recent=40)
    with pytest.raises(InputError, match="a sink of whole blocks of 64 tokens, the bundle has 16"):
        SlotKV(LayerCode(bundle, bundle.layers[0]), 2, 100, 2, kept=4)
    with pytest.raises(InputError, match="block tables of 1 blocks have no room after the 1 of the sink"):
        chunk(table_of(), 0, 0, 1, [1])
