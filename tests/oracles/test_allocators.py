"""Allocators of other papers (oscar-fit --allocate) against their formulas in numpy, from what the bundle and the statistics hold."""
import itertools
import json
import os
import pathlib

import numpy as np
import pytest

torch = pytest.importorskip("torch")
safetensors = pytest.importorskip("safetensors")
from safetensors import numpy as st  # noqa: E402
from safetensors.torch import load_file as load_torch  # noqa: E402

MODEL = pathlib.Path(os.environ["OSCAR_SOURCE_DIR"]) / "sample_data" / "tiny-qwen3-outliers"
DISTORTION = {0: 1.0, 1: 0.3634, 2: 0.1188, 4: 0.0115}
THRESHOLDS = {1: 0.5, 2: 1.5, 4: 3.0}
BUDGETS = [1.0, 1.5, 2.25]


@pytest.fixture(scope="module")
def folder(tool, tmp_path_factory):
    folder = tmp_path_factory.mktemp("allocators")
    rng = np.random.default_rng(3)
    rows = [rng.integers(0, 8000, n).tolist() for n in (300, 250, 280, 120)]
    (folder / "rows.jsonl").write_text("".join(json.dumps({"input_ids": row}) + "\n" for row in rows))
    tool("oscar-collect", "--model", MODEL, "--prompts", folder / "rows.jsonl", "-o", folder / "s", "--device", "cpu", "-q",
         "--far-pairs", "16,64")
    return folder


def fitted(tool, folder, allocator, bits, *options):
    """(widths of every place, keys before values; tensors of the bundle; its manifest)"""
    bundle = folder / f"{allocator}-{bits}"
    if not bundle.exists():
        tool("oscar-fit", folder / "s", "-o", bundle, "--method", "waterfill", "--allocate", allocator, "--bits", bits, *options)
    manifest = json.loads((bundle / "oscar_bundle.json").read_text())
    places = [tuple(layer[side]["widths"]) for layer in manifest["layers"] for side in ("key", "value")]
    return places, st.load_file(bundle / "rotations.safetensors"), manifest


