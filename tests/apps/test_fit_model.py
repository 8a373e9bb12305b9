"""oscar-fit --model without statistics: collects, measures and fits in one go, from prompts or from the model's own text."""
import hashlib
import itertools
import json
import math
import pathlib
import random
import shutil
import signal
import subprocess
import threading
import time

import pytest
import torch
from safetensors import safe_open

from harness import BAD_INPUT, ENVIRONMENT, INTERRUPTED, SOURCE_DIR, USAGE, command, make_model, phases_of, refuse, succeed, tree

WINDOWS = ["--windows", "16,32"]
SHORT = ["--tokens", 500, "--seq-len", 128]
CURVES = ["--curve-context", 96, "--curve-sequences", 1]
PROMPTS_ALONE = ["--own-text", 0]
FILES = ("rotations.safetensors", "curves.json", "calibration_hashes.json")


@pytest.fixture(scope="module")
def small(tmp_path_factory):
    """Random ids, so that no row is a text: enough for curves and far pairs."""
    path = tmp_path_factory.mktemp("small") / "small.jsonl"
    source = random.Random(2)
    path.write_text("".join(json.dumps({"input_ids": [source.randrange(8000) for _ in range(120)]}) + "\n" for _ in range(4)))
    return path


@pytest.fixture(scope="module")
def line(model):
    return lambda output, *more: ["fit", "--model", model, "-o", output, *WINDOWS, *SHORT, "--device", "cpu", *more]


def manifest_of(bundle):
    return json.loads((bundle / "oscar_bundle.json").read_text())


def files_of(folder):
    """Everything a run leaves, by name."""
    return {str(p.relative_to(folder)): p.read_bytes() for p in sorted(folder.rglob("*")) if p.is_file()}


def last_sentence(result):
    """The last line, with the lines before it that it continues."""
    lines = result.out.splitlines()
    first = max(i for i, line in enumerate(lines) if not line.startswith(" "))
    return " ".join([lines[first], *(line.strip() for line in lines[first + 1:])])


def metadata_of(statistics):
    return json.loads(succeed("collect", "show", statistics, "--json").out)


def test_one_command_gives_what_two_give(line, model, small, tmp_path):
    one = succeed(*line(tmp_path / "one", "--prompts", small, *PROMPTS_ALONE, *CURVES))
    assert sorted(p.name for p in tmp_path.iterdir()) == ["one", "one.statistics.safetensors"], "work directories were left"
    assert "collected  480 tokens" in one.out and "wrote " in one.out and "predicted end-to-end KL" in one.out, str(one)
    assert one.err.count("is enough for") <= 1, str(one)
    two = tmp_path / "two.statistics.safetensors"
    succeed("collect", "--model", model, "--prompts", small, "-o", two, *SHORT, "--far-pairs", "16,32", "--device", "cpu")
    assert two.read_bytes() == (tmp_path / "one.statistics.safetensors").read_bytes()
    succeed("fit", two, "-o", tmp_path / "two", *WINDOWS, "--method", "waterfill", "--allocate", "measured", "--model", model,
            "--text", small, "--device", "cpu", *CURVES)
    for name in FILES:
        assert (tmp_path / "one" / name).read_bytes() == (tmp_path / "two" / name).read_bytes(), name
    first, second = (manifest_of(tmp_path / name) for name in ("one", "two"))
    assert first["provenance"].pop("statistics")["file"] == "one.statistics.safetensors"
    second["provenance"].pop("statistics")
    for manifest in (first, second):  # the hashes cover the name of the statistics
        manifest.pop("files"), manifest.pop("numbers_sha256")
    assert first == second


def test_scripts_leave_it_to_the_method_whether_curves_are_measured(line, model, small, tmp_path):
    succeed(*line(tmp_path / "a", "--prompts", small, "--method", "oscar"))
    run = ["fit", tmp_path / "a.statistics.safetensors", *WINDOWS, "--model", model, "--text", small, "--device", "cpu", *CURVES]
    refuse(USAGE, *run, "-o", tmp_path / "o", "--method", "oscar", names="--text")
    succeed(*run, "-o", tmp_path / "o", "--method", "oscar", "--allocate", "auto")
    succeed(*run, "-o", tmp_path / "w", "--allocate", "auto")
    assert not (tmp_path / "o" / "curves.json").exists() and (tmp_path / "w" / "curves.json").exists()


