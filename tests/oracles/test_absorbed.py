"""oscar-export --format absorbed against transformers: the rewritten checkpoint loads there and gives the logits of the
original, sharding and untouched tensors are kept, and its values come out transformed."""
import hashlib
import json
import pathlib
import subprocess

import pytest

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")
st = pytest.importorskip("safetensors.torch")
jsonschema = pytest.importorskip("jsonschema")

from conftest import BUILD_DIR  # noqa: E402

torch.set_num_threads(1)
SCHEMAS = pathlib.Path(__file__).parents[2] / "schemas"
SAMPLE = pathlib.Path(__file__).parents[2] / "sample_data" / "tiny-qwen3-outliers"
COMMON = dict(vocab_size=8192, hidden_size=64, intermediate_size=96, num_hidden_layers=2, num_attention_heads=4,
              num_key_value_heads=2, max_position_embeddings=512)


def made_model(folder, config):
    """A random checkpoint with the sample's tokenizer; biases and norms are not left at their starting values."""
    torch.manual_seed(5)
    model = transformers.AutoModelForCausalLM.from_config(config, dtype=torch.float32)
    with torch.no_grad():
        for name, p in model.named_parameters():
            if name.endswith("bias"):
                p.normal_(0, 0.3)
    model.save_pretrained(folder)
    for name in ("tokenizer.json", "tokenizer_config.json"):
        (folder / name).write_bytes((SAMPLE / name).read_bytes())
    return folder


def sharded_sample(folder):
    transformers.AutoModelForCausalLM.from_pretrained(SAMPLE, dtype="auto").save_pretrained(folder, max_shard_size="1MB")
    for name in ("tokenizer.json", "tokenizer_config.json"):
        (folder / name).write_bytes((SAMPLE / name).read_bytes())
    (folder / "LICENSE").write_text("terms\n")
    assert (folder / "model.safetensors.index.json").exists()
    return folder


MODELS = {
    "sample": lambda folder: SAMPLE,
    "shards": sharded_sample,
    "llama": lambda folder: made_model(folder, transformers.LlamaConfig(**COMMON, head_dim=32)),
    "qwen2": lambda folder: made_model(folder, transformers.Qwen2Config(**COMMON)),
}


@pytest.fixture(scope="module", params=list(MODELS))
def case(request, tool, tmp_path_factory):
    """(name, source, bundle, absorbed)"""
    folder = tmp_path_factory.mktemp("absorbed")
    source = MODELS[request.param](folder / "source")
    rows = [torch.randint(0, 8000, (160,), generator=torch.Generator().manual_seed(i)).tolist() for i in range(3)]
    (folder / "rows.jsonl").write_text("".join(json.dumps({"input_ids": row}) + "\n" for row in rows))
    tool("oscar-collect", "--model", source, "--prompts", folder / "rows.jsonl", "-o", folder / "s", "--device", "cpu",
         "--dtype", "float32", "--far-pairs", "16,64", "-q")
    method = ["waterfill", "--bits", "2"] if request.param in ("sample", "shards") else ["balanced"]
    center = ["--center", "key"] if request.param == "qwen2" else []
    tool("oscar-fit", folder / "s", "-o", folder / "b", "--method", *method, *center, "--windows", "16,64", "-q")
    tool("oscar-export", folder / "b", "--format", "absorbed", "--model", source, "-o", folder / "out")
    return request.param, source, folder / "b", folder / "out"


def run(folder, ids):
    """Logits, and the values that each layer's projection gives."""
    model = transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    values = []
    for layer in model.model.layers:
        layer.self_attn.v_proj.register_forward_hook(lambda m, i, o: values.append(o[0]))
    with torch.no_grad():
        return model(ids).logits, values


def tensors(folder):
    """{name: (file, tensor)}"""
    return {name: (path.name, t) for path in sorted(folder.glob("*.safetensors")) for name, t in st.load_file(path).items()}


def test_logits_and_values(case):
    _, source, bundle, absorbed = case
    ids = torch.randint(0, 8000, (1, 96), generator=torch.Generator().manual_seed(9))
    (expected, plain), (found, transformed) = run(source, ids), run(absorbed, ids)
    span = expected.max() - expected.min()
    assert (found - expected).abs().max() <= 1e-4 * span
    file = st.load_file(bundle / "rotations.safetensors")
    for layer, (v, w) in enumerate(zip(plain, transformed)):
        forward = file[f"layers.{layer}.v.forward"]
        heads = v.view(len(v), forward.shape[0], -1).transpose(0, 1)
        mean = file.get(f"layers.{layer}.v.mean")
        expected_rows = (heads - (mean[:, None] if mean is not None else 0)) @ forward
        difference = (w.view(len(w), forward.shape[0], -1).transpose(0, 1) - expected_rows).abs().max()
        assert difference <= 2e-5 * expected_rows.abs().max()
        assert (w - v).abs().max() > 0.1 * v.abs().max()  # something was absorbed


