"""The 2-bit cache in SGLang's own engine: its scheduler, allocator and radix cache, with a bundle of oscar-fit. Requests together, in chunks,
retracted, with shared prefixes and with recorded graphs are answered as one at a time, and as transformers with attach() answers them. On the CPU,
or on a GPU that SGLang's kernels serve; OSCAR_TEST_BUNDLE names a bundle of tiny-qwen3 where no oscar-fit is built (windows 64,48)."""
import json
import subprocess
import sys

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("sglang.version", reason="sglang is not installed (scripts/requirements-sglang.txt)")
import os  # noqa: E402
import pathlib  # noqa: E402

import oscar_kv  # noqa: E402
import sglang_setup  # noqa: E402
from conftest import PACKAGE_PATH, SAMPLES, program  # noqa: E402
from oscar_kv import kernels  # noqa: E402
from sglang.version import __version__  # noqa: E402
from tokenizers import Tokenizer  # noqa: E402
from transformers import AutoModelForCausalLM  # noqa: E402

if __version__ != "0.5.23":
    pytest.skip(f"sglang {__version__} is installed, the adapter is for 0.5.23", allow_module_level=True)

DEVICE = "cuda" if kernels.missing() is None else "cpu"
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
    program("oscar-fit", folder / "s.safetensors", "-o", folder / "bundle", "--windows", "64,48", "--method", "waterfill", "--allocate", "closed",
            "--bits", "4")
    return folder / "bundle"


def prompts(shared):
    """Texts that begin alike, or not."""
    ids = Tokenizer.from_file(str(MODEL / "tokenizer.json")).encode((SAMPLES / "heldout.txt").read_text(encoding="utf-8")).ids
    return [ids[:n] if shared else ids[500 * i:500 * i + n] for i, n in enumerate(LENGTHS)]


@pytest.fixture(scope="module")
def answers(bundle, tmp_path_factory):
    def ask(asked, rounds, environment=None, **options):
        folder = tmp_path_factory.mktemp("engine")
        job = {"options": {**OPTIONS, **options}, "prompts": asked, "rounds": rounds, "tokens": NEW, "out": str(folder / "found.json")}
        path = sglang_setup.process_path(folder / "path", PACKAGE_PATH, DEVICE == "cuda")
        environment = {**os.environ, "PYTHONPATH": path, "OSCAR_KV_BUNDLE": str(bundle), "OMP_NUM_THREADS": "1", **(environment or {})}
        done = subprocess.run([sys.executable, os.path.join(HERE, "sglang_answers.py"), json.dumps(job)], env=environment, capture_output=True,
                              text=True, timeout=500)
        if not (folder / "found.json").exists():
            return done.stdout + done.stderr
        return json.loads((folder / "found.json").read_text())

    return ask


def compare(name, found, expected, limit):
    """Until greedy texts part, which they do where two tokens are level. The model computes in BF16."""
    for length, (tokens, values, *_), (others, theirs, *_) in zip(LENGTHS, found, expected):
        same = next((i for i, (a, b) in enumerate(zip(tokens, others)) if a != b), NEW)
        mean = sum(abs(a - b) for a, b in zip(values[:same], theirs[:same])) / max(same, 1)
        print(f"{name}: prompt of {length}: {same} of {NEW} tokens the same, log-probabilities {mean:.4f} apart")
        assert same >= 4 and mean <= limit, (name, length, same, mean)


OTHER = "triton" if DEVICE == "cuda" else "torch_native"
ONE_BY_ONE, TOGETHER = [[0], [1], [2], [3]], [[0, 1, 2, 3]]


def by_transformers(bundle, asked):
    model = AutoModelForCausalLM.from_pretrained(MODEL, dtype=torch.bfloat16).to(DEVICE)
    oscar_kv.attach(model, str(bundle))
    found = []
    for ids in asked:
        made = model.generate(torch.tensor([ids], device=DEVICE), max_new_tokens=NEW, do_sample=False, output_logits=True, return_dict_in_generate=True,
                              eos_token_id=None, pad_token_id=0)
        tokens = made.sequences[0, len(ids):].tolist()
        found.append((tokens, [float(torch.log_softmax(x[0].float(), -1)[t]) for x, t in zip(made.logits, tokens)]))
    return found


def test_windows_by_slot(bundle, answers):
    asked = prompts(shared=False)
    rounds = answers(asked, ONE_BY_ONE + TOGETHER, disable_radix_cache=True, chunked_prefill_size=1024)
    apart = [r[0] for r in rounds[:4]]
    compare("together", rounds[4], apart, 0.1)
    compare("by transformers", by_transformers(bundle, asked), apart, 0.1)
    in_chunks = answers(asked, TOGETHER, disable_radix_cache=True)
    compare("in chunks", in_chunks[0], apart, 0.3)
    if DEVICE == "cuda":  # graphs of 1, 2 and 4 rows, so three requests leave one of padding
        graphs = dict(disable_radix_cache=True, chunked_prefill_size=1024, disable_cuda_graph=False, cuda_graph_bs_decode=[1, 2, 4])
        rounds = answers(asked, ONE_BY_ONE + [[0, 1, 2]], **graphs)
        compare("graphs", [r[0] for r in rounds[:4]], apart, 0.1)
        compare("graphs with padding", rounds[4], apart[:3], 0.1)


def test_windows_by_block(bundle, answers):
    """With the radix cache: found prefixes, requests that write the same blocks at the same time, and too little memory for all."""
    asked = prompts(shared=True)
    rounds = answers(asked, ONE_BY_ONE + TOGETHER, chunked_prefill_size=1024)
    apart = [r[0] for r in rounds[:4]]
    assert rounds[0][0][2] == 0 and all(r[2] >= 64 for r in rounds[4])  # cached tokens
    compare("found in the cache", rounds[4], apart, 0.5)
    at_once = answers(asked, TOGETHER + TOGETHER, max_total_tokens=1152)
    compare("at once, in little memory", at_once[0], apart, 0.5)
    compare("and again", at_once[1], apart, 0.5)


def test_sglang_says_what_is_wrong(answers):
    """The sentence reaches the person who starts the server, and nothing is served in BF16 instead."""
    for options, environment, sentence in (({"attention_backend": OTHER}, {}, "pass --attention-backend oscar"),
                                           ({"disable_radix_cache": True}, {"OSCAR_KV_BUNDLE": "/nowhere"}, "/nowhere: is not a directory"),
                                           ({"attention_backend": OTHER}, {"OSCAR_KV_BUNDLE": ""}, None)):
        found = answers(prompts(shared=False), [[2]], environment, **options)
        assert isinstance(found, list) if sentence is None else sentence in found, found[-3000:]
