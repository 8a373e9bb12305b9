"""The 2-bit cache in vLLM's own engine on a GPU: requests together, in chunks, preempted, with shared prefixes and with recorded graphs are
answered as one at a time. Skipped where vLLM's kernels or a GPU are missing; needs a process of its own."""
import os

import pytest

torch = pytest.importorskip("torch")
vllm = pytest.importorskip("vllm", reason="vllm is not installed (scripts/requirements-vllm.txt)")
from oscar_kv import kernels  # noqa: E402

if kernels.missing() is not None:
    pytest.skip(kernels.missing(), allow_module_level=True)
try:
    import vllm._C_stable_libtorch  # noqa: F401
except ImportError as error:
    pytest.skip(f"vLLM's kernels do not load: {error}", allow_module_level=True)
os.environ.update(VLLM_ENABLE_V1_MULTIPROCESSING="0", VLLM_USE_FLASHINFER_SAMPLER="0", HF_HUB_OFFLINE="1")

import contextlib  # noqa: E402
import gc  # noqa: E402

from conftest import SAMPLES  # noqa: E402
from random_bundles import random_bundle  # noqa: E402
from transformers import AutoConfig  # noqa: E402

NEW, LENGTHS = 48, (300, 900, 1500, 2100)
BUNDLES = {"uniform": (None, None), "blocks": ((4, 4, 4, 4), (4, 4, 4, 4))}


def prompts():
    generator = torch.Generator().manual_seed(4)
    return [torch.randint(5, 250, (n,), generator=generator).tolist() for n in LENGTHS]


@contextlib.contextmanager
def engine(layout, monkeypatch, **options):
    import oscar_kv.vllm_serving as serving
    text = AutoConfig.from_pretrained(SAMPLES / "tiny-qwen3")
    bundle = random_bundle(text.num_hidden_layers, text.num_key_value_heads, text.head_dim, *BUNDLES[layout], centered=False)
    monkeypatch.setattr(serving, "load_bundle", lambda path: bundle)
    chosen = dict(model=str(SAMPLES / "tiny-qwen3"), dtype="bfloat16", max_model_len=3000, gpu_memory_utilization=0.2, max_num_seqs=8,
                  enable_prefix_caching=False, skip_tokenizer_init=True, enforce_eager=True, max_num_batched_tokens=8192,
                  kv_cache_dtype="oscar2", attention_backend="OSCAR", additional_config={"oscar_bundle": str(SAMPLES)})
    llm = vllm.LLM(**{**chosen, **options})
    try:
        yield llm
    finally:
        llm.llm_engine.engine_core.shutdown()
        del llm
        gc.collect()
        torch.cuda.empty_cache()


def answers(llm, asked, together=True):
    """[(tokens, log-probabilities of each)] of greedy continuations."""
    sampling = vllm.SamplingParams(max_tokens=NEW, temperature=0, ignore_eos=True, logprobs=1, detokenize=False)
    asked = [{"prompt_token_ids": ids} for ids in asked]
    found = llm.generate(asked, sampling, use_tqdm=False) if together else [llm.generate([one], sampling, use_tqdm=False)[0] for one in asked]
    return [(list(a.outputs[0].token_ids), [d[t].logprob for t, d in zip(a.outputs[0].token_ids, a.outputs[0].logprobs)]) for a in found]


def compare(name, found, expected, limit):
    """Until greedy texts part, which they do where two tokens are level."""
    for length, (tokens, values), (others, theirs) in zip(LENGTHS, found, expected):
        same = next((i for i, (a, b) in enumerate(zip(tokens, others)) if a != b), NEW)
        apart = [abs(a - b) for a, b in zip(values[:same + 1], theirs[:same + 1])]
        mean = sum(apart[:same or 1]) / (same or 1)
        print(f"{name}: prompt of {length}: {same} of {NEW} tokens the same, log-probabilities {mean:.4f} apart")
        assert mean <= limit, (name, length, same, mean)


@pytest.mark.parametrize("layout", BUNDLES)
def test_requests_together_are_answered_as_one_at_a_time(layout, monkeypatch):
    asked = prompts()
    with engine(layout, monkeypatch) as llm:
        expected = answers(llm, asked, together=False)
        compare("together", answers(llm, asked), expected, 0.05)
    with engine(layout, monkeypatch, max_num_batched_tokens=512, enable_chunked_prefill=True) as llm:
        in_chunks = answers(llm, asked, together=False)
        compare("in chunks, together", answers(llm, asked), in_chunks, 0.1)
    with engine(layout, monkeypatch, num_gpu_blocks_override=64) as llm:  # 64 blocks hold 4,096 tokens of 4,800
        compare("preempted", answers(llm, asked), expected, 0.1)
    with engine(layout, monkeypatch, enforce_eager=False, compilation_config={"mode": 0, "cudagraph_mode": "FULL_DECODE_ONLY"}) as llm:
        compare("graphs", answers(llm, asked), expected, 0.05)
    with engine(layout, monkeypatch, enable_prefix_caching=True) as llm:
        compare("first with prefix caching", answers(llm, asked, together=False), expected, 0.1)
        compare("again, found in the cache", answers(llm, asked), expected, 0.3)
