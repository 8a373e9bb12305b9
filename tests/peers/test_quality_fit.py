"""Methods balanced and waterfill of oscar-fit against numpy: other formulas for the same transforms and widths."""
import json
import os

import numpy as np
import pytest

safetensors = pytest.importorskip("safetensors")
from safetensors import numpy as st  # noqa: E402

DISTORTION = {0: 1.0, 1: 0.3634, 2: 0.1188, 4: 0.0115}


@pytest.fixture(scope="module", params=["far", "plain"])
def fitted(request, tool, tmp_path_factory):
    folder = tmp_path_factory.mktemp("quality")
    rng = np.random.default_rng(3)
    rows = [rng.integers(0, 8000, n).tolist() for n in (300, 250, 280, 120)]
    (folder / "rows.jsonl").write_text("".join(json.dumps({"input_ids": row}) + "\n" for row in rows))
    model = os.path.join(os.environ["OSCAR_SOURCE_DIR"], "sample_data", "tiny-qwen3-outliers")
    tool("oscar-collect", "--model", model, "--prompts", folder / "rows.jsonl", "-o", folder / "s", "--device", "cpu", "-q",
         "--far-pairs", "16,64" if request.param == "far" else "none")
    tool("oscar-fit", folder / "s", "-o", folder / "balanced", "--method", "balanced")
    tool("oscar-fit", folder / "s", "-o", folder / "waterfill", "--method", "waterfill", "--bits", "1.75")
    return folder, request.param == "far"


def damped(m, tokens):
    d = len(m)
    diagonal = np.diag(np.diag(m))
    shrink = d / (tokens + d)
    return m * (1 - shrink) + diagonal * shrink + diagonal * 1e-3


def problems(folder, far):
    """(layer, key, [(mean, C, M)] of the heads, R) of every side, from the statistics file."""
    s = st.load_file(folder / "s")
    with safetensors.safe_open(folder / "s", "np") as f:
        tokens = json.loads(f.metadata()["oscar"])["tokens"]
    for layer in range(4):
        at = lambda name: s[f"layers.{layer}.{name}"]
        count = at("fisher_count") if far else None
        power = count[2] / count[0] if far else at("residual_energy")[0] / tokens
        for key, x in ((True, "k"), (False, "v")):
            metric = (at("fisher_q_gram" if key else "fisher_v_weight") / count[0] if far
                      else at("q_gram") / tokens if key else at("wo_gram"))
            heads = []
            for h in range(2):
                mean = at(f"{x}_sum")[h] / tokens
                c = at(f"{x}_gram")[h] / tokens - np.outer(mean, mean)
                heads.append((mean, damped(c, tokens), damped(metric[h], tokens)))
            yield layer, key, heads, power


def power_of(m, exponent):
    values, vectors = np.linalg.eigh(m)
    return (vectors * values**exponent) @ vectors.T


def bundle(folder, name):
    manifest = json.loads((folder / name / "oscar_bundle.json").read_text())
    return manifest, st.load_file(folder / name / "rotations.safetensors")


@pytest.mark.parametrize("name", ["balanced", "waterfill"])
def test_rows_and_metric_are_equal_in_the_fitted_basis(fitted, name):
    folder, far = fitted
    manifest, tensors = bundle(folder, name)
    assert manifest["provenance"]["options"]["metric"] == ("fisher" if far else "moments")
    for layer, key, heads, _ in problems(folder, far):
        side = f"layers.{layer}.{'k' if key else 'v'}."
        for h, (mean, c, m) in enumerate(heads):
            t = tensors[side + "forward"][h].astype(float)
            back = tensors[side + "inverse_or_query"][h].astype(float)
            back = back.T if key else back
            assert np.abs(back @ t - np.eye(len(t))).max() < 1e-4
            np.testing.assert_allclose(tensors[side + "mean"][h], mean, rtol=1e-4, atol=1e-5)
            seen, spread = back @ m @ back.T, t.T @ c @ t
            # T T^T = G up to one factor for each block, and G = C^-1 # M, so that G C G = M.
            n = len(t) // 4 if name == "waterfill" else len(t)
            g = sum(t[:, i:i + n] @ t[:, i:i + n].T * np.sqrt(np.trace(seen[i:i + n, i:i + n]) / np.trace(spread[i:i + n, i:i + n]))
                    for i in range(0, len(t), n))
            scale = np.sqrt(np.outer(np.diag(m), np.diag(m)))
            assert np.abs((g @ c @ g - m) / scale).max() < 2e-3
            for i in range(0, len(t), n):
                assert np.diag(spread)[i:i + n].mean() == pytest.approx(1, rel=1e-3)


def test_eigenvalues_are_the_roots_of_the_product(fitted):
    folder, far = fitted
    _, tensors = bundle(folder, "balanced")
    for layer, key, heads, _ in problems(folder, far):
        for h, (_, c, m) in enumerate(heads):
            root = power_of(c, 0.5)
            expected = np.sqrt(np.linalg.eigvalsh(root @ m @ root))
            found = tensors[f"layers.{layer}.{'k' if key else 'v'}.eigenvalues"][h]
            np.testing.assert_allclose(found[64:], expected[64:], rtol=1e-3)


def test_widths_follow_the_closed_form(fitted):
    folder, far = fitted
    manifest, _ = bundle(folder, "waterfill")
    energy, n, d = {}, 32, 128
    for layer, key, heads, power in problems(folder, far):
        blocks = np.zeros(4)
        for _, c, m in heads:
            root = power_of(c, 0.5)
            values = np.sqrt(np.linalg.eigvalsh(root @ m @ root))[::-1]
            blocks += n * values.reshape(4, n).mean(1) ** 2
        for b in range(4):
            energy[layer, key, b] = blocks[b] / power
    bits = lambda w: w * n + 8 * (w > 0)
    places = sorted(energy)
    units = int(1.75 * 4 * 2 * d + 1e-6) // 8
    # Least error of the first places within u units of 8 bits; then the widths that reach it, from the last place on.
    least = [np.zeros(units + 1)]
    for p in places:
        shifted = [np.concatenate([np.full(bits(w) // 8, np.inf), least[-1]])[:units + 1] + energy[p] * DISTORTION[w]
                   for w in DISTORTION]
        least.append(np.min(shifted, 0))
    width, u = {}, int(np.argmin(least[-1]))
    for i in reversed(range(len(places))):
        p = places[i]
        width[p] = min(DISTORTION, key=lambda w: least[i][u - bits(w) // 8] + energy[p] * DISTORTION[w]
                       if bits(w) // 8 <= u else np.inf)
        u -= bits(width[p]) // 8
    for entry in manifest["layers"]:
        for side in ("key", "value"):
            assert entry[side]["widths"] == [width[entry["layer"], side == "key", b] for b in range(4)]
    spent = sum(bits(w) for w in width.values()) / (4 * 2 * d)
    assert spent <= 1.75
    report = manifest["fit"]["layers"]
    shares = [r["spectrum"][side]["share"] for r in report for side in ("key", "value")]
    assert sum(shares) == pytest.approx(1, abs=1e-4)
    errors = {(r["layer"], side == "key"): r["spectrum"][side]["error"] for r in report for side in ("key", "value")}
    for place, found in errors.items():
        assert found == pytest.approx(sum(energy[*place, b] * DISTORTION[width[*place, b]] for b in range(4)), rel=1e-3)
