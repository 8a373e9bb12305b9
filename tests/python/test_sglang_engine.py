"""The 2-bit cache in SGLang's own engine: its scheduler, allocator and radix cache, with a bundle of oscar-fit. Requests together, in chunks,
in mixed batches, retracted, with shared prefixes, with recorded graphs and on two GPUs are answered as one at a time, and as transformers with
attach() answers them. On the CPU, or on a GPU that SGLang's kernels serve; OSCAR_TEST_BUNDLE names a bundle of tiny-qwen3 where no oscar-fit is built (windows 64,48)."""
import dataclasses
import json
import subprocess
import sys

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("sglang.version", reason="sglang is not installed (scripts/requirements-sglang.txt)")
import os  # noqa: E402
import pathlib  # noqa: E402

import gemma4_models  # noqa: E402
import oscar_kv  # noqa: E402
import sglang_setup  # noqa: E402
from conftest import PACKAGE_PATH, SAMPLES, program  # noqa: E402
from oscar_kv.ops import load  # noqa: E402
from random_bundles import random_bundle  # noqa: E402
from sglang.version import __version__  # noqa: E402
from tokenizers import Tokenizer  # noqa: E402
from transformers import AutoModelForCausalLM, Gemma3TextConfig, Qwen3_5Config, Qwen3_5ForConditionalGeneration, Qwen3NextConfig  # noqa: E402
from vllm_requests import compare  # noqa: E402

if __version__ != "0.5.23":
    pytest.skip(f"sglang {__version__} is installed, the adapter is for 0.5.23", allow_module_level=True)

DEVICE = "cuda" if load.missing() is None else "cpu"
MODEL, NEW, LENGTHS = SAMPLES / "tiny-qwen3", 24, (300, 450, 77, 390)
OPTIONS = dict(model_path=str(MODEL), device=DEVICE, disable_cuda_graph=True, attention_backend="oscar", max_running_requests=4, max_total_tokens=4096, context_length=1024,
               chunked_prefill_size=256)
HERE = os.path.dirname(os.path.abspath(__file__))


@pytest.fixture(scope="module")
def bundle(tmp_path_factory):
    """A sink of one page, so that the radix cache is possible, and a recent window that every prompt but one exceeds."""
    if "OSCAR_TEST_BUNDLE" in os.environ:
        return pathlib.Path(os.environ["OSCAR_TEST_BUNDLE"]).resolve()
    folder = tmp_path_factory.mktemp("sglang")
    program("oscar-collect", "--model", MODEL, "--prompts", SAMPLES / "prompts.jsonl", "--seq-len", 512, "--tokens", 2000, "-o",
            folder / "s.safetensors")
    program("oscar-fit", folder / "s.safetensors", "-o", folder / "bundle", "--windows", "64,48", "--method", "waterfill", "--allocate", "analytic",
            "--bits", "4")
    return folder / "bundle"


def prompts(shared):
    """Texts that begin alike, or not."""
    ids = Tokenizer.from_file(str(MODEL / "tokenizer.json")).encode((SAMPLES / "heldout.txt").read_text(encoding="utf-8")).ids
    return [ids[:n] if shared else ids[500 * i:500 * i + n] for i, n in enumerate(LENGTHS)]


@pytest.fixture(scope="module")
def answers(bundle, tmp_path_factory):
    def ask(asked, rounds, environment=None, saved=None, **options):
        folder = tmp_path_factory.mktemp("engine")
        job = {"options": {**OPTIONS, **options}, "prompts": asked, "rounds": rounds, "tokens": ask.new, "out": str(folder / "found.json")}
        path = sglang_setup.process_path(folder / "path", PACKAGE_PATH, DEVICE == "cuda", saved)
        environment = {**os.environ, "PYTHONPATH": path, "OSCAR_KV_BUNDLE": str(bundle), "OMP_NUM_THREADS": "1", **(environment or {})}
        done = subprocess.run([sys.executable, os.path.join(HERE, "sglang_answers.py"), json.dumps(job)], env=environment, capture_output=True,
                              text=True, timeout=500)
        ask.log = done.stdout + done.stderr
        if not (folder / "found.json").exists():
            return ask.log
        rounds = json.loads((folder / "found.json").read_text())
        return [[(tokens, values, [{int(token): value for token, value in place.items()} for place in tops], cached)
                 for tokens, values, tops, cached in one] for one in rounds]

    ask.new = NEW
    return ask


def found_prefixes(answered):
    """Whether all prompts began with cached tokens, but the one that is not longer than a sink and what a request computes itself."""
    return [r[3] >= 64 for r in answered] == [n > 64 + 2 * 48 for n in LENGTHS]


