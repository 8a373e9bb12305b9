"""OSCAR_KV_CHECK_TABLES: an id outside its pool, a table that is too short, a run that leaves its rows or page are refused by name, and
nothing is written; sound tables pass."""
import pytest

torch = pytest.importorskip("torch")

from oscar_kv.ops import operators, table_checks  # noqa: E402
from test_ops import (append_arguments, chunk_arguments, decode_arguments, dequantize_arguments, filled, flush_arguments,  # noqa: E402
                      quantize_arguments)

MANY = 10 ** 6
BLOCKS = [1, 32, 0, 0, 4, 4, 2, 2]  # RowCode.numbers() of more bits than the cache has
NEW = lambda cache: chunk_arguments(cache, False)  # noqa: E731
PAST = lambda cache: chunk_arguments(cache, True)  # noqa: E731


def put(row, column, value):
    def change(tensor):
        tensor[row, column] = value
        return tensor

    return change


def first(value):
    def change(tensor):
        tensor[0] = value
        return tensor

    return change


def narrow(columns):
    return lambda tensor: tensor[:, :columns]


# name: operator, arguments of a sound call, which argument is changed, how, and the sentence.
CASES = {
    "decode, page -1": ("decode_attention", decode_arguments, 2, put(0, 0, -1), "page 0 of sequence 0 is -1, expected 0 to"),
    "decode, page beyond": ("decode_attention", decode_arguments, 2, put(1, 0, MANY), "page 0 of sequence 1 is 1000000"),
    "decode, no pages": ("decode_attention", decode_arguments, 2, narrow(0), "and its table has 0"),
    "decode, window page -1": ("decode_attention", decode_arguments, 4, put(1, 0, -1), "window page 0 of sequence 1 is -1"),
    "decode, window page beyond": ("decode_attention", decode_arguments, 4, put(0, -1, MANY), "of sequence 0 is 1000000, expected 0 to"),
    "decode, narrower windows": ("decode_attention", decode_arguments, 4, narrow(1), "window_table has 1 pages"),
    "decode, length below zero": ("decode_attention", decode_arguments, 5, first(-5), "the length of sequence 0 is -5"),
    "decode, length beyond the table": ("decode_attention", decode_arguments, 5, first(MANY), "sequence 0 has codes in 15"),
    "decode, sink below zero": ("decode_attention", decode_arguments, 13, lambda n: -1, "sink and recent are -1 and"),
    "decode, ring": ("decode_attention", decode_arguments, 14, lambda n: 2000, "the ring of"),
    "decode, one table": ("decode_attention", decode_arguments, 2, lambda t: t[:1], "expected a row for each of 2"),
    "append, window page -1": ("append_tokens", append_arguments, 1, lambda t: t * 0 - 1, "of sequence 0 is -1, expected 0 to"),
    "append, length": ("append_tokens", append_arguments, 5, first(-1), "the length of sequence 0 is -1"),
    "append, mean of three heads": ("append_tokens", append_arguments, 9, lambda t: torch.zeros(3, 32), "key_mean is [3, 32]"),
    "append, values of one head": ("append_tokens", append_arguments, 4, lambda t: t[:, :1], "value is [2, 1, 32]"),
    "flush, page -1": ("flush_tokens", flush_arguments, 3, put(0, 0, -1), "page 0 of sequence 0 is -1"),
    "flush, page beyond": ("flush_tokens", flush_arguments, 3, put(1, 1, MANY), "page 1 of sequence 1 is 1000000, expected 0 to"),
    "flush, window page -1": ("flush_tokens", flush_arguments, 2, lambda t: t * 0 - 1, "of sequence 0 is -1, expected 0 to"),
    "flush, length beyond the table": ("flush_tokens", flush_arguments, 4, first(MANY), "sequence 0 has codes in 15"),
    "flush, clip not a number": ("flush_tokens", flush_arguments, 7, first(float("nan")), "key_clip is [nan"),
    "rows, page -1": ("quantize_rows", quantize_arguments, 3, put(1, 2, -1), "page 0 of run 1 is -1"),
    "rows, page beyond": ("quantize_rows", quantize_arguments, 3, put(0, 2, MANY), "page 0 of run 0 is 1000000"),
    "rows, slots": ("quantize_rows", quantize_arguments, 3, put(0, 3, 62), "run 0 takes 3 slots from 62 on, and a page has 64"),
    "rows, first slot below zero": ("quantize_rows", quantize_arguments, 3, put(0, 3, -2), "run 0 takes 3 slots from -2 on"),
    "rows, first row below zero": ("quantize_rows", quantize_arguments, 3, put(1, 0, -1), "run 1 reads 2 rows from -1 on, and there are 5"),
    "rows, too many": ("quantize_rows", quantize_arguments, 3, put(1, 1, 2 ** 31 - 1), "run 1 takes 2147483647 slots"),
    "rows, position": ("quantize_rows", quantize_arguments, 3, put(1, 4, -7), "the position of run 1 is -7"),
    "rows, one page twice": ("quantize_rows", quantize_arguments, 3, lambda t: t[:1].repeat(2, 1), "which run 0 writes"),
    "rows, clip infinite": ("quantize_rows", quantize_arguments, 6, first(float("inf")), "key_clip is [inf"),
    "rows, clip of one head": ("quantize_rows", quantize_arguments, 7, lambda t: t[:1], "value_clip is [1], expected [2]"),
    "rows, sigma": ("quantize_rows", quantize_arguments, 4, lambda t: torch.zeros(3, 4), "key_sigma is [3, 4]"),
    "pages, page -1": ("dequantize_pages", dequantize_arguments, 1, put(0, 2, -1), "page 0 of run 0 is -1"),
    "pages, beyond": ("dequantize_pages", dequantize_arguments, 1, put(1, 2, MANY), "page 0 of run 1 is 1000000"),
    "new rows, page -2": ("new_rows", NEW, 4, put(0, 2, -2), "page 0 of run 0 is -2"),
    "new rows, window page beyond": ("new_rows", NEW, 4, put(-1, 5, MANY), "is 1000000, expected 0 to"),
    "new rows, first row": ("new_rows", NEW, 4, put(0, 0, 30), "from 30 on, and there are 30"),
    "new rows, position": ("new_rows", NEW, 4, put(0, 4, -1), "the position of run 0 is -1"),
    "new rows, one page twice": ("new_rows", NEW, 4, lambda t: t[:1].repeat(2, 1), "which run 0 writes"),
    "past rows, page -1": ("past_rows", PAST, 2, put(0, 3, -1), "of tile 0 is -1"),
    "past rows, out row": ("past_rows", PAST, 2, put(0, 1, 200), "rows from 200 on, and there are 130"),
    "past rows, kind": ("past_rows", PAST, 2, put(0, 0, 3), "the kind of tile 0 is 3"),
    "past rows, new row": ("past_rows", PAST, 2, put(-1, 3, 29), "rows from 29 on, and there are 30"),
    "decode, window below zero": ("decode_attention", decode_arguments, 15, lambda n: -1, "window is -1, expected 0 or more"),
    "decode, lengths of floats": ("decode_attention", decode_arguments, 5, lambda t: t.float(), "lengths is torch.float32, expected torch.int32"),
    "rows, runs of floats": ("quantize_rows", quantize_arguments, 3, lambda t: t.float(), "runs is torch.float32, expected torch.int32"),
    "pages, runs of floats": ("dequantize_pages", dequantize_arguments, 1, lambda t: t.double(), "runs is torch.float64"),
    "pages, shorter pages": ("dequantize_pages", dequantize_arguments, 0, lambda t: t[..., :-1], "expected bytes in pages of"),
    "pages, code of other pages": ("dequantize_pages", dequantize_arguments, 4, lambda numbers: BLOCKS, "expected bytes in pages of"),
}


