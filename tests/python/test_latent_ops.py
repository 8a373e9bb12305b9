"""Latent attention: page layout against known answers, and the torch operators against plain loops over tokens."""
import itertools

import pytest

torch = pytest.importorskip("torch")

import conftest  # noqa: E402, F401
from latent_state import RECENT, RING, SINK, LatentState, Plain, randn, tokens  # noqa: E402
from oscar_kv.format.codec import RowCode  # noqa: E402
from oscar_kv.format.latent_layout import LatentPages, matrix_operand, operand_places, window_places  # noqa: E402
from oscar_kv.ops import latent_operators as latent  # noqa: E402
from oscar_kv.ops.operators import NO_FAULT, run  # noqa: E402
from oscar_kv.ops.view import StepView  # noqa: E402

SCALE = 0.05


def call(operator, state, **more):
    return run(operator, StepView.of(state.arguments(**more)))


def test_pages_are_those_of_the_kernels():
    """The numbers of kernels/common/latent_page.h."""
    page = LatentPages(RowCode("blocks", 512, widths=(4, 2, 1, 1)))
    assert [p.offset for p in page.side.planes] == [0, 4096, 6144, 7168]
    assert (page.side.param_offset, page.rope_offset, page.bytes) == (8192, 8448, 16640)
    assert LatentPages(RowCode("blocks", 512, widths=(4, 4, 4, 4))).bytes == 24832
    rope = 8448 + 2 * operand_places(64, 64)
    found = {place: int(rope[place]) for place in ((0, 0), (8, 0), (0, 8), (0, 2), (1, 0), (16, 0), (0, 16), (63, 63))}
    assert list(found.values()) == [8448, 8452, 8456, 8464, 8512, 8960, 10496, 16638]
    windows = 2 * window_places()[0]
    assert [int(windows[place]) for place in ((32, 0), (0, 512), (63, 575))] == [36864, 32768, 73726]
    assert sorted(windows.flatten().tolist()) == list(range(0, 73728, 2))


def test_pages_keep_what_is_written():
    page = LatentPages(RowCode("blocks", 512, widths=(4, 0, 2, 1)))
    most = torch.tensor([15, 0, 3, 1]).repeat_interleave(128)
    codes = (torch.randint(0, 1 << 20, (3, 64, 512)) % (most + 1)).to(torch.uint8)
    params, rope = torch.randint(0, 256, (3, 64, 3), dtype=torch.uint8), randn(3, 64, 64, seed=1).bfloat16()
    pages = torch.randint(0, 256, (3, page.bytes), dtype=torch.uint8)
    page.write(pages, codes, params, rope)
    for found, expected in zip(page.read(pages), (codes, params, rope)):
        assert torch.equal(found, expected)


