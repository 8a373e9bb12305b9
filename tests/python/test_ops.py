"""The registered operators: torch.library.opcheck (schema, fakes, autograd registration, AOT), and what they leave alone."""
import pytest

torch = pytest.importorskip("torch")

from conftest import GOLDEN  # noqa: E402
from oscar_kv.ops import operators, reference  # noqa: E402
from oscar_kv.ops.rule import ALL, Rule  # noqa: E402
from oscar_kv.format.bundle import load_bundle  # noqa: E402
from oscar_kv.cache.chunk_plan import Chunk, ChunkWork  # noqa: E402
from oscar_kv.files.errors import NumericalError  # noqa: E402
from oscar_kv.cache.paged_kv import LayerCode, PagedKV, PageTable  # noqa: E402

BUNDLE = load_bundle(GOLDEN / "bundle")


def filled(layer=0):
    generator = torch.Generator().manual_seed(1)
    cache = PagedKV(LayerCode(BUNDLE, BUNDLE.layers[layer]), PageTable(2))
    cache.append(torch.randn(170, 2, 32, generator=generator), torch.randn(170, 2, 32, generator=generator), [100, 70])
    return cache


def decode_arguments(cache, want_lse=True):
    code, q = cache.code, torch.randn(2, 2, 2, 32, generator=torch.Generator().manual_seed(2))
    return (q, cache.pool, cache.table.tensor("cpu"), cache.windows, cache.window_table, cache.device_lengths, code.key.sigma,
            code.value.sigma, None, None, None, torch.empty(0, dtype=torch.uint8), 0.3, code.sink, code.recent, 0, want_lse,
            *code.numbers)


def dequantize_arguments(cache):
    runs = operators.page_runs(torch.arange(len(cache.pool), dtype=torch.int32)[None], len(cache.pool))
    return (cache.pool, runs, cache.code.key.sigma, cache.code.value.sigma, *cache.code.numbers)


def quantize_arguments(cache):
    code, rows = cache.code, torch.randn(5, 2, 32, generator=torch.Generator().manual_seed(4)).bfloat16()
    runs = torch.tensor([[0, 3, 1, 60, 0], [3, 2, 0, 8, 0]], dtype=torch.int32)
    return (cache.pool, rows, rows, runs, code.key.sigma, code.value.sigma, *code.clip, cache.bad, True, *code.numbers)


def append_arguments(cache, query=True):
    t, rows = cache.code.transform, torch.randn(2, 4, 32, generator=torch.Generator().manual_seed(5))
    return (cache.windows, cache.window_table, rows if query else None, rows[:, :2], rows[:, 2:], cache.device_lengths, t.query,
            t.key_forward, t.value_forward, t.key_mean, t.value_mean, cache.code.sink)


def rotate_arguments(cache):
    t = cache.code.transform
    return torch.randn(5, 2, 32, generator=torch.Generator().manual_seed(8)), t.key_mean, t.key_forward


def flush_arguments(cache):
    code = cache.code
    return (cache.pool, cache.windows, cache.window_table, cache.table.tensor("cpu"), cache.device_lengths, code.key.sigma,
            code.value.sigma, *code.clip, cache.bad, code.sink, True, *code.numbers)


def chunk_arguments(cache, past):
    """A sequence of 100 tokens gets 30 more."""
    code, t = cache.code, cache.code.transform
    key, value = (torch.randn(30, 2, 32, generator=torch.Generator().manual_seed(s)) for s in (9, 10))
    policy = cache.tiers.policy()
    work = ChunkWork(policy, [Chunk(0, 0, 100, 30)], 1000, cache.table.tensor("cpu"), cache.window_table)
    sigmas = (code.key.sigma, code.value.sigma)
    if past:
        out = torch.empty(2, 130, 2, 32)
        return (cache.pool, cache.windows, work.passes[0].device_tiles, key, value, *t.products("key_back", "value_back"), t.key_mean,
                t.value_mean, None, *sigmas, *out, *code.numbers)
    return (cache.pool, cache.windows, key, value, work.new, *t.products("key_forward", "value_forward"), t.key_mean, t.value_mean, None,
            *sigmas, *code.clip, cache.bad, True, *code.numbers)


def merge_arguments(cache):
    generator = torch.Generator().manual_seed(6)
    return [torch.randn(*shape, generator=generator) for shape in ((5, 4, 32), (4, 5), (5, 4, 32), (4, 5))]


@pytest.mark.parametrize("layer", [0, 1])
@pytest.mark.parametrize("name,arguments", [
    ("decode_attention", decode_arguments), ("decode_attention", lambda c: decode_arguments(c, False)),
    ("dequantize_pages", dequantize_arguments), ("quantize_rows", quantize_arguments),
    ("append_tokens", append_arguments), ("append_tokens", lambda c: append_arguments(c, False)),
    ("flush_tokens", flush_arguments), ("past_rows", lambda c: chunk_arguments(c, True)), ("new_rows", lambda c: chunk_arguments(c, False)),
    ("merge_outputs", merge_arguments)])
def test_opcheck(layer, name, arguments):
    torch.library.opcheck(getattr(torch.ops.oscar_kv, name).default, arguments(filled(layer)))


def test_every_operator_is_checked():
    declared = {name for name in dir(operators) if isinstance(getattr(operators, name), torch._ops.OpOverload)}
    assert declared == {"decode_attention", "dequantize_pages", "quantize_rows", "append_tokens", "flush_tokens",
                        "decode_workspace_bytes", "tile_phases", "past_rows", "new_rows", "merge_outputs", "describe_layer", "flush_layers", "device_code",
                        "describe_pass", "layer_pass"}


