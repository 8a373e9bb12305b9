"""Quantized weights against compressed-tensors, transformers and plain torch: every weight exactly, logits, the commands."""

import json

import pytest

np = pytest.importorskip("numpy")
torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")
safetensors_torch = pytest.importorskip("safetensors.torch")
pytest.importorskip("compressed_tensors")

import quantized_checkpoints  # noqa: E402  (needs the packages above)
from conftest import DEVICE, SOURCE_DIR  # noqa: E402

transformers.utils.logging.disable_progress_bar()
transformers.utils.logging.set_verbosity_error()
torch.set_num_threads(1)
LENGTHS = [70, 1, 33]


def sequences():
    generator = torch.Generator().manual_seed(3)
    return [torch.randint(0, 8192, (n,), generator=generator).tolist() for n in LENGTHS]


@pytest.fixture(scope="module", params=quantized_checkpoints.NAMES)
def case(request, tmp_path_factory):
    return request.param, *quantized_checkpoints.make(request.param, tmp_path_factory.mktemp(request.param),
                                                      SOURCE_DIR / "sample_data" / "tiny-qwen3")


def our_weights(tool, model, meant, folder):
    (folder / "shapes.json").write_text(json.dumps({name: list(weight.shape) for name, weight in meant.items()}))
    lines = tool("weights_tool", model, folder / "shapes.json", folder / "weights.safetensors").splitlines()
    return safetensors_torch.load_file(folder / "weights.safetensors"), {line.split()[1] for line in lines}


def our_logits(tool, model, folder, *options):
    ids, out = folder / "ids.txt", folder / "logits.bin"
    ids.write_text("\n".join(" ".join(map(str, s)) for s in sequences()) + "\n")
    tool("oscar_logits", model, ids, out, "--device", DEVICE, *options)
    return torch.from_numpy(np.fromfile(out, np.float32)).view(sum(LENGTHS), -1)


def their_logits(model, **options):
    network = transformers.AutoModelForCausalLM.from_pretrained(model, dtype="float32", attn_implementation="eager", **options)
    with torch.no_grad():
        return torch.cat([network.eval()(input_ids=torch.tensor([s])).logits[0].float() for s in sequences()])


def test_weights_are_exact_and_logits_agree(case, tool, tmp_path):
    name, quantized, plain, meant = case
    ours, formats = our_weights(tool, quantized, meant, tmp_path)
    assert ours.keys() == meant.keys() and len(formats) == 1
    for key, weight in meant.items():
        assert torch.equal(ours[key], weight), key
    logits, theirs = our_logits(tool, quantized, tmp_path), their_logits(plain)
    error = ((logits - theirs).abs().max() / (theirs.max() - theirs.min())).item()
    print(f"\n{name:16} {formats} max difference / range {error:.1e}")
    assert error < 1e-4 and torch.equal(logits.argmax(-1), theirs.argmax(-1))
    # Where a weight is read from changes nothing.
    assert torch.equal(our_logits(tool, plain, tmp_path), logits)
    assert torch.equal(our_logits(tool, quantized, tmp_path, "--stream-layers"), logits)


def test_transformers_reads_blocks_of_fp8_the_same(tool, tmp_path):
    # Whole blocks: transformers 5.23 spreads cut ones evenly, 200 rows over two scales as 100 and 100 instead of 128 and 72.
    quantized, _, _ = quantized_checkpoints.make("fp8-whole-blocks", tmp_path)
    config = transformers.FineGrainedFP8Config(dequantize=True, modules_to_not_convert=[quantized_checkpoints.PLAIN])
    theirs, ours = their_logits(quantized, quantization_config=config), our_logits(tool, quantized, tmp_path)
    assert (ours - theirs).abs().max() < 1e-4 * (theirs.max() - theirs.min())


def collect_and_fit(tool, model, folder):
    """Statistics and bundle in the folder; the moments."""
    folder.mkdir()
    (folder / "rows.jsonl").write_text("".join(json.dumps({"input_ids": row}) + "\n" for row in sequences()))
    tool("oscar-collect", "--model", model, "--prompts", folder / "rows.jsonl", "-o", folder / "s.safetensors", "--tokens",
         sum(LENGTHS), "--seq-len", max(LENGTHS), "--rows", 50, "--far-pairs", "6,20", "--dtype", "float32", "--device", DEVICE, "-q")
    tool("oscar-fit", folder / "s.safetensors", "--method", "oscar", "-o", folder / "bundle", "--windows", "8,24", "-q")
    return safetensors_torch.load_file(folder / "s.safetensors")


def verify(tool, model, folder):
    """Mean KL of each method and path, with the bundle in the folder."""
    (folder / "text.txt").write_text((SOURCE_DIR / "sample_data" / "heldout.txt").read_text()[:2000])
    tool("oscar-verify", "--no-gate", "--model", model, "--bundle", folder / "bundle", "--text", folder / "text.txt", "--context", 90,
         "--max-sequences", 1, "--path", "both", "--device", DEVICE, "--dtype", "float32", "--report", folder / "r.json", "-q",
         "--methods", "bf16,oscar", "--bootstrap", 50)
    report = json.loads((folder / "r.json").read_text())
    return {(m["id"], m["path"]): m["kl"]["mean"] for m in report["methods"]}


def dry_run(tool, model, folder):
    return json.loads(tool("oscar-collect", "--model", model, "--prompts", folder / "rows.jsonl", "-o", folder / "other.safetensors",
                           "--dtype", "float32", "--device", DEVICE, "--dry-run", "--json"))


