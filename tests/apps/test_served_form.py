"""What is evaluated is what is served: the form of a bundle that --as names, the files that export writes of it, and which
reports may stand beside them."""
import json
import shutil
import subprocess

import pytest

from harness import BAD_INPUT, GATE_FAILED, SAMPLE, USAGE, make_model, refuse, run, succeed

OUTLIERS = SAMPLE / "tiny-qwen3-outliers"
QUICK = ["--context", 800, "--max-sequences", 1, "--bootstrap", 0, "--layer-sequences", 1]


@pytest.fixture(scope="module")
def sample(tmp_path_factory):
    """Statistics of the sample model whose layers need very different clips, and bundles of them."""
    folder = tmp_path_factory.mktemp("served")
    succeed("collect", "--model", OUTLIERS, "--prompts", SAMPLE / "prompts.jsonl", "-o", folder / "s", "--tokens", 6000, "-q")
    succeed("fit", folder / "s", "--method", "oscar", "-o", folder / "layers", "-q")
    succeed("fit", folder / "s", "-o", folder / "one", "--for", "sglang-branch", "-q")
    succeed("fit", folder / "s", "--method", "oscar", "-o", folder / "pair", "--clip", "0.96,0.92", "-q")
    return folder


def manifest_of(bundle):
    return json.loads((bundle / "oscar_bundle.json").read_text())


def rotations(folder):
    return ",".join(str(next(folder.glob(f"{side}_*.pt"))) for side in "kv")


def evaluate(path, *arguments, code=0):
    result = run("verify", "--model", OUTLIERS, "--text", SAMPLE / "heldout.txt", *QUICK, "--methods", "naive2,oscar",
                 *arguments, *(() if "--max-kl" in arguments else ("--no-gate",)), "--report", path)
    assert result.code == code, str(result)
    report = json.loads(path.read_text())
    return report, next(m for m in report["methods"] if m["id"] == "oscar"), result.out


def clips(bundle, side):
    return {tuple(layer[side]["clip"]) for layer in manifest_of(bundle)["layers"]}


def test_the_advice_of_a_refusal_leads_to_an_export(sample, tmp_path):
    fit = ["fit", sample / "s", "--method", "balanced", "-q", "-o"]
    export = ["--format", "vllm", "--model", OUTLIERS, "-o", tmp_path / "out"]
    succeed(*fit, tmp_path / "groups", "--bits", "2.5")
    refuse(BAD_INPUT, "export", tmp_path / "groups", *export, names="fit without --bits")
    succeed(*fit, tmp_path / "one")
    succeed("export", tmp_path / "one", *export)


def test_evaluated_is_served(sample, tmp_path):
    """The number of --as sglang-branch is the number of the exported files, and not that of the bundle as it was fitted."""
    assert len(clips(sample / "layers", "key")) > 1
    native, as_fitted, out = evaluate(tmp_path / "native.json", "--bundle", sample / "layers")
    assert native["bundle"]["served_as"] == {"format": "transformers", "changes": []}
    assert "oscar as transformers serves it" in out
    assert native["bundle"]["clip"]["key"] is None  # they differ: all of them are listed
    assert [tuple(layer["key"]) for layer in native["bundle"]["clip"]["layers"]] == \
        [tuple(layer["key"]["clip"]) for layer in manifest_of(sample / "layers")["layers"]]

    served, as_served, out = evaluate(tmp_path / "served.json", "--bundle", sample / "layers", "--as", "sglang-branch")
    one = manifest_of(sample / "layers")["global_clip"]
    assert served["bundle"]["clip"] == {"source": "bundle", "key": one["key"], "value": one["value"]}
    assert "one clip ratio for the keys of all layers" in served["bundle"]["served_as"]["changes"][0]
    assert "changed by sglang-branch: one clip ratio" in out
    assert as_served["kl"]["mean"] != as_fitted["kl"]["mean"]

    result = succeed("export", sample / "layers", "--format", "sglang-branch", "--report", tmp_path / "served.json", "-o", tmp_path / "x")
    assert "changes the bundle" in result.err
    card = (tmp_path / "x" / "README.md").read_text()
    assert f"{as_served['kl']['mean']:.4g}" in card and "one clip ratio for the keys" in card
    files, of_files, _ = evaluate(tmp_path / "files.json", "--rotations", rotations(tmp_path / "x"))
    assert of_files["kl"] == as_served["kl"] and of_files["nll"] == as_served["nll"]
    assert files["bundle"]["clip"] == {"source": "file", "key": one["key"], "value": one["value"]}
    assert files["bundle"]["served_as"]["format"] == "sglang-branch" and files["bundle"]["fingerprint_matches"]

    # The report of the bundle as it was fitted is not that of what is exported.
    sentence = refuse(BAD_INPUT, "export", sample / "layers", "--format", "sglang-branch", "--report", tmp_path / "native.json",
                      "-o", tmp_path / "y", names=["'transformers'", "in place of the bundle's", "oscar-fit --for sglang-branch"])
    assert "--as sglang-branch" in sentence and not (tmp_path / "y").exists()