def test_matrices_are_in_the_order_of_the_kernels():
    """latent_matrix_element() of kernels/latent/latent_rows.h, element by element."""
    flat = matrix_operand(torch.arange(512 * 512).view(1, 512, 512)).flatten()
    for k, n in itertools.product((0, 1, 2, 7, 8, 15, 16, 300, 511), (0, 1, 7, 8, 9, 15, 16, 301, 511)):
        place = (k // 16 * 32 + n // 16) * 256 + (4 * (n % 8) + k % 8 // 2) * 8 + n % 16 // 8 * 4 + k % 16 // 8 * 2 + k % 2
        assert int(flat[place]) == 512 * k + n


@pytest.mark.parametrize("widths, mean, search, refined", [((4, 2, 1, 1), True, True, False), ((2, 2, 0, 4), False, False, False),
                                                           ((4, 2, 1, 2), True, True, True)])
def test_chunks_and_steps_are_plain_attention(widths, mean, search, refined):
    """Two requests: chunks of a prompt, then steps. Every step attends as a loop over its tokens does."""
    state = LatentState(2, widths, mean=mean, search=search, room=32, refined=refined)
    plain, lengths = [Plain(state), Plain(state)], [0, 0]
    for sequence, count in ((0, 50), (1, 300), (0, 61)):
        rows, rope = tokens(count, 10 * count + sequence)
        call(latent.latent_new, state, rows=rows, rope=rope, matrix=state.matrix,
             runs=state.runs(sequence, lengths[sequence], count))
        plain[sequence].add(rows, rope)
        lengths[sequence] += count
    for step in range(70):
        rows, rope = tokens(2, 7 + step)
        lengths = [n + 1 for n in lengths]
        held = torch.tensor(lengths, dtype=torch.int32)
        call(latent.latent_append, state, lengths=held, rows=rows, rope=rope, matrix=state.matrix)
        for one, row, part in zip(plain, rows, rope):
            one.add(row[None], part[None])
        if step % 23 == 0:
            query, rope_query = randn(2, 5, 512, seed=step).bfloat16(), randn(2, 5, 64, seed=step + 1).bfloat16()
            found = call(latent.latent_decode, state, lengths=held, query=query, rope_query=rope_query, scale=SCALE,
                         after=None, workspace=torch.empty(0, dtype=torch.uint8))
            for i, one in enumerate(plain):
                expected = one.attend(query[i], rope_query[i], SCALE, lengths[i])
                assert (found[i].float() - expected).norm() < 4e-3 * expected.norm()
        call(latent.latent_flush, state, lengths=held)
    assert state.bad.tolist() == [NO_FAULT, NO_FAULT]


@pytest.mark.parametrize("widths, refined", [((4, 4, 2, 0), False), ((4, 4, 4, 4), True)])
def test_past_rows_leave_the_cache_basis(widths, refined):
    """A chunk's past: codes and windows, out of the cache's basis, where a later chunk begins."""
    state = LatentState(2, widths, refined=refined)
    plain, stored = [Plain(state), Plain(state)], [333, 90]
    for sequence, count in enumerate(stored):
        rows, rope = tokens(count, count)
        call(latent.latent_new, state, rows=rows, rope=rope, matrix=state.matrix, runs=state.runs(sequence, 0, count))
        plain[sequence].add(rows, rope)
    starts, firsts = torch.tensor([40, 10], dtype=torch.int32), torch.tensor([0, 293], dtype=torch.int32)
    sequence = torch.tensor([0] * 293 + [1] * 80, dtype=torch.int32)
    output = torch.full((400, 576), torch.nan, dtype=torch.bfloat16)
    call(latent.latent_past, state, output=output, sequence=sequence, firsts=firsts, starts=starts,
         ends=torch.tensor([n - RECENT for n in stored], dtype=torch.int32), matrix=state.matrix.t().contiguous())
    for one, first, count, start in zip(plain, (0, 293), (293, 80), (40, 10)):
        rows, rope = one.seen(len(one.rows))
        expected = rows[start : start + count] @ state.matrix.t() + state.mean
        assert torch.equal(output[first : first + count, 512:], rope[start : start + count])
        assert (output[first : first + count, :512].float() - expected).norm() < 5e-3 * expected.norm()
    assert output[373:].isnan().all()


def test_rows_that_are_not_finite_count_as_zeros():
    state = LatentState(1, mean=False)
    rows, rope = tokens(70, 1)
    rows[66, 3] = torch.inf
    call(latent.latent_new, state, rows=rows, rope=rope, matrix=torch.eye(512), runs=state.runs(0, 0, 70))
    assert state.bad[0] != NO_FAULT and state.bad[1] == NO_FAULT
    codes = state.layout.read(state.pool[state.table[0, 0].long(), : state.layout.bytes])[0]
    assert set(codes[2, :128].tolist()) == {8}  # the middle of a row of zeros


def test_tables_that_lead_nowhere_are_refused():
    state = LatentState(1)
    rows, rope = tokens(1, 1)
    state.window_table[0, 1:] = 99
    with pytest.raises(RuntimeError, match="window_table 1 of sequence 0 is 99|is 99, expected"):
        call(latent.latent_append, state, lengths=torch.tensor([70], dtype=torch.int32), rows=rows, rope=rope,
             matrix=state.matrix)
    assert RING * 64 > RECENT > 0 and SINK == 64