@pytest.mark.parametrize("name", ["fp8-blocks", "mxfp4-experts"])
def test_commands_see_the_weights_that_are_meant(name, tool, tmp_path):
    quantized, plain, _ = quantized_checkpoints.make(name, tmp_path, SOURCE_DIR / "sample_data" / "tiny-qwen3")
    moments, kl = collect_and_fit(tool, quantized, tmp_path / "a"), verify(tool, quantized, tmp_path / "a")
    expected, plain_kl = collect_and_fit(tool, plain, tmp_path / "b"), verify(tool, plain, tmp_path / "b")
    assert moments.keys() == expected.keys() and kl.keys() == plain_kl.keys()
    for key, tensor in expected.items():
        assert torch.equal(moments[key], tensor), key
    assert kl == plain_kl and kl["oscar", "decode"] > 1e-4
    # Memory is that of the weights that are computed with; files are smaller.
    quantized_run, plain_run = dry_run(tool, quantized, tmp_path / "a"), dry_run(tool, plain, tmp_path / "b")
    assert quantized_run["weight_bytes"] == plain_run["weight_bytes"] > 0
    assert quantized_run["stored_weight_bytes"] < plain_run["stored_weight_bytes"]


def stored(folder):
    """name -> (file, dtype, shape, bytes)"""
    out = {}
    for path in sorted(folder.glob("*.safetensors")):
        for name, tensor in safetensors_torch.load_file(path).items():
            out[name] = (path.name, tensor.dtype, tuple(tensor.shape), tensor.contiguous().flatten().view(torch.uint8).numpy().tobytes())
    return out


# What tells engines that a module is plain, of a quantization_config.
def left_out(quantization):
    if quantization["quant_method"] == "gptq":
        return {key.removeprefix("-:^").removesuffix("$").replace("\\.", ".") for key in quantization["dynamic"]}
    return set(quantization["ignore" if quantization["quant_method"] in ("compressed-tensors", "modelopt") else "modules_to_not_convert"])


@pytest.mark.parametrize("name", ["fp8-whole-blocks", "fp8-channel", "fp8-modelopt", "int4-group", "awq", "gptq"])
def test_absorbed_writes_what_it_changes_plain(name, tool, tmp_path):
    quantized, _, _ = quantized_checkpoints.make(name, tmp_path, SOURCE_DIR / "sample_data" / "tiny-qwen3")
    modelopt = {"producer": {"name": "modelopt"}, "quantization": {"quant_algo": "FP8", "exclude_modules": ["lm_head"]}}
    if name == "fp8-modelopt":
        (quantized / "hf_quant_config.json").write_text(json.dumps(modelopt))
    collect_and_fit(tool, quantized, tmp_path / "a")
    export = ["oscar-export", tmp_path / "a" / "bundle", "--format", "absorbed", "--model", quantized]
    tool(*export, "-o", tmp_path / "out")
    tool(*export, "-o", tmp_path / "wide", "--dtype", "float32")

    before, after = stored(quantized), stored(tmp_path / "out")
    changed = {f"model.layers.{layer}.self_attn.{p}_proj" for layer in range(2) for p in "qkvo"}
    for tensor, what in before.items():
        if tensor.rsplit(".", 1)[0] in changed:
            assert tensor not in after or tensor.endswith(".weight"), tensor
        else:
            assert after[tensor] == what, tensor
    means = any(tensor.endswith(".v.mean") for tensor in safetensors_torch.load_file(tmp_path / "a" / "bundle" / "rotations.safetensors"))
    new = {module + ".weight" for module in changed} | {module + ".bias" for module in changed if means}  # centered values move into biases
    assert set(after) - {t for t in before if t.rsplit(".", 1)[0] not in changed} == new
    assert all(after[tensor][1] == torch.bfloat16 for tensor in new)
    index = json.loads((tmp_path / "out" / "model.safetensors.index.json").read_text())
    assert index["weight_map"] == {tensor: what[0] for tensor, what in after.items()}
    config = json.loads((tmp_path / "out" / "config.json").read_text())
    old = json.loads((quantized / "config.json").read_text())
    assert changed <= left_out(config["quantization_config"]) and bool(config.get("attention_bias")) == means
    if name == "fp8-modelopt":
        modelopt["quantization"]["exclude_modules"] += sorted(changed)
        written = json.loads((tmp_path / "out" / "hf_quant_config.json").read_text())
        written["quantization"]["exclude_modules"].sort(key=lambda module: (module != "lm_head", module))
        assert written == modelopt
    for key in ("ignore", "modules_to_not_convert", "config_groups"):  # what was there stays
        was, now = old["quantization_config"].get(key), config["quantization_config"].get(key)
        assert was is None or (now[: len(was)] == was if isinstance(was, list) else now == was)

    logits = our_logits(tool, quantized, tmp_path)
    span = logits.max() - logits.min()
    assert (our_logits(tool, tmp_path / "wide", tmp_path) - logits).abs().max() < 1e-4 * span
    rounded = (our_logits(tool, tmp_path / "out", tmp_path) - logits).abs().max() / span
    assert 0 < rounded < 0.05
    if name == "fp8-whole-blocks":
        options = transformers.FineGrainedFP8Config(dequantize=True, modules_to_not_convert=config["quantization_config"]["modules_to_not_convert"])
        theirs = their_logits(tmp_path / "wide", quantization_config=options)
        assert (theirs - logits).abs().max() < 1e-4 * span
