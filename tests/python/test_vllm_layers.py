"""Models whose layers have two kinds of cache, in vLLM's own Python on the CPU: which layers get the 2-bit cache, their cache groups, block
sizes and memory, and pages that share blocks with BF16 layers."""
import contextlib
import dataclasses
import functools
import inspect
import logging
import math
import random
import types

import pytest

pytest.importorskip("vllm", reason="vllm is not installed (scripts/requirements-vllm.txt)")
from test_vllm import VllmEngine, VllmPrefixEngine, attention_layer, serve, speculation, vllm_planning  # noqa: F401, I001  (skips this file, too, with another release)

import numpy as np  # noqa: E402
import torch  # noqa: E402
from block_engine import SCALE, families, requests  # noqa: E402
from oscar_kv.cache import prefix_table  # noqa: E402
from oscar_kv.engines import serving as engine_serving  # noqa: E402
from oscar_kv.engines.vllm import backend as vllm_backend, prefixes as vllm_prefixes, states as vllm_states, wraps  # noqa: E402
from oscar_kv.files.errors import InputError  # noqa: E402
from oscar_kv.engines.serving import bits_and_bytes  # noqa: E402
from oscar_kv.engines.vllm.backend import OscarBackend, OscarImpl, OscarMetadataBuilder, serving_of  # noqa: E402
from oscar_kv.engines.vllm.pages import Places, nominal_cell, pages_of_block, tokens_of_block  # noqa: E402
from random_bundles import random_bundle  # noqa: E402
from test_speculation import exact_bundle  # noqa: E402
from vllm.model_executor.layers.attention import attention as vllm_attention  # noqa: E402
from vllm.model_executor.layers.attention import Attention  # noqa: E402
from vllm.v1.attention.backend import AttentionBackend, AttentionImpl, AttentionMetadataBuilder, MultipleOf  # noqa: E402
from vllm.v1.attention.backends.registry import AttentionBackendEnum  # noqa: E402
from vllm.v1.kv_cache_interface import FullAttentionSpec, MambaSpec, SlidingWindowSpec  # noqa: E402

BLOCKS = 9


class PlainImpl(AttentionImpl):
    def __init__(self, num_heads, head_size, scale, num_kv_heads, alibi, window, kv_cache_dtype, *others, **extra):
        self.window, self.kv_cache_dtype = window, kv_cache_dtype

    def forward(self, *arguments):
        raise NotImplementedError


class PlainBuilder(AttentionMetadataBuilder):
    def build(self, *arguments, **named):
        raise NotImplementedError


class PlainBackend(AttentionBackend):
    """The part of vLLM's FlashAttention that cache planning asks for. Its real class needs CUDA kernels to be imported."""
    supported_kv_cache_dtypes = ["auto", "bfloat16"]

    @staticmethod
    def get_name():
        return "FLASH_ATTN"

    @staticmethod
    def get_impl_cls():
        return PlainImpl

    @staticmethod
    def get_builder_cls():
        return PlainBuilder

    @classmethod
    def get_supported_kernel_block_sizes(cls, kv_cache_spec=None):
        return [MultipleOf(16)]


def select(head_size, dtype, kv_cache_dtype, use_mla=False, has_sink=False, attn_type="decoder", has_sliding_window=False, **others):
    """vLLM's selection as on CUDA: a named backend must serve the layer."""
    config = vllm_attention.get_current_vllm_config()
    if config.attention_config.backend is None:
        return PlainBackend
    assert config.attention_config.backend.name == "OSCAR"
    reasons = OscarBackend.validate_configuration(
        head_size=head_size, dtype=torch.bfloat16, kv_cache_dtype=kv_cache_dtype, block_size=None, use_mla=use_mla, has_sink=has_sink,
        use_sparse=False, use_mm_prefix=False, use_per_head_quant_scales=False, device_capability=types.SimpleNamespace(major=9, minor=0),
        attn_type=attn_type, has_sliding_window=has_sliding_window)
    assert reasons == [], reasons
    return OscarBackend


@pytest.fixture
def build(serve, monkeypatch):
    """build(bundle, [arguments of Attention by layer; None: no attention]): the configuration and vLLM's layers."""
    def make(bundle, layers, **changed):
        made = serve(bundle, **changed)
        for name, value in dict(quant_config=None).items():
            setattr(made, name, value)
        made.model_config.hf_text_config.num_hidden_layers = sum("prefix" not in (given or ()) for given in layers)
        monkeypatch.setattr(vllm_attention, "get_current_vllm_config", lambda: made)
        monkeypatch.setattr(vllm_attention, "get_attn_backend", select)
        first = bundle.layers[0]
        built = []
        for i, given in enumerate(layers):
            if given is None:
                continue
            asked = dict(num_heads=2 * first.kv_heads, head_size=first.head_dim, scale=SCALE, num_kv_heads=first.kv_heads) | given
            prefix, inside = asked.pop("prefix", f"model.layers.{i}.self_attn.attn"), asked.pop("inside", contextlib.nullcontext())
            with inside:
                built.append(Attention(cache_config=made.cache_config, prefix=prefix, **asked))
        return made, built

    return make


def gemma(bundle, period=6, count=12, window=512):
    """Layers in the pattern of Gemma 3, and the bundle's layers at the places of those that see everything."""
    layers = [{} if i % period == period - 1 else {"per_layer_sliding_window": window} for i in range(count)]
    places = [i for i, given in enumerate(layers) if not given]
    assert len(places) == len(bundle.layers)
    held = [dataclasses.replace(layer, layer=i) for layer, i in zip(bundle.layers, places)]
    others = [{"layer": i, "reason": "a window"} for i in range(count) if i not in places]
    return dataclasses.replace(bundle, layers=held, model={"left_out": others}), layers


def unequal(kv_heads=2, d=64, **options):
    """Two layers whose pages differ by a little, so that pages of a block need room."""
    wide, narrow = (random_bundle(kv_heads=kv_heads, d=d, key=widths, value=(4, 4, 2, 0), **options)
                    for widths in ((4, 4, 2, 0), (4, 4, 1, 0)))
    return dataclasses.replace(wide, layers=[wide.layers[0], dataclasses.replace(narrow.layers[0], layer=1)])


