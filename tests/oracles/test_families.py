"""Families of family_checkpoints.py against transformers: logits, what attention sees, the moments of oscar-collect; and
oscar-fit, oscar-verify on both paths and oscar-export on what was collected."""

import json
import sys

import pytest

np = pytest.importorskip("numpy")
torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")
safetensors = pytest.importorskip("safetensors")
safetensors_torch = pytest.importorskip("safetensors.torch")

import family_checkpoints  # noqa: E402  (needs the packages above)
import family_table  # noqa: E402
import latent_families  # noqa: E402
from conftest import DEVICE, SOURCE_DIR  # noqa: E402

transformers.utils.logging.disable_progress_bar()
transformers.utils.logging.set_verbosity_error()
torch.set_num_threads(1)
EXPERTS = ("moe", "mixtral", "gpt-oss", "next", "llama4", "minimax")  # words in the names of cases with experts
LENGTHS = [150, 1, 64]  # past every window and original context of the cases
# One case of each family passes through all four commands; the others differ in their files or in one switch, which the
# logits show.
WHOLE = ["qwen3-moe", "mixtral", "gemma3-wrapped", "gpt-oss", "glm4", "phi3-partial", "olmo2", "gemma2", "smollm3", "cohere2",
         "hunyuan", "glm4-moe", "qwen3-next", "qwen3-5-wrapped", "hunyuan-moe", "llama4", "ministral3", "mistral-wrapped",
         "seed-oss", "granite", "olmo3", "exaone4", "ernie4-5", "ernie4-5-moe", "minimax-m2", "qwen3-5-moe", "gemma4",
         "gemma4-moe-wrapped", "gemma4-unified-wrapped", "gemma4-shared"]
# What oscar-export refuses beside vLLM, whose kernels have no heads of 32 channels: word of the refusal -> cases.
NOT_ABSORBED = {"stores in one tensor with q and k": ["phi3-partial"],
                "multiplies them by a gate": ["qwen3-next", "qwen3-5-wrapped", "qwen3-5-moe"],
                "normalizes values after it": ["gemma4", "gemma4-moe-wrapped", "gemma4-unified-wrapped", "gemma4-shared"]}
READ_ANOTHER = ["gemma4-shared"]  # curves are not measured of layers that read the cache of another one
LATENT = ["deepseek-v2-groups", "deepseek-v3", "glm4-moe-lite"]  # latent_families.py checks them


def sequences():
    generator = torch.Generator().manual_seed(3)
    return [torch.randint(0, 8192, (n,), generator=generator).tolist() for n in LENGTHS]


def peer(model, dtype="float32"):
    """Logits [T, vocabulary] of the packed sequences, and q, k, v, o of each layer, [T, H, d] for each sequence."""
    kind = (transformers.AutoModelForImageTextToText if (model / "config.json").read_text().count('"text_config"')
            else transformers.AutoModelForCausalLM)
    network = kind.from_pretrained(model, dtype=dtype, attn_implementation="eager", experts_implementation="eager").eval()
    attention = next(m for m in network.modules() if hasattr(m, "layer_idx") and hasattr(m, "o_proj"))
    module, seen = sys.modules[type(attention).__module__], {}
    eager = module.eager_attention_forward

    def capture(layer, query, key, value, *args, **kwargs):
        output = eager(layer, query, key, value, *args, **kwargs)
        if hasattr(layer, "kv_a_layernorm"):
            seen_by_head = latent_families.absorbed(layer, query, output[1], latents[-1])
        else:
            seen_by_head = [x[0].transpose(0, 1) for x in (query, key, value, output[0].transpose(1, 2))]
        for what, tensor in zip("qkvop", seen_by_head):
            seen.setdefault((layer.layer_idx, what), []).append(tensor.float())
        return output

    latents = []  # what the norm of the latent gave last, of the layer at work
    for part in network.modules():
        if hasattr(part, "kv_a_layernorm"):
            part.kv_a_layernorm.register_forward_hook(lambda module, inputs, output: latents.append(output))
    module.eager_attention_forward = capture
    try:
        with torch.no_grad():
            logits = torch.cat([network(input_ids=torch.tensor([s])).logits[0].float() for s in sequences()])
    finally:
        module.eager_attention_forward = eager
    return logits, seen


