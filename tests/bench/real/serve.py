"""serve.py MODEL CACHE WORK: one cache of a real model in vLLM, a process for a cache: KL of what it decodes token by token from what the BF16 cache
decodes (at 1, 8 and 40 requests), answers to the same prompts at 1, 8 and 40 requests, and the tasks of prompts.py.

CACHE: bf16 (first: the others compare with its files, and wait for them), fp8, turboquant_4bit_nc, or a bundle's folder. WORK holds tasks.json and
agent_eval.txt (texts.py) and gets a file a cache, which table.py reads. What the file has already is not measured again.
Environment: PREFIX=1 (prefix caching: the second pass over the same texts is scored too), NGRAM=1 (speculation), EAGER=1, MEMORY (bytes of the
KV cache), SLOTS, LENGTHS (tokens of scored texts), TASKS=0, SETS=he,needles, AT_ONE, NOISE=1 (with bf16: tasks once more, 16 at a time), TRAFFIC (a row of
../vllm/traffic.py) and TURNS."""
import json
import os
import pathlib
import sys
import time

os.environ.update(VLLM_ENABLE_V1_MULTIPROCESSING="0", VLLM_NO_USAGE_STATS="1", VLLM_USE_FLASHINFER_SAMPLER="0", HF_HUB_OFFLINE="1")
sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "vllm"))
import forced  # noqa: E402
import prompts  # noqa: E402
import quality  # noqa: E402
import torch  # noqa: E402
from transformers import AutoTokenizer  # noqa: E402

REQUESTS = (1, 8, 40)
LENGTHS = [int(n) for n in os.environ.get("LENGTHS", "2112,8192").split(",")]
TASKS = (("he", 512), ("he_behind", 512), ("needles", 24), ("variables", 48), ("quotes", 256), ("calls", 512))  # sets, and the longest answers
AT_ONE = int(os.environ.get("AT_ONE", 40))  # texts and answers that are made one at a time


def engine(model, cache, longest):
    options = dict(model=model, dtype="bfloat16", max_model_len=longest, enable_prefix_caching=bool(os.environ.get("PREFIX")),
                   max_num_seqs=int(os.environ.get("SLOTS", 96)), max_num_batched_tokens=16384,
                   kv_cache_memory_bytes=int(float(os.environ.get("MEMORY", 20e9))), gpu_memory_utilization=.2,
                   compilation_config={"mode": 0, "cudagraph_mode": "FULL_DECODE_ONLY"})
    if os.environ.get("EAGER"):
        options["enforce_eager"] = True
    if os.environ.get("NGRAM"):  # vLLM takes no logits processors beside it
        options["speculative_config"] = {"method": "ngram", "num_speculative_tokens": 4, "prompt_lookup_max": 4, "prompt_lookup_min": 2}
    else:
        options["logits_processors"] = [forced.Forced]
    if os.path.isdir(cache):
        options.update(kv_cache_dtype="oscar", attention_backend="OSCAR", additional_config={"oscar_bundle": cache})
    elif cache != "bf16":
        options["kv_cache_dtype"] = cache
        if cache.startswith("turboquant"):  # its prompts are FlashAttention's
            options["attention_config"] = {"flash_attn_version": 3}
    from vllm import LLM
    return LLM(**options)


class Measured:
    """A JSON file that is written after every measurement."""

    def __init__(self, path):
        self.path = path
        self.found = json.loads(path.read_text()) if path.exists() else {}

    def __call__(self, name, make):
        if name not in self.found:
            begin = time.perf_counter()
            self.found[name] = make()
            self.found[name + "_s"] = round(time.perf_counter() - begin, 2)
            self.path.write_text(json.dumps(self.found))
            print(self.path.stem, name, self.found[name + "_s"], "s", flush=True)


