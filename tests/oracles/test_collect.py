"""Moments of oscar-collect against values computed in Python from transformers on the same tokens, in FP32."""
import json
import os
import struct

import numpy as np
import pytest

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")
safetensors = pytest.importorskip("safetensors")

SEQ_LEN = 96
TOKENS = 900
ROWS = 40
SINK, RECENT = 6, 20  # windows of the far pairs


def relative(a, b):
    a, b = a.double(), b.double()
    return float((a - b).norm() / b.norm())


@pytest.fixture(scope="module")
def source_dir():
    return os.environ["OSCAR_SOURCE_DIR"]


@pytest.fixture(scope="module", params=["tiny-qwen3-outliers", "tiny-qwen3"])
def model_dir(request, source_dir):
    return os.path.join(source_dir, "sample_data", request.param)


@pytest.fixture(scope="module", params=["packed", "apart"])
def prompts(request, tmp_path_factory):
    """Rows of ids, so that the tokenizer plays no part. One is longer than SEQ_LEN, the last meets the budget."""
    rng = np.random.default_rng(7)
    rows = [rng.integers(0, 8000, n).tolist() for n in (50, 96, 230, 1, 64, 97, 300, 200, 80)]
    path = tmp_path_factory.mktemp("prompts") / "rows.jsonl"
    path.write_text("".join(json.dumps({"input_ids": row}) + "\n" for row in rows))
    return path, rows, request.param == "packed"


def pieces(prompts):
    """The sequences that the documented rule makes of the rows."""
    left, out, rows = TOKENS, [], prompts[1]
    if prompts[2]:
        rows = [[token for row in rows for token in row]]
    for row in rows:
        row = row[:left]
        left -= len(row)
        out += [row[i:i + SEQ_LEN] for i in range(0, len(row), SEQ_LEN)]
    return out


@pytest.fixture(scope="module")
def collected(tool, model_dir, prompts, tmp_path_factory):
    out = tmp_path_factory.mktemp("collected") / "s.safetensors"
    tool("oscar-collect", "--model", model_dir, "--prompts", prompts[0], "-o", out, "--tokens", TOKENS, "--seq-len", SEQ_LEN,
         "--rows", ROWS, "--far-pairs", f"{SINK},{RECENT}", "--dtype", "float32", "--device", "cpu", "-q", *([] if prompts[2] else ["--no-pack"]))
    with safetensors.safe_open(out, "pt") as f:
        tensors = {name: f.get_tensor(name) for name in f.keys()}
        metadata = json.loads(f.metadata()["oscar"])
    return tensors, metadata


class Probe:
    """Records what attention sees: q [Hq, T, d], k, v [Hkv, T, d] after norm and RoPE, for each layer and sequence."""

    def __init__(self, model):
        from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

        self.seen = {}
        eager = ALL_ATTENTION_FUNCTIONS["sdpa"]

        def attend(module, query, key, value, attention_mask, **kwargs):
            self.seen.setdefault(module.layer_idx, []).append(tuple(x[0].clone() for x in (query, key, value)))
            return eager(module, query, key, value, attention_mask, **kwargs)

        ALL_ATTENTION_FUNCTIONS["oscar_probe"] = attend
        model.config._attn_implementation = "oscar_probe"
        self.hidden = {}
        for i, layer in enumerate(model.model.layers):
            layer.register_forward_hook(lambda m, a, o, i=i: self.hidden.setdefault(i, []).append((o[0] if isinstance(o, tuple) else o).reshape(-1, model.config.hidden_size)))
        self.before = {}  # layer: q and k after their norms, before RoPE, [T, H, d]
        self.added = {}  # layer: residual stream with the attention output, before the MLP
        for i, layer in enumerate(model.model.layers):
            keep = lambda m, a, o, i=i: self.before.setdefault((i, m is model.model.layers[i].self_attn.q_norm), []).append(o[0].clone())
            layer.self_attn.q_norm.register_forward_hook(keep)
            layer.self_attn.k_norm.register_forward_hook(keep)
            layer.post_attention_layernorm.register_forward_pre_hook(lambda m, a, i=i: self.added.setdefault(i, []).append(a[0].reshape(-1, model.config.hidden_size).clone()))
        model.model.embed_tokens.register_forward_hook(lambda m, a, o: self.hidden.setdefault(-1, []).append(o.reshape(-1, model.config.hidden_size)))


@pytest.fixture(scope="module")
def reference(model_dir, prompts):
    model = transformers.AutoModelForCausalLM.from_pretrained(model_dir, dtype=torch.float32).eval()
    probe = Probe(model)
    with torch.no_grad():
        for piece in pieces(prompts):
            model.model(input_ids=torch.tensor([piece]), use_cache=False)
    return model, probe


def by_kv_head(x, kv_heads):
    """[Hq, T, d] -> [Hkv, g, T, d]"""
    return x.reshape(kv_heads, -1, *x.shape[1:])