def row_bits(widths, d):
    return sum(w * d // 4 + 8 for w in widths if w)


def take(steps, places, d, bits):
    """Widths behind the steps (level, place, blocks, width), highest level first, that fit; a block that was refused rests."""
    widths = [[0] * 4 for _ in range(places)]
    resting = set()
    for _, place, blocks, width in sorted(steps, key=lambda s: (-s[0], s[1], s[2], s[3])):
        after = [width if b in blocks else w for b, w in enumerate(widths[place])]
        if (place, blocks) in resting:
            continue
        if sum(row_bits(after if p == place else w, d) for p, w in enumerate(widths)) > bits * places * d + 1e-6:
            resting.add((place, blocks))
        else:
            widths[place] = after
    return [tuple(w) for w in widths]


def crossing(variances, mean_bits):
    """log2 of the water level at which the mean of the bits is this: by halving."""
    low, high = -200.0, 200.0
    for _ in range(100):
        middle = (low + high) / 2
        with np.errstate(divide="ignore"):
            bits = np.maximum(0, 0.5 * (np.log2(variances) - middle)).mean()
        low, high = (middle, high) if bits > mean_bits else (low, middle)
    return low


def water_steps(variances, place):
    """variances: [S, d] or [S, 4], strongest first."""
    blocks = np.split(variances, 4, axis=1)
    return [(crossing(v.ravel(), mean), place, (b,), w) for b, v in enumerate(blocks) for w, mean in THRESHOLDS.items()]


def lambdas(tensors, layers):
    return [tensors[f"layers.{i}.{side}.eigenvalues"][:, ::-1].astype(np.float64) for i in range(layers) for side in "kv"]


@pytest.mark.parametrize("bits", BUDGETS)
def test_aatc_fills_all_channels_to_one_level(tool, folder, bits):
    places, tensors, manifest = fitted(tool, folder, "aatc", bits)
    d = tensors["layers.0.k.forward"].shape[-1]
    variances = [v**2 for v in lambdas(tensors, len(places) // 2)]
    steps = [s for p, v in enumerate(variances) for s in water_steps(v, p)]
    assert places == take(steps, len(places), d, bits)
    # The definition itself: the lowest level at which the rounded numbers of bits fit is not above what was taken.
    def rounded(level):
        means = [[np.maximum(0, 0.5 * (np.log2(b) - level)).mean() for b in np.split(v, 4, axis=1)] for v in variances]
        return [tuple(max([0, *(w for w, t in THRESHOLDS.items() if m >= t)]) for m in side) for side in means]

    size = lambda widths: sum(row_bits(w, d) for w in widths)
    low, high = -200.0, 200.0
    for _ in range(60):
        middle = (low + high) / 2
        low, high = (middle, high) if size(rounded(middle)) > bits * len(places) * d else (low, middle)
    assert all(a <= b for x, y in zip(rounded(high), places) for a, b in zip(x, y))
    assert 0 <= bits * len(places) * d - size(places) < d // 4 + 8
    assert manifest["provenance"]["options"]["allocate"] == "aatc"


@pytest.mark.parametrize("bits", BUDGETS)
def test_spectra_sees_rows_alone_and_one_side_at_a_time(tool, folder, bits):
    places, tensors, _ = fitted(tool, folder, "spectra", bits)
    d = tensors["layers.0.k.forward"].shape[-1]
    for p, widths in enumerate(places):
        back = tensors[f"layers.{p // 2}.{'kv'[p % 2]}.inverse_or_query"].astype(np.float64)
        energy = (back**2).sum(1 if p % 2 == 0 else 2)  # of the row of the model that a unit of each channel is
        variances = energy.reshape(len(back), 4, d // 4).mean(2)
        assert [widths] == take(water_steps(variances, 0), 1, d, bits)


@pytest.mark.parametrize("bits", BUDGETS)
def test_ratequant_by_its_closed_form(tool, folder, bits):
    places, tensors, _ = fitted(tool, folder, "ratequant", bits)
    d = tensors["layers.0.k.forward"].shape[-1]
    statistics = st.load_file(folder / "s")
    residual = [statistics[f"layers.{i}.attention_residual"][1] for i in range(len(places) // 2)]
    weights = np.array([(v**2).sum() / (residual[p // 2][0] / residual[p // 2][1]) for p, v in
                        enumerate(lambdas(tensors, len(places) // 2))])
    slope = np.polyfit(list(DISTORTION), np.log(list(DISTORTION.values())), 1)[0]
    ahead = (np.log(weights) - np.log(weights).mean()) / -slope  # b = mean + ahead
    steps = [(a - t, p, (0, 1, 2, 3), w) for p, a in enumerate(ahead) for w, t in THRESHOLDS.items()]
    assert places == take(steps, len(places), d, bits)


@pytest.mark.parametrize("bits", BUDGETS)
def test_spectral_by_the_norms_of_the_checkpoint(tool, folder, bits):
    places, tensors, manifest = fitted(tool, folder, "spectral", bits, "--model", MODEL)
    d = tensors["layers.0.k.forward"].shape[-1]
    weights = load_torch(MODEL / "model.safetensors")
    norms = [weights[f"model.layers.{i}.self_attn.{side}_proj.weight"].double().norm().item() ** 2
             for i in range(len(places) // 2) for side in "kv"]
    # Greedy as it is told: again and again the step of largest gain for each bit, of those that fit.
    widths = [0] * len(places)
    following = {0: 1, 1: 2, 2: 4}
    resting = set()
    while True:
        gains = {p: norms[p] * (4.0**-w - 4.0 ** -following[w]) / (following[w] - w) for p, w in enumerate(widths)
                 if w in following and p not in resting}
        if not gains:
            break
        best = max(gains, key=gains.get)
        after = [following[w] if p == best else w for p, w in enumerate(widths)]
        if sum(row_bits((w,) * 4, d) for w in after) > bits * len(places) * d + 1e-6:
            resting.add(best)
        else:
            widths = after
    assert places == [(w,) * 4 for w in widths]
    assert manifest["provenance"]["options"]["allocate"] == "spectral"


@pytest.fixture(scope="module")
def text(folder):
    """Two sequences of 200 tokens, as --text takes them, and what the model's loss says of its own weights."""
    transformers = pytest.importorskip("transformers")
    ids = np.random.default_rng(8).integers(0, 8000, 400).tolist()
    (folder / "text.jsonl").write_text(json.dumps({"input_ids": ids}) + "\n")
    model = transformers.AutoModelForCausalLM.from_pretrained(MODEL, dtype=torch.float32, attn_implementation="eager")
    norms = 0
    for row in (ids[:200], ids[200:]):
        model.zero_grad()
        model(torch.tensor([row]), labels=torch.tensor([row])).loss.backward()
        norms = norms + np.array([p.weight.grad.norm().item() for layer in model.model.layers
                                  for p in (layer.self_attn.k_proj, layer.self_attn.v_proj)])
    return norms, ["--model", MODEL, "--text", folder / "text.jsonl", "--curve-context", 200, "--curve-sequences", 2,
                   "--windows", "16,64", "--dtype", "float32"]


@pytest.mark.parametrize("bits", [1.0, 1.5, 2.0, 2.25])
def test_kvmix_by_the_gradients_of_the_loss(tool, folder, text, bits):
    norms, options = text
    places, tensors, _ = fitted(tool, folder, "kvmix", bits, *options)
    d = tensors["layers.0.k.forward"].shape[-1]
    lower = max(w for w in DISTORTION if row_bits((w,) * 4, d) <= bits * d + 1e-6)
    upper = min((w for w in DISTORTION if w > lower), default=lower)
    order = sorted(range(len(places)), key=lambda p: (sum(norms[q] > norms[p] for q in range(p % 2, len(places), 2)), p))
    room = round((bits * d - row_bits((lower,) * 4, d)) * len(places)) // (row_bits((upper,) * 4, d) - row_bits((lower,) * 4, d))
    assert places == [(upper if p in order[:room] else lower,) * 4 for p in range(len(places))]


@pytest.mark.parametrize("allocator", ["modelopt", "kvtuner", "pmkvq", "kvmix"])
def test_allocators_on_text_keep_the_budget(tool, folder, text, allocator):
    for bits in BUDGETS:
        places, tensors, manifest = fitted(tool, folder, allocator, bits, *text[1])
        d = tensors["layers.0.k.forward"].shape[-1]
        assert 0 < sum(row_bits(w, d) for w in places) <= bits * d * len(places)
        assert all(len(set(w)) == 1 for w in places)
        assert allocator != "modelopt" or places[::2] == places[1::2]
        assert manifest["provenance"]["options"]["allocate"] == allocator
        hashes = json.loads((folder / f"{allocator}-{bits}" / "calibration_hashes.json").read_text())["parts"]
        assert len(hashes) == 2  # of the collection and of the text


def test_another_allocator_changes_widths_alone(tool, folder):
    first = fitted(tool, folder, "aatc", 1.5)[1]
    for other in ("spectra", "ratequant"):
        second = fitted(tool, folder, other, 1.5)[1]
        assert all(np.array_equal(first[name], second[name]) for name in first if "sigma" not in name)
    found = {a: tuple(fitted(tool, folder, a, 1.5)[0]) for a in ("aatc", "spectra", "ratequant")}
    assert all(found[a] != found[b] for a, b in itertools.combinations(found, 2))
