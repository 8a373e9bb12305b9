"""The SGLang adapter against SGLang's own Python on the CPU: registration, hooks, refusals, sizes, pool, and the backend's
forward from SGLang's ForwardBatch and ReqToTokenPool under the simulated block manager. test_sglang_engine.py serves."""
import dataclasses
import itertools
import re
import types
from array import array

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("sglang.version", reason="sglang is not installed (scripts/requirements-sglang.txt)")
import sglang_setup  # noqa: E402
from sglang.version import __version__  # noqa: E402

if __version__ != "0.5.23":
    pytest.skip(f"sglang {__version__} is installed, the adapter is for 0.5.23", allow_module_level=True)
sglang_setup.prepare()

from block_engine import SCALE, Engine, Oracle, PrefixEngine, Request, families, requests  # noqa: E402
from conftest import GOLDEN, SAMPLES, SOURCE_DIR, card_commands  # noqa: E402
from oscar_kv.engines import serving as engine_serving  # noqa: E402
from oscar_kv.engines.names import check_version  # noqa: E402
from oscar_kv.engines.sglang.limits import RELEASE  # noqa: E402
from oscar_kv.engines.sglang import hooks as sglang_hooks, plugin as sglang_plugin, serving as sglang_serving  # noqa: E402
from oscar_kv.files.errors import InputError  # noqa: E402
from oscar_kv.cache.paged_kv import LayerCode  # noqa: E402
from fitted_models import MODELS, fitted_bundle  # noqa: E402
from latent_bundles import make_latent  # noqa: E402
from lora_adapters import FITTED, OTHERS, save_adapter  # noqa: E402
from oscar_kv.cache.transform import Phases  # noqa: E402
from random_bundles import random_bundle  # noqa: E402
from sglang.srt.arg_groups.choices import ATTENTION_BACKEND_CHOICES  # noqa: E402
from sglang.srt.layers.attention.attention_registry import ATTENTION_BACKENDS  # noqa: E402
from sglang.srt.layers.attention.hybrid_linear_attn_backend import HybridLinearAttnBackend  # noqa: E402
from sglang.srt.layers.radix_attention import AttentionType, RadixAttention  # noqa: E402
from sglang.srt.managers.schedule_batch import Req  # noqa: E402
from sglang.srt.mem_cache.base_prefix_cache import InsertParams  # noqa: E402
from sglang.srt.mem_cache.kv_cache_configurator import KVCacheConfigurator  # noqa: E402
from sglang.srt.mem_cache.allocator import PagedTokenToKVPoolAllocator  # noqa: E402
from sglang.srt.mem_cache.cache_init_params import CacheInitParams  # noqa: E402
from sglang.srt.mem_cache.allocator.swa import SWATokenToKVPoolAllocator  # noqa: E402
from sglang.srt.mem_cache.memory_pool import HybridReqToTokenPool, MHATokenToKVPool, ReqToTokenPool  # noqa: E402
from sglang.srt.mem_cache.radix_cache import RadixCache, RadixKey  # noqa: E402
from sglang.srt.mem_cache.swa_memory_pool import SWAKVPool  # noqa: E402
from sglang.srt.mem_cache.unified_cache.components import ComponentType  # noqa: E402
from sglang.srt.mem_cache.unified_radix_cache import UnifiedRadixCache  # noqa: E402
from sglang.srt.configs.qwen3_next import Qwen3NextConfig  # noqa: E402
from sglang.srt.model_executor.forward_batch_info import ForwardBatch, ForwardMode  # noqa: E402
from sglang.srt.model_executor.pool_configurator import DefaultPoolConfigurator, HybridSWAPoolConfigurator  # noqa: E402
from sglang.srt.plugins.hook_registry import HookRegistry  # noqa: E402
from sglang.srt.sampling.sampling_params import SamplingParams  # noqa: E402
from transformers import AutoConfig, LlamaConfig  # noqa: E402

ORIGINALS = KVCacheConfigurator.configure, KVCacheConfigurator._build_mha_kv_pool, DefaultPoolConfigurator._compute_cell_size
with pytest.MonkeyPatch.context() as patch:
    patch.setenv("OSCAR_KV_BUNDLE", "named by tests")
    sglang_plugin.register()
HookRegistry.apply_hooks()
from oscar_kv.engines.sglang.backend import OscarAttentionBackend  # noqa: E402
from oscar_kv.engines.sglang.pool import OscarPool  # noqa: E402

SLOTS, CONTEXT = 4, 384


def space(**values):
    return types.SimpleNamespace(**values)


def groups(**changed):
    """The settings that the adapter reads, by "group__name"."""
    made = {"spec": space(speculative_algorithm=None), "disagg": space(disaggregation_mode="null", enable_pdmux=False),
            "memory": space(disable_radix_cache=True, enable_hierarchical_cache=False, enable_lmcache=False, enable_flexkv=False,
                            enable_hisparse=False, enable_unified_memory=False, enable_unified_cache_external_linker=False,
                            radix_cache_backend=None, enable_session_radix_cache=False),
            "serving": space(enable_streaming_session=False), "model": space(kv_cache_dtype="auto"),
            "parallel": space(dcp_size=1, attn_cp_size=1, pp_size=1, attn_dp_size=1, enable_kv_cache_sharding=False, attn_tp_size=1,
                              attn_tp_rank=0),
            "exec": space(overlap=space(enable_two_batch_overlap=False), features=space(enable_memory_saver=False),
                          dllm=space(dllm_algorithm=None), graph=space(cuda_graph_config=space(prefill=space(backend="disabled")))),
            "schedule": space(prefill_only_disable_kv_cache=False, page_size=64, max_running_requests=SLOTS)}
    for name, value in changed.items():
        group, _, last = name.partition("__")
        if not last:
            made[group] = value
            continue
        place = made[group]
        for part in last.split("__")[:-1]:
            place = getattr(place, part)
        setattr(place, last.split("__")[-1], value)
    return made


def attention(index, heads=4, kv_heads=2, d=64, **options):
    return RadixAttention(heads, d, SCALE, kv_heads, index, **options)


