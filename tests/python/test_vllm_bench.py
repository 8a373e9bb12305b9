"""tests/bench/vllm: which rows a second call repeats, the table, the goals, and the arithmetic of quality.py. Needs no vLLM."""
import json
import os
import pathlib
import subprocess
import sys
import time

import pytest

torch = pytest.importorskip("torch")
BENCH = pathlib.Path(__file__).resolve().parents[1] / "bench" / "vllm"
sys.path[:0] = [str(BENCH), str(BENCH.parent)]
import quality  # noqa: E402
import served_rows  # noqa: E402
import table  # noqa: E402
from conftest import PACKAGE_PATH  # noqa: E402

MACHINE = dict(gpu="one", capacity=4000)


def line(cache, job, **fields):
    length, output, requests = job.split(":")
    return dict(cache=cache, job=job, input=int(length), output=int(output), requests=7 if requests == "fill" else int(requests), **fields)


LINES = [dict(cache="bf16", **MACHINE), line("bf16", "8192:64:1", prompts_s=0.2, decode_tokens_s=100.0),
         line("bf16", "8192:1024:fill", all_tokens_s=3000.0), dict(cache="uniform", gpu="one", capacity=28000),
         line("uniform", "8192:64:1", prompts_s=0.21, decode_tokens_s=99.0), line("uniform", "8192:1024:fill", all_tokens_s=6600.4)]


def test_jobs_and_their_lines():
    jobs = list(served_rows.jobs_of(["8192:64:1", "8192:1024:fill"]))
    assert jobs == [("8192:64:1", 8192, 64, 1), ("8192:1024:fill", 8192, 1024, None)] and served_rows.most_requests(jobs[:1]) == 1
    assert served_rows.requests_of(jobs[1], 2 * (8192 + 1024 + 64) + 5) == 2 and served_rows.requests_of(jobs[1], 10) == 1
    assert json.loads(served_rows.row({"cache": "bf16"}, jobs[0], 1, 0.2, 0.83)) == dict(
        cache="bf16", job="8192:64:1", input=8192, output=64, requests=1, prompts_s=0.2, all_s=0.83, decode_tokens_s=100.0, all_tokens_s=9947.0)
    assert [served_rows.times_prompts(job) for job in jobs] == [True, False]
    assert json.loads(served_rows.row({}, jobs[1], 2, 0.0, 4.0)) == dict(job="8192:1024:fill", input=8192, output=1024, requests=2, all_s=4.0, all_tokens_s=4608.0)
    first = served_rows.prompts_of(10, 1, torch.Generator().manual_seed(1), phrase=4)[0]
    assert len(first) == 10 and first[:4] == first[4:8] and first[:2] == first[8:]


def test_table_and_goals():
    found = table.measured(LINES)
    assert list(table.table(found)) == [
        "| | BF16 | `uniform` |", "|---|---:|---:|", "| prompt of 8,192 tokens, s | 0.2 | 0.21 |", "| decode tokens/s, 8,192 x 1 | 100.0 | 99 |",
        "| full cache, 8K in, 1K out: tokens/s | 3,000 (7 requests) | 6,600 (7 requests) |", "| tokens that fit | 4,000 | 28,000 |"]
    first, second, third = table.ratios(found)
    assert first == "prompt of 8,192 tokens, s, over BF16: uniform 1.05, asked 1.07: holds"
    assert second.endswith("uniform 0.99, asked 1.0: MISSED") and third.endswith("uniform 2.20, asked 2.0: holds")
    with pytest.raises(ValueError, match="different GPUs: one, two"):
        table.measured(LINES + [dict(cache="fp8", gpu="two", capacity=1)])


def test_recorded_lines_have_a_table():
    lines = table.lines_of([(BENCH.parent / "results" / "vllm_h100.jsonl").read_text(encoding="utf-8")])
    assert any(row.startswith("| prompt of 8,192 tokens, s | 0.219 |") for row in table.table(table.measured(lines)))


