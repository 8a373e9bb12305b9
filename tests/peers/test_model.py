"""Logits of oscar_logits against transformers: both sample checkpoints, and random ones of every family."""

import os
import subprocess
from pathlib import Path

import pytest

np = pytest.importorskip("numpy")
torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

ROOT = Path(__file__).resolve().parents[2]
SAMPLES = [ROOT / "sample_data" / name for name in ("tiny-qwen3", "tiny-qwen3-outliers")]


def oscar_logits(model, sequences, directory, *options):
    """Logits [T, vocabulary] of the packed sequences."""
    ids, out = directory / "ids.txt", directory / "logits.bin"
    ids.write_text("\n".join(" ".join(map(str, s)) for s in sequences) + "\n")
    subprocess.run([os.environ["OSCAR_LOGITS"], model, ids, out, *options], check=True)
    return torch.from_numpy(np.fromfile(out, np.float32)).view(sum(map(len, sequences)), -1)


def peer_logits(model, sequences, dtype):
    """The same from transformers, one sequence at a time."""
    peer = transformers.AutoModelForCausalLM.from_pretrained(model, dtype=dtype, attn_implementation="sdpa").eval()
    with torch.no_grad():
        return torch.cat([peer(torch.tensor([s])).logits[0].float() for s in sequences])


def compare(ours, peer, dtype):
    assert ours.shape == peer.shape
    if dtype == "float32":
        error = (ours - peer).abs().max() / (peer.max() - peer.min())
        print(f"difference / range {error:.2e}")
        assert error < 1e-4
    else:
        p, q = peer.double().log_softmax(-1), ours.double().log_softmax(-1)
        kl = (p.exp() * (p - q)).sum(-1).mean()
        print(f"mean KL {kl:.2e}")
        assert kl < 1e-3


def random_sequences(vocabulary, lengths, seed=0):
    generator = torch.Generator().manual_seed(seed)
    return [torch.randint(0, vocabulary, (n,), generator=generator).tolist() for n in lengths]


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("model", SAMPLES, ids=lambda p: p.name)
def test_sample(model, dtype, tmp_path):
    sequences = random_sequences(8192, [300, 1, 70])
    compare(oscar_logits(model, sequences, tmp_path, "--dtype", dtype), peer_logits(model, sequences, dtype), dtype)
