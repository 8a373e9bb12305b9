"""Heads that propose tokens, EAGLE-3 and MTP, in vLLM's own Python on the CPU: its configuration, model classes and loader, then its speculator,
cache planning and scheduler. The head keeps BF16 beside the 2-bit cache. Nothing here runs a model."""
import contextlib
import dataclasses
import types
import unittest.mock

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("vllm", reason="vllm is not installed (scripts/requirements-vllm.txt)")
import vllm.platforms  # noqa: E402
from vllm.platforms.cpu import CpuPlatform  # noqa: E402

vllm.platforms._current_platform = CpuPlatform()  # before any module of vLLM asks for it, so this file has a process of its own
import made_drafts  # noqa: E402
from oscar_kv.engines.vllm import plugin  # noqa: E402
from oscar_kv.files.errors import InputError  # noqa: E402
from random_bundles import random_bundle  # noqa: E402
from test_vllm_layers import OscarImpl, PlainImpl, select, vllm_attention, vllm_planning  # noqa: E402  (skips this file, too, with another release)
from transformers import AutoModelForCausalLM  # noqa: E402
from vllm import SamplingParams  # noqa: E402
from vllm.config import AttentionConfig, CacheConfig, DeviceConfig, ModelConfig, ParallelConfig, SchedulerConfig, VllmConfig, set_current_vllm_config  # noqa: E402
from vllm.config.speculative import SpeculativeConfig  # noqa: E402
from vllm.v1.attention.backends.registry import AttentionBackendEnum  # noqa: E402
from vllm_requests import free_port  # noqa: E402
from oscar_kv.engines.vllm import gauges as vllm_gauges, serving as vllm_serving  # noqa: E402

MEMORY = 1 << 28
HEADS = {"eagle3": dict(target="llama", method="eagle3", model="head"), "mtp": dict(target="qwen3_next", method="mtp")}


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    """Two models with their heads."""
    folder = tmp_path_factory.mktemp("models")
    for name in ("llama", "qwen3_next"):
        torch.manual_seed(1)
        AutoModelForCausalLM.from_config(getattr(made_drafts, name)()).bfloat16().save_pretrained(folder / name)
        made_drafts.louder(folder / name)
    made_drafts.save_eagle3(folder / "llama", folder / "head")
    made_drafts.add_mtp(folder / "qwen3_next")
    return folder


@pytest.fixture(scope="module")
def ranks():
    """vLLM's groups of one process."""
    from vllm.distributed import destroy_distributed_environment, destroy_model_parallel, init_distributed_environment, initialize_model_parallel
    with set_current_vllm_config(VllmConfig(device_config=DeviceConfig("cpu"))):
        init_distributed_environment(1, 0, f"tcp://127.0.0.1:{free_port()}", 0, backend="gloo")
        initialize_model_parallel()
    yield
    destroy_model_parallel()
    destroy_distributed_environment()


def bundle_for(text):
    kinds = getattr(text, "layer_types", None) or ["full_attention"] * text.num_hidden_layers
    full = [i for i, kind in enumerate(kinds) if kind == "full_attention"]
    bundle = random_bundle(len(full), kv_heads=text.num_key_value_heads, d=text.head_dim)
    others = [{"layer": i, "reason": "it has no cache"} for i in range(len(kinds)) if i not in full]
    return dataclasses.replace(bundle, layers=[dataclasses.replace(layer, layer=i) for layer, i in zip(bundle.layers, full)], model={"left_out": others})


@pytest.fixture
def configured(saved, monkeypatch):
    """configured(target, options of --speculative-config): vLLM's configuration with the 2-bit cache."""
    monkeypatch.setenv("VLLM_USE_V2_MODEL_RUNNER", "1")  # it is not chosen without triton
    monkeypatch.setattr(CpuPlatform, "check_and_update_config", classmethod(lambda cls, config: None))
    monkeypatch.setattr(vllm_attention, "get_attn_backend", select)
    plugin.register()

    def make(target, caching=False, **speculation):
        model = ModelConfig(model=str(saved / target), dtype="bfloat16", max_model_len=9000, skip_tokenizer_init=True, enforce_eager=True)
        parallel = ParallelConfig(distributed_executor_backend="mp")
        if "model" in speculation:
            speculation["model"] = str(saved / speculation["model"])
        bundle = bundle_for(model.hf_text_config)
        monkeypatch.setattr(vllm_serving, "load_bundle", lambda path, latent=False: bundle)
        monkeypatch.setattr(vllm_gauges, "read_manifest", lambda path: bundle)
        return VllmConfig(
            model_config=model, parallel_config=parallel, device_config=DeviceConfig("cpu"),
            speculative_config=SpeculativeConfig(target_model_config=model, target_parallel_config=parallel, **speculation),
            cache_config=CacheConfig(enable_prefix_caching=caching, cache_dtype="oscar", block_size=64),
            attention_config=AttentionConfig(backend=AttentionBackendEnum["OSCAR"]), additional_config={"oscar_bundle": str(saved)},
            scheduler_config=SchedulerConfig(max_num_seqs=8, max_num_batched_tokens=8192, max_model_len=9000, is_encoder_decoder=False))

    return make


