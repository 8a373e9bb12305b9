"""Families with latent attention against transformers: what one KV head of the latent sees, moments by definition, and the commands.
test_families.py runs it."""
import json

import jsonschema
import pytest
import torch
from safetensors import safe_open
from safetensors.torch import load_file

from conftest import DEVICE, SOURCE_DIR

FAR, WINDOWS = (6, 20), "8,24"  # windows of the statistics, and of the bundles
METHODS = {"oscar": [], "balanced": [], "waterfill": ["--bits", 2.25]}


def of_schema(name, document):
    jsonschema.validate(document, json.loads((SOURCE_DIR / "schemas" / f"{name}.schema.json").read_text()))
    return document


def relative(a, b):
    return float((a.double() - b.double()).norm() / b.double().norm())


def absorbed(layer, query, weights, latent):
    """Latent attention as one KV head reads it: queries q_nope W_UK, key and value c, outputs, and the softmax weights."""
    config = layer.config
    w_uk = layer.kv_b_proj.weight.view(config.num_attention_heads, -1, config.kv_lora_rank)[:, : config.qk_nope_head_dim]
    c = latent[0].unsqueeze(1)  # [T, 1, r]
    q = torch.einsum("htn,hnr->thr", query[0, ..., : config.qk_nope_head_dim], w_uk)
    return q, c, c, torch.einsum("hts,sd->thd", weights[0], c[:, 0]), weights[0]


def output_weights(model, config, layer):
    """W_O W_UV of each head, [H, hidden, r] FP64."""
    weights, prefix, heads = load_file(model / "model.safetensors"), f"model.layers.{layer}.self_attn.", config.num_attention_heads
    w_uv = weights[prefix + "kv_b_proj.weight"].double().view(heads, -1, config.kv_lora_rank)[:, config.qk_nope_head_dim :]
    return torch.einsum("ohv,hvr->hor", weights[prefix + "o_proj.weight"].double().view(-1, heads, config.v_head_dim), w_uv)


def check_moments(model, config, tensors, seen):
    """W_O seen from the latent, and the metrics of pairs outside the windows, by their definition."""
    factor = 1.0
    scaling = (config.to_dict().get("rope_parameters") or {})
    if scaling.get("mscale_all_dim"):
        factor = 0.1 * scaling["mscale_all_dim"] * float(torch.log(torch.tensor(scaling["factor"]))) + 1.0
    scale = factor**2 * (config.qk_nope_head_dim + config.qk_rope_head_dim) ** -0.5
    for layer in range(config.num_hidden_layers):
        w = output_weights(model, config, layer)
        whole = torch.einsum("hor,hos->hrs", w, w)
        assert relative(tensors[f"layers.{layer}.wo_gram"][0], whole.sum(0)) < 1e-5
        q_gram, v_weight = torch.zeros_like(whole[0]), torch.zeros_like(whole[0])
        for q, c, o, p in zip(*(seen[layer, what] for what in "qkop")):
            q, c, o, p = q.double(), c[:, 0].double(), o.double(), p.double()
            tokens = len(c)
            i, j = torch.arange(tokens).unsqueeze(1), torch.arange(tokens).unsqueeze(0)
            p = p.square() * ((j >= FAR[0]) & (j <= i - FAR[1]))  # [H, T, T]
            moved = torch.stack([((w[h] @ (c.unsqueeze(0) - o[:, h].unsqueeze(1)).transpose(1, 2)).square().sum(1) * p[h]).sum(1)
                                 for h in range(len(w))])  # [H, T]
            q_gram += torch.einsum("ht,thr,ths->rs", moved, q, q) * scale**2
            v_weight += torch.einsum("h,hrs->rs", p.sum((1, 2)), whole)
        assert relative(tensors[f"layers.{layer}.far_q_gram"][0], q_gram) < 1e-4, layer
        assert relative(tensors[f"layers.{layer}.far_v_weight"][0], v_weight) < 1e-4, layer


