"""oscar-fit's methods and options as a user meets them: every combination gives a bundle that fits the model, budgets are met
and reported, and what cannot be is refused."""
import itertools
import json
import math

import pytest

from harness import BAD_INPUT, DONE, GATE_FAILED, USAGE, phases_of, refuse, run, succeed

D = 64
TRANSFORMS = [("identity", []), ("hadamard", []), ("oscar", []), ("balanced", []), ("waterfill", ["--bits", "1.5"])]


def manifest_of(bundle):
    return json.loads((bundle / "oscar_bundle.json").read_text())


def bits_of(manifest):
    """Per element, from the widths in the manifest; sides without widths are 2-bit codes with 32 bits of parameters."""
    sides = [layer[side].get("widths") for layer in manifest["layers"] for side in ("key", "value")]
    one = lambda w: sum(D / 4 * x + 8 * (x > 0) for x in w) / D if w else 2 + 32 / D
    return sum(map(one, sides)) / len(sides)


@pytest.fixture(scope="module")
def far(tmp_path_factory, model):
    """Statistics with far-pair metrics."""
    import numpy

    folder = tmp_path_factory.mktemp("far")
    rows = [numpy.random.default_rng(i).integers(0, 8000, 180).tolist() for i in range(5)]
    (folder / "rows.jsonl").write_text("".join(json.dumps({"input_ids": row}) + "\n" for row in rows))
    result = succeed("collect", "--model", model, "--prompts", folder / "rows.jsonl", "-o", folder / "s", "--far-pairs", "8,24", "-v")
    assert phases_of(result)["outside pairs"] > 0  # what they cost
    return folder / "s"


def test_verbose_says_where_the_time_went(statistics, model, tmp_path):
    quiet = succeed("fit", statistics, "--method", "oscar", "-o", tmp_path / "quiet")
    rows = phases_of(succeed("fit", statistics, "--method", "oscar", "-o", tmp_path / "bundle", "-v"))
    assert list(rows) == ["starting", "statistics", "transforms", "clips", "predictions", "saving", "other", "wall time"]
    assert abs(sum(rows.values()) - 2 * rows["wall time"]) < 0.01  # a row is rounded to milliseconds
    assert "where the time went" not in quiet.err
    assert (tmp_path / "bundle" / "rotations.safetensors").read_bytes() == (tmp_path / "quiet" / "rotations.safetensors").read_bytes()
    (tmp_path / "rows.jsonl").write_text(json.dumps({"input_ids": list(range(400))}) + "\n")
    rows = phases_of(succeed("fit", "--model", model, "--prompts", tmp_path / "rows.jsonl", "--own-text", 0, "-o", tmp_path / "whole", "-v", "--windows", "8,24",
                             "--curve-context", 64, "--curve-sequences", 1))
    assert set(rows) >= {"prompts", "weights", "forward", "moments", "outside pairs", "statistics", "curves", "transforms", "saving"}
    assert "own text" not in rows and "clips" not in rows


@pytest.mark.parametrize("scope,center", list(itertools.product(["layer", "head"], ["none", "mean", "rope"])))
@pytest.mark.parametrize("method,options", TRANSFORMS, ids=[m for m, _ in TRANSFORMS])
def test_every_transform_scope_and_center(method, options, scope, center, far, model, text, tmp_path):
    bundle = tmp_path / "b"
    succeed("fit", far, "-o", bundle, "--method", method, "--scope", scope, "--center", center, "--windows", "8,24", *options)
    succeed("verify", "--bundle", bundle, "--check-only", "--model", model)
    row = "oscar-head" if (method, scope) == ("oscar", "head") else method
    result = run("verify", "--no-gate", "--model", model, "--bundle", bundle, "--text", text, "--context", 160, "--max-sequences", 1,
                 "--path", "both", "--dtype", "float32", "--device", "cpu", "--bootstrap", 0, "--report", tmp_path / "r.json")
    assert result.code in (DONE, GATE_FAILED), str(result)
    rows = {m["path"]: m for m in json.loads((tmp_path / "r.json").read_text())["methods"] if m["id"] == row}
    assert rows["prefill"]["code_bits_per_element"] == pytest.approx(bits_of(manifest_of(bundle)), abs=1e-6)
    assert math.isfinite(rows["prefill"]["kl"]["mean"])
    assert rows["decode"]["kl"]["mean"] == pytest.approx(rows["prefill"]["kl"]["mean"], rel=0.05, abs=1e-4)


@pytest.mark.parametrize("bits", [1.25, 1.5, 2, 2.25, 3, 4, 4.25])
def test_budgets_are_met_and_reported(bits, far, tmp_path):
    out = succeed("fit", far, "-o", tmp_path / "b", "--method", "waterfill", "--bits", bits, "--json").out
    manifest = manifest_of(tmp_path / "b")
    assert bits - 0.1 <= bits_of(manifest) <= bits + 1e-9
    assert json.loads(out)["fit"] == manifest["fit"] and manifest["provenance"]["options"]["metric"] == "far_pairs"
    spectra = [layer["spectrum"][side] for layer in manifest["fit"]["layers"] for side in ("key", "value")]
    assert sum(s["share"] for s in spectra) == pytest.approx(1, abs=1e-4)
    assert all(s["gain"] >= 1 and len(s["lambda"]) == 4 and len(s["widths"]) == 4 for s in spectra)


