"""The surroundings of a process: closed descriptors, readers that leave, signals, a checkpoint that shrinks while
it is read, options of absurd size, a user without a home."""
import json
import os
import shutil
import signal
import subprocess
import time

import pytest

from harness import BAD_INPUT, DONE, INTERRUPTED, SAMPLE, SOURCE_DIR, USAGE, command, refuse, succeed, tree, without_rights


@pytest.fixture()
def verify(model, bundle, text):
    return ["verify", "--no-gate", "--model", model, "--bundle", bundle, "--text", text, "--context", 512, "--max-sequences", 1, "--bootstrap", 0]


def shell(line, redirections, **options):
    import shlex

    return subprocess.run(["bash", "-c", f"{shlex.join(command(*line))} {redirections}"], capture_output=True, text=True, timeout=300, **options)


@pytest.mark.parametrize("redirections", ["<&-", "2>&-", "<&- 2>&-", ">/dev/null 2>&- <&-"])
def test_closed_descriptors_change_no_number(redirections, verify, model, prompts, tmp_path):
    """Messages must not land in a file that was given the descriptor's number."""
    (tmp_path / "a").mkdir(), (tmp_path / "b").mkdir()
    collect = ["collect", "--model", model, "--prompts", prompts, "--seq-len", 128, "-o", "s.safetensors"]
    for folder, closed in (("a", ""), ("b", redirections)):
        for line in ([*verify, "--report", "r.json"], collect):
            done = shell(line, closed, cwd=tmp_path / folder)
            assert done.returncode == DONE, done.stderr
    assert tree(tmp_path / "a") == tree(tmp_path / "b")


def test_a_closed_standard_output_is_no_place_for_results(statistics, tmp_path):
    done = shell(["collect", "show", statistics], ">&-", cwd=tmp_path)
    assert done.returncode == 4 and "standard output" in done.stderr, done
    assert tree(tmp_path) == {}


@pytest.mark.parametrize("ignored", [False, True])
@pytest.mark.parametrize("line", [["collect", "show", "{statistics}"], ["verify", "--help"]])
def test_a_reader_that_leaves(line, ignored, statistics, tmp_path):
    """`| head` ends a command by SIGPIPE, or as if: 141, or 0 where it had printed everything before."""
    def before():
        signal.signal(signal.SIGPIPE, signal.SIG_IGN if ignored else signal.SIG_DFL)

    reader, writer = os.pipe()
    os.close(reader)
    arguments = command(*[a.format(statistics=statistics) for a in line])
    done = subprocess.run(arguments, stdout=writer, stderr=subprocess.PIPE, text=True, preexec_fn=before, restore_signals=False, timeout=60)
    os.close(writer)
    assert done.returncode in (141, -signal.SIGPIPE), done
    assert "error" not in done.stderr


def start(line, ready, ignore=None):
    """Starts a command and waits until ready() says that its work is under way."""
    def before():
        for number in (signal.SIGHUP, signal.SIGINT, signal.SIGTERM):
            signal.signal(number, signal.SIG_IGN if number == ignore else signal.SIG_DFL)

    process = subprocess.Popen(command(*line), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, preexec_fn=before)
    for _ in range(3000):
        if ready() or process.poll() is not None:
            break
        time.sleep(0.01)
    return process


@pytest.fixture(scope="module")
def long_prompts(tmp_path_factory):
    path = tmp_path_factory.mktemp("long") / "prompts.jsonl"
    path.write_text("".join(json.dumps({"input_ids": [(7 * i * j) % 8000 for j in range(500)]}) + "\n" for i in range(40)))
    return path


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGXCPU])
def test_signals_end_a_collection_that_can_go_on(number, long_prompts, tmp_path):
    line = ["collect", "--model", SAMPLE / "tiny-qwen3", "--prompts", long_prompts, "-o", tmp_path / "s", "--tokens", 20000, "--seq-len", 512,
            "--far-pairs", "none"]
    process = start(line, (tmp_path / "s.work" / "point.safetensors").exists)
    process.send_signal(number)
    process.send_signal(number)  # `timeout` and closing terminals send it twice
    _, err = process.communicate(timeout=120)
    assert process.returncode == INTERRUPTED, err
    assert "Resume with: " in err and (tmp_path / "s.work" / "run.json").exists(), err


def test_an_ignored_hangup_stays_ignored(model, prompts, tmp_path):
    """nohup"""
    line = ["collect", "--model", model, "--prompts", prompts, "--seq-len", 128, "-o", tmp_path / "s"]
    process = start(line, (tmp_path / "s.work").exists, ignore=signal.SIGHUP)
    process.send_signal(signal.SIGHUP)
    process.communicate(timeout=120)
    assert process.returncode == DONE and (tmp_path / "s").exists()


