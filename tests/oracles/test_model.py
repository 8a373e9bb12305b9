"""Logits of oscar_logits against transformers: both sample checkpoints, and random ones of every family."""

from pathlib import Path

import pytest

np = pytest.importorskip("numpy")
torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")
safetensors_torch = pytest.importorskip("safetensors.torch")

import random_checkpoints  # noqa: E402  (needs the packages above)

transformers.utils.logging.disable_progress_bar()
transformers.utils.logging.set_verbosity_error()  # yarn factors that do not match the context are meant
torch.set_num_threads(2)
ROOT = Path(__file__).resolve().parents[2]
SAMPLES = [ROOT / "sample_data" / name for name in ("tiny-qwen3", "tiny-qwen3-outliers")]
DTYPES = ["float32", "bfloat16"]
DEVICES = ["cpu", pytest.param("cuda", marks=pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU"))]
LENGTHS = [530, 1, 64]  # past every window and original context above, and past one block of queries


@pytest.fixture
def oscar_logits(tool, tmp_path):
    """oscar_logits(model, sequences, dtype, device, *options): logits [T, vocabulary] of the packed sequences."""

    def run(model, sequences, dtype, device, *options):
        ids, out = tmp_path / "ids.txt", tmp_path / "logits.bin"
        ids.write_text("\n".join(" ".join(map(str, s)) for s in sequences) + "\n")
        tool("oscar_logits", model, ids, out, "--dtype", dtype, "--device", device, *options)
        return torch.from_numpy(np.fromfile(out, np.float32)).view(sum(map(len, sequences)), -1)

    return run


def peer_model(model, dtype, device):
    peer = transformers.AutoModelForCausalLM.from_pretrained(model, dtype=dtype, attn_implementation="sdpa")
    return peer.to(device).eval()


def peer_logits(model, sequences, dtype, device):
    """The same from transformers, one sequence at a time."""
    peer = peer_model(model, dtype, device)
    with torch.no_grad():
        return torch.cat([peer(torch.tensor([s], device=device)).logits[0].float().cpu() for s in sequences])


def mean_kl(peer, ours):
    p, q = peer.double().log_softmax(-1), ours.double().log_softmax(-1)
    return (p.exp() * (p - q)).sum(-1).mean().item()


def compare(ours, peer, dtype, label):
    assert ours.shape == peer.shape
    error = ((ours - peer).abs().max() / (peer.max() - peer.min())).item()
    kl = mean_kl(peer, ours)
    print(f"\n{label:30} {dtype:9} max difference / range {error:.1e}  mean KL {kl:.1e}")
    assert error < (1e-4 if dtype == "float32" else 0.1)
    assert kl < (1e-6 if dtype == "float32" else 1e-3)


def random_sequences(vocabulary, lengths, seed=0):
    generator = torch.Generator().manual_seed(seed)
    return [torch.randint(0, vocabulary, (n,), generator=generator).tolist() for n in lengths]


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("model", SAMPLES, ids=lambda p: p.name)
def test_sample(model, dtype, device, oscar_logits):
    sequences = random_sequences(8192, LENGTHS)
    ours = oscar_logits(model, sequences, dtype, device)
    compare(ours, peer_logits(model, sequences, dtype, device), dtype, f"{model.name} {device}")


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("name", random_checkpoints.CASES)
def test_random(name, device, tmp_path, oscar_logits):
    model = random_checkpoints.make(name, tmp_path / "model")
    sequences = random_sequences(331, LENGTHS)
    for dtype in DTYPES:
        ours = oscar_logits(model, sequences, dtype, device)
        compare(ours, peer_logits(model, sequences, dtype, device), dtype, f"{name} {device}")
    # The last run was BF16. The older spelling and layer streaming must not change a bit of it.
    random_checkpoints.respell_as_v4(model)
    respelled = oscar_logits(model, sequences, dtype, device, "--stream-layers")
    assert torch.equal(respelled, ours)
    assert mean_kl(peer_logits(model, sequences, dtype, device), respelled) < 1e-3


def test_attention_inputs(tmp_path, monkeypatch, oscar_logits):
    """What an observer sees: q and k after norm and RoPE, v as projected, o before W_O."""
    model = random_checkpoints.make("qwen3-window-tied", tmp_path / "model")
    (sequence,) = random_sequences(331, [100])
    qkvo = tmp_path / "qkvo.safetensors"
    oscar_logits(model, [sequence], "float32", "cpu", "--qkvo", qkvo)
    ours = safetensors_torch.load_file(qkvo)

    functions = transformers.modeling_utils.ALL_ATTENTION_FUNCTIONS
    sdpa, seen = functions["sdpa"], {}

    def capture(module, query, key, value, *args, **kwargs):
        output = sdpa(module, query, key, value, *args, **kwargs)
        for what, tensor in zip("qkv", (query, key, value)):
            seen[f"layers.{module.layer_idx}.{what}"] = tensor[0].transpose(0, 1)
        seen[f"layers.{module.layer_idx}.o"] = output[0][0]
        return output

    monkeypatch.setitem(functions, "sdpa", capture)
    with torch.no_grad():
        peer_model(model, "float32", "cpu")(torch.tensor([sequence]))
    assert seen.keys() == ours.keys() and len(seen) == 12
    for key, tensor in seen.items():
        assert ours[key].shape == tensor.shape
        assert (ours[key] - tensor).abs().max() < 1e-5 * tensor.abs().max(), key