@pytest.fixture(scope="module", params=family_checkpoints.CASES)
def case(request, tmp_path_factory):
    folder = tmp_path_factory.mktemp(request.param)
    model = family_checkpoints.make(request.param, folder / "model", SOURCE_DIR / "sample_data" / "tiny-qwen3")
    return request.param, model, peer(model)


@pytest.fixture
def oscar_logits(tool, tmp_path):
    def run(model, *options):
        ids, out = tmp_path / "ids.txt", tmp_path / "logits.bin"
        ids.write_text("\n".join(" ".join(map(str, s)) for s in sequences()) + "\n")
        tool("oscar_logits", model, ids, out, "--device", DEVICE, *options)
        return torch.from_numpy(np.fromfile(out, np.float32)).view(sum(LENGTHS), -1)

    return run


def mean_kl(theirs, ours):
    p, q = theirs.double().log_softmax(-1), ours.double().log_softmax(-1)
    return (p.exp() * (p - q)).sum(-1).mean().item()


def test_logits(case, tool, oscar_logits, tmp_path):
    name, model, (theirs, seen) = case
    qkvo = tmp_path / "qkvo.safetensors"
    ours = oscar_logits(model, "--qkvo", qkvo)
    error = ((ours - theirs).abs().max() / (theirs.max() - theirs.min())).item()
    print(f"\n{name:20} max difference / range {error:.1e}  mean KL {mean_kl(theirs, ours):.1e}")
    assert error < 1e-4
    assert torch.equal(ours.argmax(-1), theirs.argmax(-1))
    for key, tensor in safetensors_torch.load_file(qkvo).items():
        _, layer, what = key.split(".")
        expected = torch.cat(seen[int(layer), what])
        assert tensor.shape == expected.shape and (tensor - expected).abs().max() < 3e-5 * expected.abs().max(), key
    # The older spelling means the same; where layers differ, it and layer streaming must not change a bit.
    config = (model / "config.json").read_text()
    (tmp_path / "new.json").write_text(config)
    try:
        family_checkpoints.respell_as_v4(model)
        new, old = tool("checkpoint_tool", "config", tmp_path / "new.json", model / "config.json").splitlines()
        assert new == old and new.startswith("{")
        if name in ("qwen3-moe", "gemma3-wrapped", "gpt-oss", "smollm3", "qwen3-next", "gemma4-moe-wrapped", "gemma4-shared"):
            assert torch.equal(oscar_logits(model, "--stream-layers"), ours)
    finally:
        (model / "config.json").write_text(config)


@pytest.mark.parametrize("name, outside", [("qwen3-5-wrapped", True), ("mistral-wrapped", True), ("mistral-wrapped", None), ("ministral3-wrapped", None),
                                           ("gemma3-wrapped", None), ("gemma4-moe-wrapped", None), ("gemma4-unified-wrapped", None)])
def test_a_head_that_the_wrapper_ties(name, outside, tmp_path, oscar_logits, tool):
    """text_config says that embedding and head are two, the wrapper's own key or its default that they are one; no head is stored."""
    model = family_checkpoints.make(name, tmp_path / "model", tie_word_embeddings=True)
    config = json.loads((model / "config.json").read_text())
    config["text_config"]["tie_word_embeddings"] = False
    config["tie_word_embeddings"] = outside
    if outside is None:
        del config["tie_word_embeddings"]
    (model / "config.json").write_text(json.dumps(config))
    theirs, _ = peer(model)
    ours = oscar_logits(model)
    assert (ours - theirs).abs().max() < 1e-4 * (theirs.max() - theirs.min())
    config["tie_word_embeddings"] = False
    (model / "config.json").write_text(json.dumps(config))
    assert "lm_head.weight is missing" in tool("oscar_logits", model, tmp_path / "ids.txt", tmp_path / "x", code=3)


