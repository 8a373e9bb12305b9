"""oscar-collect --row-gradients against full autograd of the model in PyTorch: squared gradients of the log-probability of the
true next tokens to the sampled keys before RoPE and values."""
import json
import os
import pathlib

import numpy as np
import pytest

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")
safetensors = pytest.importorskip("safetensors")

SAMPLES = os.path.join(os.environ["OSCAR_SOURCE_DIR"], "sample_data")
ROWS, SEQ_LEN = 90, 80


def collect(tool, folder, model, rows, *options):
    (folder / "rows.jsonl").write_text("".join(json.dumps({"input_ids": row}) + "\n" for row in rows))
    tool("oscar-collect", "--model", model, "--prompts", folder / "rows.jsonl", "-o", folder / "s.safetensors", "--overwrite",
         "--tokens", 10000, "--seq-len", SEQ_LEN, "--rows", ROWS, "--dtype", "float32", "--device", "cpu", "-q", *options)
    with safetensors.safe_open(folder / "s.safetensors", "pt") as f:
        return {name: f.get_tensor(name) for name in f.keys()}, json.loads(f.metadata()["oscar"])


class KeptProjections:
    """Keys and values that carry gradients: of every layer, keys as they enter RoPE, [T, Hkv, d]."""

    def __init__(self, model, heads, d):
        self.kept = {}
        for index, layer in enumerate(model.model.layers):
            attention = layer.self_attn
            # Qwen3 norms keys of each head before RoPE; others project them alone.
            key = getattr(attention, "k_norm", None) or attention.k_proj
            for name, module in (("pre_k_fisher", key), ("v_fisher", attention.v_proj)):
                module.register_forward_hook(self.hook(f"rows.{index}.{name}", heads, d))

    def hook(self, name, heads, d):
        def keep(module, inputs, output):
            output.requires_grad_(True)
            output.retain_grad()
            self.kept[name] = output
        return keep

    def squares(self, heads, d):
        return {name: x.grad[0].reshape(-1, heads, d).square() for name, x in self.kept.items()}


def reference(directory, sequences):
    """{name: [T over all sequences, Hkv, d]}"""
    model = transformers.AutoModelForCausalLM.from_pretrained(directory, dtype=torch.float64).eval().requires_grad_(False)
    c = model.config
    heads, d = c.num_key_value_heads, getattr(c, "head_dim", None) or c.hidden_size // c.num_attention_heads
    kept, found = KeptProjections(model, heads, d), {}
    for ids in sequences:
        hidden = model.model.embed_tokens(torch.tensor([ids])).requires_grad_(True)
        log_p = model(inputs_embeds=hidden, use_cache=False).logits[0].log_softmax(-1)
        log_p[:-1].gather(1, torch.tensor(ids[1:], dtype=torch.long)[:, None]).sum().backward()
        for name, squares in kept.squares(heads, d).items():
            found.setdefault(name, []).append(squares)
    return {name: torch.cat(parts) for name, parts in found.items()}


def sampled(tensors, metadata, sequences):
    """Tokens of the sample, counted over all sequences, by the priorities of docs/format-statistics.md."""
    mask = (1 << 64) - 1

    def mix(x):
        x = (x + 0x9E3779B97F4A7C15) & mask
        x = ((x ^ (x >> 30)) * 0xBF58476D1CE4E5B9) & mask
        x = ((x ^ (x >> 27)) * 0x94D049BB133111EB) & mask
        return x ^ (x >> 31)

    fold = 0xCBF29CE484222325
    for c in metadata["parts"][0]["prompts"]["sha256"].encode():
        fold = ((fold ^ c) * 0x100000001B3) & mask
    at, token = {}, 0
    for number, ids in enumerate(sequences):
        for position in range(len(ids)):
            at[mix(mix(mix(0) ^ mix(fold) ^ number) ^ position)] = token
            token += 1
    return [at[int(p)] for p in tensors["rows.priority"].view(torch.int64).numpy().view(np.uint64)]


def compare(tensors, metadata, directory, sequences):
    expected, tokens = reference(directory, sequences), sampled(tensors, metadata, sequences)
    names = [name for name in tensors if name.endswith("_fisher") and name.startswith("rows.")]
    assert sorted(names) == sorted(expected)
    for name in names:
        assert tensors[name].dtype == torch.float32
        x, y = tensors[name].double(), expected[name][tokens]
        error = float((x - y).norm() / y.norm())
        assert error < 1e-4, f"{name}: {error}"
        assert y.amax() > 0
    return tokens


