"""The 2-bit cache in vLLM's own engine on a GPU: requests together, in chunks, preempted, with shared prefixes, with recorded graphs, over
HTTP, on two GPUs and beside BF16 layers are answered as one at a time. Skipped where vLLM's kernels or a GPU are missing. Each test starts
engines of its own, in about a minute (-k chooses), or in 15 seconds in the test's process, with OSCAR_TEST_ONE_PROCESS=1. Memory is not profiled, so
that several tests can share a GPU."""
import concurrent.futures
import contextlib
import gc
import importlib.util
import os
import time

import pytest

torch = pytest.importorskip("torch")
vllm = pytest.importorskip("vllm", reason="vllm is not installed (scripts/requirements-vllm.txt)")
from oscar_kv.ops import load  # noqa: E402
from random_bundles import asked_bundle  # noqa: E402

if load.missing() is not None:
    pytest.skip(load.missing(), allow_module_level=True)
try:
    import vllm._C_stable_libtorch  # noqa: F401
except ImportError as error:
    pytest.skip(f"vLLM's kernels do not load: {error}", allow_module_level=True)

import made_drafts  # noqa: E402
from gemma4_models import coded, gemma4, gemma4_shared, soften  # noqa: E402
from oscar_kv.engines.vllm import gauges, serving as of_engine  # noqa: E402
from oscar_kv.format import bundle as files  # noqa: E402
from conftest import SAMPLES  # noqa: E402
from transformers import (  # noqa: E402
    AutoConfig, AutoModelForCausalLM, DeepseekV2Config, Exaone4Config, Gemma3TextConfig, GptOssConfig, Qwen3_5TextConfig, Qwen3NextConfig)
from vllm_requests import compare, serving, set_environment  # noqa: E402

NEW, LENGTHS = 48, (300, 900, 1500, 2100)
WIDTHS = {"uniform": None, "blocks": (4, 4, 4, 4)}
OWN_PROCESS = not os.environ.get("OSCAR_TEST_ONE_PROCESS")
MODEL = SAMPLES / "tiny-qwen3"
GRAPHS = dict(enforce_eager=False, compilation_config={"mode": 0, "cudagraph_mode": "FULL_DECODE_ONLY"})


def bundle_of(layout, config=MODEL, **changed):
    text = AutoConfig.from_pretrained(config) if not hasattr(config, "num_hidden_layers") else config
    heads = text.per_layer_config["full_attention"] if text.model_type == "gemma4_text" else text
    return dict(layers=text.num_hidden_layers, kv_heads=heads.num_key_value_heads, d=heads.head_dim, key=WIDTHS[layout], value=WIDTHS[layout],
                centered=False) | changed


def prompts(lengths=LENGTHS, seed=4, shared=0):
    """Random token ids; the first `shared` are the same in all."""
    generator = torch.Generator().manual_seed(seed)
    head = torch.randint(5, 250, (shared,), generator=generator).tolist()
    return [head + torch.randint(5, 250, (n - shared,), generator=generator).tolist() for n in lengths]


@contextlib.contextmanager
def engine(monkeypatch, bundle, own_process=OWN_PROCESS, model=MODEL, ours=True, **options):
    set_environment(monkeypatch, bundle, own_process)
    monkeypatch.setattr(gauges, "read_manifest", lambda path: asked_bundle(**bundle))  # of this process, which counts
    if not own_process:
        monkeypatch.setattr(files, "read_manifest", lambda path: asked_bundle(**bundle))
        monkeypatch.setattr(of_engine, "load_bundle", lambda path, latent=False: asked_bundle(**bundle))
    chosen = dict(model=str(model), dtype="bfloat16", max_model_len=3000, gpu_memory_utilization=0.1, kv_cache_memory_bytes=1 << 28,
                  max_num_seqs=8, enable_prefix_caching=False, skip_tokenizer_init=True, enforce_eager=True, max_num_batched_tokens=8192)
    if ours:
        chosen |= dict(kv_cache_dtype="oscar", attention_backend="OSCAR", additional_config={"oscar_bundle": str(model)})
    llm = vllm.LLM(**{**chosen, **options})
    try:
        yield llm
    finally:
        llm.llm_engine.engine_core.shutdown()
        del llm
        gc.collect()
        torch.cuda.empty_cache()