class Model(torch.nn.Module):
    def __init__(self, *layers):
        super().__init__()
        self.layers = torch.nn.ModuleList(layers)


def configurator(layers, d=64, kv_heads=2, model=SAMPLES / "tiny-qwen3", text=None, **changed):
    """The part of SGLang's KVCacheConfigurator that the adapter reads."""
    text = text or LlamaConfig(num_hidden_layers=len(layers), head_dim=d, rope_parameters={"rope_type": "default", "rope_theta": 500.0})
    config = space(hf_text_config=text, head_dim=d, model_path=str(model), revision=None, context_len=CONTEXT, is_encoder_decoder=False, is_multimodal=False, has_attention_sinks=False,
                   get_total_num_kv_heads=lambda: kv_heads)
    made = space(device="cpu", model=Model(*layers), model_config=config, is_hybrid_swa=False, model_dtype=torch.bfloat16, kv_cache_dtype=torch.bfloat16,
                 post_capture_kv_active=False, is_draft_worker=False, use_mla_backend=False, mambaish_config=None, hybrid_gdn_config=None)
    for name, value in changed.items():
        setattr(made, name, value)
    return made


@pytest.fixture
def serve(monkeypatch):
    """serve(bundle, **settings): the Serving of a worker whose bundle this is, with its caches."""
    def make(bundle, layers=None, **changed):
        monkeypatch.setenv("OSCAR_KV_BUNDLE", "named")
        monkeypatch.setattr(sglang_serving, "load_bundle", lambda path: bundle)
        monkeypatch.setattr(sglang_serving, "settings", lambda: groups(**changed))
        layer = bundle.layers[0]
        layers = layers or [attention(i, 2 * layer.kv_heads, layer.kv_heads, layer.head_dim) for i in range(len(bundle.layers))]
        return sglang_serving.Serving(configurator(layers, layer.head_dim, layer.kv_heads)).allocate("cpu")

    return make


def two_sizes():
    """Two layers whose pages differ."""
    wide, narrow = (random_bundle(d=64, key=widths, value=widths, sink=16, recent=40) for widths in ((4, 2, 1, 1), (2, 1, 1, 0)))
    return dataclasses.replace(wide, layers=[wide.layers[0], dataclasses.replace(narrow.layers[0], layer=1)])


def pool_of(serving, tokens):
    count = len(serving.attention) + len(serving.beside)
    return OscarPool(serving, tokens, 64, space(num_effective_layers=count, start_layer=0, end_layer=count), "cpu")


def backend_of(serving, tokens):
    table = ReqToTokenPool(SLOTS, CONTEXT, "cpu", False)
    return OscarAttentionBackend(space(token_to_kv_pool=pool_of(serving, tokens), req_to_token_pool=table, device="cpu")), table


def test_registration(monkeypatch):
    sglang_plugin.register()  # any number of times
    assert ATTENTION_BACKEND_CHOICES.count("oscar") == 1 and "oscar" in ATTENTION_BACKENDS
    assert sglang_hooks.missing() == []
    now = KVCacheConfigurator.configure, KVCacheConfigurator._build_mha_kv_pool, DefaultPoolConfigurator._compute_cell_size
    assert all(new is not old and new.__wrapped__ is old for new, old in zip(now, ORIGINALS))
    entry = (SOURCE_DIR / "python" / "pyproject.toml").read_text(encoding="utf-8")
    assert f'[project.entry-points."sglang.srt.plugins"]\n{sglang_setup.ENTRY.splitlines()[1].replace("= ", "= " + chr(34))}"' in entry
    monkeypatch.setattr(HookRegistry, "_patched", set())
    with pytest.raises(InputError, match="found SGLang's own memory pool .*_compute_cell_size.* unchanged"):
        OscarAttentionBackend(space(token_to_kv_pool=None))


def test_releases(monkeypatch):
    check_version("SGLang", "0.5.23", RELEASE)
    for other in ("0.5.22", "0.5.23.post1", "0.6.0", "dev"):
        with pytest.raises(InputError, match=r"oscar-kv serves SGLang 0\.5\.23; install sglang==0\.5\.23"):
            check_version("SGLang", other, RELEASE)
    # SGLang only logs what a plugin raises, and would go on with its BF16 cache.
    monkeypatch.setattr("sglang.version.__version__", "0.6.0")
    monkeypatch.delenv("OSCAR_KV_BUNDLE", raising=False)
    sglang_plugin.register()
    monkeypatch.setenv("OSCAR_KV_BUNDLE", "b")
    with pytest.raises(SystemExit, match="SGLang 0.6.0 is installed"):
        sglang_plugin.register()


@pytest.mark.parametrize("chosen,valid", [(("oscar", "oscar"), True), (("triton", "triton"), False), (("fa3", "oscar"), False)])
def test_a_bundle_without_its_backend_is_refused(chosen, valid, monkeypatch):
    monkeypatch.setattr("sglang.srt.runtime_context.attention_backends", lambda: chosen)
    if valid:
        return sglang_hooks._ours()
    with pytest.raises(InputError, match="--attention-backend oscar"):
        KVCacheConfigurator.configure(object.__new__(KVCacheConfigurator), pre_model_load_memory=1)


@pytest.mark.parametrize("changed,sentence", [
    ({"spec__speculative_algorithm": "EAGLE"}, "speculative decoding.*leave --speculative-algorithm out"),
    ({"disagg__disaggregation_mode": "prefill"}, "disaggregation"), ({"memory__enable_hierarchical_cache": True}, "hierarchical cache"),
    ({"memory__enable_lmcache": True}, "LMCache"), ({"memory__radix_cache_backend": "flexkv"}, "another radix cache"),
    ({"serving__enable_streaming_session": True}, "streaming sessions"), ({"parallel__pp_size": 2}, "pipeline.*use --tp-size"),
    ({"parallel__dcp_size": 2}, "decode context"), ({"parallel__attn_dp_size": 2}, "data-parallel attention"),
    ({"exec__overlap__enable_two_batch_overlap": True}, "two overlapping batches"),
    ({"exec__dllm__dllm_algorithm": "LowConfidence"}, "diffusion"), ({"exec__features__enable_memory_saver": True}, "memory saver"),
    ({"schedule__page_size": 1}, "pass --page-size 64"), ({"model__kv_cache_dtype": "fp8_e4m3"}, "pass --kv-cache-dtype auto"),
    ({"schedule__max_running_requests": None}, "--max-running-requests"),
    ({"memory__disable_radix_cache": False}, "the bundle has 16; fit with --windows 64,256, or pass --disable-radix-cache")])
