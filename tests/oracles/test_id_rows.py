"""Rows of input_ids need no tokenizer: collect, fit --model and verify of a model that has none, or one of a kind that is not
supported, are those of the model with its tokenizer."""
import json
import shutil

import pytest

torch = pytest.importorskip("torch")
safetensors_torch = pytest.importorskip("safetensors.torch")

from conftest import DEVICE, SOURCE_DIR  # noqa: E402

SAMPLE = SOURCE_DIR / "sample_data" / "tiny-qwen3"


@pytest.fixture(params=["missing", "unsupported"])
def models(request, tmp_path):
    """The sample, and a copy without a tokenizer that can be read."""
    copy = tmp_path / "copy"
    shutil.copytree(SAMPLE, copy)
    (copy / "tokenizer.json").unlink()
    if request.param == "unsupported":
        (copy / "tokenizer.json").write_text(json.dumps({"model": {"type": "WordPiece", "vocab": {}}, "added_tokens": []}))
    return SAMPLE, copy, request.param


def rows(path, lengths, seed=5):
    generator = torch.Generator().manual_seed(seed)
    lines = [json.dumps({"input_ids": torch.randint(3, 8192, (n,), generator=generator).tolist()}) for n in lengths]
    path.write_text("".join(line + "\n" for line in lines))
    return path


def test_commands_without_a_tokenizer(models, tool, tmp_path):
    prompts, text = rows(tmp_path / "rows.jsonl", [400, 90]), rows(tmp_path / "text.jsonl", [150, 60, 210], seed=6)
    common, reports = ["--device", DEVICE, "--dtype", "float32", "-q"], []
    for number, model in enumerate(models[:2]):
        folder = tmp_path / str(number)
        folder.mkdir()
        alone = ["--own-text", 0] if number == 0 else []  # nor is text written where there is none to write it with
        tool("oscar-collect", "--model", model, "--prompts", prompts, "-o", folder / "s", "--rows", 50, "--tokens", 490, *common)
        tool("oscar-fit", "--model", model, "--prompts", prompts, *alone, "--tokens", 490, "-o", folder / "bundle", "--method", "waterfill",
             "--bits", "2.5", "--allocate", "measured", "--text", text, "--curve-context", 120, "--curve-sequences", 2, "--windows",
             "8,24", *common)
        tool("oscar-verify", "--no-gate", "--model", model, "--bundle", folder / "bundle", "--text", text, "--context", 100, "--path", "both",
             "--methods", "bf16,naive2,waterfill", "--bootstrap", 50, "--report", folder / "r.json", *common)
        reports.append(json.loads((folder / "r.json").read_text()))
    first, second = (safetensors_torch.load_file(tmp_path / number / "s") for number in "01")
    assert first.keys() == second.keys() and all(torch.equal(tensor, second[key]) for key, tensor in first.items())
    assert reports[0]["methods"] == reports[1]["methods"] and reports[0]["text"] == reports[1]["text"]
    assert reports[1]["text"]["tokens"] > 300


def test_text_needs_the_tokenizer(models, tool, tmp_path):
    """One sentence that names what helps, and the help is true."""
    _, model, kind = models
    words = "tokenizer.json" if kind == "missing" else "input_ids"
    prompts = tmp_path / "p.jsonl"
    prompts.write_text('{"input_ids": [5, 6]}\n{"text": "The pump runs."}\n')
    arguments = ["oscar-collect", "--model", model, "--prompts", prompts, "-o", tmp_path / "s", "--device", "cpu", "-q"]
    assert words in tool(*arguments, code=3)
    (tmp_path / "t.txt").write_text("The pump runs. " * 100)
    verify = ["oscar-verify", "--no-gate", "--model", model, "--methods", "bf16,naive2", "--device", "cpu", "-q", "--report", tmp_path / "r.json"]
    assert words in tool(*verify, "--text", tmp_path / "t.txt", "--context", 340, code=3)
    ids = rows(tmp_path / "ids.jsonl", [400])
    assert words in tool(*verify, "--text", ids, "--context", 340, "--tasks", "niah", code=3)  # tasks are written as text
    ids.write_text(ids.read_text() + '{"text": "a"}\n')
    assert words in tool(*verify, "--text", ids, "--context", 340, code=3)
    ids.write_text('{"input_ids": [9000]}\n')
    assert "outside the model's vocabulary of 8192" in tool(*verify, "--text", ids, "--context", 340, code=3)


def test_rows_of_text_are_scored_as_texts(tool, tmp_path):
    """The texts of rows, not the JSON that holds them."""
    document, plain = tmp_path / "d.jsonl", tmp_path / "d.txt"
    plain.write_text("The pump of the north hall runs, and the other one waits.\n" * 60)
    document.write_text(json.dumps({"text": plain.read_text(), "id": 1}) + "\n")
    kl = []
    for text in (document, plain):
        tool("oscar-verify", "--no-gate", "--model", SAMPLE, "--text", text, "--context", 340, "--max-sequences", 1, "--methods", "bf16,naive2",
             "--device", "cpu", "--bootstrap", 50, "--report", tmp_path / "r.json", "--overwrite", "-q")
        kl.append(json.loads((tmp_path / "r.json").read_text())["methods"])
    assert kl[0] == kl[1]
