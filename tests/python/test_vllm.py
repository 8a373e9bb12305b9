"""The vLLM adapter against vLLM's own Python on the CPU: registration, page sizes, grouping, allocation and views of the cache,
the metadata builder, and the backend's forward under the simulated block manager. Nothing here serves a model."""
import dataclasses
import importlib.metadata
import os
import pickle
import subprocess
import sys
import types

import pytest

torch = pytest.importorskip("torch")
vllm = pytest.importorskip("vllm", reason="vllm is not installed (scripts/requirements-vllm.txt)")
if not vllm.__version__.startswith(("0.32.", "0.33.")):
    pytest.skip(f"vllm {vllm.__version__} is installed, the adapter is for 0.32 and 0.33", allow_module_level=True)

import numpy as np  # noqa: E402
from block_engine import SCALE, Engine, PrefixEngine, families, requests  # noqa: E402
from conftest import GOLDEN, SAMPLES, SOURCE_DIR, card_commands  # noqa: E402
from oscar_kv.engines import bundles, serving as engine_serving  # noqa: E402
from oscar_kv.engines.names import check_version  # noqa: E402
from oscar_kv.engines.vllm.release import RELEASES  # noqa: E402
from oscar_kv.engines.vllm import gauges as vllm_gauges, plugin as vllm_plugin, serving as vllm_serving  # noqa: E402
from oscar_kv.files.errors import InputError  # noqa: E402
from oscar_kv.cache.transform import Phases  # noqa: E402
from oscar_kv.hf.attach import _phases  # noqa: E402
from latent_bundles import make_latent  # noqa: E402
from random_bundles import random_bundle  # noqa: E402
from test_speculation import exact_bundle  # noqa: E402
from transformers import AutoConfig, AutoModel, LlamaConfig  # noqa: E402
from vllm.config.cache import CacheConfig  # noqa: E402
from vllm.v1.attention.backend import AttentionCGSupport, CommonAttentionMetadata  # noqa: E402
from vllm.v1.attention.backends.registry import AttentionBackendEnum  # noqa: E402

try:
    from vllm.v1.core import kv_cache_planning as vllm_planning  # noqa: E402
except ImportError:  # 0.32
    from vllm.v1.core import kv_cache_utils as vllm_planning  # noqa: E402

vllm_plugin.register()
from oscar_kv.engines.vllm import backend as vllm_backend  # noqa: E402
from oscar_kv.engines.vllm.backend import OscarBackend, OscarImpl, OscarMetadataBuilder  # noqa: E402


def config(layers=2, kv_heads=2, d=32, model=SAMPLES / "tiny-qwen3", **changed):
    """The part of a VllmConfig that the adapter reads."""
    made = types.SimpleNamespace(
        additional_config={vllm_serving.BUNDLE_OPTION: str(GOLDEN / "bundle")},
        cache_config=CacheConfig(cache_dtype="oscar", enable_prefix_caching=False, block_size=64),
        parallel_config=types.SimpleNamespace(decode_context_parallel_size=1, prefill_context_parallel_size=1, tensor_parallel_size=1,
                                              pipeline_parallel_size=1, data_parallel_size=1, use_ubatching=False),
        model_config=types.SimpleNamespace(
            dtype=torch.bfloat16, model=str(model), revision=None, max_model_len=384, get_head_size=lambda: d,
            get_total_num_kv_heads=lambda: kv_heads, hf_text_config=types.SimpleNamespace(num_hidden_layers=layers), is_hybrid=False, is_moe=False,
            is_mm_prefix_lm=False, model_arch_config=[types.SimpleNamespace(head_size=d, total_num_kv_heads=kv_heads)] * 100),
        scheduler_config=types.SimpleNamespace(max_num_seqs=4, max_num_batched_tokens=8192, long_prefill_token_threshold=0, disable_hybrid_kv_cache_manager=False),
        attention_config=types.SimpleNamespace(hisparse_config=None, backend=AttentionBackendEnum["OSCAR"]),
        compilation_config=types.SimpleNamespace(static_forward_context={}),
        speculative_config=None, kv_transfer_config=None, use_v2_model_runner=True)
    for name, value in changed.items():
        place, _, last = name.rpartition("__")
        setattr(getattr(made, place) if place else made, last, value)
    return made


def speculation(tokens=3, method="ngram", kv_cache_dtype=None, head="llama", use_mla=False):
    draft = types.SimpleNamespace(hf_config=types.SimpleNamespace(model_type=head), use_mla=use_mla)
    return types.SimpleNamespace(method=method, num_speculative_tokens=tokens, kv_cache_dtype=kv_cache_dtype, draft_model_config=draft,
                                 **dict.fromkeys(("use_eagle", "use_eagle_block_drop"), lambda: method in ("eagle", "eagle3", "mtp")))  # 0.32 asks


def lora():
    from vllm.config import LoRAConfig
    return LoRAConfig(max_lora_rank=8)


def two_sizes():
    """Two layers whose pages differ."""
    wide, narrow = (random_bundle(d=64, key=widths, value=widths, sink=16, recent=40) for widths in ((4, 2, 1, 1), (2, 1, 1, 0)))
    return dataclasses.replace(wide, layers=[wide.layers[0], dataclasses.replace(narrow.layers[0], layer=1)])


def rotated_bundle():
    """Keys of both layers are centered before RoPE."""
    return random_bundle(d=64, key=(4, 2, 1, 1), value=(4, 2, 1, 1), sink=16, recent=40, rotated_mean=True)


@pytest.fixture
def serve(monkeypatch):
    """serve(bundle): a configuration whose bundle this is, as a worker has it while it builds its model."""
    def make(bundle, **changed):
        layer = bundle.layers[0]
        made = config(len(bundle.layers), layer.kv_heads, layer.head_dim, **changed)
        monkeypatch.setattr(vllm_serving, "load_bundle", lambda path, latent=False: bundle)
        monkeypatch.setattr(vllm_gauges, "read_manifest", lambda path: bundle)
        monkeypatch.setattr(vllm_backend, "get_current_vllm_config", lambda: made)
        return made

    return make


