"""scripts/reproduce: its plan, what it does again, what it reads of results and what its page says, with fake programs; and, where
lm-evaluation-harness is installed, names of tasks against its list and the whole command on a sample model."""
import json
import pathlib
import subprocess
import sys

import pytest

from conftest import BUILD_DIR, SAMPLES, SOURCE_DIR

sys.path.insert(0, str(SOURCE_DIR / "scripts"))
from reproduce_runs import benchmarks, command, options, results, steps  # noqa: E402

MODEL = SAMPLES / "tiny-qwen3"


class Programs:
    """subprocess.run of the steps: writes what the programs write, and notes which ran."""

    def __init__(self, scores, broken=()):
        self.scores, self.broken, self.ran = scores, set(broken), []

    def __call__(self, line, **given):
        if line[1:2] == ["-c"]:
            known = [task for b in benchmarks.PAPERS for task in b.tasks] + ["own"]
            return subprocess.CompletedProcess(line, 0, "\n" + json.dumps(known) if "TaskManager" in line[2] else "False", "")
        if "--version" in line:
            return subprocess.CompletedProcess(line, 0, "oscar-fit 1\n", "")
        name = pathlib.Path(line[0]).name
        place = pathlib.Path(line[line.index("-o") + 1]) if "-o" in line else None
        if name == "oscar-collect":
            place.write_bytes(b"statistics")
        elif name == "oscar-fit":
            place.mkdir()
            (place / "oscar_bundle.json").write_text(json.dumps(line))
        elif name == "oscar-verify":
            row = {"path": "prefill", "same_top1": 0.5, "bits_per_element": 2.25}
            report = {"methods": [row | {"id": "bundle-oscar", "kl": {"mean": 0.1}}, row | {"id": "bundle-waterfill", "kl": {"mean": 0.01}}]}
            pathlib.Path(line[line.index("--report") + 1]).write_text(json.dumps(report))
            pathlib.Path(line[line.index("--html") + 1]).write_text("<html>")
        else:
            name = self.harness(line)
        self.ran.append(name)
        if name in self.broken:
            given["stdout"].write(b"working\nRuntimeError: out of \x1b[31mmemory\n")
        return subprocess.CompletedProcess(line, 7 if name in self.broken else 0)

    def harness(self, line):
        arguments, tasks = json.loads(line[line.index("--model_args") + 1]), line[line.index("--tasks") + 1].split(",")
        cache = pathlib.Path(arguments["bundle"]).name.removeprefix("bundle-") if "bundle" in arguments else "bf16"
        folder = pathlib.Path(line[line.index("--output_path") + 1]) / "model"
        folder.mkdir(parents=True)
        seed, rows = int(line[line.index("--seed") + 1]), {}
        for i, task in enumerate(tasks):
            value = self.scores[cache] + 0.02 * seed + 0.001 * i
            rows[task] = {"alias": task, "exact_match_stderr,none": 0.5, "exact_match,none": value, "exact_match,flexible-extract": value,
                          "math_verify,none": value, "score,none": value, "4096,none": value,
                          "8192,none": -1, "16384,none": -1, "32768,none": -1}
        found = {"results": rows, "n-samples": {task: {"original": 500, "effective": 30} for task in tasks}}
        (folder / "results_2026.json").write_text(json.dumps(found))
        return f"{cache} {tasks[0]} {seed}"


@pytest.fixture
def reproduce(tmp_path, monkeypatch, capsys):
    """reproduce(programs, *options): the exit code, the JSON, the page and standard error."""
    prompts = tmp_path / "prompts.jsonl"
    prompts.write_text('{"text": "a"}\n')
    monkeypatch.setattr(options, "harness_version", lambda: "0.4.13")
    monkeypatch.setattr(command, "harness_version", lambda: "0.4.13")
    monkeypatch.setattr(command, "check_programs", lambda: None)

    def run(programs, *given):
        monkeypatch.setattr(subprocess, "run", programs)
        folder = tmp_path / "out"
        code = command.main("", [str(MODEL), "-o", str(folder), "--prompts", str(prompts), *given])
        return code, json.loads((folder / "reproduce.json").read_text()), (folder / "reproduce.html").read_text(), capsys.readouterr().err

    return run


SCORES = {"bf16": 0.70, "oscar": 0.60, "waterfill": 0.69}


def test_everything_once(reproduce):
    programs = Programs(SCORES)
    code, found, page, _ = reproduce(programs)
    assert code == 0 and programs.ran[:4] == ["oscar-collect", "oscar-fit", "oscar-fit", "oscar-verify"] and len(programs.ran) == 4 + 15
    rows = {row["title"]: row["caches"] for row in found["benchmarks"]}
    assert list(rows) == ["AIME25", "GPQA diamond", "MATH-500", "LongBench-E", "RULER, 4,096 tokens"]  # no document of 8,192
    assert rows["AIME25"]["oscar"]["score"] == pytest.approx(60) and rows["AIME25"]["bf16"]["documents"] == 30
    assert rows["LongBench-E"]["waterfill"]["score"] == pytest.approx(69 + 0.1 * 6) and len(rows["LongBench-E"]["bf16"]["runs"][0]["tasks"]) == 13
    assert "<td>60.00 (-10.00)</td>" in page and "<td>69.00 (-1.00)</td>" in page and "LiveCodeBench" in page and "no results of" not in page
    assert [row["kl"] for row in found["verify"]] == [0.1, 0.01]
    again = Programs(SCORES)
    assert reproduce(again)[0] == 0 and again.ran == []


