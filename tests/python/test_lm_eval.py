"""lm-evaluation-harness through the 2-bit cache: tasks of our own on a sample model. Skipped where the harness is not
installed (scripts/requirements-lm-eval.txt), which brings fifty packages along."""
import json
import math
import os
import subprocess
import sys
import tempfile

import pytest

os.environ["HF_HOME"] = tempfile.mkdtemp(prefix="oscar-lm-eval-")  # read at import; datasets are cached there
os.environ["HF_HUB_OFFLINE"] = os.environ["HF_DATASETS_OFFLINE"] = "1"
torch = pytest.importorskip("torch")
pytest.importorskip("lm_eval")

import lm_eval  # noqa: E402
import oscar_kv  # noqa: E402
import transformers  # noqa: E402
from conftest import PACKAGE_PATH, SAMPLES  # noqa: E402
from lm_eval.tasks import TaskManager  # noqa: E402
from oscar_kv.files.errors import InputError  # noqa: E402
from oscar_kv.lm_eval import OscarLM  # noqa: E402

torch.set_num_threads(1)
MODEL = SAMPLES / "tiny-qwen3"
COMMON = """dataset_path: json
dataset_kwargs: {{data_files: {{test: {file}}}}}
test_split: test
metadata: {{version: 1}}
"""
TASKS = {
    "small_text": "output_type: loglikelihood_rolling\ndoc_to_text: ''\ndoc_to_target: '{{text}}'\nmetric_list:\n  - metric: "
                  "byte_perplexity\n",
    "small_choice": "output_type: multiple_choice\ndoc_to_text: '{{text}}'\ndoc_to_choice: '{{choices}}'\ndoc_to_target: gold\n"
                    "metric_list:\n  - metric: acc\n",
    "small_answer": "output_type: generate_until\ndoc_to_text: '{{text}}'\ndoc_to_target: '{{answer}}'\ngeneration_kwargs: "
                    "{max_gen_toks: 6, do_sample: false, until: []}\nmetric_list:\n  - metric: exact_match\n",
}


@pytest.fixture(scope="module")
def bundle(fit):
    return fit("tiny-qwen3", "--method", "hadamard")  # weak, so that the cache shows


@pytest.fixture(scope="module")
def pieces():
    """Held-out text in pieces longer than the windows of 16 and 48 tokens."""
    text = (SAMPLES / "heldout.txt").read_text()
    return [text[i:i + 450] for i in range(0, 1350, 450)]


@pytest.fixture(scope="module")
def greedy_answer(bundle):
    """What attach() generates after a text, as the harness asks."""
    tokenizer = transformers.AutoTokenizer.from_pretrained(MODEL)
    model = transformers.AutoModelForCausalLM.from_pretrained(MODEL, dtype=torch.float32).eval()
    oscar_kv.attach(model, bundle)

    def answer(text):
        ids = tokenizer(text, return_tensors="pt").input_ids
        made = model.generate(ids, do_sample=False, max_new_tokens=6, pad_token_id=0)
        return tokenizer.decode(made[0, ids.shape[1]:], skip_special_tokens=True)

    return answer