def call(operator, arguments):
    return getattr(operators, operator)(*arguments)


@pytest.fixture(autouse=True)
def checked(monkeypatch):
    monkeypatch.setenv(table_checks.VARIABLE, "1")


@pytest.mark.parametrize("case", CASES)
def test_refused_before_anything_is_written(case):
    operator, make, place, change, sentence = CASES[case]
    cache = filled()
    call(operator, make(cache))  # sound tables pass
    cache = filled()
    arguments = list(make(cache))
    arguments[place] = change(arguments[place].clone() if isinstance(arguments[place], torch.Tensor) else arguments[place])
    before = [a.clone() if isinstance(a, torch.Tensor) else a for a in arguments]
    with pytest.raises(RuntimeError) as refused:
        call(operator, arguments)
    assert f"oscar_kv::{operator}: " in str(refused.value)
    assert sentence in str(refused.value), refused.value
    assert all(torch.equal(a.nan_to_num(), b.nan_to_num()) for a, b in zip(arguments, before) if isinstance(a, torch.Tensor) and
               a.is_floating_point() or isinstance(a, torch.Tensor) and a.dtype == torch.uint8)


def test_without_the_checks_an_id_of_another_sequence_is_followed(monkeypatch):
    """Why they exist: -1 is the pool's last page."""
    monkeypatch.setenv(table_checks.VARIABLE, "0")
    cache = filled()
    arguments = list(quantize_arguments(cache))
    arguments[3] = torch.tensor([[0, 3, -1, 0, 0]], dtype=torch.int32)
    last = cache.pool[-1].clone()
    operators.quantize_rows(*arguments)
    assert not torch.equal(cache.pool[-1], last)


