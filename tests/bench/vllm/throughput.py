"""throughput.py CACHE JOB ...: the geometry of Qwen3-8B with random weights in vLLM, one process for a cache. Each line of JSON that it
prints is a measurement.

CACHE: bf16, fp8, another name that vLLM knows (turboquant_3bit_nc), or ours with random rotations: uniform, blocks (widths 4-2-1-1).
JOB: INPUT:OUTPUT:REQUESTS, all requests at once: seconds of the prompts alone (one token each) and of prompts and output; decode tokens/s
from the difference. INPUT:OUTPUT:fill is as many requests as the cache holds at a time, up to MOST.

Environment: BATCHED (tokens of a step, default 8192, vLLM's own for this GPU), SLOTS (requests at a time, default the most asked for),
MOST (of fill, default 256), EAGER_COMPILE=1 (no torch.compile, graphs of decode steps only, for machines whose torch is not vLLM's),
PREFIX=1 (prefix caching on), SPEC=k (prompts repeat a phrase of 512 tokens, and k tokens of n-grams are proposed in every step; 0: none
are), PROFILE=prompts or decode (a table of kernels at the end; decode: the first job with 2 and 66 tokens).

BATCHED at least as long as a prompt keeps prompts whole; at 8192 longer ones come in chunks, and prompts that share a step with single
tokens are cut as well: the second is what a server does all day."""
import json
import os
import pathlib
import sys
import tempfile
import time

os.environ.setdefault("VLLM_ENABLE_V1_MULTIPROCESSING", "0")
os.environ.setdefault("VLLM_NO_USAGE_STATS", "1")
os.environ.setdefault("VLLM_USE_FLASHINFER_SAMPLER", "0")
os.environ.setdefault("HF_HUB_OFFLINE", "1")
import torch  # noqa: E402

CONFIG = dict(architectures=["Qwen3ForCausalLM"], model_type="qwen3", vocab_size=151936, hidden_size=4096, intermediate_size=12288,
              num_hidden_layers=36, num_attention_heads=32, num_key_value_heads=8, head_dim=128, hidden_act="silu",
              max_position_embeddings=131072, initializer_range=0.02, rms_norm_eps=1e-6, use_cache=True, tie_word_embeddings=False,
              rope_theta=1e6, attention_bias=False, torch_dtype="bfloat16", bos_token_id=1, eos_token_id=2)
WIDTHS = {"uniform": None, "blocks": (4, 2, 1, 1)}


def jobs_of(texts):
    for text in texts:
        length, tokens, count = text.split(":")
        yield int(length), int(tokens), None if count == "fill" else int(count)


def engine_of(cache, jobs):
    model = pathlib.Path(tempfile.mkdtemp())
    (model / "config.json").write_text(json.dumps(CONFIG))
    most = max(int(os.environ.get("MOST", 256)) if count is None else count for _, _, count in jobs)
    options = dict(model=str(model), load_format="dummy", skip_tokenizer_init=True, dtype="bfloat16",
                   max_model_len=max(i + o for i, o, _ in jobs) + 64, gpu_memory_utilization=float(os.environ.get("MEMORY", 0.92)),
                   enable_prefix_caching=bool(os.environ.get("PREFIX")), max_num_seqs=int(os.environ.get("SLOTS", 0)) or most,
                   max_num_batched_tokens=int(os.environ.get("BATCHED", 8192)))
    if int(os.environ.get("SPEC") or 0):
        options.update(disable_log_stats=False, speculative_config=dict(method="ngram", num_speculative_tokens=int(os.environ["SPEC"]),
                                                                        prompt_lookup_min=2, prompt_lookup_max=4))
    if os.environ.get("EAGER_COMPILE"):
        options["compilation_config"] = {"mode": 0, "cudagraph_mode": "FULL_DECODE_ONLY"}
    if cache in WIDTHS:
        import oscar_kv.vllm_serving as serving
        sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2] / "python"))
        from random_bundles import random_bundle
        bundle = random_bundle(36, 8, 128, WIDTHS[cache], WIDTHS[cache], centered=False)
        serving.load_bundle = lambda path: bundle
        options.update(kv_cache_dtype="oscar2", attention_backend="OSCAR", additional_config={"oscar_bundle": str(model)})
    elif cache != "bf16":
        options["kv_cache_dtype"] = cache
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
    cache, jobs = sys.argv[1], list(jobs_of(sys.argv[2:]))
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

    def prompts_of(length, count):
        phrase = 512 if spec else length
        ids = [torch.randint(10, 150000, (phrase,), generator=generator).repeat(-(-length // phrase))[:length] for _ in range(count)]
        return [{"prompt_token_ids": one.tolist()} for one in ids]

    seconds(prompts_of(500, 2), 4)
    for job, (length, tokens, count) in zip(sys.argv[2:], jobs):
        count = count or max(1, min(int(os.environ.get("MOST", 256)), capacity // (length + tokens + 64)))
        alone = seconds(prompts_of(length, count), 1) if tokens > 1 else 0.0
        before = speculated(llm) if int(spec or 0) else None
        whole = seconds(prompts_of(length, count), tokens)
        found = {}
        if spec:  # a step of one request after the other; with several requests at a time, drafts are counted for each
            drafts, proposed, kept = [n - was for n, was in zip(speculated(llm), before)] if before else [count * (tokens - 1), 0, 0]
            found = {"accepted": round(kept / proposed, 3) if proposed else None, "step_ms": round(1e3 * count * (whole - alone) / max(drafts, 1), 3)}
        print(json.dumps({**about, **found, "job": job, "input": length, "output": tokens, "requests": count, "prompts_s": round(alone, 3), "all_s": round(whole, 3),
                          "decode_tokens_s": round(count * (tokens - 1) / max(whole - alone, 1e-9), 1),
                          "all_tokens_s": round(count * (length + tokens) / whole, 1)}), flush=True)
    asked = os.environ.get("PROFILE", "")
    if "prompts" in asked:
        prompts = prompts_of(8000, 16)
        profile_of(lambda: seconds(prompts, 48))
    if "decode" in asked:
        prompts = prompts_of(jobs[0][0], jobs[0][2] or 1)
        profile_of(lambda: seconds(prompts, 2))
        profile_of(lambda: seconds(prompts, 66))


main()