def test_the_fit_for_a_format_loses_nothing(sample, tmp_path):
    assert len(clips(sample / "one", "key")) == 1 and len(clips(sample / "one", "value")) == 1
    assert manifest_of(sample / "one")["provenance"]["options"]["for"] == "sglang-branch"
    report, row, _ = evaluate(tmp_path / "r.json", "--bundle", sample / "one")
    assert report["bundle"]["served_as"] == {"format": "sglang-branch", "changes": []}
    succeed("export", sample / "one", "--format", "sglang-branch", "--report", tmp_path / "r.json", "-o", tmp_path / "x")
    _, of_files, _ = evaluate(tmp_path / "files.json", "--rotations", rotations(tmp_path / "x"))
    assert of_files["kl"] == row["kl"]


def test_predictions_order_the_measured_kl(sample, tmp_path):
    """The sum of predicted shares, by which one clip is chosen for all layers, puts bundles in the order of their KL."""
    def predicted(name):
        layers = manifest_of(sample / name)["fit"]["layers"]
        return sum(layer[part]["error"] for layer in layers for part in ("k_logit_error", "v_output_error"))

    kl = {name: evaluate(tmp_path / f"{name}.json", "--bundle", sample / name)[1]["kl"]["mean"] for name in ("layers", "one", "pair")}
    found = {name: (kl[name], predicted(name)) for name in kl}
    for name in ("layers", "one"):
        assert kl[name] < 0.5 * kl["pair"] and predicted(name) < 0.9 * predicted("pair"), found
    # What is predicted to be no worse is no worse: the two differ by less than their noise.
    assert predicted("one") < 1.1 * predicted("layers") and kl["one"] < 1.3 * kl["layers"], found


def test_reports_that_failed_or_belong_to_another_bundle(sample, tmp_path):
    evaluate(tmp_path / "failed.json", "--bundle", sample / "one", "--max-kl", "1e-9", code=GATE_FAILED)
    refuse(BAD_INPUT, "export", sample / "one", "--format", "sglang-branch", "--report", tmp_path / "failed.json", "-o", tmp_path / "x",
           names=["failed.json", "gate 'max_kl' failed"])
    evaluate(tmp_path / "pair.json", "--bundle", sample / "pair")
    refuse(BAD_INPUT, "export", sample / "one", "--format", "sglang-branch", "--report", tmp_path / "pair.json", "-o", tmp_path / "x",
           names=["pair.json", "another bundle"])
    old = json.loads((tmp_path / "pair.json").read_text())
    del old["bundles"][0]["served_as"]
    (tmp_path / "old.json").write_text(json.dumps(old))
    refuse(BAD_INPUT, "export", sample / "pair", "--format", "sglang-branch", "--report", tmp_path / "old.json", "-o", tmp_path / "x",
           names=["old.json", "served_as"])
    assert not (tmp_path / "x").exists()


def test_exported_files_know_their_model_and_clip(bundle, text, tmp_path):
    succeed("export", bundle, "--format", "sglang-branch", "-o", tmp_path / "x")
    pair = rotations(tmp_path / "x")
    other = make_model(tmp_path / "other", seed=2)
    refuse(BAD_INPUT, "verify", "--rotations", pair, "--check-only", "--model", other, names="another model")
    refuse(BAD_INPUT, "verify", "--rotations", pair, "--model", other, "--text", text, "--context", 512, names="another model")
    refuse(USAGE, "verify", "--rotations", pair, "--as", "sglang-branch-v2", "--check-only", names="sglang-branch")
    assert "fingerprint is equal" not in succeed("verify", "--rotations", pair, "--check-only").out


def test_forms_that_do_not_exist_or_have_nothing_to_serve(bundle, model, text):
    verify = ["verify", "--no-gate", "--model", model, "--text", text, "--context", 512]
    refuse(USAGE, *verify, "--bundle", bundle, "--as", "tensorrt", names="sglang-branch, sglang-branch-v2, sglang-branch-v3, transformers, vllm, sglang, hub, absorbed")
    refuse(USAGE, *verify, "--as", "sglang-branch", names="--bundle")