@pytest.fixture
def loaded(configured, ranks, monkeypatch):
    """loaded("eagle3", caching, tokens): the configuration, vLLM's layers of attention, the speculator, and the plan of the cache."""
    from vllm.model_executor.layers.attention import Attention
    from vllm.model_executor.layers.fused_moe.unquantized_fused_moe_method import UnquantizedFusedMoEMethod
    from vllm.model_executor.model_loader.utils import initialize_model
    from vllm.platforms.interface import Platform
    from vllm.utils.torch_utils import set_default_torch_dtype
    from vllm.v1.attention.backends.utils import resolve_kv_cache_layout
    from vllm.v1.worker.gpu.attn_utils import get_kv_cache_spec
    from vllm.v1.worker.gpu.spec_decode import init_speculator
    monkeypatch.setattr(UnquantizedFusedMoEMethod, "process_weights_after_loading", lambda self, layer: None)  # packs them with kernels
    monkeypatch.setattr("vllm.model_executor.layers.utils.check_cpu_sgl_kernel", lambda *sizes: False)  # the same, on processors with AMX
    held = contextlib.ExitStack()

    def make(kind, caching=False, tokens=3):
        config = configured(caching=caching, num_speculative_tokens=tokens, **HEADS[kind])
        held.enter_context(set_current_vllm_config(config))
        with set_default_torch_dtype(torch.bfloat16):
            target = initialize_model(vllm_config=config)
            speculator = init_speculator(config, torch.device("cpu"), None)
            speculator.load_model(target)
        layers = {name: layer for name, layer in config.compilation_config.static_forward_context.items() if isinstance(layer, Attention)}
        if config.model_config.is_hybrid:  # as update_block_size_for_backend() on a GPU
            Platform._align_hybrid_block_size(config, next(iter(layers.values())).get_attn_backend())
        specs = get_kv_cache_spec(config)
        resolve_kv_cache_layout(config, [["LBHNC"]], specs.values())
        plan, = vllm_planning.get_kv_cache_configs(config, [specs], [MEMORY], vllm_planning.get_global_kv_cache_groups(config, [specs]))
        return types.SimpleNamespace(config=config, layers=layers, speculator=speculator, specs=specs, plan=plan)

    with held:
        yield make


def scheduler_of(made):
    """vLLM's scheduler, as its engine makes it, and add(name, ids)."""
    from vllm.utils.hashing import sha256
    from vllm.v1.core.kv_cache_utils import generate_scheduler_kv_cache_config, get_request_block_hasher, init_none_hash, resolve_kv_cache_block_sizes
    from vllm.v1.core.sched.scheduler import Scheduler
    from vllm.v1.request import Request
    init_none_hash(sha256)
    plan = generate_scheduler_kv_cache_config([made.plan])
    made.config.cache_config.num_gpu_blocks = plan.num_blocks
    whole, unit = resolve_kv_cache_block_sizes(plan, made.config)
    scheduler = Scheduler(vllm_config=made.config, kv_cache_config=plan, structured_output_manager=unittest.mock.Mock(), block_size=whole, hash_block_size=unit)
    hasher = get_request_block_hasher(unit, sha256, made.config.num_hash_lookahead_tokens)
    return scheduler, lambda name, ids: scheduler.add_request(Request(name, ids, SamplingParams(max_tokens=8), None, block_hasher=hasher))


@pytest.mark.parametrize("target,method,model", [
    ("qwen3_next", "mtp", None), ("qwen3_next", "qwen3_next_mtp", None), ("llama", "eagle3", "head"), ("llama", "eagle", "llama")])