def answers(llm, asked, together=True):
    """[(tokens, log-probability of each, {token: log-probability} of the 20 most likely at each place)] of greedy continuations."""
    sampling = vllm.SamplingParams(max_tokens=NEW, temperature=0, ignore_eos=True, logprobs=20, detokenize=False)
    asked = [{"prompt_token_ids": ids} for ids in asked]
    found = llm.generate(asked, sampling, use_tqdm=False) if together else [llm.generate([one], sampling, use_tqdm=False)[0] for one in asked]
    return [answer(a.outputs[0]) for a in found]


def answer(output):
    tops = [{token: row.logprob for token, row in place.items()} for place in output.logprobs]
    return list(output.token_ids), [place[token] for token, place in zip(output.token_ids, tops)], tops


@pytest.mark.parametrize("layout", WIDTHS)
def test_together(layout, monkeypatch):
    """The engine core in a process of its own, and then with recorded graphs."""
    asked, bundle = prompts(), bundle_of(layout)
    with engine(monkeypatch, bundle) as llm:
        expected = answers(llm, asked, together=False)
        compare("together", answers(llm, asked), expected, 0.05)
    with engine(monkeypatch, bundle, **GRAPHS) as llm:
        compare("graphs", answers(llm, asked), expected, 0.05)


@pytest.mark.parametrize("layout", WIDTHS)
def test_in_chunks_and_preempted(layout, monkeypatch):
    asked, bundle = prompts(), bundle_of(layout)
    with engine(monkeypatch, bundle, max_num_batched_tokens=512, enable_chunked_prefill=True) as llm:
        expected = answers(llm, asked, together=False)
        compare("in chunks, together", answers(llm, asked), expected, 0.1)
    with engine(monkeypatch, bundle, max_num_batched_tokens=512, num_gpu_blocks_override=64) as llm:  # 4,096 tokens for 4,800
        compare("preempted", answers(llm, asked), expected, 0.1)


def test_prefix_caching(monkeypatch):
    """Hits, and evictions in a cache that is too small for all prefixes."""
    bundle = bundle_of("blocks")
    families = [prompts((700, 900, 1100), seed=seed, shared=640) for seed in (1, 2, 3)]
    asked = [one for family in families for one in family]
    with engine(monkeypatch, bundle) as llm:
        expected = answers(llm, asked, together=False)
    with engine(monkeypatch, bundle, enable_prefix_caching=True) as llm:
        compare("first with prefix caching", answers(llm, asked, together=False), expected, 0.2)
        compare("found in the cache", answers(llm, asked), expected, 0.3)
    with engine(monkeypatch, bundle, enable_prefix_caching=True, num_gpu_blocks_override=50) as llm:  # 3,200 tokens for 8,100
        for turn in range(3):
            compare(f"evicted, turn {turn}", answers(llm, asked), expected, 0.3)


def test_prefixes_from_host_memory(monkeypatch):
    """A cache with room for few prefixes: the others go to host memory, and come back with their sinks."""
    bundle = bundle_of("blocks")
    families = [prompts((1500, 1700, 1900), seed=seed, shared=1400) for seed in (1, 2, 3)]
    asked = [one for family in families for one in family]
    with engine(monkeypatch, bundle) as llm:
        expected = answers(llm, asked, together=False)
    caching = dict(enable_prefix_caching=True, num_gpu_blocks_override=60, kv_offloading_size=1.0, disable_log_stats=False)
    for name, options in (("eager", {}), ("graphs", GRAPHS)):
        with engine(monkeypatch, bundle, **caching, **options) as llm:
            for turn in range(3):
                compare(f"from host memory, {name}, turn {turn}", answers(llm, asked, together=turn > 1), expected, 0.3)
            assert metric(llm, "external_prefix_cache_hits") > 1000


def metric(llm, name):
    """A counter of an engine with disable_log_stats=False."""
    return sum(m.value for m in llm.get_metrics() if m.name == f"vllm:{name}")


def accepted(llm):
    """Tokens of proposals that this process has seen accepted."""
    return metric(llm, "spec_decode_num_accepted_tokens")