FAKE = """import json, sys
if sys.argv[1] == "fp8":
    sys.exit("no such cache")
print("noise")
print(json.dumps(dict(cache=sys.argv[1], gpu="one", capacity=5)))
for job in sys.argv[2:]:
    i, o, n = job.split(":")
    print(json.dumps(dict(cache=sys.argv[1], job=job, input=int(i), output=int(o), requests=1, prompts_s=1.0)))
"""


def test_a_second_call_repeats_nothing(tmp_path):
    for name in ("everything.sh", "table.py"):
        (tmp_path / name).write_bytes((BENCH / name).read_bytes())
    (tmp_path / "throughput.py").write_text(FAKE)
    out = tmp_path / "lines.jsonl"

    def call(budget, rows):
        environment = dict(os.environ, CACHES="bf16 fp8", ROWS=rows, LONGEST="60")
        return subprocess.run(["bash", tmp_path / "everything.sh", out, str(budget)], capture_output=True, text=True, env=environment)

    assert call(50, "5:1:1,9:1:1").returncode == 3 and out.read_text() == ""
    first = call(100, "5:1:1,9:1:1")
    assert first.returncode == 0 and "no such cache" in first.stderr
    lines = [json.loads(row) for row in out.read_text().splitlines()]
    assert [(x["cache"], x.get("job"), x.get("failed")) for x in lines] == [
        ("bf16", None, None), ("bf16", "5:1:1", None), ("bf16", "9:1:1", None), ("fp8", "5:1:1", 1), ("fp8", "9:1:1", 1)]
    before = out.read_text()
    assert call(100, "5:1:1").returncode == 0 and out.read_text() == before
    assert call(100, "5:1:1,8:1:fill").returncode == 0
    assert [json.loads(row).get("job") for row in out.read_text()[len(before):].splitlines()] == [None, "8:1:fill", "8:1:fill"]


def test_kl_and_perplexity():
    base, coded = torch.tensor([[0.5, 0.25, 0.25], [0.1, 0.8, 0.1]]).log(), torch.tensor([[0.25, 0.5, 0.25], [0.1, 0.8, 0.1]]).log()
    total = quality.Totals()
    total.add(base[:1] + 3, coded[:1], torch.tensor([0]))  # logits, not log-probabilities
    total.add(base[1:], coded[1:], torch.tensor([2]))
    found = total.found()
    assert found["scored"] == 2 and found["same_top"] == 0.5
    assert found["kl"] == pytest.approx((0.5 * torch.tensor(2.0).log() + 0.25 * torch.tensor(0.5).log()).item() / 2, rel=1e-6)
    assert found["ppl_bf16"] == pytest.approx((0.5 * 0.1) ** -0.5) and found["ppl"] == pytest.approx((0.25 * 0.1) ** -0.5)
    assert found["ppl_ratio"] == pytest.approx(found["ppl"] / found["ppl_bf16"])


def test_sequences_of_a_text():
    assert quality.sequences([2, *range(10, 20)], 2, 4, 9) == [[2, 10, 11, 12], [2, 13, 14, 15], [2, 16, 17, 18]]
    assert quality.sequences(list(range(10, 20)), 2, 4, 9) == [[10, 11, 12, 13], [14, 15, 16, 17]]
    assert quality.sequences([2, *range(10, 20)], None, 4, 1) == [[2, 10, 11, 12]] and quality.sequences([1, 2], 1, 4, 9) == []