def test_rows_are_written_where_they_belong():
    cache, rows, places = filled(), torch.randn(3, 2, 32, generator=torch.Generator().manual_seed(3)), ((0, 5), (1, 63), (0, 6))
    code, before = cache.code, cache.pool.clone()
    old = [x.unflatten(0, (-1, 64)) for x in operators.dequantize_pages(*dequantize_arguments(cache))]
    reference.write_encoded(code.view(pool=cache.pool, bad=cache.bad), *torch.tensor(places).T, rows, rows)
    new = [x.unflatten(0, (-1, 64)) for x in operators.dequantize_pages(*dequantize_arguments(cache))]
    assert not torch.equal(before, cache.pool)
    for codec, a, b in zip((code.key, code.value), old, new):
        expected = a.clone()
        for i, (page, slot) in enumerate(places):
            expected[page, slot] = codec.decode(*codec.encode(rows))[i]
        assert torch.equal(b, expected) and not torch.equal(a, b)


@pytest.mark.parametrize("layer", [0, 1])
def test_rotated_rows(layer):
    """Head by head in FP64; a mean of its own for every row; and the way back."""
    rows, mean, matrix = rotate_arguments(filled(layer))
    found = reference.rotate_rows(rows, mean, matrix)
    assert found.dtype == torch.bfloat16 and found.shape == rows.shape
    for head in range(2):
        basis = matrix[head if matrix.shape[0] > 1 else 0].double()
        expected = (rows[:, head].double() - mean[head].double()) @ basis
        assert (found[:, head] - expected).abs().max() <= 2 ** -8 * expected.abs().max()
        back = found[:, head].double() @ torch.linalg.inv(basis) + mean[head].double()
        assert (back - rows[:, head]).abs().max() <= 2 ** -6 * rows.abs().max()
    each = torch.randn(rows.shape, generator=torch.Generator().manual_seed(9))
    assert torch.equal(reference.rotate_rows(rows, each, matrix), reference.rotate_rows(rows - each, None, matrix))
    assert torch.equal(reference.rotate_rows(rows.bfloat16(), None, None), rows.bfloat16())


@pytest.mark.parametrize("layer", [0, 1])
def test_step_by_operators_is_append(layer):
    """append_tokens and flush_tokens token by token leave what append() leaves, and decode_attention attends to the same."""
    def made():
        return PagedKV(LayerCode(BUNDLE, BUNDLE.layers[layer]), PageTable(2))

    by_append, by_operators = made(), made()
    by_operators.step_unsupported = None  # the references of the operators, as a CUDA device runs the kernels
    generator = torch.Generator().manual_seed(6)
    for step in range(90):
        q, k, v = (torch.randn(2, heads, 1, 32, generator=generator) for heads in (4, 2, 2))
        by_append.append(k.squeeze(2), v.squeeze(2), [1, 1])
        transform, raw = by_append.code.transform, q.view(2, 2, 2, 32)
        expected, _ = by_append.tiers.decode(by_append.held(), transform.queries(raw).bfloat16(), raw, 0.3, ALL, False)
        output = by_operators.step(q, k, v, 0.3)
        assert torch.allclose(output, transform.outputs(expected).view(output.shape), atol=1e-4), step
    assert by_operators.lengths == by_append.lengths == by_operators.device_lengths.tolist() == [90, 90]
    assert torch.equal(by_append.windows, by_operators.windows) and by_append.table.pages == by_operators.table.pages
    used = by_append.table.used
    assert torch.equal(by_append.pool[:used], by_operators.pool[:used])


@pytest.mark.parametrize("rule", [Rule(window=30), Rule(chunk=37), Rule(cap=1.5), Rule(sinks=torch.tensor([7.0, 5.0, 9.0, 6.0]))])
def test_steps_of_every_rule(rule):
    """The step of a GPU, with the references in place of kernels, against append() and attend()."""
    by_append, by_operators = (PagedKV(LayerCode(BUNDLE, BUNDLE.layers[0]), PageTable(2)) for _ in range(2))
    by_operators.step_unsupported = None
    generator = torch.Generator().manual_seed(7)
    for step in range(90):
        q, k, v = (torch.randn(2, heads, 1, 32, generator=generator) for heads in (4, 2, 2))
        expected, output = by_append.step(q, k, v, 0.3, rule), by_operators.step(q, k, v, 0.3, rule)
        assert (output - expected).norm() <= 2e-2 * expected.norm(), step  # queries in BF16
    assert not torch.allclose(expected, by_append.attend(q, 0.3)[0], rtol=0.1)


def test_rows_that_are_not_finite_are_noted():
    cache = filled()
    rows = torch.zeros(3, 2, 32, dtype=torch.bfloat16)
    rows[1, 1, 4] = float("nan")
    bad = torch.full((2,), operators.NO_FAULT, dtype=torch.int32)
    runs = torch.tensor([[0, 3, 0, 0, 0]], dtype=torch.int32)
    operators.quantize_rows(cache.pool, torch.zeros_like(rows), rows, runs, cache.code.key.sigma, cache.code.value.sigma, *cache.code.clip,
                            bad, False, *cache.code.numbers)
    assert bad.tolist() == [operators.NO_FAULT, 3]
    cache.bad.copy_(bad)
    with pytest.raises(NumericalError, match="layer 0, value: KV head 1 .* NaN or an infinity"):
        cache.check_finite()


def test_gradients_stay_outside():
    """Rows of a model that is run without no_grad leave no graph in the cache."""
    cache = PagedKV(LayerCode(BUNDLE, BUNDLE.layers[0]), PageTable(1))
    rows = torch.randn(20, 2, 32, requires_grad=True)
    cache.append(rows, rows, [20])
    output, _ = cache.attend(torch.randn(1, 4, 1, 32, requires_grad=True), 0.3)
    assert not cache.windows.requires_grad and not output.requires_grad
