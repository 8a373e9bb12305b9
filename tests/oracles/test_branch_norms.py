"""Models whose attention branch passes a norm before it is added (Gemma 2 and 3, GLM-4, OLMo 2): an error in the branch is as
large as it is behind that norm. So a factor on W_O, which the norm takes away, changes no statistic of errors and no width."""
import json

import pytest

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")
safetensors = pytest.importorskip("safetensors.torch")

from twin_checkpoints import collect, id_rows, save, widths  # noqa: E402

LAYERS, HIDDEN, HEADS, KV_HEADS, DIM = 4, 96, 4, 2, 32
GAIN = [0.5, 2.0, 6.0, 20.0]  # of the norm behind attention: the stream grows from layer to layer
FACTORS = [16.0, 0.25, 64.0, 0.5]  # of W_O in the twin
SINK, RECENT = 16, 64
WINDOWS = ["--windows", f"{SINK},{RECENT}"]


def checkpoint(folder, factors):
    config = transformers.Gemma3TextConfig(
        vocab_size=8192, hidden_size=HIDDEN, intermediate_size=2 * HIDDEN, num_hidden_layers=LAYERS, num_attention_heads=HEADS,
        num_key_value_heads=KV_HEADS, head_dim=DIM, max_position_embeddings=4096, query_pre_attn_scalar=8, sliding_window=128,
        layer_types=["full_attention", "sliding_attention", "full_attention", "full_attention"], bos_token_id=1, eos_token_id=2,
        pad_token_id=0)
    model = transformers.AutoModelForCausalLM.from_config(config)
    generator = torch.Generator().manual_seed(3)
    normal = lambda *shape: torch.randn(*shape, generator=generator)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if "norm" in name:
                parameter.copy_(0.1 * normal(*parameter.shape))
            else:
                parameter.copy_(normal(*parameter.shape) * parameter.shape[-1]**-0.5)
        for i, (layer, gain, factor) in enumerate(zip(model.model.layers, GAIN, factors, strict=True)):
            decay = torch.linspace(2.0, 0.1, DIM).repeat(KV_HEADS)[:, None]  # directions that matter, and others
            layer.self_attn.v_proj.weight.mul_(decay)
            layer.self_attn.k_norm.weight.copy_(torch.linspace(1.0, -0.9, DIM))
            layer.self_attn.o_proj.weight.mul_(factor * (0.05 if i == 2 else 1.0))
            layer.post_attention_layernorm.weight.copy_(gain * (1.0 + 0.3 * normal(HIDDEN)) - 1.0)
            layer.post_feedforward_layernorm.weight.copy_(0.3 * gain * torch.ones(HIDDEN) - 1.0)
    return save(model, folder)


@pytest.fixture(scope="module")
def twins(tool, tmp_path_factory):
    """{is it the twin: (checkpoint, statistics)}, and the folder with the text to score."""
    folder = tmp_path_factory.mktemp("norms")
    rows = id_rows(folder / "rows.jsonl", 6, 500)
    id_rows(folder / "score.jsonl", 4, 500)
    out = {}
    for name, factors in (("plain", [1.0] * LAYERS), ("scaled", FACTORS)):
        model = checkpoint(folder / name, factors)
        out[name == "scaled"] = model, collect(tool, model, rows, folder / f"s-{name}", f"{SINK},{RECENT}", "--seq-len", 500)
    return folder, out


def test_the_gain_is_that_of_the_norm(twins):
    """1 / ((mean y^2) |x|^2) from transformers: y the branch before its norm, x the stream with the branch added."""
    folder, out = twins
    directory, statistics = out[True]
    model = transformers.AutoModelForCausalLM.from_pretrained(directory, dtype=torch.float32).eval()
    seen = {}
    for i, layer in enumerate(model.model.layers):
        layer.self_attn.o_proj.register_forward_hook(lambda m, a, o, i=i: seen.setdefault((i, "y"), []).append(o[0]))
        layer.pre_feedforward_layernorm.register_forward_pre_hook(lambda m, a, i=i: seen.setdefault((i, "x"), []).append(a[0][0]))
    ids = [token for row in (folder / "rows.jsonl").read_text().splitlines() for token in json.loads(row)["input_ids"]]
    with torch.no_grad():
        for begin in range(0, len(ids), 500):
            model.model(input_ids=torch.tensor([ids[begin:begin + 500]]), use_cache=False)
    tensors = safetensors.load_file(statistics)
    for i, layer in enumerate(model.model.layers):
        gains = [1 / (y.double().square().mean(1) * x.double().square().sum(1)) for y, x in zip(seen[i, "y"], seen[i, "x"], strict=True)]
        expected = [[float(sum(g.sum() for g in rows)), sum(map(len, rows))] for rows in (gains, [g[SINK + RECENT:] for g in gains])]
        assert tensors[f"layers.{i}.attention_gain"].tolist() == [pytest.approx(row, rel=1e-3) for row in expected]
        weight = (layer.self_attn.o_proj.weight.double() * (1 + layer.post_attention_layernorm.weight.double())[:, None])
        heads = weight.detach().reshape(HIDDEN, KV_HEADS, -1, DIM)
        expected = torch.einsum("xhgi,xhgj->hij", heads, heads)
        assert torch.allclose(tensors[f"layers.{i}.wo_gram"], expected, rtol=1e-5, atol=1e-7 * float(expected.abs().max()))


@pytest.mark.parametrize("bits", [1.5, 3.0])
def test_a_factor_that_the_norm_takes_away_changes_no_width(tool, twins, bits):
    folder, out = twins
    assert widths(tool, folder, out[False][1], bits, *WINDOWS) == widths(tool, folder, out[True][1], bits, *WINDOWS)


def test_analytic_allocation_does_not_lose_to_one_width_for_all(tool, twins):
    folder, out = twins
    directory, statistics = out[True]
    tool("oscar-fit", statistics, "-o", folder / "balanced", "--method", "balanced", "--windows", f"{SINK},{RECENT}")
    if not (folder / f"{statistics.name}-3.0").exists():
        widths(tool, folder, statistics, 3.0, *WINDOWS)  # bits of balanced at this head size
    tool("oscar-verify", "--model", directory, "--bundle", folder / "balanced", "--bundle", folder / f"{statistics.name}-3.0", "--text",
         folder / "score.jsonl", "--context", 500, "--device", "cpu", "--dtype", "float32", "--no-gate", "--report", folder / "r.json", "-q")
    methods = json.loads((folder / "r.json").read_text())["methods"]
    kl = {m["id"]: m["kl"]["mean"] for m in methods}
    assert kl[f"{statistics.name}-3.0"] < kl["balanced"], kl
