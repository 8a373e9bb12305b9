"""The CUDA operators against the torch reference on the CPU: every head size, layout and group of query heads that the kernels
have, graph capture, and generate() through attach(). Skipped where there is no GPU or the operators were not built."""
import dataclasses
import pathlib

import pytest

torch = pytest.importorskip("torch")

from block_engine import SCALE, Engine, PrefixEngine, families, requests  # noqa: E402
from conftest import SAMPLES, use_built_operators  # noqa: E402
from random_bundles import random_bundle  # noqa: E402

use_built_operators()
from cache_rows import coded_rows  # noqa: E402
from oscar_kv.cache import chunk_pass  # noqa: E402
from oscar_kv.engines import self_check  # noqa: E402
from oscar_kv.ops import load, operators, reference, support  # noqa: E402
from oscar_kv.ops.rule import Rule  # noqa: E402
from oscar_kv.ops.view import StepView  # noqa: E402
from oscar_kv.cache.shared import Shared  # noqa: E402
from oscar_kv.cache.layer_pass import LayerPass  # noqa: E402
from oscar_kv.cache.paged_kv import LayerCode, PagedKV, PageTable  # noqa: E402
from oscar_kv.cache.transform import Phases  # noqa: E402

REASON = load.missing()
pytestmark = pytest.mark.skipif(REASON is not None, reason=str(REASON))

LAYOUTS = {"uniform": (None, None), "4211": ((4, 2, 1, 1), (4, 2, 1, 1)), "2222": ((2, 2, 2, 2), (2, 2, 2, 2)),
           "4400": ((4, 4, 0, 0), (4, 4, 0, 0)), "1124-4112": ((1, 1, 2, 4), (4, 1, 1, 2)), "2100": ((2, 1, 0, 0), (0, 4, 0, 1))}


def caches(batch=2, **bundle):
    """The same empty cache on the CPU and on the GPU."""
    made = random_bundle(**bundle)
    phases = Phases(10000.0 ** -(torch.arange(0, made.layers[0].head_dim, 2) / made.layers[0].head_dim))
    return [PagedKV(LayerCode(made, made.layers[0], phases, device), PageTable(batch)) for device in ("cpu", "cuda")]


def randn(*shape, seed):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def filled(lengths=(1, 70, 330, 900, 1500), **bundle):
    """Both caches hold the same bytes of random rows: those that the CPU has written."""
    cpu, cuda = caches(len(lengths), **bundle)
    heads, d = cpu.code.layer.kv_heads, cpu.code.layer.head_dim
    cpu.append(randn(sum(lengths), heads, d, seed=2), randn(sum(lengths), heads, d, seed=3), list(lengths))
    copy(cpu, cuda)
    return cpu, cuda


def copy(cpu, cuda):
    cuda.table.pages, cuda.table.used, cuda.lengths = [list(p) for p in cpu.table.pages], cpu.table.used, list(cpu.lengths)
    cuda.windows, cuda.pool, cuda.device_lengths = (t.cuda() for t in (cpu.windows, cpu.pool, cpu.device_lengths))


def decode(cache, query, window=0, want_lse=True):
    code, (batch, heads, group, d) = cache.code, query.shape
    return operators.decode_attention(
        query, cache.pool, cache.table.tensor(code.device), cache.windows, cache.window_table, cache.device_lengths, code.key.sigma,
        code.value.sigma, None, None, None, Shared().workspace(query, d, group, batch, heads), d ** -0.5, code.sink, code.recent,
        window, want_lse, *code.numbers)


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("d,group", [(64, 1), (64, 12), (128, 1), (128, 4), (128, 5), (128, 8), (128, 16), (256, 2), (256, 9), (512, 1), (512, 5), (512, 8)])
@pytest.mark.parametrize("window", [0, 200])
def test_decode_attention(layout, d, group, window):
    if d == 512 and layout == "uniform":
        pytest.skip("no kernel")
    key, value = LAYOUTS[layout]
    cpu, cuda = filled(d=d, key=key, value=value)
    query = randn(5, 2, group, d, seed=4).bfloat16()
    expected, expected_lse = decode(cpu, query, window)
    output, lse = decode(cuda, query.cuda(), window)
    assert (output.cpu() - expected).abs().max() <= 2e-3 * expected.abs().max()
    assert (lse.cpu() - expected_lse).abs().max() <= 2e-3
    assert torch.equal(decode(cuda, query.cuda(), window, False)[0], output)


@pytest.mark.parametrize("sink,recent", [(0, 1), (4, 8), (64, 256), (100, 48), (16, 0)])
def test_windows_of_other_sizes(sink, recent):
    cpu, cuda = filled(sink=sink, recent=recent, key=(4, 2, 1, 1), value=(4, 2, 1, 1))
    query = randn(5, 2, 4, 128, seed=4).bfloat16()
    (expected, expected_lse), (output, lse) = decode(cpu, query), decode(cuda, query.cuda())
    assert (output.cpu() - expected).abs().max() <= 2e-3 * expected.abs().max() and (lse.cpu() - expected_lse).abs().max() <= 2e-3