def test_what_changed_is_done_again(reproduce):
    reproduce(Programs(SCORES), "--tasks", "aime25,own")
    other = Programs({"bf16": 0.5, "oscar": 0.5, "waterfill": 0.5})
    _, found, page, _ = reproduce(other, "--tasks", "aime25,own", "--limit", "3")
    assert other.ran == [f"{c} {t} 0" for t in ("aime25", "own") for c in ("bf16", "oscar", "waterfill")]
    assert {c["score"] for row in found["benchmarks"] for c in row["caches"].values()} == {50.0} and "no results of the benchmarks" in page
    bits = Programs(SCORES)
    reproduce(bits, "--tasks", "aime25,own", "--limit", "3", "--bits", "1.5")
    assert bits.ran == ["oscar-fit", "oscar-verify", "waterfill aime25 0", "waterfill own 0"]


def test_a_failure_is_named_and_the_rest_goes_on(reproduce):
    programs = Programs(SCORES, ["oscar minerva_math500 0"])
    code, found, page, err = reproduce(programs, "--tasks", "math-500,aime25")
    assert code == 1 and len(programs.ran) == 4 + 6
    [failure] = found["failures"]
    assert failure.startswith("runs/oscar/math-500/seed-0: the command ended with 7") and failure.endswith("RuntimeError: out of ?[31mmemory")
    assert "What failed" in page and failure in err
    row = found["benchmarks"][0]["caches"]
    assert set(row) == {"bf16", "waterfill"} and "<td>none</td>" in page
    programs = Programs(SCORES)
    assert reproduce(programs, "--tasks", "math-500,aime25")[0] == 0 and programs.ran == ["oscar minerva_math500 0"]


def test_without_bundles_nothing_else_runs(reproduce):
    programs = Programs(SCORES, ["oscar-fit"])
    code, found, _, _ = reproduce(programs)
    assert code == 1 and programs.ran == ["oscar-collect", "oscar-fit"] and found["benchmarks"] == []


def test_seeds_are_of_sampled_benchmarks(reproduce):
    programs = Programs(SCORES)
    _, found, page, _ = reproduce(programs, "--tasks", "aime25,longbench-e", "--seeds", "3")
    cell = found["benchmarks"][0]["caches"]["bf16"]
    assert cell["score"] == pytest.approx(72) and cell["stdev"] == pytest.approx(2) and "72.00 ± 2.0" in page
    assert found["benchmarks"][1]["caches"]["bf16"]["seeds"] == 1
    programs = Programs(SCORES)
    reproduce(programs, "--tasks", "aime25", "--seeds", "3", "--greedy")
    assert programs.ran == ["bf16 aime25 0", "oscar aime25 0", "waterfill aime25 0"]


def test_an_interrupted_step_goes_on_from_its_scratch(tmp_path):
    """What was left by the same command stays; what another command left does not."""
    runner, scratch = steps.Runner(tmp_path, lambda text: None), tmp_path / "work"
    look = [sys.executable, "-c", "import pathlib, sys; w = pathlib.Path(sys.argv[1]); w.mkdir(exist_ok=True); (w / 'part').write_text('x')\n"
            "sys.exit(9) if len(list(w.iterdir())) < 2 else pathlib.Path(sys.argv[2]).write_text('done')", str(scratch), str(tmp_path / "out")]
    step = steps.Step("one", look, [tmp_path / "out"], scratch=[scratch])
    with pytest.raises(steps.StepFailed, match="ended with 9"):
        runner.run(step)
    (scratch / "second").write_text("kept")
    assert runner.run(step)["code"] == 0 and runner.done(step)
    step.command = [*look, "changed"]
    with pytest.raises(steps.StepFailed, match="ended with 9"):
        runner.run(step)
    (tmp_path / "out").unlink(missing_ok=True)
    assert not runner.done(step)
    with pytest.raises(steps.StepFailed, match="no-such-program cannot be run"):
        runner.run(steps.Step("two", ["no-such-program"], []))


def test_text_of_others_is_escaped(reproduce):
    _, _, page, _ = reproduce(Programs(SCORES), "--tasks", "own", "--think-end", "</think><script>")
    assert "<script>" not in page and "&lt;/think&gt;&lt;script&gt;" in page


@pytest.mark.parametrize("text,sentence", [("[]", "no object"), ("{", "expected"), ('{"results": {}}', "no results of the task 'aime25'"),
                                           ('{"results": {"aime25": {"exact_match,none": NaN}}}', "no number 'exact_match,none'")])
def test_results_that_are_none(tmp_path, text, sentence):
    (tmp_path / "results_1.json").write_text(text)
    with pytest.raises(results.Unreadable, match=sentence):
        results.scores(benchmarks.PAPERS[0], tmp_path)