OTHER = "triton" if DEVICE == "cuda" else "torch_native"
ONE_BY_ONE, TOGETHER = [[0], [1], [2], [3]], [[0, 1, 2, 3]]


def by_transformers(bundle, asked, model=MODEL):
    model = AutoModelForCausalLM.from_pretrained(model, dtype=torch.bfloat16).to(DEVICE)
    if bundle is not None:
        oscar_kv.attach(model, bundle)
    found = []
    for ids in asked:
        made = model.generate(torch.tensor([ids], device=DEVICE), max_new_tokens=NEW, do_sample=False, output_logits=True, return_dict_in_generate=True,
                              eos_token_id=None, pad_token_id=0)
        tokens = made.sequences[0, len(ids):].tolist()
        found.append((tokens, [float(torch.log_softmax(x[0].float(), -1)[t]) for x, t in zip(made.logits, tokens)]))
    return found


BY_SLOT = dict(disable_radix_cache=True, chunked_prefill_size=1024)


def test_windows_by_slot(bundle, answers):
    asked = prompts(shared=False)
    rounds = answers(asked, ONE_BY_ONE + TOGETHER, **BY_SLOT)
    apart = [r[0] for r in rounds[:4]]
    compare("together", rounds[4], apart, 0.1)
    compare("against transformers", apart, by_transformers(str(bundle), asked), 0.1)
    in_chunks = answers(asked, TOGETHER, disable_radix_cache=True)
    compare("in chunks", in_chunks[0], apart, 0.3)


@pytest.mark.skipif(DEVICE == "cpu", reason="needs a GPU")
def test_graphs(bundle, answers):
    """Of 1, 2 and 4 rows, so three requests leave one of padding."""
    asked = prompts(shared=False)
    expected = by_transformers(str(bundle), asked)
    rounds = answers(asked, ONE_BY_ONE + [[0, 1, 2]], **BY_SLOT, disable_cuda_graph=False, cuda_graph_bs_decode=[1, 2, 4])
    compare("graphs", [r[0] for r in rounds[:4]], expected, 0.1)
    compare("graphs with padding", rounds[4], expected[:3], 0.1)


def test_mixed_batches(answers):
    """Chunks of prompts and decode steps in one pass: there is room for two requests at a time, and four ask."""
    asked = prompts(shared=False)
    for by_slot in (True, False):
        rounds = answers(asked, ONE_BY_ONE + TOGETHER, disable_radix_cache=by_slot, chunked_prefill_size=128, max_running_requests=2,
                         enable_mixed_chunk=True)
        compare(f"mixed, windows by slot {by_slot}", rounds[4], [r[0] for r in rounds[:4]], 0.5)


def test_the_radix_cache(bundle, answers):
    """With the radix cache: found prefixes, and requests that write the same blocks at the same time."""
    asked = prompts(shared=True)
    rounds = answers(asked, ONE_BY_ONE + TOGETHER, chunked_prefill_size=1024)
    apart = [r[0] for r in rounds[:4]]
    assert rounds[0][0][3] == 0 and found_prefixes(rounds[4])
    compare("found in the cache", rounds[4], apart, 0.5)
    at_once = answers(asked, TOGETHER + TOGETHER, max_total_tokens=1152)
    compare("at once, in little memory", at_once[0], apart, 0.5)
    compare("and again", at_once[1], apart, 0.5)


@pytest.mark.parametrize("by_slot", [True, False])
def test_retracted_requests(answers, by_slot):
    """They lose their pages and begin anew, in another slot or on other blocks: there are 8 blocks, and four requests come to need three each."""
    asked = [p[:60] for p in prompts(shared=False)]
    answers.new = 72
    options = dict(disable_radix_cache=by_slot, max_total_tokens=512, schedule_conservativeness=0.1, log_level="warning")
    expected = answers(asked, ONE_BY_ONE, **options)
    found = answers(asked, TOGETHER, **options)
    answers.new = NEW
    assert "Retract requests" in answers.log, answers.log[-3000:]
    compare("retracted", found[0], [r[0] for r in expected], 0.5)


@pytest.mark.skipif(torch.cuda.device_count() < 2 or DEVICE == "cpu", reason="needs two GPUs")
@pytest.mark.parametrize("graphs", [False, True])
def test_two_gpus(answers, graphs):
    asked = prompts(shared=False)
    expected = answers(asked, ONE_BY_ONE, **BY_SLOT)
    found = answers(asked, TOGETHER, **BY_SLOT, tp_size=2, disable_custom_all_reduce=True, disable_cuda_graph=not graphs,
                    cuda_graph_bs_decode=[1, 2, 4])
    compare(f"two GPUs, graphs {graphs}", found[0], [r[0] for r in expected], 0.1)


