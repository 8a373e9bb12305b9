"""docs/ci/gate.sh and the job of docs/ci/workflow.yml with commands that only write down how they were called: what they keep, what
they make anew, what they pass on. The page docs/ci.md runs gate.sh with the real ones."""
import fcntl
import os
import re
import shutil
import subprocess

import pytest

from harness import SOURCE_DIR
from workflow_runner import Job

COMMAND = """#!/bin/sh
[ "$1" = --version ] && {{ echo {name} 1; exit; }}
echo "{name} $*" >> {log}
previous= && for word; do
  case {name}:$previous in
    oscar-collect:-o | oscar-verify:--report | oscar-verify:--html | oscar-verify:--markdown | oscar-verify:--junit) echo "{name}" > "$word" ;;
    *:-o) mkdir -p "$word" && echo "{name}" > "$word/file" ;;
  esac
  previous=$word
done
case {name} in oscar-verify) exit ${{VERIFY_CODE:-0}};; esac
"""


@pytest.fixture
def gate(tmp_path):
    """gate(*arguments, code=0, **settings): the calls of the commands, one a line."""
    log, bin_dir = tmp_path / "log", tmp_path / "bin"
    bin_dir.mkdir()
    for name in ("oscar-collect", "oscar-fit", "oscar-verify", "oscar-export"):
        (bin_dir / name).write_text(COMMAND.format(name=name, log=log))
        (bin_dir / name).chmod(0o755)
    shutil.copytree(SOURCE_DIR / "sample_data" / "tiny-qwen3", tmp_path / "model")
    (tmp_path / "prompts.jsonl").write_text('{"text": "a"}\n')
    for name in ("text.txt", "b.json"):
        (tmp_path / name).write_text("{}")

    def run(*arguments, code=0, **settings):
        log.write_text("")
        environment = {"PATH": f"{bin_dir}:{os.environ['PATH']}", "HOME": str(tmp_path), "MODEL": "model", "PROMPTS": "prompts.jsonl",
                       "TEXT": "text.txt", **settings}
        done = subprocess.run(["sh", SOURCE_DIR / "docs/ci/gate.sh", *arguments], cwd=tmp_path, env=environment, capture_output=True, text=True)
        assert done.returncode == code, done.stderr
        if code > 1:
            return done.stderr
        return done.stdout.strip() if "--key" in arguments else log.read_text().splitlines()

    return run


@pytest.fixture
def job(gate, tmp_path):
    """job(**variables): a run of the workflow's job in a fresh checkout, as (Job, names of the commands that it called)."""
    yaml = pytest.importorskip("yaml")
    steps = yaml.safe_load((SOURCE_DIR / "docs/ci/workflow.yml").read_text())["jobs"]["gate"]
    shutil.copy(SOURCE_DIR / "docs/ci/gate.sh", tmp_path / "bin")  # as in the image
    (tmp_path / "bin/gate.sh").chmod(0o755)
    (tmp_path / "cache").mkdir()

    def run(**variables):
        (tmp_path / "log").write_text("")
        shutil.rmtree(tmp_path / "checkout", ignore_errors=True)
        (tmp_path / "checkout/calibration").mkdir(parents=True)
        shutil.copy(tmp_path / "prompts.jsonl", tmp_path / "checkout/calibration")
        shutil.copy(tmp_path / "text.txt", tmp_path / "checkout/calibration/heldout.txt")
        variables = {"PATH": f"{tmp_path}/bin:{os.environ['PATH']}", "HOME": str(tmp_path), "MODEL": str(tmp_path / "model"), **variables}
        done = Job(steps, tmp_path / "checkout", tmp_path / "cache", variables)
        return done, names((tmp_path / "log").read_text().splitlines())

    return run


def names(calls):
    return [call.split()[0].removeprefix("oscar-") for call in calls]


def test_a_failed_gate_leaves_no_export_of_an_earlier_run(gate, tmp_path):
    assert names(gate()) == ["collect", "fit", "verify", "export"]
    assert (tmp_path / "oscar-ci/serving").is_dir()
    (tmp_path / "oscar-ci/report.json").write_text("{}")
    assert names(gate(code=1, VERIFY_CODE="1")) == ["fit", "verify"]
    assert not (tmp_path / "oscar-ci/serving").exists() and (tmp_path / "oscar-ci/report.json").read_text() == "oscar-verify\n"