def planned(made, blocks=BLOCKS):
    """vLLM's own way from layers to the tensors of each layer: specs, layout, groups, kernel block sizes, memory."""
    from vllm.v1.attention.backends.utils import resolve_kv_cache_layout
    from vllm.v1.worker.gpu.attn_utils import get_kv_cache_spec
    from vllm.v1.worker.utils import AttentionGroup, allocate_kv_cache, prepare_kernel_block_sizes
    from vllm.config import get_layers_from_vllm_config
    made.cache_config.kv_cache_layout = None
    made.cache_config.num_gpu_blocks_override = None
    specs = get_kv_cache_spec(made)
    layout = resolve_kv_cache_layout(made, [["LBHNC"]], specs.values())
    groups = vllm_planning.get_kv_cache_groups(made, dict(specs))
    memory = blocks * vllm_planning._pool_bytes_per_block(made, groups)
    found = vllm_planning.get_kv_cache_config_from_groups(made, groups, memory)
    layers = get_layers_from_vllm_config(made, Attention)
    attention = []
    for i, group in enumerate(groups):
        by_spec = {}
        for name in group.layer_names:
            spec = getattr(group.kv_cache_spec, "kv_cache_specs", {}).get(name, group.kv_cache_spec)
            by_spec.setdefault((layers[name].get_attn_backend(), spec), []).append(name)
        attention.append([AttentionGroup(backend, names, spec, i) for (backend, spec), names in by_spec.items()])
    sizes = prepare_kernel_block_sizes(found, attention)
    return found, groups, sizes, allocate_kv_cache(found, torch.device("cpu"), layout, sizes)


@pytest.mark.parametrize("windowed", [False, True])
def test_events_have_the_blocks_that_are_cached(build, windowed):
    """KV events of vLLM's own manager, which routers read: blocks have the tokens that the 2-bit cache keeps in one."""
    from vllm import SamplingParams
    from vllm.utils.hashing import sha256
    from vllm.v1.core.kv_cache_manager import KVCacheManager
    from vllm.v1.core.kv_cache_utils import get_request_block_hasher, init_none_hash
    from vllm.v1.request import Request
    bundle = random_bundle(2, d=64, sink=64, recent=256)
    bundle, layers = gemma(bundle, period=3, count=6, window=128) if windowed else (bundle, [{}, {}])
    made, _ = build(bundle, layers, cache_config__enable_prefix_caching=True)
    found, groups, *_ = planned(made, 64)
    sizes = [getattr(group.kv_cache_spec, "block_size", 64) for group in groups]
    hashed = math.gcd(*sizes)
    manager = KVCacheManager(found, 4096, math.lcm(*sizes), hashed, enable_kv_cache_events=True)
    init_none_hash(sha256)
    tokens = list(range(7, 7 + 1000))
    request = Request("a", tokens, SamplingParams(max_tokens=1), None, block_hasher=get_request_block_hasher(hashed, sha256))
    assert manager.allocate_slots(request, 1000) is not None
    events = manager.take_events()
    coded = [i for i, group in enumerate(groups) if not isinstance(group.kv_cache_spec, SlidingWindowSpec)]
    assert len(coded) == 1 and {event.group_idx for event in events} == set(range(len(groups)))
    for event in events:
        size = sizes[event.group_idx]
        assert event.block_size == size and size % 64 == 0
        if event.group_idx in coded:  # of windows vLLM names the last blocks
            assert len(event.token_ids) == size * len(event.block_hashes) == 1000 // size * size


def test_windowed_layers_keep_bf16_and_vllms_backend(build):
    bundle, layers = gemma(random_bundle(2, d=64))
    made, built = build(bundle, layers)
    assert [isinstance(one.impl, OscarImpl) for one in built] == [not given for given in layers]
    assert {one.kv_cache_dtype for one in built if isinstance(one.impl, PlainImpl)} == {"auto"}
    assert {one.kv_cache_torch_dtype for one in built} == {torch.bfloat16, torch.uint8}
    assert made.attention_config.backend.name == "OSCAR" and made.cache_config.cache_dtype == "oscar"
    plain, ours = built[0].attn_backend, built[5].attn_backend  # the builder of FlashAttention asks for the cache type of the model
    assert plain.get_name() == "FLASH_ATTN" and plain is built[1].attn_backend and ours is OscarBackend
    builder = plain.get_builder_cls()(None, ["a"], made, "cpu")
    assert isinstance(builder, PlainBuilder) and builder.vllm_config.cache_config.cache_dtype == "auto"
    assert builder.vllm_config.compilation_config is made.compilation_config and made.cache_config.cache_dtype == "oscar"
    serving = vllm_backend.serving_of(made)
    assert serving.bf16_text() == "layers 0 to 4, 6 to 10 (it has a sliding window)"
    found, groups, sizes, tensors = planned(made)
    kinds = [type(group.kv_cache_spec) for group in groups]
    assert kinds.count(FullAttentionSpec) == 1 and kinds.count(SlidingWindowSpec) == 5
    assert {group.kv_cache_spec.page_size_bytes for group in groups} == {serving.pages_of_block * serving.nominal_page(2)}
    full, windowed = (next(g.kv_cache_spec for g in groups if isinstance(g.kv_cache_spec, kind)) for kind in (FullAttentionSpec, SlidingWindowSpec))
    assert full.block_size == 64 * serving.pages_of_block and windowed.block_size == 64 and windowed.sliding_window == 512
    assert sorted(set(sizes)) == [64]
    # BF16 pages of 64 tokens have 64 x 2 x 2 x 64 x 2 bytes; ours fill the block without a gap.
    assert windowed.unpadded_page_size_bytes == 32768 <= full.page_size_bytes < 32768 + serving.nominal_page(2)
    mine, other = tensors["model.layers.5.self_attn.attn"], tensors["model.layers.0.self_attn.attn"]
    assert mine.is_contiguous() and mine.shape == (BLOCKS * serving.pages_of_block, 2, 64, serving.nominal_cell)
    assert other.shape == (BLOCKS, 2, 64, 128) and other.stride(0) * 2 == full.page_size_bytes