def test_the_hook_follows_one_sequence():
    """In the order of vLLM's steps, padded rows and other forward passes included."""
    seen = []
    hook = quality.Hook(lambda rows, first: seen.append((first, rows.flatten().tolist())))
    hook(None, (), {"positions": torch.zeros(3)}, torch.zeros(3, 1))  # a profile run
    hook.begin(5)
    hook(None, (), {"positions": torch.tensor([0, 1, 2, 0])}, torch.arange(4.0)[:, None])
    hook(None, (None, torch.tensor([[3, 4, 5]])), {}, torch.arange(3.0, 6.0)[:, None])
    hook(None, (), {"positions": torch.tensor([5])}, torch.zeros(1, 1))  # the sampled token
    assert seen == [(0, [0.0, 1.0, 2.0]), (3, [3.0, 4.0])] and hook.at == 5
    hook.begin(5)
    with pytest.raises(RuntimeError, match="expected 0"):
        hook(None, (), {"positions": torch.tensor([7])}, torch.zeros(1, 1))


STAND_IN = """import http.server, json, os, sys
if sys.argv[1] == "serve":
    class Health(http.server.BaseHTTPRequestHandler):
        def do_GET(self): self.send_response(200); self.end_headers()
        def log_message(self, *given): pass
    if "nonsense" in sys.argv: sys.exit("no such cache")
    http.server.HTTPServer(("127.0.0.1", int(sys.argv[sys.argv.index("--port") + 1])), Health).serve_forever()
at = lambda name: sys.argv[sys.argv.index(name) + 1]
if at("--num-prompts") == "1":  # a client that waits
    import time; time.sleep(60)
rate = 10.0 if at("--request-rate") == "inf" else float(at("--request-rate"))
found = {key: rate for key in KEPT} | {"completed": int(at("--num-prompts")) - (at("--num-prompts") == "3")}
json.dump(found, open(os.path.join(at("--result-dir"), at("--result-filename")), "w"))
"""


@pytest.fixture
def serve(tmp_path):
    """(call, environment, rows found) of bench_serve.py with a stand-in for vLLM."""
    import bench_serve
    from vllm_requests import free_port
    (tmp_path / "program.py").write_text(f"KEPT = {bench_serve.KEPT}\n" + STAND_IN)
    out, port = tmp_path / "lines.jsonl", free_port()
    environment = dict(os.environ, VLLM=f"{sys.executable} {tmp_path / 'program.py'}", PORT=str(port), REQUESTS="7", LOGS=str(tmp_path))
    return [sys.executable, BENCH / "bench_serve.py", tmp_path, out], environment, lambda: [json.loads(row) for row in out.read_text().splitlines()]


def test_every_cache_is_asked_at_a_share_of_the_first_ones_best(serve):
    call, environment, rows = serve
    done = subprocess.run([*call, "bf16", "nonsense", "fp8+prefix"], capture_output=True, text=True, env=environment | {"MEMORY": "1e9,2e9,3e9"}, timeout=60)
    assert done.returncode == 1 and "nonsense: the server does not answer" in done.stderr and "no such cache" in done.stderr
    bf16, fp8 = ("bf16", False), ("fp8", True)
    assert [((r["cache"], r["prefix_caching"]), r["rate"], r["p99_itl_ms"], r["completed"], r["round"]) for r in rows()] == [
        (bf16, "inf", 10.0, 7, 0), (bf16, 7.0, 7.0, 7, 0), (fp8, 7.0, 7.0, 7, 0), (bf16, 7.0, 7.0, 7, 1), (fp8, 7.0, 7.0, 7, 1)]
    failed = subprocess.run([*call, "bf16"], capture_output=True, text=True, env=environment | {"REQUESTS": "3"}, timeout=60)
    assert failed.returncode == 1 and "bf16: the server answered 2 of 3 requests" in failed.stderr and len(rows()) == 5
    unsized = subprocess.run([*call, "bf16", "fp8"], capture_output=True, text=True, env=environment, timeout=60)
    assert unsized.returncode == 1 and "MEMORY has no sizes for 2 caches" in unsized.stderr


