"""Exported files against torch: published names and keys, weights_only loading, every bit of the bundle, checksums, the
card, and what is refused."""
import hashlib
import json

import pytest

torch = pytest.importorskip("torch")
safetensors = pytest.importorskip("safetensors.torch")

from conftest import SOURCE_DIR

MODEL = SOURCE_DIR / "sample_data" / "tiny-qwen3"
LAYERS, HEADS, D = 4, 2, 128


@pytest.fixture(scope="module")
def statistics(tool, tmp_path_factory):
    path = tmp_path_factory.mktemp("export") / "statistics.safetensors"
    tool("oscar-collect", "--model", MODEL, "--prompts", SOURCE_DIR / "sample_data" / "prompts.jsonl", "-o", path,
         "--tokens", 8000, "-q")
    return path


@pytest.fixture(scope="module")
def bundles(tool, statistics):
    folder = statistics.parent
    for scope in ("layer", "head"):
        tool("oscar-fit", statistics, "-o", folder / scope, "--method", "oscar", "--scope", scope, "-q")
    return {scope: folder / scope for scope in ("layer", "head")}


def check_sums(folder):
    lines = (folder / "SHA256SUMS").read_text().splitlines()
    names = {line.split("  ")[1]: line.split("  ")[0] for line in lines}
    assert set(names) == {p.name for p in folder.iterdir()} - {"SHA256SUMS"}
    for name, digest in names.items():
        assert hashlib.sha256((folder / name).read_bytes()).hexdigest() == digest, name


def matrices(bundle):
    return safetensors.load_file(bundle / "rotations.safetensors")


def test_version_one(tool, bundles, tmp_path):
    tool("oscar-export", bundles["layer"], "--format", "sglang-branch", "-o", tmp_path / "x")
    check_sums(tmp_path / "x")
    wanted = matrices(bundles["layer"])
    for side, name, objective in (("k", "k_rotation_qqt_r_h_pbr.pt", "qqt_r_h_pbr"), ("v", "v_rotation_sst_r_h_pbr.pt", "sst_r_h_pbr")):
        file = torch.load(tmp_path / "x" / name, weights_only=True)
        assert file["format_version"] == 1 and file["objective"] == objective
        assert list(file["layers"]) == list(range(LAYERS)) and all(type(i) is int for i in file["layers"])
        for i, layer in file["layers"].items():
            assert layer["rotation"].dtype == torch.float32 and layer["rotation"].shape == (D, D) and layer["rotation"].is_contiguous()
            assert torch.equal(layer["rotation"], wanted[f"layers.{i}.{side}.forward"][0])
            assert torch.equal(layer["eigenvalues"], wanted[f"layers.{i}.{side}.eigenvalues"][0])
            assert (layer["eigenvalues"].diff() >= 0).all()


@pytest.mark.parametrize("scope", ["layer", "head"])
def test_version_two(tool, bundles, tmp_path, scope):
    """One matrix for each KV head; a bundle with one for the layer repeats it."""
    tool("oscar-export", bundles[scope], "--format", "sglang-branch-v2", "-o", tmp_path / "x")
    check_sums(tmp_path / "x")
    wanted = matrices(bundles[scope])
    for side, name in (("k", "k_perhead.pt"), ("v", "v_perhead.pt")):
        file = torch.load(tmp_path / "x" / name, weights_only=True)
        assert file["format_version"] == 2
        for i, layer in file["layers"].items():
            assert torch.equal(layer["rotation"], wanted[f"layers.{i}.{side}.forward"].expand(HEADS, D, D)), (side, i)


@pytest.fixture(scope="module")
def balanced(tool, statistics, tmp_path_factory):
    out = tmp_path_factory.mktemp("balanced")
    for name, options in (("key", ("--center", "key")), ("mean", ()), ("shared", ("--center", "none", "--scope", "layer"))):
        tool("oscar-fit", statistics, "-o", out / name, "--method", "balanced", *options)
    tool("oscar-fit", statistics, "-o", out / "waterfill", "--method", "waterfill")
    return out


def test_version_three(tool, balanced, tmp_path):
    """Query side, key mean and output side; logits and values come back as they were."""
    for name, heads in (("key", HEADS), ("shared", 1)):
        tool("oscar-export", balanced / name, "--format", "sglang-branch-v3", "-o", tmp_path / name)
        check_sums(tmp_path / name)
        wanted = matrices(balanced / name)
        for side, field in (("k", "q_rotation"), ("v", "o_rotation")):
            path = tmp_path / name / f"{side}_rotation_oscar2_balanced.pt"
            file = torch.load(path, weights_only=True)
            assert file["format_version"] == 3 and file["source_grouping"] == ("head" if heads > 1 else "layer")
            assert file["transform"]["orthogonal"] is False and file["transform"]["centered"] is (name == "key" and side == "k")
            for i, layer in file["layers"].items():
                rotation, other = layer["rotation"], layer[field]
                assert rotation.shape == ((HEADS, D, D) if heads > 1 else (D, D))
                assert torch.equal(rotation, wanted[f"layers.{i}.{side}.forward"].reshape(rotation.shape))
                assert ("k_mean" in layer) is (name == "key" and side == "k")
                if "k_mean" in layer:
                    assert torch.equal(layer["k_mean"], wanted[f"layers.{i}.k.mean"])
                x, y = torch.randn(50, D, dtype=torch.float64), torch.randn(50, D, dtype=torch.float64)
                rotation, other = rotation.double().expand(heads, D, D)[0], other.double().expand(heads, D, D)[0]
                if side == "k":
                    assert torch.allclose((x @ rotation) @ (y @ other).T, x @ y.T, atol=1e-3 * float((x @ y.T).abs().max()))
                else:
                    assert torch.allclose(x @ rotation @ other, x, atol=1e-3)
        pair = ",".join(str(tmp_path / name / f"{side}_rotation_oscar2_balanced.pt") for side in "kv")
        tool("oscar-verify", "--rotations", pair, "--check-only")