def gemma3(folder):
    """Layers with a window of 32 tokens between others."""
    text = Gemma3TextConfig(vocab_size=512, hidden_size=256, intermediate_size=512, num_hidden_layers=4, num_attention_heads=4, num_key_value_heads=1,
                            head_dim=256, sliding_window=32, max_position_embeddings=4096, initializer_range=0.06, query_pre_attn_scalar=256,
                            layer_types=["sliding_attention", "full_attention"] * 2, architectures=["Gemma3ForCausalLM"], pad_token_id=0,
                            bos_token_id=2, eos_token_id=1)
    torch.manual_seed(1)
    AutoModelForCausalLM.from_config(text).bfloat16().save_pretrained(folder)
    return folder


def test_beside_bf16_layers(answers, tmp_path):
    """Windowed layers in BF16: requests together as one at a time, with found prefixes, and as transformers answers them."""
    bundle = random_bundle(4, 1, 256, (4, 4, 4, 4), (4, 4, 4, 4), sink=64, recent=48, centered=False)
    bundle = dataclasses.replace(bundle, layers=bundle.layers[1::2], model={"left_out": [{"layer": i, "reason": "window"} for i in (0, 2)]})
    model = gemma3(tmp_path / "model")
    for by_slot in (True, False):
        asked = [[t % 500 + 5 for t in ids] for ids in prompts(shared=not by_slot)]
        options = dict(saved=bundle, model_path=str(model), disable_radix_cache=by_slot, chunked_prefill_size=1024)
        rounds = answers(asked, ONE_BY_ONE + TOGETHER, **options)
        assert isinstance(rounds, list), rounds[-3000:]
        apart = [r[0] for r in rounds[:4]]
        compare(f"windows, by slot {by_slot}", rounds[4], apart, 0.1)
        if by_slot:
            compare("windows, against transformers", apart, by_transformers(bundle, asked, model), 0.1)
        else:
            assert found_prefixes(rounds[4])


@pytest.mark.parametrize("config", [gemma4_models.gemma4(sliding_window=32), gemma4_models.gemma4_shared(sliding_window=32)], ids=("own caches", "shared caches"))
def test_gemma4(config, answers, tmp_path):
    """Heads of 512 channels beside windowed layers of 256, in SGLang's pool of windows or with all their tokens in ours."""
    torch.manual_seed(1)
    model, bundle = tmp_path / "model", gemma4_models.gemma4_bundle(config, key=(4, 4, 4, 4), value=(4, 4, 4, 4), sink=64, recent=48)
    made = gemma4_models.soften(gemma4_models.wrapped(config)).bfloat16()
    made.lm_head.weight.data.mul_(3)  # so that texts depend on the layers
    made.save_pretrained(model)
    options = dict(saved=bundle, model_path=str(model))
    asked = [[t % 500 + 5 for t in ids] for ids in prompts(shared=False)]
    expected = by_transformers(bundle, asked, model)
    if DEVICE == "cuda":  # SGLang has no BF16 cache for it on a CPU
        bf16 = answers(asked, ONE_BY_ONE, {"OSCAR_KV_BUNDLE": ""}, model_path=str(model), attention_backend=OTHER, enable_multimodal=False, **BY_SLOT)
        assert isinstance(bf16, list), bf16[-3000:]
        bf16 = [r[0] for r in bf16]
        compare("BF16, against transformers", bf16, by_transformers(None, asked, model), 0.15, 0.6)  # the rest can hardly agree better: .117 on an H200
    shared, graphs = bool(config.num_kv_shared_layers), dict(disable_cuda_graph=False, cuda_graph_bs_decode=[1, 2, 4])
    for extra in [{}] + shared * [dict(disable_hybrid_swa_memory=True)] + (DEVICE == "cuda") * [graphs]:
        rounds = answers(asked, ONE_BY_ONE + TOGETHER, **options, **BY_SLOT, **extra)
        assert isinstance(rounds, list), rounds[-3000:]
        apart = [r[0] for r in rounds[:4]]
        compare(f"gemma 4, {extra}", rounds[4], apart, 0.1)
        if DEVICE == "cuda":
            compare("against SGLang's BF16 cache", apart, bf16, 0.1)
        compare("against transformers", apart, expected, 0.15 if DEVICE == "cuda" else 0.1)
    if not shared:  # the rest takes long on a CPU
        return
    asked = [[t % 500 + 5 for t in ids] for ids in prompts(shared=True)]
    rounds = answers(asked, ONE_BY_ONE + TOGETHER + TOGETHER, **options, chunked_prefill_size=1024)
    assert isinstance(rounds, list) and rounds[0][0][3] == 0 and found_prefixes(rounds[4]), [r[3] for one in rounds for r in one]
    for one in rounds[4:]:
        compare("prefixes", one, [r[0] for r in rounds[:4]], 0.5)