def test_ids_that_nobody_follows_are_free():
    """Pages behind the codes of a sequence may be another layer's, or none; so may windows without a token."""
    cache = filled()
    arguments = list(decode_arguments(cache))
    wide = torch.full((2, 9), -1, dtype=torch.int32)
    wide[:, :arguments[2].shape[1]] = arguments[2]
    output = operators.decode_attention(*arguments)[0]
    arguments[2] = wide
    assert torch.equal(operators.decode_attention(*arguments)[0], output)
    arguments[5] = torch.tensor([0, 0], dtype=torch.int32)  # sequences that are left out
    table_checks.check_step("decode_attention", arguments[5], arguments[4] * 0 - 1, 1, 16, wide * 0 - 1, 1, 48)


@pytest.mark.parametrize("seed", range(4))
def test_windows_in_use(seed):
    """The window pages that are asked for are those that hold a token: counted one token at a time."""
    generator = torch.Generator().manual_seed(seed)
    for _ in range(150):
        sink, recent = (int(torch.randint(0, n, (), generator=generator)) for n in (150, 200))
        sink_pages = -(-sink // 64)
        ring_pages = -(-(recent + 1) // 64) + int(torch.randint(0, 2, (), generator=generator))
        n = int(torch.randint(1, 700, (), generator=generator))
        newest = bool(torch.randint(0, 2, (), generator=generator))

        def coded_end(tokens):
            return max(sink, tokens - recent)

        def column(p):
            return p // 64 if p < sink else sink_pages + p % (64 * ring_pages) // 64

        start = coded_end(n)
        used = {column(n - 1)} if newest else {column(p) for p in range(n) if p < sink or p >= start}
        for c in range(sink_pages + ring_pages):
            table = torch.zeros(1, sink_pages + ring_pages, dtype=torch.int32)
            table[0, c] = -1
            arguments = ("x", torch.tensor([n], dtype=torch.int32), table, 1, sink)
            options = {"recent": recent, "newest_only": newest}
            if c in used:
                with pytest.raises(RuntimeError, match=f"window page {c} of sequence 0 is -1"):
                    table_checks.check_step(*arguments, **options)
            else:
                table_checks.check_step(*arguments, **options)
