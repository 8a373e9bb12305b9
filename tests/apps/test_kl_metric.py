"""The KL metric from oscar-collect to a bundle, as a user meets it: collected, shown, merged, fitted with, and refused."""
import json
import subprocess
import time

import numpy
import pytest

from harness import BAD_INPUT, SOURCE_DIR, USAGE, command, refuse, succeed

jsonschema = pytest.importorskip("jsonschema")

WINDOWS = "8,24"


@pytest.fixture(scope="module")
def kl(tmp_path_factory, model):
    """Two parts with the KL metric and one without."""
    folder = tmp_path_factory.mktemp("kl")
    for name, seed, options in (("a", 1, ["--metric", "kl"]), ("b", 2, ["--metric", "kl"]), ("plain", 3, [])):
        rows = [numpy.random.default_rng(10 * seed + i).integers(0, 8000, 120).tolist() for i in range(3)]
        (folder / f"{name}.jsonl").write_text("".join(json.dumps({"input_ids": row}) + "\n" for row in rows))
        result = succeed("collect", "--model", model, "--prompts", folder / f"{name}.jsonl", "-o", folder / name, "--far-pairs", WINDOWS,
                         *options)
        assert ("% in the KL metric" in result.out) == bool(options)
    return folder


def test_reports_match_their_schemas(kl, model, tmp_path):
    schema = json.loads((SOURCE_DIR / "schemas" / "collect.schema.json").read_text())
    common = ["collect", "--model", model, "--prompts", kl / "a.jsonl", "-o", tmp_path / "s", "--far-pairs", WINDOWS, "--metric", "kl", "--json"]
    done = json.loads(succeed(*common).out)
    assert done["kl"]["probes"] == 3 * (120 - 32) and done["kl"]["seconds"] > 0
    plan = json.loads(succeed(*common, "--dry-run").out)
    for found in (done, plan):
        jsonschema.validate(found, schema)
    shown = json.loads(succeed("collect", "show", kl / "a", "--json").out)
    jsonschema.validate(shown, json.loads((SOURCE_DIR / "schemas" / "statistics.schema.json").read_text()))
    assert shown["parts"][0]["options"]["metric"] == "kl"
    assert all(layer["kl_key"]["trace"] > 0 and layer["kl_value"]["trace"] > 0 for layer in shown["layers"])
    assert "KL of keys" in succeed("collect", "show", kl / "a").out
    assert "KL of keys" not in succeed("collect", "show", kl / "plain").out


def test_merge(kl, tmp_path):
    succeed("collect", "merge", kl / "a", kl / "b", "-o", tmp_path / "both")
    shown = [json.loads(succeed("collect", "show", f, "--json").out) for f in (kl / "a", kl / "b", tmp_path / "both")]
    a, b, both = (s["layers"][0]["kl_key"]["trace"] * s["tokens"] for s in shown)
    assert both == pytest.approx(a + b, rel=1e-9)
    refuse(BAD_INPUT, "collect", "merge", kl / "a", kl / "plain", "-o", tmp_path / "c", names=["part 2 of 2", "KL metric"])


@pytest.mark.parametrize("options", [["--method", "oscar"], ["--method", "balanced"], ["--method", "waterfill", "--bits", "1.5"]], ids=lambda o: o[1])
def test_fit(kl, options, model, tmp_path):
    fits = {}
    for metric in ("far-pairs", "kl"):
        out = succeed("fit", kl / "a", "-o", tmp_path / metric, "--metric", metric, "--windows", WINDOWS, *options).out
        fits[metric] = (tmp_path / metric / "rotations.safetensors").read_bytes()
        assert options[1] == "oscar" or ("metric: the KL" in out) == (metric == "kl")
    manifest = json.loads((tmp_path / "kl" / "oscar_bundle.json").read_text())
    jsonschema.validate(manifest, json.loads((SOURCE_DIR / "schemas" / "bundle.schema.json").read_text()))
    assert manifest["provenance"]["options"]["metric"] == "kl"
    assert fits["far-pairs"] != fits["kl"]
    succeed("verify", "--bundle", tmp_path / "kl", "--check-only", "--model", model)
    if options[1] == "oscar":
        return
    check = json.loads(succeed("fit", "check", tmp_path / "kl", "--statistics", kl / "a", "--json").out)
    jsonschema.validate(check, json.loads((SOURCE_DIR / "schemas" / "regret.schema.json").read_text()))
    assert check["metric"] == "kl" and check["total"]["regret"] == pytest.approx(1, abs=0.02)


def test_refusals(kl, model, tmp_path):
    for method in ("oscar", "balanced", "waterfill"):
        refuse(BAD_INPUT, "fit", kl / "plain", "-o", tmp_path / "b", "--method", method, "--metric", "kl",
               names=["no KL metric", "oscar-collect --metric kl"])
    refuse(USAGE, "fit", kl / "a", "-o", tmp_path / "b", "--metric", "kl", "--value-target", "exact", names="--value-target exact is not used")
    refuse(USAGE, "collect", "--model", model, "--prompts", kl / "a.jsonl", "-o", tmp_path / "s", "--far-pairs", "none", "--metric", "kl",
           names="--far-pairs none")
    assert not (tmp_path / "b").exists() and not (tmp_path / "s").exists()


def test_killed_in_the_backward_pass_it_resumes_to_the_same_bytes(kl, model, tmp_path):
    line = ["collect", "--model", model, "--prompts", kl / "a.jsonl", "--far-pairs", WINDOWS, "--metric", "kl", "--checkpoint-seconds", 0]
    output = tmp_path / "s"
    for stage in ("kl-gradient-0.bin", "kl-gradient-2.bin"):  # the pass starts; the layer before the last one runs backward
        process = subprocess.Popen(command(*line, "-o", output, "--resume"), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        try:
            while process.poll() is None and not (tmp_path / "s.work" / stage).exists():
                time.sleep(0.0005)
        finally:
            process.kill()
            process.wait()
        assert not output.exists()
    assert list((tmp_path / "s.work").glob("kl-gradient-*.bin"))
    succeed(*line, "-o", output, "--resume")
    assert output.read_bytes() == (kl / "a").read_bytes()
    assert not (tmp_path / "s.work").exists()
