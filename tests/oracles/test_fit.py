"""oscar-fit against numpy: the rotations from the definition (design: M = R H P), both scopes and value targets, the
manifest against its schema, degenerate moments, and the exit code of numerical failures."""
import hashlib
import json

import pytest

numpy = pytest.importorskip("numpy")
safetensors = pytest.importorskip("safetensors.numpy")
jsonschema = pytest.importorskip("jsonschema")

from conftest import SOURCE_DIR

MODEL = SOURCE_DIR / "sample_data" / "tiny-qwen3"
SCHEMA = json.loads((SOURCE_DIR / "schemas" / "bundle.schema.json").read_text())
LAYERS, HEADS, D, GROUP = 4, 2, 128, 2


@pytest.fixture(scope="module")
def statistics(tool, tmp_path_factory):
    path = tmp_path_factory.mktemp("fit") / "statistics.safetensors"
    tool("oscar-collect", "--model", MODEL, "--prompts", SOURCE_DIR / "sample_data" / "prompts.jsonl", "-o", path,
         "--tokens", 2500, "-q")
    return path


def load(path):
    from safetensors import safe_open

    with safe_open(path, "numpy") as file:
        return {name: file.get_tensor(name) for name in file.keys()}, file.metadata()


def edited(path, target, change):
    tensors, metadata = load(path)
    change(tensors)
    safetensors.save_file({k: numpy.ascontiguousarray(v) for k, v in tensors.items()}, target, metadata)
    return target


def fit(tool, statistics, folder, *options):
    method = () if "--method" in options else ("--method", "oscar")
    tool("oscar-fit", statistics, "-o", folder, "-q", *method, *options)
    manifest = json.loads((folder / "oscar_bundle.json").read_text())
    jsonschema.validate(manifest, SCHEMA)
    for name, entry in manifest["files"].items():
        data = (folder / name).read_bytes()
        assert entry == {"sha256": hashlib.sha256(data).hexdigest(), "bytes": len(data)}, name
    return manifest, load(folder / "rotations.safetensors")[0]


def hadamard(d):
    return numpy.array([[(-1) ** bin(i & j).count("1") for j in range(d)] for i in range(d)]) / numpy.sqrt(d)


def permutation(d):
    bits = d.bit_length() - 1
    return numpy.eye(d)[:, [d - 1 - int(format(j, f"0{bits}b")[::-1], 2) for j in range(d)]]


def moments(tensors, layer, side):
    name = {"key": "q_gram", "value": "o_gram"}[side]
    return tensors[f"layers.{layer}.{name}"]


def test_permutation_as_published():
    assert [int(numpy.argmax(row)) for row in permutation(8).T] == [7, 3, 5, 1, 6, 2, 4, 0]


@pytest.mark.parametrize("scope", ["layer", "head"])
def test_rotation_is_the_definition(tool, statistics, tmp_path, scope):
    manifest, ours = fit(tool, statistics, tmp_path / "b", "--scope", scope, "--clip", "none")
    assert manifest["scope"] == scope and manifest["method"] == "oscar"
    given, _ = load(statistics)
    mix = hadamard(D) @ permutation(D)
    for layer in range(LAYERS):
        for side in ("key", "value"):
            heads = moments(given, layer, side)
            wanted = heads.mean(0, keepdims=True) if scope == "layer" else heads
            found = ours[f"layers.{layer}.{side[0]}.forward"].astype(numpy.float64)
            assert found.shape == wanted.shape
            assert manifest["layers"][layer][side]["clip"] == [0.0] * len(found)
            for c, m in zip(wanted, found):
                assert abs(m @ m.T - numpy.eye(D)).max() < 2e-6
                r = m @ mix.T  # columns: eigenvectors, ascending
                assert abs(r[numpy.argmax(abs(r), 0), numpy.arange(D)] - abs(r).max(0)).max() < 1e-5  # canonical signs
                diagonal = r.T @ c @ r
                assert abs(diagonal - numpy.diag(numpy.diag(diagonal))).max() < 2e-6 * abs(c).max() * D
                values, vectors = numpy.linalg.eigh(c)
                assert abs(numpy.diag(diagonal) - values).max() < 1e-6 * values[-1]
                gaps = numpy.diff(values) / values[-1]
                alone = numpy.r_[True, gaps > 1e-4] & numpy.r_[gaps > 1e-4, True]
                assert alone.sum() > 10  # the strong directions stand alone and must agree one by one
                cosine = abs((vectors * r).sum(0))
                assert cosine[alone].min() > 1 - 1e-6


def test_eigenvalues_are_stored(tool, statistics, tmp_path):
    _, ours = fit(tool, statistics, tmp_path / "b", "--clip", "none")
    for layer in range(LAYERS):
        for side in "kv":
            values = ours[f"layers.{layer}.{side}.eigenvalues"][0]
            assert (numpy.diff(values) >= 0).all() and values[-1] > 0


@pytest.mark.parametrize("method", ["hadamard", "identity"])
def test_data_free_methods(tool, statistics, tmp_path, method):
    manifest, ours = fit(tool, statistics, tmp_path / "b", "--method", method, "--clip", "none")
    wanted = hadamard(D) if method == "hadamard" else numpy.eye(D)
    assert manifest["hadamard_block"] == D
    for layer in range(LAYERS):
        for side in "kv":
            assert abs(ours[f"layers.{layer}.{side}.forward"] - wanted).max() < 1e-7


