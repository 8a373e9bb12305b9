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
    ("q4_0", {"head_dim": 40}), ("saw4", {"head_dim": 48}),
    ("rotatekv2", {"num_attention_heads": 6, "num_key_value_heads": 6, "head_dim": 64})])
def test_a_method_that_does_not_fit_the_heads(refused, tmp_path_factory, method, changes):
    model = make_model(tmp_path_factory.mktemp("odd") / "tiny", **changes)
    refused(USAGE, "--methods", method, model=model, names=method)


def test_a_method_that_does_not_fit_is_left_out_of_all_with_the_reason(text, tmp_path_factory):
    model = make_model(tmp_path_factory.mktemp("odd") / "tiny", head_dim=48)
    out = succeed("verify", "--model", model, "--text", text, "--context", 400, "--methods", "all", "--max-sequences", 1,
                  "--bootstrap", 0).out
    assert "left out: saw4 (common): " in out and "head size 48" in out, out


@pytest.mark.parametrize("arguments, names", [
    (["--methods", "kivi3"], ["kivi3", "did you mean 'kivi2'", "oscar-tns-g128"]),
    (["--methods", "oscartns"], ["did you mean 'oscar-tns'"]),
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
    """Files without our record name no model, so that they are judged on any model of their geometry."""
    torch = pytest.importorskip("torch")
    folder = tmp_path_factory.mktemp("rotations") / "out"
    succeed("export", bundle, "--format", "sglang", "-o", folder)
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
                 "--clip", "0.01,0.01", "--report", tmp_path / "r.json")
    assert result.code == 1 and "FAIL  check negative_control" in result.out, str(result)
    assert json.loads((tmp_path / "r.json").read_text())["pass"] is False


def test_plan(model):
    out = succeed("verify", "plan", "--model", model, "--memory", "64MiB").out
    assert "bf16" in out and "oscar-tns" in out and "batch" in out
    plan = json.loads(succeed("verify", "plan", "--model", model, "--memory", "64MiB", "--contexts", "512,1024", "--json").out)
    rows = {m["id"]: m for m in plan["methods"]}
    assert rows["bf16"]["contexts"][0]["sequence_bytes"] == 2 * 2 * 2 * 64 * 2 * 512  # layers, sides, heads, d, bytes
    assert rows["oscar"]["contexts"][1]["sequence_bytes"] < 0.6 * rows["bf16"]["contexts"][1]["sequence_bytes"]
    refuse(USAGE, "verify", "plan", "--model", model, "--memory", "1KiB", names="--memory")
    refuse(USAGE, "verify", "plan", "--model", model, "--memory", "1KB", names="--memory")
    refuse(USAGE, "verify", "plan", "--model", model, "--memory", "64MiB", "--contexts", "5000", names="1024")
