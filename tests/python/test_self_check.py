"""The self-check of engines on the CPU: right kernels pass, wrong ones stop the start with the layer and the difference. The GPU's own
kernels pass it in test_cuda_operators.py."""
import logging
import types

import pytest

torch = pytest.importorskip("torch")

from safetensors.torch import save_file  # noqa: E402
from random_bundles import random_bundle  # noqa: E402
from oscar_kv.cache.paged_kv import LayerCode  # noqa: E402
from oscar_kv.cache.slot_kv import SlotKV  # noqa: E402
from oscar_kv.cache.transform import Phases  # noqa: E402
from oscar_kv.engines import check_rows, self_check  # noqa: E402
from oscar_kv.files.errors import InputError  # noqa: E402
from oscar_kv.ops import operators  # noqa: E402

LOG = logging.getLogger("oscar_kv.test")


def serving_of(*bundles, slots=20, device="cpu", d=64, shares=False):
    """What self_check reads of an EngineServing with one layer of each bundle."""
    caches = {}
    for index, bundle in enumerate(bundles):
        code = LayerCode(bundle, bundle.layers[0], Phases(10000.0 ** -(torch.arange(0, d, 2) / d)), device)
        caches[index] = SlotKV(code, slots, 900, 3, kept=4 if shares else 0)
    return types.SimpleNamespace(bundle=bundles[0], slots=slots, caches=lambda: caches, room=lambda: 900)