def test_methods_and_formats_that_measure_nothing(line, small, tmp_path):
    succeed(*line(tmp_path / "a", "--prompts", small, "--method", "oscar"))
    assert manifest_of(tmp_path / "a")["method"] == "oscar" and not (tmp_path / "a" / "curves.json").exists()
    succeed(*line(tmp_path / "b", "--prompts", small, "--for", "sglang-branch"))
    assert manifest_of(tmp_path / "b")["method"] == "oscar"
    succeed(*line(tmp_path / "c", "--prompts", small, "--allocate", "analytic", "--bits", 1.5))
    assert manifest_of(tmp_path / "c")["method"] == "waterfill" and not (tmp_path / "c" / "curves.json").exists()
    far = metadata_of(tmp_path / "a.statistics.safetensors")["parts"][0]["options"]["far_pairs"]
    assert far == {"sink": 16, "recent": 32}, "far pairs are those behind the windows of the bundle"


def test_budgets_share_statistics_and_curves(line, small, tmp_path):
    succeed(*line(tmp_path / "all", "--prompts", small, *PROMPTS_ALONE, "--pareto", "1.5,2", *CURVES))
    assert sorted(p.name for p in (tmp_path / "all").iterdir()) == ["bits-1.5", "bits-2"]
    assert (tmp_path / "all.statistics.safetensors").exists()


@pytest.fixture(scope="module")
def long(tmp_path_factory):
    """Twelve rows of 128 tokens, of which --tokens 500 reaches four."""
    path = tmp_path_factory.mktemp("long") / "long.jsonl"
    source = random.Random(5)
    path.write_text("".join(json.dumps({"input_ids": [source.randrange(8000) for _ in range(128)]}) + "\n" for _ in range(12)))
    return path


def test_the_bundle_is_measured_on_prompts_that_nothing_saw(line, model, long, tmp_path):
    """oscar-verify finds the same numbers on the rows that were held out, and nothing of them in the calibration."""
    plan = json.loads(succeed(*line(tmp_path / "b", "--prompts", long, *CURVES, "--dry-run", "--json")).out)
    assert plan["held_out"] == {"tokens": 1024, "sequences": 8, "context": 128} and plan["phases"][-1]["phase"] == "held-out text"
    result = succeed(*line(tmp_path / "b", "--prompts", long, *CURVES))
    measured = manifest_of(tmp_path / "b")["provenance"]["measured"]
    assert measured["sequences"] == 8 and measured["context"] == 128 and measured["text"] == "held-out prompts"
    assert last_sentence(result).startswith(f"measured  KL {measured['kl']:.3g} +- "), str(result)
    prompts = metadata_of(tmp_path / "b.statistics.safetensors")["parts"][0]["prompts"]
    assert prompts["skipped"] == [{"first": f"{long.name}:5", "last": f"{long.name}:12", "rows": 8, "reason": "held out for the measurement at the end"}]
    held = tmp_path / "held.jsonl"
    held.write_text("".join(long.read_text().splitlines(True)[4:]))
    succeed("verify", "--model", model, "--bundle", tmp_path / "b", "--text", held, "--context", 128, "--device", "cpu", "--no-gate",
            "--report", tmp_path / "r.json")
    report = json.loads((tmp_path / "r.json").read_text())
    row = next(m for m in report["methods"] if m["evaluated"])
    # With another number of threads sums round differently, and a code between two levels takes the other one.
    assert measured["kl"] == pytest.approx(row["kl"]["mean"], rel=2e-3) and measured["kl_ci"] == pytest.approx(row["kl"]["ci"], rel=1e-2)
    assert measured["perplexity_ratio"] == pytest.approx(row["ppl_ratio"], rel=1e-4) and measured["tokens"] == row["tokens"]
    assert report["bundle"]["calibration_text"] == {"seen": False, "document": None, "compared": 993, "shared": 0}
    assert "the mean KL to the BF16 cache was" in (tmp_path / "b" / "README.md").read_text()
    probe = json.loads((tmp_path / "b" / "probe.json").read_text())
    assert probe["token_ids"] == json.loads(held.read_text().splitlines()[0])["input_ids"] and "probe.json" in manifest_of(tmp_path / "b")["files"]
    assert len(probe["bf16"]) == len(probe["bundle"]) == 64 and max(probe["bf16"] + probe["bundle"]) < 0 and probe["bf16"] != probe["bundle"]
    assert 0 < probe["kl"] < 100 * measured["kl"]
    # A finished run is complete, whatever the measurement would say now.
    manifest = tmp_path / "b" / "oscar_bundle.json"
    assert "is complete" in succeed(*line(tmp_path / "b", "--prompts", long, *CURVES, "--resume")).err
    assert json.loads(manifest.read_text())["provenance"]["measured"] == measured
    # Too few prompts, and several budgets.
    few = tmp_path / "few.jsonl"
    few.write_text("".join(long.read_text().splitlines(True)[:6]))
    result = succeed(*line(tmp_path / "few", "--prompts", few, "--method", "oscar"))
    assert last_sentence(result).startswith("measured  nothing: the prompts are too few"), str(result)
    assert "measured" not in manifest_of(tmp_path / "few")["provenance"]
    result = json.loads(succeed(*line(tmp_path / "all", "--prompts", long, "--pareto", "1.5,4", "--allocate", "analytic", "--json", "--no-check-rows")).out)
    assert not list((tmp_path / "all").rglob("probe.json"))
    kl = [row["measured_kl"] for row in result["pareto"]]
    assert kl[0] > kl[1] > 0 and manifest_of(tmp_path / "all" / "bits-4")["provenance"]["measured"]["kl"] == pytest.approx(kl[1], rel=1e-5)