def check(model, config, tensors, seen, statistics, tool, folder):
    """What the files say of it, fit and verify, and what is refused."""
    check_moments(model, config, tensors, seen)
    rank, rope = config.kv_lora_rank, config.qk_rope_head_dim
    with safe_open(statistics, "pt") as file:
        assert of_schema("statistics", json.loads(file.metadata()["oscar"]))["model"]["rope_dim"] == rope
    for method, options in METHODS.items():
        bundle = folder / f"{method}-bundle"
        tool("oscar-fit", statistics, "-o", bundle, "--method", method, "--windows", WINDOWS, "-q", *options)
        manifest = of_schema("bundle", json.loads((bundle / "oscar_bundle.json").read_text()))
        facts = {key: manifest["model"][key] for key in ("attention", "latent_dim", "rope_dim")}
        assert facts == dict(attention="latent", latent_dim=rank, rope_dim=rope)
        assert manifest["format_version"] == (5 if any("refined" in layer["key"] for layer in manifest["layers"]) else 4)
        assert all(layer["head_dim"] == rank and layer["kv_heads"] == 1 and "value" not in layer for layer in manifest["layers"])
        assert not any(".v." in name for name in load_file(bundle / "rotations.safetensors"))
        assert f"{rope} channels in BF16 beside" in (bundle / "README.md").read_text()
    tool("oscar-fit", statistics, "-o", folder / "usual", "--method", "waterfill", "--windows", WINDOWS, "-q")
    assert json.loads((folder / "usual" / "oscar_bundle.json").read_text())["provenance"]["options"]["bits"] == 4  # of latents, if none are asked for
    assert "keeps one row" in tool("oscar-fit", statistics, "--method", "oscar", "-o", folder / "c", "--windows", WINDOWS, "--clip", "0.9,0.8",
                                   code=2)
    fit_from_model(model, tool, folder)
    verify(model, [*(folder / f"{method}-bundle" for method in METHODS), folder / "straight"], config, tool, folder)
    for form in ("sglang-branch", "sglang-branch-v2", "sglang-branch-v3", "transformers", "vllm", "sglang", "hub", "absorbed"):
        for more in ([], ["--model", model]):
            said = tool("oscar-export", folder / "oscar-bundle", "--format", form, "-o", folder / form, *more, code=3)
            small = "layer 0 of the bundle has latents of"
            assert (small if form in ("vllm", "hub") else f"latent attention (MLA), which format {form} does not carry") in said


def fit_from_model(model, tool, folder):
    """The model in place of statistics measures a curve for each layer, whose widths keys and values share."""
    lines = (folder / "rows.jsonl").read_text().splitlines()
    lengths = [len(json.loads(line)["input_ids"]) for line in lines]
    bundle = folder / "straight"
    tool("oscar-fit", "--model", model, "--windows", WINDOWS, "--device", "cpu", "-q", "--prompts", folder / "rows.jsonl", "--own-text", 0,
         "--tokens", sum(lengths), "--seq-len", max(lengths), "--bits", 2.25, "--curve-context", 96, "--curve-sequences", 2, "-o", bundle)
    manifest = json.loads((bundle / "oscar_bundle.json").read_text())
    assert manifest["method"] == "waterfill" and manifest["provenance"]["options"]["allocate"] == "measured"
    curves = of_schema("curves", json.loads((bundle / "curves.json").read_text()))
    assert [(curve["layer"], curve["side"]) for curve in curves["curves"]] == [(layer, "key") for layer in range(4)]
    for curve in curves["curves"]:
        kl = [point["kl"] for point in curve["points"]]  # by ascending bits
        assert kl[0] > 1.2 * kl[-1] > 0
    assert all(point["key"] == point["value"] for point in curves["end_to_end"]) and curves["end_to_end"]
    assert [layer["key"]["widths"] + ["refined"] * ("refined" in layer["key"]) for layer in manifest["layers"]] in [point["key"] for point in curves["end_to_end"]]
    tool("oscar-fit", folder / "straight.statistics.safetensors", "-o", folder / "smaller", "--curves", bundle / "curves.json", "--method",
         "waterfill", "--bits", 1.5, "--windows", WINDOWS, "-q")  # another budget needs no pass
    narrow = json.loads((folder / "smaller" / "oscar_bundle.json").read_text())
    assert narrow["provenance"]["prediction"]["kl"] > manifest["provenance"]["prediction"]["kl"]


