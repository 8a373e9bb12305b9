"""traffic.py MODEL CACHE [REQUESTS SLOTS IN OUT]: what a chat server sees, one process for a cache. REQUESTS (256) prompts of IN/2 to IN*3/2
random tokens (512) and OUT/2 to OUT*3/2 answers (256) wait at once for SLOTS places (64), so that many steps hold prompts beside single tokens.
Prints a line of JSON.

MODEL: a checkpoint, or a folder with its config.json alone, for made-up weights. CACHE: bf16, fp8, another name that vLLM knows, or a bundle's
folder. Environment: PREFIX=1 (prefix caching on)."""
import json
import os
import pathlib
import random
import sys
import time

os.environ.setdefault("VLLM_ENABLE_V1_MULTIPROCESSING", "0")
os.environ.setdefault("VLLM_NO_USAGE_STATS", "1")
os.environ.setdefault("VLLM_USE_FLASHINFER_SAMPLER", "0")
os.environ.setdefault("HF_HUB_OFFLINE", "1")
import torch  # noqa: E402


def engine_of(model, cache, slots, tokens):
    options = dict(model=str(model), dtype="bfloat16", max_model_len=tokens, gpu_memory_utilization=0.88, max_num_seqs=slots,
                   enable_prefix_caching=bool(os.environ.get("PREFIX")), max_num_batched_tokens=8192,
                   compilation_config={"mode": 0, "cudagraph_mode": "FULL_DECODE_ONLY"})
    if not (model / "model.safetensors").exists():
        options.update(load_format="dummy", skip_tokenizer_init=True)
        import oscar_kv.engines.serving as serving
        serving.check_geometry = lambda *given: None  # weights that were made up have no fingerprint
    if os.path.isdir(cache):
        options.update(kv_cache_dtype="oscar", attention_backend="OSCAR", additional_config={"oscar_bundle": cache})
    elif cache != "bf16":
        options["kv_cache_dtype"] = cache
    from vllm import LLM
    return LLM(**options)


def main():
    model, cache = pathlib.Path(sys.argv[1]), sys.argv[2]
    requests, slots, given, made = [int(x) for x in (*sys.argv[3:7], *(256, 64, 512, 256)[len(sys.argv[3:7]):])]
    llm = engine_of(model, cache, slots, 2 * given + 2 * made + 64)
    from vllm import SamplingParams
    vocabulary = json.loads((model / "config.json").read_text())["vocab_size"]
    random.seed(0)
    generator = torch.Generator().manual_seed(0)

    def go(count):
        prompts = [{"prompt_token_ids": torch.randint(100, vocabulary - 1000, (random.randint(given // 2, given * 3 // 2),), generator=generator).tolist()}
                   for _ in range(count)]
        limits = [SamplingParams(max_tokens=random.randint(made // 2, made * 3 // 2), temperature=0, ignore_eos=True, detokenize=False) for _ in prompts]
        begin = time.perf_counter()
        answers = llm.generate(prompts, limits, use_tqdm=False)
        return time.perf_counter() - begin, sum(len(a.outputs[0].token_ids) for a in answers)

    go(8)
    seconds, tokens = go(requests)
    print(json.dumps(dict(model=model.name, engine="vllm", cache=cache, prefix_caching=bool(os.environ.get("PREFIX")), requests=requests, slots=slots,
                          inp=given, out=made, seconds=round(seconds, 2), out_tok_s=round(tokens / seconds), gpu=torch.cuda.get_device_name())),
          flush=True)


main()