@pytest.mark.parametrize("inference", [False, True])
def test_tables_are_looked_at_before_kernels_follow_them(inference):
    """As of test_table_checks.py, in inference mode, too; the state of layer_pass() stands for the arguments that it was made of."""
    _, cuda = filled()
    query = randn(5, 2, 4, 128, seed=4).bfloat16().cuda()
    with torch.inference_mode(inference):
        decode(cuda, query)
        table = cuda.table.tensor(cuda.code.device)
        run = LayerPass(cuda.code, cuda.pool, cuda.windows, cuda.bad, Shared().workspace(query, 128, 4, 5, 2), 1.0)
        rows = [randn(5, heads, 128, seed=5).bfloat16().cuda() for heads in (8, 8, 2, 2)]
        run(*rows, (table, cuda.window_table, cuda.device_lengths, None))
        first = int(table[4, 0])
        table[4, 0] = len(cuda.pool)
        for call in (lambda: decode(cuda, query), lambda: run(*rows, (table, cuda.window_table, cuda.device_lengths, None))):
            with pytest.raises(RuntimeError, match=f"page 0 of sequence 4 is {len(cuda.pool)}, expected 0 to"):
                call()
        table[4, 0] = first


def test_a_sequence_without_tokens_has_the_output_zero():
    _, cuda = filled()
    cuda.device_lengths[1] = 0
    output, lse = decode(cuda, randn(5, 2, 4, 128, seed=4).bfloat16().cuda())
    assert not output[1].any() and bool((lse[1] == -torch.inf).all()) and bool(output[0].any())


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("d", [64, 96, 128, 256, 512])
@pytest.mark.parametrize("encoder", ["search", "minmax"])
def test_pages(layout, d, encoder):
    """quantize_rows writes the bytes of the reference, dequantize_pages reads the same numbers back."""
    key, value = LAYOUTS[layout]
    group = 32 if layout == "uniform" and d == 96 else 0
    cpu, cuda = caches(batch=1, d=d, key=key, value=value, encoder=encoder, group=group)
    rows = [randn(300, 2, d, seed=s).bfloat16() for s in (5, 6)]
    runs = torch.tensor([[0, 64, 3, 0, 0], [64, 64, 0, 0, 0], [128, 5, 1, 59, 0], [133, 64, 2, 0, 0], [197, 1, 4, 7, 0]], dtype=torch.int32)
    pools, read = [], []
    for cache in (cpu, cuda):
        code, device = cache.code, cache.code.device
        pool = torch.zeros(5, 2, code.page_bytes, dtype=torch.uint8, device=device)
        operators.quantize_rows(pool, *(r.to(device) for r in rows), runs.to(device), code.key.sigma, code.value.sigma, *code.clip, cache.bad,
                                encoder == "search", *code.numbers)
        pools.append(pool.cpu())
        table = torch.tensor([[3, 0, 2]], dtype=torch.int32, device=device)
        read.append([x.cpu() for x in operators.dequantize_pages(pool, operators.page_runs(table, 5), code.key.sigma, code.value.sigma, *code.numbers)])
    assert torch.equal(*pools)
    for a, b in zip(*read):
        assert torch.equal(a, b) and bool(a.any() or layout == "none")


@pytest.mark.parametrize("d,heads", [(64, 1), (128, 2), (256, 2), (512, 2)])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
@pytest.mark.parametrize("lengths", [(1, 64, 65, 400, 900), (70,) * 50, (70,) * 350])  # rows by 1, 4 and 8 in a block
def test_append_tokens(d, heads, dtype, lengths):
    results = []
    for cache in filled(d=d, heads=heads, lengths=lengths):
        t, device = cache.code.transform, cache.code.device
        rows = [randn(len(lengths), n, d, seed=7 + n).to(device, dtype) for n in (8, 2, 3)]
        key, value = rows[1], rows[2][:, :2]  # value: a view with a stride
        for matrices in ((t.query, t.key_forward, t.value_forward, t.key_mean, t.value_mean), (None,) * 5):
            query = operators.append_tokens(cache.windows, cache.window_table, rows[0], key, value, cache.device_lengths, *matrices,
                                            cache.code.sink)
            results.append((query.cpu().float(), cache.windows.cpu().float()))
    for (query, windows), (expected_query, expected_windows), exact in ((results[2], results[0], False), (results[3], results[1], True)):
        for a, b in ((query, expected_query), (windows, expected_windows)):
            assert torch.equal(a, b) if exact else (a - b).abs().max() <= 2 ** -7 * b.abs().max()


def test_rotate_rows():
    (cpu, cuda), rows = caches(d=128), randn(700, 2, 128, seed=9)
    expected, found = (reference.rotate_rows(rows.to(t.key_mean.device), t.key_mean, t.key_forward) for t in (cpu.code.transform, cuda.code.transform))
    assert found.is_cuda and (found.cpu().float() - expected.float()).abs().max() <= 2 ** -7 * expected.float().abs().max()


@pytest.mark.parametrize("sink", [64, 16])
@pytest.mark.parametrize("layout", ["uniform", "4211"])
def test_flush_tokens(sink, layout):
    key, value = LAYOUTS[layout]
    cpu, cuda = filled(lengths=(1, sink, sink + 1, sink + 64, sink + 65, 1344), key=key, value=value, sink=sink)
    for cache in (cpu, cuda):
        code = cache.code
        pool = cache.pool.clone().zero_()
        operators.flush_tokens(pool, cache.windows, cache.window_table, cache.table.tensor(code.device), cache.device_lengths, code.key.sigma,
                               code.value.sigma, *code.clip, cache.bad, code.sink, True, *code.numbers)
        cache.pool = pool
    assert torch.equal(cuda.pool.cpu(), cpu.pool) and bool(cpu.pool.any())


