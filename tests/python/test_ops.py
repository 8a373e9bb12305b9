"""The registered operators: torch.library.opcheck (schema, fakes, autograd registration, AOT), and what they leave alone."""
import pytest

torch = pytest.importorskip("torch")

from conftest import GOLDEN  # noqa: E402
from oscar_kv import ops  # noqa: E402
from oscar_kv.bundle import load_bundle  # noqa: E402
from oscar_kv.paged_kv import LayerCode, PagedKV, PageTable  # noqa: E402

BUNDLE = load_bundle(GOLDEN / "bundle")


def filled(layer=0):
    generator = torch.Generator().manual_seed(1)
    cache = PagedKV(LayerCode(BUNDLE, BUNDLE.layers[layer]), PageTable(2))
    cache.append(torch.randn(170, 2, 32, generator=generator), torch.randn(170, 2, 32, generator=generator), [100, 70])
    return cache


def arguments(cache):
    code, q = cache.code, torch.randn(2, 2, 2, 32, generator=torch.Generator().manual_seed(2))
    lengths = torch.tensor(cache.lengths)
    return (q, (lengths - 1)[:, None].expand(-1, 2).contiguous(), cache.pool, cache.table.tensor("cpu"), cache.window_key,
            cache.window_value, lengths, torch.tensor([cache.quantised_end(n) for n in cache.lengths]), code.key.sigma,
            code.value.sigma, torch.zeros(2, 2, 2), None, None, 1.0, 0.3, code.sink, 0, *code.numbers)


def row_arguments(cache):
    code, rows = cache.code, torch.randn(3, 2, 32, generator=torch.Generator().manual_seed(3))
    return (cache.pool, torch.tensor([0, 1, 0]), torch.tensor([5, 63, 6]), *code.key.encode(rows), *code.value.encode(rows), *code.numbers)


@pytest.mark.parametrize("layer", [0, 1])
def test_opcheck(layer):
    cache = filled(layer)
    torch.library.opcheck(torch.ops.oscar_kv.decode_attention.default, arguments(cache))
    torch.library.opcheck(torch.ops.oscar_kv.dequantize_pages.default, (
        cache.pool, cache.table.tensor("cpu"), cache.code.key.sigma, cache.code.value.sigma, *cache.code.numbers))
    torch.library.opcheck(torch.ops.oscar_kv.write_rows.default, row_arguments(cache))


def test_rows_are_written_where_they_belong():
    cache = filled()
    before, given = cache.pool.clone(), row_arguments(cache)
    old = [x.unflatten(2, (-1, 64)) for x in ops.dequantize_pages(cache.pool, torch.arange(len(before))[None], cache.code.key.sigma,
                                                                  cache.code.value.sigma, *cache.code.numbers)]
    ops.write_rows(*given)
    new = [x.unflatten(2, (-1, 64)) for x in ops.dequantize_pages(cache.pool, torch.arange(len(before))[None], cache.code.key.sigma,
                                                                  cache.code.value.sigma, *cache.code.numbers)]
    for codec, codes, a, b in ((cache.code.key, given[3:5], old[0], new[0]), (cache.code.value, given[5:7], old[1], new[1])):
        expected = a.clone()
        for i, (page, slot) in enumerate(((0, 5), (1, 63), (0, 6))):
            expected[0, :, page, slot] = codec.decode(*codes)[i]
        assert torch.equal(b, expected) and not torch.equal(a, b)


def test_gradients_stay_outside():
    """Rows of a model that is run without no_grad leave no graph in the cache."""
    cache = PagedKV(LayerCode(BUNDLE, BUNDLE.layers[0]), PageTable(1))
    rows = torch.randn(20, 2, 32, requires_grad=True)
    cache.append(rows, rows, [20])
    output, _ = cache.attend(torch.randn(1, 4, 1, 32, requires_grad=True), 0.3)
    assert not cache.window_key.requires_grad and not output.requires_grad