@pytest.mark.parametrize("name", ["tiny-llama", "tiny-qwen2", "tiny-qwen3"])
def test_full_autograd(tool, tmp_path, name):
    generator = np.random.default_rng(7)
    rows = [generator.integers(0, 8000, n).tolist() for n in (70, 1, 20, 170)]
    sequences = [row[i:i + SEQ_LEN] for row in rows for i in range(0, len(row), SEQ_LEN)]
    model = os.path.join(SAMPLES, name)
    tensors, metadata = collect(tool, tmp_path, model, rows, "--row-gradients")
    assert metadata["parts"][0]["options"]["row_gradients"] is True
    tokens = compare(tensors, metadata, model, sequences)
    # The last token of a sequence has no label, and nothing that has one reads it.
    last = set(np.cumsum([len(s) for s in sequences]) - 1)
    for row, token in enumerate(tokens):
        assert (float(tensors["rows.0.v_fisher"][row].sum()) == 0.0) == (token in last)
    if name != "tiny-llama":
        return
    # Beside the KL metric, and without far pairs, they are the same but for the order of sums.
    for options in (("--metric", "kl", "--far-pairs", "4,20"), ("--far-pairs", "none")):
        other, _ = collect(tool, tmp_path, model, rows, "--row-gradients", *options)
        assert ("layers.0.kl_count" in other) == ("kl" in options)
        for tensor in tensors:
            if tensor.endswith("_fisher") and tensor.startswith("rows."):
                assert float((other[tensor] - tensors[tensor]).norm() / tensors[tensor].norm()) < 1e-5, tensor


def test_partial_and_scaled_rope(tool, tmp_path):
    """yarn multiplies cos and sin by a factor, which the gradient to the key before RoPE has once."""
    import shutil

    from random_checkpoints import randomise

    config = transformers.AutoConfig.for_model(
        "llama", vocab_size=331, hidden_size=48, intermediate_size=64, num_hidden_layers=2, num_attention_heads=4,
        num_key_value_heads=2, head_dim=16, max_position_embeddings=2048, bos_token_id=1, eos_token_id=2, pad_token_id=None,
        rope_parameters=dict(rope_type="yarn", rope_theta=10000.0, factor=4.0, original_max_position_embeddings=128))
    model = transformers.AutoModelForCausalLM.from_config(config)
    randomise(model, seed=5)
    model.save_pretrained(tmp_path / "model")
    shutil.copy(os.path.join(SAMPLES, "tiny-llama", "tokenizer.json"), tmp_path / "model")
    generator = np.random.default_rng(3)
    rows = [generator.integers(3, 331, 80).tolist() for _ in range(2)]
    tensors, metadata = collect(tool, tmp_path, tmp_path / "model", rows, "--row-gradients")
    compare(tensors, metadata, tmp_path / "model", rows)


def test_windows_beside_the_cache(tool, tmp_path):
    """Gemma 4: gradients pass sliding layers with heads of their own; keys have no RoPE that is taken back."""
    import sys

    import family_checkpoints

    folder = family_checkpoints.make("gemma4", tmp_path / "model", tokenizer=pathlib.Path(SAMPLES) / "tiny-llama")
    generator = np.random.default_rng(5)
    rows = [generator.integers(3, 8192, n).tolist() for n in (80, 33)]
    tensors, metadata = collect(tool, tmp_path, folder, rows, "--row-gradients")
    model = transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float64, attn_implementation="eager").eval()
    module, kept = sys.modules[type(model.model.layers[0].self_attn).__module__], []
    eager = module.eager_attention_forward

    def keep(layer, query, key, value, *args, **kwargs):
        for name, x in (("pre_k_fisher", key), ("v_fisher", value)):
            if layer.layer_idx in (1, 3):
                x.retain_grad()
                kept.append((f"rows.{layer.layer_idx}.{name}", x))
        return eager(layer, query, key, value, *args, **kwargs)

    module.eager_attention_forward = keep
    try:
        for ids in rows:
            log_p = model(input_ids=torch.tensor([ids]), use_cache=False).logits[0].log_softmax(-1)
            log_p[:-1].gather(1, torch.tensor(ids[1:])[:, None]).sum().backward()
    finally:
        module.eager_attention_forward = eager
    tokens = sampled(tensors, metadata, rows)
    names = {name for name in tensors if name.endswith("_fisher") and name.startswith("rows.")}
    assert names == {name for name, _ in kept} and len(names) == 4
    for name in names:
        y = torch.cat([x.grad[0].transpose(0, 1) for other, x in kept if other == name])[tokens].square()
        error = float((tensors[name].double() - y).norm() / y.norm())
        assert error < 1e-4 and y.amax() > 0, f"{name}: {error}"