def test_a_checkpoint_that_shrinks_ends_with_a_sentence(long_prompts, tmp_path):
    """Layers are read one by one, so the end of the file is still needed when the first are done."""
    model = shutil.copytree(SAMPLE / "tiny-qwen3", tmp_path / "red\x1b[31m")
    weights = model / "model.safetensors"
    line = ["collect", "--model", model, "--prompts", long_prompts, "-o", tmp_path / "s", "--tokens", 20000]
    process = start(line, (tmp_path / "s.work" / "point.safetensors").exists)
    os.truncate(weights, 20000)
    _, err = process.communicate(timeout=120)
    assert process.returncode == BAD_INPUT, err
    assert "\x1b" not in err and "model.safetensors: became shorter" in err and str(tmp_path / "red") in err, err
    assert not (tmp_path / "s").exists()


@pytest.mark.parametrize("locked", ["model", "parent", "bundle"])
def test_a_folder_without_permission_is_said(locked, verify, tmp_path):
    line = [*map(str, verify)]
    place = line.index("--bundle" if locked == "bundle" else "--model") + 1
    copy = shutil.copytree(line[place], tmp_path / "parent" / "copy")
    line[place] = copy
    folder = copy.parent if locked == "parent" else copy
    folder.chmod(0)
    try:
        done = subprocess.run(command(*line), capture_output=True, text=True, timeout=60, preexec_fn=without_rights)
    finally:
        folder.chmod(0o755)
    assert done.returncode == BAD_INPUT and "cannot be seen (Permission denied)" in done.stderr, done
    assert str(copy) in done.stderr and len(done.stderr.splitlines()) == 1, done


HUGE = "99999999999999999999"


@pytest.mark.parametrize("option, value", [
    (option, value) for option in ("--bits", "--pareto") for value in ("nan", "inf", "-nan", "1e999", "2,nan")
    if option == "--pareto" or "," not in value
] + [(option, HUGE) for option in ("--curve-sequences", "--curve-context")]
  + [("--clip", "nan,nan"), ("--clip", "0.9,inf"), ("--windows", f"64,{HUGE}")])
def test_numbers_of_fit_are_refused_by_name(option, value, statistics, tmp_path):
    method = "waterfill" if option in ("--bits", "--pareto") else "oscar"
    refuse(USAGE, "fit", statistics, "--method", method, "-o", tmp_path / "bundle", option, value, names=option, timeout=60)
    assert tree(tmp_path) == {}


@pytest.mark.parametrize("option, value", [
    (option, value) for option in ("--context", "--tokens", "--max-sequences", "--task-lengths", "--task-prompts", "--layer-sequences",
                                   "--bootstrap", "--seed") for value in (HUGE, "-1", "nan")
] + [(option, value) for option in ("--bits", "--max-kl", "--max-ppl-ratio", "--min-top1") for value in ("nan", "inf", "1e999")]
  + [("--context", "999999999999"), ("--windows", f"{HUGE},256")])
def test_numbers_of_verify_are_refused_by_name(option, value, model, bundle, text):
    line = ["verify", "--model", model, "--bundle", bundle, "--text", text, "--compare", "bytes", option, value]
    begin = time.monotonic()
    refuse(USAGE, *line, names=option, timeout=60)
    assert time.monotonic() - begin < 30


@pytest.mark.parametrize("option", ["--tokens", "--seq-len", "--rows", "--checkpoint-seconds", "--seed"])
def test_numbers_of_collect_are_refused_by_name(option, model, prompts, tmp_path):
    for value in (HUGE if option != "--checkpoint-seconds" else "1e999", "nan", "-1"):
        refuse(USAGE, "collect", "--model", model, "--prompts", prompts, "-o", tmp_path / "s", option, value, names=option)


def test_memory_as_people_write_it(model):
    plan = lambda size: succeed("verify", "plan", "--model", model, "--memory", size).out
    assert plan("24G") == plan("24GiB") == plan("24 GiB") == plan("24gib") == plan(str(24 << 30))
    assert plan("24GB") == plan("24000MB") != plan("24G")
    for size in ("24X", "G", "nan", "-1G", "1e30G"):
        refuse(USAGE, "verify", "plan", "--model", model, "--memory", size, names="--memory")


def test_scripts_work_without_a_home(tmp_path):
    environment = {"PATH": os.environ["PATH"]}
    line = f"source {SOURCE_DIR}/scripts/common.sh && echo $OSCAR_ENV"
    done = subprocess.run(["bash", "-c", line], env=environment, capture_output=True, text=True)
    assert done.returncode == 0 and done.stdout.strip().endswith("oscar-toolchain/env"), done
    assert subprocess.run(["bash", "-c", line], env=environment | {"OSCAR_ENV": "/x"}, capture_output=True, text=True).stdout == "/x\n"