def test_servers_end_with_the_bench(serve):
    from engine_server import healthy
    call, environment, _ = serve
    with subprocess.Popen([*call, "bf16"], env=environment | {"REQUESTS": "1"}) as stopped:  # its server would hold the GPU
        while not healthy(int(environment["PORT"])):
            assert stopped.poll() is None
            time.sleep(.2)
        stopped.terminate()
        assert stopped.wait(60) == 143 and not healthy(int(environment["PORT"]))


def test_servers_of_made_up_weights(tmp_path, monkeypatch):
    import bench_serve
    monkeypatch.setenv("SERVE", "")
    ours, plain = bench_serve.places(bench_serve.made_up(), ["mixed+prefix", "bf16"], "4e9,12e9", tmp_path)
    assert "--enable-prefix-caching" in ours.options() and "4000000000" in ours.options() and "--compilation-config" not in ours.options()
    assert "dummy" in plain.options() and "OSCAR" not in plain.options() and "random_bundle_plugin" not in str(list(plain.folder.iterdir()))
    folder = pathlib.Path(ours.environment()["PYTHONPATH"].split(os.pathsep)[0])
    assert "random_bundle_plugin:register" in (folder / "bench_plugins-1.dist-info" / "entry_points.txt").read_text()
    assert "give_bundle('vllm', 'mixed')" in (folder / "random_bundle_plugin.py").read_text()


TURN = f"""import os, sys
sys.path.insert(0, {str(BENCH.parent)!r})
from turns import Turns
turns = Turns(sys.argv[1])
if len(sys.argv) > 2:
    sys.exit("no such cache")
for number in turns:
    print("begin", number, os.getpid(), flush=True)
    print("end", number, os.getpid(), flush=True)
"""


def test_turns(tmp_path):
    """Two processes measure one after the other; a third one died as it started."""
    begun = [subprocess.Popen([sys.executable, "-c", TURN, f"{tmp_path / 'turns'}:3:2", *more], stdout=subprocess.PIPE, text=True)
             for more in (["dies"], [], [])]
    lines = [process.communicate(timeout=60)[0].splitlines() for process in begun]
    assert [process.returncode for process in begun] == [1, 0, 0]
    assert [[row.split()[:2] for row in said] for said in lines] == [[]] + 2 * [[["begin", "0"], ["end", "0"], ["begin", "1"], ["end", "1"]]]
    again = subprocess.run([sys.executable, "-c", TURN, f"{tmp_path / 'turns'}:3:2"], capture_output=True, text=True, timeout=60)
    assert again.returncode == 1 and "name a new folder for every run" in again.stderr
    alone = subprocess.run([sys.executable, "-c", TURN, f"{tmp_path / 'alone'}:2:1"], capture_output=True, text=True, timeout=60, env=os.environ | {"TURNS_WAIT": "0"})
    assert alone.returncode == 0 and "1 of 2 processes came to round0" in alone.stderr


@pytest.mark.parametrize("geometry,cache,heads,channels", [("8b", "mixed", 8, 128), ("1.5b", "blocks", 2, 128), ("latent", "four", 1, 512)])
def test_geometries(geometry, cache, heads, channels):
    """The configuration reads as a model's, and the made-up bundle has its heads."""
    text = ("import served_rows as s, transformers; c = transformers.AutoConfig.from_pretrained(s.model_folder()); b = s.bundle_of(%r); "
            "print(c.num_hidden_layers, len(b.layers), b.layers[0].kv_heads, b.layers[0].head_dim, max(s.prompts_of(64, 1, None)[0]) < c.vocab_size)" % cache)
    path = os.pathsep.join((str(pathlib.Path(served_rows.__file__).parent), PACKAGE_PATH, os.environ.get("PYTHONPATH", "")))
    done = subprocess.run([sys.executable, "-c", text], capture_output=True, text=True, check=True, env=os.environ | {"GEOMETRY": geometry, "PYTHONPATH": path})
    layers = {"8b": 36, "1.5b": 28, "latent": 27}[geometry]
    assert done.stdout.split() == [str(layers), str(layers), str(heads), str(channels), "True"]
