"""The paged cache on raw tensors, without an engine: page bytes against the layout of the C++ header, tiers against a plain
list of rows, decode attention against dense softmax, and chunks against single tokens."""
import math

import pytest

torch = pytest.importorskip("torch")

from conftest import GOLDEN, window_rows  # noqa: E402
from interchange import pack_codes, unpack_codes  # noqa: E402
from cache_rows import cache_rows  # noqa: E402
from oscar_kv.cache import chunk_pass  # noqa: E402
from oscar_kv.ops.rule import ALL, Rule  # noqa: E402
from oscar_kv.format.bundle import load_bundle  # noqa: E402
from oscar_kv.cache.chunk_attention import causal_parts  # noqa: E402
from oscar_kv.format.codec import RowCode  # noqa: E402
from oscar_kv.files.errors import InputError, NumericalError  # noqa: E402
from oscar_kv.format.page_layout import PAGE_TOKENS, PageLayout, SidePages  # noqa: E402
from oscar_kv.cache.paged_kv import LayerCode, PagedKV, PageTable  # noqa: E402
from oscar_kv.ops.merge import Parts  # noqa: E402
from oscar_kv.cache.transform import Phases  # noqa: E402

BUNDLE = load_bundle(GOLDEN / "bundle")  # sink 4, recent 8; layer 0 blocks, layer 1 blocks and uniform


def test_layout_is_that_of_the_header():
    """The numbers that kernels/common/page_layout.h checks when it is compiled."""
    uniform = PageLayout(RowCode("uniform", 128, group=128), RowCode("uniform", 128, group=128))
    assert (uniform.key.param_offset, uniform.value.begin, uniform.value.param_offset, uniform.bytes) == (2048, 2304, 4352, 4608)
    blocks = RowCode("blocks", 128, widths=(4, 2, 1, 1))
    pages = PageLayout(blocks, blocks)
    assert [p.offset for p in pages.key.planes] == [0, 1024, 1536, 1792] and pages.key.param_offset == 2048 and pages.bytes == 4608
    key, value = uniform.key.planes[0].bits(True), uniform.value.planes[0].bits(False)
    for (token, channel), bit in {(0, 0): 0, (0, 1): 16, (0, 8): 2, (0, 64): 32, (8, 0): 64, (0, 2): 128, (1, 0): 512, (16, 0): 4096}.items():
        assert int(key[token, channel]) == bit
    for (token, channel), bit in {(0, 0): 0, (1, 0): 16, (8, 0): 32, (0, 8): 2, (0, 64): 64, (2, 0): 128, (0, 1): 512, (16, 0): 4096}.items():
        assert int(value[token, channel]) == bit


@pytest.mark.parametrize("code", [RowCode("uniform", 128, group=128), RowCode("uniform", 64, group=32), RowCode("uniform", 24, group=24),
                                  RowCode("blocks", 32, widths=(4, 2, 1, 0)), RowCode("blocks", 64, widths=(1, 0, 4, 2)),
                                  RowCode("blocks", 96, widths=(4, 4, 1, 1)), RowCode("blocks", 32, widths=(0, 0, 0, 0))])
