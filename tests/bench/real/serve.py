"""serve.py MODEL CACHE WORK: one cache of a real model in vLLM, a process for a cache: KL of what it decodes token by token from what the BF16 cache
decodes (at 1, 8 and 40 requests), answers to the same prompts at 1, 8 and 40 requests, and the tasks of prompts.py.

CACHE: bf16 (first: the others compare with its files, and wait for them), fp8, turboquant_4bit_nc, or a bundle's folder. WORK holds tasks.json and
agent_eval.txt (texts.py) and gets a file a cache, which table.py reads. What the file has already is not measured again.
Environment: PREFIX=1 (prefix caching: the second pass over the same texts is scored too), NGRAM=1 (speculation), GPUS=2 (with ONE_CARD=1
on one card: one_card.py), EAGER=1, MEMORY (bytes of the KV cache), SLOTS, LENGTHS (tokens of scored texts), TASKS=0, SETS=he,needles, AT_ONE, NOISE=1
(with bf16: tasks once more, 16 at a time), VARIANT (its name in files, otherwise made of PREFIX, NGRAM and EAGER), TRAFFIC (a row of ../vllm/traffic.py) and TURNS."""
import os

os.environ.update(VLLM_ENABLE_V1_MULTIPROCESSING="0", VLLM_NO_USAGE_STATS="1", VLLM_USE_FLASHINFER_SAMPLER="0", HF_HUB_OFFLINE="1")
import forced_vllm  # noqa: E402
import served  # noqa: E402
import throughput  # noqa: E402

NGRAM = bool(os.environ.get("NGRAM"))


def started(model, cache, longest):
    options = dict(model=model, dtype="bfloat16", max_model_len=longest, enable_prefix_caching=served.PREFIX,
                   max_num_seqs=served.SLOTS, max_num_batched_tokens=16384,
                   kv_cache_memory_bytes=int(float(os.environ.get("MEMORY", 20e9))), gpu_memory_utilization=.2,
                   compilation_config={"mode": 0, "cudagraph_mode": "FULL_DECODE_ONLY"})
    if os.environ.get("EAGER"):
        options["enforce_eager"] = True
    if served.GPUS > 1:
        options.update(tensor_parallel_size=served.GPUS, disable_custom_all_reduce=True, distributed_executor_backend="mp")
    if NGRAM:
        options["speculative_config"] = {"method": "ngram", "num_speculative_tokens": 4, "prompt_lookup_max": 4, "prompt_lookup_min": 2}
    if Vllm.scores:
        options["logits_processors"] = [forced_vllm.Forced]
    if os.path.isdir(cache):
        options.update(kv_cache_dtype="oscar", attention_backend="OSCAR", additional_config={"oscar_bundle": cache})
    elif cache != "bf16":
        options["kv_cache_dtype"] = cache
        if cache.startswith("turboquant"):  # recorded steps give FlashAttention 3 metadata of another shape for its layers in BF16
            throughput.keep_flash_attention_3()
            options["enforce_eager"] = True
    from vllm import LLM
    return LLM(**options)


class Vllm:
    name = "vllm"
    scores = not NGRAM  # vLLM takes no logits processors beside speculation

    def __init__(self, model, cache, longest):
        self.llm = started(model, cache, longest)
        import vllm
        self.versions = f"vllm {vllm.__version__}"

    def ask(self, given, most):
        from vllm import SamplingParams
        answers = self.llm.generate([{"prompt_token_ids": p} for p in given], SamplingParams(max_tokens=most, temperature=0), use_tqdm=False)
        return [{"text": a.outputs[0].text, "ids": list(a.outputs[0].token_ids)} for a in answers]

    def force(self, prompts, wanted):
        return forced_vllm.ask(self.llm, prompts, wanted)

    def row(self, vocabulary):
        from traffic import Traffic
        return Traffic(self.llm, vocabulary).row


if __name__ == "__main__":
    served.main(Vllm)