@pytest.mark.parametrize("d", [64, 128, 256, 512])
@pytest.mark.parametrize("sequences", [1, 5, 60])
def test_flush_of_all_layers(d, sequences):
    """flush_layers and flush_tokens write what the reference of flush_tokens writes on the CPU in each layer, whatever codes and memory
    the layers have; sequences without a token after the sink leave everything as it was."""
    codes = [LAYOUTS["uniform"], LAYOUTS["4211"], ((4, 4, 4, 4), (0, 0, 0, 0)), LAYOUTS["2100"]]
    lengths = [40 if i == 3 else 330 + i for i in range(sequences)]
    made = []
    for seed, (key, value) in enumerate(codes):
        cache = caches(sequences, key=key, value=value, d=d, kv_heads=3, seed=seed)[1]
        cache.append(randn(sum(lengths), 3, d, seed=seed).cuda(), randn(sum(lengths), 3, d, seed=9 + seed).cuda(), lengths)
        made.append(cache)
    table, counted = made[0].table.tensor("cuda"), torch.tensor(lengths, dtype=torch.int32, device="cuda")
    if sequences > 4:
        counted[4] = 0
    pages = 1 + max(made[0].table.used, int(table.max()))
    pools = [torch.randint(256, (pages, *c.pool.shape[1:]), device="cuda").to(torch.uint8) for c in made]  # bits of other slots survive
    expected, alone = [p.cpu() for p in pools], [p.clone() for p in pools]
    sides = torch.zeros(2 * len(made), operators.SIDE_BYTES, dtype=torch.uint8)
    for i, (cache, pool) in enumerate(zip(made, pools)):
        side = cache.code.key.sigma, cache.code.value.sigma, *cache.code.clip
        given = cache.windows, cache.window_table, table, counted, *side, cache.bad
        operators.flush_tokens(alone[i], *given, 64, True, *cache.code.numbers)
        operators.flush_tokens(expected[i], *(x.cpu() for x in given), 64, True, *cache.code.numbers)
        operators.describe_layer(sides[2 * i:2 * i + 2], pool, cache.windows, *side, cache.bad, *cache.code.numbers)
    operators.flush_layers(counted, table, made[0].window_table, sides.cuda(), 3, d, 64, True)
    for a, b, c in zip(pools, alone, expected):
        assert torch.equal(a.cpu(), c) and torch.equal(b.cpu(), c)
    assert sequences == 1 or not torch.equal(pools[0], torch.zeros_like(pools[0]))
    assert all(bool((c.bad == operators.NO_FAULT).all()) for c in made)


@pytest.mark.parametrize("rotated_mean", [False, True])
@pytest.mark.parametrize("layout,d,group", [("uniform", 128, 4), ("4211", 128, 4), ("4211", 64, 2), ("1124-4112", 256, 1), ("4211", 512, 8), ("uniform", 64, 9)])
def test_steps_of_a_pass(layout, d, group, rotated_mean):
    """A step in the engine's own output, which is a part of wider rows; a sequence without tokens has the output 0."""
    if rotated_mean and layout == "uniform":
        pytest.skip("no kernel")
    key, value = LAYOUTS[layout]
    several = (1, 70, 330, 900, 1500)
    many = [((5000, *range(70, 211), 9000), 0)] if d * group == 512 else []  # outputs of more than 1,024 rows; two share their page queries with all
    for batch, skew in ((several, 0), (tuple(range(300, 340)), 0), (several, 1), *many):  # skew: rows at odd addresses, read one number at a time
        found = []
        if skew and rotated_mean:
            continue  # refused
        for cache in filled(batch, d=d, key=key, value=value, rotated_mean=rotated_mean):
            t, code, device, n = cache.code.transform, cache.code, cache.code.device, len(batch)
            t.reserve(max(batch) + 64, device)
            cache.device_lengths[1] = 0
            rows = randn(n, (2 * group + 4) * d, seed=7).bfloat16().to(device)
            rows = torch.nn.functional.pad(rows, (skew, 0))[:, skew:].unflatten(1, (-1, d))
            space = Shared().workspace(rows, d, group, n, 2, support.page_queries(cache.held().table.shape[1], cache.window_table.shape[1]) if rotated_mean else 0)
            wide = torch.full((n, 2 * group + 1, d), 7.0, dtype=torch.bfloat16, device=device)
            run = LayerPass(code, cache.pool, cache.windows, cache.bad, space, d ** -0.5)
            assert (run.state is None) == (device.type == "cpu")
            run(wide[:, :-1], rows[:, :2 * group], rows[:, 2 * group:-2], rows[:, -2:],
                (cache.table.tensor(device), cache.window_table, cache.device_lengths, None))
            assert bool((wide[:, -1] == 7).all()) and not bool(wide[1, :-1].any())
            found.append((wide[:, :-1].cpu().float(), cache.windows.cpu().float()))
        (expected, windows), (output, other) = found
        assert (output - expected).abs().max() <= 2e-2 * expected.abs().max()
        assert (windows - other).abs().max() <= 2 ** -7 * windows.abs().max()