def attention_layer(index, heads=4, kv_heads=2, d=64, source=None):
    """vLLM's Attention without the parts that need a model."""
    from vllm.model_executor.layers.attention import Attention
    layer = Attention.__new__(Attention)
    torch.nn.Module.__init__(layer)
    layer.layer_name, layer.attn_backend = f"model.layers.{index}.self_attn.attn", OscarBackend
    layer.num_kv_heads, layer.head_size, layer.head_size_v, layer.sliding_window = kv_heads, d, d, None
    layer.kv_cache_dtype, layer.kv_cache_torch_dtype, layer.attn_type = "oscar", torch.uint8, "decoder"
    layer.impl = OscarImpl(heads, d, SCALE, kv_heads, kv_cache_dtype="oscar", kv_sharing_target_layer_name=source)
    layer.kv_sharing_target_layer_name = source
    return layer


def specs_of(layers, made):
    from vllm.v1.worker.utils import customize_attention_spec
    made.compilation_config.static_forward_context.update({layer.layer_name: layer for layer in layers})
    return {layer.layer_name: customize_attention_spec(OscarBackend, layer.get_kv_cache_spec(made)) for layer in layers}


def allocated(specs, made, blocks):
    """vLLM's own way from specs to the tensors of layers."""
    from vllm.v1.attention.backends.utils import resolve_kv_cache_layout
    from vllm.v1.kv_cache_interface import KVCacheGroupSpec, UniformTypeKVCacheSpecs
    from vllm.v1.worker.utils import allocate_kv_cache
    made.cache_config.kv_cache_layout = None
    made.cache_config.num_gpu_blocks_override = None
    layout = resolve_kv_cache_layout(made, [[m.name for m in OscarBackend.supported_kv_cache_layouts()]], specs.values())
    assert layout.name == "LBHNC"
    group = KVCacheGroupSpec(list(specs), UniformTypeKVCacheSpecs.from_specs(specs))
    memory = blocks * sum(spec.page_size_bytes for spec in specs.values())
    planned = vllm_planning.get_kv_cache_config_from_groups(made, [group], memory)
    assert planned.num_blocks == blocks
    return allocate_kv_cache(planned, torch.device("cpu"), layout, [64])


def test_registration():
    vllm_plugin.register()  # any number of times
    assert AttentionBackendEnum["OSCAR"].get_class() is OscarBackend and OscarBackend.get_name() == "OSCAR"
    from vllm.utils.torch_utils import STR_DTYPE_TO_TORCH_DTYPE
    assert STR_DTYPE_TO_TORCH_DTYPE["oscar"] is torch.uint8
    if vllm.__version__.startswith("0.33."):
        from vllm.v1.kv_cache_interface import is_quantized_kv_cache
        assert is_quantized_kv_cache("oscar")
    assert CacheConfig(cache_dtype="oscar").cache_dtype == "oscar"
    with pytest.raises(ValueError):
        CacheConfig(cache_dtype="oscar3")
    assert OscarBackend.get_preferred_block_size(16) == 64
    assert OscarMetadataBuilder.get_cudagraph_support(None, None) is AttentionCGSupport.UNIFORM_BATCH
    entry = (SOURCE_DIR / "python" / "pyproject.toml").read_text(encoding="utf-8")
    assert '[project.entry-points."vllm.general_plugins"]\noscar_kv = "oscar_kv.engines.vllm.plugin:register"' in entry
    assert importlib.metadata.version("vllm").startswith(RELEASES)


WRAPPED = """
from vllm.model_executor.layers.attention import Attention
from vllm.v1.core.sched.scheduler import Scheduler
wrapped = lambda: [hasattr(f, "__wrapped__") for f in (Attention.__init__, Attention.get_kv_cache_spec, Scheduler.__init__)]"""


def test_vllm_is_as_it_was_until_the_cache_type_is_named():
    code = f"""{WRAPPED}
from oscar_kv.engines.vllm import plugin
from vllm.config import CacheConfig
plugin.register()
CacheConfig(cache_dtype="auto")
assert wrapped() == [False] * 3, wrapped()
CacheConfig(cache_dtype="oscar")
assert wrapped() == [True] * 3, wrapped()
made = Attention.__init__
CacheConfig(cache_dtype="oscar")
assert Attention.__init__ is made"""
    environment = dict(os.environ, PYTHONPATH=os.pathsep.join(filter(None, sys.path)))
    done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-2000:]


def test_a_new_process_reads_the_configuration_before_it_loads_plugins(tmp_path):
    """As vLLM's engine core does, which is a process of its own in `vllm serve`."""
    from vllm.config import AttentionConfig, DeviceConfig, VllmConfig
    made = VllmConfig(cache_config=CacheConfig(cache_dtype="oscar"), attention_config=AttentionConfig(backend="OSCAR"), device_config=DeviceConfig("cpu"),
                      additional_config={"oscar_bundle": "DIR"})
    others = [member for member in AttentionBackendEnum if member.name in ("FLASH_ATTN", "TRITON_ATTN")]
    (tmp_path / "config").write_bytes(pickle.dumps((made, others)))
    code = (f"import pickle, sys; made, others = pickle.load(open(sys.argv[1], 'rb')); {WRAPPED}; assert wrapped() == [True] * 3; "
            "from oscar_kv.engines.vllm import plugin; plugin.register(); "
            "print(made.attention_config.backend.get_class().get_name(), made.cache_config.cache_dtype, *(m.name for m in others))")
    environment = dict(os.environ, PYTHONPATH=os.pathsep.join(filter(None, sys.path)))
    done = subprocess.run([sys.executable, "-c", code, tmp_path / "config"], env=environment, capture_output=True, text=True)
    assert done.stdout.splitlines()[-1:] == [" ".join(["OSCAR", "oscar", *(m.name for m in others)])], done.stderr[-2000:]


