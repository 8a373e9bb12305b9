"""throughput.py CACHE JOB ...: the geometry of Qwen3-8B with random weights in SGLang 0.5.23, one engine for a cache. Each line of JSON that
it prints is a measurement.

CACHE: bf16, fp8 (fp8_e4m3), or ours with random rotations: uniform, blocks (widths 4-2-1-1), mixed (each layer and side its own).
JOB: INPUT:OUTPUT:REQUESTS or INPUT:OUTPUT:fill (../served_rows.py).

Environment: BACKEND (of bf16 and fp8, default fa3), CHUNK (tokens of a chunk, default 8192), SLOTS (requests at a time, default the most
asked for), MOST (of fill, default 256), MEMORY (share of the card's free memory for weights and cache, default .88), TOKENS (the most of the cache,
default as many as fit), RADIX=1 (radix cache on), EAGER=1 (no graphs), LAYERS (default 36; fewer for a first look), DEVICE=cpu."""
import json
import os
import pathlib
import sys
import time

os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("SGLANG_DISABLE_CUDNN_CHECK", "1")
os.environ.setdefault("SGLANG_USE_SGL_FA3_KERNEL", "1")  # FlashAttention 3 of sglang-kernel, not of a download
sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1]))
from served_rows import TESTS, WIDTHS, jobs_of, model_folder, most_requests, plugin_path, prompts_of, requests_of, row, times_prompts  # noqa: E402

DEVICE = os.environ.get("DEVICE", "cuda")
if DEVICE == "cpu":  # without SGLang's compiled kernels, as in the tests
    sys.path.insert(0, str(TESTS))
    import sglang_setup
    sglang_setup.prepare()


def plugins(folder, cache):
    """A random bundle for this process and those of SGLang."""
    os.environ["PYTHONPATH"] = plugin_path(folder, "sglang", cache)
    sys.path[:0] = [str(folder), str(TESTS)]
    os.environ["OSCAR_KV_BUNDLE"] = str(folder)


def engine_of(cache, slots, longest):
    """The engine, and its options. longest: tokens of a request and its answer."""
    model = model_folder()
    options = dict(model_path=str(model), load_format="dummy", skip_tokenizer_init=True, dtype="bfloat16", page_size=64, device=DEVICE,
                   context_length=max(600, longest), mem_fraction_static=float(os.environ.get("MEMORY", 0.88)),
                   max_total_tokens=int(float(os.environ.get("TOKENS", 0))) or None, disable_radix_cache="RADIX" not in os.environ,
                   max_running_requests=slots, chunked_prefill_size=int(os.environ.get("CHUNK", 8192)), disable_prefill_cuda_graph=True,
                   disable_cuda_graph="EAGER" in os.environ, sampling_backend="pytorch", log_level="warning",
                   port=20000 + os.getpid() % 4000 * 10)  # engines that start at once
    if "EAGER" not in os.environ:
        options["cuda_graph_bs_decode"] = sorted({1, 2, 4, 8, 16, 32, 64, 128, 256} & set(range(slots)) | {slots})
    if cache in WIDTHS:
        plugins(model, cache)
        options["attention_backend"] = "oscar"
    else:
        options["attention_backend"] = os.environ.get("BACKEND", "fa3")
        options["kv_cache_dtype"] = {"bf16": "auto", "fp8": "fp8_e4m3"}[cache]
    import sglang
    return sglang.Engine(**options), options


def capacity_of(engine):
    """Tokens that its cache holds."""
    facts = engine.get_server_info()
    return facts.get("max_total_num_tokens") or facts["internal_states"][0]["memory_usage"]["token_capacity"]


def main():
    cache, jobs = sys.argv[1], list(jobs_of(sys.argv[2:]))
    begin = time.perf_counter()
    engine, options = engine_of(cache, int(os.environ.get("SLOTS", 0)) or most_requests(jobs), max(i + o + 64 for _, i, o, _ in jobs))
    import torch
    capacity = capacity_of(engine)
    gpu = torch.cuda.get_device_name() if torch.cuda.is_available() else "cpu"
    about = {"cache": cache, "backend": options["attention_backend"], "chunk": options["chunked_prefill_size"],
             "radix_cache": not options["disable_radix_cache"]}
    print(json.dumps({**about, "capacity": capacity, "gpu": gpu, "torch": torch.__version__, "graphs": not options["disable_cuda_graph"],
                      "start_s": round(time.perf_counter() - begin, 1)}), flush=True)
    generator = torch.Generator().manual_seed(1)

    def seconds(prompts, tokens):
        begin = time.perf_counter()
        engine.generate(input_ids=prompts, sampling_params={"max_new_tokens": tokens, "temperature": 0, "ignore_eos": True})
        return time.perf_counter() - begin

    for length, count in ((500, 2), (min(options["chunked_prefill_size"], max(job[1] for job in jobs)), 1)):  # what is compiled at its first call is not timed
        seconds(prompts_of(length, count, generator), 4)
    for job in jobs:
        _, length, tokens, _ = job
        count = requests_of(job, capacity)
        alone = seconds(prompts_of(length, count, generator), 1) if times_prompts(job) else 0.0
        whole = seconds(prompts_of(length, count, generator), tokens)
        print(row(about, job, count, alone, whole), flush=True)
    engine.shutdown()


if __name__ == "__main__":  # SGLang starts its processes anew
    main()
