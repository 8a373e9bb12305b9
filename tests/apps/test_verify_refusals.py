"""What oscar-verify refuses, it refuses before any long work: the weights of the model here are not numbers, so that the
first forward pass would end with exit code 5."""
import json

import numpy
import pytest

from harness import BAD_INPUT, NUMERICAL, USAGE, make_model, refuse, run, safetensors_bytes, succeed, tensors_of, tree


@pytest.fixture(scope="module")
def broken(model, tmp_path_factory):
    """The model whose every weight is NaN: its configuration and tokenizer are in order."""
    folder = make_model(tmp_path_factory.mktemp("nan") / "tiny")
    config = json.loads((folder / "config.json").read_text())
    nan = {name: numpy.full_like(tensor, numpy.nan) for name, tensor in tensors_of(config).items()}
    (folder / "model.safetensors").write_bytes(safetensors_bytes(nan))
    return folder


@pytest.fixture()
def refused(broken, text, tmp_path):
    def check(code, *arguments, names=(), model=broken, text=text, context=512):
        files = ["--report", tmp_path / "r.json", "--html", tmp_path / "r.html", "--markdown", tmp_path / "r.md", "--junit", tmp_path / "r.xml"]
        before = tree(tmp_path)
        refuse(code, "verify", "--model", model, "--text", text, "--context", context, *arguments, *files, names=names)
        assert tree(tmp_path) == before

    return check


def test_the_model_cannot_run(broken, text):
    refuse(NUMERICAL, "verify", "--model", broken, "--text", text, "--context", 512, "--methods", "naive2")


def test_a_text_that_does_not_leave_the_windows(refused, tmp_path):
    short = tmp_path / "short.txt"
    short.write_text("Valve 1 is open. " * 20)
    refused(BAD_INPUT, "--methods", "kivi2", text=short, names="short.txt")


@pytest.mark.parametrize("context, names", [(300, "64 + 256"), (2000, "1024"), (0, "context"), (-1, "context")])
def test_contexts(refused, context, names):
    refused(USAGE, context=context, names=names)


@pytest.mark.parametrize("method, changes", [
    ("q4_0", {"head_dim": 40}), ("kivi2", {"head_dim": 48})])
def test_a_method_that_does_not_fit_the_heads(refused, tmp_path_factory, method, changes):
    model = make_model(tmp_path_factory.mktemp("odd") / "tiny", **changes)
    refused(USAGE, "--methods", method, model=model, names=method)


def test_a_method_that_does_not_fit_is_left_out_of_all_with_the_reason(text, tmp_path_factory):
    model = make_model(tmp_path_factory.mktemp("odd") / "tiny", head_dim=48)
    out = succeed("verify", "--model", model, "--text", text, "--context", 400, "--methods", "all", "--max-sequences", 1,
                  "--bootstrap", 0).out
    assert "left out: kivi2 (common): " in out and "head size 48" in out, out


@pytest.mark.parametrize("arguments, names", [
    (["--methods", "kivi3"], ["kivi3", "did you mean 'kivi2'", "turboquant2.5"]),
    (["--methods", "turboquant25"], ["did you mean 'turboquant2.5'"]),
    (["--methods", "naive2,naive2"], "twice"),
    (["--methods", "oscar"], "--bundle"),
    (["--compare", "fair"], "authors, common, bytes"),
    (["--compare", "bytes", "--bits", "17"], "--bits"),
    (["--methods", "kivi2", "--tasks", "nial"], "niah-multikey"),
    (["--tasks", "niah", "--task-lengths", "5000"], "1024"),
    (["--tasks", "niah", "--task-prompts", "0"], "--task-prompts"),
    (["--max-kl", "0.1"], "--bundle"),
    (["--max-kl-increase", "0.1"], "gate"),
])
def test_options(refused, arguments, names):
    refused(USAGE, *arguments, names=names)


@pytest.fixture(scope="module")
def rotations(bundle, tmp_path_factory):
    """Files without our record name no model, so that they are evaluated on any model of their geometry."""
    torch = pytest.importorskip("torch")
    folder = tmp_path_factory.mktemp("rotations") / "out"
    succeed("export", bundle, "--format", "sglang-branch", "-o", folder)
    for path in folder.glob("*.pt"):
        value = torch.load(path, weights_only=True)
        del value["calibration"]
        torch.save(value, path)
    return ["--rotations", ",".join(str(next(folder.glob(f"{side}_rotation*.pt"))) for side in "kv")]


def test_gates_on_what_is_not_computed(refused, rotations):
    refused(USAGE, *rotations, "--min-niah", "0.9", names="--tasks niah")
    refused(USAGE, *rotations, "--max-kl-increase", "0.1", names="--baseline")


@pytest.fixture(scope="module")
def baseline(model, text, tmp_path_factory):
    path = tmp_path_factory.mktemp("baseline") / "old.json"
    succeed("verify", "--model", model, "--text", text, "--context", 512, "--max-sequences", 1, "--bootstrap", 0, "--report", path)
    return path


