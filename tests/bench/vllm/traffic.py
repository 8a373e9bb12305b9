"""traffic.py MODEL CACHE [SLOTS REQUESTS:IN:OUT ...]: what a chat server sees, one process for a cache. REQUESTS prompts of IN/2 to IN*3/2 random
tokens and OUT/2 to OUT*3/2 answers wait at once for SLOTS places (64 256:512:256), so that many steps hold prompts beside single tokens.
Prints a line of JSON a row: tokens per second, and the median time of steps with and without prompts.

MODEL: a checkpoint, a folder with its config.json alone, for made-up weights, or random: the model of throughput.py, or with GEOMETRY=1.5b Qwen2.5-Coder-1.5B's. CACHE: bf16, fp8, another name
that vLLM knows, a bundle's folder, or with random one of throughput.py. Environment: PREFIX=1 (prefix caching on), EAGER_COMPILE= (compilation and graphs as vLLM chooses),
MEMORY (bytes of the KV cache), CONTEXT (the longest request that vLLM is told of, in place of the longest of the rows), PROFILE=1 (kernels of the last row, by time), TURNS=FOLDER:N:R
(N processes share a card: they start together and measure one after another, R rounds; hosts differ by a factor of two from minute to minute;
FOLDER is new for every run) and TURNS_WAIT (the most seconds that one waits for the others, 600)."""
import json
import os
import pathlib
import statistics
import sys
import time

os.environ.setdefault("VLLM_ENABLE_V1_MULTIPROCESSING", "0")
os.environ.setdefault("VLLM_NO_USAGE_STATS", "1")
os.environ.setdefault("VLLM_USE_FLASHINFER_SAMPLER", "0")
os.environ.setdefault("HF_HUB_OFFLINE", "1")
sys.path[:0] = [str(pathlib.Path(__file__).resolve().parent), str(pathlib.Path(__file__).resolve().parents[1])]
import throughput  # noqa: E402
import torch  # noqa: E402
from served_rows import NAME, WIDTHS, model_folder  # noqa: E402
from turns import Turns, longest_request, requests_of  # noqa: E402


def engine_of(model, cache, slots, tokens):
    options = dict(model=str(model), dtype="bfloat16", max_model_len=tokens, gpu_memory_utilization=0.88, max_num_seqs=slots,
                   enable_prefix_caching=bool(os.environ.get("PREFIX")), max_num_batched_tokens=8192)
    if throughput.eager_compile("1"):
        options["compilation_config"] = throughput.EAGER
    if os.environ.get("MEMORY"):
        options.update(kv_cache_memory_bytes=int(float(os.environ["MEMORY"])), gpu_memory_utilization=0.2)
    if not (model / "model.safetensors").exists():
        options.update(load_format="dummy", skip_tokenizer_init=True)
        import oscar_kv.engines.serving as serving
        serving.check_geometry = serving.checkpoint_fingerprint = lambda *given: None  # weights that were made up have none
    if cache in WIDTHS:
        options.update(throughput.ours(cache, model))
    elif os.path.isdir(cache):
        options.update(kv_cache_dtype="oscar", attention_backend="OSCAR", additional_config={"oscar_bundle": cache})
    elif cache != "bf16":
        options["kv_cache_dtype"] = cache
        if cache.startswith("turboquant"):  # as in ../real/serve.py
            throughput.keep_flash_attention_3()
            options["enforce_eager"] = True
    from vllm import LLM
    return LLM(**options)


class Steps:
    """Seconds of the engine's steps, apart by whether they hold prompts."""

    def __init__(self, llm):
        from vllm.v1.worker.gpu.model_runner import GPUModelRunner
        self.mixed, self.seconds = False, {True: [], False: []}
        run, step = GPUModelRunner.execute_model, llm.llm_engine.step

        def noted(runner, work, *given, **named):
            self.mixed = work.total_num_scheduled_tokens > len(work.num_scheduled_tokens)
            return run(runner, work, *given, **named)

        def timed():
            begin = time.perf_counter()
            made = step()
            self.seconds[self.mixed].append(time.perf_counter() - begin)
            return made
        GPUModelRunner.execute_model, llm.llm_engine.step = noted, timed

    def found(self):
        made = {}
        for name, seconds in (("mixed", self.seconds[True]), ("decode", self.seconds[False])):
            made.update({f"{name}_steps": len(seconds), f"{name}_s": round(sum(seconds), 2),
                         f"{name}_ms": round(1e3 * statistics.median(seconds), 2) if seconds else None})
            seconds.clear()
        return made


def profiled(work, steps=1):
    """Kernels by their time. steps: of the work; times and counts are of one."""
    from torch.profiler import ProfilerActivity, profile
    begin = time.perf_counter()
    with profile(activities=[ProfilerActivity.CUDA]) as found:
        work()
    rows = sorted(found.key_averages(), key=lambda row: -row.self_device_time_total)
    seconds, busy = (time.perf_counter() - begin) / steps, sum(r.self_device_time_total for r in rows) / 1e6 / steps
    print(f"wall {seconds:.4f} s, GPU {busy:.4f} s, {sum(r.count for r in rows) / steps:.0f} kernels")
    for row in rows[:30]:
        print(f"{row.self_device_time_total / 1e3 / steps:9.3f} ms {row.count / steps:7.0f} x {row.self_device_time_total / row.count:8.1f} us  {row.key[:90]}")


class Traffic:
    """Requests of random tokens to an engine."""

    def __init__(self, llm, vocabulary):
        self.llm, self.vocabulary, self.steps = llm, vocabulary, Steps(llm)

    def go(self, count, given, made):
        from vllm import SamplingParams
        prompts, limits = requests_of(count, given, made, self.vocabulary)
        begin = time.perf_counter()
        answers = self.llm.generate([{"prompt_token_ids": p} for p in prompts],
                                    [SamplingParams(max_tokens=n, temperature=0, ignore_eos=True, detokenize=False) for n in limits], use_tqdm=False)
        return time.perf_counter() - begin, sum(len(a.outputs[0].token_ids) for a in answers)

    def row(self, requests, given, made):
        """A measured row: a few requests first, which warm the engine up."""
        self.go(min(8, requests), given, made)
        self.steps.found()
        if os.environ.get("PREFIX"):
            self.llm.reset_prefix_cache()  # so that a round finds nothing of the last one
        seconds, tokens = self.go(requests, given, made)
        return dict(requests=requests, inp=given, out=made, seconds=round(seconds, 2), out_tok_s=round(tokens / seconds), **self.steps.found())


def main():
    turns, random_weights, cache = Turns(os.environ.get("TURNS", "")), sys.argv[1] == "random", sys.argv[2]
    model = model_folder() if random_weights else pathlib.Path(sys.argv[1])
    slots = int((sys.argv[3:4] or [64])[0])
    rows = [tuple(map(int, row.split(":"))) for row in sys.argv[4:] or ["256:512:256"]]
    llm = engine_of(model, cache, slots, longest_request(rows))
    traffic = Traffic(llm, json.loads((model / "config.json").read_text())["vocab_size"])
    about = dict(model=NAME if random_weights else model.name, engine="vllm", cache=cache, prefix_caching=bool(os.environ.get("PREFIX")), compiled=not throughput.eager_compile("1"),
                 slots=slots, gpu=torch.cuda.get_device_name())
    for number in turns:
        for row in rows:
            print(json.dumps(about | traffic.row(*row) | {"round": number}), flush=True)
        if os.environ.get("PROFILE"):
            profiled(lambda: traffic.go(76, rows[-1][1], 96))


if __name__ == "__main__":
    main()