def test_settings_that_are_refused(serve, changed, sentence):
    with pytest.raises(InputError, match=sentence):
        serve(two_sizes(), **changed)


@pytest.mark.parametrize("changed,sentence", [
    ({"model_dtype": torch.float16}, "computes in float16.*--dtype bfloat16"), ({"kv_cache_dtype": torch.uint8}, "an FP8 cache"),
    ({"use_mla_backend": True}, "MLA"), ({"is_draft_worker": True}, "draft"), ({"post_capture_kv_active": True}, "POST_CAPTURE"),
    ({"mambaish_config": object()}, "states of another kind than gated delta nets"), ({"kv_heads": 4}, "KV heads"), ({"d": 32}, "head_dim")])
def test_models_that_are_refused(serve, changed, sentence):
    serve(two_sizes())
    with pytest.raises(InputError, match=sentence):
        sglang_serving.Serving(configurator([attention(i) for i in range(2)], **changed))
    made = configurator([])
    made.model_config.has_attention_sinks = True
    assert sglang_serving.refusals(made, groups()) == ["the model has learned sink logits, which the 2-bit cache does not serve in SGLang"]
    graphs = groups(exec__graph=space(cuda_graph_config=space(prefill=space(backend="breakable"))))
    assert any("--disable-prefill-cuda-graph" in s for s in sglang_serving.refusals(configurator([], device="cuda"), graphs))


def test_images_that_attend_to_one_another_are_refused(serve):
    serve(two_sizes())
    made = configurator([])
    for model, images in itertools.product(("gemma3_text", "gemma4_text", "gemma4_unified_text"), (False, True)):
        made.model_config.hf_text_config.model_type, made.model_config.is_multimodal = model, images
        assert any("leave --enable-multimodal out" in s for s in sglang_serving.refusals(made, groups())) == images


@pytest.mark.parametrize("options,reason", [
    ({"d": 80}, "not 80"), ({"heads": 34}, "not 17"), ({"v_head_dim": 32}, "no common page"), ({"sliding_window_size": 128}, "a sliding window"),
    ({"logit_cap": 30.0}, "a soft cap on logits")])
def test_layers_that_stay_in_bf16(serve, options, reason):
    bundle, other = two_sizes(), attention(1, **options)
    serving = serve(bundle, [attention(0), other])
    assert list(serving.attention) == [0] and list(serving.beside) == [1] and reason in serving.bf16_text() and reason in serving.summary(640)
    assert serving.token_bytes() == 2 * serving.cells[0] + 2 * 2 * (other.head_dim + other.v_head_dim)
    pool = pool_of(serving, 640)
    assert pool.get_kv_size_bytes() == 11 * 64 * serving.token_bytes() and pool.start_layer == 1
    place, k, v = torch.tensor([64]), torch.randn(1, 2, other.head_dim).bfloat16(), torch.randn(1, 2, other.v_head_dim).bfloat16()
    pool.set_kv_buffer(other, place, k, v)
    assert torch.equal(pool.get_key_buffer(1)[64], k[0]) and torch.equal(pool.get_value_buffer(1)[64], v[0])
    assert pool.get_v_head_dim() == other.v_head_dim
    with pytest.raises(InputError, match="not served"):
        pool.get_key_buffer(0)
    with pytest.raises(InputError, match=r"no layer of the model can have the 2-bit cache: layers 0 to 1 \(it has a sliding window\)"):
        serve(bundle, [attention(i, sliding_window_size=64) for i in range(2)])


@pytest.mark.parametrize("options,sentence", [
    ({"use_irope": True}, "chunks of the sequence"), ({"is_cross_attention": True}, "cross"),
    ({"attn_type": AttentionType.ENCODER_ONLY}, "encoder_only"), ({"pos_encoding_mode": "ALIBI"}, "ALiBi")])
def test_layers_that_are_refused(serve, options, sentence):
    with pytest.raises(InputError, match=f"cannot be served.*{sentence}"):
        serve(two_sizes(), [attention(0), attention(1, **options)])


def test_a_layer_index_that_comes_twice(serve):
    serve(two_sizes())
    text = LlamaConfig(num_hidden_layers=2, head_dim=64)
    with pytest.raises(InputError, match="a layer that reads the cache of another has other heads"):
        sglang_serving.Serving(configurator([attention(0), attention(1), attention(1, heads=8)], text=text))


def hybrid(serve, monkeypatch, layers=("window", "full", "reader"), d=512):
    """A Serving of a model whose windows SGLang keeps apart, its configurator, and its RadixAttention."""
    bundle = random_bundle(1, 1, d, (4, 2, 1, 1), (4, 2, 1, 1), sink=16, recent=40)
    bundle = dataclasses.replace(bundle, layers=[dataclasses.replace(bundle.layers[0], layer=1)], model={"left_out": [{"layer": 0, "reason": "window"}]})
    serve(bundle, [attention(0, d=d, kv_heads=1, sliding_window_size=7), attention(1, d=d, kv_heads=1)])
    made = [attention(0, 4, 2, 256, sliding_window_size=7) if kind == "window" else attention(0 if kind == "other" else 1, 4, 1, d) for kind in layers]
    info = space(swa_attention_layer_ids=[0], full_attention_layer_ids=[1], num_effective_layers=2, start_layer=0, end_layer=2)
    text = LlamaConfig(num_hidden_layers=2, head_dim=d, rope_parameters={"rope_type": "default", "rope_theta": 500.0})
    settings = configurator(made, d, 1, text=text, is_hybrid_swa=True, layer_info=info)
    if "other" in layers:
        settings.layer_info.swa_attention_layer_ids = []
    return sglang_serving.Serving(settings).allocate("cpu"), settings, made