STATES = dict(vocab_size=512, hidden_size=256, num_hidden_layers=4, num_attention_heads=4, num_key_value_heads=2, head_dim=64,
              layer_types=["linear_attention", "full_attention"] * 2, full_attention_interval=2, linear_num_key_heads=2, linear_num_value_heads=4,
              linear_key_head_dim=128, linear_value_head_dim=128, max_position_embeddings=4096, initializer_range=0.06, pad_token_id=0, bos_token_id=2,
              eos_token_id=1)


def qwen3_next():
    config = Qwen3NextConfig(**STATES, num_experts=4, num_experts_per_tok=4, moe_intermediate_size=64, shared_expert_intermediate_size=64,
                             architectures=["Qwen3NextForCausalLM"])
    return AutoModelForCausalLM.from_config(config)


def qwen3_5():
    images = dict(image_token_id=500, video_token_id=501, vision_start_token_id=502, vision_end_token_id=503)
    return Qwen3_5ForConditionalGeneration(Qwen3_5Config(text_config=dict(STATES, intermediate_size=512), **images, vision_config=dict(
        depth=1, hidden_size=64, intermediate_size=64, num_heads=2, out_hidden_size=256)))


@pytest.mark.parametrize("model_of", [qwen3_next, qwen3_5])
def test_beside_states_of_linear_attention(model_of, answers, tmp_path):
    """With the radix cache, SGLang keeps states of prefixes; one whose sink is gone is computed again."""
    torch.manual_seed(1)
    made, model = model_of().bfloat16(), tmp_path / "model"
    for name, weight in made.named_parameters():  # few keys decide, so that texts depend on the cache
        if name.endswith(".self_attn.q_norm.weight"):
            weight.data.fill_(1.0)  # one is added
        elif name.endswith(".self_attn.o_proj.weight"):
            weight.data.mul_(4)
    made.save_pretrained(model)
    bundle = random_bundle(4, 2, 64, (4, 4, 4, 4), (4, 4, 4, 4), sink=64, recent=48, centered=False)
    bundle = dataclasses.replace(bundle, layers=bundle.layers[1::2], model={"left_out": [{"layer": i, "reason": "linear attention"} for i in (0, 2)]})
    options = dict(saved=bundle, model_path=str(model), max_mamba_cache_size=160, enable_multimodal=False)
    asked = [[t % 490 + 5 for t in ids] for ids in prompts(shared=True)]
    rounds = answers(asked, ONE_BY_ONE + TOGETHER, **options, **BY_SLOT)
    assert isinstance(rounds, list), rounds[-3000:]
    expected = [r[0] for r in rounds[:4]]
    compare("states", rounds[4], expected, 0.1)
    compare("states, against transformers", expected, by_transformers(bundle, asked, model), 0.2)
    in_chunks = [r[0] for r in answers(asked, ONE_BY_ONE, disable_radix_cache=True, **options)]
    compare("states, in chunks", in_chunks, expected, 0.3)
    others = [[5 + i] * 70 for i in range(40)]  # whose sinks take the place of the first ones
    found = answers(asked + others, [*ONE_BY_ONE, *TOGETHER, list(range(4, 44)), [1]], **options)
    assert isinstance(found, list), found[-3000:]
    # Cached tokens. The fourth request computes 145 of its 390 tokens itself, so it finds the state after 64 tokens, which the third one left.
    assert [r[0][3] for r in found[:4]] == [0, 256, 0, 64] and found[4][1][3] == 256 and found[6][0][3] == 0
    compare("states of prefixes", [r[0] for r in found[:4]], in_chunks, 0.5)
    compare("together", found[4], in_chunks, 0.5)
    compare("without a sink", found[6], in_chunks[1:2], 0.1)


def test_sglang_says_what_is_wrong(answers):
    """The sentence reaches the person who starts the server, and nothing is served in BF16 instead."""
    for options, environment, sentence in (({"attention_backend": OTHER}, {}, "pass --attention-backend oscar"),
                                           ({"disable_radix_cache": True}, {"OSCAR_KV_BUNDLE": "/nowhere"}, "/nowhere: is not a directory"),
                                           ({"attention_backend": OTHER}, {"OSCAR_KV_BUNDLE": ""}, None)):
        found = answers(prompts(shared=False), [[2]], environment, **options)
        assert isinstance(found, list) if sentence is None else sentence in found, found[-3000:]