def give_codes(source, target):
    """The share of equal bytes in the pages of both. `target` then gets those of `source`: a code that lies between two levels, where the
    processors round differently, is not counted again as an error of attention in every later step."""
    used = source.table.used
    same = (target.pool[:used].cpu() == source.pool[:used]).float().mean()
    target.pool[:used] = source.pool[:used].to(target.pool.device)
    return same


@pytest.mark.parametrize("rotated_mean", [False, True])
@pytest.mark.parametrize("layout,d,group", [("uniform", 128, 4), ("4211", 128, 4), ("4211", 64, 2), ("1124-4112", 256, 1), ("4211", 512, 8)])
def test_cache(layout, d, group, rotated_mean):
    """A prompt, steps, a second chunk and steps again: what the GPU answers is what the CPU answers."""
    key, value = LAYOUTS[layout]
    cpu, cuda = caches(2, d=d, key=key, value=value, recent=48, sink=16, rotated_mean=rotated_mean)
    assert cuda.step_unsupported is None
    assert (cuda.tiers.decode_unsupported(group) is None) == (not rotated_mean or layout != "uniform")
    for round_, counts in enumerate(([150, 90], [40, 70])):
        k, v = randn(sum(counts), 2, d, seed=20 + round_), randn(sum(counts), 2, d, seed=30 + round_)
        cpu.append(k, v, counts), cuda.append(k.cuda(), v.cuda(), counts)
        assert give_codes(cpu, cuda) >= 0.98
        for step in range(30):
            q, k, v = (randn(2, h, 1, d, seed=100 * round_ + 3 * step + i) for i, h in enumerate((2 * group, 2, 2)))
            expected, output = cpu.step(q, k, v, d ** -0.5), cuda.step(q.cuda(), k.cuda(), v.cuda(), d ** -0.5)
            assert (output.cpu() - expected).norm() <= 2e-2 * expected.norm(), (round_, step)
            assert give_codes(cpu, cuda) >= 0.98
        chunk = randn(2, 2 * group, 5, d, seed=50 + round_)
        expected, output = (c.attend(chunk.to(c.code.device), d ** -0.5, new=[5, 5]) for c in (cpu, cuda))
        assert (output[0].cpu() - expected[0]).norm() <= 2e-2 * expected[0].norm()
        assert (output[1].cpu() - expected[1]).abs().max() <= 2e-2
    assert cuda.lengths == cpu.lengths == cuda.device_lengths.tolist()

@pytest.mark.parametrize("sequences", [1, 5, 16, 24, 70])
def test_large_means_of_keys(sequences):
    """Means of keys before RoPE and queries as in layer 0 of Qwen2.5-Coder-1.5B: logits of the mean up to 12,000, which overflow one FP16
    number. 1 to 16 sequences run the parts kernel, 24 clusters, 70 the streaming kernel."""
    d, group, found = 128, 6, []
    for cache in caches(sequences, d=d, key=(4, 2, 1, 0), value=(2, 1, 0, 0), rotated_mean=True):
        mean = cache.code.transform.key_mean
        mean[:, 48:64] *= 700
        mean[:, 112:128] *= 700
        n, device = 700, cache.code.device
        phases = cache.code.transform.phases.rows(torch.arange(n + 4))
        turned = [reference.rotated(mean.cpu(), phases[at:at + 1])[0] for at in range(n + 4)]
        keys = torch.stack(turned[:n]) + randn(n, 2, d, seed=3)
        values = randn(n, 2, d, seed=4)
        cache.append(*(x.repeat(sequences, 1, 1).to(device) for x in (keys, values)), [n] * sequences)
        if found:
            give_codes(found[0][0], cache)
        outputs = []
        for step in range(3):
            # a query that looks at its own place, as long as those of the model, and its neighbors' keys
            own = torch.stack(turned[n + step - 2:n + step + 1]).mean(0)
            query = (own / own.norm(dim=-1, keepdim=True) * 100).repeat_interleave(group, 0) + randn(2 * group, d, seed=20 + step)
            rows = [query, turned[n + step] + randn(2, d, seed=30 + step), randn(2, d, seed=40 + step)]
            outputs.append(cache.step(*(r.expand(sequences, -1, -1)[:, :, None].to(device) for r in rows), d ** -0.5).cpu().float())
        found.append((cache, outputs))
    for expected, output in zip(found[0][1], found[1][1]):
        assert bool(torch.isfinite(output).all())
        assert (output - expected).norm() <= 5e-3 * expected.norm()


@pytest.mark.parametrize("bundle,group", [
    (dict(d=128, key=None, value=(4, 2, 1, 1)), 4), (dict(d=96, key=(4, 2, 1, 1), value=(4, 2, 1, 1)), 2), (dict(d=32), 2),
    (dict(d=24), 1), (dict(d=128), 20), (dict(d=128, group=32), 2)])