def test_windows_in_a_pool_of_sglang(serve, monkeypatch):
    serving, settings, layers = hybrid(serve, monkeypatch)
    assert list(serving.attention) == [1] and list(serving.beside) == [0] and serving.kv(1).readers == 1 and serving.token_bytes() == serving.cells[1]
    setattr(settings.model, sglang_hooks.SERVING, serving)
    monkeypatch.setattr("sglang.srt.mem_cache.kv_cache_configurator.get_parallel", lambda: space(attn_tp_size=1, attn_dcp_size=1))
    monkeypatch.setattr("sglang.srt.mem_cache.kv_cache_configurator.get_spec", lambda: space(speculative_algorithm=None))
    monkeypatch.setattr("sglang.srt.mem_cache.kv_cache_configurator.get_exec", lambda: space(features=space(enable_memory_saver=False)))
    for name, value in dict(pool_page_size=64, is_hybrid_swa_compress=True, draft_swa_full_capacity=False, kv_cache_dtype_str="auto").items():
        setattr(settings, name, value)
    for name, value in dict(swa_head_dim=256, swa_v_head_dim=256, v_head_dim=512, get_num_kv_heads=lambda *sizes: 1).items():
        setattr(settings.model_config, name, value)
    settings.model_config.hf_text_config.swa_num_key_value_heads = 2
    pool = KVCacheConfigurator._build_hybrid_swa_kv_pool(settings, full_max_total_num_tokens=640, swa_max_total_num_tokens=128, mha_pool_class=MHATokenToKVPool)
    assert isinstance(pool, SWAKVPool) and isinstance(pool.full_kv_pool, OscarPool) and pool.full_kv_pool.blocks == 11
    assert pool.swa_kv_pool.get_key_buffer(0).shape == (128 + 64, 2, 256) and pool.get_kv_size_bytes()[0] == 11 * 64 * serving.cells[1] + 192 * 2 * 256 * 2
    SWATokenToKVPoolAllocator(640, 128, 64, torch.bfloat16, "cpu", pool, False)
    backend = OscarAttentionBackend(space(token_to_kv_pool=pool, req_to_token_pool=ReqToTokenPool(SLOTS, CONTEXT, "cpu", False), device="cpu"))
    assert backend.token_to_kv_pool is pool and backend.beside.token_to_kv_pool is pool
    q, k = torch.zeros(1, 4 * 512).bfloat16(), torch.zeros(1, 512).bfloat16()
    for layer, rows, save in ((layers[1], None, True), (layers[1], k, False), (layers[2], k, True), (layers[2], k, False), (layers[2], None, True)):
        with pytest.raises(InputError, match="layer 1 of the model has a cache that SGLang fills otherwise"):
            backend.forward(q, rows, rows, layer, space(forward_mode=ForwardMode.EXTEND), save)
    with pytest.raises(InputError, match=r"others would stay in BF16: layer 0 \(the bundle leaves it out\); pass --disable-hybrid-swa-memory"):
        hybrid(serve, monkeypatch, ("other", "full"))


def test_sizes_beside_windows(serve, monkeypatch):
    """SGLang's own division of memory, with the bytes of a bundle's layers."""
    serving, settings, _ = hybrid(serve, monkeypatch)
    setattr(settings.model, sglang_hooks.SERVING, serving)
    for name, value in dict(kv_cache_dtype_str="auto", sliding_window_size=7, page_size=64, fused_entry_bytes=lambda kind: None,
                            spec_algorithm=space(is_eagle=lambda: False, is_standalone=lambda: False, is_dflash=lambda: False, is_none=lambda: True)).items():
        setattr(settings, name, value)
    for name, value in dict(attention_arch=None, get_num_kv_heads=lambda *sizes: 1, get_swa_num_kv_heads=lambda *sizes: 2, head_dim=512, v_head_dim=512,
                            swa_head_dim=256, swa_v_head_dim=256).items():
        setattr(settings.model_config, name, value)
    place = "sglang.srt.model_executor.pool_configurator"
    monkeypatch.setattr(f"{place}.get_parallel", lambda: space(attn_tp_size=1))
    monkeypatch.setattr(f"{place}.get_schedule", lambda: space(swa_full_tokens_ratio=0.5))
    monkeypatch.setattr(f"{place}.get_memory", lambda: space(enable_unified_memory=False))
    monkeypatch.setattr(f"{place}._dflash_draft_cell_size", lambda kvc: 0)
    made = HybridSWAPoolConfigurator(settings)
    assert made._full_cell_bytes() == serving.cells[1] and made._cell_size == serving.cells[1] + 0.5 * 2 * 2 * 256 * 2


def test_a_bundle_of_another_model(serve, monkeypatch):
    monkeypatch.setattr(sglang_serving, "settings", groups)
    monkeypatch.setenv("OSCAR_KV_BUNDLE", str(GOLDEN / "bundle"))
    for changed, sentence in (({"model": SAMPLES / "tiny-llama"}, "another model"), ({"model": "nobody/nothing"}, "OSCAR_KV_CHECKPOINT")):
        with pytest.raises(InputError, match=sentence):
            sglang_serving.Serving(configurator([attention(i, 4, 2, 64) for i in range(2)], d=32, **changed))
    for name, value, sentence in (("OSCAR_KV_CHECKPOINT", "/dev/zero", "OSCAR_KV_CHECKPOINT is '/dev/zero', which is no folder"),
                                  ("OSCAR_KV_CHECKPOINT", " ", "expected the name of a folder"),
                                  ("OSCAR_KV_BUNDLE", " ", "OSCAR_KV_BUNDLE is ' ', expected the name of a folder"),
                                  ("OSCAR_KV_BUNDEL", "b", "the environment has 'OSCAR_KV_BUNDEL', which oscar-kv does not know")):
        with monkeypatch.context() as changed, pytest.raises(InputError, match=sentence):
            changed.setenv(name, value)
            sglang_serving.Serving(configurator([attention(i, 4, 2, 64) for i in range(2)], d=32))
    monkeypatch.delenv("OSCAR_KV_BUNDLE")
    with pytest.raises(InputError, match="OSCAR_KV_BUNDLE"):
        sglang_serving.Serving(configurator([]))