SPECULATION = {"ngram": {"prompt_lookup_min": 1, "prompt_lookup_max": 3}, "draft_model": {"model": str(MODEL)}}


@pytest.mark.parametrize("method", SPECULATION)
def test_speculation(method, monkeypatch):
    """Prompts repeat a phrase, so that n-grams are found; the model is its own draft model. Some proposals are kept, others taken back, and
    the answers are those of an engine that proposes nothing."""
    bundle, asked = bundle_of("blocks"), [(ids[:170] * 13)[:len(ids)] for ids in prompts()]
    plain = []  # whole prompts, and prompts in chunks, whose first tokens are codes for the others
    for options in ({}, {"max_num_batched_tokens": 512}):
        with engine(monkeypatch, bundle, **options) as llm:
            plain.append(answers(llm, asked, together=False))
    cases = {"eager": (1, 0.05, plain[0], {}), "graphs": (3, 0.05, plain[0], GRAPHS),
             "in chunks and preempted": (7, 0.1, plain[1], dict(max_num_batched_tokens=512, num_gpu_blocks_override=64, **GRAPHS)),
             "prefix caching": (4, 0.3, plain[0], dict(enable_prefix_caching=True, **GRAPHS))}
    for name, (tokens, limit, expected, options) in cases.items():
        config = dict(method=method, num_speculative_tokens=tokens, **SPECULATION[method])
        with engine(monkeypatch, bundle, speculative_config=config, disable_log_stats=False, **options) as llm:
            before = accepted(llm)
            for turn in range(2):  # the second finds prefixes
                compare(f"{method}, {tokens} tokens, {name}, turn {turn}", answers(llm, asked), expected, limit)
            kept = accepted(llm) - before
            print(f"{method}, {tokens} tokens, {name}: {kept} of {2 * NEW * len(asked)} tokens were proposed")
            assert 0 < kept < 2 * NEW * len(asked)


HEADS = {"eagle3": "llama", "mtp-qwen3_next": "qwen3_next", "mtp-qwen3_5": "qwen3_5"}


@pytest.mark.parametrize("head", HEADS)
def test_heads_that_propose(head, monkeypatch, tmp_path):
    """EAGLE-3 and MTP heads, with BF16 beside the 2-bit cache: one request and eight of them, short ones and one of 8,000 tokens, have the answers
    of an engine that proposes nothing, and heads guess about as well as with vLLM's BF16 cache."""
    text, model, linear = getattr(made_drafts, HEADS[head])(), tmp_path / "model", head != "eagle3"
    if hasattr(text, "num_experts_per_tok"):
        pytest.importorskip("vllm._moe_C_stable_libtorch", reason="vLLM's kernels for experts are missing")
    if head == "mtp-qwen3_5":
        pytest.importorskip("torchvision", reason="vLLM's module of Qwen3.5 imports it")
    save_model(text, model)
    made_drafts.louder(model)
    made = dict(method=head.partition("-")[0])
    if linear:
        made_drafts.add_mtp(model)
    else:
        made_drafts.save_eagle3(model, tmp_path / "head")
        made["model"] = str(tmp_path / "head")
    full = [i for i in range(text.num_hidden_layers) if not linear or text.layer_types[i] == "full_attention"]
    bundle = bundle_of("blocks", text, layers=len(full), numbers=full, left_out=[i for i in range(text.num_hidden_layers) if i not in full])
    options = dict(model=model, max_model_len=9000, max_num_batched_tokens=16384, disable_log_stats=False)
    if linear:
        options["gdn_prefill_backend"] = "triton"
    asked = prompts((8000, 300, 900, 1500, 2100, 500, 700, 1100))  # together in one step
    with engine(monkeypatch, bundle, **options) as llm:
        expected = answers(llm, asked, together=False)
    cases = {"BF16": (3, None, GRAPHS | {"ours": False}), "graphs": (3, 0.1, GRAPHS), "in chunks": (2, 0.3, {"max_num_batched_tokens": 2048})}
    if not linear:  # refused beside states: vLLM would copy parts of blocks
        cases["prefix caching"] = 3, 0.3, dict(enable_prefix_caching=True, **GRAPHS)
    rates = {}
    for name, (tokens, limit, more) in cases.items():
        with engine(monkeypatch, bundle, speculative_config=dict(num_speculative_tokens=tokens, **made), **options | more) as llm:
            names = "spec_decode_num_accepted_tokens", "spec_decode_num_draft_tokens", "prefix_cache_hits"
            before = [metric(llm, one) for one in names]  # of this process
            found = [answers(llm, asked[:2], together=False), answers(llm, asked)]
            kept, proposed, hits = (metric(llm, one) - was for one, was in zip(names, before))
            rates[name] = kept / proposed
            print(f"{head}, {name}: {kept} of {proposed} proposed tokens were kept")
            for count, one in zip((1, 8), found) if limit is not None else ():
                compare(f"{head}, {tokens} tokens, {name}, {count} at a time", one, expected[:len(one)], limit)
            assert name != "prefix caching" or hits > 0
            assert 0 < kept < proposed and rates[name] > 0.5 * rates["BF16"], rates