@pytest.mark.parametrize("arguments", [["--encoder", "search"], ["--scope", "head"], ["--method", "waterfill"],
                                       ["--method", "balanced"], ["--center", "mean"], ["--windows", "60,256"]])
def test_fits_that_a_format_cannot_carry(statistics, tmp_path, arguments):
    refuse(USAGE, "fit", statistics, "-o", tmp_path / "b", "--for", "sglang-branch", *arguments, names="sglang-branch")
    refuse(USAGE, "fit", statistics, "-o", tmp_path / "b", "--for", "gguf", names=["gguf", "transformers"])
    assert not (tmp_path / "b").exists()


def test_vllm_gets_means_before_rope(statistics, model, tmp_path):
    for number, options in enumerate((["--center", "rope"], ["--for", "vllm"], ["--for", "vllm", "--center", "mean"])):
        bundle = tmp_path / f"b{number}"
        succeed("fit", statistics, "--method", "waterfill", "-q", "-o", bundle, *options)
        succeed("export", bundle, "--format", "vllm", "-o", tmp_path / f"x{number}", "--model", model)
    succeed("fit", statistics, "-q", "-o", tmp_path / "balanced", "--method", "balanced", "--center", "rope")
    refuse(BAD_INPUT, "export", tmp_path / "balanced", "--format", "vllm", "-o", tmp_path / "x", "--model", model, names="--center mean")


@pytest.mark.parametrize("form, method, scope", [("sglang-branch-v2", "oscar", "head"), ("sglang-branch-v3", "balanced", "head")])
def test_the_other_formats(statistics, model, text, tmp_path, form, method, scope):
    succeed("fit", statistics, "-o", tmp_path / "b", "--for", form)
    manifest = manifest_of(tmp_path / "b")
    assert (manifest["method"], manifest["scope"], manifest["code"]["encoder"]) == (method, scope, "minmax")
    arguments = ["--model", model, "--text", text, *QUICK]
    succeed("verify", "--no-gate", "--bundle", tmp_path / "b", *arguments, "--report", tmp_path / "r.json")
    report = json.loads((tmp_path / "r.json").read_text())
    assert report["bundle"]["served_as"] == {"format": form, "changes": []}
    succeed("export", tmp_path / "b", "--format", form, "-o", tmp_path / "x")
    succeed("verify", "--no-gate", "--rotations", rotations(tmp_path / "x"), *arguments, "--report", tmp_path / "f.json")
    files = json.loads((tmp_path / "f.json").read_text())
    row = {r["bundle"]["row"]: next(m for m in r["methods"] if m["evaluated"])["kl"] for r in (report, files)}
    assert len({json.dumps(kl) for kl in row.values()}) == 1


@pytest.mark.parametrize("arguments", [["--max-kl", "0.1"], ["--text", "t.txt"], ["--junit", "r.xml"], ["--report", "r.json"],
                                       ["--html", "r.html"], ["--min-niah", "0.5"], ["--max-kl-increase", "1"],
                                       ["--baseline", "r.json"], ["--work-dir", "w"], ["--tasks", "niah"]])
def test_check_only_takes_nothing_that_it_would_ignore(bundle, tmp_path, arguments):
    refuse(USAGE, "verify", "--bundle", bundle, "--check-only", *arguments, names=[arguments[0], "--check-only"], cwd=tmp_path)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("change", [
    lambda m: m["layers"][0]["key"].update(clip=[0.5]), lambda m: m["global_clip"].update(value=0.5),
    lambda m: m["windows"].update(recent=128), lambda m: m["code"].update(encoder="search"),
    lambda m: m["model"].update(fingerprint="v2:sha256:" + "0" * 64)])
def test_edited_numbers_fail_the_check(bundle, tmp_path, change):
    copy = tmp_path / "b"
    shutil.copytree(bundle, copy)
    path = copy / "oscar_bundle.json"
    manifest = json.loads(path.read_text())
    path.write_text(json.dumps(manifest, sort_keys=True))  # another program's spelling of the same content
    succeed("verify", "--bundle", copy, "--check-only")
    change(manifest)
    path.write_text(json.dumps(manifest))
    refuse(BAD_INPUT, "verify", "--bundle", copy, "--check-only", names=["oscar_bundle.json", "changed after the fit"])
    refuse(BAD_INPUT, "export", copy, "--format", "sglang-branch", "-o", tmp_path / "x", names="changed after the fit")
    del manifest["numbers_sha256"]  # older bundles have none
    path.write_text(json.dumps(manifest))
    succeed("verify", "--bundle", copy, "--check-only")


