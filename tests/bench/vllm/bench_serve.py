"""bench_serve.py MODEL LINES.jsonl CACHE ...: what clients of a server see, by vLLM's own `vllm bench serve` over HTTP: time to the first token, time
of an output token and the 99th percentile between two tokens. Each CACHE (bf16, fp8, another name that vLLM knows, or a bundle's folder) is served
by a process of its own. The first one is asked as fast as it answers, once; then every cache gets requests at SHARE of that rate.
MODEL: a checkpoint, or random: the model of throughput.py with made-up weights and the tokenizer of a sample, whose caches mixed, blocks and uniform are ours.

Environment: SHARE (.7), REQUESTS (256), INPUT (512) and OUTPUT (256) tokens, which vary by half, SLOTS (64), PREFIX=1 (prefix caching on), PORT
(8000), RATE (requests a second of a run before), VLLM (the program), SERVE (more options of the server; the default leaves torch.compile out), START (seconds that a start may take, 180)."""
import json
import os
import pathlib
import shlex
import shutil
import signal
import subprocess
import sys
import tempfile

BENCH = pathlib.Path(__file__).resolve().parents[1]
sys.path[:0] = [str(BENCH.parent / "python"), str(BENCH)]
import engine_server  # noqa: E402
from served_rows import NAME, WIDTHS, model_folder  # noqa: E402

KEPT = ("request_throughput", "output_throughput", "median_ttft_ms", "p99_ttft_ms", "median_tpot_ms", "p99_tpot_ms", "median_itl_ms", "p99_itl_ms")
# A plugin of the server, which gives it a random bundle: weights that were made up have none.
RANDOM = """def register():
    from oscar_kv.engines import serving
    from oscar_kv.engines.vllm import gauges, serving as ours
    from served_rows import bundle_of
    bundle = bundle_of("{cache}")
    ours.load_bundle = gauges.read_manifest = lambda path, latent=False: bundle
    serving.check_geometry = serving.checkpoint_fingerprint = lambda *given: None
"""
PLAIN = "--compilation-config '{\"mode\": 0, \"cudagraph_mode\": \"FULL_DECODE_ONLY\"}'"


def asked(name, default):
    return type(default)(os.environ.get(name, default))


def made(model):
    """Whether made_up() made it."""
    return (model / "bench_plugin-1.dist-info").exists()


def program():
    return shlex.split(os.environ.get("VLLM", "vllm"))


def made_up():
    """The folder of a model without weights, and the environment of its servers."""
    folder = model_folder()
    for name in ("tokenizer.json", "tokenizer_config.json"):
        shutil.copy(BENCH.parents[1] / "sample_data/tiny-qwen3" / name, folder)
    metadata = folder / "bench_plugin-1.dist-info"
    metadata.mkdir()
    (metadata / "METADATA").write_text("Metadata-Version: 2.1\nName: bench-plugin\nVersion: 1\n")
    (metadata / "entry_points.txt").write_text("[vllm.general_plugins]\nrandom_bundle = random_bundle_plugin:register\n")
    os.environ["PYTHONPATH"] = os.pathsep.join(p for p in (str(folder), str(BENCH), os.environ.get("PYTHONPATH", "")) if p)
    os.environ["SERVE"] = f"--load-format dummy {os.environ.get('SERVE', PLAIN)}"
    return folder


def serve_options(model, cache):
    options = [str(model), "--dtype", "bfloat16", "--port", str(asked("PORT", 8000)), "--max-num-seqs", str(asked("SLOTS", 64)), "--max-model-len",
               str(4 * (asked("INPUT", 512) + asked("OUTPUT", 256))), "--enable-prefix-caching" if os.environ.get("PREFIX") else
               "--no-enable-prefix-caching", *shlex.split(os.environ.get("SERVE", PLAIN))]
    if os.path.isdir(cache) or cache in WIDTHS:
        bundle = str(model) if cache in WIDTHS else cache
        return options + ["--kv-cache-dtype", "oscar", "--attention-backend", "OSCAR", "--additional-config", json.dumps({"oscar_bundle": bundle})]
    return options if cache == "bf16" else options + ["--kv-cache-dtype", cache]


def client_options(model, rate, folder):
    return ["--backend", "openai", "--port", str(asked("PORT", 8000)), "--model", str(model), "--dataset-name", "random", "--random-input-len",
            str(asked("INPUT", 512)), "--random-output-len", str(asked("OUTPUT", 256)), "--random-range-ratio", "0.5", "--num-prompts",
            str(asked("REQUESTS", 256)), "--request-rate", str(rate), "--seed", "1", "--ignore-eos", "--disable-tqdm", "--percentile-metrics",
            "ttft,tpot,itl", "--metric-percentiles", "99", "--save-result", "--result-dir", folder, "--result-filename", "found.json"]


def served(model, cache, rate):
    """Asks one server at `rate`, 0: as fast as it answers, and then at SHARE of what it answered. Yields a line for each."""
    if made(model):
        (model / "random_bundle_plugin.py").write_text(RANDOM.format(cache=cache) if cache in WIDTHS else "def register():\n    pass\n")
    with tempfile.NamedTemporaryFile() as log, engine_server.started(
            [*program(), "serve", *serve_options(model, cache)], asked("PORT", 8000), log.name, asked("START", 180)):
        if not rate:
            best = line(model, cache, "inf")
            yield best
            rate = round(asked("SHARE", .7) * best["request_throughput"], 2)
        yield line(model, cache, rate)


def line(model, cache, rate):
    with tempfile.TemporaryDirectory() as folder:
        subprocess.run([*program(), "bench", "serve", *client_options(model, rate, folder)], check=True, stdout=sys.stderr)
        found = json.loads((pathlib.Path(folder) / "found.json").read_text())
    return dict(model=NAME if made(model) else model.name, engine="vllm", cache=cache, prefix_caching=bool(os.environ.get("PREFIX")), slots=asked("SLOTS", 64),
                requests=asked("REQUESTS", 256), inp=asked("INPUT", 512), out=asked("OUTPUT", 256), rate=rate, completed=found["completed"],
                **{key: round(found[key], 2) for key in KEPT})


def main():
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # the server in its session must end, too
    model, lines, rate = made_up() if sys.argv[1] == "random" else pathlib.Path(sys.argv[1]), pathlib.Path(sys.argv[2]), float(os.environ.get("RATE", 0))  # of a run before
    for cache in sys.argv[3:]:
        try:
            for row in served(model, cache, rate):
                print(json.dumps(row), flush=True)
                with lines.open("a") as out:
                    out.write(json.dumps(row) + "\n")
        except RuntimeError as error:
            raise SystemExit(f"bench_serve.py: {cache}: {error}") from None
        rate = rate or row["rate"]


if __name__ == "__main__":
    main()
