"""The CUDA operators of latent attention against the torch reference on the CPU. Skipped where there is no GPU or the operators
were not built."""

import pytest

torch = pytest.importorskip("torch")

from conftest import use_built_operators  # noqa: E402

use_built_operators()
from latent_state import RECENT, SINK, LatentState, randn, tokens  # noqa: E402
from oscar_kv.cache.latent_kv import LatentCode, LatentKV  # noqa: E402
from oscar_kv.engines import latent_check  # noqa: E402
from oscar_kv.format.latent_layout import ROW  # noqa: E402
from oscar_kv.ops import latent_operators as latent  # noqa: E402
from oscar_kv.ops import load  # noqa: E402
from oscar_kv.ops.operators import SIDE_BYTES, flush_layers, run  # noqa: E402
from oscar_kv.ops.view import StepView  # noqa: E402
from random_bundles import asked_bundle  # noqa: E402

REASON = load.missing()
pytestmark = pytest.mark.skipif(REASON is not None, reason=str(REASON))
WIDTHS = [(4, 2, 1, 1), (2, 2, 2, 2), (4, 4, 4, 4), (1, 0, 4, 2), (0, 0, 0, 0)]
REFINED = [(4, 2, 1, 2), (4, 4, 4, 4), (1, 0, 2, 4), (2, 0, 0, 1)]
CODES = [(widths, False) for widths in WIDTHS] + [(widths, True) for widths in REFINED]
SCALE = 0.05


def states(batch, widths, identity=False, **options):
    """The same state on the CPU and on the GPU. identity: rows stay in their basis, so that bytes can be compared."""
    made = [LatentState(batch, widths, device, mean=not identity, **options) for device in ("cpu", "cuda")]
    for state in made:
        if identity:
            state.matrix = torch.eye(512, device=state.device)
        state.kernel_matrix = latent.kernel_matrix(state.matrix)
    return made


def call(operator, state, **more):
    moved = {name: x.to(state.device) if isinstance(x, torch.Tensor) else x for name, x in more.items()}
    return run(operator, StepView.of(state.arguments(**({"matrix": state.kernel_matrix} | moved))))


def new(state, sequence, start, rows, rope):
    call(latent.latent_new, state, rows=rows, rope=rope, runs=state.runs(sequence, start, len(rows)))


def flush(state, lengths):
    if state.device == "cpu":
        return call(latent.latent_flush, state, lengths=lengths)
    sides = torch.zeros(2, SIDE_BYTES, dtype=torch.uint8)  # two layers that happen to be the same
    for side in sides:
        run(latent.describe_latent, StepView.of(state.arguments(side=side)))
    call(flush_layers, state, lengths=lengths, sides=sides.cuda(), kv_heads=1, row=ROW)


def step(state, lengths, rows, rope, query, rope_query):
    workspace = torch.empty(0, dtype=torch.uint8)
    if state.device == "cuda":
        workspace = torch.empty(latent.latent_workspace_bytes(state.pool, *query.shape[:2]), dtype=torch.uint8)
    call(latent.latent_append, state, lengths=lengths, rows=rows, rope=rope)
    out = call(latent.latent_decode, state, lengths=lengths, query=query, rope_query=rope_query, after=randn(512, seed=8),
               workspace=workspace, scale=SCALE)
    flush(state, lengths)
    return out


@pytest.mark.parametrize("widths, refined", CODES)
@pytest.mark.parametrize("search", [True, False])
def test_bytes_are_those_of_the_reference(widths, refined, search):
    cpu, cuda = states(3, widths, identity=True, search=search, room=48, refined=refined)
    lengths = [0, 300, 70]
    for sequence, count in enumerate(lengths):
        if count:
            rows, rope = tokens(count, count)
            for state in (cpu, cuda):
                new(state, sequence, 0, rows, rope)
    for one in range(80):
        rows, rope = tokens(3, one)
        lengths = [n + (n > 0) for n in lengths]
        held = torch.tensor(lengths, dtype=torch.int32)
        for state in (cpu, cuda):
            call(latent.latent_append, state, lengths=held, rows=rows, rope=rope)
            flush(state, held)
    assert torch.equal(cpu.windows, cuda.windows.cpu()) and torch.equal(cpu.pool, cuda.pool.cpu())
    assert cuda.bad.tolist() == cpu.bad.tolist()


@pytest.mark.parametrize("widths, refined", [((4, 2, 1, 1), False), ((4, 4, 4, 4), False), ((4, 2, 1, 2), True), ((4, 4, 4, 4), True)])
def test_self_check_of_engines(widths, refined):
    """What vLLM calls at its start, with kernels against the reference, on rows of 16 query heads."""
    bundle = asked_bundle(latent=True, layers=1, widths=widths, refined=refined, centered=True)
    kv = LatentKV(LatentCode(bundle, bundle.layers[0], device="cuda"), 8, 16)
    assert kv.code.without_kernels is None
    assert max(error for _, error in latent_check.errors_of(bundle, kv, 8, 300)) < 0.02