def test_same_input_same_bytes(tool, statistics, tmp_path):
    for name in ("a", "b"):
        fit(tool, statistics, tmp_path / name)
    for name in ("oscar_bundle.json", "rotations.safetensors", "README.md"):
        assert (tmp_path / "a" / name).read_bytes() == (tmp_path / "b" / name).read_bytes(), name


@pytest.mark.parametrize("scope", ["layer", "head"])
def test_clip_search(tool, statistics, tmp_path, scope):
    """A ratio for each layer (or head) and side that predicts less error than none on the held-out rows, and one pair."""
    manifest, _ = fit(tool, statistics, tmp_path / "b", "--scope", scope)
    heads = HEADS if scope == "head" else 1
    for entry in manifest["layers"]:
        for side in ("key", "value"):
            assert len(entry[side]["clip"]) == heads
            assert all(0 < c < 1 for c in entry[side]["clip"]), "2-bit min/max codes of real rows always gain from a clip"
    assert 0 < manifest["global_clip"]["key"] < 1 and 0 < manifest["global_clip"]["value"] < 1
    for entry in manifest["fit"]["layers"]:
        for error in (entry["k_logit_error"], entry["v_output_error"]):
            assert error["fit"] < error["unclipped"] and error["fit"] < error["identity"]
        for energy in entry["captured_energy"].values():
            assert 0 < energy["identity"] <= energy["fit"] <= 1


def test_given_clip_is_kept(tool, statistics, tmp_path):
    manifest, _ = fit(tool, statistics, tmp_path / "b", "--clip", ".96,.92")
    assert manifest["global_clip"] == {"key": 0.96, "value": 0.92}
    assert all(e["key"]["clip"] == [0.96] and e["value"]["clip"] == [0.92] for e in manifest["layers"])


def rank_one(tensors):
    v = numpy.zeros(D)
    v[3], v[70] = 3.0, 4.0
    for name in tensors:
        if name.endswith(("q_gram", "o_gram")):
            tensors[name] = numpy.broadcast_to(numpy.outer(v, v), tensors[name].shape).copy()


def zero(tensors):
    for name in tensors:
        if name.endswith(("q_gram", "o_gram")):
            tensors[name] = numpy.zeros_like(tensors[name])


def one_dead_head(tensors):
    for name in tensors:
        if name.endswith(("q_gram", "o_gram", "k_gram", "v_gram", "k_sum", "v_sum", "energy_gram")):
            tensors[name] = tensors[name].copy()
            tensors[name][1] = 0


def identity(tensors):
    for name in tensors:
        if name.endswith(("q_gram", "o_gram")):
            tensors[name] = numpy.broadcast_to(numpy.eye(D), tensors[name].shape).copy()


def huge(tensors):
    for name in tensors:
        if name.endswith(("q_gram", "o_gram")):
            tensors[name] = tensors[name] * 1e200


@pytest.mark.parametrize("scope", ["layer", "head"])
@pytest.mark.parametrize("change", [rank_one, zero, one_dead_head, identity, huge])
def test_degenerate_moments_still_give_rotations(tool, statistics, tmp_path, change, scope):
    _, ours = fit(tool, edited(statistics, tmp_path / "s.safetensors", change), tmp_path / "b", "--scope", scope)
    for name, m in ours.items():
        assert numpy.isfinite(m).all(), name
        if name.endswith("forward"):
            for matrix in m.astype(numpy.float64):
                assert abs(matrix @ matrix.T - numpy.eye(D)).max() < 1e-5, name
    if change is rank_one:
        mix = hadamard(D) @ permutation(D)
        strongest = (ours["layers.2.k.forward"][0] @ mix.T)[:, -1]
        assert abs(strongest[[3, 70]] - [0.6, 0.8]).max() < 1e-5


def put(name, number):
    def change(tensors):
        tensors[name] = tensors[name].copy()
        tensors[name].flat[7] = number

    return change


@pytest.mark.parametrize("name", ["layers.1.q_gram", "layers.2.o_gram"])
@pytest.mark.parametrize("number", [numpy.nan, numpy.inf, -numpy.inf])
def test_numbers_that_are_not_finite_are_a_numerical_failure(tool, statistics, tmp_path, name, number):
    bad = edited(statistics, tmp_path / "s.safetensors", put(name, number))
    message = tool("oscar-fit", bad, "--method", "oscar", "-o", tmp_path / "b", "-q", code=5)
    assert name in message and not (tmp_path / "b").exists()


def test_few_tokens_are_enough_and_warned_about(tool, tmp_path):
    rows = tmp_path / "few.jsonl"
    rows.write_text(json.dumps({"input_ids": list(range(100, 140))}) + "\n")
    tool("oscar-collect", "--model", MODEL, "--prompts", rows, "-o", tmp_path / "s.safetensors", "-q")
    _, ours = fit(tool, tmp_path / "s.safetensors", tmp_path / "b")
    assert all(numpy.isfinite(m).all() for m in ours.values())
