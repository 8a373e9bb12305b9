"""oscar-collect --check-against: the scripts of docs/oscar-collect.md write what it reads, another model is refused, and so is
every file of another form. The warning on a loss like chance tells the loss that transformers computes."""
import json
import math
import re
import shutil
import subprocess
import sys

import pytest

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")
safetensors_torch = pytest.importorskip("safetensors.torch")

from conftest import BUILD_DIR, SOURCE_DIR  # noqa: E402

SAMPLE = SOURCE_DIR / "sample_data" / "tiny-qwen3"
VOCABULARY = 8192

# The part of vLLM's interface that the script uses, over transformers: prompt_logprobs begins with None, entry i is of prompt token i.
VLLM = """
import collections, torch, transformers
Logprob = collections.namedtuple("Logprob", "logprob rank")
class SamplingParams:
    def __init__(self, max_tokens, temperature, prompt_logprobs):
        assert (max_tokens, temperature, prompt_logprobs) == (1, 0, 1)
class LLM:
    def __init__(self, model):
        self.model, self.tokenizer = (c.from_pretrained(model) for c in (transformers.AutoModelForCausalLM, transformers.AutoTokenizer))
    def get_tokenizer(self):
        return self.tokenizer
    def generate(self, prompt, parameters):
        ids = prompt["prompt_token_ids"]
        with torch.no_grad():
            scores = self.model(torch.tensor([ids])).logits[0].log_softmax(-1)
        found = [None]
        for row, token in zip(scores, ids[1:]):
            best = int(row.argmax())
            found.append({token: Logprob(float(row[token]), 2), best: Logprob(float(row[best]), 1)})
        output = collections.namedtuple("Output", "token_ids")((int(scores[-1].argmax()),))
        return [collections.namedtuple("Request", "prompt_logprobs outputs")(found, [output])]
"""


def script(stack):
    page = (SOURCE_DIR / "docs" / "oscar-collect.md").read_text()
    blocks = re.findall(r"```python\n(.*?)```", page[page.index("## Check against your own stack"):], re.DOTALL)
    block = next(b for b in blocks if f"json, {stack}" in b or f", {stack}\n" in b)
    assert block.count("\n") <= 7 and block.count('"M"') == 1
    return block


def run_script(stack, model, folder):
    (folder / "check.py").write_text(script(stack).replace('"M"', repr(str(model))))
    if stack == "vllm":
        (folder / "vllm.py").write_text(VLLM)
    subprocess.run([sys.executable, "check.py"], cwd=folder, check=True, capture_output=True, timeout=300)
    return folder / "check.json"


def collect(model, folder, *options, code=0):
    """What the command tells on standard error."""
    prompts = folder / "p.jsonl"
    text = (SOURCE_DIR / "sample_data" / "heldout.txt").read_text()[:3000]
    prompts.write_text(json.dumps({"text": text}) + "\n")
    line = [BUILD_DIR / "bin" / "oscar-collect", "--model", model, "--prompts", prompts, "-o", folder / "s", "--tokens", 300, "--seq-len", 300,
            "--device", "cpu", "--dtype", "float32", "--rows", 50, "--overwrite", *options]
    done = subprocess.run([str(part) for part in line], capture_output=True, text=True, timeout=300)
    assert done.returncode == code, done.stderr
    return done.stderr


@pytest.fixture(scope="module")
def other(tmp_path_factory):
    """The sample with the rows of its embedding, which is the head, too, in another order: it loads, and predicts nothing."""
    folder = tmp_path_factory.mktemp("other") / "model"
    shutil.copytree(SAMPLE, folder)
    tensors = safetensors_torch.load_file(folder / "model.safetensors")
    name = "model.embed_tokens.weight"
    tensors[name] = tensors[name].roll(37, dims=0).contiguous()
    safetensors_torch.save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    return folder


@pytest.mark.parametrize("stack", ["transformers", "vllm"])
def test_scripts_of_the_page(stack, other, tmp_path):
    check = run_script(stack, SAMPLE, tmp_path)
    written = json.loads(check.read_text())
    assert len(written["ids"]) == len(written["top"]) == 10
    out = collect(SAMPLE, tmp_path, "--check-against", check)
    assert "checked    10 of 10 top tokens are those of check.json" in out
    sentence = collect(other, tmp_path, "--check-against", check, code=3)
    assert f"{check}: " in sentence and "one of the two reads another model, or reads it wrongly" in sentence