def test_samples(monkeypatch):
    """Several samples of one prompt, together and beside other requests, with the seeds of single ones."""
    asked, bundle = prompts((800, 1300)), bundle_of("blocks")

    def sample(llm, ids, n, others=()):
        chosen = vllm.SamplingParams(n=n, max_tokens=NEW, temperature=0.7, seed=11, ignore_eos=True, logprobs=1, detokenize=False)
        found = llm.generate([{"prompt_token_ids": one} for one in (ids, *others)], chosen, use_tqdm=False)[0].outputs
        return [answer(o)[:2] for o in sorted(found, key=lambda o: o.index)]

    with engine(monkeypatch, bundle) as llm:
        alone = sample(llm, asked[0], 3)
        assert len({tuple(tokens) for tokens, _ in alone}) == 3
        compare("samples beside others", sample(llm, asked[0], 3, asked[1:]), alone, 0.05, parting=float("inf"))
        with_one = answers(llm, asked[:1], together=False)
        compare("greedy afterwards", answers(llm, asked[:1]), with_one, 0.02)


@pytest.mark.parametrize("prefix_caching", [False, True])
def test_http(prefix_caching, monkeypatch, tmp_path):
    """vllm serve: together, streaming, samples, aborted requests, log-probabilities of a prompt, hits of prefixes."""
    asked, bundle = prompts(shared=256), bundle_of("blocks")
    set_environment(monkeypatch, bundle)
    options = ["--max-model-len", "4096", "--gpu-memory-utilization", "0.1", "--kv-cache-memory-bytes", str(1 << 28), "--max-num-seqs", "8",
               "--max-num-batched-tokens", "1024",
               "--compilation-config", '{"mode": 0, "cudagraph_mode": "FULL_DECODE_ONLY"}',
               "--enable-prefix-caching" if prefix_caching else "--no-enable-prefix-caching"]
    limit = 0.3 if prefix_caching else 0.1
    with serving(MODEL, tmp_path / "log", *options) as server, concurrent.futures.ThreadPoolExecutor(8) as pool:
        expected = [server.complete(ids, NEW)[0] for ids in asked]
        assert all(len(tokens) == len(values) == NEW for tokens, values in expected)
        found = list(pool.map(lambda ids: server.complete(ids, NEW)[0], asked * 2))
        compare("HTTP, together", found, expected * 2, limit)
        compare("HTTP, streams", list(pool.map(lambda ids: server.stream(ids, NEW), asked)), expected, limit)
        three = server.complete(asked[0], NEW, n=3, temperature=0.7, seed=3)
        assert len(three) == 3 and len({tuple(tokens) for tokens, _ in three}) == 3
        long = [pool.submit(server.stream, ids, 1500, chunks=3) for ids in asked]  # the connection is closed after three chunks
        assert all(len(job.result()[0]) >= 3 for job in long)
        end = time.monotonic() + 20
        while server.metric("vllm:num_requests_running") > 0:
            assert time.monotonic() < end, "aborted requests still run"
            time.sleep(0.2)
        compare("HTTP, after aborts", list(pool.map(lambda ids: server.complete(ids, NEW)[0], asked)), expected, limit)
        if prefix_caching:
            assert server.metric("vllm:prefix_cache_hits_total") > 0