def test_what_kernels_do_not_serve_goes_to_the_reference(bundle, group):
    cpu, cuda = caches(1, sink=16, recent=48, **bundle)
    assert cuda.tiers.decode_unsupported(group) is not None
    d = bundle["d"]
    k, v = randn(200, 2, d, seed=1), randn(200, 2, d, seed=2)
    cpu.append(k, v, [200]), cuda.append(k.cuda(), v.cuda(), [200])
    for step in range(3):
        # Sums in another order move a rare element over the edge between two codes: what is read is compared on equal codes.
        assert (cuda.pool.cpu() == cpu.pool).float().mean() >= 0.98
        cpu.pool.copy_(cuda.pool.cpu())
        q, k, v = (randn(1, h, 1, d, seed=3 * step + i) for i, h in enumerate((2 * group, 2, 2)))
        expected, output = cpu.step(q, k, v, 0.2), cuda.step(q.cuda(), k.cuda(), v.cuda(), 0.2)
        assert (output.cpu() - expected).norm() <= 2e-2 * expected.norm()


def test_rules():
    """Windows, chunks, soft caps and sink logits of a layer, by the kernel or by the reference on the device: steps and chunks as on
    the CPU."""
    rules = {"window": Rule(window=100), "chunk": Rule(chunk=70), "cap": Rule(cap=1.5), "sinks": Rule(sinks=torch.tensor([2.0, -1.0, 5.0, 0.0])),
             "everything": Rule(100, 70, 3.0, torch.tensor([1.0, 4.0, -2.0, 0.5]))}
    for name, rule in rules.items():
        cpu, cuda = caches(sink=16, recent=48, key=(4, 2, 1, 1), value=(4, 2, 1, 1))
        assert (cuda.tiers.decode_unsupported(2, rule) is None) == (name in ("window", "sinks")), name
        on_gpu = dataclasses.replace(rule, sinks=None if rule.sinks is None else rule.sinks.cuda())
        k, v = randn(240, 2, 128, seed=1), randn(240, 2, 128, seed=2)
        cpu.append(k, v, [150, 90]), cuda.append(k.cuda(), v.cuda(), [150, 90])
        for step in range(6):
            q, k, v = (randn(2, h, 1, 128, seed=3 * step + i) for i, h in enumerate((4, 2, 2)))
            expected, output = cpu.step(q, k, v, 0.2, rule), cuda.step(q.cuda(), k.cuda(), v.cuda(), 0.2, on_gpu)
            assert (output.cpu() - expected).norm() <= 2e-2 * expected.norm(), (name, step)
        chunk = randn(2, 4, 5, 128, seed=50)
        expected, output = (c.attend(chunk.to(c.code.device), 0.2, [5, 5], r) for c, r in ((cpu, rule), (cuda, on_gpu)))
        assert (output[0].cpu() - expected[0]).norm() <= 2e-2 * expected[0].norm(), name