@pytest.mark.parametrize("asks", ["tensor", "attn_head", None])
def test_a_checkpoint_of_quantized_weights(build, asks):
    """A kv_cache_scheme holds for the cache type "auto" only: BF16 layers stay BF16. Without one, vLLM gives attention scales all the same."""
    from vllm.model_executor.layers.quantization.compressed_tensors.compressed_tensors import CompressedTensorsConfig
    scheme = dict(num_bits=8, type="float", strategy="tensor", symmetric=True, dynamic=False)
    quantized = CompressedTensorsConfig.from_config({
        "quant_method": "compressed-tensors", "format": "float-quantized", "ignore": [], "kv_cache_scheme": {**scheme, "strategy": asks} if asks else None, "config_groups": {
            "group_0": {"targets": ["Linear"], "weights": {**scheme, "strategy": "channel"}}}})
    bundle, layers = gemma(random_bundle(d=64, key=(4, 2, 1, 1), value=(4, 2, 1, 1), sink=16, recent=40), period=2, count=2)
    made, built = build(bundle, [{**given, "quant_config": quantized} for given in layers])
    for layer in built:
        layer.quant_method.process_weights_after_loading(layer)
        layer.process_weights_after_loading(torch.bfloat16)
        assert layer.query_quant is None and layer._k_scale.eq(1).all() and layer._v_scale.eq(1).all()
    assert [layer.kv_cache_dtype for layer in built] == ["bfloat16" if asks else "auto", "oscar"]
    assert [layer.kv_cache_torch_dtype for layer in built] == [torch.bfloat16, torch.uint8]
    assert made.cache_config.cache_dtype == "oscar"
    assert "layer 0 (it has a sliding window)" in vllm_backend.serving_of(made).bf16_text()


@pytest.mark.parametrize("tag,name", [("draft_model", "draft_model.model.layers"), ("eagle_head", "mtp.layers")])
def test_a_draft_model_keeps_bf16(tag, name, build):
    """Its layers have numbers of the model's layers, other heads, and pages in the same blocks."""
    from vllm.compilation.backends import set_model_tag
    bundle = random_bundle(2, d=64)
    draft = [{"num_heads": 2, "num_kv_heads": 1, "head_size": 128, "prefix": f"{name}.{i}.self_attn.attn", "inside": set_model_tag(tag)} for i in range(3)]
    made, built = build(bundle, [{}, {}, *draft], speculative_config=speculation(method="draft_model" if tag == "draft_model" else "mtp"))
    assert [isinstance(one.impl, OscarImpl) for one in built] == [True, True, False, False, False]
    assert {(one.kv_cache_dtype, one.kv_cache_torch_dtype) for one in built[2:]} == {("auto", torch.bfloat16)}
    serving = vllm_backend.serving_of(made)
    assert serving.bf16_text() == "" and serving.most_new == 4 and made.attention_config.backend.name == "OSCAR"
    found, groups, sizes, tensors = planned(made)
    assert len(groups) == 1 and set(sizes) == {64} and len(groups[0].layer_names) == 5
    assert tensors["model.layers.0.self_attn.attn"].shape == (BLOCKS, 2, 64, serving.nominal_cell)
    assert tensors[f"{name}.0.self_attn.attn"].shape == (BLOCKS, 1, 64, 256)


def cache_manager(found, made, whole, unit):
    """vLLM's KVCacheManager as its scheduler prepares it, and admit(name, ids): the hit of a request whose tokens are then computed, or None
    if it must wait."""
    from vllm.sampling_params import SamplingParams
    from vllm.utils.hashing import sha256
    from vllm.v1.core.kv_cache_manager import KVCacheManager
    from vllm.v1.core.kv_cache_utils import get_request_block_hasher, init_none_hash
    from vllm.v1.request import Request
    init_none_hash(sha256)
    manager = KVCacheManager(found, max_model_len=3000, scheduler_block_size=whole, hash_block_size=unit, enable_caching=True, enable_kv_cache_events=True)
    vllm_prefixes.watch(types.SimpleNamespace(kv_cache_manager=manager), made)
    hasher = get_request_block_hasher(unit, sha256)

    def make(name, ids, adapter=None):
        return Request(name, ids, SamplingParams(max_tokens=4), None, lora_request=adapter, block_hasher=hasher)

    def admit(name, ids, most=10 ** 6, request=None, adapter=None, **options):
        request = admit.requests[name] = request or make(name, ids, adapter)
        blocks, hit, *_ = manager.get_computed_blocks(request)
        if manager.allocate_slots(request, min(most, len(ids) - hit), hit, blocks, **options) is None:
            return None
        request.num_computed_tokens = len(ids)
        return hit
    admit.requests, admit.made = {}, make

    return manager, admit


