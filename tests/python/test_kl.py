"""attach() against `oscar-verify --path decode`: the same bundle, model and tokens give a mean KL within 2 %, and as many tokens that stay
the most likely ones. On the CPU, and on a GPU by the kernels, token by token and with recorded steps."""
import os
import pathlib

import pytest

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

from conftest import SAMPLES, use_built_operators  # noqa: E402

use_built_operators()
import kl_cases  # noqa: E402
import oscar_kv  # noqa: E402
from kl_cases import CASES, CONTEXT, SEQUENCES, WINDOWS  # noqa: E402
from oscar_kv.ops import load  # noqa: E402

torch.set_num_threads(1)
FIRST = sum(WINDOWS)  # tokens before anything is coded


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    if os.environ.get("OSCAR_KL_CASES"):
        return pathlib.Path(os.environ["OSCAR_KL_CASES"])
    made = tmp_path_factory.mktemp("kl")
    for name in CASES:
        kl_cases.make(name, made)
    return made


def divergence(logits, base):
    p, q = base.double().log_softmax(-1), logits.double().log_softmax(-1)
    return (p.exp() * (p - q)).sum(-1)


def found(name, folder, device, graphs=None):
    """(mean KL, share of tokens whose most likely one stays) of attach() on a device."""
    model_name = CASES[name][0]
    model = transformers.AutoModelForCausalLM.from_pretrained(SAMPLES / model_name, dtype=torch.float32).to(device).eval()
    tokenizer = transformers.AutoTokenizer.from_pretrained(SAMPLES / model_name)
    ids = tokenizer((SAMPLES / "heldout.txt").read_text()[:12000], return_tensors="pt").input_ids[0, :CONTEXT * SEQUENCES]
    ids = ids.view(SEQUENCES, CONTEXT).to(device)
    with torch.no_grad():
        base = model(ids).logits.cpu()
        oscar_kv.attach(model, folder / name / "bundle", graphs=graphs)
        cache, parts = oscar_kv.new_cache(model), []
        for i in range(CONTEXT):
            parts.append(model(input_ids=ids[:, i:i + 1], past_key_values=cache, use_cache=True).logits.cpu())
        group = model.config.num_attention_heads // model.config.num_key_value_heads
        assert device == "cpu" or all(layer.kv.tiers.decode_unsupported(group) is None and layer.kv.step_unsupported is None for layer in cache.layers)
        assert graphs is not True or cache.steps.recorded is not None, "no step was recorded"
    logits = torch.cat(parts, dim=1)
    assert divergence(logits, base)[:, :FIRST].max() < 1e-3  # nothing is quantized yet, only rounded
    scored = slice(FIRST, CONTEXT - 1)
    kl = float(divergence(logits, base)[:, scored].mean())
    return kl, float((logits.argmax(-1) == base.argmax(-1))[:, scored].float().mean())


def compare(name, folder, *arguments):
    kl, top = found(name, folder, *arguments)
    expected = kl_cases.row(name, folder)
    print(f"{name} {arguments}: KL {kl:.4g}, oscar-verify {expected['kl']['mean']:.4g}; same top token {top:.4f}, {expected['same_top1']:.4f}")
    assert abs(kl / expected["kl"]["mean"] - 1) < 0.02
    assert abs(top - expected["same_top1"]) < 0.01


@pytest.mark.parametrize("name", CASES)
def test_cpu(name, folder):
    compare(name, folder, "cpu")


@pytest.mark.skipif(load.missing() is not None, reason=str(load.missing()))
def test_cuda(folder):
    """Kernels take queries in BF16, where the reference has FP32."""
    for name in CASES:
        for graphs in (False, True):
            compare(name, folder, "cuda", graphs)