@pytest.mark.parametrize("layout", ["uniform", "4211"])
def test_graph_capture_and_replay(layout):
    """A captured step, replayed over new tokens, gives the bits of steps that are not captured."""
    key, value = LAYOUTS[layout]
    batch, d, group, tokens = 2, 128, 4, 200
    eager, captured = (caches(batch, d=d, key=key, value=value)[1] for _ in range(2))
    k, v = randn(batch * 400, 2, d, seed=1).cuda(), randn(batch * 400, 2, d, seed=2).cuda()
    for cache in (eager, captured):
        cache.append(k, v, [400, 400])
        cache.reserve(1000)
    static = [randn(batch, h, 1, d, seed=0).cuda() for h in (2 * group, 2, 2)]
    saved = [t.clone() for t in (captured.windows, captured.pool, captured.device_lengths)]
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):  # the kernels load and the workspace is made before the capture
        captured.step_on_device(*static, d ** -0.5)
        side.synchronize()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, stream=side):
            output = captured.step_on_device(*static, d ** -0.5)
    torch.cuda.synchronize()
    for tensor, was in zip((captured.windows, captured.pool, captured.device_lengths), saved):
        tensor.copy_(was)
    for step in range(tokens):
        fresh = [randn(batch, h, 1, d, seed=1000 + 3 * step + i).cuda() for i, h in enumerate((2 * group, 2, 2))]
        for to, of in zip(static, fresh):
            to.copy_(of)
        graph.replay()
        assert torch.equal(output, eager.step(*fresh, d ** -0.5)), step
    captured.advance(tokens)
    assert captured.lengths == eager.lengths == captured.device_lengths.tolist()
    assert torch.equal(captured.windows, eager.windows)
    used = eager.quantized_end(eager.lengths[0])
    assert all(torch.equal(a, b) for a, b in zip(coded_rows(captured, 0, used // 64 - 1), coded_rows(eager, 0, used // 64 - 1)))


class Captured:
    """A simulated engine whose decode steps are replays of one graph for each batch size, as vLLM has them: padded rows and other
    requests in their slots find their tensors where the capture read them."""

    def compute(self, slots, starts, counts, lengths, table, mapping, query, key, value):
        if max(counts) > self.most_new or min(counts) < max(counts):
            return super().compute(slots, starts, counts, lengths, table, mapping, query, key, value)
        rows, size = self.table.rows(slots, starts, counts, lengths, self.fixed_table(table), mapping), (len(lengths), counts[0])
        if rows.sinks is not None:
            self.kv.restore(*rows.sinks)
        if size not in self.graphs:
            static = [torch.zeros_like(x) for x in (query, key, value)]
            output, saved = torch.zeros_like(query), [t.clone() for t in (self.pool, self.kv.windows)]

            def call():
                self.kv.forward(self.pool, rows, *static, SCALE, output)

            side = torch.cuda.Stream()
            side.wait_stream(torch.cuda.current_stream())
            with torch.cuda.stream(side):
                call()
                side.synchronize()
                graph = torch.cuda.CUDAGraph()
                with torch.cuda.graph(graph, stream=side):
                    call()
            torch.cuda.synchronize()
            for tensor, was in zip((self.pool, self.kv.windows), saved):
                tensor.copy_(was)
            self.graphs[size] = graph.replay, static, output, rows
        replay, static, output, _ = self.graphs[size]
        for to, of in zip(static, (query, key, value)):
            to.copy_(of)
        replay()
        self.replays += 1
        return output.clone()

    def fixed_table(self, table):
        """Block tables at one address, as an engine has them."""
        self.tables[:table.shape[0]] = table
        return self.tables[:table.shape[0]]


class CapturedEngine(Captured, Engine):
    pass


class CapturedPrefixEngine(Captured, PrefixEngine):
    pass


@pytest.mark.parametrize("layout,rotated_mean", [("uniform", False), ("4211", False), ("4211", True)])
@pytest.mark.parametrize("kind", [CapturedEngine, CapturedPrefixEngine])
@pytest.mark.parametrize("most_new", [1, 4])
def test_captured_steps_of_a_serving_engine(most_new, kind, layout, rotated_mean):
    key, value = LAYOUTS[layout]
    bundle = random_bundle(d=64, key=key, value=value, sink=64, recent=40, rotated_mean=rotated_mean)
    engine = kind(bundle, 0, seed=11, device="cuda", phases=Phases(10000.0 ** -(torch.arange(32) / 32)), most_new=most_new)
    engine.graphs, engine.replays = {}, 0
    engine.tables = torch.zeros(engine.slots, engine.width, dtype=torch.int32, device="cuda")
    work = requests(13, 330) if kind is CapturedEngine else families(5, 330)
    for request in work if most_new > 1 else ():
        request.prompt = max(1, request.total - 40)
    engine.run(work)
    assert engine.replays >= 10 and len(engine.graphs) > 1 and engine.preempted > 1 and (engine.rejected > 10 or most_new == 1)


@pytest.mark.parametrize("kind", [CapturedEngine, CapturedPrefixEngine])
@pytest.mark.parametrize("most_new", [1, 4])
def test_layers_that_share_a_cache(most_new, kind):
    """A layer of wide heads, and another one that reads its cache with the queries that are compared, also in captured steps."""
    bundle = random_bundle(d=512, kv_heads=1, key=(4, 2, 1, 1), value=(4, 2, 1, 1), sink=64, recent=40)
    engine = kind(bundle, 0, seed=11, device="cuda", group=8, most_new=most_new)
    engine.graphs, engine.replays, engine.kv.readers, forward = {}, 0, 1, engine.kv.forward
    engine.tables = torch.zeros(engine.slots, engine.width, dtype=torch.int32, device="cuda")

    def both(pool, rows, query, key, value, scale, output, sinks=None):
        forward(pool, rows, 0.5 * query, key, value, scale, torch.empty_like(output), sinks)
        forward(pool, rows, query, None, None, scale, output, sinks)

    engine.kv.forward = both
    work = requests(13, 330) if kind is CapturedEngine else families(5, 330)
    for request in work if most_new > 1 else ():
        request.prompt = max(1, request.total - 40)
    engine.run(work)
    assert engine.replays >= 10 and engine.preempted > 1 and (engine.rejected > 10 or most_new == 1)


@pytest.mark.parametrize("d", [64, 128, 256, 512])
def test_self_check_of_engines(d, tmp_path):
    """The kernels are far below its limit, with layers without bits and means of keys as large as those of real models, on made
    rows and on those of a bundle's file."""
    from oscar_kv.engines.check_rows import ModelRows, made_rows
    from test_self_check import bundles, model_rows, serving_of
    made = [one for one in bundles(d) if d < 512 or one.layers[0].key.widths]  # no kernel for wide heads in layout uniform
    held = model_rows(tmp_path, [one for one in bundles(d) if d < 512 or one.layers[0].key.widths], m=8, d=d)
    for source, serving in ((made_rows, serving_of(*made, slots=150, device="cuda", d=d)),
                            (ModelRows(held[0]).rows, serving_of(*held, slots=150, device="cuda", d=d))):
        for kv in serving.caches().values():
            for path, error in self_check.errors_of(kv, serving.slots, serving.room(), source):
                assert float(error) < 0.02, (kv.code.layer, path)


def test_rows_that_are_not_finite():
    from oscar_kv.files.errors import NumericalError
    _, cuda = caches(1, sink=4, recent=8)
    k, v = randn(60, 2, 128, seed=1), randn(60, 2, 128, seed=2)
    v[10, 1, 5] = float("nan")
    with pytest.raises(NumericalError, match="layer 0, value: KV head 1"):
        cuda.append(k.cuda(), v.cuda(), [60])


def test_refusals():
    _, cuda = filled()
    query = randn(5, 2, 4, 128, seed=4).cuda()
    with pytest.raises(RuntimeError, match=r"query is Float \[5, 2, 4, 128\], expected BFloat16"):
        decode(cuda, query)
    cuda.device_lengths = cuda.device_lengths.long()
    with pytest.raises(RuntimeError, match=r"lengths is torch.int64, expected torch.int32"):
        decode(cuda, query.bfloat16())


@pytest.mark.parametrize("layout", ["uniform", "4211"])
def test_opcheck(layout):
    key, value = LAYOUTS[layout]
    _, cache = filled(lengths=(70, 500), key=key, value=value)
    code, t, table = cache.code, cache.code.transform, cache.table.tensor("cuda")
    query = randn(2, 2, 4, 128, seed=4).bfloat16().cuda()
    rows = [randn(2, h, 128, seed=h).cuda() for h in (8, 2, 2)]
    sides = (code.key.sigma, code.value.sigma, *code.clip, cache.bad)
    flat = randn(5, 2, 128, seed=1).bfloat16().cuda()
    runs = torch.tensor([[0, 5, 0, 3, 0]], dtype=torch.int32, device="cuda")
    calls = {
        operators.decode_attention: (query, cache.pool, table, cache.windows, cache.window_table, cache.device_lengths, *sides[:2], None, None, None,
                               Shared().workspace(query, 128, 4, 2, 2), 0.1, code.sink, code.recent, 0, True, *code.numbers),
        operators.append_tokens: (cache.windows, cache.window_table, *rows, cache.device_lengths, t.query, t.key_forward, t.value_forward,
                            t.key_mean, t.value_mean, code.sink),
        operators.flush_tokens: (cache.pool, cache.windows, cache.window_table, table, cache.device_lengths, *sides, code.sink, True, *code.numbers),
        operators.quantize_rows: (cache.pool, flat, flat, runs, *sides, True, *code.numbers),
        operators.dequantize_pages: (cache.pool, operators.page_runs(table, len(cache.pool)), *sides[:2], *code.numbers)}
    for op, arguments in calls.items():
        torch.library.opcheck(op, arguments)


@pytest.mark.parametrize("model,layout", [*((m, one) for m in ("tiny-qwen3", "tiny-llama") for one in ("uniform", "4211")),
                                          ("gemma4", "4211"), ("gemma4_shared", "4211")])
def test_generate(model, layout):
    """attach() and generate() on the GPU: the tokens that the CPU generates, also for a left-padded batch. Kernels take queries
    in BF16, so a sequence may part where two tokens are level."""
    transformers = pytest.importorskip("transformers")
    import oscar_kv
    from oscar_kv.hf.attach import geometry
    key, value = LAYOUTS[layout]
    import gemma4_models
    tokens, logits, gemma = {}, {}, getattr(gemma4_models, model, None)
    for device in ("cpu", "cuda"):
        if gemma is not None:
            torch.manual_seed(1)
            one = gemma4_models.soften(transformers.AutoModelForCausalLM.from_config(gemma())).to(device).eval()
            bundle = gemma4_models.gemma4_bundle(gemma(), key=key, value=value, sink=16, recent=48)
        else:
            one = transformers.AutoModelForCausalLM.from_pretrained(pathlib.Path(SAMPLES / model), dtype=torch.float32).to(device).eval()
            bundle = random_bundle(*geometry(one), key, value, sink=16, recent=48, centered=False)
        oscar_kv.attach(one, bundle)
        ids = torch.randint(5, 250, (2, 150), generator=torch.Generator().manual_seed(3))
        mask = torch.ones_like(ids)
        mask[1, :20] = 0
        for name, given in (("one", dict(input_ids=ids[:1])), ("padded", dict(input_ids=ids, attention_mask=mask)),
                            ("chunks", dict(input_ids=ids[:1], prefill_chunk_size=64))):
            given = {k: v.to(device) if hasattr(v, "to") else v for k, v in given.items()}
            out = one.generate(**given, max_new_tokens=40, min_new_tokens=40, do_sample=False, pad_token_id=0, output_logits=True,
                               return_dict_in_generate=True)
            tokens[device, name] = out.sequences[:, 150:].cpu()
            logits[device, name] = torch.stack(out.logits, 1).float().cpu()  # [B, 40, vocabulary]
    for name in ("one", "padded", "chunks"):
        same = (tokens["cpu", name] == tokens["cuda", name]).float().mean()
        print(f"{model} {layout} {name}: {float(same):.3f} of the tokens are those of the CPU")
        for row, (a, b) in enumerate(zip(tokens["cpu", name], tokens["cuda", name])):
            different = (a != b).nonzero().flatten()
            if len(different) > 0:
                i = int(different[0])
                x = logits["cpu", name][row, i]
                gap = float((x[a[i]] - x[b[i]]) / x.std())
                print(f"  sequence {row} parts at token {i} with a gap of {gap:.4f} deviations")
                assert gap <= 0.1, (name, row, i)
                upto = i + 1
            else:
                upto = len(a)
            x, y = (logits[device, name][row, :upto] for device in ("cpu", "cuda"))
            assert (x - y).norm() <= 5e-2 * x.norm(), (name, row)


def model_with(layout, graphs, name="tiny-llama", hook=None, **options):
    transformers = pytest.importorskip("transformers")
    import oscar_kv
    from oscar_kv.hf.attach import geometry
    model = transformers.AutoModelForCausalLM.from_pretrained(pathlib.Path(SAMPLES / name), dtype=torch.bfloat16).cuda().eval()
    layers, kv_heads, d = geometry(model)
    key, value = LAYOUTS[layout]
    if hook is not None:
        model.model.layers[1].register_forward_pre_hook(hook)
    return oscar_kv.attach(model, random_bundle(layers, kv_heads, d, key, value, sink=16, recent=48), graphs=graphs, **options)


@pytest.mark.parametrize("layout", ["uniform", "4211"])
def test_recorded_steps_in_generate(layout, monkeypatch):
    """Tokens with CUDA graphs are those without: greedy, sampled, a padded batch, a cache that outgrows its pages, two turns. With tables of one
    width, which choose one division of the work, logits are the same bits. With others, rounding may change a code of a token that leaves the
    window, and with it the logits of all later steps: noise of 1e-6 of the outputs moves them by up to 1.2 in the reference on a CPU."""
    pytest.importorskip("transformers")
    import oscar_kv
    from oscar_kv.hf import graphs as recorded
    monkeypatch.setattr(recorded, "ROOM", 32)
    ids = torch.randint(5, 250, (3, 150), generator=torch.Generator().manual_seed(3)).cuda()
    mask = torch.ones_like(ids)
    mask[1, :20], mask[2, :149] = 0, 0
    made, counted = {}, []
    record = recorded.Steps._record
    monkeypatch.setattr(recorded.Steps, "_record", lambda self, *given: (counted.append(1), record(self, *given))[1])
    common = dict(pad_token_id=0, eos_token_id=None)
    for graphs in (False, True):
        model = model_with(layout, graphs, max_tokens=512)
        one = model.generate(ids[:1], do_sample=False, max_new_tokens=300, output_logits=True, return_dict_in_generate=True, **common)
        made[graphs, "logits"] = torch.stack(one.logits).float()
        oscar_kv.detach(model)
    assert torch.equal(made[False, "logits"], made[True, "logits"])
    counted.clear()
    for graphs in (False, True):
        model = model_with(layout, graphs)
        made[graphs, "one"] = model.generate(ids[:1], do_sample=False, max_new_tokens=300, **common)
        made[graphs, "padded"] = model.generate(ids, attention_mask=mask, do_sample=False, max_new_tokens=40, **common)
        torch.manual_seed(7)
        made[graphs, "sampled"] = model.generate(ids[:2], do_sample=True, top_k=20, max_new_tokens=40, **common)
        cache = oscar_kv.new_cache(model)
        first = model.generate(ids[:1, :90], do_sample=False, max_new_tokens=20, past_key_values=cache, **common)
        again = torch.cat([first, ids[1:2, :30]], dim=1)
        made[graphs, "turns"] = model.generate(again, do_sample=False, max_new_tokens=20, past_key_values=cache, **common)
        assert len(counted) == 0 or graphs
        oscar_kv.detach(model)
    assert len(counted) > 4
    for name in ("one", "padded", "sampled", "turns"):
        a, b = made[False, name], made[True, name]
        assert torch.equal(a, b), (name, (a != b).float().mean())


def test_a_model_that_cannot_be_captured_generates_as_before(monkeypatch):
    """A forward that reads a number back breaks the capture: one warning, and the same tokens. Pages are reserved for few steps: the decode
    kernel divides a sequence by the width of its page table, so a much wider table rounds differently."""
    pytest.importorskip("transformers")
    from oscar_kv.hf import graphs
    monkeypatch.setattr(graphs, "ROOM", 32)
    ids = torch.randint(5, 250, (1, 150), generator=torch.Generator().manual_seed(3)).cuda()
    common = dict(pad_token_id=0, eos_token_id=None, do_sample=False, max_new_tokens=30)
    expected = model_with("uniform", False).generate(ids, **common)
    model = model_with("uniform", None, hook=lambda module, given: (float(given[0].sum()), None)[1])
    with pytest.warns(UserWarning, match="cannot be recorded as a CUDA graph"):
        assert torch.equal(model.generate(ids, **common), expected)
    assert torch.equal(model.generate(ids, **common), expected)


@pytest.mark.parametrize("room", [200, 10 ** 6])
def test_chunks_of_a_prompt(room, monkeypatch):
    """Further chunks attend to themselves and to the stored tokens, in one or several passes, as on the CPU."""
    monkeypatch.setattr(chunk_pass, "room", lambda *arguments: room)
    cpu, cuda = caches(3, key=(4, 2, 1, 1), value=(4, 2, 1, 1), sink=16, recent=48)
    assert cuda.pass_unsupported() is None
    for turn, counts in enumerate(([300, 90, 0], [40, 200, 7])):
        k, v, q = (randn(sum(counts), h, 128, seed=20 + 3 * turn + i).bfloat16() for i, h in enumerate((2, 2, 8)))
        for sinks in (None, torch.tensor([2.0, -1.0, 5.0, 0.0, 1.0, 1.0, -2.0, 0.5])):
            expected = cpu.attend_chunks(q.float(), k.float(), v.float(), counts, 0.1, sinks)
            found = cuda.attend_chunks(q.cuda(), k.cuda(), v.cuda(), counts, 0.1, None if sinks is None else sinks.cuda())
            assert (found.cpu().float() - expected).norm() <= 2e-2 * expected.norm(), (turn, sinks)
        cpu.append(k, v, counts), cuda.append(k.cuda(), v.cuda(), counts)
