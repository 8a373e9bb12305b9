"""serve_sglang.py MODEL CACHE WORK: the twin of serve.py for SGLang 0.5.23, with its offline Engine: files and environment are the same, but for
NGRAM and TURBOQUANT, which it has not. CACHE: bf16 (first), fp8 (fp8_e4m3), or a bundle's folder.

Instead of MEMORY: TOKENS (of the KV cache, default 400,000) and SHARE (of the card that SGLang may see, default .9; processes that share a card
start when others have taken theirs). CHUNK (default 8192), BACKEND (of bf16 and fp8, default fa3), PREFIX=1 (radix cache on), DEVICE=cpu."""
import os
import pathlib
import sys
import time

HERE = pathlib.Path(__file__).resolve().parent
os.environ.update(HF_HUB_OFFLINE="1", SGLANG_DISABLE_CUDNN_CHECK="1", SGLANG_USE_SGL_FA3_KERNEL="1")
os.environ["PYTHONPATH"] = os.pathsep.join(p for p in (str(HERE), os.environ.get("PYTHONPATH", "")) if p)  # of SGLang's processes, for forced_sglang
if os.environ.get("DEVICE") == "cpu":  # without SGLang's compiled kernels, as in the tests
    sys.path.insert(0, str(HERE.parents[1] / "python"))
    import sglang_setup
    sglang_setup.prepare()
import served  # noqa: E402


def started(model, cache, longest):
    options = dict(model_path=model, dtype="bfloat16", context_length=longest, page_size=64, max_running_requests=served.SLOTS,
                   max_total_tokens=int(float(os.environ.get("TOKENS", 4e5))), mem_fraction_static=float(os.environ.get("SHARE", .9)),
                   chunked_prefill_size=int(os.environ.get("CHUNK", 8192)), disable_radix_cache=not served.PREFIX, sampling_backend="pytorch",
                   disable_prefill_cuda_graph=True, disable_cuda_graph=bool(os.environ.get("EAGER")), enable_custom_logit_processor=True,
                   device=os.environ.get("DEVICE", "cuda"), log_level="info", tp_size=served.GPUS, disable_custom_all_reduce=served.GPUS > 1,
                   port=20000 + os.getpid() % 4000 * 10)  # processes that start at once
    if not options["disable_cuda_graph"]:
        options["cuda_graph_bs_decode"] = sorted({1, 2, 4, 8, 16, 32, 40, 64} & set(range(served.SLOTS)) | {served.SLOTS})
    if os.path.isdir(cache):
        os.environ["OSCAR_KV_BUNDLE"] = cache
        options["attention_backend"] = "oscar"
    else:
        options["attention_backend"] = os.environ.get("BACKEND", "fa3")
        options["kv_cache_dtype"] = {"bf16": "auto", "fp8": "fp8_e4m3"}[cache]
    import sglang
    return sglang.Engine(**options)


class Sglang:
    name, scores = "sglang", True

    def __init__(self, model, cache, longest):
        self.engine = started(model, cache, longest)
        import sglang
        self.versions = f"sglang {sglang.__version__}"

    def ask(self, given, most):
        answers = self.engine.generate(input_ids=given, sampling_params={"max_new_tokens": most, "temperature": 0})
        return [{"text": a["text"], "ids": a["output_ids"]} for a in answers]

    def force(self, prompts, wanted):
        import forced_sglang
        return forced_sglang.ask(self.engine, prompts, wanted)

    def row(self, vocabulary):
        from turns import requests_of

        def go(count, given, made):
            prompts, limits = requests_of(count, given, made, vocabulary)
            begin = time.perf_counter()
            answers = self.engine.generate(input_ids=prompts, sampling_params=[{"max_new_tokens": n, "temperature": 0, "ignore_eos": True} for n in limits])
            return time.perf_counter() - begin, sum(a["meta_info"]["completion_tokens"] for a in answers)

        def row(requests, given, made):
            go(min(8, requests), given, made)
            if served.PREFIX:
                self.engine.flush_cache()  # so that a round finds nothing of the last one
            seconds, tokens = go(requests, given, made)
            return dict(requests=requests, inp=given, out=made, seconds=round(seconds, 2), out_tok_s=round(tokens / seconds))
        return row


if __name__ == "__main__":  # SGLang starts its processes anew
    served.main(Sglang)
