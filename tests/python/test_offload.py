"""Models whose weights accelerate keeps on the CPU or on disk and brings when a module runs: attach() takes the device where modules
run. Here that is the CPU; test_two_gpus.py has layers of the CPU that run on a GPU."""
import dataclasses

import pytest

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")
accelerate = pytest.importorskip("accelerate")

from conftest import SAMPLES  # noqa: E402
import oscar_kv  # noqa: E402
from oscar_kv.files.errors import InputError  # noqa: E402
from oscar_kv.files.fingerprint import checkpoint_fingerprint  # noqa: E402
from oscar_kv.hf.offload import device_of, held, is_offloaded  # noqa: E402
from oscar_kv.hf.attach import geometry  # noqa: E402
from random_bundles import random_bundle  # noqa: E402

CHECKPOINT = SAMPLES / "tiny-qwen3"


def loaded():
    return transformers.AutoModelForCausalLM.from_pretrained(CHECKPOINT, dtype=torch.bfloat16).eval()


def fitted(model):
    """A bundle with the fingerprint of the checkpoint, and with keys centered before RoPE, which need frequencies of the model."""
    bundle = random_bundle(*geometry(model), (4, 2, 1, 1), (4, 2, 1, 1), sink=16, recent=48, rotated_mean=True)
    return dataclasses.replace(bundle, fingerprint=checkpoint_fingerprint(CHECKPOINT))


def generated(model):
    """Tokens and logits of a padded batch, longer than the windows."""
    ids = torch.randint(5, 250, (2, 120), generator=torch.Generator().manual_seed(4))
    mask = torch.ones_like(ids)
    mask[1, :20] = 0
    made = model.generate(ids, attention_mask=mask, do_sample=False, pad_token_id=0, eos_token_id=None, max_new_tokens=6, output_logits=True,
                          return_dict_in_generate=True)
    return made.sequences, torch.stack(made.logits)


@pytest.mark.parametrize("where", ["cpu", "cpu and buffers", "disk"])
def test_offloaded_generates_the_same(where, tmp_path):
    model = loaded()
    bundle = fitted(model)
    expected, logits = generated(oscar_kv.attach(model, bundle))
    oscar_kv.detach(model)
    assert not is_offloaded(model)
    if where == "disk":
        accelerate.disk_offload(model, tmp_path, execution_device="cpu")
    else:
        accelerate.cpu_offload(model, execution_device="cpu", offload_buffers=where != "cpu")
    projection = model.model.layers[0].self_attn.k_proj
    assert projection.weight.is_meta and is_offloaded(model) and device_of(projection, "weight") == torch.device("cpu")
    assert not held(projection, "weight").is_meta
    again, found = generated(oscar_kv.attach(model, bundle))
    assert torch.equal(again, expected) and torch.equal(found, logits)
    cache = oscar_kv.new_cache(model)
    model.generate(torch.arange(5, 105)[None], past_key_values=cache, do_sample=False, max_new_tokens=2, pad_token_id=0)
    assert [layer.kv.pool.device.type for layer in cache.layers] == ["cpu"] * 4


def test_weights_are_compared_where_they_are_kept():
    model = loaded()
    bundle = fitted(model)
    with torch.no_grad():
        model.model.layers[2].self_attn.k_proj.weight[0, 3] += 1
    accelerate.cpu_offload(model, execution_device="cpu")
    with pytest.raises(InputError, match="the weights of layer 2 are not those of the checkpoint"):
        oscar_kv.attach(model, bundle)


def test_weights_that_nothing_loads():
    with torch.device("meta"):
        model = transformers.AutoModelForCausalLM.from_config(transformers.AutoConfig.from_pretrained(CHECKPOINT), dtype=torch.bfloat16).eval()
    bundle = random_bundle(*geometry(model), None, None)
    with pytest.raises(InputError, match="'weight' of a Linear is on the meta device and no hook of accelerate loads it; load the weights"):
        oscar_kv.attach(model, bundle)
