"""Methods balanced and waterfill of oscar-fit against numpy: other formulas for the same transforms and widths."""
import itertools
import json
import os

import numpy as np
import pytest

safetensors = pytest.importorskip("safetensors")
from safetensors import numpy as st  # noqa: E402

DISTORTION = {0: 1.0, 1: 0.3634, 2: 0.1188, 4: 0.0115}
UNBIASED = {0: 0.0, 1: 0.571, 2: 0.133, 4: 0.0116}
PROFILES = [w for w in itertools.product(DISTORTION, repeat=4) if list(w) == sorted(w, reverse=True)]
POSITIONS = np.arange(64, 8192 - 256)  # of the model's context less both windows: the default of --context


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
    tool("oscar-fit", folder / "s", "-o", folder / "waterfill", "--method", "waterfill", "--bits", "1.75", "--center", "mean")
    return folder, request.param == "far"


def damped(m, tokens):
    d = len(m)
    diagonal = np.diag(np.diag(m))
    shrink = d / (tokens + d)
    return m * (1 - shrink) + diagonal * shrink + diagonal * 1e-3


class Average:
    """Means over POSITIONS of rotated rows and moments, from tables of all cosines and sines."""

    def __init__(self, frequency):
        angles = np.outer(POSITIONS, np.concatenate([frequency, frequency]))
        self.c, self.s = np.cos(angles), np.sin(angles)

    def turned(self, x):
        return np.concatenate([-x[x.shape[0] // 2:], x[:x.shape[0] // 2]])

    def mean(self, x):
        return self.c.mean(0) * x + self.s.mean(0) * self.turned(x)

    def moment(self, a):
        right, left = self.turned(a.T).T, self.turned(a)
        c, s, n = self.c, self.s, len(POSITIONS)
        return (c.T @ c * a + c.T @ s * right + s.T @ c * left + s.T @ s * self.turned(right)) / n


def problems(folder, far):
    """(layer, key, [(mean, C, M, plain metric of the logits)] of the heads, R) of every side, from the statistics file."""
    s = st.load_file(folder / "s")
    with safetensors.safe_open(folder / "s", "np") as f:
        tokens = json.loads(f.metadata()["oscar"])["tokens"]
    average = Average(s["rope_frequency"])
    for layer in range(4):
        at = lambda name: s[f"layers.{layer}.{name}"]
        count = at("far_count") if far else None
        energy, number = at("attention_residual")[1 if far else 0]
        power = energy / number
        for key, x in ((True, "k"), (False, "v")):
            metric = (at("far_pre_q_gram" if key else "far_v_weight") / count[0] if far
                      else at("pre_q_gram") / tokens if key else at("wo_gram"))
            heads = []
            for h in range(2):
                if key:
                    mean = average.mean(at("pre_k_sum")[h] / tokens)
                    c = average.moment(at("pre_k_gram")[h] / tokens) - np.outer(mean, mean)
                    m, logits = average.moment(metric[h]), average.moment(at("pre_q_gram")[h]) / (tokens * 2 * 128)
                else:
                    mean = at("v_sum")[h] / tokens
                    c, m, logits = at("v_gram")[h] / tokens - np.outer(mean, mean), metric[h], np.zeros_like(metric[h])
                heads.append((mean, damped(c, tokens), damped(m, tokens), logits))
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
    assert manifest["provenance"]["options"]["metric"] == ("far_pairs" if far else "moments")
    for layer, key, heads, _ in problems(folder, far):
        side = f"layers.{layer}.{'k' if key else 'v'}."
        for h, (mean, c, m, _) in enumerate(heads):
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
        for h, (_, c, m, _) in enumerate(heads):
            root = power_of(c, 0.5)
            expected = np.sqrt(np.linalg.eigvalsh(root @ m @ root))
            found = tensors[f"layers.{layer}.{'k' if key else 'v'}.eigenvalues"][h]
            np.testing.assert_allclose(found[64:], expected[64:], rtol=1e-3)


def test_widths_follow_the_analytic_costs(fitted):
    folder, far = fitted
    manifest, tensors = bundle(folder, "waterfill")
    predicted, n, d = {}, 32, 128  # {(layer, key): {profile: error}}
    for layer, key, heads, power in problems(folder, far):
        errors = dict.fromkeys(PROFILES, 0.0)
        for h, (_, c, m, logits) in enumerate(heads):
            root = power_of(c, 0.5)
            values = np.sqrt(np.linalg.eigvalsh(root @ m @ root))[::-1]
            blocks = n * values.reshape(4, n).mean(1) ** 2 / power
            query = tensors[f"layers.{layer}.{'k' if key else 'v'}.inverse_or_query"][h].astype(float)
            noise = np.diag(query.T @ logits @ query).reshape(4, n).sum(1)
            for w in PROFILES:
                s2 = sum(noise[b] * UNBIASED[w[b]] for b in range(4))
                factor = np.expm1(s2) / s2 if s2 > 0 else 1.0
                errors[w] += factor * sum(blocks[b] * DISTORTION[w[b]] for b in range(4))
        predicted[layer, key] = errors
    bits = lambda w: sum(x * n + 8 * (x > 0) for x in w)
    places = sorted(predicted)
    units = int(1.75 * 4 * 2 * d + 1e-6) // 8
    # Least error of the first places within u units of 8 bits; then the profiles that reach it, from the last place on.
    least = [np.zeros(units + 1)]
    for p in places:
        shifted = [np.concatenate([np.full(bits(w) // 8, np.inf), least[-1]])[:units + 1] + predicted[p][w] for w in PROFILES]
        least.append(np.min(shifted, 0))
    width, u = {}, int(np.argmin(least[-1]))
    for i in reversed(range(len(places))):
        p = places[i]
        width[p] = min(PROFILES, key=lambda w: least[i][u - bits(w) // 8] + predicted[p][w] if bits(w) // 8 <= u else np.inf)
        u -= bits(width[p]) // 8
    for entry in manifest["layers"]:
        for side in ("key", "value"):
            assert tuple(entry[side]["widths"]) == width[entry["layer"], side == "key"]
    spent = sum(bits(w) for w in width.values()) / (4 * 2 * d)
    assert spent <= 1.75
    report = manifest["fit"]["layers"]
    shares = [r["spectrum"][side]["share"] for r in report for side in ("key", "value")]
    assert sum(shares) == pytest.approx(1, abs=1e-4)
    errors = {(r["layer"], side == "key"): r["spectrum"][side]["error"] for r in report for side in ("key", "value")}
    for place, found in errors.items():
        assert found == pytest.approx(predicted[place][width[place]], rel=2e-3)