@pytest.mark.skipif(torch.cuda.device_count() < 2, reason="needs two GPUs")
def test_two_gpus(monkeypatch):
    asked, bundle = prompts(), bundle_of("blocks")
    with engine(monkeypatch, bundle) as llm:
        expected = answers(llm, asked, together=False)
    with engine(monkeypatch, bundle, tensor_parallel_size=2, disable_custom_all_reduce=True) as llm:
        compare("two GPUs", answers(llm, asked), expected, 0.1)


SMALL = dict(vocab_size=512, hidden_size=256, intermediate_size=512, num_hidden_layers=4, max_position_embeddings=4096, initializer_range=0.06,
             pad_token_id=0, bos_token_id=2, eos_token_id=1)


def gemma3():
    return Gemma3TextConfig(**SMALL | {"num_hidden_layers": 6}, num_attention_heads=4, num_key_value_heads=1, head_dim=256, sliding_window=512,
                            layer_types=["sliding_attention", "sliding_attention", "full_attention"] * 2, query_pre_attn_scalar=256,
                            architectures=["Gemma3ForCausalLM"])


def exaone4():
    return Exaone4Config(**SMALL, num_attention_heads=8, num_key_value_heads=2, head_dim=128, sliding_window=512,
                         layer_types=["sliding_attention", "sliding_attention", "sliding_attention", "full_attention"],
                         architectures=["Exaone4ForCausalLM"])


EXPERTS = dict(num_experts_per_tok=4)  # all, so that no near tie of the router decides
LINEAR = dict(layer_types=["linear_attention", "linear_attention", "linear_attention", "full_attention"], num_attention_heads=4,
              num_key_value_heads=2, head_dim=256, linear_num_key_heads=2, linear_num_value_heads=4, linear_key_head_dim=128,
              linear_value_head_dim=128)


def gpt_oss():
    return GptOssConfig(**SMALL, **EXPERTS, num_local_experts=4, num_attention_heads=8, num_key_value_heads=2, head_dim=64, sliding_window=128,
                        architectures=["GptOssForCausalLM"])


def qwen3_next():
    return Qwen3NextConfig(**SMALL, **EXPERTS, **LINEAR, num_experts=4, moe_intermediate_size=128, shared_expert_intermediate_size=128,
                           architectures=["Qwen3NextForCausalLM"])


def qwen3_5():
    return Qwen3_5TextConfig(**SMALL, **LINEAR, architectures=["Qwen3_5ForCausalLM"])


def save_model(text, folder, even=True):
    """even: otherwise the last 128 channels of latents are small."""
    torch.manual_seed(1)
    model, linear = AutoModelForCausalLM.from_config(text).bfloat16(), "linear_attention" in (getattr(text, "layer_types", None) or ())
    for name, weight in model.named_parameters():
        if name.endswith(".sinks"):  # level with the sum of some hundred keys
            torch.nn.init.normal_(weight, 6.0)
        elif not even and name.endswith(".kv_a_layernorm.weight"):
            weight.data[384:] *= 0.02
        elif linear and name.endswith(".self_attn.q_norm.weight"):
            weight.data.fill_(1.0)  # one is added: fewer keys decide, so that texts depend on the cache
        elif linear and name.endswith(".self_attn.o_proj.weight"):
            weight.data.mul_(4)
    (soften(model) if text.model_type == "gemma4_text" else model).save_pretrained(folder)