@pytest.mark.parametrize("name,value,valid", [
    ("head_size", 128, True), ("head_size", 96, False), ("dtype", torch.float16, False), ("kv_cache_dtype", "auto", False),
    ("block_size", 32, False), ("has_sink", True, True), ("use_per_head_quant_scales", True, True), ("has_sliding_window", True, False), ("use_non_causal", True, False),
    ("use_kv_connector", True, True), ("use_pcp", True, False), ("use_dcp", True, False), ("use_adaptive_verification", True, False),
    ("device_capability", types.SimpleNamespace(major=12, minor=0), True),
    ("device_capability", types.SimpleNamespace(major=7, minor=5), False)])
def test_what_vllm_itself_refuses(name, value, valid):
    asked = dict(head_size=128, dtype=torch.bfloat16, kv_cache_dtype="oscar", block_size=64, use_mla=False, has_sink=False, use_sparse=False,
                 use_mm_prefix=False, use_per_head_quant_scales=False, device_capability=types.SimpleNamespace(major=9, minor=0), attn_type="decoder")
    assert OscarBackend.validate_configuration(**asked) == []
    assert (OscarBackend.validate_configuration(**{**asked, name: value}) == []) is valid


def test_versions():
    for served in ("0.33.0", "0.33.4.post1", "0.32.0"):
        check_version("vLLM", served, *RELEASES)
    for other in ("0.34.0", "0.31.9", "0.3.3", "1.33.0", "dev"):
        with pytest.raises(InputError, match=r"oscar-kv serves vLLM 0\.32\.x and 0\.33\.x; install vllm==0\.33\.0"):
            check_version("vLLM", other, *RELEASES)


@pytest.mark.parametrize("changed,sentence", [
    ({"cache_config__enable_prefix_caching": True}, "the bundle has 4; fit with --windows 64,256, or pass --no-enable-prefix-caching"),
    ({"cache_config__kv_cache_dtype_skip_layers": ["0"]}, "skip-layers"), ({"speculative_config": speculation(method="dflash")}, "method dflash .* one of ngram, ngram_gpu, draft_model, eagle, eagle3, mtp, or"),
    ({"speculative_config": speculation(method="mtp", head="gemma4_mtp")}, "gemma4_mtp reads the cache of the model's own layers.*use ngram"),
    ({"speculative_config": speculation(method="eagle3", use_mla=True)}, "draft model has latent attention.*use ngram"),
    ({"speculative_config": speculation(kv_cache_dtype="fp8")}, "leave kv_cache_dtype out"),
    ({"speculative_config": speculation(8)}, "steps of up to 9 tokens do not fit into the bundle's recent window of 8;"),
    ({"model_config__is_hybrid": True, "cache_config__prefix_match_unit": 64}, "--prefix-match-unit.*leave it out"),
    ({"kv_transfer_config": types.SimpleNamespace(kv_connector="NixlConnector", kv_connector_extra_config={}, kv_connector_module_path=None)},
     "KV transfer by NixlConnector.*leave --kv-transfer-config out"),
    ({"model_config__enable_sleep_mode": True}, "leave --enable-sleep-mode out"),
    ({"parallel_config__data_parallel_size": 2, "model_config__is_moe": True}, "experts, and with --data-parallel-size"),
    ({"parallel_config__use_ubatching": True}, "DBO"), ({"model_config__dtype": torch.float16}, "computes in float16.*--dtype bfloat16"),
    ({"use_v2_model_runner": False}, "VLLM_USE_V2_MODEL_RUNNER"), ({"layers": 3}, "lacks layer 2"), ({"kv_heads": 4}, "KV heads"),
    ({"model": SAMPLES / "tiny-llama"}, "another model"), ({"model": "nobody/nothing"}, "'nobody/nothing'. is not found.*oscar_checkpoint"),
    ({"additional_config": {}}, "OSCAR_KV_BUNDLE"), ({"additional_config": {"oscar_bundle": "/nowhere"}}, "is not a directory")])
def test_refusals(changed, sentence, monkeypatch):
    monkeypatch.delenv("OSCAR_KV_BUNDLE", raising=False)
    with pytest.raises(InputError, match=sentence):
        vllm_serving.Serving(config(**changed))


@pytest.mark.parametrize("option,more", [
    ("--decode-context-parallel-size", ["--tensor-parallel-size", "2"]), ("--prefill-context-parallel-size", []), ("--pipeline-parallel-size", [])])
def test_options_that_divide_a_request_are_refused_as_typed(option, more, monkeypatch):
    """vLLM's own parser and configuration; data parallelism of dense models is independent engines, which are served."""
    from vllm.config import ParallelConfig
    from vllm.engine.arg_utils import EngineArgs
    from vllm.utils.argparse_utils import FlexibleArgumentParser
    monkeypatch.setattr("vllm.platforms.current_platform.device_type", "cpu", raising=False)
    parser = EngineArgs.add_cli_args(FlexibleArgumentParser())

    def parallel(*typed):
        given = EngineArgs.from_cli_args(parser.parse_args(["--model", "m", *typed]))
        names = ("pipeline_parallel_size", "tensor_parallel_size", "decode_context_parallel_size", "prefill_context_parallel_size", "data_parallel_size")
        return ParallelConfig(**{name: getattr(given, name) for name in names}, distributed_executor_backend="mp")

    assert vllm_serving.refusals(config(parallel_config=parallel())) == []
    sentences = vllm_serving.refusals(config(parallel_config=parallel(option, "2", *more)))
    assert len(sentences) == 1 and f"{option} 2 would divide" in sentences[0]
    replicas = parallel("--data-parallel-size", "2")
    assert vllm_serving.refusals(config(parallel_config=replicas)) == []
    replicas.reconfigure_for_independent_dp_rank()  # as vLLM does in the process of each engine, unless the model has experts
    assert replicas.data_parallel_size == 1


