"""bench_serve.py MODEL LINES.jsonl CACHE ...: what clients of a server see, by vLLM's own `vllm bench serve` over HTTP: time to the first token, time
of an output token and the time between two tokens, medians and 99th percentiles. Each CACHE (bf16, fp8, another name that vLLM knows, or a bundle's
folder, with +prefix for prefix caching) has a server. All start at once and share a GPU. Then the first one is asked as fast as it answers, once, and in
ROUNDS every cache in turn gets requests at SHARE of that rate. A server that fails is told on stderr, and the others are asked; exit code 1.
MODEL: a checkpoint, or random: the model of throughput.py with made-up weights and the tokenizer of a sample, whose caches mixed, blocks and uniform are ours.

Environment: MEMORY (bytes of each KV cache in order, with commas; needed for more than one CACHE), SHARE (.7), ROUNDS (2), REQUESTS (256), INPUT (512) and
OUTPUT (256) tokens, which vary by half, SLOTS (64), PORT (8000, and the next ones), RATE (requests a second of a run before), VLLM (the program), SERVE
(more options of the servers; the default leaves torch.compile out, and an empty one leaves it to vLLM), START (seconds that all may take to start, 400),
LIMIT (seconds that a client may take, 240), LOGS (a folder for what servers say)."""
import concurrent.futures
import contextlib
import dataclasses
import json
import os
import pathlib
import shlex
import shutil
import signal
import subprocess
import sys
import tempfile
import time

BENCH = pathlib.Path(__file__).resolve().parents[1]
sys.path[:0] = [str(BENCH.parent / "python"), str(BENCH)]
import engine_server  # noqa: E402
from served_rows import NAME, WIDTHS, model_folder, plugin_path  # noqa: E402

os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("VLLM_NO_USAGE_STATS", "1")
os.environ.setdefault("VLLM_USE_FLASHINFER_SAMPLER", "0")
KEPT = ("request_throughput", "output_throughput", "median_ttft_ms", "p99_ttft_ms", "median_tpot_ms", "p99_tpot_ms", "median_itl_ms", "p99_itl_ms")
PLAIN = "--compilation-config '{\"mode\": 0, \"cudagraph_mode\": \"FULL_DECODE_ONLY\"}'"
FAST = "inf"  # the rate at which all requests come at once


def asked(name, default):
    return type(default)(os.environ.get(name, default))


def made(model):
    """Whether made_up() made it."""
    return model.name.startswith("made-up-")


def program():
    return shlex.split(os.environ.get("VLLM", "vllm"))


def made_up():
    """The folder of a model without weights."""
    folder = model_folder("made-up-")
    for name in ("tokenizer.json", "tokenizer_config.json"):
        shutil.copy(BENCH.parents[1] / "sample_data/tiny-qwen3" / name, folder)
    return folder


@dataclasses.dataclass
class Server:
    """One of a cache, or its place before it starts. memory: bytes of its KV cache, or empty for vLLM's choice. folder: for its log, and its plugin
    if the model is made up."""
    model: pathlib.Path
    name: str
    port: int
    memory: str
    folder: pathlib.Path

    @property
    def cache(self):
        return self.name.removesuffix("+prefix")

    @property
    def prefix(self):
        return self.name != self.cache

    @property
    def log(self):
        return str(self.folder / "log")

    def options(self):
        options = [str(self.model), "--dtype", "bfloat16", "--port", str(self.port), "--max-num-seqs", str(asked("SLOTS", 64)), "--max-model-len",
                   str(4 * (asked("INPUT", 512) + asked("OUTPUT", 256))), "--enable-prefix-caching" if self.prefix else "--no-enable-prefix-caching",
                   *shlex.split(os.environ.get("SERVE", PLAIN))]
        if self.memory:
            options += ["--kv-cache-memory-bytes", str(int(float(self.memory))), "--gpu-memory-utilization", "0.2"]
        if made(self.model):
            options += ["--load-format", "dummy"]
        if os.path.isdir(self.cache) or self.cache in WIDTHS:
            bundle = str(self.model) if self.cache in WIDTHS else self.cache
            return options + ["--kv-cache-dtype", "oscar", "--attention-backend", "OSCAR", "--additional-config", json.dumps({"oscar_bundle": bundle})]
        return options if self.cache == "bf16" else options + ["--kv-cache-dtype", self.cache]

    def environment(self):
        """Of its processes. Servers compile the same model at once, so each has compiled files of its own."""
        compiled = pathlib.Path(os.environ.get("VLLM_CACHE_ROOT", "~/.cache/vllm")).expanduser() / "bench_serve" / self.name.strip("/").replace("/", "-")
        path = {"PYTHONPATH": plugin_path(self.folder, "vllm", self.cache)} if made(self.model) and self.cache in WIDTHS else {}
        return os.environ | path | {"VLLM_CACHE_ROOT": str(compiled)}

    def client(self, rate, requests, seed, folder):
        return ["--backend", "openai", "--port", str(self.port), "--model", str(self.model), "--dataset-name", "random", "--random-input-len",
                str(asked("INPUT", 512)), "--random-output-len", str(asked("OUTPUT", 256)), "--random-range-ratio", "0.5", "--num-prompts", str(requests),
                "--request-rate", str(rate), "--seed", str(seed), "--ignore-eos", "--disable-tqdm", "--percentile-metrics", "ttft,tpot,itl",
                "--metric-percentiles", "99", "--save-result", "--result-dir", str(folder), "--result-filename", "found.json"]

    def ask(self, rate, requests, seed):
        """What a client found. RuntimeError where it or a request failed."""
        with tempfile.TemporaryDirectory() as folder:
            call = [*program(), "bench", "serve", *self.client(rate, requests, seed, folder)]
            try:
                done = subprocess.run(call, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, errors="replace", timeout=asked("LIMIT", 240.0))
            except subprocess.TimeoutExpired as error:
                raise RuntimeError(f"the client took longer than {error.timeout:.0f} s") from None
            file = pathlib.Path(folder) / "found.json"
            if done.returncode or not file.exists():
                raise RuntimeError(f"the client failed with exit code {done.returncode}:\n{done.stdout[-2000:]}")
            found = json.loads(file.read_text())
        if found["completed"] != requests:
            raise RuntimeError(f"the server answered {found['completed']} of {requests} requests:\n{pathlib.Path(self.log).read_text(errors='replace')[-2000:]}")
        return found

    def row(self, rate, number):
        """Prompts differ from round to round, so that prefix caching finds none of them."""
        requests = asked("REQUESTS", 256)
        found = self.ask(rate, requests, 100 + number if rate != FAST else 99)
        return dict(model=NAME if made(self.model) else self.model.name, engine="vllm", cache=self.cache, prefix_caching=self.prefix, slots=asked("SLOTS", 64),
                    requests=requests, inp=asked("INPUT", 512), out=asked("OUTPUT", 256), rate=rate, completed=found["completed"],
                    **{key: round(found[key], 2) for key in KEPT}, round=number)