@pytest.mark.parametrize("given,code,sentence", [
    (["nowhere/at/all"], 3, "no folder and no org/name"), ([str(SAMPLES)], 3, "holds no config.json"),
    ([str(MODEL), "--prompts", "none.jsonl"], 3, "none.jsonl: does not exist"), ([str(MODEL), "--tasks", "nonsense"], 3, "no task 'nonsense'"),
    ([str(MODEL), "--include-path", str(MODEL)], 3, "holds no .yaml")])
def test_bad_input(given, code, sentence, monkeypatch, capsys):
    monkeypatch.setattr(options, "harness_version", lambda: "0.4.13")
    monkeypatch.setattr(subprocess, "run", Programs(SCORES))
    assert command.main("", given) == code
    assert sentence in capsys.readouterr().err


@pytest.mark.parametrize("given", [["--limit", "0"], ["--dtype", "float16"], ["--ruler-lengths", "4k"], ["--tasks", ","]])
def test_bad_options(given):
    with pytest.raises(SystemExit) as end:
        command.main("", [str(MODEL), *given])
    assert end.value.code == 2


def test_without_the_harness(monkeypatch, capsys):
    monkeypatch.setattr(options, "harness_version", lambda: None)
    monkeypatch.setattr(command, "harness_version", lambda: None)
    assert command.main("", [str(MODEL), "--device", "cpu"]) == 4
    assert "requirements-reproduce.txt" in capsys.readouterr().err
    assert command.main("", [str(MODEL), "--device", "cpu", "--dry-run", "--tasks", "gpqa-diamond"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line for line in lines if "LiveCodeBench" in line] and len([line for line in lines if "gpqa_diamond_cot_zeroshot" in line]) == 3
    assert "--clip 0.96,0.92" in lines[1] and "--encoder minmax" in lines[1] and "--method waterfill" in lines[0]


def test_tasks_and_datasets_are_those_of_the_harness():
    pytest.importorskip("lm_eval")
    import lm_eval.tasks
    known, folder = set(lm_eval.tasks.TaskManager().all_tasks), pathlib.Path(lm_eval.tasks.__file__).parent
    texts = {path.name: path.read_text(encoding="utf-8") for path in folder.rglob("*") if path.suffix == ".yaml" or path.name.endswith("_yaml")}
    for benchmark in benchmarks.PAPERS:
        assert [task for task in benchmark.tasks if task not in known] == []
        if "/" in benchmark.dataset:
            assert any(f"dataset_path: {benchmark.dataset}\n" in text for text in texts.values()), benchmark.dataset
    assert not any("livecodebench" in name.lower() for name in known)


OWN_TASK = """task: small_answer
dataset_path: json
dataset_kwargs: {{data_files: {{test: {file}}}}}
test_split: test
output_type: generate_until
doc_to_text: '{{{{text}}}}'
doc_to_target: '{{{{answer}}}}'
generation_kwargs: {{max_gen_toks: 4, do_sample: false, until: []}}
metric_list:
  - metric: exact_match
metadata: {{version: 1}}
"""


def test_the_whole_command_on_a_sample_model(tmp_path):
    pytest.importorskip("lm_eval")
    pytest.importorskip("torch")
    text = (SAMPLES / "heldout.txt").read_text()
    rows = [{"text": text[i:i + 300], "answer": text[i + 300:i + 310]} for i in (0, 300)]
    (tmp_path / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    (tmp_path / "small_answer.yaml").write_text(OWN_TASK.format(file=tmp_path / "rows.jsonl"))
    line = [sys.executable, SOURCE_DIR / "scripts" / "reproduce", MODEL, "-o", tmp_path / "out", "--prompts", SAMPLES / "prompts.jsonl", "--tasks",
            "small_answer", "--include-path", tmp_path, "--tokens", "2000", "--windows", "16,48", "--allocate", "closed", "--context", "256", "--text-tokens", "2048",
            "--dtype", "float32", "--device", "cpu", "--limit", "2"]
    import os
    environment = os.environ | {"HF_HOME": str(tmp_path / "hub"), "HF_HUB_OFFLINE": "1", "HF_DATASETS_OFFLINE": "1", "OSCAR_BUILD_DIR": str(BUILD_DIR)}
    done = subprocess.run(list(map(str, line)), capture_output=True, text=True, env=environment)
    assert done.returncode == 0, done.stderr[-3000:]
    found = json.loads((tmp_path / "out" / "reproduce.json").read_text())
    [row] = found["benchmarks"]
    assert set(row["caches"]) == {"bf16", "oscar", "waterfill"} and all(c["documents"] == 2 for c in row["caches"].values())
    kl = {r["id"]: r["kl"] for r in found["verify"]}
    assert 0 < kl["bundle-waterfill"] < kl["bundle-oscar"]
    assert "small_answer" in (tmp_path / "out" / "reproduce.html").read_text()
    again = subprocess.run(list(map(str, line)), capture_output=True, text=True, env=environment)
    assert again.returncode == 0 and again.stderr.count("done before") == 7, again.stderr