@pytest.mark.parametrize("key", [True, False])
def test_pages_hold_what_was_written(code, key):
    side, generator = SidePages(code, key, 0), torch.Generator().manual_seed(3)
    for plane in side.planes:  # every code has bits of its own
        places = (plane.bits(key) // plane.width).flatten()
        assert torch.equal(places.sort().values, torch.arange(PAGE_TOKENS * plane.channels)) and bool((plane.bits(key) % plane.width == 0).all())
    packed = torch.randint(0, 256, (5, 2, PAGE_TOKENS, code.code_bytes()), dtype=torch.uint8, generator=generator)
    codes = unpack_codes(code, packed)
    params = torch.randint(0, 256, (5, 2, PAGE_TOKENS, code.param_bytes()), dtype=torch.uint8, generator=generator)
    pages = torch.full((5, 2, side.end), 255, dtype=torch.uint8)
    side.write(pages, codes, params)
    read = side.read(pages)
    assert torch.equal(read[0], codes) and torch.equal(read[1], params)
    assert torch.equal(pack_codes(code, read[0]), packed)


def made(layer, batch, most_pages=None):
    return PagedKV(LayerCode(BUNDLE, BUNDLE.layers[layer]), PageTable(batch, most_pages))


def random_rows(tokens, seed):
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(tokens, 2, 32, generator=generator), torch.randn(tokens, 2, 32, generator=generator)


def dense(cache, keys, values, b):
    """What sequence b should hold, from a plain list of its rows: [Hkv, T, d] in the basis of the cache."""
    transform, code = cache.code.transform, cache.code
    end, rows = cache.quantized_end(keys.shape[0]), []
    moved = cache_rows(transform, keys, values, torch.arange(keys.shape[0]))
    for codec, row in zip((code.key, code.value), moved):
        row = row.float()
        quantized = codec.decode(*codec.encode(row[code.sink:end])) if end > code.sink else row[:0]
        rows.append(torch.cat([row[:code.sink], quantized, row[max(end, code.sink):]]).transpose(0, 1))
    return rows


def dense_attention(cache, keys, values, query, scale, rule=ALL):
    """Textbook softmax in FP64 of the last token's query [Hq, d] over what the cache should hold, and its log-sum-exp without sinks."""
    transform, (k, v) = cache.code.transform, dense(cache, keys, values, 0)
    q = query.view(1, 2, -1, 32)
    logits = (transform.queries(q)[0].double() @ k.double().transpose(1, 2) + transform.shift(q)[0].double().unsqueeze(-1)) * scale
    last = keys.shape[0] - 1
    if rule.cap:
        logits = rule.cap * (logits / rule.cap).tanh()
    if rule.window:
        logits[..., :max(0, last + 1 - rule.window)] = -math.inf
    if rule.chunk:
        logits[..., :last - last % rule.chunk] = -math.inf
    weights, total = logits.softmax(dim=-1), logits.logsumexp(dim=-1)
    output = transform.outputs((weights @ v.double()).float().unsqueeze(0)).reshape(-1, 32)
    if rule.sinks is not None:  # a column of the softmax without a value
        rest = torch.cat([logits.flatten(0, 1), rule.sinks.double()[:, None]], dim=-1).softmax(dim=-1)[:, :-1].sum(dim=-1)
        output = output * rest[:, None].float()
    return output, total.flatten()


RULES = {"all": ALL, "window": Rule(window=40), "chunk": Rule(chunk=37), "cap": Rule(cap=1.5), "sinks": Rule(sinks=torch.tensor([2.0, -1.0, 5.0, 0.0])),
         "everything": Rule(40, 64, 3.0, torch.tensor([1.0, 4.0, -2.0, 0.5]))}


@pytest.mark.parametrize("layer", [0, 1])
@pytest.mark.parametrize("name", RULES)
def test_decode_is_dense_attention_over_the_three_tiers(layer, name):
    lengths, rule = [1, 11, 12, 13, 90, 200], RULES[name]
    cache, rows = made(layer, len(lengths)), [random_rows(n, 10 + i) for i, n in enumerate(lengths)]
    cache.append(*(torch.cat([r[s][:n // 2] for r, n in zip(rows, lengths)]) for s in (0, 1)), [n // 2 for n in lengths])
    cache.append(*(torch.cat([r[s][n // 2:] for r, n in zip(rows, lengths)]) for s in (0, 1)), [n - n // 2 for n in lengths])
    assert cache.lengths == lengths
    query = torch.randn(len(lengths), 4, 1, 32, generator=torch.Generator().manual_seed(5))
    output, lse = cache.attend(query, 0.3, rule=rule)
    output = rule.with_sinks(output, lse)
    for b, (keys, values) in enumerate(rows):
        expected, expected_lse = dense_attention(cache, keys, values, query[b, :, 0], 0.3, rule)
        assert torch.allclose(output[b, :, 0], expected, rtol=1e-4, atol=1e-4), b
        assert torch.allclose(lse[b, :, 0].double(), expected_lse, rtol=1e-5, atol=1e-4), b


@pytest.mark.parametrize("pieces", [[1] * 150, [17] * 8 + [14], [149, 1]])
def test_bytes_do_not_depend_on_how_tokens_arrive(pieces):
    keys, values = random_rows(150, 2)
    whole, parts = made(0, 1), made(0, 1)
    whole.append(keys, values, [150])
    first = 0
    for n in pieces:
        parts.append(keys[first:first + n], values[first:first + n], [n])
        first += n
    pages = len(whole.table.pages[0])
    assert pages == 3 and parts.table.pages == whole.table.pages
    assert torch.equal(parts.pool[:pages], whole.pool[:pages])
    held = [*range(4), *range(whole.quantized_end(150), 150)]
    for a, b in zip(window_rows(parts, 0, held), window_rows(whole, 0, held)):
        assert torch.equal(a, b)


def test_a_sequence_is_alone_in_its_pages():
    rows = [random_rows(n, n) for n in (120, 33, 70)]
    together = made(1, 3)
    for at in range(0, 120, 10):  # interleaved, so that pages of the sequences alternate
        counts = [max(0, min(10, r[0].shape[0] - at)) for r in rows]
        together.append(*(torch.cat([r[s][at:at + n] for r, n in zip(rows, counts)]) for s in (0, 1)), counts)
    query = torch.randn(3, 4, 1, 32, generator=torch.Generator().manual_seed(8))
    output, _ = together.attend(query, 0.2)
    for b, (keys, values) in enumerate(rows):
        alone = made(1, 1)
        alone.append(keys, values, [keys.shape[0]])
        assert torch.allclose(alone.attend(query[b:b + 1], 0.2)[0], output[b:b + 1], atol=1e-5)


def test_layers_share_a_table_of_which_one_is_ahead():
    """The page of a sequence that another layer has quantized further is not read."""
    table = PageTable(2)
    ahead, behind = (PagedKV(LayerCode(BUNDLE, BUNDLE.layers[0]), table) for _ in range(2))
    keys, values = random_rows(300, 3)
    for cache in (ahead, behind):
        cache.append(keys[:150], values[:150], [100, 50])
    ahead.append(keys[150:], values[150:], [1, 149])
    query = torch.randn(2, 4, 1, 32, generator=torch.Generator().manual_seed(7))
    alone = made(0, 2)
    alone.append(keys[:150], values[:150], [100, 50])
    assert torch.allclose(behind.attend(query, 0.3)[0], alone.attend(query, 0.3)[0], atol=1e-5)


def test_queries_before_their_chunk_is_appended():
    """The earlier part of a chunk's attention: each query sees all tokens of the cache, whatever its place in the chunk."""
    keys, values = random_rows(100, 4)
    cache = made(0, 1)
    cache.append(keys, values, [100])
    query = torch.randn(1, 4, 5, 32, generator=torch.Generator().manual_seed(9))
    output, _ = cache.attend(query, 0.3, new=[5])
    for t in range(5):
        expected, _ = dense_attention(cache, keys, values, query[0, :, t], 0.3)
        assert torch.allclose(output[0, :, t], expected, rtol=1e-4, atol=1e-4)
    empty, lse = made(0, 1).attend(query, 0.3, new=[5])
    assert bool((lse == -math.inf).all()) and bool(torch.isfinite(empty).all())


def test_sizes():
    """A full cache holds windows and pages, and little more: 32 pages of 64 tokens for 2000 tokens."""
    cache = made(0, 1)
    cache.append(*random_rows(2000, 1), [2000])
    used = len(cache.table.pages[0]) * 2 * cache.code.page_bytes + 2 * 2 * 128 * 2 * 32  # a page of the sink, one of the ring
    assert len(cache.table.pages[0]) == math.ceil((2000 - 4) / 64) and used <= cache.allocated_bytes() <= 1.2 * used


def test_refusals():
    cache = made(0, 1, most_pages=1)
    cache.append(*random_rows(68, 1), [68])  # 4 of the sink and 64: one page
    with pytest.raises(InputError, match="needs 2 pages .* has 1; attach with a larger max_tokens"):
        cache.append(*random_rows(1, 1), [1])
    keys, values = random_rows(40, 1)
    values[9, 1, 3] = math.nan
    with pytest.raises(NumericalError, match="layer 0, value: KV head 1 .* NaN or an infinity"):
        made(0, 1).append(keys, values, [40])


def test_reset():
    cache, (keys, values) = made(0, 1), random_rows(100, 6)
    cache.append(*random_rows(90, 7), [90])
    cache.table.release(), cache.reset()
    cache.append(keys, values, [100])
    query = torch.randn(1, 4, 1, 32)
    fresh = made(0, 1)
    fresh.append(keys, values, [100])
    assert torch.equal(cache.attend(query, 0.3)[0], fresh.attend(query, 0.3)[0])


def test_reset_forgets_whose_the_pages_were():
    """Two sequences of other lengths take as many pages in all as before."""
    cache, fresh, query = made(0, 2), made(0, 2), torch.randn(2, 4, 1, 32)
    cache.append(*random_rows(480, 7), [400, 80])
    cache.attend(query, 0.3)
    cache.table.release(), cache.reset()
    for each in (cache, fresh):
        each.append(*random_rows(480, 8), [80, 400])
    assert torch.equal(cache.attend(query, 0.3)[0], fresh.attend(query, 0.3)[0])


def test_rotated_mean_adds_up():
    """x' = (x - RoPE_p(mean)) forward and the phase logits give q k^T again."""
    import dataclasses
    layer = BUNDLE.layers[0]
    layer = dataclasses.replace(layer, key=dataclasses.replace(layer.key, rotated_mean=True))
    bundle = dataclasses.replace(BUNDLE, sink=200)  # all tokens in BF16
    rope_phases = Phases(10000.0 ** -(torch.arange(0, 32, 2) / 32))
    cache = PagedKV(LayerCode(bundle, layer, rope_phases), PageTable(1))
    keys, values = random_rows(100, 11)
    cache.append(keys, values, [100])
    query = torch.randn(1, 4, 1, 32, generator=torch.Generator().manual_seed(12))
    _, lse = cache.attend(query, 0.3)
    logits = query.view(1, 2, 2, 32)[0] @ keys.permute(1, 2, 0) * 0.3
    assert torch.allclose(lse.flatten(), logits.logsumexp(dim=-1).flatten(), atol=0.02)
    assert not torch.equal(window_rows(cache, 0, range(100))[0].float(), keys)


@pytest.mark.parametrize("layer", [0, 1])
@pytest.mark.parametrize("room", [64, 10 ** 6])
def test_chunk_passes_are_the_merged_parts(layer, room, monkeypatch):
    """attend_chunks() against attention to the cache and inside the chunk that log-sum-exp merges, with sinks and ragged chunks."""
    monkeypatch.setattr(chunk_pass, "room", lambda *arguments: room)
    cache = PagedKV(LayerCode(BUNDLE, BUNDLE.layers[layer]), PageTable(3))
    assert cache.pass_unsupported() is None and cache.pass_unsupported(Rule(cap=3.0)) and cache.pass_unsupported(Rule(window=9))
    generator = torch.Generator().manual_seed(layer)
    for turn, counts in enumerate(([150, 20, 0], [9, 100, 30], [1, 0, 77])):
        query, key, value = (torch.randn(sum(counts), h, 32, generator=generator) for h in (4, 2, 2))
        padded = [torch.zeros(3, h, max(counts), 32) for h in (4, 2, 2)]
        ends = [sum(counts[:b]) for b in range(4)]
        for b, count in enumerate(counts):
            for to, rows in zip(padded, (query, key, value)):
                to[b, :, :count] = rows[ends[b]:ends[b] + count].transpose(0, 1)
        parts = Parts()
        if any(cache.lengths):
            parts.merge(*cache.attend(padded[0], 0.2, counts))
        parts.merge(*causal_parts(*padded, torch.tensor(counts), 0.2, ALL, torch.tensor(cache.lengths)))
        for sinks in (None, torch.tensor([1.0, -2.0, 0.0, 3.0])):
            found = cache.attend_chunks(query, key, value, counts, 0.2, sinks)
            expected = Rule(sinks=sinks).with_sinks(parts.output, parts.lse)
            for b, count in enumerate(counts):
                assert torch.allclose(found[ends[b]:ends[b] + count].transpose(0, 1), expected[b, :, :count], atol=2e-5), (turn, b)
        cache.append(key, value, counts)
    assert cache.lengths == [160, 120, 107] and bool(cache.pool.any())