def test_pareto_writes_what_single_fits_write(far, tmp_path):
    out = succeed("fit", far, "-o", tmp_path / "p", "--method", "waterfill", "--pareto", "1.5,2.25,3", "--json").out
    rows = json.loads(out)["pareto"]
    assert [r["budget"] for r in rows] == [1.5, 2.25, 3]
    errors = [r["predicted_error"] for r in rows]
    assert errors == sorted(errors, reverse=True) and errors[0] > errors[2]
    for row in rows:
        bits = f"{row['budget']:g}"
        succeed("fit", far, "-o", tmp_path / bits, "--method", "waterfill", "--bits", bits)
        folder = tmp_path / "p" / f"bits-{bits}"
        assert (folder / "rotations.safetensors").read_bytes() == (tmp_path / bits / "rotations.safetensors").read_bytes()
        assert row["bits_per_element"] == pytest.approx(bits_of(manifest_of(folder)))
    table = succeed("fit", far, "-o", tmp_path / "t", "--method", "waterfill", "--pareto", "1.5,3", "--dry-run").out
    assert "predicted error" in table and not (tmp_path / "t").exists()


def test_context_is_that_of_the_model_where_nothing_is_said(far, tmp_path):
    def fit(name, *options):
        succeed("fit", far, "-o", tmp_path / name, "--method", "balanced", *options)
        return manifest_of(tmp_path / name)["provenance"]["options"]["context"], (tmp_path / name / "rotations.safetensors").read_bytes()

    default, long, as_collected = fit("default"), fit("long", "--context", 1024), fit("collected", "--context", 0)
    assert default == long and default[0] == 1024 and as_collected[0] == 0
    assert len({default[1], as_collected[1], fit("short", "--context", 512)[1]}) == 3
    refuse(USAGE, "fit", far, "-o", tmp_path / "b", "--method", "oscar", "--context", 512, names="--context is for --method")
    refuse(USAGE, "fit", far, "-o", tmp_path / "b", "--method", "balanced", "--context", 0, "--center", "rope", names="--context above 0")


def test_statistics_without_the_metrics_say_so(statistics, tmp_path):
    """The session's prompts are shorter than both windows."""
    result = succeed("fit", statistics, "-o", tmp_path / "b", "--method", "waterfill")
    assert "no metrics of query-key pairs outside the windows: Q^T Q and W_O^T W_O take their place" in result.err
    assert manifest_of(tmp_path / "b")["provenance"]["options"]["metric"] == "moments"


def test_refusals(far, model, tmp_path):
    fit = ["fit", far, "-o", tmp_path / "b"]
    for bits in ("0.1", "4.75", "9"):
        refuse(USAGE, *fit, "--method", "waterfill", "--bits", bits, names=["is not possible", bits])
    refuse(USAGE, *fit, "--method", "waterfill", "--pareto", "2,9", names="9")  # nor is the first one written
    refuse(USAGE, *fit, "--method", "oscar", "--bits", "2.3", names="is not possible")
    refuse(USAGE, *fit, "--method", "balanced", "--pareto", "2,3", names="--method waterfill")
    assert not (tmp_path / "b").exists()
    # Widths and transforms that do not fit: a bundle of another model, and widths that were edited.
    from harness import make_model

    succeed("fit", far, "-o", tmp_path / "b", "--method", "waterfill")
    wide = make_model(tmp_path / "wide", num_attention_heads=2, num_key_value_heads=1)
    refuse(BAD_INPUT, "verify", "--bundle", tmp_path / "b", "--check-only", "--model", wide, names="KV heads")
    manifest = manifest_of(tmp_path / "b")
    manifest["layers"][0]["key"]["widths"] = [4, 3, 1, 0]
    (tmp_path / "b" / "oscar_bundle.json").write_text(json.dumps(manifest))
    refuse(BAD_INPUT, "verify", "--bundle", tmp_path / "b", "--check-only", names="width")


def size(value):
    """As format_bytes() of lib/base/files.h."""
    for unit in ("B", "KiB", "MiB", "GiB"):
        if value < 1024:
            return f"{value:.1f} {unit}"
        value /= 1024
    raise AssertionError(value)


def test_the_last_lines_have_the_bytes_of_a_sequence(far, tmp_path):
    printed = succeed("fit", far, "-o", tmp_path / "b", "--method", "waterfill", "--bits", "1.5", "--windows", "16,48").out
    manifest = manifest_of(tmp_path / "b")
    elements = sum(2 * layer["kv_heads"] * layer["head_dim"] for layer in manifest["layers"])
    bits = [16 * 64 / n + bits_of(manifest) * (n - 64) / n for n in (8192, 32768, 131072)]
    coded = ", ".join(f"{n}K {size(elements * n * 1024 * b / 8)}" for n, b in zip((8, 32, 128), bits))
    assert f"cache     {coded} a sequence; BF16 " + ", ".join(size(elements * n * 2048) for n in (8, 32, 128)) in printed, printed


def test_cards_tell_the_widths(far, tmp_path):
    succeed("fit", far, "-o", tmp_path / "w", "--method", "waterfill", "--bits", "1.5")
    succeed("fit", far, "-o", tmp_path / "o", "--method", "oscar", "--clip", "0.96,0.92")
    manifest = manifest_of(tmp_path / "w")
    widths = {w for layer in manifest["layers"] for side in ("key", "value") for w in layer[side]["widths"]}
    card = (tmp_path / "w" / "README.md").read_text()
    assert f"| code | groups of {', '.join(map(str, sorted(widths)))} bits, {bits_of(manifest):.3f} bits per" in card and len(widths) > 1
    assert "clip" not in card.split("## Provenance")[0]
    card = (tmp_path / "o" / "README.md").read_text()
    assert "| code | 2 bits, one scale for each head, 2.500 bits per" in card and "| keys 0.960, values 0.920 (0: off) |" in card
