"""The KL metric of oscar-collect --metric kl against full autograd of the model in PyTorch, with the probes of each token's distribution made
anew from their definition (docs/format-statistics.md)."""
import json
import os

import numpy as np
import pytest

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")
safetensors = pytest.importorskip("safetensors")

SEQ_LEN, TOKENS, SEED = 80, 420, 3
SINK, RECENT = 6, 20  # windows of the far pairs
MASK = (1 << 64) - 1
PLACES = 1 << 20
SIGN_STREAM, PLACE_STREAM = 0x6B6C2D7369676E73, 0x6B6C2D706C616365


def relative(a, b):
    return float((a.double() - b.double()).norm() / b.double().norm())


def mix64(x):
    x = (x + 0x9E3779B97F4A7C15) & MASK
    x = ((x ^ (x >> 30)) * 0xBF58476D1CE4E5B9) & MASK
    x = ((x ^ (x >> 27)) * 0x94D049BB133111EB) & MASK
    return x ^ (x >> 31)


def bits(seed, stream, n):
    return mix64(mix64(mix64(seed) ^ stream) ^ n)


def signs(seed, vocabulary):
    """The table of signs, which has 2^20 places where a token's may begin."""
    words = [bits(seed, SIGN_STREAM, n) for n in range((PLACES + vocabulary + 62) // 64)]
    table = np.unpackbits(np.array(words, "<u8").view(np.uint8), bitorder="little")[:PLACES + vocabulary - 1]
    return torch.from_numpy(2.0 * table - 1.0)


def place(seed, sha, sequence, position):
    fold = 0xCBF29CE484222325
    for c in sha.encode():
        fold = ((fold ^ c) * 0x100000001B3) & MASK
    priority = bits(seed, mix64(fold) ^ sequence, position)
    return bits(PLACE_STREAM, priority, 0) >> 44


@pytest.fixture(scope="module", params=["tiny-llama", "tiny-qwen2", "tiny-qwen3"])
def case(request, tool, tmp_path_factory):
    """The model's directory, its sequences, and the statistics: tensors and metadata."""
    model = os.path.join(os.environ["OSCAR_SOURCE_DIR"], "sample_data", request.param)
    rng = np.random.default_rng(7)
    rows = [rng.integers(0, 8000, n).tolist() for n in (70, 20, 170, 160)]
    folder = tmp_path_factory.mktemp(request.param)
    (folder / "rows.jsonl").write_text("".join(json.dumps({"input_ids": row}) + "\n" for row in rows))
    sequences = [row[i:i + SEQ_LEN] for row in rows for i in range(0, len(row), SEQ_LEN)]
    assert sum(map(len, sequences)) == TOKENS

    def collect(file, *options):
        tool("oscar-collect", "--model", model, "--prompts", folder / "rows.jsonl", "-o", file, "--tokens", TOKENS, "--seq-len",
             SEQ_LEN, "--rows", 8, "--far-pairs", f"{SINK},{RECENT}", "--dtype", "float32", "--device", "cpu", "-q", *options)
        with safetensors.safe_open(file, "pt") as f:
            return {name: f.get_tensor(name) for name in f.keys()}, json.loads(f.metadata()["oscar"])

    tensors, metadata = collect(folder / "s.safetensors", "--metric", "kl", "--seed", SEED)
    return model, sequences, tensors, metadata


class FarAttention:
    """Attention whose far pairs read copies of keys and values, so that autograd tells their share apart."""

    def __init__(self, model):
        from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

        self.keys, self.values = {}, {}
        ALL_ATTENTION_FUNCTIONS["oscar_far"] = self.attend
        model.config._attn_implementation = "oscar_far"

    def attend(self, module, q, k, v, mask, scaling=None, **kwargs):
        t, group = q.shape[2], q.shape[1] // k.shape[1]
        i, j = torch.arange(t)[:, None], torch.arange(t)[None]
        far = (j >= SINK) & (j <= i - RECENT)
        far_k, far_v = k.clone(), v.clone()
        far_k.retain_grad(), far_v.retain_grad()
        self.keys[module.layer_idx], self.values[module.layer_idx] = far_k, far_v
        wide = lambda x: x.repeat_interleave(group, 1)
        scores = torch.where(far, q @ wide(far_k).mT, q @ wide(k).mT) * q.shape[-1]**-0.5
        p = scores.masked_fill(j > i, -torch.inf).softmax(-1)
        return (p * far @ wide(far_v) + p * ~far @ wide(v)).transpose(1, 2), None


def undo_rope(x, cos, sin):
    half = x.shape[-1] // 2
    return x * cos - torch.cat([-x[..., half:], x[..., :half]], -1) * sin


def test_full_autograd(case):
    directory, sequences, tensors, metadata = case
    model = transformers.AutoModelForCausalLM.from_pretrained(directory, dtype=torch.float64).eval().requires_grad_(False)
    attention = FarAttention(model)
    sha = metadata["parts"][0]["prompts"]["sha256"]
    table, sums, probes = signs(SEED, model.config.vocab_size), {}, 0
    for number, ids in enumerate(sequences):
        if len(ids) <= SINK + RECENT:
            continue
        hidden = model.model.embed_tokens(torch.tensor([ids])).requires_grad_(True)
        logits = model(inputs_embeds=hidden, use_cache=False).logits[0]
        root = logits.detach().softmax(-1).sqrt()
        cos, sin = (x[0] for x in model.model.rotary_emb(hidden, torch.arange(len(ids))[None]))
        total = 0
        for t in range(SINK + RECENT, len(ids)):
            at = place(SEED, sha, number, t)
            signed = root[t] * table[at:at + root.shape[1]]
            total = total + logits[t] @ (signed - root[t]**2 * signed.sum())
            probes += 1
        total.backward()
        for layer in attention.keys:
            key, value = attention.keys[layer].grad[0], attention.values[layer].grad[0]
            for name, g in (("kl_k_gram", key), ("kl_pre_k_gram", undo_rope(key, cos, sin)), ("kl_v_gram", value)):
                name = f"layers.{layer}.{name}"
                sums[name] = sums.get(name, 0) + g.mT @ g
    assert probes > 200 and len(sums) == 3 * model.config.num_hidden_layers
    errors = {}
    for name, expected in sums.items():
        assert tensors[name].dtype == torch.float64 and tensors[name].shape == expected.shape
        errors[name] = max(relative(tensors[name][h], expected[h]) for h in range(expected.shape[0]))
        assert float(tensors[name.rsplit(".", 1)[0] + ".kl_count"]) == probes
    print(max(errors.values()))
    assert {name: error for name, error in errors.items() if error > 1e-4} == {}
    assert metadata["parts"][0]["options"]["metric"] == "kl"
