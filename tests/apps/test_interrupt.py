"""Interrupted, killed and competing runs of oscar-collect: the output is the same bytes, or absent."""
import json
import random
import signal
import subprocess
import time

import pytest

from harness import ENVIRONMENT, INTERRUPTED, USAGE, SAMPLE, command, refuse, run, stop_after, succeed, tree

TOKENS = ["--tokens", 3000, "--seq-len", 256]


@pytest.fixture(scope="module")
def long_prompts(tmp_path_factory):
    """Enough work for a run of some seconds."""
    path = tmp_path_factory.mktemp("long") / "prompts.jsonl"
    source = random.Random(1)
    rows = [{"input_ids": [source.randrange(8000) for _ in range(300)]} for _ in range(10)]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


@pytest.fixture(scope="module")
def line(long_prompts):
    return lambda output, *more: ["collect", "--model", SAMPLE / "tiny-qwen3", "--prompts", long_prompts, "-o", output, *TOKENS,
                                  "--checkpoint-seconds", 0, *more]


@pytest.fixture(scope="module")
def reference(line, tmp_path_factory):
    folder = tmp_path_factory.mktemp("reference")
    begin = time.monotonic()
    succeed(*line(folder / "s.safetensors"))
    return (folder / "s.safetensors").read_bytes(), time.monotonic() - begin


@pytest.mark.parametrize("share", [0.3, 0.6, 0.9])
def test_interrupt_and_resume(share, line, reference, tmp_path):
    expected, seconds = reference
    output = tmp_path / "s.safetensors"
    code, out, err = stop_after(line(output), seconds * share, signal.SIGINT)
    if code == 0:
        assert output.read_bytes() == expected
        pytest.skip("the run ended before the signal")
    assert code in (INTERRUPTED, -signal.SIGINT), err  # the default action before the handler is installed
    assert not output.exists()
    if code == INTERRUPTED:
        early = "interrupted while prompts were read; run the command again"  # nothing is saved yet, on a slow machine
        assert ("--resume" in err or early in err) and "Traceback" not in err, err
    succeed(*line(output, "--resume"))
    assert output.read_bytes() == expected
    assert list(tree(tmp_path)) == ["s.safetensors"], "the work directory was not removed"


@pytest.mark.parametrize("seed", range(4))
def test_kill_and_resume(seed, line, reference, tmp_path):
    """SIGKILL at random moments, as often as it takes: the output is byte-identical to an uninterrupted run."""
    expected, seconds = reference
    output = tmp_path / "s.safetensors"
    source = random.Random(seed)
    for _ in range(3):
        stop_after(line(output, "--resume"), source.uniform(0.2, 0.9) * seconds, signal.SIGKILL)
        assert not output.exists() or output.read_bytes() == expected
        if output.exists():
            return
    succeed(*line(output, "--resume"))
    assert output.read_bytes() == expected
    assert list(tree(tmp_path)) == ["s.safetensors"]


def test_another_run_without_resume_is_refused(line, reference, tmp_path):
    output = tmp_path / "s.safetensors"
    code, _, err = stop_after(line(output), reference[1] * 0.7, signal.SIGINT)
    if code != INTERRUPTED:
        pytest.skip("the run was not interrupted in the middle")
    before = tree(tmp_path)
    refuse(USAGE, *line(output), names="--resume")
    assert tree(tmp_path) == before


@pytest.mark.parametrize("change", [["--seq-len", 128], ["--tokens", 2000], ["--seed", 5], ["--rows", 64]])
def test_resume_with_other_options_names_the_difference(change, line, reference, tmp_path):
    output = tmp_path / "s.safetensors"
    code, _, err = stop_after(line(output), reference[1] * 0.7, signal.SIGINT)
    if code != INTERRUPTED:
        pytest.skip("the run was not interrupted in the middle")
    before = tree(tmp_path)
    arguments = [a for a in line(output, "--resume")]
    if change[0] in arguments:
        arguments[arguments.index(change[0]) + 1] = change[1]
    else:
        arguments += change
    sentence = refuse((USAGE, 3), *arguments)
    assert change[0].strip("-").replace("-", "_") in sentence.replace("-", "_"), sentence
    assert tree(tmp_path) == before


def test_resume_of_a_damaged_state(line, reference, tmp_path):
    output = tmp_path / "s.safetensors"
    code, _, _ = stop_after(line(output), reference[1] * 0.7, signal.SIGINT)
    if code != INTERRUPTED:
        pytest.skip("the run was not interrupted in the middle")
    point = tmp_path / "s.safetensors.work" / "point.safetensors"
    point.write_bytes(point.read_bytes()[:-20])
    refuse(3, *line(output, "--resume"), names="s.safetensors.work")
    assert not output.exists()


def test_two_runs_in_one_work_directory(line, reference, tmp_path):
    output = tmp_path / "s.safetensors"
    first = subprocess.Popen(command(*line(output)), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        lock = tmp_path / "s.safetensors.work" / "lock"
        for _ in range(600):
            if lock.exists() or first.poll() is not None:
                break
            time.sleep(0.05)
        time.sleep(0.2)
        result = run(*line(output, "--resume"))
        if first.poll() is not None and result.code == 0:
            pytest.skip("the first run ended too early")
        assert result.code in (ENVIRONMENT, USAGE), str(result)
        assert len(result.errors()) == 1, str(result)
        assert first.wait(timeout=120) == 0
    finally:
        first.kill()
        first.wait()
    assert output.read_bytes() == reference[0]


@pytest.mark.parametrize("name", ["fit", "verify"])
def test_interrupt_leaves_nothing(name, statistics, bundle, model, text, tmp_path):
    if name == "fit":
        arguments = ["fit", statistics, "--method", "oscar", "-o", tmp_path / "bundle"]
    else:
        arguments = ["verify", "--no-gate", "--model", model, "--bundle", bundle, "--text", text, "--context", 512, "--report", tmp_path / "r.json",
                     "--html", tmp_path / "r.html"]
    before = tree(tmp_path)
    begin = time.monotonic()
    succeed(*arguments)
    seconds = time.monotonic() - begin
    import shutil

    for path in tmp_path.iterdir():
        shutil.rmtree(path) if path.is_dir() else path.unlink()
    code, out, err = stop_after(arguments, seconds * 0.5, signal.SIGINT)
    assert code in (0, INTERRUPTED, -signal.SIGINT), err
    if code != 0:
        left = {path for path in tree(tmp_path) if path.split("/")[0] != "r.json.work"}  # the state that --resume takes
        assert left == set(before), "an interrupted run left files"


def test_an_interrupted_fit_says_whether_something_is_kept(tmp_path):
    """The first passes of a collecting run save nothing."""
    sample = SAMPLE / "tiny-llama"
    code, out, err = stop_after(["fit", "--model", sample, "--prompts", SAMPLE / "prompts.jsonl", "-o", tmp_path / "bundle"], 1.0, signal.SIGINT)
    assert code == INTERRUPTED, err
    kept = any(tmp_path.iterdir())
    assert ("what was finished is kept. Resume with" in err, "interrupted before anything was saved" in err) == (kept, not kept), err
