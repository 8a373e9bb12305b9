"""What the measurements of vLLM and SGLang (vllm/throughput.py, sglang/throughput.py) share: the model, the jobs and the lines that they print.

JOB: INPUT:OUTPUT:REQUESTS, all requests at once: seconds of the prompts alone (one token each) and of prompts and output; decode tokens/s
from the difference. INPUT:OUTPUT:fill is as many requests as the cache holds at a time, up to MOST of the environment; only the whole is
timed."""
import importlib.metadata
import json
import os
import pathlib
import sys
import tempfile

BENCH = pathlib.Path(__file__).resolve().parent
TESTS = BENCH.parent / "python"
PLUGINS = {"vllm": "vllm.general_plugins", "sglang": "sglang.srt.plugins"}  # groups of entry points
MOST = int(os.environ.get("MOST", 256))
COMMON = dict(vocab_size=151936, num_hidden_layers=36, head_dim=128, hidden_act="silu", max_position_embeddings=262144, initializer_range=0.02,
              rms_norm_eps=1e-6, use_cache=True, tie_word_embeddings=False, rope_theta=1e6, attention_bias=False, torch_dtype="bfloat16",
              bos_token_id=1, eos_token_id=2)
# By GEOMETRY: Qwen3-8B's, Qwen2.5-Coder-1.5B's, and DeepSeek-V2-Lite's, with an MLP as wide as the experts that a token meets.
NAMES = {"8b": "qwen3-8b", "1.5b": "qwen2.5-coder-1.5b", "latent": "deepseek-v2-lite"}
GEOMETRIES = {
    "8b": dict(architectures=["Qwen3ForCausalLM"], model_type="qwen3", hidden_size=4096, intermediate_size=12288, num_attention_heads=32,
               num_key_value_heads=8),
    "1.5b": dict(architectures=["Qwen2ForCausalLM"], model_type="qwen2", hidden_size=1536, intermediate_size=8960, num_hidden_layers=28,
                 num_attention_heads=12, num_key_value_heads=2, tie_word_embeddings=True),
    "latent": dict(architectures=["DeepseekV2ForCausalLM"], model_type="deepseek_v2", vocab_size=102400, hidden_size=2048, intermediate_size=11264,
                   num_hidden_layers=27, num_attention_heads=16, num_key_value_heads=16, head_dim=64, kv_lora_rank=512, q_lora_rank=None,
                   qk_nope_head_dim=128, qk_rope_head_dim=64, v_head_dim=128, first_k_dense_replace=27, n_routed_experts=64, n_shared_experts=2,
                   num_experts_per_tok=6, moe_intermediate_size=1408, n_group=1, topk_group=1, rope_theta=1e4)}
GEOMETRY = os.environ.get("GEOMETRY", "8b")
CONFIG = COMMON | GEOMETRIES[GEOMETRY]
LAYERS = CONFIG["num_hidden_layers"] = int(os.environ.get("LAYERS", CONFIG["num_hidden_layers"]))
KV_HEADS, HEAD_DIM, NAME = CONFIG["num_key_value_heads"], CONFIG["head_dim"], f"{NAMES[GEOMETRY]} geometry"
WIDTHS = {"uniform": None, "blocks": (4, 2, 1, 1), "four": (4, 4, 4, 4), "mixed": "mixed"}  # of our caches; latents: blocks and four
# Keys and values of the layers that `oscar-fit` chose for Qwen2.5-Coder-1.5B at 2.25 bits: what a bundle looks like. They repeat in longer models.
MIXED = ("4210/2100 2000/2100 4200/4221 4100/2210 4100/2211 4420/4211 4420/4221 4210/2100 4220/4221 4220/4210 4210/4221 4220/4211 "
         "4420/4422 4220/2210 4420/4422 4200/2211 4420/4422 4200/4221 4220/4210 4420/4422 4200/4222 4220/4221 4200/4220 4410/4422 "
         "4420/4422 4220/4221 4420/4442 4420/4442")


def jobs_of(texts):
    """(text, input, output, requests or None for fill) of each JOB."""
    for text in texts:
        length, tokens, count = text.split(":")
        yield text, int(length), int(tokens), None if count == "fill" else int(count)


def most_requests(jobs):
    return max(MOST if count is None else count for *_, count in jobs)