def test_methods_that_are_served(target, method, model, configured):
    config = configured(target, method=method, num_speculative_tokens=2, **({"model": model} if model else {}))
    assert vllm_serving.refusals(config) == []
    assert config.speculative_config.method == {"qwen3_next_mtp": "mtp"}.get(method, method) in vllm_serving.SPECULATION


def test_an_eagle3_head(loaded):
    made = loaded("eagle3", caching=True)
    (name,) = made.speculator.draft_attn_layer_names
    ours = {one: layer for one, layer in made.layers.items() if one != name}
    assert type(made.speculator).__name__ == "EagleSpeculator" and len(ours) == 4
    assert all(isinstance(layer.impl, OscarImpl) for layer in ours.values()) and isinstance(made.layers[name].impl, PlainImpl)
    assert made.layers[name].kv_cache_torch_dtype == torch.bfloat16 and made.layers[name].get_attn_backend().get_name() == "FLASH_ATTN"
    serving = next(iter(ours.values())).impl.serving
    assert serving.most_new == 4 and serving.bf16_text() == ""
    (group,) = made.plan.kv_cache_groups  # one block table, whose blocks have the head's BF16 tokens, too
    assert group.is_eagle_group and set(group.layer_names) == set(made.layers)
    size = {one: spec.page_size_bytes for one, spec in made.specs.items()}
    assert size[name] == 64 * 4 * 2 * 64 * 2 and {size[one] for one in ours} == {64 * 2 * serving.nominal_cell}
    assert made.plan.num_blocks == MEMORY // sum(size.values())


def test_prefixes_beside_an_eagle3_head(loaded):
    """Hashes of blocks cover the token after a block, which the head has read there. A request still waits for blocks of its own step, and computes
    its last 772 tokens itself."""
    made = loaded("eagle3", caching=True)
    assert made.config.num_hash_lookahead_tokens == 1
    scheduler, add = scheduler_of(made)
    text = list(range(2000))
    add("first", text)
    add("second", text[:1400] + list(range(5000, 5900)))
    steps = [scheduler.schedule() for _ in range(2)]
    assert [step.num_scheduled_tokens for step in steps] == [{"first": 2000}, {"second": 2300 - 1344}]
    add("third", text)
    add("other", text[:1344] + list(range(6000, 6956)))  # the token after a block differs, so the block is another
    step = scheduler.schedule()
    assert step.num_scheduled_tokens == {"third": 2000 - (2000 - 772) // 64 * 64, "other": 2300 - 1280}


def test_an_mtp_layer_beside_states(loaded):
    """Blocks of equal bytes, in which a layer of ours has more tokens than the head. vLLM gives each layer a group of its own then."""
    made = loaded("mtp", tokens=2)
    (name,) = made.speculator.draft_attn_layer_names
    assert name == "mtp.layers.0.self_attn.attn" and isinstance(made.layers[name].impl, PlainImpl)
    ours = [one for one in made.layers if one != name]
    serving = made.layers[ours[0]].impl.serving
    assert len(ours) == 2 and all(isinstance(made.layers[one].impl, OscarImpl) for one in ours)
    block = serving.pages_of_block * serving.nominal_page(2)
    assert {spec.page_size_bytes for spec in made.specs.values()} == {block}
    assert {made.specs[one].block_size for one in ours} == {64 * serving.pages_of_block}
    assert made.specs[name].block_size == block // (2 * 2 * 256 * 2) // 64 * 64 >= 64
    states = [spec for one, spec in made.specs.items() if "linear_attn" in one]
    assert len(states) == 6 and {spec.num_speculative_blocks for spec in states} == {2}
    assert [len(group.layer_names) for group in made.plan.kv_cache_groups] == [1] * 9
    assert [group.layer_names for group in made.plan.kv_cache_groups if group.is_eagle_group] == [[name]]
    assert made.plan.num_blocks == MEMORY // block
    scheduler, add = scheduler_of(made)
    add("first", list(range(2000)))
    assert scheduler.schedule().num_scheduled_tokens == {"first": 2000}


def test_mtp_beside_states_with_prefix_caching_is_refused(loaded):
    with pytest.raises(InputError, match="copy parts of blocks.*a draft model's included.*pass --no-enable-prefix-caching"):
        loaded("mtp", caching=True)