def test_logits_in_place_of_top_tokens(tmp_path):
    ids = transformers.AutoTokenizer.from_pretrained(SAMPLE)("The pump runs at night.")["input_ids"]
    with torch.no_grad():
        logits = transformers.AutoModelForCausalLM.from_pretrained(SAMPLE, dtype=torch.float32)(torch.tensor([ids])).logits[0]
    (tmp_path / "check.json").write_text(json.dumps({"ids": ids, "logits": logits.tolist()}))
    assert f"{len(ids)} of {len(ids)} top tokens" in collect(SAMPLE, tmp_path, "--check-against", tmp_path / "check.json")
    # The second token of the other stack may be as good as the first one here, but not where they lie apart.
    best = logits.topk(2, dim=-1)
    margins = best.values[:, 0] - best.values[:, 1]
    far = int(margins.argmax())
    assert margins[far] > 0.5
    top = best.indices[:, 0].tolist()
    top[far] = int(best.indices[far, 1])
    (tmp_path / "check.json").write_text(json.dumps({"ids": ids, "top": top}))
    sentence = collect(SAMPLE, tmp_path, "--check-against", tmp_path / "check.json", code=3)
    assert f"token {far} " in sentence and f"by {margins[far]:.2f}" in sentence, sentence


BAD = {
    "no JSON": "{", "a list": "[1, 2]", "nothing": "{}", "no ids": '{"top": [1]}', "no predictions": '{"ids": [1]}',
    "fewer predictions": '{"ids": [1, 2], "top": [3]}', "empty": '{"ids": [], "top": []}',
    "an id beyond the vocabulary": f'{{"ids": [{VOCABULARY}], "top": [1]}}', "a negative id": '{"ids": [-1], "top": [1]}',
    "a top token beyond it": f'{{"ids": [1], "top": [{VOCABULARY}]}}', "a fraction": '{"ids": [1.5], "top": [1]}',
    "an id of 400 digits": '{"ids": [' + "9" * 400 + '], "top": [1]}', "text as an id": '{"ids": ["\\u001b[31m"], "top": [1]}',
    "too many": json.dumps({"ids": [1] * 5000, "top": [1] * 5000}), "rows of text": '{"ids": [1], "logits": [["a"]]}',
    "an empty row": '{"ids": [1], "logits": [[]]}', "a row that is too long": json.dumps({"ids": [1], "logits": [[0] * (VOCABULARY + 1)]}),
    "logits that are no rows": '{"ids": [1], "logits": [7]}', "null logits": '{"ids": [1], "logits": [[null, null]]}',
}


@pytest.mark.parametrize("case", BAD)
def test_other_files_are_refused(case, tmp_path):
    (tmp_path / "check.json").write_text(BAD[case])
    sentence = collect(SAMPLE, tmp_path, "--check-against", tmp_path / "check.json", code=3)
    assert "check.json" in sentence and "\x1b" not in sentence
    assert not (tmp_path / "s").exists()


def test_a_loss_like_chance_is_told(other, tmp_path):
    """The numbers are those of transformers; a model that is trained on such text gets no warning."""
    assert "chance" not in collect(SAMPLE, tmp_path)
    warning = collect(other, tmp_path)
    found = re.search(r"as badly as chance: ([\d.]+) nats a token on the first (\d+), ([\d.]+) for the same tokens shuffled, ([\d.]+) for a guess",
                      warning)
    assert found, warning
    tokenizer = transformers.AutoTokenizer.from_pretrained(other)
    text = json.loads((tmp_path / "p.jsonl").read_text())["text"]
    count = int(found[2])
    ids = torch.tensor(tokenizer(text)["input_ids"][:count + 1])
    assert count == 256
    with torch.no_grad():
        logits = transformers.AutoModelForCausalLM.from_pretrained(other, dtype=torch.float32)(ids[None]).logits[0, :-1]
    scores = logits.log_softmax(-1)
    own = -scores.gather(-1, ids[1:, None]).mean()
    shuffled = -scores.gather(-1, ids[1:].roll(-(count // 2))[:, None]).mean()
    assert abs(float(found[1]) - own) < 0.02 and abs(float(found[3]) - shuffled) < 0.02
    assert float(found[4]) == round(math.log(VOCABULARY), 2)
