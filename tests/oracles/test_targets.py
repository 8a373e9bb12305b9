"""oscar-fit --target-kl, --target-ppl and --preset: the budget that they choose, computed once more from curves.json."""
import json
import math

import pytest

jsonschema = pytest.importorskip("jsonschema")

from test_curves import (MODEL, SCHEMAS, arguments, bundle, curves_of, estimates, folder, least_sum, manifest_of,  # noqa: E402,F401
                         measured)

PRESETS = {"near-lossless": 0.005, "balanced": 0.02, "smallest": 0.04}


def budgets(d):
    return [b for b in (0.25 + i / 8 for i in range(40)) if b < 4 + 32 / d] + [4 + 32 / d]


@pytest.fixture(scope="module")
def predicted(bundle):
    """{bits: KL} by the formula of lib/bundle/target_budget.h: sums of estimates, by what the whole at 1.5 bits is off."""
    curves = curves_of(bundle[0])
    d = curves["head_dim"]
    places = [estimates(curve, d) for curve in curves["curves"]]
    whole = manifest_of(bundle[0])["provenance"]["prediction"]["kl"]
    sums = {b: least_sum(places, d, b) for b in budgets(d)}
    return {b: whole if b == 1.5 else kl * whole / sums[1.5] for b, kl in sums.items()}


def chosen(predicted, kl):
    return next((bits for bits in sorted(predicted) if predicted[bits] <= kl), None)


def test_the_smallest_budget_of_the_curves(tool, folder, bundle, predicted):
    curves = ["--curves", bundle[0] / "curves.json"]
    above = 1 + 1e-6  # a number that is printed and read again
    for i, (option, value, kl) in enumerate([("--target-kl", above * predicted[2.0], above * predicted[2.0]),
                                             ("--target-kl", above * predicted[1.5], above * predicted[1.5]),
                                             ("--target-ppl", math.exp(1.01 * predicted[1.0]), 1.01 * predicted[1.0]),
                                             ("--preset", "smallest", PRESETS["smallest"])]):
        out, line = folder / f"target-{i}", [option, repr(value) if isinstance(value, float) else value]
        found = json.loads(tool("oscar-fit", *arguments(folder, out, *line, *curves, "--json", "-q")))
        manifest = manifest_of(out)
        jsonschema.validate(manifest, json.loads((SCHEMAS / "bundle.schema.json").read_text()))
        want = chosen(predicted, kl)
        assert found["target"]["bits"] == manifest["provenance"]["target"]["bits"] == want, line
        assert found["bits_per_element"] <= want and manifest["provenance"]["options"]["bits"] == want
        assert manifest["provenance"]["target"]["kl"] == pytest.approx(kl, rel=1e-6)
        assert manifest["provenance"]["prediction"]["kl"] == pytest.approx(predicted[want], rel=1e-6)
        for row in found["target"]["budgets"]:
            assert row["predicted_kl"] == pytest.approx(predicted[row["bits"]], rel=1e-6)
            assert row["perplexity_ratio"] == pytest.approx(math.exp(row["predicted_kl"]), rel=1e-9)
            assert row["measured"] == (row["bits"] == 1.5)
        assert [r["bits"] for r in found["target"]["budgets"]] == budgets(curves_of(bundle[0])["head_dim"])
    table = tool("oscar-fit", *arguments(folder, folder / "table", "--target-kl", repr(1.001 * predicted[1.5]), *curves)).splitlines()
    rows = [line for line in table if "chosen" in line]
    assert len(rows) == 1 and "KL of at most" in rows[0]
    assert float(rows[0].split()[0]) == chosen(predicted, 1.001 * predicted[1.5])


def test_a_target_that_nothing_meets(tool, folder, bundle, predicted):
    out = folder / "none"
    message = tool("oscar-fit", *arguments(folder, out, "--target-kl", "1e-6", "--curves", bundle[0] / "curves.json"), code=1)
    best = min(predicted, key=predicted.get)
    assert "no budget has a predicted KL of at most 1e-06" in message and f"the best is {best:.4g}"[:18] in message
    assert f"{predicted[best]:.3g}" in message and not out.exists()


def test_measuring_ends_with_the_chosen_budget(tool, folder, bundle):
    """Refused, then met by a target that takes the curves of the refused run: the same bytes as in one go."""
    line = measured(folder, folder / "m")
    line = [x for i, x in enumerate(line) if x != "--bits" and (i == 0 or line[i - 1] != "--bits")]
    message = tool("oscar-fit", *line, "--target-kl", "1e-6", code=1)
    assert "m.curves.work" in message and not (folder / "m").exists()
    points = json.loads((folder / "m.curves.work" / "points.json").read_text())["batches"]
    tool("oscar-fit", *line, "--preset", "balanced", "--resume")
    curves, manifest = curves_of(folder / "m"), manifest_of(folder / "m")
    jsonschema.validate(curves, json.loads((SCHEMAS / "curves.schema.json").read_text()))
    assert len(points) > 8 and not (folder / "m.curves.work").exists()
    bits = manifest["provenance"]["target"]["bits"]
    assert manifest["provenance"]["target"] == {"kl": 0.02, "bits": bits, "preset": "balanced"}
    end_to_end = [w for w in curves["end_to_end"] if w["bits"] == bits]
    assert manifest["provenance"]["prediction"]["kl"] in [w["kl"] for w in end_to_end]
    assert manifest["provenance"]["prediction"]["kl"] <= 0.02
    assert [w["bits"] for w in curves["end_to_end"]] == sorted(w["bits"] for w in curves["end_to_end"])
    fresh = list(line)
    fresh[fresh.index(folder / "m")] = folder / "fresh"
    tool("oscar-fit", *fresh, "--preset", "balanced")
    for name in ("curves.json", "rotations.safetensors", "oscar_bundle.json"):
        assert (folder / "fresh" / name).read_bytes() == (folder / "m" / name).read_bytes(), name


@pytest.mark.parametrize("options,named", [
    (["--preset", "balanced", "--bits", "2"], ["--bits", "--preset"]),
    (["--preset", "balanced", "--target-kl", "0.1"], ["--target-kl", "--preset"]),
    (["--target-kl", "0.1", "--target-ppl", "1.1"], ["--target-kl", "--target-ppl"]),
    (["--target-ppl", "1.1", "--pareto", "1,2"], ["--pareto", "--target-ppl"]),
    (["--target-kl", "0.1"], ["--target-kl", "--model", "--curves"]),
    (["--target-kl", "0.1", "--allocate", "analytic"], ["--target-kl", "--allocate analytic"]),
    (["--target-kl", "0"], ["--target-kl"]),
    (["--target-ppl", "1"], ["--target-ppl"]),
    (["--preset", "best"], ["--preset"]),
], ids=str)
def test_refusals(tool, folder, options, named):
    message = tool("oscar-fit", *arguments(folder, folder / "refused", *options), code=2)
    assert all(name in message for name in named), message
    assert not (folder / "refused").exists()


def test_methods_of_one_width_have_no_target(tool, folder):
    message = tool("oscar-fit", *arguments(folder, folder / "refused", "--target-kl", "0.1", method="balanced"), code=2)
    assert "waterfill" in message and "--target-kl" in message