def test_vllm_keeps_windowed_layers_in_bf16(sample, tmp_path):
    """Three of four layers have a sliding window. oscar-verify evaluates a bundle as vLLM serves it if the bundle leaves them out. If all
    layers have one, there is no folder, no command, and exit code 3."""
    windowed, every = tmp_path / "windowed", tmp_path / "every"
    for path, first in ((windowed, 1), (every, 0)):
        shutil.copytree(OUTLIERS, path)
        config = json.loads((path / "config.json").read_text())
        (path / "config.json").write_text(json.dumps(config | {"use_sliding_window": True, "sliding_window": 400, "max_window_layers": first,
                                                               "layer_types": None}))
        succeed("collect", "--model", path, "--prompts", SAMPLE / "prompts.jsonl", "-o", path / "s", "--tokens", 2000, "-q")
        succeed("fit", path / "s", "-o", path / "b", "-q", "--method", "waterfill")
    evaluated = ["--as", "vllm", "--text", SAMPLE / "heldout.txt", *QUICK]
    nothing = "no layer of the model would have a 2-bit cache in vLLM"
    refuse(BAD_INPUT, "export", every / "b", "--format", "vllm", "-o", tmp_path / "out", "--model", every, names=nothing)
    refuse(BAD_INPUT, "verify", "--bundle", every / "b", *evaluated, "--model", every, names=nothing)
    assert not (tmp_path / "out").exists()
    succeed("export", windowed / "b", "--format", "vllm", "-o", tmp_path / "served", "--model", windowed)
    refuse(BAD_INPUT, "verify", "--bundle", windowed / "b", *evaluated, "--model", windowed,
           names="vllm keeps layers 1 to 3 (a sliding window) in BF16, and the bundle quantizes them; fit with --windows 64,400")
    succeed("fit", windowed / "s", "-o", tmp_path / "b", "-q", "--method", "waterfill", "--windows", "64,400")
    succeed("verify", "--no-gate", "--bundle", tmp_path / "b", *evaluated, "--model", windowed)
    refuse(USAGE, "export", sample / "layers", "--format", "vllm", "-o", tmp_path / "out", names="needs --model")
    succeed("export", sample / "layers", "--format", "vllm", "-o", tmp_path / "out", "--model", OUTLIERS)


def test_a_folder_to_upload_is_read_from_the_cache(sample, tmp_path, monkeypatch):
    """--format hub, then hf: in the commands, offline, by the rule of the engines (tests/python/test_bundle_search.py)."""
    report = tmp_path / "report.json"
    evaluate(report, "--bundle", sample / "layers")
    hub, commit = tmp_path / "hub", "c" * 40
    snapshot = hub / "models--org--kv" / "snapshots" / commit
    succeed("export", sample / "layers", "--format", "hub", "--report", report, "-o", snapshot, "--model", OUTLIERS)
    names = {str(path.relative_to(snapshot)) for path in snapshot.rglob("*")}
    assert names == {"README.md", "SHA256SUMS", "oscar_bundle.json", "report.json", "rotations.safetensors", "self_check.safetensors"}
    subprocess.run(["sha256sum", "-c", "--quiet", "SHA256SUMS"], cwd=snapshot, check=True)
    card, kept = (snapshot / "README.md").read_text(), (snapshot / "report.json").read_text()
    assert "vLLM 0.3" in card and "H100" in card and "SGLang 0.5" in card and "| oscar |" in card
    for text in (card, kept, (snapshot / "oscar_bundle.json").read_text()):
        assert str(tmp_path) not in text and str(sample) not in text and str(SAMPLE) not in text and "--report" not in text.replace(
            "oscar-export --report", "")
    assert json.loads(kept)["bundles"] and "command" not in json.loads(kept)
    monkeypatch.setenv("HF_HUB_CACHE", str(hub))
    (hub / "models--org--kv" / "refs").mkdir()
    (hub / "models--org--kv" / "refs" / "v1").write_text(commit)
    check = ["verify", "--check-only", "--model", OUTLIERS, "--bundle"]
    for name in ("hf:org/kv@v1", f"hf:org/kv@{commit}"):
        succeed(*check, name)
    succeed("export", "hf:org/kv@v1", "--format", "vllm", "--model", OUTLIERS, "-o", tmp_path / "vllm")
    refuse(BAD_INPUT, *check, "hf:org/kv", names="fetch it with: hf download org/kv")
    refuse(BAD_INPUT, *check, "hf:org/kv@v2", names="hf download org/kv --revision v2")
    refuse(BAD_INPUT, *check, "hf:../etc", names="neither a directory nor a model name")
    (snapshot / "oscar_bundle.json").unlink()
    refuse(BAD_INPUT, *check, "hf:org/kv@v1", names="has no oscar_bundle.json")