# An override of vLLM, and what it changes in the words of the refusal; None: nothing that turns keys.
OVERRIDES = [
    ({"rope_parameters": {"rope_type": "yarn", "rope_theta": 1e6, "factor": 4.0, "original_max_position_embeddings": 8192}}, "factor 4.0 for None"),
    ({"rope_parameters": {"rope_type": "default", "rope_theta": 5e5}}, "rope_theta 500000.0 for 1000000.0"), ({"rope_parameters": {"rope_type": "dynamic", "factor": 2.0, "rope_theta": 1e6}}, "rope_type 'dynamic' for 'default'"),
    ({"rope_scaling": {"rope_type": "linear", "factor": 8.0}}, "factor 8.0 for None"), ({"rope_scaling": None}, "rope_theta None for 1000000.0"),
    ({"partial_rotary_factor": 0.5}, "partial_rotary_factor 0.5 for 1.0"), ({"max_position_embeddings": 65536}, None), ({"architectures": ["Qwen3ForCausalLM"]}, None), ({}, None),
]  # fmt: skip


@pytest.mark.parametrize("override,words", OVERRIDES)
def test_overrides_of_rope_are_refused(override, words, fit, monkeypatch):
    """The model's configuration as vLLM makes it with --hf-overrides, and a bundle of the checkpoint as it is."""
    from vllm.config import ModelConfig
    model = ModelConfig(model=str(SAMPLES / "tiny-qwen3"), dtype="bfloat16", hf_overrides=override)
    text = model.hf_text_config
    bundle = fit("tiny-qwen3", "--windows", "64,64")
    made = config(text.num_hidden_layers, text.num_key_value_heads, text.head_dim, additional_config={"oscar_bundle": str(bundle)})
    made.model_config.hf_text_config = text
    if words is None:
        assert vllm_serving.Serving(made).bundle.fingerprint
        return
    with pytest.raises(InputError, match=f"another RoPE than those that the bundle was fitted on: .*{words}.*leave --hf-overrides out"):
        vllm_serving.Serving(made)


def test_overrides_of_layers_get_a_warning(fit):
    from vllm.config import ModelConfig
    made = config(4, 2, 128, additional_config={"oscar_bundle": str(fit("tiny-qwen3", "--windows", "64,64"))})
    made.model_config.hf_text_config = ModelConfig(model=str(SAMPLES / "tiny-qwen3"), hf_overrides={"rms_norm_eps": 0.5, "hidden_act": "gelu"}).hf_text_config
    with pytest.warns(UserWarning, match="runs with hidden_act 'gelu' for 'silu', rms_norm_eps 0.5 for 1e-06 in the checkpoint.*leave --hf-overrides out"):
        vllm_serving.Serving(made)


def test_longrope_of_another_length_is_refused(serve):
    """vLLM takes the long factors where --max-model-len (384 here) is above the original length."""
    parameters = {"rope_type": "longrope", "rope_theta": 1e4, "original_max_position_embeddings": 256, "short_factor": [1.0] * 32, "long_factor": [2.0] * 32}
    text = types.SimpleNamespace(num_hidden_layers=2, rope_parameters=parameters, max_position_embeddings=1024)
    for distance, refused in ((99, True), (256, False), (0, False)):
        made = serve(dataclasses.replace(two_sizes(), longest_distance=distance), model_config__hf_text_config=text)
        if not refused:
            assert vllm_serving.Serving(made)
            continue
        with pytest.raises(InputError, match="saw 100 tokens: --max-model-len is 384, and longrope has other factors above 256; pass --max-model-len 256"):
            vllm_serving.Serving(made)


def test_configurations_derived_for_a_language_model_share_its_serving(serve):
    """As in VllmConfig.with_hf_config(), which wrappers of several models call."""
    from vllm.config import DeviceConfig, ModelConfig, VllmConfig
    whole = VllmConfig(device_config=DeviceConfig("cpu"), model_config=ModelConfig(model=str(SAMPLES / "tiny-qwen3")))
    assert whole.with_hf_config(whole.model_config.hf_config).compilation_config is whole.compilation_config
    made = serve(two_sizes())
    inner = types.SimpleNamespace(**{**vars(made), "model_config": types.SimpleNamespace(**vars(made.model_config))})
    assert vllm_backend.serving_of(inner) is vllm_backend.serving_of(made)
    assert vllm_backend.serving_of(serve(two_sizes())) is not vllm_backend.serving_of(made)


def test_the_bundle_is_named_by_option_or_environment(monkeypatch):
    monkeypatch.setenv("OSCAR_KV_BUNDLE", "/from/environment")
    assert str(vllm_serving.bundle_path(config(additional_config={}))) == "/from/environment"
    assert vllm_serving.bundle_path(config()) == GOLDEN / "bundle"
    monkeypatch.delenv("OSCAR_KV_BUNDLE")
    monkeypatch.setattr(bundles, "of_checkpoint", lambda folder, option: (folder, option))
    assert vllm_serving.bundle_path(config(additional_config={})) == (SAMPLES / "tiny-qwen3", "--additional-config '{\"oscar_bundle\": \"DIR\"}'")
    monkeypatch.setattr(bundles, "fitted", lambda folder, context, log: (folder, context))
    assert vllm_serving.bundle_path(config(additional_config={"oscar_bundle": "auto"})) == (SAMPLES / "tiny-qwen3", 384)


@pytest.mark.parametrize("value", [7, True, [], {}, 1e308, float("nan"), "", " ", "a\0b"])
@pytest.mark.parametrize("name", ["oscar_bundle", "oscar_checkpoint"])
def test_options_that_name_no_folder_are_refused(name, value, monkeypatch):
    """Not another bundle in its place: the environment names one."""
    monkeypatch.setenv("OSCAR_KV_BUNDLE", str(GOLDEN / "bundle"))
    with pytest.raises(InputError, match=f"'{name}' of --additional-config is .*, expected the name of a folder"):
        vllm_serving.Serving(config(additional_config={name: value}))