def test_vllms_cache_manager_and_block_tables(build):
    """A request of 1,500 tokens, then another with the same prefix: blocks of each group, the hit, and the pages that the kernels see."""
    from vllm.v1.core.kv_cache_utils import resolve_kv_cache_block_sizes
    from vllm.v1.worker.utils import AttentionGroup
    bundle, layers = gemma(random_bundle(2, d=64))
    made, built = build(bundle, layers, cache_config__enable_prefix_caching=True)
    found, groups, _, tensors = planned(made, 500)
    pages = vllm_backend.serving_of(made).pages_of_block
    whole, unit = resolve_kv_cache_block_sizes(found, made)
    assert (whole, unit) == (64 * pages, 64)
    manager, admit = cache_manager(found, made, whole, unit)
    text = list(range(1500))
    full = next(i for i, group in enumerate(groups) if isinstance(group.kv_cache_spec, FullAttentionSpec))
    hit, first = admit("first", text), manager.get_block_ids("first")
    assert hit == 0 and len(first[full]) == -(-1500 // whole)
    events = manager.take_events()  # for routers that look for prefixes
    assert {event.group_idx: event.block_size for event in events} == {i: g.kv_cache_spec.block_size for i, g in enumerate(groups)}
    told = [event for event in events if event.group_idx == full]
    assert sum((event.token_ids for event in told), []) == text[:1500 // whole * whole] and sum(len(e.block_hashes) for e in told) == 1500 // whole
    assert len(set(sum(first, [])) - {0}) == sum(len([b for b in ids if b]) for ids in first)  # a block belongs to one group
    asked = text[:1400] + list(range(5000, 5720))  # more of its own than a request computes anyway
    assert admit("second", asked) is None  # in the same step its first blocks are not written yet
    assert admit("other", list(range(9000, 9100))) is not None
    manager.new_step_starts()
    hit, second = admit("second", asked), manager.get_block_ids("second")
    shared = 1400 // whole
    assert hit == shared * whole > 0 and second[full][:shared] == first[full][:shared] and second[full][shared:] != first[full][shared:]
    manager.new_step_starts()
    assert admit("again", text) == (1500 - 769) // whole * whole > 0  # windowed layers keep their rows there, too
    group = AttentionGroup(OscarBackend, groups[full].layer_names, groups[full].kv_cache_spec, full)
    made.model_config.max_model_len = 3000
    group.create_metadata_builders(made, torch.device("cpu"), 64)
    table = group.map_to_kernel_block_table(torch.tensor([first[full]], dtype=torch.int32))
    assert table[0].tolist() == [block * pages + j for block in first[full] for j in range(pages)]
    assert int(table.max()) < tensors["model.layers.5.self_attn.attn"].shape[0]


@pytest.mark.parametrize("kind", ["all ours", "some left out", "bf16"])
def test_blocks_of_the_same_step_are_found_in_the_next(kind, build):
    """Requests that come together share a prefix: those with our layers wait until the first has written it, and later ones find it."""
    from vllm.v1.core.kv_cache_utils import generate_scheduler_kv_cache_config
    from vllm.v1.core.sched.scheduler import Scheduler
    bundle = random_bundle(2, d=64, sink=64)
    if kind == "some left out":  # the first layer, whose spec stands for all in vLLM's scheduler
        bundle.layers = [dataclasses.replace(layer, layer=i + 1) for i, layer in enumerate(bundle.layers)]
        bundle.model["left_out"] = [{"layer": 0, "reason": "too sensitive"}]
    made, built = build(bundle, [{}, {}, {}] if kind == "some left out" else [{}, {}], cache_config__enable_prefix_caching=True)
    found = generate_scheduler_kv_cache_config([planned(made, 100)[0]])
    if kind == "bf16":
        made.cache_config.cache_dtype = "auto"
    size = found.kv_cache_groups[0].kv_cache_spec.block_size
    assert hasattr(Scheduler.__init__, wraps.MARK)  # it needs a whole engine; test_vllm_engine.py has one
    manager, admit_ids = cache_manager(found, made, size, size)

    def admit(name, own=900):
        return admit_ids(name, list(range(640)) + [10 ** 4 + int(name)] * own, full_sequence_must_fit=True)

    manager.new_step_starts()
    assert [admit("1"), admit("2")] == [0, 640 if kind == "bf16" else None]
    manager.new_step_starts()
    assert [admit("3"), admit("4")] == [640, 640]  # they write no block that both share
    assert admit("5", 300) == (640 if kind == "bf16" else (940 - 3 * bundle.recent - 1) // size * size)  # it computes its window


def test_prefixes_whose_sinks_may_be_gone(build):
    """More requests begin than sinks are kept: the first one's prefix is not offered, and then its second copy is."""
    from vllm.v1.core.kv_cache_utils import generate_scheduler_kv_cache_config
    made, _ = build(random_bundle(1, d=64, sink=64), [{}], cache_config__enable_prefix_caching=True)
    found = generate_scheduler_kv_cache_config([planned(made, 4000)[0]])
    manager, admit = cache_manager(found, made, 64, 64)
    kept = prefix_table.kept_sinks(made.scheduler_config.max_num_seqs, 1)

    def serve_one(name, ids):
        manager.new_step_starts()
        hit = admit(name, ids)
        manager.free(types.SimpleNamespace(request_id=name))
        return hit

    def others(count, name):
        for i in range(count):
            assert serve_one(f"{name} {i}", [10 ** 5 * (i + 2) + ord(name)] * 700) == 0
    text = list(range(1000))
    assert [serve_one("0", text), serve_one("1", text)] == [0, (1000 - 769) // 64 * 64]
    others(kept - 1, "a")
    assert serve_one("2", text) > 0
    others(1, "b")
    assert [serve_one("3", text), serve_one("4", text)] == [0, (1000 - 769) // 64 * 64]
    manager.new_step_starts()
    for i in range(kept - 1):  # of one step, whose order workers may not share
        admit(f"c {i}", [10 ** 5 * (i + 2) + 1] * 700)
    assert admit("5", text) > 0
    admit("d", [13] * 700)
    assert admit("6", text) == 0


def test_a_request_without_room_for_its_window_waits(build, caplog):
    """A step with 255 tokens left: not while the window has 256. After 16 steps it begins without others' tokens."""
    from vllm.v1.core.kv_cache_utils import generate_scheduler_kv_cache_config
    made, _ = build(random_bundle(1, d=64, sink=64), [{}], cache_config__enable_prefix_caching=True)
    found = generate_scheduler_kv_cache_config([planned(made, 400)[0]])
    manager, admit = cache_manager(found, made, 64, 64)
    assert not caplog.messages
    text = list(range(1200))
    assert admit("0", text) == 0
    for step in range(16):
        manager.new_step_starts()
        assert admit("1", text, most=255) is None
    manager.new_step_starts()
    assert admit("2", text, most=256) == (1200 - 769) // 64 * 64
    request = admit.requests["1"]
    assert not request.skip_reading_prefix_cache and admit("1", text, most=255, request=request) is None
    assert request.skip_reading_prefix_cache and admit("1", text, most=255, request=request) == 0
    made.scheduler_config.max_num_batched_tokens = 256
    manager, admit = cache_manager(found, made, 64, 64)
    assert "room for 250 tokens of a prompt, and the recent window has 256; pass a larger --max-num-batched-tokens" in caplog.text
    assert admit("0", text) == 0
    manager.new_step_starts()
    assert admit("1", text) == 0


def test_a_bundle_that_leaves_layers_out(build):
    """All layers keep all tokens, so that they share one group and one block table, with pages of two sizes."""
    bundle = random_bundle(2, d=64)
    bundle.model["left_out"] = [{"layer": 2, "reason": "too sensitive"}]
    made, built = build(bundle, [{}, {}, {}])
    assert isinstance(built[2].impl, PlainImpl) and isinstance(built[0].impl, OscarImpl)
    found, groups, sizes, tensors = planned(made)
    assert len(groups) == 1 and sizes == [64] and vllm_backend.serving_of(made).pages_of_block is None
    assert tensors[built[2].layer_name].shape == (BLOCKS, 2, 64, 128) and tensors[built[0].layer_name].shape[:3] == (BLOCKS, 2, 64)
    made.cache_config.cache_dtype = "auto"
    assert built[2].get_kv_cache_spec(made).block_size == 64  # other cache types pass through


@pytest.mark.parametrize("given,word", [
    ({"logits_soft_cap": 30.0}, "soft cap"), ({"alibi_slopes": [1.0]}, "ALiBi"), ({"num_heads": 34}, "not 17"), ({"head_size": 96}, "not 96"),
    ({"use_alibi_sqrt": False, "layer_idx": 3}, "'layer_idx'"), ({"head_size_v": 32}, "32 channels")])
def test_layers_without_a_kernel_keep_bf16(build, given, word):
    made, built = build(random_bundle(2, d=64), [{}, given])
    assert isinstance(built[0].impl, OscarImpl) and isinstance(built[1].impl, PlainImpl)
    assert word in vllm_backend.serving_of(made).bf16_text()
    with pytest.raises(InputError, match="no layer of the model can have the 2-bit cache.*" + word):
        made, built = build(random_bundle(2, d=64), [given, given])
        planned(made)


def test_a_layer_that_reads_another_cache(build):
    source = "model.layers.0.self_attn.attn"
    made, built = build(random_bundle(3, d=64), [{"logits_soft_cap": 5.0}, {"kv_sharing_target_layer_name": source}, {}])
    assert [isinstance(one.impl, OscarImpl) for one in built] == [False, False, True]
    assert "layer 1 (reads the cache of model.layers.0.self_attn.attn)" in vllm_backend.serving_of(made).bf16_text()
    with pytest.raises(InputError, match="it has a soft cap on logits"):
        build(random_bundle(2, d=64), [{}, {"kv_sharing_target_layer_name": source, "logits_soft_cap": 5.0}])


def test_gemma_4(build):
    """Heads of 512 channels in layers that see everything and of 256 in the others, of which the last two read the caches of the first two:
    vLLM's own view of the configuration, groups, and the builder of a group to which vLLM adds the readers."""
    from transformers import Gemma4TextConfig
    from vllm.transformers_utils.model_arch_config_convertor import MODEL_ARCH_CONFIG_CONVERTORS
    from vllm.v1.worker.gpu.attn_utils import get_shared_kv_cache_layers
    from vllm.v1.worker.utils import AttentionGroup, add_kv_sharing_layers_to_kv_cache_groups
    name = "model.layers.{}.self_attn.attn".format
    text = Gemma4TextConfig(
        num_hidden_layers=4, hidden_size=64, intermediate_size=64, num_attention_heads=8, num_key_value_heads=1, head_dim=256, global_head_dim=512,
        sliding_window=512, layer_types=["sliding_attention", "full_attention"] * 2, num_kv_shared_layers=2, hidden_size_per_layer_input=0)
    arch = MODEL_ARCH_CONFIG_CONVERTORS["gemma4_text"](text, text).convert()
    assert (arch[0].head_size, arch[1].head_size, arch[1].total_num_kv_heads) == (256, 512, 1)
    bundle = random_bundle(1, kv_heads=1, d=512, key=(4, 2, 1, 1), value=(4, 2, 1, 1))
    bundle = dataclasses.replace(bundle, layers=[dataclasses.replace(bundle.layers[0], layer=1)],
                                 model={"left_out": [{"layer": i, "reason": "a window, or another's cache"} for i in (0, 2, 3)]})
    sliding, full = {"per_layer_sliding_window": 512, "head_size": 256, "num_heads": 8}, {"num_heads": 8}
    made, built = build(bundle, [sliding, full, sliding | {"kv_sharing_target_layer_name": name(0)}, full | {"kv_sharing_target_layer_name": name(1)}],
                        model_config__model_arch_config=arch)
    assert [isinstance(one.impl, OscarImpl) for one in built] == [False, True, False, True]
    serving = vllm_backend.serving_of(made)
    assert serving.readers == {1: 1}
    assert serving.bf16_text() == f"layer 0 (it has a sliding window); layer 2 (reads the cache of {name(0)})"
    found, groups, sizes, tensors = planned(made)
    assert sorted(tensors) == [name(0), name(1)] and set(sizes) == {64} and len({g.kv_cache_spec.page_size_bytes for g in groups}) == 1
    pages = serving.pages_of_block
    assert tensors[name(1)].shape == (BLOCKS * pages, 1, 64, serving.cells[1]) and pages * serving.cells[1] >= 2 * 2 * 256
    group = next(g for g in groups if isinstance(g.kv_cache_spec, FullAttentionSpec))
    add_kv_sharing_layers_to_kv_cache_groups(get_shared_kv_cache_layers(made), groups)
    assert group.layer_names == [name(1), name(3)]
    attention = AttentionGroup(OscarBackend, group.layer_names, group.kv_cache_spec, 0)
    attention.create_metadata_builders(made, torch.device("cpu"), 64)
    assert attention.get_metadata_builder().layers == [1]
    made.cache_config.kv_sharing_fast_prefill = True
    made.compilation_config = types.SimpleNamespace(static_forward_context={})
    with pytest.raises(InputError, match="leave --kv-sharing-fast-prefill out"):
        serving_of(made)


def test_states_of_linear_attention(build):
    """vLLM makes the blocks of attention as large as a state; its kernels still see pages of 64 tokens."""
    bundle, layers = gemma(random_bundle(2, d=64), window=None)
    bundle = dataclasses.replace(bundle, layers=[dataclasses.replace(layer, layer=i) for i, layer in enumerate(bundle.layers)])
    made, built = build(bundle, [{}, {}], model_config__is_hybrid=True)
    made.cache_config.block_size = 64 * 37  # Platform._align_hybrid_block_size()
    page = vllm_backend.backend_of(vllm_backend.serving_of(made)).customize_spec(FullAttentionSpec(block_size=1, num_kv_heads=2, head_size=64, dtype=torch.uint8)).page_size_bytes
    found, groups, sizes, tensors = planned(made)
    assert groups[0].kv_cache_spec.block_size == 64 * 37 and sizes == [64]
    assert groups[0].kv_cache_spec.page_size_bytes == 64 * 37 * page
    assert tensors[built[0].layer_name].shape == (BLOCKS * 37, 2, 64, page // 2)
    state = MambaSpec(block_size=384, shapes=((37 * 64 * page // 4 - 5,),), dtypes=(torch.float32,), page_size_padded=64 * 37 * page)
    specs = {one.layer_name: groups[0].kv_cache_spec for one in built} | {"model.layers.2.mixer": state, "model.layers.3.mixer": state}
    mixed = vllm_planning.get_kv_cache_groups(made, specs)
    assert sorted(len(group.layer_names) for group in mixed) == [2, 2]


@pytest.mark.parametrize("kind", ["all ours", "the first left out", "pages of two sizes"])
@pytest.mark.parametrize("caching", [False, True])
def test_vllm_makes_blocks_that_hold_a_state(kind, caching, build, monkeypatch):
    """vLLM's own alignment, specs and groups: states and layers of all kinds get blocks of equal bytes, and with prefix caching of as many
    tokens, because vLLM would otherwise copy parts of blocks."""
    from vllm.model_executor.models import ModelRegistry
    from vllm.platforms.interface import Platform
    from vllm.v1.core.kv_cache_utils import partial_hash_hits_enabled
    from vllm.v1.worker.gpu.attn_utils import get_kv_cache_spec
    state = dict(shapes=((9000,),), dtypes=(torch.float32,))
    model = types.SimpleNamespace(get_mamba_state_shape_from_config=lambda config: state["shapes"],
                                  get_mamba_state_dtype_from_config=lambda config: state["dtypes"])
    monkeypatch.setattr(type(ModelRegistry), "resolve_model_cls", lambda *given, **named: (model, None))
    monkeypatch.setattr("vllm.config.vllm.set_current_vllm_config", contextlib.nullcontext)
    bundle = unequal(sink=64) if kind == "pages of two sizes" else random_bundle(2, d=64, sink=64)
    if kind == "the first left out":
        bundle.layers = [dataclasses.replace(layer, layer=i + 1) for i, layer in enumerate(bundle.layers)]
        bundle.model["left_out"] = [{"layer": 0, "reason": "too sensitive"}]
    count = 3 if kind == "the first left out" else 2
    made, built = build(bundle, [{}] * count, model_config__is_hybrid=True, cache_config__enable_prefix_caching=caching)
    vars(made.model_config).update(use_mla=False, architecture="", get_num_kv_heads=lambda parallel: 2)
    cache, made.cache_config.kv_cache_layout = made.cache_config, "LBHNC"
    cache.mamba_cache_mode, cache.mamba_block_size = ("align", 16) if caching else ("none", 384)
    Platform._align_hybrid_block_size(made, built[0].get_attn_backend())
    if caching and kind == "the first left out":
        with pytest.raises(InputError, match="copy parts of blocks.*pass --no-enable-prefix-caching"):
            get_kv_cache_spec(made)
        return
    specs = get_kv_cache_spec(made)
    ours = {specs[one.layer_name] for one in built if isinstance(one.impl, OscarImpl)}
    assert len(ours) == 1 and next(iter(ours)).page_size_padded is None and next(iter(ours)).block_size == cache.block_size
    specs |= {f"model.layers.{i}.mixer": MambaSpec(block_size=cache.mamba_block_size, page_size_padded=cache.mamba_page_size_padded,
                                                   mamba_cache_mode=cache.mamba_cache_mode, **state) for i in (8, 9)}
    assert len({spec.page_size_bytes for spec in specs.values()}) == 1 and max(spec.page_size_bytes for spec in specs.values()) >= 36000
    groups = vllm_planning.get_kv_cache_groups(made, specs)
    if caching:
        assert {group.kv_cache_spec.block_size for group in groups} == {cache.block_size}
        assert not partial_hash_hits_enabled(groups, cache.block_size)


class StateEngine(VllmEngine):
    """Batches pass through vLLM's own model state of models with linear attention, which does not hand on the slots."""

    def builders(self):
        """{name of a layer: its metadata builder} of all groups of layers."""
        return {self.layer.layer_name: self.builder}

    def compute(self, slots, starts, counts, lengths, table, mapping, query, key, value):
        from vllm.config.compilation import CUDAGraphMode
        from vllm.v1.worker.gpu.model_states.mamba_hybrid import MambaHybridModelState
        from vllm.v1.worker.utils import AttentionGroup
        state = MambaHybridModelState.__new__(MambaHybridModelState)
        state._align_mode, state.recoverssm = False, None
        state.vllm_config = types.SimpleNamespace(num_speculative_tokens=self.builder.serving.most_new - 1)
        state.num_accepted_tokens_gpu = torch.ones(8, dtype=torch.int32)
        groups = [[AttentionGroup(OscarBackend, [name], self.builder.kv_cache_spec, i, metadata_builders=[builder])]
                  for i, (name, builder) in enumerate(self.builders().items())]
        tables, place = [table.flip(0) + 1 + i for i in range(len(groups))], list(self.builders()).index(self.layer.layer_name)
        tables[place] = table
        ends = np.cumsum([0, *counts] + [0] * (len(lengths) - len(slots))).astype(np.int32)
        batch = types.SimpleNamespace(
            num_reqs=len(lengths), num_tokens=query.shape[0], query_start_loc_np=ends, query_start_loc=torch.from_numpy(ends), max_query_len=None,
            num_scheduled_tokens=np.array(counts), seq_lens_cpu_upper_bound=self.upper(slots, lengths), seq_lens=lengths, positions=None,
            is_prefilling_np=np.zeros(len(lengths), dtype=bool), prefill_runs_as_decode_np=None, dcp_local_seq_lens=None, prompt_lens=None,
            idx_mapping_np=np.array(slots), idx_mapping=torch.zeros(len(lengths), dtype=torch.int64), num_draft_tokens_per_req=None)
        batch.num_scheduled_tokens = np.array([*counts, *[0] * (len(lengths) - len(counts))])
        made = state.prepare_attn(batch, CUDAGraphMode.NONE, tables, [mapping] * len(groups), groups, types.SimpleNamespace(kv_cache_groups=[None] * len(groups)))
        output = torch.zeros_like(query)
        self.layer.impl.forward(self.layer, query, key, value, self.blocks, made[self.layer.layer_name], output)
        return output


def test_requests_beside_states_of_linear_attention(serve):
    bundle = random_bundle(1, d=64, sink=16, recent=40)
    engine = StateEngine(bundle, 0, serve(bundle, model_config__is_hybrid=True), [attention_layer(0)], 40, 3)
    engine.run(requests(5, 330, 5))
    assert engine.kinds == {"decode", "mixed", "prefill"} and engine.compared > 40 and vllm_states.slots() is None


class AmongGroups(StateEngine):
    """Layers of the model with blocks of their own, because a draft head shares no block table with them: the one in the middle is followed."""

    def builders(self):
        if not hasattr(self, "around"):
            self.around = [OscarMetadataBuilder(self.builder.kv_cache_spec, [f"model.layers.{i}.self_attn.attn"], self.builder.vllm_config,
                                                torch.device("cpu")) for i in (1, 2)]
            for builder in (self.builder, self.around[1]):
                builder.table.rows = functools.partial(self.planned, builder.table.rows)
        return {"model.layers.1": self.around[0], self.layer.layer_name: self.builder, "model.layers.2": self.around[1]}

    def planned(self, original, slots, starts, counts, *others):
        assert len(set(counts)) > 1 or max(counts) > 4, "a decode step is planned once, for all groups"
        return original(slots, starts, counts, *others)


@pytest.mark.parametrize("kind", [StateEngine, AmongGroups])
def test_speculation_beside_states_of_linear_attention(serve, kind):
    bundle = exact_bundle(d=64, key=(4, 2, 1, 1), value=(4, 2, 1, 1), sink=64, recent=40)
    bundle = dataclasses.replace(bundle, layers=[dataclasses.replace(bundle.layers[0], layer=i) for i in range(3)])
    made, work = serve(bundle, model_config__is_hybrid=True, speculative_config=speculation(method="mtp")), families(8, 330, 8)
    for request in work:
        request.prompt = max(1, request.total - 40)
    engine = kind(bundle, 0, made, [attention_layer(0)], 27, 3, most_new=4)
    engine.run(work)
    assert engine.kinds >= {"decode", "mixed"} and engine.compared > 60 and engine.rejected > 30 and vllm_states.slots() is None


def test_two_engines_in_a_process(build):
    """Each has its bundle, pages and scratch memory, in whatever order vLLM asks for them."""
    def bundle_of(widths):
        return random_bundle(1, d=64, key=widths, value=widths, sink=16, recent=40)

    wide, narrow = bundle_of((4, 2, 1, 1)), bundle_of((2, 1, 1, 0))
    (first, (one,)), (second, (two,)) = build(wide, [{}]), build(narrow, [{}])
    sizes = [layer.get_kv_cache_spec(made).page_size_bytes for layer, made in ((one, first), (two, second), (one, first))]
    assert sizes[0] == sizes[2] > sizes[1]
    servings = [vllm_backend.serving_of(made) for made in (first, second, first)]
    assert servings[0] is servings[2] is one.impl.serving and servings[1] is two.impl.serving and servings[0].bundle is wide
    caches = [layer.impl.cache(layer, torch.device("cpu")) for layer in (one, two)]
    assert caches[0].code.shared is servings[0].shared is not caches[1].code.shared
    buffers = [kv.code.shared.buffer(torch.device("cpu"), 2, 64, 64) for kv in caches]
    assert buffers[0].data_ptr() != buffers[1].data_ptr()


def test_without_the_hybrid_manager(build):
    """vLLM then keeps all tokens of windowed layers, in one group."""
    bundle, layers = gemma(random_bundle(2, d=64))
    made, built = build(bundle, layers, scheduler_config__disable_hybrid_kv_cache_manager=True)
    found, groups, sizes, tensors = planned(made)
    assert len(groups) == 1 and sizes == [64] and tensors[built[5].layer_name].shape[0] == BLOCKS


def test_places_stay_inside_their_blocks():
    draw = random.Random(3)
    for _ in range(500):
        cells = [draw.randrange(8, 300) for _ in range(draw.randrange(1, 6))]
        least, heads = draw.choice((8, 40)), draw.choice((1, 2, 8))
        widest = nominal_cell(cells, least)
        page = 64 * heads * widest
        pages = pages_of_block(page, cells, draw.choice((64, 64, 1024)) if least == 8 else 64 * least, draw.choice((0, 4 * heads * 128)))
        for cell in cells:
            places = Places(pages, pages * page, 64 * heads * cell)
            last = 0
            for block in range(12):
                numbers = torch.arange(block * pages, (block + 1) * pages, dtype=torch.int32)
                found = places(numbers).tolist()
                assert found == [places(int(n)) for n in numbers] and found[0] * places.page_bytes >= block * places.block_bytes
                assert (found[-1] + 1) * places.page_bytes <= (block + 1) * places.block_bytes and found[0] >= last
                last = found[-1] + 1
            assert places.direct == (cell == widest)
    assert tokens_of_block(73728, 1024) == 64 and tokens_of_block(200000, 1024) == 192


class SharedBlocks:
    """The engine's blocks, some of which belong to windowed layers: their bytes are arbitrary and must stay as they are."""

    def __init__(self, bundle, layer, made, built, blocks, seed, **options):
        self.found, self.groups, _, tensors = planned(made, 9)
        mine = [group for group in self.groups if isinstance(group.kv_cache_spec, FullAttentionSpec)]
        assert len(mine) == 1
        self.named = [one for one in built if isinstance(one.impl, OscarImpl)]
        self.layer_of, self.tensors, self.spec = self.named[layer], tensors, mine[0].kv_cache_spec
        self.made = made
        super().__init__(bundle, layer, made, self.named, blocks, seed, **options)

    def after_setup(self):
        pages, serving = self.spec.block_size // 64, vllm_backend.serving_of(self.made)
        assert serving.pages_of_block == pages
        for one in self.named:  # as after the profile run
            one.impl.cache(one, torch.device("cpu")), one.impl.pool(self.tensors[one.layer_name])
        self.blocks = self.tensors[self.layer_of.layer_name]
        raw = self.blocks.view(torch.uint8).view(9, -1)
        raw[1::2] = torch.randint(0, 255, raw[1::2].shape, dtype=torch.uint8, generator=torch.Generator().manual_seed(5))
        self.others = raw[1::2].clone()
        self.free_blocks = [n for n in range(pages, 9 * pages) if n // pages % 2 == 0]
        self.random.shuffle(self.free_blocks)

    def run(self, work):
        self.after_setup()
        super().run(work)
        assert torch.equal(self.blocks.view(torch.uint8).view(9, -1)[1::2], self.others)


class SharedEngine(SharedBlocks, VllmEngine):
    pass


class SharedPrefixEngine(SharedBlocks, VllmPrefixEngine):
    pass


@pytest.mark.parametrize("layer", [0, 1])
def test_requests_beside_windowed_layers(build, layer):
    bundle, layers = gemma(unequal(sink=16, recent=40), period=3, count=6, window=128)
    made, built = build(bundle, layers)
    engine = SharedEngine(bundle, layer, made, built, 40, 3 + layer)
    assert vllm_backend.serving_of(made).places(layers.index({}) if layer == 0 else 5).direct is False
    engine.run(requests(5 + layer, 330, 5))
    assert engine.kinds == {"decode", "mixed", "prefill"} and engine.compared > 40


def test_prefix_caching_beside_windowed_layers(build, monkeypatch):
    monkeypatch.setattr(engine_serving, "kept_sinks", lambda slots, pages: 3)  # so that some are lost
    bundle, layers = gemma(unequal(sink=64, recent=40), period=3, count=6, window=128)
    made, built = build(bundle, layers, cache_config__enable_prefix_caching=True)
    engine = SharedPrefixEngine(bundle, 1, made, built, 24, 3)
    engine.run(families(6, 330, 20))
    assert engine.preempted > 1 and engine.compared > 60 and engine.hits > 5 and engine.coded > 3


def test_the_wrapped_constructor_has_vllms_signature():
    assert list(inspect.signature(Attention.__init__).parameters)[:4] == ["self", "num_heads", "head_size", "scale"]
    assert AttentionBackendEnum["OSCAR"].get_class() is OscarBackend


def test_the_line_at_start(build, caplog):
    bundle, layers = gemma(random_bundle(2, d=64, sink=64, recent=256), period=3, count=6)
    made, _ = build(bundle, layers)
    serving, log = serving_of(made), logging.getLogger("oscar-kv-test")
    with caplog.at_level("INFO", log.name):
        for tokens in (128, 0, 64000, 64000):  # memory for a trial, then the engine's
            serving.check(log, tokens, made.model_config.max_model_len)
    (line,) = [record.getMessage() for record in caplog.records if record.name == log.name]
    bits, coded = bits_and_bytes(bundle)
    for words in (f"bundle {bundle.path}, method {bundle.method}, {bits:.2f} bits a number in layers 2, 5;", f" {coded} bytes a token on this GPU",
                  " 64000 tokens fit;", "windows of 64 and 256 tokens", "layers in BF16: layers 0 to 1, 3 to 4 (it has a sliding window)",
                  "no self-check without a GPU"):
        assert words in line, line
    made.cache_config.num_gpu_blocks = 10
    assert serving.tokens(64) == 640


def test_metrics(build, monkeypatch):
    """Gauges in vLLM's own registry, with numbers that the scheduler's statistics carry from one process to another."""
    import msgspec
    from oscar_kv.engines.vllm import gauges
    from prometheus_client import REGISTRY
    from vllm.config import DeviceConfig, VllmConfig
    from vllm.v1.core.sched.scheduler import Scheduler
    from vllm.v1.engine import FinishReason
    from vllm.v1.metrics.loggers import PrometheusStatLogger
    from vllm.v1.metrics.stats import FinishedRequestStats, IterationStats, SchedulerStats
    bundle = random_bundle(2, d=64, sink=64, recent=256)
    made, _ = build(bundle, [{}, {}])
    assert hasattr(PrometheusStatLogger.record, wraps.MARK)
    reads = []
    monkeypatch.setattr(gauges, "read_manifest", lambda path: reads.append(path) or bundle)
    assert not hasattr(Scheduler.__init__.__wrapped__, "__wrapped__")  # one wrap, of prefixes.py
    held = types.SimpleNamespace(vllm_config=made, running=[types.SimpleNamespace(num_computed_tokens=n) for n in (100, 320, 820)], **{
        name: None for name in ("connector_prefix_cache_stats", "kv_metrics_collector")}, log_stats=True, deferred_waiting=[], _kv_fetch_counts={},
        kv_cache_manager=types.SimpleNamespace(make_prefix_cache_stats=lambda: SchedulerStats().prefix_cache_stats, usage=0.5),
        get_request_counts=lambda: (3, 0))
    stats = msgspec.msgpack.decode(msgspec.msgpack.encode(Scheduler.make_stats(held)), type=SchedulerStats)  # as between vLLM's processes
    config = VllmConfig(device_config=DeviceConfig("cpu"))
    config.model_config = types.SimpleNamespace(served_model_name="m", max_model_len=99, is_diffusion=False, is_multimodal_model=False)
    ours = types.SimpleNamespace(**{**vars(config), "cache_config": made.cache_config, "additional_config": made.additional_config,
                                     "compilation_config": made.compilation_config})
    logger = PrometheusStatLogger(ours, [0, 1])
    iteration = IterationStats()
    iteration.finished_requests = [FinishedRequestStats(FinishReason.STOP, num_cached_tokens=n) for n in (0, 64, 640)]
    logger.record(stats, iteration, engine_idx=1)
    value = lambda name, engine: REGISTRY.get_sample_value(f"vllm:oscar_kv_{name}", {"model_name": "m", "engine": engine})
    assert (value("bits", "0"), value("bytes_per_token", "1")) == bits_and_bytes(bundle)
    assert value("quantized_share", "1") == 500 / 1240 and value("quantized_share", "0") == 0
    assert value("prefix_hits_total", "1") == 2
    assert len(reads) == 1  # the scheduler and the process of /metrics read the manifest once, without tensors
