"""What sample_data promises: row kinds, sizes, no overlap between calibration and held-out text, equal twins."""
import json

import pytest

from conftest import SOURCE_DIR

SAMPLE = SOURCE_DIR / "sample_data"


def runs(ids, n=24):
    """Runs of n tokens, except the ones that only stutter."""
    return {r for i in range(len(ids) - n + 1) if len(set(r := tuple(ids[i : i + n]))) >= n // 3}


def rows():
    return [json.loads(line) for line in (SAMPLE / "prompts.jsonl").read_text().splitlines()]


def test_prompts_of_every_kind():
    kinds = [next(k for k in ("text", "messages", "prompt", "input_ids") if k in row) for row in rows()]
    assert len(kinds) >= 80
    for kind in ("text", "messages", "prompt", "input_ids"):
        assert kinds.count(kind) >= 8, kind
    texts = [row.get("text", "") for row in rows()]
    assert sum(len(t) > 8000 for t in texts) >= 5, "long documents"
    scripts = {"Cyrillic": "а", "CJK": "的", "Hiragana": "の", "Hangul": "다", "Arabic": "ا", "Devanagari": "क"}
    for name, letter in scripts.items():
        assert any(letter in t for t in texts), name


def test_heldout_text():
    text = (SAMPLE / "heldout.txt").read_text(encoding="utf-8")
    assert len(text.encode()) >= 150_000
    assert text.count("special magic number") >= 20
    assert not any(ord(c) < 32 and c not in "\n\t" for c in text)


def test_prompts_and_heldout_text_share_no_passage():
    tokenizers = pytest.importorskip("tokenizers")
    tok = tokenizers.Tokenizer.from_file(str(SAMPLE / "tiny-qwen3" / "tokenizer.json"))

    held = runs(tok.encode((SAMPLE / "heldout.txt").read_text()).ids)
    for number, row in enumerate(rows()):
        text = row.get("text") or row.get("prompt") or "\n".join(m["content"] for m in row.get("messages", []))
        ids = row.get("input_ids") or tok.encode(text).ids
        assert not held & runs(ids), f"row {number + 1}"


def logits_of(folder):
    torch = pytest.importorskip("torch")
    transformers = pytest.importorskip("transformers")
    ids = torch.randint(0, 8000, (1, 200), generator=torch.Generator().manual_seed(3))
    with torch.no_grad():
        return transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)(ids).logits


def test_the_outlier_model_computes_the_same_function():
    a, b = (logits_of(SAMPLE / name) for name in ("tiny-qwen3", "tiny-qwen3-outliers"))
    assert (a - b).abs().max() < 1e-3 * (a.max() - a.min())


@pytest.mark.parametrize("name", ["tiny-llama", "tiny-qwen2", "tiny-qwen3"])
def test_twins_made_by_the_script(name, tmp_path, monkeypatch):
    """The same function, the same bytes every time, and channels of keys and values at least eight times as large."""
    safetensors = pytest.importorskip("safetensors.torch")
    monkeypatch.syspath_prepend(SOURCE_DIR / "tests" / "sample_data")
    make_outlier_twin = pytest.importorskip("make_outlier_twin")
    for folder in ("a", "b"):
        make_outlier_twin.write_twin(SAMPLE / name, tmp_path / folder, 20261122)
    first = (tmp_path / "a" / "model.safetensors").read_bytes()
    assert first == (tmp_path / "b" / "model.safetensors").read_bytes()
    assert sorted(p.name for p in (tmp_path / "a").iterdir()) == sorted(p.name for p in (SAMPLE / name).iterdir())
    plain, twin = logits_of(SAMPLE / name), logits_of(tmp_path / "a")
    assert (plain - twin).abs().max() < 1e-3 * (plain.max() - plain.min())
    old, new = (safetensors.load_file(p / "model.safetensors") for p in (SAMPLE / name, tmp_path / "a"))
    keys = "k_norm.weight" if name == "tiny-qwen3" else "k_proj.weight"
    for layer in range(4):
        for tensor in (keys, "v_proj.weight"):
            full = f"model.layers.{layer}.self_attn.{tensor}"
            ratio = (new[full].float().view(len(new[full]), -1) / old[full].float().view(len(old[full]), -1)).nanmedian(1)
            assert ratio.values.max() >= 8, full


MODELS = ["tiny-llama", "tiny-qwen2", "tiny-qwen3"]


@pytest.mark.parametrize("name", MODELS)
def test_text_of_two_kinds_of_each_model(name):
    tokenizers = pytest.importorskip("tokenizers")
    tok = tokenizers.Tokenizer.from_file(str(SAMPLE / name / "tokenizer.json"))
    folder = SAMPLE / "text" / name
    expected = {"heldout-code.txt": 6, "heldout-stories.txt": 6}
    if name != "tiny-qwen3":
        expected["heldout.txt"] = 12
    held = set()
    for file, sequences in expected.items():
        text = (folder / file).read_text(encoding="utf-8")
        assert not any(ord(c) < 32 and c not in "\n\t" for c in text)
        ids = tok.encode(text).ids
        assert len(ids) >= sequences * 2048, file
        fresh = runs(ids)
        assert not fresh & held, f"{file} shares a passage with another held-out text"
        held |= fresh
    tokens = {"code": 0, "stories": 0}
    for line in (folder / "prompts.jsonl").read_text(encoding="utf-8").splitlines():
        row = json.loads(line)
        ids = tok.encode(row["text"]).ids
        assert not held & runs(ids)
        tokens[row["kind"]] += len(ids)
    assert all(9_000 <= count <= 18_000 for count in tokens.values()), tokens
