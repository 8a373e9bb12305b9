"""A model whose layers lie on several devices by `device_map`: caches follow the weights. On two GPUs by the kernels; transformers
places layers on a CPU and a GPU, or on two GPUs, with accelerate. test_offload.py has what needs no GPU."""

import pytest

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")
pytest.importorskip("accelerate")

from conftest import SAMPLES, use_built_operators  # noqa: E402

use_built_operators()
import oscar_kv  # noqa: E402
from oscar_kv.ops import load  # noqa: E402
from oscar_kv.files.errors import InputError  # noqa: E402
from oscar_kv.hf.attach import geometry  # noqa: E402
from random_bundles import random_bundle  # noqa: E402


def generated(device_map, key, value, rotated_mean=False):
    """Greedy tokens of a padded batch, of a prompt in chunks and of a second turn, with logits, and the devices of the caches."""
    model = transformers.AutoModelForCausalLM.from_pretrained(SAMPLES / "tiny-qwen3", dtype=torch.bfloat16, device_map=device_map).eval()
    layers, kv_heads, d = geometry(model)
    bundle = random_bundle(layers, kv_heads, d, key, value, sink=16, recent=48, rotated_mean=rotated_mean)
    if len(set(device_map.values())) > 1:
        with pytest.raises(InputError, match="cannot be recorded as CUDA graphs: the (model lies on several devices|layers are not on one CUDA device)"):
            oscar_kv.attach(model, bundle, graphs=True)
    oscar_kv.attach(model, bundle, graphs=None if len(set(device_map.values())) > 1 else False)
    ids = torch.randint(5, 250, (2, 150), generator=torch.Generator().manual_seed(3)).to(model.device)
    mask = torch.ones_like(ids)
    mask[1, :20] = 0
    common, made = dict(do_sample=False, pad_token_id=0, eos_token_id=None, max_new_tokens=40), []
    one = model.generate(ids, attention_mask=mask, output_logits=True, return_dict_in_generate=True, **common)
    made += [one.sequences.cpu(), torch.stack(one.logits).float().cpu()]
    cache = oscar_kv.new_cache(model)
    first = model.generate(ids[:1], past_key_values=cache, prefill_chunk_size=64, **common)
    made.append(model.generate(torch.cat([first, ids[1:, :30]], dim=1), past_key_values=cache, **common).cpu())
    return made, [str(layer.kv.pool.device) for layer in cache.layers]


def split(first, second):
    places = {f"model.layers.{i}": first if i < 2 else second for i in range(4)}
    return {"model.embed_tokens": first, "model.rotary_emb": first, **places, "model.norm": second, "lm_head": first}


@pytest.mark.skipif(torch.cuda.device_count() < 2 or load.missing() is not None, reason="needs two GPUs and the CUDA operators")
def test_two_cuda_devices():
    for key, rotated_mean in (None, False), ((4, 2, 1, 1), False), ((4, 2, 1, 1), True):
        alone, devices = generated({"": "cuda:0"}, key, key, rotated_mean)
        assert devices == ["cuda:0"] * 4
        both, devices = generated(split("cuda:0", "cuda:1"), key, key, rotated_mean)
        assert devices == ["cuda:0"] * 2 + ["cuda:1"] * 2
        for a, b in zip(alone, both):
            assert torch.equal(a, b), (key, rotated_mean)


@pytest.mark.skipif(not torch.cuda.is_available() or load.missing() is not None, reason="needs a GPU and the CUDA operators")
def test_cuda_beside_the_cpu():
    """accelerate runs layers of the CPU on the GPU, so that all attend by the kernels, and the text is that of the GPU alone."""
    for rotated_mean in (False, True):
        alone, _ = generated({"": "cuda:0"}, (4, 2, 1, 1), (4, 2, 1, 1), rotated_mean)
        made, devices = generated(split("cuda:0", "cpu"), (4, 2, 1, 1), (4, 2, 1, 1), rotated_mean)
        assert devices == ["cuda:0"] * 4
        for a, b in zip(alone, made):
            assert torch.equal(a, b), rotated_mean


@pytest.mark.skipif(not torch.cuda.is_available() or load.missing() is not None, reason="needs a GPU and the CUDA operators")
def test_all_weights_on_the_cpu_run_on_cuda():
    from accelerate import cpu_offload
    model = transformers.AutoModelForCausalLM.from_pretrained(SAMPLES / "tiny-qwen3", dtype=torch.bfloat16).eval()
    bundle = random_bundle(*geometry(model), (4, 2, 1, 1), (4, 2, 1, 1), sink=16, recent=48)
    ids = torch.randint(5, 250, (1, 150), generator=torch.Generator().manual_seed(3)).cuda()
    common = dict(do_sample=False, pad_token_id=0, eos_token_id=None, max_new_tokens=20)
    expected = oscar_kv.attach(model.cuda(), bundle, graphs=False).generate(ids, **common)
    oscar_kv.detach(model).cpu()
    cpu_offload(model, execution_device=torch.device("cuda:0"))
    with pytest.raises(InputError, match="recorded as CUDA graphs: accelerate loads weights at every step"):
        oscar_kv.attach(model, bundle, graphs=True)
    assert torch.equal(oscar_kv.attach(model, bundle).generate(ids, **common), expected)
