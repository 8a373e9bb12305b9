"""LoRA adapters beside the 2-bit cache, by vLLM's own loader and cache manager on the CPU."""
import types
from unittest.mock import Mock

import pytest

pytest.importorskip("vllm", reason="vllm is not installed (scripts/requirements-vllm.txt)")
from test_vllm import attention_layer, lora, serve, two_sizes  # noqa: F401, I001  (skips this file, too, with another release)

import torch  # noqa: E402
from lora_adapters import FITTED, OTHERS, save_adapter  # noqa: E402
from oscar_kv.engines.vllm import backend as vllm_backend, wraps  # noqa: E402
from oscar_kv.files.errors import InputError  # noqa: E402
from random_bundles import random_bundle  # noqa: E402
from test_vllm_layers import build, cache_manager, planned  # noqa: E402, F401
from vllm.lora.lora_model import LoRAModel  # noqa: E402
from vllm.lora.request import LoRARequest  # noqa: E402
from vllm.lora.worker_manager import LRUCacheWorkerLoRAManager, WorkerLoRAManager  # noqa: E402

PACKED = {"qkv_proj": ["q_proj", "k_proj", "v_proj"], "gate_up_proj": ["gate_proj", "up_proj"]}


@pytest.fixture
def manager(serve, monkeypatch):
    """manager(whether the cache is ours): vLLM's of a worker, without the layers on which adapters work."""
    def make(ours):
        original = WorkerLoRAManager._load_adapter
        monkeypatch.setattr(WorkerLoRAManager, "_load_adapter", getattr(original, "__wrapped__", original))
        monkeypatch.setattr("vllm.lora.lora_model.PIN_MEMORY", False)
        config = serve(two_sizes(), lora_config=lora())
        vllm_backend.serving_of(config)  # as when the worker builds its model
        assert hasattr(WorkerLoRAManager._load_adapter, wraps.MARK)
        made = LRUCacheWorkerLoRAManager.__new__(LRUCacheWorkerLoRAManager)
        made.lora_config, made._lora_model_cls, made.vocab_size, made.max_position_embeddings = config.lora_config, LoRAModel, 512, 4096
        made.lora_config.lora_dtype = torch.bfloat16
        model = torch.nn.ModuleList([attention_layer(0)] if ours else [torch.nn.Linear(2, 2)])
        made._adapter_manager = Mock(  # its checks of other kinds of weights pass
            model=model, supported_lora_modules=["qkv_proj", "o_proj", "gate_up_proj", "down_proj"], packed_modules_mapping=PACKED, moe_ep_load_spec=None)
        return made

    return make


@pytest.mark.parametrize("targets", FITTED)
def test_adapters_of_keys_and_values_are_refused_when_they_are_loaded(targets, manager, tmp_path):
    request = LoRARequest("mine", 1, save_adapter(tmp_path / "adapter", targets))
    with pytest.raises(InputError, match=r"layers\.0\.self_attn\.[qkv]_proj has the adapter 'mine', which is not merged.*fit a bundle"):
        manager(True)._load_adapter(request)
    assert any("self_attn" in name for name in manager(False)._load_adapter(request).loras)  # BF16 models have them


@pytest.mark.parametrize("targets", OTHERS)
def test_other_adapters_are_served(targets, manager, tmp_path):
    found = manager(True)._load_adapter(LoRARequest("mine", 1, save_adapter(tmp_path / "adapter", targets)))
    assert found.loras and all(one.lora_b.abs().max() > 0 for one in found.loras.values())


def test_adapters_share_no_prefix(build):
    """Requests of two adapters, and of none, with one prompt: each finds its own blocks, also the sink's, and those of no other."""
    from vllm.v1.core.kv_cache_utils import generate_scheduler_kv_cache_config
    made, _ = build(random_bundle(1, d=64, sink=64), [{}], cache_config__enable_prefix_caching=True, lora_config=lora())
    found = generate_scheduler_kv_cache_config([planned(made, 400)[0]])
    blocks, admit = cache_manager(found, made, 64, 64)
    first, text = {}, list(range(1000))
    for turn in range(3):
        for path in ("/a", "/b", None):
            name = f"{path} {turn}"
            blocks.new_step_starts()
            hit = admit(name, text, adapter=path and LoRARequest(path, ord(path[-1]), path))
            assert hit == (0 if turn == 0 else (1000 - 769) // 64 * 64)
            assert first.setdefault(path, blocks.get_block_ids(name)[0][0]) == blocks.get_block_ids(name)[0][0]
            blocks.free(types.SimpleNamespace(request_id=name))
    assert len(set(first.values())) == 3
