"""throughput.py CACHE JOB ...: the geometry of Qwen3-8B with random weights in vLLM, one process for a cache. Each line of JSON that it
prints is a measurement.

CACHE: bf16, fp8, another name that vLLM knows (turboquant_3bit_nc), or ours with random rotations: uniform, blocks (widths 4-2-1-1), mixed (each layer
and side its own, as fitted).
JOB: INPUT:OUTPUT:REQUESTS or INPUT:OUTPUT:fill (../served_rows.py).

Environment: BATCHED (tokens of a step, default 8192, vLLM's own for this GPU), SLOTS (requests at a time, default the most asked for),
MOST (of fill, default 256), LAYERS (default 36), EAGER_COMPILE=1 (no torch.compile, graphs of decode steps only, for machines whose torch is not vLLM's),
PREFIX=1 (prefix caching on), KV (bytes of the cache, in place of what the card has left), TURNS and TURNS_WAIT as in traffic.py, SPEC=k (prompts repeat a
phrase of 512 tokens, and k tokens of n-grams are proposed in every step; 0: none are), HEAD=n (with SPEC: an EAGLE-3 head with made-up weights proposes in place of n-grams, and vLLM takes n tokens of a step, drawn at random),
PROFILE=prompts or decode (a table of kernels at the end; decode: the first job with 2 and 66 tokens).

BATCHED at least as long as a prompt keeps prompts whole; at 8192 longer ones come in chunks, and prompts that share a step with single
tokens are cut as well: the second is what a server does all day."""
import json
import os
import pathlib
import sys
import time

os.environ.setdefault("VLLM_ENABLE_V1_MULTIPROCESSING", "0")
os.environ.setdefault("VLLM_NO_USAGE_STATS", "1")
os.environ.setdefault("VLLM_USE_FLASHINFER_SAMPLER", "0")
os.environ.setdefault("HF_HUB_OFFLINE", "1")
sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1]))
import torch  # noqa: E402
from served_rows import WIDTHS, give_bundle, head_folder, jobs_of, model_folder, most_requests, prompts_of, requests_of, row, times_prompts  # noqa: E402
from turns import Turns  # noqa: E402


EAGER = {"mode": 0, "cudagraph_mode": "FULL_DECODE_ONLY"}  # no torch.compile, graphs of decode steps only


def keep_flash_attention_3():
    """vLLM gives TurboQuant FlashAttention 2. Its wheel has those kernels only for compute capability 8.0, and on Hopper the driver translates
    them for minutes. Version 3 works as well, and is what the other caches have. The layers in BF16 plan their work in the kernel, because
    vLLM plans for another version."""
    from vllm.engine.arg_utils import EngineArgs
    from vllm.v1.attention.backends.flash_attn import FlashAttentionMetadataBuilder
    create, prepare = EngineArgs.create_engine_config, FlashAttentionMetadataBuilder.__init__

    def create_with_3(self, *args, **kwargs):
        config = create(self, *args, **kwargs)
        config.attention_config.flash_attn_version = 3
        return config

    def prepare_without_plan(self, *args, **kwargs):
        prepare(self, *args, **kwargs)
        self.aot_schedule = False

    EngineArgs.create_engine_config, FlashAttentionMetadataBuilder.__init__ = create_with_3, prepare_without_plan


def eager_compile(default=""):
    """Whether EAGER_COMPILE asks for no torch.compile."""
    return bool(os.environ.get("EAGER_COMPILE", default))


def ours(cache, model):
    """vLLM's options for a bundle with random rotations."""
    give_bundle("vllm", cache)
    return dict(kv_cache_dtype="oscar", attention_backend="OSCAR", additional_config={"oscar_bundle": str(model)})


def engine_of(cache, jobs):
    model = model_folder()
    options = dict(model=str(model), load_format="dummy", skip_tokenizer_init=True, dtype="bfloat16",
                   max_model_len=max(i + o for _, i, o, _ in jobs) + 64, gpu_memory_utilization=float(os.environ.get("MEMORY", 0.92)),
                   enable_prefix_caching=bool(os.environ.get("PREFIX")), max_num_seqs=int(os.environ.get("SLOTS", 0)) or most_requests(jobs),
                   max_num_batched_tokens=int(os.environ.get("BATCHED", 8192)))
    if int(os.environ.get("SPEC") or 0):
        made = dict(method="ngram", prompt_lookup_min=2, prompt_lookup_max=4)
        if os.environ.get("HEAD"):
            made = dict(method="eagle3", model=str(head_folder()), rejection_sample_method="synthetic",
                        synthetic_acceptance_length=float(os.environ["HEAD"]))
        options.update(disable_log_stats=False, speculative_config=made | dict(num_speculative_tokens=int(os.environ["SPEC"])))
    if eager_compile():
        options["compilation_config"] = EAGER
    if os.environ.get("KV"):
        options.update(kv_cache_memory_bytes=int(float(os.environ["KV"])), gpu_memory_utilization=0.2)
    if cache in WIDTHS:
        options.update(ours(cache, model))
    elif cache != "bf16":
        options["kv_cache_dtype"] = cache
        if cache.startswith("turboquant"):
            keep_flash_attention_3()
    from vllm import LLM
    return LLM(**options)