def model_folder(prefix="tmp"):
    """A folder with the configuration of the model; engines make its weights up. prefix: of its name."""
    folder = pathlib.Path(tempfile.mkdtemp(prefix=prefix))
    (folder / "config.json").write_text(json.dumps(CONFIG))
    return folder


def head_folder():
    """The configuration of an EAGLE-3 head for the model."""
    folder = pathlib.Path(tempfile.mkdtemp())
    changed = dict(architectures=["LlamaForCausalLMEagle3"], model_type="llama", num_hidden_layers=1, draft_vocab_size=CONFIG["vocab_size"],
                   eagle_aux_hidden_state_layer_ids=[2, LAYERS // 2, LAYERS - 3])
    (folder / "config.json").write_text(json.dumps(CONFIG | changed))
    return folder


def bundle_of(cache):
    sys.path.insert(0, str(TESTS))
    from random_bundles import latent_bundle, random_bundle
    if GEOMETRY == "latent":
        return latent_bundle(LAYERS, WIDTHS[cache], CONFIG["qk_rope_head_dim"], centered=False)
    if cache != "mixed":
        return random_bundle(LAYERS, KV_HEADS, HEAD_DIM, WIDTHS[cache], WIDTHS[cache], centered=False)
    chosen = [[tuple(map(int, side)) for side in layer.split("/")] for layer in MIXED.split()]
    return random_bundle(LAYERS, KV_HEADS, HEAD_DIM, *zip(*(chosen[i % len(chosen)] for i in range(LAYERS))), rotated_mean=True)


def give_bundle(engine, cache):
    """In this process of an engine ("vllm" or "sglang") every bundle that is asked for is a random one: weights that were made up have none."""
    bundle = bundle_of(cache)
    if engine == "sglang":
        from oscar_kv.engines.sglang import serving
        serving.load_bundle = lambda path: bundle
        return
    from oscar_kv.engines import serving as checks
    from oscar_kv.engines.vllm import gauges, serving
    serving.load_bundle = gauges.read_manifest = lambda path, latent=False: bundle
    checks.check_geometry = checks.checkpoint_fingerprint = lambda *given: None


def plugin_path(folder, engine, cache):
    """PYTHONPATH for an engine's processes, each of which finds plugins there: ours, where it is not installed, and give_bundle(). They are written
    to `folder`."""
    sys.path.insert(0, str(TESTS))
    from entry_points import write_entry_points
    (folder / "random_bundle_plugin.py").write_text(f"def register():\n    from served_rows import give_bundle\n    give_bundle({engine!r}, {cache!r})\n")
    lines = ["random_bundle = random_bundle_plugin:register"]
    if not any("oscar_kv" in e.value for e in importlib.metadata.entry_points(group=PLUGINS[engine])):
        lines.append(f"oscar_kv = oscar_kv.engines.{engine}.plugin:register")
    write_entry_points(folder, "bench-plugins", "1", f"[{PLUGINS[engine]}]\n" + "\n".join(lines) + "\n")
    return os.pathsep.join(p for p in (str(folder), str(BENCH), str(TESTS), os.environ.get("PYTHONPATH", "")) if p)


def prompts_of(length, count, generator, phrase=None):
    """Random token ids. phrase: tokens after which each prompt repeats itself."""
    import torch
    phrase = phrase or length
    return [torch.randint(10, min(150000, CONFIG["vocab_size"]), (phrase,), generator=generator).repeat(-(-length // phrase))[:length].tolist() for _ in range(count)]


def requests_of(job, capacity):
    _, length, tokens, count = job
    return count or max(1, min(MOST, capacity // (length + tokens + 64)))


def times_prompts(job):
    """Whether the prompts of a job are timed by themselves."""
    return job[2] > 1 and job[3] is not None


def row(about, job, count, alone, whole):
    """The line of a job: `alone` seconds of its prompts (0: not timed), `whole` of prompts and output."""
    text, length, tokens, _ = job
    decode = {"prompts_s": round(alone, 3), "decode_tokens_s": round(count * (tokens - 1) / max(whole - alone, 1e-9), 1)} if alone else {}
    return json.dumps({**about, "job": text, "input": length, "output": tokens, "requests": count, "all_s": round(whole, 3), **decode,
                       "all_tokens_s": round(count * (length + tokens) / whole, 1)})