def moments(model, sequences, layer):
    """Every tensor of the statistics, from its definition (docs/format-statistics.md), in FP64."""
    hkv = model.config.num_key_value_heads
    d = model.config.head_dim
    out = {name: torch.zeros(hkv, d, d, dtype=torch.float64) for name in ("q_gram", "k_gram", "v_gram", "o_gram", "energy_gram")}
    out["k_sum"] = torch.zeros(hkv, d, dtype=torch.float64)
    out["v_sum"] = torch.zeros(hkv, d, dtype=torch.float64)
    for q, k, v in sequences:
        q, k, v = by_kv_head(q.double(), hkv), k.double(), v.double()
        scores = torch.einsum("hgtd,hsd->hgts", q, k) * d**-0.5
        t = k.shape[1]
        scores = scores.masked_fill(torch.ones(t, t, dtype=torch.bool).triu(1), -torch.inf)
        s = scores.softmax(-1)
        out["q_gram"] += torch.einsum("hgti,hgtj->hij", q, q)
        out["k_gram"] += torch.einsum("hti,htj->hij", k, k)
        out["v_gram"] += torch.einsum("hti,htj->hij", v, v)
        out["k_sum"] += k.sum(1)
        out["v_sum"] += v.sum(1)
        # V^T S^T S V written out, with the token-by-token matrix S^T S in the middle.
        out["o_gram"] += torch.einsum("hsi,hgts,hgtr,hrj->hij", v, s, s, v)
    k = torch.cat([k.double() for _, k, _ in sequences], 1)
    v = torch.cat([v.double() for _, _, v in sequences], 1)
    w = torch.einsum("hti,hij,htj->ht", k, out["q_gram"], k)
    w = w * w.shape[1] / w.sum(1, keepdim=True)
    out["energy_gram"] = torch.einsum("ht,hti,htj->hij", w, v, v)
    wo = model.model.layers[layer].self_attn.o_proj.weight.detach().double().reshape(-1, hkv, model.config.num_attention_heads // hkv, d)
    out["wo_gram"] = torch.einsum("xhgi,xhgj->hij", wo, wo)
    return out


def test_token_counts(collected, prompts):
    tensors, metadata = collected
    assert metadata["tokens"] == TOKENS == sum(map(len, pieces(prompts)))
    part = metadata["parts"][0]
    assert part["sequences"] == len(pieces(prompts))
    ends, begin = [], 0  # rows that are in several sequences
    for i, row in enumerate(prompts[1][:8], 1):
        row = row[:TOKENS - begin]
        first, last = (begin // SEQ_LEN, (begin + len(row) - 1) // SEQ_LEN) if prompts[2] else (0, (len(row) - 1) // SEQ_LEN)
        ends += [(f"rows.jsonl:{i}", last - first + 1)] if last > first else []
        begin += len(row)
    assert [(c["source"], c["pieces"]) for c in part["prompts"]["cut"]] == ends
    assert part["options"].get("context") == (SEQ_LEN if prompts[2] else None)
    assert part["prompts"]["shortened"] == {"source": "rows.jsonl:8", "tokens": 200, "used": 62}
    assert part["prompts"]["unused"] == [{"first": "rows.jsonl:9", "last": "rows.jsonl:9", "rows": 1, "reason": "beyond the token budget"}]


def test_all_moments(collected, reference):
    tensors, _ = collected
    model, probe = reference
    worst = {}
    for layer in range(model.config.num_hidden_layers):
        for name, expected in moments(model, probe.seen[layer], layer).items():
            found = tensors[f"layers.{layer}.{name}"]
            assert found.dtype == torch.float64 and found.shape == expected.shape
            for head in range(expected.shape[0]):
                worst[name] = max(worst.get(name, 0), relative(found[head], expected[head]))
    print(worst)
    assert {name: error for name, error in worst.items() if error > 1e-5} == {}


def test_residual_energy(collected, reference):
    tensors, _ = collected
    model, probe = reference
    for layer in range(-1, model.config.num_hidden_layers):
        expected = sum(float(h.double().square().sum()) for h in probe.hidden[layer])
        found = tensors["embedding_energy" if layer < 0 else f"layers.{layer}.residual_energy"]
        assert float(found[1]) == TOKENS
        assert float(found[0]) == pytest.approx(expected, rel=1e-5)


def test_attention_residual(collected, reference):
    """Where the attention output is added: all tokens, and those that have far keys."""
    tensors, _ = collected
    model, probe = reference
    for layer in range(model.config.num_hidden_layers):
        added = [x.double().square().sum(1) for x in probe.added[layer]]
        far = [x[SINK + RECENT:] for x in added]
        expected = [[float(sum(x.sum() for x in rows)), sum(map(len, rows))] for rows in (added, far)]
        assert tensors[f"layers.{layer}.attention_residual"].tolist() == [pytest.approx(row, rel=1e-5) for row in expected]


def test_moments_before_rope(collected, reference):
    tensors, metadata = collected
    model, probe = reference
    hkv, d = model.config.num_key_value_heads, model.config.head_dim
    for layer in range(model.config.num_hidden_layers):
        q, k = (torch.cat(probe.before[layer, query]).double() for query in (True, False))
        found = lambda name: tensors[f"layers.{layer}.{name}"]
        assert relative(found("pre_k_gram"), torch.einsum("thi,thj->hij", k, k)) < 1e-5
        assert relative(found("pre_k_sum"), k.sum(0)) < 1e-5
        groups = q.reshape(len(q), hkv, -1, d)
        assert relative(found("pre_q_gram"), torch.einsum("thgi,thgj->hij", groups, groups)) < 1e-5
    parameters = model.config.rope_parameters
    expected = parameters["rope_theta"] ** (-torch.arange(0, d, 2).double() / d)
    assert relative(tensors["rope_frequency"], expected) < 1e-6
    facts = metadata["model"]
    assert (facts["max_position"], facts["rope_scale"]) == (model.config.max_position_embeddings, 1.0)
    assert facts["attention_scale"] == pytest.approx(d**-0.5)


def far_metrics(model, probe, layer):
    """far_q_gram, far_pre_q_gram, far_v_weight and far_count from their definition, in FP64."""
    hkv, d = model.config.num_key_value_heads, model.config.head_dim
    hq = model.config.num_attention_heads
    wo = model.model.layers[layer].self_attn.o_proj.weight.detach().double().reshape(-1, hq, d)
    q_gram = torch.zeros(hkv, d, d, dtype=torch.float64)
    pre_q_gram = torch.zeros(hkv, d, d, dtype=torch.float64)
    v_weight = torch.zeros(hkv, d, d, dtype=torch.float64)
    count = torch.zeros(2, dtype=torch.float64)
    for (q, k, v), before in zip(probe.seen[layer], probe.before[layer, True]):
        t = k.shape[1]
        i, j = torch.arange(t)[:, None], torch.arange(t)[None]
        far = (j >= SINK) & (j <= i - RECENT)
        count += torch.tensor([far.any(1).sum(), far.sum()], dtype=torch.float64)
        for h in range(hq):
            kv = h // (hq // hkv)
            qh, kh, vh = q[h].double(), k[kv].double(), v[kv].double()
            p = (qh @ kh.T * d**-0.5).masked_fill(j > i, -torch.inf).softmax(-1)
            moved = torch.cdist(p @ vh @ wo[:, h].T, vh @ wo[:, h].T).square()
            weight = p.square() * far
            q_gram[kv] += torch.einsum("t,ti,tj->ij", (weight * moved).sum(1), qh, qh) / d
            ph = before[:, h].double()
            pre_q_gram[kv] += torch.einsum("t,ti,tj->ij", (weight * moved).sum(1), ph, ph) / d
            v_weight[kv] += weight.sum() * wo[:, h].T @ wo[:, h]
    return {"far_q_gram": q_gram, "far_pre_q_gram": pre_q_gram, "far_v_weight": v_weight, "far_count": count}


def test_far_pairs(collected, reference):
    tensors, metadata = collected
    model, probe = reference
    assert metadata["parts"][0]["options"]["far_pairs"] == {"sink": SINK, "recent": RECENT}
    for layer in range(model.config.num_hidden_layers):
        for name, expected in far_metrics(model, probe, layer).items():
            assert relative(tensors[f"layers.{layer}.{name}"], expected) < 1e-4, (layer, name)


MASK = (1 << 64) - 1


def mix64(x):
    x = (x + 0x9E3779B97F4A7C15) & MASK
    x = ((x ^ (x >> 30)) * 0xBF58476D1CE4E5B9) & MASK
    x = ((x ^ (x >> 27)) * 0x94D049BB133111EB) & MASK
    return x ^ (x >> 31)


def priority(seed, sha, sequence, position):
    """docs/format-statistics.md, rows.priority."""
    fold = 0xCBF29CE484222325
    for c in sha.encode():
        fold = ((fold ^ c) * 0x100000001B3) & MASK
    stream = mix64(fold) ^ sequence
    return mix64(mix64(mix64(seed) ^ stream) ^ position)


def test_row_sample(collected, reference, prompts):
    tensors, metadata = collected
    model, probe = reference
    sha = metadata["parts"][0]["prompts"]["sha256"]
    all_tokens = sorted((priority(0, sha, s, p), s, p) for s, piece in enumerate(pieces(prompts)) for p in range(len(piece)))
    chosen = all_tokens[:ROWS]
    raw = [struct.unpack("<Q", struct.pack("<q", int(x)))[0] for x in tensors["rows.priority"].view(torch.int64)]
    assert raw == [c[0] for c in chosen]
    assert tensors["rows.position"].tolist() == [c[2] for c in chosen]
    for layer in range(model.config.num_hidden_layers):
        for which, name in enumerate("qkv"):
            rows = tensors[f"rows.{layer}.{name}"]
            expected = torch.stack([probe.seen[layer][s][which][:, p] for _, s, p in chosen])
            assert relative(rows, expected) < 1e-5


def test_prompt_set_hash(collected, prompts):
    import hashlib

    h = hashlib.sha256()
    for row in prompts[1]:
        h.update(struct.pack("<Q", len(row)) + struct.pack(f"<{len(row)}I", *row))
    assert collected[1]["parts"][0]["prompts"]["sha256"] == h.hexdigest()