def test_only_a_failed_gate_ends_with_1(gate, tmp_path):
    """A run that cannot start says why with the exit codes of the commands, and leaves no export of an earlier run either."""
    (tmp_path / "file").write_text("")
    for code, sentence, settings in ((3, "'org/none' is neither a directory nor in the Hugging Face cache", {"MODEL": "org/none"}),
                                     (3, "'/models/none' is not a directory that this job sees", {"MODEL": "/models/none"}),
                                     (3, "'none.jsonl' is not a file", {"PROMPTS": "none.jsonl"})):
        gate()
        assert (tmp_path / "oscar-ci/serving").is_dir()
        assert sentence in gate(code=code, **settings) and not (tmp_path / "oscar-ci/serving").exists()
        assert sentence in gate("--key", code=code, **settings)
    for name in ("TEXT", "BASELINE"):  # told before the calibration
        gate()
        assert f"{name} 'none' is not a file" in gate(code=3, **{name: "none"}) and not (tmp_path / "oscar-ci/serving").exists()
        assert (tmp_path / "log").read_text() == ""
    assert "cannot be made" in gate(code=4, OUTPUT="file/x")
    assert "put the four commands in PATH" in gate(code=4, PATH="/usr/bin:/bin")


def test_two_runs_at_once_do_not_share_a_folder(gate, tmp_path):
    gate()
    with open(tmp_path / "oscar-ci/.lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        assert "another run uses the folder 'oscar-ci'" in gate(code=4)
        assert (tmp_path / "oscar-ci/serving").is_dir()  # of the run that holds the folder
    assert names(gate())[-1] == "export"


def test_what_a_killed_evaluation_left_does_not_stop_the_next_run(gate, tmp_path):
    gate()
    (tmp_path / "oscar-ci/report.json.work").mkdir()  # oscar-verify would ask for --resume
    gate()
    assert not (tmp_path / "oscar-ci/report.json.work").exists()


def test_a_format_without_a_card_gets_no_report(gate):
    assert "--report" in gate()[-1] and "--report" not in gate(FORMAT="absorbed")[-1]


def test_statistics_are_of_the_inputs_or_made_anew(gate, tmp_path):
    assert "collect" in names(gate()) and "collect" not in names(gate())
    assert "collect" in names(gate(TOKENS="6000"))
    assert "collect" in names(gate(COLLECT_OPTIONS="--seq-len 512"))
    (tmp_path / "prompts.jsonl").write_text('{"text": "b"}\n')
    assert "collect" in names(gate()) and "collect" not in names(gate())
    (tmp_path / "prompts.txt").write_bytes((tmp_path / "prompts.jsonl").read_bytes())
    assert gate("--key", PROMPTS="prompts.txt") != gate("--key")  # the name says how it is read
    weights = tmp_path / "model/model.safetensors"
    data = bytearray(weights.read_bytes())
    data[len(data) // 3] ^= 1
    weights.write_bytes(data)
    assert "collect" in names(gate())
    config = tmp_path / "model/config.json"
    config.write_text(config.read_text() + " ")
    assert "collect" in names(gate())
    (tmp_path / "model/additional_chat_templates").mkdir()
    (tmp_path / "model/additional_chat_templates/tool_use.jinja").write_text("{{ messages }}")
    assert "collect" in names(gate())


def test_the_key_of_a_model_in_the_hub_cache(gate, tmp_path):
    snapshots = tmp_path / ".cache/huggingface/hub/models--org--m"
    (snapshots / "refs").mkdir(parents=True), (snapshots / "snapshots").mkdir()
    (snapshots / "refs/main").write_text("abc")
    shutil.copytree(tmp_path / "model", snapshots / "snapshots/abc")
    assert gate("--key", MODEL="org/m") == gate("--key")
    (snapshots / "snapshots/abc/config.json").write_text("{}")
    assert gate("--key", MODEL="org/m") != gate("--key")
    assert not (tmp_path / "oscar-ci").exists()


def test_the_allocation_is_that_of_the_command(gate, tmp_path):
    """Measured on the prompts, where the method allocates bits; ALLOCATE=analytic runs no model."""
    assert "--allocate auto --model model --text prompts.jsonl" in gate()[1]
    fit = gate(ALLOCATE="analytic", FIT_OPTIONS="--bits 3")[0]
    assert fit.startswith("oscar-fit ") and "--model" not in fit and "--text" not in fit and fit.endswith("--bits 3")
    assert "ALLOCATE is 'closed', expected measured or analytic" in gate(code=2, ALLOCATE="closed")
    (tmp_path / "oscar-ci/bundle.curves.work").mkdir()  # oscar-fit would ask for --resume
    gate()
    assert not (tmp_path / "oscar-ci/bundle.curves.work").exists()


def test_options_reach_the_commands(gate):
    calls = gate("--baseline", "old report.json", "--max-kl-increase", "0.01", FORMAT="vllm", MAX_KL="0.1", MAX_PPL_RATIO="1.02",
                 BASELINE="b.json", FIT_OPTIONS="--method waterfill --bits 3", COLLECT_OPTIONS="--seq-len 512")
    assert calls[0].endswith("--resume --seq-len 512") and "--method waterfill --bits 3" in calls[1] and "--for vllm" in calls[1]
    assert "--max-kl 0.1 --max-ppl-ratio 1.02 --baseline b.json" in calls[2]
    assert calls[2].endswith("--baseline old report.json --max-kl-increase 0.01")
    calls = gate()
    assert "--max-kl 0.05 --overwrite" in calls[2] and "--model model" in calls[3]


GATE, SAVE, SERVING = "Calibrate, fit, evaluate, export", "Keep the statistics", "Serving files"
REPORTS = {f"oscar-ci/{name}" for name in ("report.json", "report.html", "summary.md", "gates.xml")}


def test_the_job_uploads_serving_files_only_if_the_gate_passed(job):
    done, calls = job()
    assert done.ok and calls == ["collect", "fit", "verify", "export"], done.messages
    assert done.artifacts == {"kv-cache-reports": REPORTS, "kv-cache": {"oscar-ci/bundle/file", "oscar-ci/serving/file"}}
    assert done.summary == "oscar-verify\n"
    done, calls = job(VERIFY_CODE="1")
    assert not done.ok and calls == ["fit", "verify"] and done.outcomes[SERVING] == "skipped"
    assert done.artifacts == {"kv-cache-reports": REPORTS} and done.summary == "oscar-verify\n"


def test_the_job_keeps_statistics_also_after_a_failed_gate(job, tmp_path):
    done, calls = job(VERIFY_CODE="1")
    assert calls == ["collect", "fit", "verify"] and done.outcomes[SAVE] == "success"
    done, calls = job(FIT_OPTIONS="--bits 3")
    assert done.ok and calls == ["fit", "verify", "export"] and done.outcomes[SAVE] == "skipped"
    (tmp_path / "prompts.jsonl").write_text('{"text": "b"}\n')
    done, calls = job()
    assert "collect" in calls and len(list((tmp_path / "cache").iterdir())) == 2


def test_a_job_that_cannot_start_keeps_and_uploads_nothing(job, tmp_path):
    done, calls = job(MODEL="org/none")
    assert not done.ok and calls == [] and done.outcomes[GATE] == "skipped" and done.outcomes[SAVE] == "skipped"
    assert not any(done.artifacts.values()) and not list((tmp_path / "cache").iterdir()) and done.summary == ""


def test_the_image_copies_what_exists_and_no_build_of_this_machine():
    """Each folder that the image takes from the checkout exists, and what no checkout has stays out of it."""
    lines = (SOURCE_DIR / "docs/ci/Containerfile").read_text().splitlines()
    sources = [line.split()[1] for line in lines if line.startswith("COPY ") and "--from" not in line]
    assert "docs/ci/gate.sh" in sources and all((SOURCE_DIR / source).exists() for source in sources)
    ignored = {line.strip("/").removeprefix("**/") for line in (SOURCE_DIR / ".dockerignore").read_text().splitlines() if line[0] != "#"}
    assert ignored == {line.strip("/") for line in (SOURCE_DIR / ".gitignore").read_text().splitlines()}
    # gate.sh comes to where the shell finds it, since the workflow calls it by its name.
    assert re.search(r"COPY docs/ci/gate.sh /usr/local/bin/gate.sh$", "\n".join(lines), re.MULTILINE)
    assert os.access(SOURCE_DIR / "docs/ci/gate.sh", os.X_OK)
