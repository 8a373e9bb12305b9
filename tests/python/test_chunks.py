"""Chunks of prompts in a serving engine: the plan of a pass against counting token by token, stored rows that come back against what the
tiers hold, and pasts that are longer than the buffer."""
import random
import sys
import types

import pytest

torch = pytest.importorskip("torch")

from block_engine import SCALE, Engine, Oracle, PrefixEngine, Request, families, requests  # noqa: E402
from conftest import GOLDEN  # noqa: E402
from oscar_kv.cache import chunk_pass, chunk_plan, flash  # noqa: E402
from oscar_kv.ops import load, operators  # noqa: E402
from oscar_kv.engines.sglang.serving import flash_attention  # noqa: E402
from oscar_kv.format.bundle import load_bundle  # noqa: E402
from oscar_kv.cache.chunk_plan import Chunk, ChunkWork  # noqa: E402
from oscar_kv.format.windows import Policy  # noqa: E402
from oscar_kv.ops.tables import CODES, NEW, WINDOW  # noqa: E402
from oscar_kv.ops.chunk_reference import split_matrix  # noqa: E402
from oscar_kv.cache.paged_kv import LayerCode  # noqa: E402
from oscar_kv.cache.transform import Phases  # noqa: E402
from random_bundles import random_bundle  # noqa: E402

GOLDEN_BUNDLE = load_bundle(GOLDEN / "bundle")
POLICIES = [Policy(64, 256, 5), Policy(16, 40, 1), Policy(0, 1, 1), Policy(100, 48, 2), Policy(128, 40, 2)]
DEVICES = ["cpu", "cuda"] if load.missing() is None else ["cpu"]


def batches(seed):
    """Chunks as an engine brings them: tokens one after another, some requests at their start, some far in."""
    chosen = random.Random(seed)
    made, first = [], chosen.choice([0, 3])
    for row in range(chosen.randint(1, 6)):
        start, count = chosen.choice([0, 0, 1, 63, 64, 100, 321, 700, 1500]), chosen.choice([2, 5, 64, 65, 200, 400])
        made.append(Chunk(row, first, start, count, own=start - 70 if start > 100 and row % 2 else 0, kept=30 * row if start == 0 and count > 128 else -1))
        first += count
    return made


def kind_of(policy, chunk, position):
    """What a stored token is read as, by the definition of the tiers."""
    end = max(chunk.own, policy.quantized_end(chunk.start))
    return CODES if policy.sink <= position < end else WINDOW