@pytest.mark.parametrize("value", ["\x1b[31m", "/dev/zero", __file__, "../" * 1000 + "x" * 5000, "\udcff"])
def test_a_checkpoint_that_is_no_folder_is_refused(value):
    with pytest.raises(InputError, match="'oscar_checkpoint' of --additional-config is .*, which is no folder") as refused:
        vllm_serving.Serving(config(additional_config={"oscar_bundle": str(GOLDEN / "bundle"), "oscar_checkpoint": value}))
    assert str(refused.value).isprintable() and len(str(refused.value)) < 500


def test_misspelled_options_are_refused(monkeypatch):
    monkeypatch.setenv("OSCAR_KV_BUNDLE", str(GOLDEN / "bundle"))
    with pytest.raises(InputError, match="--additional-config has 'oscar_bundel', which .* knows oscar_bundle, oscar_checkpoint"):
        vllm_serving.bundle_path(config(additional_config={"oscar_bundel": "/elsewhere"}))
    assert vllm_serving.bundle_path(config(additional_config={"of_others": 7})) == GOLDEN / "bundle"


def test_a_bundle_calibrated_on_shorter_contexts_warns(serve, recwarn):
    bundle = random_bundle(1, d=64)
    vllm_serving.Serving(serve(bundle))  # not recorded
    vllm_serving.Serving(serve(dataclasses.replace(bundle, longest_distance=383)))  # max_model_len 384
    assert not [w for w in recwarn if "calibration" in str(w.message)]
    with pytest.warns(UserWarning, match="contexts of up to 300 tokens, and --max-model-len is 384"):
        vllm_serving.Serving(serve(dataclasses.replace(bundle, longest_distance=299)))


def test_layers_that_are_refused(serve):
    serve(two_sizes())
    for arguments, word in (((4, 80, 1.0, 2), "not 80"), ((68, 64, 1.0, 4), "not 17"), ((4, 64, 1.0, 2, [1.0]), "ALiBi"),
                            ((4, 64, 1.0, 2, None, 128), "sliding window"), ((4, 64, 1.0, 2, None, None, "oscar", 30.0), "soft cap"),
                            ((4, 64, 1.0, 2, None, None, "oscar", None, "encoder"), "encoder")):
        with pytest.raises(InputError, match=word):
            OscarImpl(*arguments)
    with pytest.raises(InputError, match="argument 'another'"):
        OscarImpl(4, 64, 1.0, 2, another=1)
    for fact, word in (({"attention_chunk_size": 8192}, "chunks"),):
        made = serve(random_bundle(d=64))
        vars(made.model_config.hf_text_config).update(fact)
        with pytest.raises(InputError, match=f"layers with .*{word}.* are not served"):
            vllm_serving.Serving(made)
    with pytest.raises(InputError, match="centered before RoPE.*--center mean"):
        vllm_serving.Serving(serve(rotated_bundle()))  # a configuration without RoPE