def test_what_a_format_cannot_carry_is_named(tool, balanced, tmp_path):
    message = tool("oscar-export", balanced / "key", "--format", "sglang-branch-v2", "-o", tmp_path / "x", code=3)
    assert "export it as sglang-branch-v3" in message
    message = tool("oscar-export", balanced / "mean", "--format", "sglang-branch-v3", "-o", tmp_path / "x", code=3)
    assert "--center key" in message
    message = tool("oscar-export", balanced / "waterfill", "--format", "sglang-branch-v3", "-o", tmp_path / "x", code=3)
    assert "block widths" in message and "format sglang " in message and "--for sglang-branch-v3" in message
    assert not (tmp_path / "x").exists()


def test_our_reader_takes_them_back(tool, bundles, tmp_path):
    for scope, form, names in (("layer", "sglang-branch", ("k_rotation_qqt_r_h_pbr.pt", "v_rotation_sst_r_h_pbr.pt")),
                               ("head", "sglang-branch-v2", ("k_perhead.pt", "v_perhead.pt"))):
        folder = tmp_path / form
        tool("oscar-export", bundles[scope], "--format", form, "-o", folder)
        pair = ",".join(str(folder / name) for name in names)
        tool("oscar-verify", "--rotations", pair, "--check-only")
        tool("oscar-verify", "--rotations", pair, "--check-only", "--model", MODEL)
    swapped = ",".join(str(tmp_path / "sglang-branch" / name) for name in ("v_rotation_sst_r_h_pbr.pt", "k_rotation_qqt_r_h_pbr.pt"))
    assert "swapped" in tool("oscar-verify", "--rotations", swapped, "--check-only", code=3)


def test_same_bundle_same_bytes(tool, bundles, tmp_path):
    for name in "ab":
        tool("oscar-export", bundles["layer"], "--format", "sglang-branch", "-o", tmp_path / name)
    for path in (tmp_path / "a").iterdir():
        assert path.read_bytes() == (tmp_path / "b" / path.name).read_bytes(), path.name


def test_card_has_measured_numbers_and_the_serve_command(tool, bundles, tmp_path):
    text = tmp_path / "text.txt"
    text.write_text((SOURCE_DIR / "sample_data" / "heldout.txt").read_text()[:6000])
    report = tmp_path / "report.json"
    tool("oscar-verify", "--no-gate", "--model", MODEL, "--bundle", bundles["layer"], "--text", text, "--context", 512,
         "--methods", "naive2,oscar", "--as", "sglang-branch", "--report", report, "-q")
    tool("oscar-export", bundles["layer"], "--format", "sglang-branch", "--report", report, "-o", tmp_path / "x")
    card = (tmp_path / "x" / "README.md").read_text()
    manifest = json.loads((bundles["layer"] / "oscar_bundle.json").read_text())
    measured = json.loads(report.read_text())
    for method in measured["methods"]:
        assert f"{method['kl']['mean']:.4g}" in card, method["id"]
    assert manifest["model"]["fingerprint"] in card
    assert f"SGLANG_OSCAR_K_CLIP_RATIO={manifest['global_clip']['key']:.4g}" in card
    for line in ("SGLANG_MIXED_KV_PREFIX_TOKENS=64", "SGLANG_MIXED_KV_RECENT_TOKENS=256", "k_rotation_qqt_r_h_pbr.pt",
                 "--kv-cache-dtype int2"):
        assert line in card, line
    measured["model"]["fingerprint"] = "v2:sha256:" + "0" * 64
    report.write_text(json.dumps(measured))
    message = tool("oscar-export", bundles["layer"], "--format", "sglang-branch", "--report", report, "-o", tmp_path / "y", code=3)
    assert "another model" in message and not (tmp_path / "y").exists()


def test_refusals(tool, bundles, tmp_path):
    message = tool("oscar-export", bundles["layer"], "--format", "tensorrt", "-o", tmp_path / "x", code=2)
    assert "sglang-branch, sglang-branch-v2" in message
    message = tool("oscar-export", bundles["head"], "--format", "sglang-branch", "-o", tmp_path / "x", code=3)
    assert "sglang-branch-v2" in message
    assert not (tmp_path / "x").exists()
    tool("oscar-export", bundles["layer"], "--format", "sglang-branch", "-o", tmp_path / "x")
    before = {p.name: p.read_bytes() for p in (tmp_path / "x").iterdir()}
    tool("oscar-export", bundles["layer"], "--format", "sglang-branch", "-o", tmp_path / "x", code=2)
    assert {p.name: p.read_bytes() for p in (tmp_path / "x").iterdir()} == before