def changed(baseline, tmp_path_factory, change):
    report = json.loads(baseline.read_text())
    change(report)
    path = tmp_path_factory.mktemp("changed") / "old.json"
    path.write_text(json.dumps(report))
    return path


def test_baselines_of_something_else(refused, baseline, tmp_path_factory):
    refused(BAD_INPUT, "--baseline", baseline, names=["old.json", "another model"])  # the weights differ
    for change in (lambda r: r.pop("methods"), lambda r: r.update(format_version=99)):
        refused(BAD_INPUT, "--baseline", changed(baseline, tmp_path_factory, change), names="old.json")
    refused(BAD_INPUT, "--baseline", "nowhere.json", names="nowhere.json")


def test_baselines_of_other_tokens(model, text, baseline, bundle, tmp_path):
    """Methods with longer windows move the first scored position, other options the number of sequences."""
    line = ["verify", "--model", model, "--text", text, "--context", 512, "--max-sequences", 1, "--bootstrap", 0]
    refuse(BAD_INPUT, *line, "--methods", "naive2,kivi2", "--baseline", baseline, names=["positions from 320", "--methods"])
    two = tmp_path / "two.json"
    succeed(*line[:-3], "2", "--bootstrap", 0, "--methods", "naive2,hadamard2", "--report", two)
    refuse(BAD_INPUT, *line, "--baseline", two, names=["2 sequences", "--max-sequences"])
    # More sequences now than then: both sides are of the tokens of the earlier report.
    out = tmp_path / "now.json"
    succeed(*line[:-3], "2", "--bootstrap", 0, "--methods", "naive2,hadamard2", "--baseline", baseline, "--report", out)
    found = json.loads(out.read_text())
    old = json.loads(baseline.read_text())
    assert found["scoring"]["tokens"] == 2 * old["scoring"]["tokens"] == 2 * found["baseline"]["tokens"]
    for change in found["baseline"]["changes"]:
        assert change["kl_now"] == pytest.approx(change["kl_before"], rel=1e-6), change
    assert {c["method"] for c in found["baseline"]["changes"]} == {"naive2", "hadamard2"}


@pytest.mark.parametrize("what, arguments", [
    ("text", ["--context", 512]), ("context", ["--context", 400]), ("precision", ["--context", 512, "--dtype", "bfloat16"])])
def test_baselines_of_another_text_context_or_precision(model, text, baseline, tmp_path, what, arguments):
    other = tmp_path / "other.txt"
    other.write_text(text.read_text() + ("More.\n" if what == "text" else ""))
    refuse(BAD_INPUT, "verify", "--model", model, "--text", other, *arguments, "--baseline", baseline,
           "--report", tmp_path / "r.json", names=[what])
    assert not (tmp_path / "r.json").exists()


def test_a_failed_gate_ends_with_1(model, text, bundle, tmp_path):
    line = ["verify", "--model", model, "--text", text, "--context", 512, "--max-sequences", 1, "--bootstrap", 0, "--bundle", bundle]
    result = run(*line, "--max-kl", 1e-12, "--junit", tmp_path / "r.xml")
    assert result.code == 1 and "FAIL  gate max_kl" in result.out, str(result)
    assert "<failure" in (tmp_path / "r.xml").read_text()


def test_a_failed_self_check_ends_with_1(model, text, rotations, tmp_path):
    """Rows clipped to nearly nothing lose more than no rotation at all: the negative control fails the report."""
    result = run("verify", "--model", model, "--text", text, "--context", 512, "--max-sequences", 1, "--bootstrap", 0, *rotations,
                 "--no-gate", "--methods", "naive2,oscar", "--clip", "0.01,0.01", "--report", tmp_path / "r.json")
    assert result.code == 1 and "FAIL  check negative_control" in result.out, str(result)
    assert json.loads((tmp_path / "r.json").read_text())["pass"] is False


@pytest.mark.parametrize("bits", ["2.2", "1"])
@pytest.mark.parametrize("dry", [[], ["--dry-run"]])
def test_a_bundle_is_never_left_out_in_silence(refused, rotations, bits, dry):
    """It ended in a segmentation fault after the passes."""
    refused(USAGE, *rotations, "--compare", "bytes", "--bits", bits, *dry, names=["oscar", f"target is {float(bits):.2f}", "--bits"])


def test_none_of_several_bundles_is_left_out(model, text, prompts, bundle, tmp_path):
    """Codes of 3.5 bits take more than the target that the other bundle reaches."""
    far = tmp_path / "far.safetensors"
    succeed("collect", "--model", model, "--prompts", prompts, "-o", far, "--seq-len", 128, "--far-pairs", "4,16")
    succeed("fit", far, "-o", tmp_path / "fine", "--method", "waterfill", "--bits", 3.5)
    refuse(USAGE, "verify", "--model", model, "--text", text, "--context", 512, "--bundle", bundle, "--bundle", tmp_path / "fine",
           "--compare", "bytes", "--bits", 3, "--max-kl", 100, names=["fine", "3.00"])