@pytest.mark.parametrize("name", ["qwen3-moe", "gemma3", "gpt-oss", "qwen3-5", "gemma4-moe-wrapped"])
def test_bfloat16(name, tmp_path, oscar_logits):
    """BF16 is as close to FP32 as theirs: one family for each kind of norm and of experts."""
    model = family_checkpoints.make(name, tmp_path / "model")
    theirs = peer(model, "bfloat16")[0]
    exact = peer(model)[0]
    ours = oscar_logits(model, "--dtype", "bfloat16")
    print(f"\n{name:20} KL to FP32: theirs {mean_kl(exact, theirs):.1e} ours {mean_kl(exact, ours):.1e}")
    assert mean_kl(exact, ours) < max(2 * mean_kl(exact, theirs), 1e-5)


def collect(tool, model, folder, *options):
    prompts = folder / "rows.jsonl"
    prompts.write_text("".join(json.dumps({"input_ids": row}) + "\n" for row in sequences()))
    tool("oscar-collect", "--model", model, "--prompts", prompts, "--no-pack", "-o", folder / "s.safetensors", "--tokens", sum(LENGTHS),
         "--seq-len", max(LENGTHS), "--rows", 200, "--far-pairs", "6,20", "--dtype", "float32", "--device", DEVICE, "-q", *options)
    return folder / "s.safetensors"


def relative(a, b):
    return float((a.double() - b.double()).norm() / b.double().norm())


def windows_apart(model):
    """Layers with a window whose heads are of another size than those of layers that see all: no statistics are of them."""
    config = json.loads((model / "config.json").read_text())
    text = config.get("text_config", config)
    return {i for i, kind in enumerate(text["layer_types"]) if kind == "sliding_attention"} if text.get("per_layer_config") else set()


def readers(model):
    """Layers that read the keys and values of an earlier one -> that layer's number."""
    config = json.loads((model / "config.json").read_text())
    text = config.get("text_config", config)
    kinds, shared = text.get("layer_types") or [], text.get("num_kv_shared_layers") or 0
    first = len(kinds) - shared
    return {i: max(j for j in range(first) if kinds[j] == kinds[i]) for i in range(first, len(kinds))}


def check_exports(name, model, tool, folder, logits):
    """All formats that carry the bundle; the absorbed checkpoint computes what the original does. logits(model, *options)."""
    shared = ["oscar-export", folder / "bundle", "--model", model]
    for form in ("sglang-branch", "sglang-branch-v2", "sglang-branch-v3"):
        tool(*shared, "--format", form, "-o", folder / form)
        assert list((folder / form).glob("*.pt")), form
    tool(*shared, "--format", "transformers", "-o", folder / "transformers")
    assert (folder / "transformers" / "custom_generate" / "generate.py").exists()
    if name in READ_ANOTHER:
        # Curves are not measured of them: analytic allocation where nothing is said, and a refusal before anything is collected.
        fit = ["oscar-fit", "--model", model, "--prompts", folder / "rows.jsonl", "--own-text", 0, "--tokens", sum(LENGTHS), "--seq-len", max(LENGTHS),
               "--windows", "8,24", "--device", "cpu", "-q", "-o", folder / "straight"]
        assert "measuring curves does not serve" in tool(*fit, "--allocate", "measured", code=3)
        assert not (folder / "straight.statistics.safetensors").exists()
        tool(*fit)
        manifest = json.loads((folder / "straight" / "oscar_bundle.json").read_text())
        assert manifest["provenance"]["options"]["allocate"] == "analytic"
    reason = next((word for word, cases in NOT_ABSORBED.items() if name in cases), None)
    if reason:
        assert reason in tool(*shared, "--format", "absorbed", "-o", folder / "absorbed", code=3)
        return
    tool(*shared, "--format", "absorbed", "-o", folder / "absorbed")
    expected, found = logits(model), logits(folder / "absorbed")
    assert 0 < (found - expected).abs().max() < 1e-4 * (expected.max() - expected.min())