def test_files(case):
    name, source, _, absorbed = case
    before, after = tensors(source), tensors(absorbed)
    changed = (".v_proj.weight", ".v_proj.bias", ".o_proj.weight", ".o_proj.bias")
    for tensor, (file, value) in before.items():
        assert after[tensor][0] == file
        if not tensor.endswith(changed):
            assert after[tensor][1].dtype == value.dtype and torch.equal(after[tensor][1], value)
    new = set(after) - set(before)
    if name == "qwen2":
        assert not new
    else:
        assert {t.rsplit("self_attn.", 1)[1] for t in new} == {f"{p}_proj.bias" for p in "qkvo"}
        assert all(not after[t][1].any() for t in new if t.endswith(("q_proj.bias", "k_proj.bias")))
        assert json.loads((absorbed / "config.json").read_text())["attention_bias"] is True
    if name == "shards":
        index = json.loads((absorbed / "model.safetensors.index.json").read_text())
        assert index["weight_map"] == {t: f for t, (f, _) in after.items()}
        assert index["metadata"]["total_size"] == sum(t.numel() * t.element_size() for _, t in after.values())
        assert (absorbed / "LICENSE").read_text() == "terms\n"
    record = json.loads((absorbed / "oscar_absorbed.json").read_text())
    jsonschema.validate(record, json.loads((SCHEMAS / "absorbed.schema.json").read_text()))
    for file, hash in record["sha256"].items():
        assert hashlib.sha256((absorbed / file).read_bytes()).hexdigest() == hash
    assert (absorbed / "tokenizer.json").read_bytes() == (source / "tokenizer.json").read_bytes()


@pytest.mark.parametrize("case", ["sample"], indirect=True)
@pytest.mark.parametrize("form", ["absorbed", "transformers", "vllm", "sglang", "sglang-branch", "sglang-branch-v2", "sglang-branch-v3"])
def test_nothing_tells_of_the_calibration_text(form, case, tool, tmp_path):
    """An export holds no hash of a document or a passage, which would show that a text was used."""
    _, source, bundle, _ = case
    tool("oscar-fit", bundle.parent / "s", "-o", tmp_path / "b", "--for", form, "-q")
    parts = json.loads((tmp_path / "b" / "calibration_hashes.json").read_text())["parts"]
    secret = [text for part in parts for kind in ("documents", "passages") for text in part["prompts"].get(kind, ())]
    assert len(secret) >= 3
    tool("oscar-export", tmp_path / "b", "--format", form, "--model", source, "-o", tmp_path / "out")
    files = [path for path in (tmp_path / "out").rglob("*") if path.is_file()]
    assert files and "calibration_hashes.json" not in {path.name for path in files}
    content = b"".join(path.read_bytes() for path in files)
    assert not [text for text in secret if str(text).encode() in content]


@pytest.mark.parametrize("case", ["shards"], indirect=True)  # a shard is copied, too
def test_copied_files_have_the_mode_of_the_others(case, tmp_path):
    _, source, bundle, _ = case
    command = [BUILD_DIR / "bin" / "oscar-export", bundle, "--format", "absorbed", "--model", source, "-o", tmp_path / "out"]
    subprocess.run(["sh", "-c", 'umask 077; exec "$@"', "sh", *map(str, command)], check=True, capture_output=True)
    modes = {path.name: path.stat().st_mode & 0o777 for path in (tmp_path / "out").rglob("*") if path.is_file()}
    assert len(modes) > 5 and set(modes.values()) == {0o600}, modes


@pytest.mark.parametrize("case", ["sample"], indirect=True)
def test_its_bundle_measures_the_same(case, tool, tmp_path):
    _, source, bundle, absorbed = case
    text = tmp_path / "text.txt"
    text.write_text((SAMPLE.parent / "heldout.txt").read_text()[:3000])
    kl = {}
    for model, b in ((source, bundle), (absorbed, absorbed / "oscar_bundle")):
        tool("oscar-verify", "--no-gate", "--model", model, "--bundle", b, "--text", text, "--context", 256, "--max-sequences", 2,
             "--methods", "waterfill", "--dtype", "float32", "--device", "cpu", "--bootstrap", 0,
             "--report", tmp_path / "r.json", "--overwrite", "-q")
        report = json.loads((tmp_path / "r.json").read_text())
        kl[model] = next(m for m in report["methods"] if m["id"] == "waterfill")["kl"]["mean"]
    assert kl[absorbed] == pytest.approx(kl[source], rel=0.1)


def test_refusals(tool, tmp_path_factory, tmp_path):
    source = made_model(tmp_path / "source", transformers.Qwen2Config(**COMMON))
    rows = [torch.randint(0, 8000, (100,), generator=torch.Generator().manual_seed(i)).tolist() for i in range(2)]
    (tmp_path / "rows.jsonl").write_text("".join(json.dumps({"input_ids": row}) + "\n" for row in rows))
    tool("oscar-collect", "--model", source, "--prompts", tmp_path / "rows.jsonl", "-o", tmp_path / "s", "--device", "cpu",
         "--far-pairs", "none", "-q")
    tool("oscar-fit", tmp_path / "s", "-o", tmp_path / "b", "--method", "balanced", "-q")
    export = ["oscar-export", tmp_path / "b", "--format", "absorbed", "-o", tmp_path / "out"]
    assert "needs --model" in tool(*export, code=2)
    assert "fit with --center key" in tool(*export, "--model", source, code=3)
    assert "does not belong to the model" in tool(*export, "--model", SAMPLE, code=3)
    assert not (tmp_path / "out").exists()