def profile_of(work):
    """Kernels by their share, and how many there were."""
    from torch.profiler import ProfilerActivity, profile
    with profile(activities=[ProfilerActivity.CUDA, ProfilerActivity.CPU]) as found:
        work()
    rows = sorted((r for r in found.key_averages() if r.self_device_time_total > 0), key=lambda r: -r.self_device_time_total)
    total = sum(r.self_device_time_total for r in rows)
    print(json.dumps({"gpu_ms": round(total / 1e3, 2), "launches": sum(r.count for r in rows if r.device_type.name == "CUDA")}))
    for r in rows[:45]:
        print(f"{r.self_device_time_total / 1e3:10.2f} ms {100 * r.self_device_time_total / total:5.1f} % {r.count:7d} x  {r.key[:110]}")


def speculated(llm):
    """Steps with proposals so far, and their proposed and accepted tokens."""
    found = {m.name: m.value for m in llm.get_metrics() if m.name.startswith("vllm:spec_decode_num") and hasattr(m, "value")}
    return [found.get(f"vllm:spec_decode_num_{name}", 0) for name in ("drafts", "draft_tokens", "accepted_tokens")]


def main():
    turns, cache, jobs = Turns(os.environ.get("TURNS", "")), sys.argv[1], list(jobs_of(sys.argv[2:]))
    begin = time.perf_counter()
    llm = engine_of(cache, jobs)
    from vllm import SamplingParams
    config = llm.llm_engine.vllm_config
    capacity = config.cache_config.num_gpu_blocks * config.cache_config.block_size
    about = {"cache": cache, "batched": int(os.environ.get("BATCHED", 8192)), "prefix_caching": bool(os.environ.get("PREFIX"))}
    print(json.dumps({**about, "capacity": capacity, "gpu": torch.cuda.get_device_name(), "torch": torch.__version__,
                      "graphs": str(config.compilation_config.cudagraph_mode), "start_s": round(time.perf_counter() - begin, 1)}), flush=True)
    generator = torch.Generator().manual_seed(1)

    def seconds(prompts, tokens):
        begin = time.perf_counter()
        llm.generate(prompts, SamplingParams(max_tokens=tokens, temperature=0, ignore_eos=True, detokenize=False), use_tqdm=False)
        return time.perf_counter() - begin

    spec = os.environ.get("SPEC", "")
    if spec:
        about["speculated"] = int(spec)

    def prompts(length, count):
        return [{"prompt_token_ids": ids} for ids in prompts_of(length, count, generator, 512 if spec else None)]

    seconds(prompts(500, 2), 4)
    for number, job in ((number, job) for number in turns for job in jobs):
        _, length, tokens, _ = job
        count = requests_of(job, capacity)
        alone = seconds(prompts(length, count), 1) if times_prompts(job) else 0.0
        before = speculated(llm) if int(spec or 0) else None
        whole = seconds(prompts(length, count), tokens)
        found = {}
        if spec and alone:  # a step of one request after the other; with several requests at a time, drafts are counted for each
            drafts, proposed, kept = [n - was for n, was in zip(speculated(llm), before)] if before else [count * (tokens - 1), 0, 0]
            found = {"accepted": round(kept / proposed, 3) if proposed else None, "step_ms": round(1e3 * count * (whole - alone) / max(drafts, 1), 3)}
        print(row({**about, **found, "round": number}, job, count, alone, whole), flush=True)
    asked = os.environ.get("PROFILE", "")
    if "prompts" in asked:
        asked_of = prompts(8000, 16)
        profile_of(lambda: seconds(asked_of, 48))
    if "decode" in asked:
        asked_of = prompts(jobs[0][1], jobs[0][3] or 1)
        profile_of(lambda: seconds(asked_of, 2))
        profile_of(lambda: seconds(asked_of, 66))


if __name__ == "__main__":
    main()