def fit_in_one_command(name, model, tool, folder):
    """Prompts, text that the model writes beside them, and curves: what comes of nothing but the names of files."""
    writes = name not in READ_ANOTHER
    curves = ["--curve-context", 96, "--curve-sequences", 1] if name not in READ_ANOTHER else []
    tool("oscar-fit", "--model", model, "--prompts", folder / "rows.jsonl", "-o", folder / "one", "--tokens", sum(LENGTHS), "--seq-len",
         max(LENGTHS), "--windows", "8,24", "--bits", 2.5, *curves, *(["--own-text", 256] if writes else []), "--device", DEVICE, "--dtype", "float32",
         "-q")
    manifest = json.loads((folder / "one" / "oscar_bundle.json").read_text())
    assert manifest["method"] == "waterfill" and (folder / "one.prompts.jsonl").exists() == writes
    assert manifest["provenance"]["options"]["allocate"] == ("analytic" if name in READ_ANOTHER else "measured")


def test_commands(case, tool, tmp_path, oscar_logits):
    name, model, (_, seen) = case
    if name not in WHOLE + LATENT:
        pytest.skip("another case of the family runs")
    statistics = collect(tool, model, tmp_path)
    tensors = safetensors_torch.load_file(statistics)
    layers = sorted({layer for layer, _ in seen} - windows_apart(model) - set(readers(model)))
    assert {int(key.split(".")[1]) for key in tensors if key.startswith("layers.")} == set(layers)
    for layer in layers:
        for what in "qkvo":
            x = torch.cat(seen[layer, what]).double()  # [T, H, d]
            x = x.view(x.shape[0], 1 if name in LATENT else 2, -1, x.shape[2])  # by KV head
            gram = torch.einsum("thgi,thgj->hij", x, x)
            assert relative(tensors[f"layers.{layer}.{what}_gram"], gram) < 1e-5, (layer, what)
            if what in "kv":
                assert relative(tensors[f"layers.{layer}.{what}_sum"], x.sum((0, 2))) < 1e-5, (layer, what)

    fit_in_one_command(name, model, tool, tmp_path)
    if name in LATENT:
        latent_families.check(model, transformers.AutoConfig.from_pretrained(model), tensors, seen, statistics, tool, tmp_path)
        return
    tool("oscar-fit", statistics, "--method", "oscar", "-o", tmp_path / "bundle", "--windows", "8,24", "-q")
    text = tmp_path / "text.txt"
    text.write_text((SOURCE_DIR / "sample_data" / "heldout.txt").read_text()[:2000])
    # A rounding of one stored key may choose another expert at one position, which a mean over 57 of them shows: with experts
    # the two paths are not compared, and the cache is the model up to such a position.
    experts = any(word in name for word in EXPERTS)
    tool("oscar-verify", "--no-gate", "--model", model, "--bundle", tmp_path / "bundle", "--text", text, "--context", 90,
         "--max-sequences", 1, "--path", "decode" if experts else "both", "--device", DEVICE, "--dtype", "float32", "--report", tmp_path / "r.json", "-q", "--methods", "bf16,naive2,oscar", "--bootstrap", 50)
    report = json.loads((tmp_path / "r.json").read_text())
    rows = {(m["id"], m["path"]): m for m in report["methods"]}
    print(name, {key: f"{m['kl']['mean']:.2e}" for key, m in rows.items()})
    # The paged cache in FP32 is the model: its windows, sinks, caps and positions. Quantized it is not, by five times
    # what the choice of an expert may cost.
    assert rows["bf16", "decode"]["kl"]["mean"] < (1e-3 if experts else 1e-5)
    assert rows["naive2", "decode"]["kl"]["mean"] > (5e-3 if experts else 1e-4)
    assert rows["oscar", "decode"]["kl"]["mean"] > 1e-4
    if name == "gemma3-wrapped":  # layers with a RoPE of their own: nothing to take back, and nothing to average over positions
        tool("oscar-fit", statistics, "-o", tmp_path / "second", "--method", "waterfill", "--bits", "2.5", "-q")
        assert "--center rope needs one rotary embedding" in tool(
            "oscar-fit", statistics, "-o", tmp_path / "third", "--method", "waterfill", "--bits", "2.5", "--center", "rope", code=3)
    # A layer without a KV cache is nowhere, nor is one whose queries never meet a quantized key; the manifest says why.
    with safetensors.safe_open(statistics, "pt") as file:
        geometry = json.loads(file.metadata()["oscar"])["geometry"]
    windowed = [g["layer"] for g in geometry if 0 < g["sliding_window"] <= 24]
    manifest = json.loads((tmp_path / "bundle" / "oscar_bundle.json").read_text())
    held = [layer for layer in layers if layer not in windowed]
    assert [entry["layer"] for entry in manifest["layers"]] == held
    total = json.loads((model / "config.json").read_text())
    total = total.get("text_config", total)["num_hidden_layers"]
    assert manifest["model"]["layers"] == total
    left_out = manifest["model"].get("left_out", [])
    reasons = {entry["layer"]: entry["reason"] for entry in left_out}
    assert {entry["layer"]: entry["reads"] for entry in left_out if "reads" in entry} == dict(readers(model))
    assert sorted(reasons) == [i for i in range(total) if i not in held]
    for reader, source in readers(model).items():
        assert reasons.pop(reader) == f"reads the keys and values of layer {source}, no cache of its own"
    if windows_apart(model):
        assert set(reasons.values()) == {"a window of 17 tokens in heads of another size, which stay as they are"}
    if name in ("gpt-oss", "gemma3-wrapped"):
        assert windowed == [0, 2] and reasons[0] == "a window of 17 tokens, which stay in BF16"
        assert reasons[0] in (tmp_path / "bundle" / "README.md").read_text()
        assert "leaves out layer 0, whose queries see 17 tokens" in tool(
            "oscar-verify", "--no-gate", "--model", model, "--bundle", tmp_path / "bundle", "--text", text, "--context", 90, "--windows", "8,16",
            "--path", "decode", "--device", DEVICE, "--report", tmp_path / "r2.json", "-q", code=3)
    check_exports(name, model, tool, tmp_path, oscar_logits)


