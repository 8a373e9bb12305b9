"""oscar-verify --work-dir: a run that was stopped or killed goes on where it was, and its reports are the same bytes."""
import random
import signal
import time

import pytest

from harness import BAD_INPUT, INTERRUPTED, USAGE, refuse, stop_after, succeed, tree


@pytest.fixture(scope="module")
def line(model, bundle, tmp_path_factory):
    text = tmp_path_factory.mktemp("text") / "text.txt"
    text.write_text("".join(f"Valve {i} is {'open' if i % 3 else 'closed'} and its pressure is {i * 7 % 50}.\n" for i in range(400)))
    return lambda folder, *more: ["verify", "--no-gate", "--model", model, "--bundle", bundle, "--text", text, "--context", 256, "--windows", "16,32",
                                  "--methods", "2bit", "--compare", "common,bytes", "--tasks", "niah", "--task-prompts", 4, "--report",
                                  folder / "r.json", *more]


@pytest.fixture(scope="module")
def reference(line, tmp_path_factory):
    folder = tmp_path_factory.mktemp("reference")
    begin = time.monotonic()
    succeed(*line(folder))
    return (folder / "r.json").read_text(), time.monotonic() - begin


def report(folder):
    """The report, with its own folder in the recorded command replaced by a common name."""
    return (folder / "r.json").read_text().replace(str(folder), "FOLDER")


@pytest.mark.parametrize("seed", range(2))
def test_kill_and_resume(seed, line, reference, tmp_path):
    expected, seconds = reference
    work = ["--work-dir", tmp_path / "work", "--resume"]
    source = random.Random(seed)
    for _ in range(2):
        stop_after(line(tmp_path, *work), source.uniform(0.3, 0.8) * seconds, signal.SIGKILL)
        if (tmp_path / "r.json").exists():
            break
    else:
        assert (tmp_path / "work").exists()
        succeed(*line(tmp_path, *work))
        assert list(tree(tmp_path)) == ["r.json"], "the work directory was not removed"
    import json

    first, again = json.loads(expected), json.loads(report(tmp_path))
    first.pop("command"), again.pop("command")
    assert first == again
    assert "--work-dir" not in report(tmp_path) and "--resume" not in report(tmp_path)


def test_other_options_are_refused_with_the_difference(line, reference, tmp_path):
    work = ["--work-dir", tmp_path / "work"]
    if stop_after(line(tmp_path, *work), 0.6 * reference[1], signal.SIGINT)[0] != INTERRUPTED:
        pytest.skip("the run was not interrupted in the middle")
    before = tree(tmp_path)
    refuse(USAGE, *line(tmp_path, *work), names="--resume")
    for change in (["--seed", 5], ["--max-sequences", 1], ["--bits", 3.5]):
        assert change[0] in refuse(USAGE, *line(tmp_path, *work, "--resume", *change))
    assert tree(tmp_path) == before
    for name in tree(tmp_path / "work"):
        if name.startswith(("group", "hidden")):
            (tmp_path / "work" / name).write_bytes(b"short")
    refuse(BAD_INPUT, *line(tmp_path, *work, "--resume"), names="work")


def test_resume_needs_a_work_directory(line, tmp_path):
    arguments = [a for a in line(tmp_path, "--resume") if a not in ("--report", tmp_path / "r.json")]
    refuse(USAGE, *arguments, names=["--work-dir", "--report"])


def test_the_state_is_next_to_the_report(line, reference, tmp_path):
    """Without --work-dir an interrupted run can be resumed, too."""
    if stop_after(line(tmp_path), 0.6 * reference[1], signal.SIGINT)[0] != INTERRUPTED:
        pytest.skip("the run was not interrupted in the middle")
    assert (tmp_path / "r.json.work").is_dir() and not (tmp_path / "r.json").exists()
    succeed(*line(tmp_path, "--resume"))
    assert list(tree(tmp_path)) == ["r.json"]