def score(llm, measured, work, length, ids):
    """KL at `length`; the BF16 cache is compared with itself at one request."""
    folder = work / f"bf16-{length}"
    forced.TEXTS[:] = quality.sequences(ids, None, length, max(REQUESTS))
    texts = range(len(forced.TEXTS))
    done = folder / "done"
    if not done.exists() and measured.found["cache"] == "bf16":
        folder.mkdir(exist_ok=True)
        forced.run(llm, texts, 1, forced.Recorded(folder))
        done.touch()
    while not done.exists():
        time.sleep(.2)
    for requests in REQUESTS:
        for again in ("", "_again") if os.environ.get("PREFIX") else ("",):
            sink = forced.Compared(folder)

            def one():
                forced.run(llm, texts[:AT_ONE] if requests == 1 else texts, requests, sink)
                return sink.found()
            measured(f"kl_{length}_{requests}{again}", one)


def main():
    model, cache, work = sys.argv[1], sys.argv[2], pathlib.Path(sys.argv[3])
    name = pathlib.Path(cache).name + "".join(f"-{v.lower()}" for v in ("PREFIX", "NGRAM", "EAGER") if os.environ.get(v))
    measured = Measured(work / f"{name}.json")
    tokenizer = AutoTokenizer.from_pretrained(model)
    limit = json.loads((pathlib.Path(model) / "config.json").read_text())["max_position_embeddings"]
    sets, wanted = prompts.of(tokenizer, work, limit)
    longest = min(limit, max(len(p) for s in sets.values() for p in s) + 600)
    sets = {k: [p for p in s if len(p) + 512 <= longest or k not in ("he", "he_behind")] for k, s in sets.items()}
    begin = time.perf_counter()
    llm = engine(model, cache, longest)
    import vllm
    from vllm import SamplingParams
    measured.found.update(model=pathlib.Path(model).name, engine="vllm", cache=cache, name=name, gpu=torch.cuda.get_device_name(), longest=longest,
                          versions=f"vllm {vllm.__version__}, torch {torch.__version__}", start_s=round(time.perf_counter() - begin, 1),
                          prefix_caching=bool(os.environ.get("PREFIX")), wanted=wanted, most={name: most for name, most in TASKS})

    def ask(given, most):
        answers = llm.generate([{"prompt_token_ids": p} for p in given], SamplingParams(max_tokens=most, temperature=0), use_tqdm=False)
        return [{"text": a.outputs[0].text, "ids": list(a.outputs[0].token_ids)} for a in answers]

    def scores():
        ids = tokenizer((work / "agent_eval.txt").read_text(), add_special_tokens=False)["input_ids"]
        for length in LENGTHS:
            if length <= longest:
                score(llm, measured, work, length, ids)

    def answers():
        some = sets["he_behind"][:40]
        measured("one", lambda: [ask([p], 64)[0] for p in some[:AT_ONE]])
        measured("eight", lambda: ask(some[:8], 64))
        measured("forty", lambda: ask(some, 64))

    def tasks_solved():
        for key, most in TASKS:
            if key not in os.environ.get("SETS", key).split(",") or not sets.get(key):
                continue
            measured(key, lambda: ask(sets[key], most))
        if cache == "bf16" and os.environ.get("NOISE"):  # of another batch size
            measured("he_behind_again", lambda: [a for i in range(0, len(sets["he_behind"]), 16) for a in ask(sets["he_behind"][i:i + 16], 512)])

    def traffic():
        from traffic import Traffic, Turns
        sender = Traffic(llm, json.loads((pathlib.Path(model) / "config.json").read_text())["vocab_size"])
        rows = [sender.row(*map(int, os.environ["TRAFFIC"].split(":"))) | {"round": number} for number in Turns(os.environ.get("TURNS", ""))]
        measured("traffic", lambda: rows)

    parts = [scores, answers] + [tasks_solved] * (os.environ.get("TASKS") != "0")
    if os.environ.get("NGRAM"):
        parts.remove(scores)
    for part in parts if cache == "bf16" else parts[::-1]:  # others wait for the files of the BF16 cache last
        part()
    if os.environ.get("TRAFFIC"):
        traffic()


if __name__ == "__main__":
    main()
