"""scripts/study on a sample model: what it downloads is not tried here; what it measures, resumes and writes of its lines is."""
import json
import shutil
import subprocess
import sys

import pytest

from harness import BUILD_DIR, SAMPLE, SOURCE_DIR

sys.path.insert(0, str(SOURCE_DIR / "tests/bench/real"))
import grade  # noqa: E402
import kinds  # noqa: E402
import page  # noqa: E402
import table  # noqa: E402


def run(out, *options):
    command = [sys.executable, SOURCE_DIR / "scripts/study", "-o", out, "--models", SAMPLE / "tiny-llama", "--lengths", "384,512", "--kinds", "agent,code",
               "--bits", "2.25,1.5", "--methods", "bf16,fp8,turboquant4,oscar", "--tokens", "1024", "--device", "cpu", "--build", BUILD_DIR, "--steps", "judge",
               "--fit-options", "--tokens 1500 --allocate analytic --context 704", *options]
    return subprocess.run(list(map(str, command)), capture_output=True, text=True)


@pytest.fixture(scope="module")
def studied(tmp_path_factory):
    out = tmp_path_factory.mktemp("study")
    (out / "texts").mkdir()
    heldout = (SAMPLE / "heldout.txt").read_text()
    shutil.copy(SAMPLE / "prompts.jsonl", out / "texts/agent_calib.jsonl")
    for kind, text in (("agent", heldout), ("code", heldout[::-1])):
        (out / "texts" / f"{kind}_eval.txt").write_text(text)
    (out / "texts/sessions.json").write_text("[]")
    before = run(out, "--dry-run")
    assert before.stdout.splitlines() == [
        "tiny-llama: texts (has a line)", "tiny-llama: model (has a line)", "tiny-llama: fit", "tiny-llama: judge agent 384", "tiny-llama: judge code 384",
        "tiny-llama: judge agent 512", "tiny-llama: judge code 512"], before.stderr
    done = run(out)
    assert done.returncode == 0, done.stderr
    return out


def lines(out):
    return [json.loads(line) for line in (out / "study_tiny-llama.jsonl").read_text().splitlines()]


def test_every_measurement_is_a_line(studied):
    fit, *judged = lines(studied)
    assert fit["study"] == "fit" and fit["measured"]["2.25"]["text"] == "held-out prompts"
    assert [(line["kind"], line["context"], line["sequences"]) for line in judged] == [("agent", 384, 2), ("code", 384, 2), ("agent", 512, 2), ("code", 512, 2)]
    for line in judged:
        report = json.loads((studied / "tiny-llama" / f"agent-{line['kind']}-{line['context']}.json").read_text())
        methods = {method["id"]: method for method in report["methods"]}
        assert {row["row"] for row in line["rows"]} == {"fp8", "turboquant4", "oscar", "bits-2.25", "bits-1.5"}
        for row in line["rows"]:
            assert row["kl"] == methods[row["row"]]["kl"]["mean"] and row["p999"] == methods[row["row"]]["kl"]["p999"]
        assert line["command"].startswith("oscar-verify --model tiny-llama") and str(studied) not in line["command"] and line["card"] == "cpu"


def test_only_what_has_no_line_is_measured_again(studied):
    file = studied / "study_tiny-llama.jsonl"
    kept = file.read_text().splitlines()
    file.write_text("\n".join(kept[:-1]) + "\n")
    stopped = run(studied, "--seconds", "0")
    assert stopped.returncode == 3 and "call it again: tiny-llama misses judge code 512" in stopped.stderr
    again = run(studied)
    assert again.returncode == 0 and again.stdout.count("$ ") == 1, again.stdout
    made = lines(studied)
    assert len(made) == len(kept) and made[-1]["rows"] == json.loads(kept[-1])["rows"]
    (studied / "texts/code_eval.txt").unlink()
    file.write_text("\n".join(kept[:-1]) + "\n")
    failed = run(studied)
    assert failed.returncode == 1 and "judge code 512 ended with code 3" in failed.stderr
    file.write_text("\n".join(kept) + "\n")


def test_what_engines_will_decode_is_predicted(studied, tmp_path):
    shutil.copytree(studied, tmp_path, dirs_exist_ok=True, symlinks=True)
    (tmp_path / "texts/agent_eval.txt").write_text((SAMPLE / "heldout.txt").read_text()[:12000])
    done = run(tmp_path, "--steps", "predict")
    assert done.returncode == 0, done.stderr
    predicted = {line["cache"]: line for line in lines(tmp_path) if line["study"] == "predict"}
    methods = json.loads((tmp_path / "tiny-llama/predicted.json").read_text())["methods"]
    decoded = {method["id"]: method["kl"]["mean"] for method in methods if method["path"] == "decode"}
    assert {name: line["kl"] for name, line in predicted.items()} == {name: decoded[name] for name in ("bits-2.25", "bits-1.5")}
    assert "--decode-last 64" in predicted["bits-1.5"]["command"] and 0 < decoded["bits-2.25"] < decoded["bits-1.5"]
    assert run(tmp_path, "--steps", "predict").stdout == ""