def bundles(d=64):
    large = random_bundle(kv_heads=2, d=d, key=(4, 2, 1, 0), value=(2, 1, 0, 0), rotated_mean=True)
    large.layers[0].key.mean[:, d // 4:d // 2] *= 700  # as in layer 0 of Qwen2.5-Coder-1.5B
    return [random_bundle(kv_heads=2, d=d), random_bundle(kv_heads=2, d=d, key=(4, 4, 4, 4), value=(0, 0, 0, 0)),
            random_bundle(kv_heads=2, d=d, key=(0, 0, 0, 0), value=(0, 0, 0, 0), rotated_mean=True), large]


def replace(monkeypatch, name, broken):
    """The operator that run() calls; the reference stays."""
    whole = getattr(operators, name)
    monkeypatch.setattr(operators, name, broken)
    for table in (operators._arguments, operators._references):
        monkeypatch.setitem(table, broken, table[whole])


def model_rows(folder, bundle, n=150, m=3, group=3, d=64, **wrong):
    """A bundle's folder with such a file, of rows that look like the model's: around its mean where they were sampled."""
    g = torch.Generator().manual_seed(4)
    tensors = {"positions": torch.randint(0, 9000, (n,), generator=g).sort().values}
    for index, one in enumerate(bundle):
        rows = [torch.randn(*shape, generator=g) for shape in ((m, 2 * group, d), (n, 2, d), (n, 2, d))]
        if one.layers[0].key.rotated_mean:
            transform = LayerCode(one, one.layers[0], Phases(10000.0 ** -(torch.arange(0, d, 2) / d))).transform
            transform.reserve(9001, "cpu")
            rows[1] += transform.mean_at(tensors["positions"])
        tensors |= {f"layers.{index}.{name}": x.bfloat16() for name, x in zip("qkv", rows)}
        one.layers[0].layer = index
    tensors |= wrong
    save_file({k: v for k, v in tensors.items() if v is not None}, folder / "self_check.safetensors")
    for one in bundle:
        one.path = folder
    return bundle


def test_the_models_rows_pass(tmp_path):
    assert "self-check of 4 layers on the model's rows passed" in self_check.passed(serving_of(*model_rows(tmp_path, bundles())), LOG)


def test_rows_move_as_rope_moves_them(tmp_path):
    """A key of position p that the cache holds at t is around the mean at t; elsewhere its codes would be others than the model's."""
    bundle = model_rows(tmp_path, bundles())[3]
    code = LayerCode(bundle, bundle.layers[0], Phases(10000.0 ** -(torch.arange(0, 64, 2) / 64)))
    code.transform.reserve(701, "cpu")
    rows = check_rows.ModelRows(bundle).rows(code, 3, 701)
    assert (rows.key.float() - code.transform.mean_at(torch.arange(701))).abs().amax() < 12  # means are above 400
    assert rows.key.shape == (701, 2, 64) and rows.query.shape == (3, 6, 64)
    plain = model_rows(tmp_path, bundles())[0]
    code = LayerCode(plain, plain.layers[0], None)
    again = check_rows.ModelRows(plain).rows(code, 2, 200)
    assert again.key[:50].equal(again.key[150:]) and again.query.shape == (3, 4, 64)


def test_a_rank_reads_its_heads(tmp_path):
    bundle = model_rows(tmp_path, bundles())[1]
    whole, part = (check_rows.ModelRows(b).rows(LayerCode(b, b.layers[0]), 3, 90) for b in (bundle, bundle.slice_heads(1, 2)))
    assert part.key.equal(whole.key[:, 1:]) and part.value.equal(whole.value[:, 1:]) and part.query.equal(whole.query[:, 3:])


@pytest.mark.parametrize("wrong, said", [
    ({"layers.0.k": None}, "tensor layers.0.k is missing"),
    ({"layers.0.k": torch.zeros(150, 2, 32).bfloat16()}, r"layers.0.k is BF16 \[150, 2, 32\]"),
    ({"layers.0.k": torch.zeros(150, 2, 64)}, "layers.0.k is F32"),
    ({"layers.0.v": torch.zeros(150, 3, 64).bfloat16()}, "no rows of this model"),
    ({"layers.0.q": torch.zeros(3, 5, 64).bfloat16()}, "no rows of this model"),
    ({"layers.0.q": torch.full((3, 6, 64), float("nan")).bfloat16()}, "NaN or infinity"),
    ({"positions": torch.full((150,), -3)}, "negative"),
    ({"positions": torch.zeros(5000, dtype=torch.int64)}, r"positions is I64 \[5000\]"),
])
def test_rows_that_are_none_get_a_sentence(tmp_path, wrong, said):
    with pytest.raises(InputError, match=said):
        self_check.passed(serving_of(*model_rows(tmp_path, bundles()[:1], **wrong)), LOG)


@pytest.mark.parametrize("name", ["past_rows", "new_rows", "flush_tokens"])
def test_a_broken_chunk_stops_the_start(monkeypatch, tmp_path, name):
    """The path of prompts: keys that attention gathers, and rows that enter the cache, of which decode steps see the last. And the codes
    of a step's token."""
    whole = getattr(operators, name)

    def broken(*given):
        given = list(given)
        place = operators._arguments[whole].index("value_mean" if name != "flush_tokens" else "windows")
        given[place] = given[place] * 3 if name != "flush_tokens" else given[place] * -9
        whole(*given)

    replace(monkeypatch, name, broken)
    said = {"past_rows": "a prompt chunk of 100 tokens", "flush_tokens": "with 1 sequences"}.get(name, "with (a prompt chunk of 100 tokens|1 sequences)")
    with pytest.raises(InputError, match=rf"layer 0 \(uniform keys, uniform values\).*{said}.*expected at most 0.1"):
        self_check.passed(serving_of(*model_rows(tmp_path, bundles()[:1])), LOG)


def test_right_kernels_pass():
    assert "self-check of 4 layers on made rows passed" in self_check.passed(serving_of(*bundles()), LOG)


def test_codes_of_tokens_in_the_windows_are_checked(monkeypatch):
    """Tokens of the windows have codes, too, which later steps read. Broken here: such tokens of a prompt get none."""
    whole = operators.new_rows
    place = operators._arguments[whole].index("runs")

    def broken(*given):
        given = list(given)
        runs = given[place] = given[place].clone()
        runs[runs[:, 5] >= 0, 2] = -1
        whole(*given)

    assert "passed" in self_check.passed(serving_of(*bundles(), shares=True), LOG)
    replace(monkeypatch, "new_rows", broken)
    for shares in (False, True):
        with pytest.raises(InputError, match="layer 0 .*expected at most 0.1"):
            self_check.passed(serving_of(bundles()[0], shares=shares), LOG)


def test_rounding_of_large_means_is_no_fault(monkeypatch):
    """Prompts attend to keys in BF16. Where that alone moves the reference's outputs (layer 0 of Qwen2.5-Coder-1.5B: by .88 of their size), the
    kernels' may be as far away, and no further; elsewhere the limit holds."""
    chunk, moved = self_check._by_chunk, {}

    def by_bfloat16(*given):
        found, right, rounded = chunk(*given)
        return right * moved["found"], right, right * moved["rounded"]

    monkeypatch.setattr(self_check, "_by_chunk", by_bfloat16)
    for found, rounded, passes in ((1.88, 0.12, True), (1.5, 1.2, True), (1.5, 1.05, False), (1.09, 1.0, True), (float("nan"), 0.0, False)):
        moved |= dict(found=found, rounded=rounded)
        if passes:
            self_check.passed(serving_of(bundles()[0]), LOG)
        else:
            with pytest.raises(InputError, match="with a prompt chunk of 100 tokens"):
                self_check.passed(serving_of(bundles()[0]), LOG)


def test_layers_of_a_known_code(monkeypatch):
    """Further layers of one code are compared with the reference on the pages that the kernels wrote, which takes few launches."""
    serving = serving_of(*bundles()[:1] * 2)
    kv, fills = serving.caches()[1], []
    monkeypatch.setattr(self_check.PagedKV, "append", lambda self, *given, whole=self_check.PagedKV.append: fills.append(
        operators.references()) or whole(self, *given))
    for own, expected in ((True, [False, True] * 2), (False, [False] * 2)):
        found = self_check.errors_of(kv, 20, 900, own=own)
        assert [path for path, _ in found] == ["a prompt chunk of 100 tokens"] + [f"{n} sequences" for n in (1, 4, 16, 20)]
        assert max(error for _, error in found) < 0.01 and fills == expected
        fills.clear()
    self_check.passed(serving, LOG)
    assert fills == [False, True, False, True, False, False]
    fills.clear()
    both = random_bundle(kv_heads=2, d=64, key=(4, 2, 1, 0), value=(2, 1, 0, 0)), random_bundle(kv_heads=2, d=64, key=(4, 2, 1, 0))
    self_check.passed(serving_of(*bundles()[:1], *both), LOG)  # the last one's keys and values were each written before
    assert fills == [False, True, False, True] * 2 + [False, False]
    whole = operators.decode_attention
    replace(monkeypatch, "decode_attention", lambda *given: tuple(x * 2 for x in whole(*given)))
    assert max(error for _, error in self_check.errors_of(kv, 20, 900, own=False)) > 0.4


@pytest.mark.parametrize("wrong", [float("nan"), 0.0, 7.0])
def test_wrong_outputs_stop_the_start(monkeypatch, wrong):
    """Only with 16 sequences, as in the engine that answered nonsense while few requests ran."""
    whole = operators.decode_attention

    def broken(*given):
        output, lse = whole(*given)
        if output.shape[0] == 16:
            output[5, 0, 2] = wrong
            output[5, 1, 0] = -wrong
        return output, lse

    replace(monkeypatch, "decode_attention", broken)
    with pytest.raises(InputError, match=r"layer 0 \(uniform keys, uniform values\) with 16 sequences.*expected at most 0.1"):
        self_check.passed(serving_of(*bundles()[:1]), LOG)


def test_pages_that_hold_other_codes_are_found(monkeypatch):
    """A step that reads pages as if they had been written with another code."""
    whole = operators.decode_attention

    def broken(query, pool, *rest):
        return whole(query, torch.randint(256, pool.shape, dtype=torch.uint8, generator=torch.Generator().manual_seed(1)), *rest)

    replace(monkeypatch, "decode_attention", broken)
    with pytest.raises(InputError, match="layer 0 .4-4-4-4 keys, 0-0-0-0 values. with 1 sequences"):
        self_check.passed(serving_of(bundles()[1]), LOG)


def test_it_can_be_switched_off(monkeypatch, caplog):
    monkeypatch.setenv(self_check.VARIABLE, "off")
    monkeypatch.setattr(operators, "decode_attention", None)
    assert self_check.passed(serving_of(*bundles()), LOG) == "self-check skipped"
    assert "skipped" in caplog.text