@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize("room", [64, 500, 10 ** 6])
def test_every_query_sees_its_sequence_once(policy, room):
    for seed in range(40):
        chunks = batches(seed)
        base, seen = chunks[0].first, {c.row: [] for c in chunks}
        for one in chunk_plan.plan_passes(policy, chunks, room):
            inside = [c for c in chunks if one.begin <= c.first - base < one.end]
            assert [one.begin + e for e in one.ends[:-1]] == [c.first - base for c in inside] and one.ends[-1] == one.end - one.begin
            assert len(one.key_ends) == len(one.ends) and one.causal != one.merged
            assert one.tiles is None or one.key_ends[-1] <= room
            for i, c in enumerate(inside):
                rows = range(one.key_ends[i], one.key_ends[i + 1])
                if one.tiles is None:
                    assert [one.begin + r for r in rows] == list(range(c.first - base, c.first - base + c.count))
                    seen[c.row] += range(c.start, c.start + c.count)
                    continue
                at = {}
                for kind, out_row, count, row, place, slot, position in (t for t in one.tiles if t[3] == c.row):
                    for k in range(count):
                        p = position + k
                        assert kind == (NEW if p >= c.start else kind_of(policy, c, p)) and slot + k < 64
                        if kind == NEW:
                            assert place + k == c.first - base + p - c.start
                        elif kind == CODES:
                            assert (place, slot + k) == divmod(p - policy.sink, 64)
                        else:
                            in_ring = p % (64 * policy.ring_pages)
                            assert (place, slot + k) == (p // 64 if p < policy.sink else policy.sink_pages + in_ring // 64, p % 64)
                        at[out_row + k] = p
                assert sorted(at) == list(rows) and list(at[r] for r in rows) == sorted(at.values())
                assert one.merged or at[rows[-1]] == c.start + c.count - 1  # causal: the last rows are the new ones
                seen[c.row] += at.values()
        assert all(sorted(seen[c.row]) == list(range(c.start + c.count)) for c in chunks)


@pytest.mark.parametrize("policy", POLICIES)
def test_every_new_token_is_stored_once(policy):
    for seed in range(40):
        chunks = batches(seed)
        base, paged, kept = chunks[0].first, {}, {}
        for first, count, row, page, slot, position, column in chunk_plan.new_runs(policy, chunks):
            assert slot + count <= 64 and (column < 0 or position % 64 + count <= 64) and (page >= 0 or column >= 0)
            c = chunks[row]
            for k in range(count):
                assert first + k == c.first - base + position + k - c.start
                if page >= 0:
                    assert (row, position + k) not in paged and page * 64 + slot + k == position + k - policy.sink
                    paged[row, position + k] = page
                if column >= 0:
                    kept[row, position + k] = column
        for c in chunks:
            coded = policy.quantized_end(c.start + c.count)
            for p in range(c.start + c.count):
                assert ((c.row, p) in paged) == (p >= max(c.start, policy.sink))
                assert ((c.row, p) in kept) == (p >= c.start and not policy.sink <= p < coded)
        pages = [(row, page) for row, page in {(r, p): n for (r, p), n in paged.items()}.items()]
        assert pages or policy.recent > 0
        copies = {(page, slot): first for first, count, _, _, at, page in chunk_plan.kept_runs(policy, chunks) for slot in range(at, at + count)}
        copied = [c for c in chunks if c.kept >= 0]
        assert set(copies) == {(c.kept + p // 64, p) for c in copied for p in range(policy.sink)}
        assert all(copies[c.kept + p // 64, p] == c.first - base + p - p % 64 for c in copied for p in range(policy.sink))


@pytest.mark.parametrize("policy", POLICIES)
def test_runs_of_a_launch_share_no_page(policy):
    most = 0
    for seed in range(40):
        pages = [(run[2], run[3]) for run in chunk_plan.new_runs(policy, batches(seed)) if run[3] >= 0]
        most = max(most, len(pages))
        assert len(pages) == len(set(pages))
    assert most > 9


def engine_of(kind, device, **bundle):
    made = random_bundle(d=64, recent=40, **bundle)
    phases = Phases(10000.0 ** -(torch.arange(32) / 32)) if bundle.get("rotated_mean") else None
    return kind(made, 0, device=device, seed=5, phases=phases)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("kind,sink", [(Engine, 16), (PrefixEngine, 64)])
@pytest.mark.parametrize("layout", [dict(), dict(key=(4, 2, 1, 1), value=(4, 2, 1, 1), rotated_mean=True), dict(key=(2, 1, 0, 1), value=(4, 0, 1, 1))])
def test_pasts_longer_than_the_buffer(kind, sink, layout, device):
    if layout == dict():
        layout = dict(centered=False)
    engine = engine_of(kind, device, sink=sink, **layout)
    engine.kv.room, parts, attention = 64, [], flash.attention

    def counted(*arguments):
        parts.append(arguments[3].causal)
        return attention(*arguments)

    flash.attention = counted
    try:
        engine.run(families(6, 330) if kind is PrefixEngine else requests(21, 330))
    finally:
        flash.attention = attention
    assert engine.compared > 40 and parts.count(False) > 10


def test_stored_rows_come_back():
    """past_rows gives what the tiers hold, out of the basis of the cache."""
    for layer in (0, 1):
        engine = Engine(GOLDEN_BUNDLE, layer, seed=3)
        oracle, request = Oracle(engine.kv.code, 2), Request(300, 7, 250, slot=1)
        engine.free_slots.remove(1)
        engine.running.append(request)
        for count in (150, 100):
            engine.forward([(request, count)])
        query, key, value = oracle.tokens(request)
        table = torch.tensor([(request.blocks + [0] * engine.width)[:engine.width]], dtype=torch.int32)
        rows = engine.table.rows([1], [250], [50], torch.tensor([300], dtype=torch.int32), table, torch.arange(50))
        work, code = ChunkWork(engine.kv.policy, rows.chunks, 1000, table, rows.window_table), engine.kv.code
        assert len(work.passes) == 1 and work.passes[0].keys == 300
        held = engine.kv.held(engine.pool, rows)
        keys, values = chunk_pass._rows_of(code, held, work.passes[0], key[250:], value[250:], None)
        stored, expected = oracle.stored(key, value, 250)
        back = torch.einsum("htd,hed->the", stored.float(), code.transform.query.expand(2, -1, -1))
        if code.transform.key_mean is not None:
            back = back + code.transform.key_mean
        assert torch.allclose(keys, torch.cat([back, key[250:]]), atol=1e-4)
        assert torch.allclose(values, torch.cat([expected.float().transpose(0, 1), value[250:]]), atol=1e-4)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("d", [64, 512])
def test_merged_parts_are_the_whole(d, device):
    torch.manual_seed(3)
    dtype = torch.float32 if device == "cpu" else torch.bfloat16
    logits, values = torch.randn(4, 7, 90), torch.randn(4, 90, d)
    parts = []
    for piece in (slice(0, 30), slice(30, 90)):
        parts += [(logits[..., piece].softmax(-1) @ values[:, piece]).transpose(0, 1).to(device, dtype), logits[..., piece].logsumexp(-1).to(device)]
    parts[3][2, 5] = -torch.inf  # saw nothing
    whole = (logits.softmax(-1) @ values).transpose(0, 1)
    whole[5, 2] = parts[0][5, 2].float().cpu()
    wide = torch.zeros(7, 6, d, dtype=dtype, device=device)
    out, lse = wide[:, :4], parts[1].clone()
    out.copy_(parts[0])
    operators.merge_outputs(out, lse, parts[2].contiguous(), parts[3])
    expected = logits.logsumexp(-1)
    expected[2, 5] = parts[1][2, 5].cpu()
    limit = 1e-5 if device == "cpu" else 1e-2
    assert (out.cpu().float() - whole).abs().max() <= limit and (lse.cpu() - expected).abs().max() <= 1e-4
    assert not bool(wide[:, 4:].any())


def test_two_terms_are_a_matrix():
    matrix = torch.randn(3, 64, 64)
    found = split_matrix(matrix)
    assert found.dtype is torch.bfloat16 and (found.float().sum(dim=1) - matrix).abs().max() <= 2 ** -16 * matrix.abs().max()


def cases(seed=4):
    """The same filled caches on both devices, with a chunk of each request."""
    for d, widths, rotated_mean in ((512, (4, 2, 1, 1), False), (512, (2, 1, 0, 1), True), (64, None, False), (128, None, False), (128, (4, 2, 1, 1), True), (256, (2, 1, 0, 1), True), (128, (1, 1, 2, 4), False)):
        bundle = random_bundle(d=d, key=widths, value=widths, sink=100, recent=48, rotated_mean=rotated_mean)
        phases = Phases(10000.0 ** -(torch.arange(0, d, 2) / d))
        yield bundle, [LayerCode(bundle, bundle.layers[0], phases, device) for device in ("cpu", "cuda")]


@pytest.mark.skipif("cuda" not in DEVICES, reason=str(load.missing()))
def test_operators_on_cuda():
    """Pages that both devices have filled hold nearly the same codes, and rows that come back from one cache are the same on both."""
    for bundle, codes in cases():
        layer, generator = bundle.layers[0], torch.Generator().manual_seed(11)
        policy = Policy(bundle.sink, bundle.recent, 2)
        chunks = [Chunk(0, 0, 0, 700), Chunk(1, 700, 0, 90), Chunk(2, 790, 0, 300)]
        more = [Chunk(0, 0, 700, 260), Chunk(1, 260, 90, 5), Chunk(2, 265, 300, 70)]
        rows = [torch.randn(1090, 2, layer.head_dim, generator=generator).bfloat16() for _ in range(4)]
        state = []
        for code in codes:
            device = code.device
            code.transform.reserve(1100, device)
            pool = torch.zeros(43, 2, code.page_bytes, dtype=torch.uint8, device=device)
            windows = torch.zeros(12, 2, 128 * layer.head_dim, dtype=torch.bfloat16, device=device)
            table = torch.arange(42, dtype=torch.int32, device=device).view(3, 14)
            window_table = torch.arange(12, dtype=torch.int32, device=device).view(3, 4)
            bad = torch.full((2,), operators.NO_FAULT, dtype=torch.int32, device=device)
            state.append((code, pool, windows, table, window_table, bad))
        from oscar_kv.cache.tiers import Held
        for step, batch in enumerate((chunks, more)):
            read = []
            for code, pool, windows, table, window_table, bad in state:
                device, count = code.device, sum(c.count for c in batch)
                key, value = (x[:count].to(device) for x in rows[2 * step:2 * step + 2])
                work = ChunkWork(policy, batch, 10 ** 6, table, window_table)
                held = Held(pool, table, windows, window_table, None)
                if step == 1:
                    buffer = torch.empty(2, work.passes[0].keys, 2, layer.head_dim, dtype=torch.bfloat16, device=device)
                    read.append([x.cpu().float() for x in chunk_pass._rows_of(code, held, work.passes[0], key, value, buffer)])
                chunk_pass.append(code, pool, windows, work.new, key, value, bad)
                assert bad.tolist() == [operators.NO_FAULT] * 2
            (_, pool, windows, *_), (_, other, other_windows, *_) = state
            assert (pool == other.cpu()).float().mean() >= 0.99 and bool(pool.any())
            assert (windows.float() - other_windows.cpu().float()).abs().max() <= 2 ** -7 * windows.float().abs().max()
            assert (windows == other_windows.cpu()).float().mean() > 0.98
            other.copy_(pool), other_windows.copy_(windows)
            for a, b in zip(*read) if read else ():
                assert (a - b).norm() <= 4e-3 * a.norm() and (a - b).abs().max() <= 2 ** -6 * a.abs().max()


@pytest.mark.skipif("cuda" not in DEVICES, reason=str(load.missing()))
@pytest.mark.parametrize("causal", [True, False])
@pytest.mark.parametrize("d", [128, 512])
def test_flash_attention_is_that_of_the_cpu(d, causal):
    generator = torch.Generator().manual_seed(2)
    query, key, value = (torch.randn(n, h, d, generator=generator).bfloat16() for n, h in ((400, 8), (900, 2), (900, 2)))
    one = chunk_plan.Pass(0, 400, [0, 150, 400], [0, 150, 900], causal=causal)
    one.longest, one.longest_key = 250, 750
    found = []
    for device in ("cpu", "cuda"):
        one.device_ends, one.device_key_ends = (torch.tensor(e, dtype=torch.int32, device=device) for e in (one.ends, one.key_ends))
        out = torch.empty_like(query, device=device)
        lse = flash.attention(*(x.to(device) for x in (query, key, value)), one, SCALE, out)
        found.append((out.cpu().float(), lse.cpu()))
    assert (found[0][0] - found[1][0]).abs().max() <= 2e-2 and (found[0][1] - found[1][1]).abs().max() <= 2e-3


@pytest.mark.parametrize("capability, error, served", [(9, None, True), (8, None, False), (9, ImportError("no kernels"), False)])
def test_flash_attention_of_sglang(capability, error, served, monkeypatch):
    """The adapter for SGLang hands in the kernels of its backend fa3 on Hopper, if they load."""
    def load():
        if error is not None:
            raise error
        return {"flash_attn_varlen_func": "its function"}

    parts = "sglang.kernels.ops.attention.flash_attention_v3".split(".")
    for i in range(1, len(parts) + 1):
        monkeypatch.setitem(sys.modules, ".".join(parts[:i]), types.ModuleType(parts[i - 1]))
    sys.modules[".".join(parts)]._load_fa3_kernels = load
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda: (capability, 0))
    assert flash_attention() == ("its function" if served else None)
