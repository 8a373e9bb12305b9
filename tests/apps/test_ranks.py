"""The commands as ranks, processes that torchrun starts together: the bytes of one process or of --shard, one end for all."""
import contextlib
import json
import os
import random
import signal
import socket
import subprocess
import sys
import time

import pytest

from harness import BAD_INPUT, BUILD_DIR, CRASH_MARKS, ENVIRONMENT, USAGE, Result, command, refuse, short_sequences, succeed, tree

safe_open = pytest.importorskip("safetensors").safe_open
numpy = pytest.importorskip("numpy")

# The rounding of a GEMM depends on the number of threads; torchrun sets one.
os.environ["OMP_NUM_THREADS"] = "1"


def free_port():
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return s.getsockname()[1]


@contextlib.contextmanager
def started(lines, before=None, machines=1):
    """One process for each command line, with the environment that torchrun sets; rank 0 serves the store."""
    port, processes = free_port(), []
    for rank, line in enumerate(lines):
        environment = os.environ | {"RANK": str(rank), "WORLD_SIZE": str(len(lines)), "LOCAL_RANK": str(rank // machines), "LOCAL_WORLD_SIZE": str(len(lines) // machines),
                                    "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
        processes.append(subprocess.Popen(command(*line), env=environment, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                                          preexec_fn=None if before is None else lambda rank=rank: before(rank)))
    try:
        yield processes
    finally:
        for process in processes:
            process.kill()
            process.wait()


def results(processes, lines):
    done = []
    for process, line in zip(processes, lines):
        process_output = process.communicate(timeout=120)
        done.append(Result(command(*line), subprocess.CompletedProcess(line, process.returncode, *process_output)))
    return done


def run_ranks(*lines, before=None, machines=1):
    with started(lines, before, machines) as processes:
        return results(processes, lines)


def succeed_ranks(line, ranks=2, machines=1):
    done = run_ranks(*[line] * ranks, machines=machines)
    assert all(r.code == 0 and not r.errors() for r in done), "\n".join(map(str, done))
    assert all(not r.out and not r.err for r in done[1:]), "only rank 0 speaks"
    return done[0]


def refuse_ranks(code, *lines, names, before=None):
    """All ranks end with the code, and one of them says why."""
    done = run_ranks(*lines, before=before)
    told = "\n".join(map(str, done))
    assert [r.code for r in done] == [code] * len(lines), told
    assert not any(mark in r.err for r in done for mark in CRASH_MARKS), told
    errors = [error for r in done for error in r.errors()]
    assert len(errors) == 1 and all(str(name) in errors[0] for name in names), told


@pytest.fixture(scope="module")
def line(model, tmp_path_factory):
    return short_sequences(model, tmp_path_factory.mktemp("rows"))


@pytest.fixture(scope="module")
def shards(line, tmp_path_factory):
    """What two ranks must write: the shards of a job array, added up."""
    folder = tmp_path_factory.mktemp("shards")
    for i in (1, 2):
        succeed(*line(folder / str(i), "--shard", f"{i}/2"))
    succeed("collect", "merge", folder / "1", folder / "2", "-o", folder / "both")
    return (folder / "both").read_bytes()


def content(path):
    with safe_open(path, "np") as f:
        return {name: f.get_tensor(name) for name in f.keys()}, json.loads(f.metadata()["oscar"])


def test_two_ranks_are_two_shards_and_one_run(line, shards, tmp_path):
    done = succeed_ranks(line(tmp_path / "ranks", "--json"))
    assert json.loads(done.out)["plan"]["tokens"] == 850
    assert (tmp_path / "ranks").read_bytes() == shards
    succeed_ranks(line(tmp_path / "machines"), machines=2)  # shares go through the store
    assert (tmp_path / "machines").read_bytes() == shards
    assert sorted(tree(tmp_path)) == ["machines", "ranks"], "the work directory was not removed"
    succeed(*line(tmp_path / "one"))
    (tensors, _), (expected, _) = content(tmp_path / "ranks"), content(tmp_path / "one")
    assert tensors.keys() == expected.keys()
    for name, want in expected.items():
        if not name.endswith("energy_gram"):  # its weights are each share's own (docs/format-statistics.md)
            assert numpy.linalg.norm(tensors[name] - want) <= 1e-12 * numpy.linalg.norm(want), name


def test_a_rank_whose_sequences_have_no_far_pairs(model, tmp_path):
    """Its layers alone do not tell that its zeros are no sums."""
    rows = tmp_path / "rows.jsonl"
    rows.write_text("".join(json.dumps({"input_ids": list(range(40, 40 + n))}) + "\n" for n in (96, 18, 20, 19, 17)))
    line = ["collect", "--model", model, "--prompts", rows, "--tokens", 170, "--seq-len", 96, "--rows", 50, "--far-pairs", "6,20", "--no-pack"]
    for i in (1, 2):
        succeed(*line, "-o", tmp_path / str(i), "--shard", f"{i}/2")
    assert [any("far_count" in name for name in content(tmp_path / str(i))[0]) for i in (1, 2)] == [True, False]
    succeed("collect", "merge", tmp_path / "1", tmp_path / "2", "-o", tmp_path / "both")
    succeed_ranks([*line, "-o", tmp_path / "ranks"])
    assert (tmp_path / "ranks").read_bytes() == (tmp_path / "both").read_bytes()


def test_more_ranks_than_steps(line, tmp_path):
    text = succeed_ranks(line(tmp_path / "s", tokens=130), ranks=3).out  # two steps
    assert "collected  130 tokens" in text
    succeed(*line(tmp_path / "one", tokens=130))
    (tensors, metadata), (expected, _) = content(tmp_path / "s"), content(tmp_path / "one")
    assert [s["tokens"] for s in metadata["parts"][0]["shards"]] == [96, 34, 0]
    assert tensors.keys() == expected.keys()


def test_a_killed_rank_ends_all_and_the_run_goes_on(line, shards, tmp_path):
    output, work = tmp_path / "s", tmp_path / "s.work"
    arguments = line(output, "--checkpoint-seconds", 0)
    with started([arguments] * 2) as processes:
        for _ in range(5000):
            if (work / "rank-1" / "layer-0000.safetensors").exists():
                break
            time.sleep(0.002)
        processes[1].send_signal(signal.SIGKILL)
        begin = time.monotonic()
        first = results(processes[:1], [arguments])[0]
    if output.exists():
        pytest.skip("the run ended before the signal")
    assert time.monotonic() - begin < 40
    assert first.code == ENVIRONMENT and not any(mark in first.err for mark in CRASH_MARKS), str(first)
    errors = first.errors()
    assert len(errors) == 1 and "rank 1 of 2 has died" in errors[0] and "torchrun --nproc-per-node 2" in errors[0] and "--resume" in errors[0], str(first)
    assert "--shard 1/2, this one 1/1" not in refuse(USAGE, *line(output, "--work-dir", work / "rank-0"), names="--resume")
    succeed_ranks([*arguments, "--resume"])
    assert output.read_bytes() == shards
    assert list(tree(tmp_path)) == ["s"]


def test_a_full_disk_of_one_rank_ends_all(line, tmp_path):
    def before(rank):
        import resource

        if rank == 1:
            resource.setrlimit(resource.RLIMIT_FSIZE, (20000, 20000))

    arguments = line(tmp_path / "s", "--checkpoint-seconds", 0)
    refuse_ranks(ENVIRONMENT, arguments, arguments, names=["rank 1: ", "rank-1", "--resume"], before=before)
    assert not (tmp_path / "s").exists()
    succeed_ranks([*arguments, "--resume"])


def test_ranks_that_differ_are_refused(line, model, tmp_path):
    refuse_ranks(USAGE, *[line(tmp_path / "s", "--shard", "1/2")] * 2, names=["--shard"])
    refuse_ranks(BAD_INPUT, line(tmp_path / "s"), line(tmp_path / "s", "--seed", 5), names=["rank 1", "options"])
    assert not list(tmp_path.iterdir())
    environment = os.environ | {"WORLD_SIZE": "2", "RANK": "2"}
    refuse(USAGE, *line(tmp_path / "s"), names=["RANK", "'2'"], env=environment)
    refuse(USAGE, *line(tmp_path / "s"), names=["MASTER_ADDR"], env=environment | {"RANK": "1"})
    alone = environment | {"RANK": "1", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "1"}
    refuse(USAGE, "export", model, "-o", tmp_path / "e", "--format", "vllm", names=["oscar-export", "torchrun"], env=alone)


def test_torchrun_ends_what_it_started(line, shards, tmp_path):
    """Through torchrun itself, whose agent serves the store, and ends the others with SIGTERM."""
    pytest.importorskip("torch.distributed.run")
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "2", "--master-port", str(free_port()), "--no-python"]
    done = subprocess.run([*torchrun, *command(*line(tmp_path / "s"))], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("collected  850 tokens") == 1
    assert (tmp_path / "s").read_bytes() == shards


def test_verify_spreads_sequences(model, bundle, text, tmp_path):
    arguments = lambda name: ["verify", "--no-gate", "--model", model, "--bundle", bundle, "--text", text, "--context", 256, "--windows", "16,32",
                              "--bootstrap", 200, "--path", "both", "--tasks", "niah", "--task-prompts", 3, "--report", tmp_path / name]
    succeed(*arguments("one.json"))
    succeed_ranks(arguments("two.json"))
    one, two = ((tmp_path / name).read_text().replace(name, "REPORT") for name in ("one.json", "two.json"))
    assert one == two
    assert sorted(tree(tmp_path)) == ["one.json", "two.json"]
    assert "sequences" in one
    without = arguments("x")[:-2]
    refuse_ranks(USAGE, without, without, names=["--report"])


def test_fit_spreads_curves(model, statistics, tmp_path):
    source = random.Random(5)
    rows = tmp_path / "rows.jsonl"
    rows.write_text("".join(json.dumps({"input_ids": [source.randrange(8000) for _ in range(200)]}) + "\n" for _ in range(4)))
    arguments = lambda name: ["fit", statistics, "-o", tmp_path / name, "--method", "waterfill", "--model", model, "--text", rows,
                              "--curve-context", 128, "--curve-sequences", 2, "--windows", "8,16"]
    succeed(*arguments("one"))
    succeed_ranks(arguments("two"))
    assert tree(tmp_path / "one") == tree(tmp_path / "two")
    assert sorted(p.name for p in tmp_path.iterdir()) == ["one", "rows.jsonl", "two"]
    refuse_ranks(USAGE, *[["fit", statistics, "-o", tmp_path / "x"]] * 2, names=["torchrun", "curves"])