@pytest.mark.parametrize("config", [gemma3, gemma4, gemma4_shared, exaone4, gpt_oss, qwen3_next, qwen3_5])
def test_beside_bf16_layers(config, monkeypatch, tmp_path):
    """Windowed layers in BF16 and states of linear attention: requests together as one at a time, and near vLLM's BF16 cache at 4 bits."""
    text, asked, others = config(), prompts(), {}
    linear = "linear_attention" in text.layer_types
    if hasattr(text, "num_experts_per_tok"):
        pytest.importorskip("vllm._moe_C_stable_libtorch", reason="vLLM's kernels for experts are missing")
    if linear:
        others["gdn_prefill_backend"] = "triton"  # on Hopper, vLLM's own choice is in a package of its own (flashinfer)
    save_model(text, tmp_path / "model")
    full = coded(text)
    bundle = bundle_of("blocks", text, layers=len(full), numbers=full, left_out=[i for i in range(text.num_hidden_layers) if i not in full])
    wide = text.model_type == "gemma4_text" and importlib.util.find_spec("cutlass") is None  # vLLM's own choice needs it
    with engine(monkeypatch, bundle, model=tmp_path / "model", ours=False, **others | (dict(attention_backend="TRITON_ATTN") if wide else {})) as llm:
        bf16 = answers(llm, asked, together=False)
    caching = dict(enable_prefix_caching=True, disable_log_stats=False)
    for name, options in (("eager", {}), ("graphs", GRAPHS), ("prefix caching", caching)):
        with engine(monkeypatch, bundle, model=tmp_path / "model", **others, **options) as llm:
            expected = answers(llm, asked, together=False)
            # a request that finds a prefix reads codes where the first one has read BF16
            compare(f"{name}, together", answers(llm, asked), expected, (0.5 if linear else 0.3) if options is caching else 0.1)
            compare(f"{name}, against BF16", expected, bf16, 0.5)
            assert options is not caching or metric(llm, "prefix_cache_hits") > 0


def deepseek_v2():
    """Dense: all layers are before the first with experts."""
    return DeepseekV2Config(**SMALL | {"num_hidden_layers": 3}, num_attention_heads=4, num_key_value_heads=4, kv_lora_rank=512, q_lora_rank=None,
                            qk_nope_head_dim=128, qk_rope_head_dim=64, v_head_dim=128, first_k_dense_replace=3, n_routed_experts=4, n_group=1,
                            topk_group=1, num_experts_per_tok=2, architectures=["DeepseekV2ForCausalLM"])


@pytest.mark.parametrize("widths,refined", [((4, 4, 4, 4), False), ((4, 4, 4, 4), True), ((4, 2, 1, 1), False)])
def test_latent_attention(widths, refined, monkeypatch, tmp_path):
    """Requests together, in chunks, preempted, with recorded graphs and shared prefixes, as one at a time; at 4 bits near vLLM's BF16 cache.
    Chunks of requests together end elsewhere, and later chunks read codes of earlier ones. By the model in torch this moves the next token's
    log-probability by up to .06 at 4-4-4-4, and by .28 to .50 at 4-2-1-1."""
    model, asked, bundle = tmp_path / "model", prompts(), dict(latent=True, layers=3, widths=widths, refined=refined, centered=not refined)
    save_model(deepseek_v2(), model, even=not refined)
    with engine(monkeypatch, bundle, model=model, ours=False) as llm:
        bf16 = answers(llm, asked, together=False)
    with engine(monkeypatch, bundle, model=model) as llm:
        expected = answers(llm, asked, together=False)
        compare("latent, together", answers(llm, asked), expected, 0.05)
    if min(widths) == 4:
        compare("latent, against BF16", expected, bf16, 0.3)
    with engine(monkeypatch, bundle, model=model, **GRAPHS) as llm:
        compare("latent, graphs", answers(llm, asked), expected, 0.05)
    moved = 0.1 if min(widths) == 4 else 0.6
    with engine(monkeypatch, bundle, model=model, max_num_batched_tokens=512) as llm:
        chunks = answers(llm, asked, together=False)
        compare("latent, in chunks, together", answers(llm, asked), chunks, moved)
    with engine(monkeypatch, bundle, model=model, max_num_batched_tokens=512, num_gpu_blocks_override=64, **GRAPHS) as llm:
        compare("latent, preempted", answers(llm, asked), chunks, moved)
    family = prompts((700, 900, 1100), seed=1, shared=640)
    with engine(monkeypatch, bundle, model=model) as llm:
        alone = answers(llm, family, together=False)
    with engine(monkeypatch, bundle, model=model, enable_prefix_caching=True, disable_log_stats=False) as llm:
        first, found = answers(llm, family, together=False), answers(llm, family)
        assert metric(llm, "prefix_cache_hits") > 0
        compare("latent, found again", answers(llm, family), found, 0.05)
        if min(widths) == 4:  # at 4-2-1-1 codes in place of BF16 move the second token already
            compare("latent, first with prefix caching", first, alone, 0.3)
            compare("latent, found in the cache", found, alone, 0.3)