def test_a_target_holds_on_prompts_that_nothing_saw(line, long, tmp_path):
    """The prediction meets it with fewer bits than the measurement, which moves up."""
    succeed(*line(tmp_path / "all", "--prompts", long, "--pareto", "0.5,1,1.5,2.25,4", *CURVES))
    curves = ["--curves", tmp_path / "all" / "bits-1" / "curves.json"]
    statistics = tmp_path / "all.statistics.safetensors"
    predicted, kl = {}, {}
    for bits in ("0.5", "1", "1.5", "2.25", "4"):
        provenance = manifest_of(tmp_path / "all" / f"bits-{bits}")["provenance"]
        predicted[bits], kl[bits] = provenance["prediction"]["kl"], provenance["measured"]["kl"]
    # A target that a budget meets by its prediction and misses by its measurement.
    low = next(bits for bits in kl if predicted[bits] < 0.98 * kl[bits])
    target = (predicted[low] + kl[low]) / 2
    alone = json.loads(succeed("fit", statistics, "-o", tmp_path / "alone", *WINDOWS, *curves, "--target-kl", target, "--json").out)
    assert "measured" not in alone and alone["target"]["bits"] <= float(low)
    found = json.loads(succeed(*line(tmp_path / "t", "--prompts", long, "--target-kl", target, *CURVES, "--json")).out)
    assert found["measured"]["kl"] <= target and found["target"]["bits"] > alone["target"]["bits"]
    assert manifest_of(tmp_path / "t")["provenance"]["target"]["bits"] == found["target"]["bits"]
    text = succeed(*line(tmp_path / "t2", "--prompts", long, "--target-kl", target, *CURVES))
    assert "above the target of" in text.err and "trying" in text.err and ": meets the target of" in last_sentence(text), str(text)


def test_the_statistics_of_an_earlier_run(line, small, tmp_path):
    run = line(tmp_path / "b", "--prompts", small, "--method", "oscar")
    succeed(*run)
    before = files_of(tmp_path)
    for p in (tmp_path / "b").iterdir():
        p.unlink()
    (tmp_path / "b").rmdir()
    refuse(USAGE, *run, names=["b.statistics.safetensors", "already exists"])
    result = succeed(*run, "--resume")
    assert "are taken from" in result.err and files_of(tmp_path) == before
    assert "is complete" in succeed(*run, "--resume").err and files_of(tmp_path) == before
    # The bundle gone again, other options: another run, which only --overwrite may replace.
    for p in (tmp_path / "b").iterdir():
        p.unlink()
    (tmp_path / "b").rmdir()
    for change in (["--seed", 3], ["--far-pairs", "none"]):
        refuse(USAGE, *run, "--resume", *change, names="other options")
    succeed(*run, "--resume", "--overwrite", "--seed", 3)
    assert metadata_of(tmp_path / "b.statistics.safetensors")["parts"][0]["options"]["seed"] == 3