@pytest.mark.parametrize("kind", ["deepseek_v2", "deepseek_v3", "glm4_moe_lite", "kimi_k2"])
def test_types_of_latent_attention_are_read(kind, tool, tmp_path):
    """By the name of the architecture and by the model type, with and without the other; another type is refused by its name."""
    config = transformers.AutoConfig.for_model(kind.replace("kimi_k2", "deepseek_v3")).to_dict() | {"model_type": kind, "num_experts_per_tok": 2}
    name = transformers.models.auto.modeling_auto.MODEL_FOR_CAUSAL_LM_MAPPING_NAMES.get(kind) or "DeepseekV3ForCausalLM"
    by_type = {key: value for key, value in config.items() if key != "architectures"}
    file = tmp_path / "config.json"
    for wording in (by_type | {"architectures": [name]}, by_type):
        file.write_text(json.dumps(wording))
        assert f'"{name}"' in tool("checkpoint_tool", "config", file)
    file.write_text(json.dumps(config | {"architectures": ["NewForCausalLM"], "model_type": "new"}))
    assert "the architecture 'NewForCausalLM' is not supported" in tool("checkpoint_tool", "config", file)


def test_documented_families_are_those_that_are_tested(tool, tmp_path):
    """The table of the page is what the cases above and those of tests/python make it; family_table.py --write rewrites it."""
    (tmp_path / "config.json").write_text(json.dumps({"architectures": ["Unheard"]}))
    refusal = tool("checkpoint_tool", "config", tmp_path / "config.json")
    assert set(refusal.strip().rpartition("supported are ")[2].split(", ")) == set(family_table.cases()) | family_table.wrappers()
    text = (SOURCE_DIR / "docs" / "families.md").read_text()
    page, missing = family_table.rewritten(text)
    assert not missing
    assert text == page, "docs/families.md claims something else than the tests run: python tests/oracles/family_table.py --write"
    assert {line.split("`")[1] for line in text.splitlines() if line.startswith("| `")} == set(family_table.cases())
    claimed = family_table.rewritten(text.replace("| decode |", "| both paths |"))[0]
    assert claimed == page  # a claim by hand does not last