def test_page_of_the_lines(studied, tmp_path):
    served = {"study": "serve", "model": "tiny-llama", "card": "a card", "engine": "vllm", "versions": "vllm 0", "variant": "", "kl_served_2112_40": .0003}
    tasks = served | {"he_behind": "3 of 4", "he_behind_answers": {"tokens": 20.4, "endless": .25, "degenerate": 0.0}}
    ours = served | {"cache": "bits-2.25", "kl_served_2112_40": .0021, "differ_from_one": "1 of 48", "degenerate": 2}
    added = (tasks | {"cache": "bf16", "he_behind_again": "2 of 4", "he_behind_again_lost_won_p": [1, 0, 1.0], "differ_from_one": "0 of 0"},
             tasks | {"cache": "turboquant_4bit_nc", "differ_from_one": "3 of 48", "he_behind": "0 of 4", "he_behind_lost_won_p": [3, 0, .25]},
             ours | {"kl_served_2112_40": .9, "he": "1 of 4"}, ours, ours | {"variant": "prefix", "kl_served_2112_40_again": .0024},
             ours | {"engine": "sglang", "versions": "sglang 0"}, {"study": "predict", "model": "tiny-llama", "cache": "bits-2.25", "kl": .002})
    shutil.copy(studied / "study_tiny-llama.jsonl", tmp_path)
    with (tmp_path / "study_tiny-llama.jsonl").open("a") as file:
        file.writelines(json.dumps(line) + "\n" for line in added)
    found = page.Results(tmp_path)
    text, images = page.page(found)
    judged = {(line["kind"], line["context"]): {row["row"]: row for row in line["rows"]} for line in lines(studied) if line["study"] == "judge"}
    mean = sum(judged[kind, 512]["fp8"]["kl"] for kind in ("agent", "code")) / 2
    row = next(line for line in text.splitlines() if line.startswith("| `fp8` | 8.00"))
    assert f"| {mean:.3g} |" in row and f"{max(judged[kind, 512]['fp8']['p999'] for kind in ('agent', 'code')):.3g}" in row
    assert "| cache | agent sessions | code |" in text and "| `turboquant4` |  | 0 of 4 (3, 0, 0.25) |" in text
    assert "In engines: sglang 0, a card; vllm 0, a card." in text and "| `waterfill`, 2.25 bits | 1 of 4 |  |" in text
    for row in ("| vLLM, BF16 | 0.0003 |  |  |  |", "| vLLM, `turboquant4` | 0.0003 |  | 3 of 48 |  |", "| vLLM, `waterfill`, 2.25 bits | 0.0021 | 0.002 | 1 of 48 | 2 |",
                "| vLLM, `waterfill`, 2.25 bits, prefix hits | 0.0024 |  | 1 of 48 | 2 |", "| SGLang, `waterfill`, 2.25 bits | 0.0021 | 0.002 | 1 of 48 | 2 |"):
        assert row in text, row
    assert "loses 1 and wins 0 of these tasks (p 1)" in text and "| BF16 | 20 | 25.0% | 0.0% |" in text
    assert set(images) == {"tiny-llama-bits.svg", "tiny-llama-position.svg", "tiny-llama-tasks.svg"}
    assert images["tiny-llama-bits.svg"].count("<polyline") == 1 and images["tiny-llama-position.svg"].count("<polyline") == 4
    front = page.front(found)
    assert "| BF16 | 16.00 | 1.0x | 0 | 3 of 4 | 2,700 |" in front and front.startswith("| cache | code bits | smaller |")


def test_grades_of_calls_quotes_and_variables():
    wanted = {"tool": "run", "tools": {"run": [["cmd"], ["cmd", "dir"]], "read": [["file"], ["file"]]}}
    answers = {' run({"cmd": "ls", "dir": "/"})]': (True, True, True), ' run({"cmd": "ls"': (False, True, False), ' read({"file": "a"})]': (True, False, True),
               ' run({"dir": "/"})]': (True, True, False), ' run({"cmd": "ls", "x": 1})]': (True, True, False), " I think": (False, False, False),
               ' other({"a": 1})': (True, False, False)}
    for text, found in answers.items():
        assert grade.next_call(text, wanted) == found, text
    assert grade.calls([{"text": text} for text in answers], [wanted] * len(answers)) == [True] + [False] * 6
    assert grade.variables([{"text": "VAR_1, VAR_2"}, {"text": "VAR_1 VAR_3"}], [["VAR_2", "VAR_1"], ["VAR_1", "VAR_2"]]) == [True, False]
    assert grade.quotes([{"text": "```\n  a b\n    c\n```"}, {"text": "a b"}], ["  a b\n    c", "a b\nc"]) == [True, False]
    assert table.answers_of({"he": [{"ids": [1] * 512}, {"ids": [*range(10)]}], "most": {"he": 512}}, "he") == {
        "tokens": 261.0, "endless": .5, "degenerate": .5}
    assert kinds.calls('x [Tool: run({"cmd": "a"})] [Tool: no({broken})]') == [("run", {"cmd": "a"}), ("no", None)]
    assert kinds.as_json([{"role": "user", "content": "u"}, {"role": "assistant", "content": '[Tool: run({"cmd": "a"})]'}, {"role": "user", "content": "r"}]
                         ).splitlines() == ['{"type": "function", "function": {"name": "run", "arguments": {"cmd": "a"}}}', '{"role": "tool", "content": "r"}']