class Servers:
    """Those that answer, in order. One that fails is told on stderr and left out."""

    def __init__(self, servers, lines):
        self.held, self.lines, self.failed = servers, lines, False

    def each(self, work):
        """work(server) for one after the other."""
        for server in list(self.held):
            try:
                work(server)
            except RuntimeError as error:
                print(f"bench_serve.py: {server.name}: {error}", file=sys.stderr, flush=True)
                self.held.remove(server)
                self.failed = True

    def warm_up(self):
        """All servers at once, each with as many requests as it has places."""
        with concurrent.futures.ThreadPoolExecutor(len(self.held) or 1) as pool:
            asking = {server.port: pool.submit(server.ask, FAST, asked("SLOTS", 64), 98) for server in self.held}
            self.each(lambda server: asking[server.port].result())

    def measure(self, server, rate, number):
        """The line of a server, also written to the file."""
        row = server.row(rate, number)
        print(json.dumps(row), flush=True)
        with self.lines.open("a") as out:
            out.write(json.dumps(row) + "\n")
        return row

    def best(self):
        """Requests a second that the first one answers, or the next one, should it fail."""
        found = []
        self.each(lambda server: found or found.append(self.measure(server, FAST, 0)["request_throughput"]))
        return found[0] if found else 0


def places(model, names, memory, folder):
    """A Server for each name."""
    sizes = memory.split(",") if memory else [""] * len(names)
    if len(sizes) != len(names) or (len(names) > 1 and not memory):
        raise SystemExit(f"bench_serve.py: MEMORY has {len(sizes) if memory else 'no'} sizes for {len(names)} caches; name the bytes of each KV cache in order: MEMORY=12e9,4e9")
    made_folders = [pathlib.Path(folder) / f"{i}-{name.strip('/').replace('/', '-')}" for i, name in enumerate(names)]
    for made_folder in made_folders:
        made_folder.mkdir()
    return [Server(model, name, asked("PORT", 8000) + i, size, f) for i, (name, size, f) in enumerate(zip(names, sizes, made_folders))]


def main():
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # the servers in their sessions must end, too
    model, lines = made_up() if sys.argv[1] == "random" else pathlib.Path(sys.argv[1]), pathlib.Path(sys.argv[2])
    folder = tempfile.mkdtemp(dir=os.environ.get("LOGS"))
    print(f"bench_serve.py: servers write their logs to {folder}", file=sys.stderr, flush=True)
    servers = Servers(places(model, sys.argv[3:], os.environ.get("MEMORY", ""), folder), lines)
    with contextlib.ExitStack() as stack:
        processes = {s.port: stack.enter_context(engine_server.running([*program(), "serve", *s.options()], s.log, s.environment())) for s in servers.held}
        stack.callback(lambda: [engine_server.end(p) for p in processes.values()])  # all at once, before each is waited for
        limit = time.monotonic() + asked("START", 400.0)
        servers.each(lambda s: engine_server.wait(processes[s.port], s.port, s.log, limit - time.monotonic()))
        servers.warm_up()
        rate = float(os.environ.get("RATE", 0)) or round(asked("SHARE", .7) * servers.best(), 2)
        for number in range(asked("ROUNDS", 2)):
            servers.each(lambda s: servers.measure(s, rate, number))  # noqa: B023
    raise SystemExit(int(servers.failed))


if __name__ == "__main__":
    main()