def test_tensor_parallel_ranks_have_their_heads(serve):
    bundle = random_bundle(kv_heads=4, d=64)
    for ranks, expected in ((2, [(0, 2), (2, 4)]), (4, [(0, 1), (1, 2), (2, 3), (3, 4)]), (8, [(i // 2, i // 2 + 1) for i in range(8)])):
        assert [engine_serving.head_range(4, rank, ranks, "--tensor-parallel-size") for rank in range(ranks)] == expected
        for rank, (begin, end) in enumerate(expected):
            held = vllm_serving.Serving(serve(bundle), rank, ranks).bundle.layers[0]
            assert held.kv_heads == end - begin and torch.equal(held.key.forward, bundle.layers[0].key.forward[begin:end])
    with pytest.raises(InputError, match="4 KV heads cannot be divided among 3"):
        engine_serving.head_range(4, 0, 3, "--tensor-parallel-size")


def test_pages_of_one_size(serve):
    made = serve(random_bundle(2, kv_heads=8))  # uniform, d 128: 72 bytes of a token and head
    layers = [attention_layer(i, 32, 8, 128) for i in range(2)]
    specs = specs_of(layers, made)
    assert len(set(specs.values())) == 1
    spec = specs[layers[0].layer_name]
    assert (spec.block_size, spec.state_content_bytes, spec.page_size_bytes) == (64, 72, 8 * 4608)
    blocks = allocated(specs, made, 5)[layers[1].layer_name]
    assert blocks.shape == (5, 8, 64, 72) and blocks.stride() == (36864, 4608, 72, 1) and blocks.dtype == torch.uint8
    assert blocks.data_ptr() % 16 == allocated(specs, made, 5)[layers[0].layer_name].data_ptr() % 16


def test_default_types_of_a_model_being_built_do_not_reach_the_bundle(monkeypatch):
    monkeypatch.setattr(engine_serving, "checkpoint_fingerprint", lambda path: "v2:sha256:" + 64 * "0")
    torch.set_default_dtype(torch.bfloat16)
    try:
        with torch.device("meta"):
            serving = vllm_serving.Serving(config())
        assert torch.get_default_dtype() is torch.bfloat16
        kv = serving.cache(0, 2, torch.device("cpu"))
    finally:
        torch.set_default_dtype(torch.float32)
    assert kv.code.transform.key_forward.dtype is torch.float32 and kv.code.transform.key_forward.device.type == "cpu"
    assert serving.new_table("cpu").window_pages == kv.window_pages == 2 and serving.cache(0, 2, torch.device("cpu")) is kv


class ThroughVllm:
    """A simulated engine with vLLM's memory, metadata and interfaces between it and the cache."""

    def __init__(self, bundle, layer, made, layers, blocks, seed, phases=None, most_new=1, group=2):
        super().__init__(bundle, layer, blocks=blocks, seed=seed, phases=phases, most_new=most_new, group=group)
        specs = specs_of(layers, made)
        self.layer, self.blocks = layers[layer], allocated(specs, made, blocks)[layers[layer].layer_name]
        self.builder = OscarMetadataBuilder(specs[self.layer.layer_name], list(specs), made, torch.device("cpu"))

    def admit(self, request):
        super().admit(request)
        self.builder.serving.requests[request.slot] += 1

    def metadata(self, slots, counts, lengths, table, mapping):
        """What vLLM tells the metadata builders of a pass."""
        ends = torch.tensor([0, *counts] + [0] * (len(lengths) - len(slots))).cumsum(0).int()
        return CommonAttentionMetadata(
            query_start_loc=ends, query_start_loc_cpu=ends, seq_lens=lengths, num_reqs=len(lengths), num_actual_tokens=int(ends[-1]),
            max_query_len=max(counts), max_seq_len=384, block_table_tensor=table, slot_mapping=mapping,
            seq_lens_cpu_upper_bound=self.upper(slots, lengths), req_idx=np.array(slots))

    def compute(self, slots, starts, counts, lengths, table, mapping, query, key, value):
        metadata = self.builder.build(0, self.metadata(slots, counts, lengths, table, mapping))
        output = torch.zeros_like(query)
        self.layer.impl.forward(self.layer, query, key, value, self.blocks, metadata, output)
        return output

    def upper(self, slots, lengths):
        """The host does not know how many proposals of the last step were kept: its lengths are as if all had been."""
        known = lengths.clone()
        for b, slot in enumerate(slots):
            request = next(r for r in self.running if r.slot == slot)
            if request.prompt < request.done:
                known[b] += request.refused
        return known


class VllmEngine(ThroughVllm, Engine):
    pass


class WithReaders:
    """Two more layers read the cache of `layer` (Gemma 4 E2B and E4B), with the queries that are compared; that layer has others. vLLM uses
    the memory of its keys and values again before they run."""

    def __init__(self, bundle, layer, made, layers, *arguments, **named):
        made.compilation_config.static_forward_context.update({one.layer_name: one for one in layers})
        self.readers = [attention_layer(i, source=layers[layer].layer_name) for i in (5, 6)]
        made.compilation_config.static_forward_context.update({one.layer_name: one for one in self.readers})
        super().__init__(bundle, layer, made, layers, *arguments, **named)
        names = [one.layer_name for one in (*layers, *self.readers)]
        self.builder = OscarMetadataBuilder(self.builder.kv_cache_spec, names, made, torch.device("cpu"))
        assert self.builder.layers == [i for i in range(len(layers))]

    def compute(self, slots, starts, counts, lengths, table, mapping, query, key, value):
        metadata = self.builder.build(0, self.metadata(slots, counts, lengths, table, mapping))
        self.layer.impl.forward(self.layer, 0.5 * query, key, value, self.blocks, metadata, torch.zeros_like(query))
        key.fill_(7.0), value.fill_(7.0)
        outputs = [torch.zeros_like(query) for _ in self.readers]
        for reader, output in zip(self.readers, outputs):
            reader.impl.forward(reader, query, None, None, self.blocks, metadata, output)
        known = mapping >= 0
        assert torch.equal(outputs[0][known], outputs[1][known])
        return outputs[1]


class SharedEngine(WithReaders, VllmEngine):
    pass


class VllmPrefixEngine(ThroughVllm, PrefixEngine):
    """As it is with prefix caching; the table is that of the metadata builder."""

    def __init__(self, *arguments, **named):
        super().__init__(*arguments, **named)
        self.table, self.kv = self.builder.table, self.layer.impl.cache(self.layer, torch.device("cpu"))


class SharedPrefixEngine(WithReaders, VllmPrefixEngine):
    pass


@pytest.mark.parametrize("kind", [SharedEngine, SharedPrefixEngine])
@pytest.mark.parametrize("proposed", [0, 3])
def test_layers_that_read_the_cache_of_another(serve, kind, proposed):
    bundle = exact_bundle(d=64, key=(4, 2, 1, 1), value=(4, 2, 1, 1), sink=64, recent=40)
    made = serve(bundle, speculative_config=speculation(proposed) if proposed else None,
                 cache_config__enable_prefix_caching=kind is SharedPrefixEngine)
    engine = kind(bundle, 0, made, [attention_layer(0)], 27, 3, most_new=1 + proposed)
    if kind is SharedPrefixEngine:
        engine.table, engine.kv = engine.builder.table, engine.layer.impl.cache(engine.layer, torch.device("cpu"))
    work = families(8, 330, 10)
    for request in work if proposed else ():
        request.prompt = max(1, request.total - 40)
    engine.run(work)
    assert engine.kinds >= {"decode", "mixed"} and engine.compared > 60 and (engine.rejected > 20 or not proposed)
    assert engine.builder.serving.readers == {0: 2} and list(engine.builder.serving.caches()) == [0]
    reader, rows = engine.readers[0], torch.zeros(1, 4, 64)
    with pytest.raises(InputError, match="layer 0: a layer reads its cache before it has run"):
        reader.impl.cache(reader, torch.device("cpu")).forward(engine.pool, None, rows, None, None, SCALE, rows)


@pytest.mark.parametrize("head_size,version,served", [(128, 3, True), (256, 4, False), (512, 4, True), (512, 4, False), (512, 2, False), (512, None, False)])
def test_flash_attention_for_the_heads_of_a_bundle(head_size, version, served, monkeypatch):
    """Versions 2 and 3 have no heads above 256 channels; what vLLM chooses for a head size decides, if version 4 can be imported."""
    monkeypatch.setitem(sys.modules, "vllm.vllm_flash_attn.cute.interface", types.SimpleNamespace() if served else None)
    asked = []
    found = types.SimpleNamespace(get_flash_attn_version=lambda **named: asked.append(named) or version)
    monkeypatch.setitem(sys.modules, "vllm.v1.attention.backends.fa_utils", found)
    monkeypatch.setitem(sys.modules, "vllm.vllm_flash_attn", types.SimpleNamespace(flash_attn_varlen_func=lambda fa_version: fa_version))
    function = vllm_serving.flash_attention(head_size)
    assert (function is not None) == served and asked == [{"head_size": 512} if head_size == 512 else {}]
    assert function is None or function() == version


@pytest.mark.parametrize("heads,kv_heads", [(6, 2), (2, 1)])
def test_readers_have_the_heads_of_the_layer_that_holds_the_cache(serve, heads, kv_heads):
    made = serve(random_bundle(1, d=64))
    made.compilation_config.static_forward_context["model.layers.0.self_attn.attn"] = attention_layer(0)
    with pytest.raises(InputError, match="reads the cache of model.layers.0.self_attn.attn has heads of another size or number"):
        attention_layer(1, heads, kv_heads, source="model.layers.0.self_attn.attn")


@pytest.mark.parametrize("rotated", [False, True])
def test_prefix_caching_in_memory_of_vllm(serve, rotated, monkeypatch):
    monkeypatch.setattr(engine_serving, "kept_sinks", lambda slots, pages: 3)  # so that some are lost
    bundle = random_bundle(1, d=64, key=(4, 2, 1, 1), value=(4, 2, 1, 1), sink=64, recent=40, rotated_mean=rotated)
    text = LlamaConfig(num_hidden_layers=1, head_dim=64, rope_parameters={"rope_type": "default", "rope_theta": 500.0})
    made = serve(bundle, cache_config__enable_prefix_caching=True, model_config__hf_text_config=text)
    phases = Phases(1 / 500.0 ** (torch.arange(32) / 32)) if rotated else None
    engine = VllmPrefixEngine(bundle, 0, made, [attention_layer(0)], 24, 3, phases=phases)
    engine.run(families(6, 330, 20))
    assert engine.kinds >= {"decode", "mixed"} and engine.preempted > 1 and engine.compared > 60
    assert engine.hits > 6 and engine.lost > 0 and engine.coded > 0, (engine.hits, engine.lost, engine.coded, engine.whole)


@pytest.mark.parametrize("layer", [0, 1])
def test_requests_of_unequal_layers_in_memory_of_vllm(serve, layer):
    bundle = two_sizes()
    made = serve(bundle)
    layers = [attention_layer(i) for i in range(2)]
    cells = [spec.state_content_bytes for spec in specs_of(layers, made).values()]
    assert cells == [layers[0].impl.serving.cells[i] for i in (0, 1)] and cells[0] > cells[1]
    for each in layers:  # the profile run
        output = torch.ones(3, 4, 64)
        assert not bool(each.impl.forward(each, output, output, output, torch.tensor([]), None, output).any())
    engine = VllmEngine(bundle, layer, made, layers, 40, 3 + layer)
    engine.run(requests(5 + layer, 330, 5))
    assert engine.kinds == {"decode", "mixed", "prefill"} and engine.compared > 40
    assert bool(engine.blocks.any())


@pytest.mark.parametrize("prefix_caching", [False, True])
def test_speculation_in_memory_of_vllm(serve, prefix_caching, monkeypatch):
    bundle = exact_bundle(d=64, key=(4, 2, 1, 1), value=(4, 2, 1, 1), sink=64, recent=40)
    made = serve(bundle, speculative_config=speculation(), cache_config__enable_prefix_caching=prefix_caching,
                 parallel_config__data_parallel_size=1)
    layer, work = attention_layer(0), families(8, 330, 8)
    for request in work:
        request.prompt = max(1, request.total - 40)
    engine = (VllmPrefixEngine if prefix_caching else VllmEngine)(bundle, 0, made, [layer], 27, 3, most_new=4)
    assert layer.impl.serving.most_new == engine.builder.reorder_batch_threshold == 4
    engine.run(work)
    assert engine.kinds >= {"decode", "mixed"} and engine.compared > 60 and engine.rejected > 30


@pytest.mark.parametrize("layer", [0, 1])
def test_a_layer_without_bits_in_memory_of_vllm(serve, layer):
    """Fits may give a layer nothing: its body is the mean. vLLM knows no pages without bytes, so it has one byte that nobody reads."""
    coded, bare = (random_bundle(d=64, key=widths, value=widths, sink=16, recent=40) for widths in ((2, 1, 1, 0), (0, 0, 0, 0)))
    bundle = dataclasses.replace(coded, layers=[coded.layers[0], dataclasses.replace(bare.layers[0], layer=1)])
    made = serve(bundle)
    layers = [attention_layer(i) for i in range(2)]
    assert [spec.state_content_bytes for spec in specs_of(layers, made).values()] == [layers[0].impl.serving.cells[0], 1]
    engine = VllmEngine(bundle, layer, made, layers, 40, 3 + layer)
    engine.run(requests(5 + layer, 330, 5))
    assert engine.kinds == {"decode", "mixed", "prefill"} and engine.compared > 40
    assert bool(engine.blocks.any()) == (layer == 0)


def test_keys_centered_before_rope(serve):
    """The adapter finds the phases in the configuration; the oracle is given them, to the last bit, because another rounding of a
    frequency moves single codes by a step."""
    bundle = rotated_bundle()
    text = LlamaConfig(num_hidden_layers=1, head_dim=64, rope_parameters={"rope_type": "default", "rope_theta": 500.0})
    made = serve(bundle, model_config__hf_text_config=text)
    layers = [attention_layer(0)]
    engine = VllmEngine(bundle, 0, made, layers, 40, 7, phases=Phases(1 / 500.0 ** (torch.arange(32) / 32)))
    engine.run(requests(9, 330, 4))
    assert engine.kinds == {"decode", "mixed", "prefill"} and engine.compared > 40


def test_what_waterfill_fits_by_default_is_served(fit):
    """A bundle of oscar-fit and the checkpoint's own configuration, with nothing in their place."""
    text = AutoConfig.from_pretrained(SAMPLES / "tiny-qwen3")
    path = fit("tiny-qwen3", "--method", "waterfill", "--allocate", "analytic")
    made = config(text.num_hidden_layers, text.num_key_value_heads, text.head_dim, model_config__hf_text_config=text,
                  additional_config={vllm_serving.BUNDLE_OPTION: str(path)})
    serving = vllm_serving.Serving(made)
    rotated = [layer.layer for layer in serving.bundle.layers if layer.key.rotated_mean]
    assert rotated, "no layer has the mean before RoPE: choose another sample"
    kv = serving.cache(rotated[0], text.num_attention_heads // text.num_key_value_heads, torch.device("cpu"))
    inverse = _phases(AutoModel.from_config(text)).inverse
    assert torch.equal(kv.code.transform.phases.inverse, inverse)


def test_the_builder_needs_the_slots(serve):
    made = serve(random_bundle(1, d=64))
    spec = specs_of([attention_layer(0)], made)
    builder = OscarMetadataBuilder(next(iter(spec.values())), list(spec), made, torch.device("cpu"))
    ends, one = torch.tensor([0, 1]), torch.ones(1, dtype=torch.int32)
    common = CommonAttentionMetadata(ends, ends, one, 1, 1, 1, 1, torch.zeros(1, 6, dtype=torch.int32), torch.zeros(1, dtype=torch.int64),
                                     req_idx=np.array([2]))
    assert builder.build_for_cudagraph_capture(common).rows.only_steps
    for change, sentence in (({"req_idx": None}, "slots of the requests"), ({"causal": False}, "not causal")):
        with pytest.raises(InputError, match=sentence):
            builder.build(0, common.replace(**change))


def test_builders_of_all_page_sizes_share_one_plan(serve, monkeypatch):
    """vLLM makes a builder for every page size. The first one of a pass plans for all, a pass with other metadata is planned again, and
    the codes of a step are one launch for the layers of all."""
    made = serve(two_sizes())
    layers = [attention_layer(i) for i in range(2)]
    specs = specs_of(layers, made)
    builders = [OscarMetadataBuilder(spec, [name], made, torch.device("cpu")) for name, spec in specs.items()]
    flushed = []
    monkeypatch.setattr(OscarMetadataBuilder, "_bind", lambda self, places, names: flushed.append(sorted(names)) or "flush")
    ends, one = torch.tensor([0, 1]), torch.ones(1, dtype=torch.int32)
    common = CommonAttentionMetadata(ends, ends, one, 1, 1, 1, 1, torch.zeros(1, 6, dtype=torch.int32), torch.zeros(1, dtype=torch.int64),
                                     req_idx=np.array([2]))
    planned = []
    rows = type(builders[0].table).rows
    monkeypatch.setattr(type(builders[0].table), "rows", lambda self, *given: planned.append(self) or rows(self, *given))
    for turn in range(3):
        each = [builder.build(0, common).rows for builder in builders]
        assert each[0] is each[1] and each[0].flush == "flush" and planned == [builders[0].table] * (turn + 1)
        common = common.replace(num_reqs=1)
    assert flushed == [[0], [0, 1], [0, 1], [0, 1]]  # the second layer was not known when the first builder planned for the first time
    assert builders[0].build(0, common).rows is not builders[0].build(0, common).rows  # a builder that asks again wants a new plan


def test_codes_of_a_step_follow_the_memory(serve, monkeypatch):
    """Its descriptors hold addresses: they are made once, and again when vLLM binds other memory to a layer, as after the graphs of a trial."""
    made = serve(two_sizes())
    layers = [attention_layer(i) for i in range(2)]
    specs = specs_of(layers, made)
    builders = [OscarMetadataBuilder(spec, [name], made, torch.device("cpu")) for name, spec in specs.items()]
    builders[0].members = builders
    context = made.compilation_config.static_forward_context
    names = list(specs)
    for name in names:
        context[name] = types.SimpleNamespace(kv_cache=torch.zeros(1))
    bound = []
    monkeypatch.setattr(type(builders[0].table), "on_cuda", True)
    monkeypatch.setattr(type(builders[0].serving), "flush_of", lambda self, indices, memory: bound.append(memory) or f"flush {len(bound)}")
    assert [builders[0].step_flush(None) for _ in range(3)] == 3 * ["flush 1"] and list(bound[0]) == [0, 1]
    context[names[1]].kv_cache = torch.zeros(1)
    assert [builders[0].step_flush(None) for _ in range(2)] == 2 * ["flush 2"] and bound[1][1] is context[names[1]].kv_cache
    builders[0].members = builders[:1]  # other layers share the plan
    assert builders[0].step_flush(None) == "flush 3" and list(bound[2]) == [0]


def test_commands_of_the_card_are_vllms(fit, tmp_path, monkeypatch):
    """vLLM's own parser takes every option, with and without prefix caching."""
    from vllm.engine.arg_utils import EngineArgs
    from vllm.platforms import current_platform
    from vllm.utils.argparse_utils import FlexibleArgumentParser
    monkeypatch.setattr(type(current_platform), "device_type", "cpu", raising=False)
    bundle = fit("tiny-qwen3", "--method", "waterfill", "--allocate", "analytic", "--windows", "64,48")
    commands = card_commands(bundle, "tiny-qwen3", "vllm", tmp_path / "card")
    assert [command[:3] for command in commands] == 2 * [["OSCAR_KV_BUNDLE=$PWD/oscar_bundle", "vllm", "serve"]]
    for command, caching in zip(commands, (None, False)):
        given = EngineArgs.add_cli_args(FlexibleArgumentParser()).parse_args(["--model", *command[3:], "--tensor-parallel-size", "2"])
        assert (given.kv_cache_dtype, given.attention_backend, given.dtype) == ("oscar", "OSCAR", "bfloat16")
        assert given.max_model_len == 512 and given.enable_prefix_caching is caching and given.tensor_parallel_size == 2


def test_bundles_of_latent_attention_are_refused_by_name(tmp_path):
    made = config(additional_config={vllm_serving.BUNDLE_OPTION: str(make_latent(tmp_path / "latent"))})
    with pytest.raises(InputError, match="is a bundle for latent attention .MLA., which only oscar-verify"):
        vllm_serving.Serving(made)