@pytest.mark.parametrize("override,words", [
    ({"rope_parameters": {"rope_type": "yarn", "rope_theta": 1e6, "factor": 4.0, "original_max_position_embeddings": 8192}}, "factor 4.0 for None"),
    ({"rope_scaling": {"rope_type": "linear", "factor": 8.0}}, "factor 8.0 for None"),
    ({"rope_parameters": {"rope_type": "default", "rope_theta": 5e5}}, "rope_theta 500000.0 for 1000000.0"), ({"max_position_embeddings": 65536}, None), ({}, None)])
def test_overrides_of_rope_are_refused(override, words, fit, monkeypatch):
    """The model's configuration as SGLang makes it with --json-model-override-args, and a bundle of the checkpoint as it is."""
    from sglang.srt.utils.hf_transformers.config import get_config
    text = get_config(str(SAMPLES / "tiny-qwen3"), trust_remote_code=False, model_override_args=override)
    monkeypatch.setattr(sglang_serving, "settings", groups)
    monkeypatch.setenv("OSCAR_KV_BUNDLE", str(fit("tiny-qwen3")))
    heads, kv_heads, d = text.num_attention_heads, text.num_key_value_heads, text.head_dim
    made = configurator([attention(i, heads, kv_heads, d) for i in range(text.num_hidden_layers)], d=d, kv_heads=kv_heads, text=text)
    if words is None:
        assert sglang_serving.Serving(made).bundle.fingerprint
        return
    with pytest.raises(InputError, match=f"another RoPE than those that the bundle was fitted on: .*{words}.*leave --json-model-override-args out"):
        sglang_serving.Serving(made)


@pytest.mark.parametrize("targets", [one for one in FITTED + OTHERS if one == "all-linear" or isinstance(one, list)])  # SGLang refuses patterns
def test_adapters(targets, tmp_path, monkeypatch):
    """SGLang's own loader: those of keys, queries and values are refused by name, and the engine goes on."""
    from sglang.srt.configs.load_config import LoadConfig
    from sglang.srt.lora.lora_manager import LoRAManager
    from sglang.srt.lora.lora_registry import LoRARef
    monkeypatch.setattr("sglang.srt.model_loader.loader.get_server_args", lambda: None)
    monkeypatch.setattr("sglang.srt.model_loader.loader.get_model", lambda: space(
        weight_loader_disable_mmap=False, weight_loader_prefetch_checkpoints=False, weight_loader_prefetch_num_threads=1,
        weight_loader_drop_cache_after_load=False))
    monkeypatch.setattr("sglang.srt.lora.lora_manager.get_available_gpu_memory", lambda *given, **named: 1.0)  # it asks lscpu, which needs /sys
    path = save_adapter(tmp_path / "adapter", targets)
    manager = LoRAManager.__new__(LoRAManager)
    for name, value in dict(base_hf_config=AutoConfig.from_pretrained(SAMPLES / "tiny-qwen3"), load_config=LoadConfig(), lora_backend=None, base_model=Model(),
                            device=torch.device("cpu"), attn_dp_enabled=False, max_loras_per_batch=8, speculative_algorithm=None).items():
        setattr(manager, name, value)
    manager.init_lora_adapters()
    reference = LoRARef(lora_id="one", lora_name="mine", lora_path=path, pinned=False)
    found = manager.load_lora_adapter(reference)
    assert found.success is (targets in OTHERS) and ("one" in manager.loras) is found.success
    if found.success:
        assert sum(len(layer.weights) for layer in manager.loras["one"].layers) > 0
        return
    assert re.search(r"layers\.0\.self_attn\.[qkv]_proj.* has the adapter .*, which is not merged.*fit a bundle", found.error_message), found
    with pytest.raises(RuntimeError, match="Failed to load LoRA adapter mine: .*which is not merged"):  # as at the start, with --lora-paths
        manager.init_lora_adapters([reference])


def test_adapters_share_no_prefix():
    """SGLang keys its radix tree by adapter, and a copy whose sink is gone keeps the key."""
    made = [Req("a", "", list(range(9)), SamplingParams(), lora_id=one, extra_key=key) for one in ("x", "y", None) for key in (None, "k")]
    assert len({one.extra_key for one in made}) == 6


def test_beams_are_refused_one_request_at_a_time():
    SamplingParams(temperature=0).verify(100)
    with pytest.raises(ValueError, match="beam_width"):
        SamplingParams(temperature=0, beam_width=4).verify(100)


def test_sizes(serve):
    """SGLang's configurator divides memory by our bytes of a token, and the pool holds them."""
    serving = serve(two_sizes())
    kvc = space(model=space(**{sglang_hooks.SERVING: serving}))
    token = DefaultPoolConfigurator._compute_cell_size(object.__new__(DefaultPoolConfigurator), kvc, 2)
    assert token == 2 * (serving.cells[0] + serving.cells[1]) and serving.cells[0] > serving.cells[1]
    sizes = object.__new__(DefaultPoolConfigurator)
    sizes._cell_size, sizes._fixed_overhead_bytes, sizes.kv_cache_dtype_str = token, 0, None
    planned = sizes.calculate_pool_sizes(100 * 64 * token + 5, 64).max_total_num_tokens
    assert planned == 6400
    pool = pool_of(serving, planned)
    assert pool.get_kv_size_bytes() == 101 * 64 * token and pool.dtype is torch.uint8
    assert [pool.pages[i].shape for i in (0, 1)] == [(101, 2, 64 * serving.cells[i]) for i in (0, 1)]
    for name in ("get_key_buffer", "get_cpu_copy", "move_kv_cache", "get_contiguous_buf_infos"):
        with pytest.raises(InputError, match="not served"):
            getattr(pool, name)(0)
    with pytest.raises(InputError, match="not served"):
        pool.set_kv_buffer(serving.attention[0], None, None, None)