@pytest.fixture(scope="module")
def tasks(pieces, greedy_answer, tmp_path_factory):
    folder = tmp_path_factory.mktemp("tasks")
    rows = [{"text": piece, "choices": [" the", piece[5:15]], "gold": i % 2, "answer": greedy_answer(piece)}
            for i, piece in enumerate(pieces)]
    (folder / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    for name, text in TASKS.items():
        (folder / f"{name}.yaml").write_text(f"task: {name}\n" + COMMON.format(file=folder / "rows.jsonl") + text)
    return folder


def evaluate(model, arguments, tasks, **options):
    manager = TaskManager(include_path=str(tasks), include_defaults=False)
    found = lm_eval.simple_evaluate(model=model, model_args=dict(pretrained=str(MODEL), dtype="float32") | arguments, device="cpu",
                                    tasks=list(TASKS), task_manager=manager, bootstrap_iters=0, log_samples=True, **options)
    return found["results"], found["samples"]


@pytest.fixture(scope="module")
def results(bundle, tasks):
    quantized = evaluate("oscar-kv", dict(bundle=str(bundle), chunk=1), tasks)
    return quantized, evaluate("hf", {}, tasks)


def test_text_is_scored_through_the_cache(results, pieces, bundle):
    """The log-likelihood of a text is the sum over its tokens, decoded one by one with attach()."""
    tokenizer = transformers.AutoTokenizer.from_pretrained(MODEL)
    model = transformers.AutoModelForCausalLM.from_pretrained(MODEL, dtype=torch.float32).eval()
    oscar_kv.attach(model, bundle)
    (found, samples), (_, plain) = results
    by_text = {s["doc"]["text"]: s["resps"][0][0] for s in samples["small_text"]}
    by_text_plain = {s["doc"]["text"]: s["resps"][0][0] for s in plain["small_text"]}
    for piece in pieces[:1]:
        ids = torch.tensor([[OscarLM_prefix(tokenizer)] + tokenizer(piece, add_special_tokens=False).input_ids])
        cache, total = oscar_kv.new_cache(model), 0.0
        with torch.no_grad():
            for i in range(ids.shape[1] - 1):
                logits = model(ids[:, i:i + 1], past_key_values=cache, use_cache=True).logits[0, -1]
                total += logits.double().log_softmax(-1)[ids[0, i + 1]].item()
        score = by_text[piece][0] if isinstance(by_text[piece], (list, tuple)) else by_text[piece]
        other = by_text_plain[piece][0] if isinstance(by_text_plain[piece], (list, tuple)) else by_text_plain[piece]
        assert math.isclose(score, total, rel_tol=1e-4)
        assert not math.isclose(other, total, rel_tol=1e-3), "the model hf reads no cache"
    assert found["small_text"]["byte_perplexity,none"] > results[1][0]["small_text"]["byte_perplexity,none"]


def OscarLM_prefix(tokenizer):
    """The token that the harness puts before a text."""
    return tokenizer.bos_token_id if tokenizer.bos_token_id is not None else tokenizer.eos_token_id


def test_answers_are_generated_with_the_cache(results):
    assert results[0][0]["small_answer"]["exact_match,none"] == 1.0


def test_short_chunks_see_what_decoding_sees(bundle, pieces):
    """KL to the BF16 cache: chunks of 4 as single tokens, chunks longer than the windows much less, since most of what their
    tokens see is raw."""
    tokenizer = transformers.AutoTokenizer.from_pretrained(MODEL)
    ids = tokenizer("".join(pieces), return_tensors="pt").input_ids[:, :300]
    lm = OscarLM(str(MODEL), bundle=str(bundle), dtype="float32", device="cpu")
    logits = {}
    for lm.chunk in (1, 4, 100):
        logits[lm.chunk] = lm._model_call(ids)
    oscar_kv.detach(lm.model)
    with torch.no_grad():
        base = lm.model(ids).logits.double().log_softmax(-1)
    kl = {chunk: (base.exp() * (base - x.double().log_softmax(-1))).sum(-1)[:, 64:].mean().item() for chunk, x in logits.items()}
    assert 0.7 < kl[4] / kl[1] < 1.4, kl
    assert 0 < kl[100] < 0.6 * kl[1], kl


@pytest.mark.parametrize("options,words", [({}, "bundle=DIR"), ({"chunk": 0}, "chunk is 0")])
def test_refusals(options, words, bundle):
    given = options if not options else {"bundle": str(bundle)} | options
    with pytest.raises(InputError, match=words):
        OscarLM(str(MODEL), **given)


def test_command_line(bundle, tasks, tmp_path):
    line = [sys.executable, "-m", "oscar_kv.lm_eval", "--model_args", f"pretrained={MODEL},bundle={bundle},dtype=float32",
            "--tasks", "small_choice", "--include_path", tasks, "--device", "cpu", "--output_path", tmp_path / "out"]
    environment = os.environ | {"PYTHONPATH": PACKAGE_PATH}
    done = subprocess.run(list(map(str, line)), capture_output=True, text=True, env=environment)
    assert done.returncode == 0, done.stderr[-3000:]
    [path] = (tmp_path / "out").rglob("results*.json")
    written = json.loads(path.read_text())
    assert written["config"]["model"] == "oscar-kv" and "acc,none" in written["results"]["small_choice"]