def test_own_text_is_reproducible_and_recorded(line, tmp_path):
    jsonschema = pytest.importorskip("jsonschema")
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
        succeed(*line(tmp_path / name / "own", "--method", "balanced", "--seed", 4))
    assert files_of(tmp_path / "a") == files_of(tmp_path / "b")
    assert sorted(p.name for p in (tmp_path / "a").iterdir()) == ["own", "own.prompts.jsonl", "own.statistics.safetensors"]
    rows = [json.loads(row) for row in (tmp_path / "a" / "own.prompts.jsonl").read_text().splitlines()]
    assert [len(row["input_ids"]) for row in rows] == [125] * 4 and all(row["decoded"] for row in rows)
    assert rows[0]["input_ids"][0] == 8189 and "<|im_start|>user\n" in rows[1]["decoded"]
    metadata = metadata_of(tmp_path / "a" / "own.statistics.safetensors")
    jsonschema.validate(metadata, json.loads((SOURCE_DIR / "schemas" / "statistics.schema.json").read_text()))
    written = metadata["parts"][0]["prompts"]["written"]
    assert written["seed"] == 4 and written["temperature"] == 1 and written["chat_template"]

    assert written["sha256"] == hashlib.sha256((tmp_path / "a" / "own.prompts.jsonl").read_bytes()).hexdigest()
    assert manifest_of(tmp_path / "a" / "own")["provenance"]["collection"]["parts"][0]["prompts"]["written"] == written
    # Another seed writes another text; the file is one of prompts like others.
    succeed(*line(tmp_path / "c", "--method", "balanced", "--seed", 5))
    other = (tmp_path / "c.prompts.jsonl").read_text()
    assert json.loads(other.splitlines()[0])["input_ids"] != rows[0]["input_ids"]
    succeed(*line(tmp_path / "d", "--method", "balanced", "--seed", 4, "--prompts", tmp_path / "a" / "own.prompts.jsonl"))
    assert (tmp_path / "d" / "rotations.safetensors").read_bytes() == (tmp_path / "a" / "own" / "rotations.safetensors").read_bytes()


def test_a_base_model_without_chat_template(tmp_path):
    base = make_model(tmp_path / "base")
    (base / "tokenizer_config.json").unlink()
    succeed("fit", "--model", base, "-o", tmp_path / "b", *WINDOWS, *SHORT, "--method", "balanced", "--device", "cpu")
    rows = [json.loads(row)["decoded"] for row in (tmp_path / "b.prompts.jsonl").read_text().splitlines()]
    assert not any("<|im_start|>user" in row for row in rows)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGKILL])
