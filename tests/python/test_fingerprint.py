"""The fingerprint of checkpoints against the toolchain's: sample models and random checkpoints of every family, rotary type
and spelling of config.json."""
import sys

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("transformers")

from conftest import SAMPLES, SOURCE_DIR, program  # noqa: E402
from oscar_kv.errors import InputError  # noqa: E402
from oscar_kv.fingerprint import checkpoint_fingerprint  # noqa: E402

sys.path.insert(0, str(SOURCE_DIR / "tests" / "oracles"))
import family_checkpoints  # noqa: E402
import quantised_checkpoints  # noqa: E402
import random_checkpoints  # noqa: E402


def expected(folder):
    return program("checkpoint_tool", "open", folder).splitlines()[0]


@pytest.mark.parametrize("name", ["tiny-llama", "tiny-qwen2", "tiny-qwen3"])
def test_sample_models(name):
    assert checkpoint_fingerprint(SAMPLES / name) == expected(SAMPLES / name)


@pytest.mark.parametrize("name", sorted(random_checkpoints.CASES))
def test_random_checkpoints(name, tmp_path):
    folder = random_checkpoints.make(name, tmp_path / "model")
    found = checkpoint_fingerprint(folder)
    assert found == expected(folder)
    random_checkpoints.respell_as_v4(folder)
    assert checkpoint_fingerprint(folder) == found
    weights = max(folder.glob("*.safetensors"), key=lambda p: p.stat().st_size)
    data = bytearray(weights.read_bytes())
    data[-1] ^= 1  # the last byte of a tensor is part of its sample
    weights.write_bytes(data)
    assert checkpoint_fingerprint(folder) != found


@pytest.mark.parametrize("name", sorted((family_checkpoints.CASES | family_checkpoints.BY_LENGTH).keys() - family_checkpoints.LATENT_CASES))
def test_families(name, tmp_path):
    folder = family_checkpoints.make(name, tmp_path / "model")
    found = checkpoint_fingerprint(folder)
    assert found == expected(folder)
    family_checkpoints.respell_as_v4(folder)
    assert checkpoint_fingerprint(folder) == expected(folder) == found


@pytest.mark.parametrize("name", ["fp8-blocks", "awq", "mxfp4-experts"])
def test_quantised_checkpoints(name, tmp_path):
    quantised, plain, _ = quantised_checkpoints.make(name, tmp_path)
    found = checkpoint_fingerprint(quantised)
    assert found == expected(quantised) and found != checkpoint_fingerprint(plain) == expected(plain)


@pytest.mark.parametrize("name", ["deepseek-v2", "deepseek-v3", "glm4-moe-lite"])
def test_latent_attention_is_refused(name, tmp_path):
    with pytest.raises(InputError, match="has latent attention"):
        checkpoint_fingerprint(family_checkpoints.make(name, tmp_path / "model"))


def test_no_checkpoint(tmp_path):
    with pytest.raises(InputError, match="config.json: cannot be read"):
        checkpoint_fingerprint(tmp_path)
    (tmp_path / "config.json").write_text('{"architectures": ["MambaForCausalLM"]}')
    with pytest.raises(InputError, match="'MambaForCausalLM' is not one"):
        checkpoint_fingerprint(tmp_path)
    (tmp_path / "config.json").write_text((SAMPLES / "tiny-llama" / "config.json").read_text())
    with pytest.raises(InputError, match="neither model.safetensors"):
        checkpoint_fingerprint(tmp_path)
