"""docs/ci/gate.sh with commands that only write down how they were called: what it keeps, what it makes anew, what it passes on.
The page docs/ci.md runs it with the real ones."""
import fcntl
import os
import shutil
import subprocess

import pytest

from harness import SOURCE_DIR

COMMAND = """#!/bin/sh
[ "$1" = --version ] && {{ echo {name} 1; exit; }}
echo "{name} $*" >> {log}
case {name} in oscar-verify) exit ${{VERIFY_CODE:-0}};; esac
previous= && for word; do
  [ "$previous" = -o ] && {{ [ {name} = oscar-collect ] && echo moments > "$word" || mkdir -p "$word"; }}
  previous=$word
done
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


def names(calls):
    return [call.split()[0].removeprefix("oscar-") for call in calls]


def test_a_failed_gate_leaves_no_export_of_an_earlier_run(gate, tmp_path):
    assert names(gate()) == ["collect", "fit", "verify", "export"]
    assert (tmp_path / "oscar-ci/serving").is_dir()
    (tmp_path / "oscar-ci/report.json").write_text("{}")
    assert names(gate(code=1, VERIFY_CODE="1")) == ["fit", "verify"]
    assert not (tmp_path / "oscar-ci/serving").exists() and not (tmp_path / "oscar-ci/report.json").exists()


def test_only_a_failed_gate_ends_with_1(gate, tmp_path):
    """A run that cannot start says why with the exit codes of the commands, and leaves no export of an earlier run either."""
    (tmp_path / "file").write_text("")
    for code, sentence, settings in ((3, "'org/none' is neither a directory nor in the Hugging Face cache", {"MODEL": "org/none"}),
                                     (3, "'none.jsonl' is not a file", {"PROMPTS": "none.jsonl"})):
        gate()
        assert (tmp_path / "oscar-ci/serving").is_dir()
        assert sentence in gate(code=code, **settings) and not (tmp_path / "oscar-ci/serving").exists()
        assert sentence in gate("--key", code=code, **settings)
    assert "cannot be made" in gate(code=4, OUTPUT="file/x")
    assert "put the four commands in PATH" in gate(code=4, PATH="/usr/bin:/bin")


def test_two_runs_at_once_do_not_share_a_folder(gate, tmp_path):
    gate()
    with open(tmp_path / "oscar-ci/.lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        assert "another run uses the folder 'oscar-ci'" in gate(code=4)
        assert (tmp_path / "oscar-ci/serving").is_dir()  # of the run that holds the folder
    assert names(gate())[-1] == "export"


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


def test_the_key_of_a_model_in_the_hub_cache(gate, tmp_path):
    snapshots = tmp_path / ".cache/huggingface/hub/models--org--m"
    (snapshots / "refs").mkdir(parents=True), (snapshots / "snapshots").mkdir()
    (snapshots / "refs/main").write_text("abc")
    shutil.copytree(tmp_path / "model", snapshots / "snapshots/abc")
    assert gate("--key", MODEL="org/m") == gate("--key")
    (snapshots / "snapshots/abc/config.json").write_text("{}")
    assert gate("--key", MODEL="org/m") != gate("--key")
    assert not (tmp_path / "oscar-ci").exists()


def test_options_reach_the_commands(gate):
    calls = gate("--baseline", "old report.json", "--max-kl-increase", "0.01", FORMAT="vllm", MAX_KL="0.1", MAX_PPL_RATIO="1.02",
                 BASELINE="b.json", FIT_OPTIONS="--method waterfill --bits 3", COLLECT_OPTIONS="--seq-len 512")
    assert calls[0].endswith("--resume --seq-len 512") and "--method waterfill --bits 3" in calls[1] and "--for vllm" in calls[1]
    assert "--max-kl 0.1 --max-ppl-ratio 1.02 --baseline b.json" in calls[2]
    assert calls[2].endswith("--baseline old report.json --max-kl-increase 0.01")
    calls = gate()
    assert "--max-kl 0.05 --overwrite" in calls[2] and "--model model" in calls[3]