def verify(model, bundles, config, tool, folder):
    """Both paths of a cache that holds the row once. On a GPU the prefill path codes on the CPU, and the decode path runs there."""
    text = folder / "text.txt"
    text.write_text((SOURCE_DIR / "sample_data" / "heldout.txt").read_text()[:2000])
    shared = ["oscar-verify", "--no-gate", "--model", model, "--text", text, "--context", 90, "--max-sequences", 1, "--dtype", "float32", "-q",
              "--bootstrap", 50]
    command = [*shared, "--methods", "bf16,naive2,hadamard2,fp8", *[x for bundle in bundles for x in ("--bundle", bundle)]]
    tool(*command, "--path", "both", "--device", "cpu", "--report", folder / "r.json", "--html", folder / "r.html")
    report = of_schema("report", json.loads((folder / "r.json").read_text()))
    rows = {(m["id"], m["path"]): m for m in report["methods"]}
    print(config.model_type, {key: f"{m['kl']['mean']:.2e}" for key, m in rows.items()})
    rank, rope = config.kv_lora_rank, config.qk_rope_head_dim
    assert report["model"]["rope_dim"] == rope and report["model"]["head_dim"] == rank
    assert "per element of the latent and its channels with RoPE" in (folder / "r.html").read_text()
    assert rows["bf16", "prefill"]["token_bytes"] == 2 * rank + 2 * rope
    assert rows["fp8", "prefill"]["token_bytes"] == rank + 2 * rope
    assert rows["naive2", "prefill"]["token_bytes"] == rank / 4 + 4 + 2 * rope
    assert rows["bf16", "decode"]["allocated_bytes"] == 2 * (rank + rope) * 90 * 4
    assert rows["bf16", "decode"]["kl"]["mean"] < 1e-3  # as of other models with experts
    checks = {check["name"]: check["pass"] for check in report["self_checks"]}
    assert all(checks[name] for name in ("null_run", "negative_control", "writer_reader", "prefill_decode")), checks
    for name in ["naive2", "hadamard2", *[bundle.name for bundle in bundles]]:
        assert 1e-5 < rows[name, "decode"]["kl"]["mean"] < 0.2, name
    for layer in rows["oscar-bundle", "prefill"]["layers"]:
        assert 0 < layer["projected_output_error"] < 1
    assert "caches one row for both" in tool(*shared, "--methods", "bf16,kivi2", code=2)
    plan, wide, narrow = (json.loads(tool("oscar-verify", "plan", "--model", model, "--memory", "1GiB", "--contexts", 1000, "--json", *bits))
                          for bits in ((), ("--bits", 4), ("--bits", 2.25)))
    exact = next(m for m in plan["methods"] if m["id"] == "bf16")
    assert plan == wide != narrow  # 4 bits, as oscar-fit by default
    assert exact["contexts"][0]["sequence_bytes"] == 2 * (rank + rope) * 1000 * 4 and "kivi2" in str(plan["do_not_fit"])
    if DEVICE != "cpu":
        tool(*command, "--path", "both", "--device", DEVICE, "--report", folder / "r2.json")
        on_device = {m["id"]: m["kl"]["mean"] for m in json.loads((folder / "r2.json").read_text())["methods"] if m["path"] == "prefill"}
        assert on_device["oscar-bundle"] == pytest.approx(rows["oscar-bundle", "prefill"]["kl"]["mean"], rel=0.2)