def test_two_engines_in_a_process(serve, monkeypatch):
    """Each has its bundle, pool and scratch memory."""
    monkeypatch.setattr("sglang.srt.runtime_context.attention_backends", lambda: ("oscar",))
    engines = []
    for widths in ((4, 2, 1, 1), (2, 1, 1, 0)):
        serve(random_bundle(1, d=64, key=widths, value=widths, sink=16, recent=40))  # what the environment names now
        kvc = configurator([attention(0)], pool_page_size=64, layer_info=space(num_effective_layers=1, start_layer=0, end_layer=1))
        sglang_hooks._configure(lambda self: None, kvc)
        engines.append(kvc)
    cells = [DefaultPoolConfigurator._compute_cell_size(object.__new__(DefaultPoolConfigurator), kvc, 1) for kvc in engines]
    pools = [sglang_hooks._build_pool(None, kvc, max_total_num_tokens=640) for kvc in engines]
    assert cells[0] > cells[1] and [pool.get_kv_size_bytes() for pool in pools] == [11 * 64 * cell for cell in cells]
    assert pools[0].serving.shared is not pools[1].serving.shared


def test_prefixes_of_the_radix_tree(serve):
    """A request takes what its windows do not need, and only with a sink in BF16: else it begins anew, under a key of its own."""
    serving = serve(random_bundle(1, d=64, sink=64, recent=256), memory__disable_radix_cache=False)
    backend, rows = backend_of(serving, 6400)
    tree = RadixCache.create_simulated(mock_allocator=space(get_kvcache=lambda: space(serving=serving), device="cpu"), page_size=64)
    tree.insert(InsertParams(key=RadixKey(array("q", range(960))), value=torch.arange(640, 1600)))

    def asked(tokens):
        request = Req("x", "", array("q", range(tokens)), SamplingParams())
        request.init_next_round_input(tree)
        return request.prefix_len, request.extra_key

    assert asked(1200)[0] == 0 and "oscar-kv" in asked(1200)[1]  # nobody has written it in this engine
    rows.req_generation[1] += 1
    backend.table.rows([0], [0], [64], torch.tensor([64], dtype=torch.int32), torch.tensor([[10, 11]], dtype=torch.int32), torch.arange(64))
    assert asked(1200) == ((1200 - 769) // 64 * 64, None) and asked(570) == (0, None) and asked(10 ** 4) == (960, None)


def pool_of_states(monkeypatch):
    """SGLang's request pool of a small Qwen3-Next with linear attention in layers 0 and 2."""
    text = Qwen3NextConfig(num_hidden_layers=4, full_attention_interval=2, linear_num_key_heads=2, linear_num_value_heads=4, linear_key_head_dim=8,
                           linear_value_head_dim=8)
    monkeypatch.setattr("sglang.srt.configs.qwen3_next.get_parallel", lambda: space(attn_tp_size=1))
    monkeypatch.setattr("sglang.srt.configs.qwen3_next.linear_attn_tp_size", lambda: 1)
    states = text.mamba2_cache_params
    return HybridReqToTokenPool(size=SLOTS, mamba_size=12, mamba_spec_state_size=SLOTS, max_context_len=CONTEXT, device="cpu", enable_memory_saver=False,
                                cache_params=states, mamba_layer_ids=states.layers, enable_mamba_extra_buffer=True)


def test_the_state_of_a_prefix_without_its_sink(serve, monkeypatch):
    """SGLang's tree stages the copy of the state after a prefix when it finds one. A request that begins anew begins with an empty state."""
    serving = serve(random_bundle(1, d=64, sink=64, recent=256), memory__disable_radix_cache=False)
    backend, _ = backend_of(serving, 6400)
    for name, value in (("get_exec", space(mamba=space(mamba_max_states_per_path=-1))), ("mamba_cache_chunk_size", 64), ("mamba_checkpoint_grid", 64)):
        monkeypatch.setattr(f"sglang.srt.mem_cache.unified_cache.components.mamba.{name}", lambda *given, value=value: value)
    rows = pool_of_states(monkeypatch)
    allocator = PagedTokenToKVPoolAllocator(6400, 64, torch.uint8, "cpu", backend.token_to_kv_pool, False)
    tree = UnifiedRadixCache(CacheInitParams(disable=False, req_to_token_pool=rows, token_to_kv_pool_allocator=allocator, page_size=64,
                                             enable_mamba_extra_buffer=True, tree_components=(ComponentType.FULL, ComponentType.MAMBA)))
    tree.insert(InsertParams(key=RadixKey(array("q", range(640))), value=torch.arange(640, 1280), mamba_value=torch.tensor([5])))

    def asked():
        request = Req("x", "", array("q", range(1500)), SamplingParams())
        request.init_next_round_input(tree)
        return request.prefix_len, request.kv.mamba_cow_src_index, request.kv.mamba_needs_clear

    assert asked() == (0, None, True)  # nobody has written the sink in this engine
    serving.generations[1] += 1
    backend.table.rows([0], [0], [64], torch.tensor([64], dtype=torch.int32), torch.tensor([[10, 11]], dtype=torch.int32), torch.arange(64))
    assert asked() == (640, torch.tensor([5]), False)


def test_bf16_attention_beside_states(serve, monkeypatch):
    """SGLang wraps the backend for models with states and calls its parts, also for layers that stay in BF16."""
    monkeypatch.setattr("sglang.srt.layers.attention.hybrid_linear_attn_backend.check_cuda_graph_backend", lambda *given: False)
    backend, rows = backend_of(serve(two_sizes(), [attention(0), attention(1, d=80)]), 640)
    wrapped = HybridLinearAttnBackend(backend, space(needs_cpu_seq_lens=False, init_forward_metadata=lambda batch: None), [0, 1])
    assert wrapped.extend_dummy_seqs_capped_by_req_pool and wrapped.token_to_kv_pool.get_kv_size_bytes() == 11 * 64 * backend.serving.token_bytes()
    rows.write((1, slice(0, 70)), torch.arange(64, 134, dtype=torch.int32))
    query, key, value = (torch.randn(70, heads, 80).bfloat16() for heads in (4, 2, 2))
    found = []
    for mode, start, end in ((ForwardMode.EXTEND, 0, 69), (ForwardMode.DECODE, 69, 70)):
        batch = batch_of(mode, [0], [start], [end - start], torch.tensor([end]), torch.arange(64 + start, 64 + end))
        batch.extend_prefix_lens, batch.extend_seq_lens, batch.req_to_token_pool = torch.tensor([start]), torch.tensor([end - start]), rows
        wrapped.init_forward_metadata(batch)
        found.append(wrapped.forward(query[start:end].reshape(end - start, -1), key[start:end], value[start:end], backend.serving.beside[1], batch))
    expected = torch.nn.functional.scaled_dot_product_attention(*(x.transpose(0, 1) for x in (query, key, value)), is_causal=True, scale=SCALE, enable_gqa=True)
    assert float((torch.cat(found).view(70, 4, 80) - expected.transpose(0, 1)).abs().max()) < 0.02


def test_tensor_parallel_ranks_have_their_heads(serve):
    bundle = random_bundle(1, kv_heads=4, d=64)
    for rank in range(2):
        layers = [attention(0, 4, 2)]
        held = serve(bundle, layers, parallel__attn_tp_size=2, parallel__attn_tp_rank=rank).bundle.layers[0]
        assert held.kv_heads == 2 and torch.equal(held.key.forward, bundle.layers[0].key.forward[2 * rank:2 * rank + 2])


def batch_of(mode, slots, starts, counts, lengths, locations):
    rows = torch.tensor([s + 1 for s in slots] + [0] * (len(lengths) - len(slots)))
    extend = {} if mode is ForwardMode.DECODE else dict(extend_prefix_lens_cpu=list(starts), extend_seq_lens_cpu=list(counts),
                                                        req_pool_indices_cpu=rows.clone())
    return ForwardBatch(forward_mode=mode, batch_size=len(lengths), input_ids=None, req_pool_indices=rows, seq_lens=lengths,
                        out_cache_loc=locations, seq_lens_sum=int(lengths.sum()), **extend)


class ThroughSglang:
    """A simulated engine with SGLang's tables, batches and interfaces between it and the cache."""

    def __init__(self, bundle, layer, serving, blocks, seed, phases=None):
        super().__init__(bundle, layer, blocks=blocks, seed=seed, phases=phases)
        self.backend, self.rows = backend_of(serving, 64 * (blocks - 1))
        self.serving, self.layer, self.fresh, self.modes = serving, serving.attention[layer], set(), set()

    def admit(self, request):
        super().admit(request)
        self.rows.req_generation[request.slot + 1] += 1
        self.fresh.add(request.slot)

    def forward(self, work, *arguments):
        self.prompts = any(request.done < request.prompt for request, _ in work)  # a chunk may have one token
        super().forward(work, *arguments)

    def compute(self, slots, starts, counts, lengths, table, mapping, query, key, value):
        begins = self.fresh & set(slots)
        self.fresh -= begins
        mode = ForwardMode.EXTEND if begins or self.prompts or max(counts) > 1 else ForwardMode.DECODE
        if mode is ForwardMode.EXTEND and min(counts) == 1:
            mode = ForwardMode.MIXED
        self.modes.add(mode.name)
        for slot, blocks, length in zip(slots, table, lengths.tolist()):
            place = torch.arange(length)
            self.rows.write((slot + 1, slice(0, length)), blocks[place // 64] * 64 + (place % 64).int())
        padding = len(lengths) - len(slots)
        if mode is not ForwardMode.DECODE:  # which SGLang does not pad
            lengths, mapping, query, key, value = (x[:x.shape[0] - padding] for x in (lengths, mapping, query, key, value))
        seen = lengths.long().clamp(min=1) if padding else lengths.long()
        batch = batch_of(mode, slots, starts, counts, seen, mapping.clamp(min=0))
        self.backend.init_forward_metadata(batch)
        heads = query.shape[1] * query.shape[2]
        output = self.backend.forward(query.reshape(-1, heads), key, value, self.layer, batch)
        assert output.shape == (query.shape[0], heads)
        return output.view(query.shape)


class SglangEngine(ThroughSglang, Engine):
    pass


class SglangPrefixEngine(ThroughSglang, PrefixEngine):
    """As it is with the radix cache; the table is that of the backend."""

    def __init__(self, *arguments, **named):
        super().__init__(*arguments, **named)
        self.table, self.kv = self.backend.table, self.serving.kv(0)


@pytest.mark.parametrize("layer", [0, 1])
def test_requests_of_unequal_layers(serve, layer):
    bundle = two_sizes()
    engine = SglangEngine(bundle, layer, serve(bundle), 40, 3 + layer)
    engine.run(requests(5 + layer, 330, 5))
    assert engine.modes == {"DECODE", "MIXED", "EXTEND"} and engine.preempted > 1 and engine.compared > 40


@pytest.mark.parametrize("model,layer", [("SmolLM2-135M", 0), ("SmolLM2-135M", 11), ("SmolLM2-135M", 12), ("Qwen2.5-Coder-1.5B", 1)])
def test_requests_of_a_real_bundle(serve, model, layer):
    """All layers of the model have their memory; layer 11 of SmolLM2 has no bits, layer 12 none for values."""
    bundle, d = fitted_bundle(MODELS[model]), MODELS[model]["d"]
    engine = SglangEngine(bundle, layer, serve(bundle), 40, 3, phases=Phases(1 / 500.0 ** (torch.arange(0, d, 2) / d)))
    engine.limit = 2e-3  # as in test_fitted_models.py
    engine.run(requests(5, 380, 4))
    assert engine.modes == {"DECODE", "MIXED", "EXTEND"} and engine.compared > 20


def test_requests_that_share_blocks(serve, monkeypatch):
    monkeypatch.setattr(engine_serving, "kept_sinks", lambda slots, pages: 3)  # so that some are lost
    bundle = random_bundle(1, d=64, key=(4, 2, 1, 1), value=(4, 2, 1, 1), sink=64, recent=40)
    engine = SglangPrefixEngine(bundle, 0, serve(bundle, memory__disable_radix_cache=False), 24, 3)
    engine.run(families(6, 330, 20))
    assert engine.preempted > 1 and engine.compared > 60 and engine.hits > 6 and engine.lost > 0 and engine.coded > 0


def test_graphs_read_tables_at_one_address(serve):
    backend, _ = backend_of(serve(two_sizes()), 640)
    backend.init_cuda_graph_state(SLOTS, SLOTS)
    with pytest.raises(InputError, match="--cuda-graph-max-bs-decode 4"):
        backend.init_cuda_graph_state(SLOTS + 1, SLOTS + 1)
    assert backend.get_cuda_graph_seq_len_fill_value() == 1
    found = []
    for slots, capture in (([], True), ([2, 0], False)):  # a replay has padding, but no place for its tokens
        places = torch.zeros(3 if capture else 2, dtype=torch.int64)
        batch = batch_of(ForwardMode.DECODE, slots, None, None, torch.tensor([9, 7, 1]), places)
        backend.init_forward_metadata_out_graph(batch, in_capture=capture)
        rows = backend.forward_metadata
        assert rows.only_steps
        assert rows.lengths.tolist() == ([0, 0, 0] if capture else [9, 7, 0])  # rows of slot 0 are padding
        found.append([t.data_ptr() for t in (rows.lengths, rows.table, rows.window_table)])
    assert found[0] == found[1]


def test_passes_that_are_refused(serve):
    backend, _ = backend_of(serve(two_sizes()), 640)
    layer, one = backend.serving.attention[0], torch.zeros(1, dtype=torch.int64)
    for mode in (ForwardMode.TARGET_VERIFY, ForwardMode.DLLM_EXTEND, ForwardMode.SPLIT_PREFILL):
        with pytest.raises(InputError, match=mode.name):
            backend.init_forward_metadata(batch_of(mode, [0], [0], [1], one + 1, one))
    with pytest.raises(InputError, match="begins with 64 tokens that its slot has not seen"):
        backend.init_forward_metadata(batch_of(ForwardMode.EXTEND, [0], [64], [5], one + 69, one))
    batch = batch_of(ForwardMode.DECODE, [0], None, None, one + 5, one)
    backend.init_forward_metadata(batch)
    q, kv = torch.zeros(1, 256), torch.zeros(1, 2, 64)
    for options, sentence in (({"sinks": torch.zeros(4)}, "learned sink logits"), ({"q_rope": q}, "q_rope"), ({"save_kv_cache": False}, "a cache that SGLang fills otherwise")):
        with pytest.raises(InputError, match=sentence):
            backend.forward(q, kv, kv, layer, batch, **options)
    batch.multi_item_delimiter_indices = [one]
    with pytest.raises(InputError, match="several items"):
        backend.init_forward_metadata(batch)


def test_blocks_that_the_radix_tree_exchanges(serve):
    """A running request's blocks are replaced by another's with the same tokens, while it decodes and between its chunks."""
    bundle = random_bundle(1, d=64, key=(4, 2, 1, 1), value=(4, 2, 1, 1), sink=64, recent=40)
    backend, rows = backend_of(serve(bundle, memory__disable_radix_cache=False), 64 * 20)
    layer, oracle, request = backend.serving.attention[0], Oracle(LayerCode(bundle, bundle.layers[0]), 2), Request(300, 1, 290)
    query, key, value = oracle.tokens(request)

    def forward(slot, start, count, blocks, mode, own=0):
        rows.req_generation[slot + 1] += start == own
        place = torch.arange(start + count)
        rows.write((slot + 1, slice(0, len(place))), (torch.tensor(blocks)[place // 64] * 64 + place % 64).int())
        span = slice(start, start + count)
        batch = batch_of(mode, [slot], [start], [count], torch.tensor([start + count]), torch.zeros(count, dtype=torch.int64))
        backend.init_forward_metadata(batch)
        found = backend.forward(query[span].reshape(count, -1), key[span], value[span], layer, batch).view(count, -1, 64)
        assert float((found - oracle.attention(request, start, count, own)).abs().max()) < 2e-4

    forward(0, 0, 140, [1, 2, 3], ForwardMode.EXTEND)
    forward(1, 0, 140, [4, 5, 6], ForwardMode.EXTEND)
    forward(1, 140, 1, [1, 2, 6], ForwardMode.DECODE)
    forward(2, 0, 128, [7, 8], ForwardMode.EXTEND)
    for block in range(12, 12 + backend.table.kept):
        forward(3, 0, 64, [block], ForwardMode.EXTEND)
    forward(2, 128, 64, [1, 2, 9], ForwardMode.EXTEND)  # whose sink is no longer kept; its own is
    forward(2, 192, 1, [1, 2, 9, 10], ForwardMode.DECODE)
    forward(0, 64, 70, [12 + backend.table.kept - 1, 2, 3], ForwardMode.EXTEND, own=64)  # a request that begins with another's


def test_commands_of_the_card_are_sglangs(fit, tmp_path):
    """SGLang's own parser takes every option, with and without the radix cache."""
    import argparse

    from sglang.srt.server_args import ServerArgs
    parser = argparse.ArgumentParser()
    ServerArgs.add_cli_args(parser)
    bundle = fit("tiny-qwen3", "--method", "waterfill", "--allocate", "analytic", "--windows", "64,48")
    commands = card_commands(bundle, "tiny-qwen3", "sglang", tmp_path / "card")
    assert [command[:3] for command in commands] == 2 * [["OSCAR_KV_BUNDLE=$PWD/oscar_bundle", "sglang", "serve"]]
    for command, apart in zip(commands, (False, True)):
        given = parser.parse_args(["--model-path", *command[3:], "--tp-size", "2"])
        assert (given.attention_backend, given.page_size, given.dtype, given.tp_size) == ("oscar", 64, "bfloat16", 2)
        assert given.context_length == 512 and given.disable_radix_cache is apart


def test_bundles_of_latent_attention_are_refused_by_name(tmp_path, monkeypatch):
    monkeypatch.setenv("OSCAR_KV_BUNDLE", str(make_latent(tmp_path / "latent")))
    monkeypatch.setattr(sglang_serving, "settings", groups)
    with pytest.raises(InputError, match="is a bundle for latent attention .MLA., which only oscar-verify"):
        sglang_serving.Serving(configurator([attention(0), attention(1)]))