def test_unknown_methods_list_what_exists(text):
    refuse(USAGE, "verify", "--methods", "nope", "--text", text, names=["nope", "kivi2", "turboquant2.5", "oscar-verify methods"])


def test_methods(model):
    table = " ".join(succeed("verify", "methods").out.split())
    assert "kivi2" in table and "arXiv 2402.02750" in table and "3.00" in table
    rows = {m["id"]: m for m in json.loads(succeed("verify", "methods", "--json").out)["methods"]}
    assert rows["bf16"]["bits_per_element"] == 16 and rows["naive2"]["bits_per_element"] == 2.25
    assert rows["waterfill"]["bits_per_element"] == 2.25 and rows["waterfill"]["needs_bundle"]
    assert rows["hadamard2"]["decode"] and not rows["kivi2"]["decode"] and rows["oscar"]["needs_bundle"]
    assert all(m["source"] and m["summary"] for m in rows.values())
    own = {m["id"]: m for m in json.loads(succeed("verify", "methods", "--model", model, "--json").out)["methods"]}
    assert own["naive2"]["bits_per_element"] == 2.5  # head size 64


def test_the_calibration_text_is_noticed(model, bundle, tmp_path):
    """The prompts' passages are in the bundle: scoring them warns and is recorded."""
    seen = tmp_path / "seen.txt"
    seen.write_text("The pump of the north hall runs at 40 percent. " * 60)
    line = ["verify", "--model", model, "--text", seen, "--context", 400, "--max-sequences", 1, "--bundle", bundle, "--bootstrap", 0]
    result = run(*line, "--report", tmp_path / "r.json", "--html", tmp_path / "r.html", "--markdown", tmp_path / "r.md")
    assert "was calibrated on" in result.err and "note: seen.txt shares passages" in result.out, str(result)
    found = json.loads((tmp_path / "r.json").read_text())["bundle"]["calibration_text"]
    assert found["seen"] is True and found["shared"] >= 2
    assert "was calibrated on" in (tmp_path / "r.html").read_text() and "was calibrated on" in (tmp_path / "r.md").read_text()


def test_other_text_is_not_called_seen(model, text, bundle, tmp_path):
    run("verify", "--model", model, "--text", text, "--context", 400, "--max-sequences", 1, "--bundle", bundle, "--bootstrap", 0,
        "--report", tmp_path / "r.json")
    found = json.loads((tmp_path / "r.json").read_text())["bundle"]["calibration_text"]
    assert found["seen"] is False and found["compared"] > 0 and found["shared"] == 0


def test_a_dry_run_tells_the_passes(model, text, bundle):
    out = succeed("verify", "--model", model, "--text", text, "--context", 400, "--bundle", bundle, "--path", "both", "--tasks", "niah",
                  "--dry-run").out
    assert "passes     " in out and "memory     about " in out and "task       niah" in out, out


def test_decoding_the_last_tokens_needs_both_paths_and_no_tasks(model, text, bundle):
    line = ["verify", "--model", model, "--text", text, "--context", 400, "--bundle", bundle, "--decode-last", 16]
    refuse(USAGE, *line, names=["--decode-last", "--path both"])
    refuse(USAGE, *line, "--path", "decode", names=["--decode-last", "--path both"])
    refuse(USAGE, *line, "--path", "both", "--tasks", "niah", names=["--decode-last", "--tasks"])
    result = run(*line, "--path", "both", "--max-sequences", 1, "--bootstrap", 0)
    assert "scored: 15 tokens" in result.out, str(result)


def test_plan(model):
    out = succeed("verify", "plan", "--model", model, "--memory", "64MiB").out
    assert "bf16" in out and "kivi2" in out and "longest" in out
    plan = json.loads(succeed("verify", "plan", "--model", model, "--memory", "64MiB", "--contexts", "512,1024", "--json").out)
    rows = {m["id"]: m for m in plan["methods"]}
    assert rows["bf16"]["contexts"][0]["sequence_bytes"] == 2 * 2 * 2 * 64 * 2 * 512  # layers, sides, heads, d, bytes
    assert rows["oscar"]["contexts"][1]["sequence_bytes"] < 0.6 * rows["bf16"]["contexts"][1]["sequence_bytes"]
    fewer = json.loads(succeed("verify", "plan", "--model", model, "--memory", "64MiB", "--contexts", "512,1024", "--bits", 1, "--json").out)
    less = {m["id"]: m for m in fewer["methods"]}
    assert less["oscar"] == rows["oscar"]
    assert less["waterfill"]["contexts"][1]["sequence_bytes"] < rows["waterfill"]["contexts"][1]["sequence_bytes"]
    refuse(USAGE, "verify", "plan", "--model", model, "--memory", "1KiB", names="--memory")
    refuse(USAGE, "verify", "plan", "--model", model, "--memory", "1KB", names="--memory")
    refuse(USAGE, "verify", "plan", "--model", model, "--memory", "64MiB", "--contexts", "5000", names="1024")