def test_stopped_anywhere_the_bytes_are_the_same(number, line, tmp_path):
    """Text, statistics, curves and fit: a run that is stopped at random moments ends with the files of one that is not."""
    run = lambda folder: line(tmp_path / folder / "b", "--checkpoint-seconds", 0, "--allocate", "measured", *CURVES)
    (tmp_path / "whole").mkdir()
    begin = time.monotonic()
    succeed(*run("whole"))
    seconds = time.monotonic() - begin
    expected = files_of(tmp_path / "whole")
    (tmp_path / "parts").mkdir()
    source = random.Random(int(number))
    for share in (0.35, 0.6, 0.8):
        process = subprocess.Popen(command(*run("parts"), "--resume"), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        try:
            time.sleep(seconds * (share + source.uniform(-0.1, 0.1)))
            process.send_signal(number)
            _, err = process.communicate(timeout=120)
        finally:
            process.kill()
        if process.returncode == 0:
            break
        assert process.returncode in (INTERRUPTED, -number), err
        if process.returncode == INTERRUPTED:
            assert "--resume" in err, err
    if process.returncode != 0:
        succeed(*run("parts"), "--resume")
    assert files_of(tmp_path / "parts") == expected


def test_a_run_that_was_killed_while_it_cleaned_up_is_cleaned_up_after(line, small, tmp_path):
    """The state of collecting is removed file by file; what is left of it is found by what stands beside it."""
    run = line(tmp_path / "b", "--prompts", small, "--method", "oscar")
    succeed(*run)
    expected = tree(tmp_path)
    for left in (["removing.json", "hidden-1.bin", "lock"], ["removing.json"], ["lock"], []):
        work = tmp_path / "b.statistics.safetensors.work"
        work.mkdir()
        for name in left:
            (work / name).write_text("")
        succeed(*run, "--resume")
        assert tree(tmp_path) == expected, left


def test_a_run_that_was_stopped_behind_its_last_step_is_complete(line, tmp_path):
    """--resume finds the bundle, of which nothing is measured again; another bundle is not taken for it."""
    run = line(tmp_path / "b", "--allocate", "measured", *CURVES)
    succeed(*run)
    expected = files_of(tmp_path)
    again = succeed(*run, "--resume")
    assert "the bundle in" in again.err and "is complete" in again.err and "passes" not in again.err, again.err
    assert files_of(tmp_path) == expected
    holds = "holds a bundle of other statistics or options"
    refuse(USAGE, *run, "--resume", "--bits", 1.5, names=[tmp_path / "b", holds, "bits: 2.25 there, 1.5 in this run"])
    # Refused before anything is measured: without statistics, the first step would collect them again.
    statistics = tmp_path / "b.statistics.safetensors"
    statistics.rename(tmp_path / "kept")
    changes = {("--allocate", "analytic"): "allocate: measured there, analytic", ("--encoder", "minmax"): "encoder: search there",
               ("--preset", "smallest"): "target: nothing there, 0.04", ("--method", "oscar"): "method: waterfill there"}
    for change, names in changes.items():
        without = run[:run.index("--allocate")] if change[0] in ("--allocate", "--method") else run
        error = refuse(USAGE, *without, "--resume", *change, names=[holds, names])
        assert not statistics.exists(), error
    (tmp_path / "kept").rename(statistics)
    # With the statistics of other prompts, before the curves: nothing of them is left.
    other = line(tmp_path / "c", "--allocate", "measured", "--seed", 9, *CURVES)
    succeed(*other)
    shutil.rmtree(tmp_path / "c")
    shutil.copytree(tmp_path / "b", tmp_path / "c")
    refuse(USAGE, *other, "--resume", names=[tmp_path / "c", holds, "sha256 of the statistics"])
    assert not (tmp_path / "c.curves.work").exists()
    for path in tmp_path.glob("c*"):
        shutil.rmtree(path) if path.is_dir() else path.unlink()
    refuse(USAGE, *run, names=[tmp_path / "b", "already exists"])
    assert files_of(tmp_path) == expected


def test_curves_of_a_finished_run_belong_to_its_text(model, small, tmp_path):
    """--resume with another --text or --dtype does not take them."""
    other = tmp_path / "other.jsonl"
    other.write_text("".join(reversed(small.read_text().splitlines(True))))
    succeed("collect", "--model", model, "--prompts", small, "-o", tmp_path / "s", *SHORT, "--far-pairs", "16,32", "--device", "cpu")
    run = ["fit", tmp_path / "s", "-o", tmp_path / "b", *WINDOWS, "--model", model, "--device", "cpu", *CURVES]
    succeed(*run, "--text", small)
    assert "is complete" in succeed(*run, "--text", small, "--resume").err
    expected = files_of(tmp_path / "b")
    refuse(USAGE, *run, "--text", other, "--resume", names=[tmp_path / "b", "another text"])
    refuse(USAGE, *run, "--text", small, "--resume", "--dtype", "bfloat16", names=[tmp_path / "b", "another dtype"])
    assert files_of(tmp_path / "b") == expected


def planned(run):
    """Tokens that a run would collect, of prompts and of own text."""
    plan = json.loads(succeed(*run, "--dry-run", "--json").out)
    assert plan["own_text"] == (plan["plan"]["tokens"] > 480)
    return plan["plan"]["tokens"]


def test_own_text_beside_prompts(line, model, small, tmp_path):
    """The text comes first and takes nothing of the prompts' budget; two commands give the same statistics."""
    for none in (CURVES, ["--method", "oscar"], ["--method", "balanced"], ["--own-text", 0, *CURVES], ["--stream-layers", *CURVES]):
        assert planned(line(tmp_path / "b", "--prompts", small, *none)) == 480, none
    run = line(tmp_path / "b", "--prompts", small, "--own-text", 256, "--method", "balanced")
    plan = json.loads(succeed(*run, "--dry-run", "--json").out)
    assert plan["own_text"] and plan["plan"]["tokens"] == 256 + 480 and not list(tmp_path.iterdir())
    assert "collected  736 tokens" in succeed(*run).out
    own, kept = tmp_path / "b.prompts.jsonl", tmp_path / "b.statistics.safetensors"
    prompts = metadata_of(kept)["parts"][0]["prompts"]
    assert list(prompts["files"]) == [own.name, small.name]
    assert prompts["written"]["sha256"] == hashlib.sha256(own.read_bytes()).hexdigest()
    expected = files_of(tmp_path)
    succeed(*run, "--resume")
    assert files_of(tmp_path) == expected
    both = tmp_path / "both.safetensors"
    succeed("collect", "--model", model, "--prompts", own, "--prompts", small, "-o", both, "--tokens", 756, "--seq-len", 128,
            "--far-pairs", "16,32", "--device", "cpu")
    with safe_open(kept, "pt") as ours, safe_open(both, "pt") as theirs:
        assert list(ours.keys()) == list(theirs.keys())
        assert all(torch.equal(ours.get_tensor(key), theirs.get_tensor(key)) for key in ours.keys())
    refuse(USAGE, *line(tmp_path / "c", "--own-text", 256), names=["--own-text", "--prompts"])


def test_curves_are_measured_on_the_prompts(line, small, tmp_path):
    """Own text beside them is for the moments, unless the prompts are too short for one sequence."""
    alone = line(tmp_path / "a", "--prompts", small, *PROMPTS_ALONE, *CURVES)
    beside = line(tmp_path / "b", "--prompts", small, "--own-text", 600, *CURVES)
    short = line(tmp_path / "c", "--prompts", small, "--own-text", 600, "--curve-context", 500, "--curve-sequences", 1)
    text = {}
    for run in (alone, beside, short):
        succeed(*run)
        text[run[run.index("-o") + 1].name] = json.loads((run[run.index("-o") + 1] / "curves.json").read_text())["text"]
    assert text["a"] == text["b"] and text["a"]["name"] == "small.jsonl"
    assert text["c"]["name"] == "c.prompts.jsonl, small.jsonl" and text["c"]["sha256"] != text["a"]["sha256"]


def enlarge(model, layers, width):
    """Gives the model so many layers and MLPs so wide, in a file with holes in place of weights."""
    config, file = json.loads((model / "config.json").read_text()), model / "model.safetensors"
    with safe_open(file, "pt") as tensors:
        shapes = {name: tensors.get_slice(name).get_shape() for name in tensors.keys()}
    header, end = {}, 0
    for name, shape in shapes.items():
        if ".layers." in name and ".layers.0." not in name:
            continue
        shape = [width if size == config["intermediate_size"] and ".mlp." in name else size for size in shape]
        for copy in {name.replace(".layers.0.", f".layers.{layer}.") for layer in range(layers)}:
            header[copy] = {"dtype": "BF16", "shape": shape, "data_offsets": [end, end := end + 2 * math.prod(shape)]}
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    with open(file, "wb") as out:
        out.write(len(text).to_bytes(8, "little") + text)
        out.truncate(8 + len(text) + end)
    (model / "config.json").write_text(json.dumps({**config, "num_hidden_layers": layers, "intermediate_size": width}))


def test_large_models_measure_fewer_sequences_on_the_cpu(tmp_path):
    """By default, and by the size of the model rather than the speed of the machine."""
    prompts = tmp_path / "long.jsonl"
    prompts.write_text((json.dumps({"input_ids": [i * 37 % 8000 for i in range(1100)]}) + "\n") * 32)
    small, middle, larger, large = (make_model(tmp_path / name, max_position_embeddings=4096) for name in "smlx")
    for model, layers in ((middle, 55), (larger, 68), (large, 220)):
        enlarge(model, layers, 2048)

    def line(folder, *options):
        return "fit", "--model", folder, "--prompts", prompts, "-o", tmp_path / "b", "--tokens", 20000, "--device", "cpu", *options

    def run(folder, *options):
        return succeed(*line(folder, "--dry-run", *options)).out

    def planned(folder, *options):
        plan = json.loads(run(folder, "--json", *options))["curves"]
        return plan["sequences"], plan["context"], plan["profiles"], plan["dtype"]

    # Products in bfloat16 where the processor has instructions for them.
    fast = {"avx512_bf16", "amx_bf16"} & set(pathlib.Path("/proc/cpuinfo").read_text().split())
    dtype = "mixed" if fast else "float32"
    assert planned(small) == (8, 2048, 8, "float32") and planned(middle) == (4, 2048, 8, dtype)
    assert planned(larger) == (6, 1024, 3, dtype) and planned(large) == (4, 1024, 3, dtype)
    assert planned(large, "--curve-sequences", 8) == (8, 1024, 8, dtype)
    assert planned(large, "--curve-context", 512, "--dtype", "float32") == (4, 512, 8, "float32")
    assert planned(large, "--dtype", "bfloat16") == (4, 1024, 3, "bfloat16")

    # The plan says so, and names what is quicker and what is better, with its time.
    plan = json.loads(run(large, "--json"))
    ways = {way["options"]: way["seconds"] for way in plan["other_ways"]}
    full, none = "--curve-sequences 8 --curve-context 2048", "--allocate analytic"
    assert set(ways) == {full, none} and ways[none] < plan["seconds"] < ways[full]
    text, chosen = run(large), "a CPU would take long for 8 sequences of 2,048 tokens"
    assert chosen in text and f"{full}: about " in text and f"{none}: about " in text
    # So does the run itself, before it collects.
    real = subprocess.Popen(command(*line(large, "--seq-len", 2048)), stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
    timer = threading.Timer(120, real.kill)
    timer.start()
    said = itertools.takewhile(lambda each: none not in each, real.stderr)
    assert [chosen in each and "the run takes about" in each for each in said][-2:] == [True, False]  # and then `full`
    timer.cancel()
    real.kill()
    text = run(small, "--preset", "balanced")  # which needs curves
    assert "--curve-sequences 4 --curve-context 1024: about " in text and none not in text and chosen not in text


def test_text_that_memory_has_no_room_for(model, small, tmp_path):
    """Prompts need no room for text of the model's own, where none was asked for."""
    large = tmp_path / "large"
    shutil.copytree(model, large)
    enlarge(large, 200, 2**21)
    run = ["fit", "--model", large, "--prompts", small, "-o", tmp_path / "b", *WINDOWS, *SHORT, "--device", "cpu", *CURVES]
    plan = succeed(*run, "--dry-run")
    assert "480 tokens in 4 sequences" in plan.out, str(plan)
    refuse(ENVIRONMENT, *run, "--own-text", 100, names="pass fewer --tokens (or --own-text)")


def test_the_plan_has_the_phases_of_the_run(line, small, tmp_path):
    """Names and order are those of -v, and nothing that takes a tenth of the run is left out."""
    for i, options in enumerate([("--prompts", small, *CURVES), ("--allocate", "measured", *CURVES)]):
        plan = json.loads(succeed(*line(tmp_path / f"p{i}", *options, "--dry-run", "--json")).out)
        planned = [row["phase"] for row in plan["phases"]]
        ran = phases_of(succeed(*line(tmp_path / f"p{i}", *options, "-v")))
        wall = ran.pop("wall time")
        shown = [name for name in planned if name in ran]
        assert shown == [name for name in ran if name in planned], (planned, ran)
        assert {"weights", "forward", "moments", "curves"} <= set(shown) and ("own text" in planned) == (i == 1)
        # The phases that no plan lists: each is below 1 % of Gemma 3 270M's run, and may be a tenth of this short one.
        unplanned = {"starting", "statistics", "predictions", "saving", "spool", "synchronizing", "other"}
        large = {name.split(":")[0] for name, seconds in ran.items() if seconds > 0.1 * wall} - unplanned  # -v divides curves
        assert large <= set(planned), (planned, ran)
        assert all(row["seconds"] >= 0 for row in plan["phases"])
        assert plan["seconds"] == pytest.approx(sum(row["seconds"] for row in plan["phases"]))
        assert 0 < plan["seconds"] < 100 * wall  # machines are busy: the table of docs/oscar-fit.md has real comparisons
    text = succeed(*line(tmp_path / "t", "--prompts", small, *CURVES, "--dry-run")).out
    assert "time       about " in text and all(f"\n  {name}" in text for name in ("forward", "moments", "curves", "transforms"))


def test_a_dry_run_writes_nothing(line, small, tmp_path):
    with_prompts = succeed(*line(tmp_path / "b", "--prompts", small, *PROMPTS_ALONE, "--dry-run", *CURVES))
    assert "480 tokens in 4 sequences" in with_prompts.out and "curves " in with_prompts.out
    own = succeed(*line(tmp_path / "b", "--dry-run", "--allocate", "measured", *CURVES))
    assert "which the model writes itself" in own.out and "500 tokens" in own.out and "curves " in own.out
    high, low = succeed(*line(tmp_path / "b", "--dry-run")), succeed(*line(tmp_path / "b", "--dry-run", "--pareto", "2.25,1", *CURVES))
    assert "curves " not in high.out and "widths are analytic" in high.err and "curves " in low.out, f"{high}\n{low}"
    plan = json.loads(succeed(*line(tmp_path / "b", "--dry-run", "--json", "--method", "oscar")).out)
    assert plan["dry_run"] and plan["own_text"] and plan["plan"]["tokens"] == 500 and "curves" not in plan
    assert not list(tmp_path.iterdir())


def test_json_is_one_document(line, small, tmp_path):
    result = json.loads(succeed(*line(tmp_path / "b", "--prompts", small, "--method", "oscar", "--json")).out)
    assert result["method"] == "oscar" and result["statistics"] == str(tmp_path / "b.statistics.safetensors")


def test_refusals(line, model, small, statistics, tmp_path):
    out = tmp_path / "b"
    refuse(USAGE, "fit", "-o", out, names=["statistics file", "--model"])
    refuse(USAGE, "fit", "--model", model, names="--output")
    refuse(USAGE, "fit", "--model", model, "-o", out, "--for", "sglang-branch", "--windows", "60,256", names=["60,256", "multiples of 8"])
    refuse((USAGE, BAD_INPUT), "fit", "--model", statistics, "-o", out, names=[statistics])
    refuse(USAGE, "fit", statistics, "-o", out, "--prompts", small, names="--prompts")
    refuse(USAGE, "fit", statistics, "-o", out, "--tokens", 5, names="--tokens")
    refuse(USAGE, "fit", statistics, "-o", out, "--model", model, names="--model")
    refuse(BAD_INPUT, *line(out, "--prompts", tmp_path / "absent.jsonl"), names="absent.jsonl")
    refuse(BAD_INPUT, *line(out, "--prompts", statistics), names=[statistics.name])
    refuse(USAGE, *line(out, "--stream-layers"), names=["--stream-layers", "--prompts"])
    refuse(USAGE, *line(out, "--method", "oscar", "--text", small), names="--text")
    refuse(USAGE, *line(out, "--bits", 9), names="9")
    refuse(USAGE, *line(out, "--method", "oscar", "--bits", 2.3), names="is not possible")
    refuse(USAGE, "fit", statistics, "-o", out, "--method", "oscar", "--context", 100, names="--context")
    refuse(USAGE, *line(out, "--method", "oscar", "--pareto", "1,2"), names="--pareto")
    refuse(USAGE, *line(out, "--far-pairs", "a"), names="--far-pairs")
    # Before an hour of collecting, not behind it: too little text for curves of these windows.
    refuse(BAD_INPUT, "fit", "--model", model, "--prompts", small, *PROMPTS_ALONE, "-o", out, "--windows", "64,512", names="too few to leave")
    refuse(USAGE, *line("-", "--prompts", small), names="-o -")
    assert not list(tmp_path.iterdir())


def test_outputs_are_no_inputs(line, small, tmp_path):
    mine = tmp_path / "b.prompts.jsonl"
    mine.write_bytes(small.read_bytes())
    before = tree(tmp_path)
    refuse(USAGE, *line(tmp_path / "b", "--method", "oscar"), names=["b.prompts.jsonl", "already exists"])
    refuse(USAGE, *line(tmp_path / "b", "--method", "oscar", "--resume"), names=["b.prompts.jsonl", "--prompts"])
    refuse(USAGE, *line(tmp_path / "b", "--text", mine, "--overwrite"), names="b.prompts.jsonl")
    config = tmp_path / "c.statistics.safetensors"
    config.write_text("quiet = true\n")
    refuse(USAGE, *line(tmp_path / "c", "--config", config, "--overwrite"), names="c.statistics.safetensors")
    config.unlink()
    assert tree(tmp_path) == before
    # Prompts of that name may well be given.
    succeed(*line(tmp_path / "b", "--prompts", mine, "--method", "oscar"))