@pytest.mark.parametrize("widths, refined", CODES)
def test_past_is_that_of_the_reference(widths, refined):
    cpu, cuda = states(2, widths, identity=True, refined=refined)
    exact = []
    for state in (cpu, cuda):
        for sequence, count in ((0, 333), (1, 90)):
            new(state, sequence, 0, *tokens(count, count))
        output = torch.full((900, 576), 7.0, dtype=torch.bfloat16, device=state.device)
        request = torch.tensor([0] * 293 + [1] * 80, dtype=torch.int32)
        call(latent.latent_past, state, output=output, sequence=request, ends=torch.tensor([333 - RECENT, 64], dtype=torch.int32),
             firsts=torch.tensor([0, 293], dtype=torch.int32), starts=torch.tensor([40, 10], dtype=torch.int32))
        exact.append(output.cpu())
    assert torch.equal(*exact)


def test_rows_leave_the_basis_as_they_entered_it():
    cpu, cuda = states(1, (4, 4, 4, 4))
    rows, rope = tokens(60, 1)  # all of them in the sink, in BF16
    new(cuda, 0, 0, rows, rope)
    cuda.kernel_matrix = latent.kernel_matrix(cuda.matrix.t().contiguous())
    output = torch.zeros(60, 576, dtype=torch.bfloat16)
    moved = output.cuda()
    call(latent.latent_past, cuda, output=moved, sequence=torch.zeros(60, dtype=torch.int32),
         firsts=torch.zeros(1, dtype=torch.int32), starts=torch.zeros(1, dtype=torch.int32),
         ends=torch.tensor([64], dtype=torch.int32))
    found = moved.cpu().float()
    assert torch.equal(found[:, 512:], rope.float())
    assert (found[:, :512] - rows.float()).norm() < 5e-3 * rows.float().norm()


@pytest.mark.parametrize("widths, refined", CODES)
@pytest.mark.parametrize("heads", [1, 16, 20, 128])
def test_steps_are_those_of_the_reference(widths, refined, heads):
    cpu, cuda = states(3, widths, refined=refined)
    lengths = [400, 63, 170]
    for sequence, count in enumerate(lengths):
        new(cpu, sequence, 0, *tokens(count, count))
    cuda.pool, cuda.windows = cpu.pool.cuda(), cpu.windows.cuda()
    query, rope_query = randn(3, heads, 512, seed=1).bfloat16(), randn(3, heads, 64, seed=2).bfloat16()
    rows, rope = tokens(3, 5)
    for more in (1, 0):  # the second: a sequence without tokens
        held = torch.tensor([n + 1 if i or more else 0 for i, n in enumerate(lengths)], dtype=torch.int32)
        found, expected = (step(state, held, rows, rope, query, rope_query).cpu().float() for state in (cuda, cpu))
        assert (found - expected).norm() < 5e-3 * expected.norm() and bool((found[held == 0] == 0).all())


def test_a_captured_step_follows_its_tables():
    """A graph of a step, replayed with other lengths and rows."""
    _, cuda = states(2, (4, 2, 1, 2), refined=True)
    for sequence in range(2):
        new(cuda, sequence, 0, *tokens(300, sequence))
    rows, rope = (x.cuda() for x in tokens(2, 9))
    query, rope_query = randn(2, 16, 512, seed=1).bfloat16().cuda(), randn(2, 16, 64, seed=2).bfloat16().cuda()
    held = torch.tensor([301, 301], dtype=torch.int32, device="cuda")
    sides = torch.zeros(1, SIDE_BYTES, dtype=torch.uint8)
    run(latent.describe_latent, StepView.of(cuda.arguments(side=sides[0])))
    sides, workspace = sides.cuda(), torch.empty(latent.latent_workspace_bytes(query, 2, 16), dtype=torch.uint8, device="cuda")

    def once():
        call(latent.latent_append, cuda, lengths=held, rows=rows, rope=rope)
        out = call(latent.latent_decode, cuda, lengths=held, query=query, rope_query=rope_query, after=None, workspace=workspace,
                   scale=SCALE)
        call(flush_layers, cuda, lengths=held, sides=sides, kv_heads=1, row=ROW)
        return out

    kept = cuda.pool.clone(), cuda.windows.clone()
    expected = []
    for length in (301, 302, 340):
        held.fill_(length)
        expected.append(once().clone())
    cuda.pool.copy_(kept[0]), cuda.windows.copy_(kept[1])
    held.fill_(301)
    graph = torch.cuda.CUDAGraph()
    torch.cuda.synchronize()
    with torch.cuda.graph(graph):
        out = once()
    cuda.pool.copy_(kept[0]), cuda.windows.copy_(kept[1])
    for length, right in zip((301, 302, 340), expected):
        held.fill_(length)
        graph.replay()
        torch.cuda.synchronize()
        assert torch.equal(out, right)
    assert SINK == 64
