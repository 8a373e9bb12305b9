"""Latent attention in vLLM's own Python on the CPU: which layers get the 2-bit cache, its pages and memory, and vLLM's MLAAttention with
prompts in chunks and steps, mixed, against textbook attention over what the cache holds."""
import logging
import types

import pytest

pytest.importorskip("vllm", reason="vllm is not installed (scripts/requirements-vllm.txt)")
from test_vllm import config, speculation, vllm_backend, vllm_planning, vllm_serving  # noqa: I001  (skips this file, too, with another release)

import numpy as np  # noqa: E402
import torch  # noqa: E402
import vllm  # noqa: E402
from latent_state import Plain, randn  # noqa: E402
from oscar_kv.cache.latent_kv import LatentCode, LatentKV  # noqa: E402
from oscar_kv.engines import latent_check, self_check  # noqa: E402
from oscar_kv.engines.check_rows import ModelRows  # noqa: E402
from oscar_kv.engines.serving import bits_and_bytes  # noqa: E402
from oscar_kv.engines.vllm import latent_backend, latent_layers  # noqa: E402
from oscar_kv.files.errors import InputError  # noqa: E402
from random_bundles import latent_bundle, random_bundle  # noqa: E402
from safetensors.torch import save_file  # noqa: E402
from vllm.config import DeviceConfig, VllmConfig, set_current_vllm_config  # noqa: E402
from vllm.model_executor.layers.attention import mla_attention  # noqa: E402
from vllm.utils import torch_utils  # noqa: E402
from vllm.v1.attention.backend import CommonAttentionMetadata  # noqa: E402
from vllm.v1.attention.backends.mla.prefill.cpu_sdpa import CPUSDPAMLAPrefillBackend  # noqa: E402
from vllm.v1.attention.ops.merge_attn_states import _merge_attn_states_torch  # noqa: E402

if not vllm.__version__.startswith("0.33."):
    pytest.skip("latent attention is served in vLLM 0.33", allow_module_level=True)

HEADS, NOPE, ROPE, VALUE = 3, 32, 64, 48
SCALE, SINK, RECENT = 0.08, 64, 80


def latent_config(bundle, **changed):
    made = config(len(bundle.layers), 1, 512 + ROPE, **changed)
    vars(made.model_config).update(use_mla=True, max_model_len=700, get_num_attention_heads=lambda parallel: HEADS)
    vars(made.parallel_config).update(cp_kv_cache_interleave_size=1, pcp_shard_decode_requests=False)
    made.attention_config.use_prefill_query_quantization = False
    made.kernel_config = types.SimpleNamespace(enable_jit_warmup=False)
    made.quant_config = None
    return made


@pytest.fixture
def serve(monkeypatch):
    """serve(bundle): a configuration whose bundle this is, as a worker has it while it builds its model."""
    latent_layers.install()

    def make(bundle, **changed):
        made = latent_config(bundle, **changed)
        monkeypatch.setattr(vllm_serving, "load_bundle", lambda path, latent=False: bundle)
        for module in (vllm_backend, mla_attention):
            monkeypatch.setattr(module, "get_current_vllm_config", lambda: made)
        monkeypatch.setattr(mla_attention, "merge_attn_states", _merge_attn_states_torch)
        for module in (mla_attention, torch_utils):
            monkeypatch.setattr(module, "PIN_MEMORY", False)
        return made

    return make


class Projection(torch.nn.Linear):
    """vLLM's kv_b_proj."""

    params_dtype, quant_method = torch.bfloat16, None

    def forward(self, x):
        return super().forward(x), None


def attention(index, made, **given):
    """vLLM's MLAAttention with random weights."""
    torch.manual_seed(index)
    projection = Projection(512, HEADS * (NOPE + VALUE), bias=False).bfloat16().requires_grad_(False)
    with set_current_vllm_config(VllmConfig(device_config=DeviceConfig("cpu"))):  # for vLLM's custom operators
        layer = mla_attention.MLAAttention(**(dict(
            num_heads=HEADS, scale=SCALE, qk_nope_head_dim=NOPE, qk_rope_head_dim=ROPE, v_head_dim=VALUE, q_lora_rank=None, kv_lora_rank=512,
            kv_b_proj=projection, cache_config=made.cache_config, prefix=f"model.layers.{index}.self_attn.attn",
            prefill_backend_cls=CPUSDPAMLAPrefillBackend) | given))
    weight = projection.weight.clone()
    layer.process_weights_after_loading(torch.bfloat16)
    places, found = [w.data_ptr() for w in (layer.W_UK_T, layer.W_UV)], [w.clone() for w in (layer.W_UK_T, layer.W_UV)]
    layer.process_weights_after_loading(torch.bfloat16)  # as after a reload: the same numbers, where recorded graphs look
    assert places == [w.data_ptr() for w in (layer.W_UK_T, layer.W_UV)] and torch.equal(projection.weight, weight)
    assert torch.equal(found[0], layer.W_UK_T) and torch.equal(found[1], layer.W_UV)
    return layer


def specs_of(layers, made):
    from vllm.v1.worker.utils import customize_attention_spec
    return {layer.layer_name: customize_attention_spec(layer.get_attn_backend(), layer.get_kv_cache_spec(made)) for layer in layers}


def allocated(specs, made, blocks):
    """vLLM's own way from specs to the memory of layers."""
    from vllm.v1.attention.backends.utils import resolve_kv_cache_layout
    from vllm.v1.kv_cache_interface import MLAAttentionSpec, UniformTypeKVCacheSpecs
    from vllm.v1.worker.utils import allocate_kv_cache
    made.cache_config.kv_cache_layout = made.cache_config.num_gpu_blocks_override = None
    backend = latent_backend.OscarLatentBackend
    layout = resolve_kv_cache_layout(made, [[m.name for m in backend.supported_kv_cache_layouts()]], specs.values())
    groups = vllm_planning.get_kv_cache_groups(made, specs)
    kind = UniformTypeKVCacheSpecs if len(set(specs.values())) > 1 else MLAAttentionSpec
    assert [(group.layer_names, type(group.kv_cache_spec)) for group in groups] == [(list(specs), kind)]
    planned = vllm_planning.get_kv_cache_config_from_groups(made, groups, blocks * sum(s.page_size_bytes for s in specs.values()))
    assert planned.num_blocks == blocks
    return allocate_kv_cache(planned, torch.device("cpu"), layout, [64])


class Requests:
    """Three requests with random tokens, through vLLM's metadata and MLAAttention; every pass is compared, within what BF16 queries and
    outputs of absorbed attention cost."""

    def __init__(self, bundle, made, layers, which, blocks=24):
        self.layer, specs = layers[which], specs_of(layers, made)
        self.layer.bind_kv_cache(allocated(specs, made, blocks)[self.layer.layer_name])
        self.builder = latent_backend.OscarLatentBuilder(specs[self.layer.layer_name], list(specs), made, torch.device("cpu"))
        code = LatentCode(bundle, bundle.layers[which])
        state = types.SimpleNamespace(mean=code.mean, matrix=code.forward, codec=lambda: code.codec)
        self.code, self.plain, self.done = code, [Plain(state) for _ in range(3)], [0, 0, 0]
        order = torch.randperm(blocks - 1, generator=torch.Generator().manual_seed(3)) + 1
        self.table, self.slots, self.kinds, self.own = order[:21].view(3, 7).int(), [2, 0, 3], set(), [0, 0, 0]
        for slot in self.slots:
            self.builder._rows.serving.requests[slot] += 1

    def share(self, request, other, count):
        """A request begins with `count` tokens of another, in whole blocks."""
        self.table[request, :count // 64] = self.table[other, :count // 64]
        plain, of = self.plain[request], self.plain[other]
        plain.rows, plain.coded, plain.rope = of.rows[:count], of.coded[:count], of.rope[:count]
        self.done[request] = self.own[request] = count

    def of(self, request, count):
        seed = 1000 * request + self.done[request]
        return (randn(count, 512, seed=seed).bfloat16(), randn(count, ROPE, seed=seed + 1).bfloat16(),
                randn(count, HEADS, NOPE + ROPE, seed=seed + 2).bfloat16())

    def forward(self, work):
        """work: [(request, new tokens)], steps first, as vLLM sorts them."""
        rows, rope, query = (torch.cat(parts) for parts in zip(*(self.of(*one) for one in work)))
        requests, counts = [r for r, _ in work], [n for _, n in work]
        lengths = torch.tensor([self.done[r] + n for r, n in work], dtype=torch.int32)
        ends = torch.tensor([0, *counts]).cumsum(0).int()
        mapping = torch.cat([self.table[r, torch.arange(self.done[r], self.done[r] + n) // 64].long() * 64 for r, n in work])
        metadata = self.builder.build(0, CommonAttentionMetadata(
            query_start_loc=ends, query_start_loc_cpu=ends, seq_lens=lengths, num_reqs=len(work), num_actual_tokens=len(rows),
            max_query_len=max(counts), max_seq_len=700, block_table_tensor=self.table[requests], slot_mapping=mapping,
            seq_lens_cpu_upper_bound=lengths.clone(), req_idx=np.array([self.slots[r] for r in requests])))
        self.kinds.add((metadata.num_decodes > 0, metadata.prefill is not None and metadata.prefill.chunked_context is not None))
        output = torch.full((len(rows), HEADS * VALUE), torch.nan, dtype=torch.bfloat16)
        layer = self.layer
        layer.update_kv_cache(rows, rope.unsqueeze(1), layer.kv_cache, mapping, metadata, layer.kv_cache_dtype, layer._k_scale)
        layer.forward_impl(query, rows, rope.unsqueeze(1), layer.kv_cache, metadata, output)
        at = 0
        for request, count in work:
            expected = self.expected(request, rows[at:at + count], rope[at:at + count], query[at:at + count].double())
            found = output[at:at + count].view(count, HEADS, VALUE).double()
            assert (found - expected).norm() < 1.5e-2 * expected.norm(), (request, count, self.done[request])
            at += count
            self.done[request] += count

    def expected(self, request, rows, rope, query):
        """A step sees its own token through the cache, a prompt its own tokens as they are."""
        plain, count, start = self.plain[request], len(rows), self.done[request]
        plain.add(rows, rope)
        if count == 1:
            latents, keys = self.seen(plain, start + 1)
        else:
            latents, keys = self.seen(plain, start, self.own[request]) if start else (rows[:0].double(), rope[:0].double())
            latents, keys = torch.cat([latents, rows.double()]), torch.cat([keys, rope.double()])
        both = (latents @ self.layer.kv_b_proj.weight.double().T).view(-1, HEADS, NOPE + VALUE)
        key = torch.cat([both[..., :NOPE], keys[:, None].expand(-1, HEADS, -1)], dim=-1)
        logits = torch.einsum("thd,shd->hts", query, key) * SCALE
        logits.masked_fill_(torch.arange(start + count) > torch.arange(start, start + count)[:, None], -torch.inf)
        return torch.einsum("hts,shd->thd", logits.softmax(-1), both[..., NOPE:])

    def seen(self, plain, length, own=0):
        rows = [plain.coded[i] if SINK <= i < max(length - RECENT, own) else plain.rows[i].float() for i in range(length)]
        back = torch.stack(rows) @ self.code.output
        return (back if self.code.mean is None else back + self.code.mean).double(), torch.stack(plain.rope[:length]).double()


@pytest.mark.parametrize("which", [0, 1])
def test_prompts_and_steps_in_memory_of_vllm(serve, which):
    """Two layers whose pages differ. Prompts of one and of several passes, beside steps of other requests."""
    bundle = latent_bundle(2, [(4, 2, 1, 1), (4, 4, 4, 2)], sink=SINK, recent=RECENT, centered=which == 0, refined=which == 1)
    made = serve(bundle)
    layers = [attention(i, made) for i in range(2)]
    cells = [spec.state_content_bytes for spec in specs_of(layers, made).values()]
    assert cells == [128 + 4 + 128, 224 + 4 + 128] == [layers[0].impl.serving.cells[i] for i in (0, 1)]
    output = torch.ones(3, HEADS * VALUE, dtype=torch.bfloat16)  # the profile run
    layers[which].forward_impl(torch.ones(3, HEADS, NOPE + ROPE), torch.ones(3, 512), torch.ones(3, 1, ROPE), torch.tensor([]), None, output)
    assert not bool(output.any()) and list(layers[0].impl.serving.caches()) == [0, 1]
    one = Requests(bundle, made, layers, which)
    one.forward([(0, 30)])
    one.forward([(0, 100), (1, 300)])
    one.forward([(1, 1), (0, 90)])
    one.forward([(1, 1), (0, 1), (2, 211)])
    for _ in range(12):
        one.forward([(2, 1), (0, 1), (1, 1)])
    one.forward([(0, 1), (2, 77)])
    one.forward([(2, 1), (1, 1), (0, 1)])
    assert one.kinds == {(False, False), (False, True), (True, False), (True, True)}


def test_requests_that_begin_with_blocks_of_others(serve):
    """With prefix caching: such a request reads them as codes, but for the sink, of which a copy is kept."""
    bundle = latent_bundle(sink=SINK, recent=RECENT)
    made = serve(bundle, cache_config__enable_prefix_caching=True)
    layers = [attention(0, made)]
    layers[0].impl.reserve_workspace()
    one = Requests(bundle, made, layers, 0)
    one.forward([(0, 300)])
    one.forward([(0, 1)])
    one.share(1, 0, 192)
    one.forward([(0, 1), (1, 90)])
    one.forward([(0, 1), (1, 50)])
    for _ in range(3):
        one.forward([(1, 1), (0, 1)])
    one.share(2, 1, 128)  # whose sink is that of the first
    one.forward([(1, 1), (2, 200)])
    one.forward([(2, 1), (1, 1), (0, 1)])
    kv = one.layer.impl.cache(torch.device("cpu"))
    kv.windows[5 * kv.window_pages:] = 9.0  # the kept copies
    one.share(2, 0, 256)
    one.builder._rows.serving.requests[3] += 1
    with pytest.raises(AssertionError):
        one.forward([(2, 90)])


def test_what_a_bundle_takes(serve):
    bundle = latent_bundle(3, (2, 2, 2, 2))
    serving = vllm_serving.Serving(serve(bundle))
    assert bits_and_bytes(bundle) == (8 * 260 / 576, 3 * 260)
    assert "3.61 bits a number in layers 0 to 2; 780 bytes a token on this GPU" in serving.summary(1)


def test_what_is_refused(serve, monkeypatch):
    bundle = latent_bundle()
    for changed, word in ((dict(speculative_config=speculation()), "speculative decoding is asked for"),
                          (dict(model_config__is_hybrid=True), "beside linear attention"),
                          (dict(kv_transfer_config=types.SimpleNamespace(kv_connector="OffloadingConnector", kv_connector_extra_config={}, kv_connector_module_path=None)),
                           "leave --kv-offloading-size out"),
                          (dict(parallel_config__decode_context_parallel_size=2), "--decode-context-parallel-size 2")):
        with pytest.raises(InputError, match=word):
            vllm_serving.Serving(serve(bundle, **changed))
    with pytest.raises(InputError, match="is a bundle for keys and values apart, and the model has latent attention"):
        vllm_serving.Serving(serve(random_bundle(d=64)))
    made = serve(bundle)
    made.model_config.use_mla = False
    with pytest.raises(InputError, match="is a bundle for latent attention, and the model has no latent attention"):
        vllm_serving.Serving(made)
    made = serve(bundle)
    for given, word in ((dict(use_sparse=True), "sparse MLA"), (dict(kv_lora_rank=256), "not 256 and 64"), (dict(qk_rope_head_dim=32), "not 512 and 32"),
                        (dict(sliding_window=128), "windows"), (dict(prefix="model.layers.7.self_attn.attn"), "lacks layer 7")):
        with pytest.raises(InputError, match=word):
            attention(0, made, **given)
    with pytest.raises(InputError, match="layout blocks for latents, not uniform"):
        LatentCode(latent_bundle(widths=None), latent_bundle(widths=None).layers[0])


def test_the_self_check_of_refined_codes():
    bundle = latent_bundle(widths=(4, 2, 1, 2), refined=True, sink=SINK, recent=RECENT)
    kv = LatentKV(LatentCode(bundle, bundle.layers[0]), 5, HEADS)
    assert all(error < 1e-3 for _, error in latent_check.errors_of(bundle, kv, 5, 300))
    kv.code._own, kv.code._calls = dict(kv.code._own, code=[1, 512, 0, 0, 4, 2, 1, 2]), {}  # written and read as plain ones
    (_, stored), *steps = latent_check.errors_of(bundle, kv, 5, 300)
    assert stored < 0.02 < min(error for _, error in steps)  # plain codes are as near to the rows


def test_the_self_check_bears_codes_that_rounding_chooses():
    """Rows that round otherwise get other codes where two are equally near: tokens are .1 apart, and as near to their rows."""
    bundle = latent_bundle(layers=7, sink=SINK, recent=RECENT)
    code = LatentCode(bundle, bundle.layers[6])
    rows = latent_check.rows_of(code, HEADS, 501)
    moved = (rows.latents.float() * (1 + 1e-3 * randn(501, 512, seed=1))).bfloat16()
    right, found = (latent_check.Run(code, given, HEADS, 500, None).past() for given in (rows, rows._replace(latents=moved)))
    put_in = torch.cat((rows.latents, rows.rope), 1)[:500]
    assert self_check.largest_error(found, right.float()) > 0.08
    assert latent_check._farther(found, right, put_in) < 0.01
    found[7, 128:256] = found[8, 128:256]  # a block of another token
    assert latent_check._farther(found, right, put_in) > self_check.LIMIT


def test_the_self_check_finds_what_is_wrong(monkeypatch):
    bundle = latent_bundle(sink=SINK, recent=RECENT)
    kv = LatentKV(LatentCode(bundle, bundle.layers[0]), 5, HEADS)
    assert all(error < 1e-3 for _, error in latent_check.errors_of(bundle, kv, 5, 300))
    own = kv.code._own
    kv.code._own, kv.code._calls = dict(own, code=[1, 512, 0, 0, 2, 4, 1, 1]), {}  # other widths than the bundle's
    assert max(error for _, error in latent_check.errors_of(bundle, kv, 5, 300)) > self_check.LIMIT
    kv.code._own, kv.code._calls, kv.code.output = own, {}, kv.code.forward  # rows that do not leave the basis as they entered it
    (path, error), *_ = latent_check.errors_of(bundle, kv, 5, 300)
    assert path == "300 stored tokens" and error > self_check.LIMIT
    monkeypatch.setattr(latent_check, "TOKENS", 200)
    serving = types.SimpleNamespace(bundle=bundle, slots=2, caches=lambda: {0: kv})
    with pytest.raises(InputError, match="the self-check of layer 0 with 200 stored tokens found outputs"):
        self_check.passed(serving, logging.getLogger(), latent_check.checked)
    kv.code.output = LatentCode(bundle, bundle.layers[0]).output
    assert "self-check of 1 layers on made rows passed" in self_check.passed(serving, logging.getLogger(), latent_check.checked)


def test_the_self_check_takes_the_models_rows(monkeypatch, tmp_path):
    monkeypatch.setattr(latent_check, "TOKENS", 200)
    bundle = latent_bundle(sink=SINK, recent=RECENT, centered=True)
    bundle.path, mean = tmp_path, bundle.layers[0].key.mean[0]
    kv = LatentKV(LatentCode(bundle, bundle.layers[0]), 5, HEADS)
    serving = types.SimpleNamespace(bundle=bundle, slots=2, caches=lambda: {0: kv})
    latents, query = 3 * randn(150, 1, 512, seed=1) + mean, 40 * randn(3, HEADS + 1, 512, seed=2)

    def passed(**changed):
        tensors = {"positions": torch.arange(150), "layers.0.k": latents.bfloat16(), "layers.0.q": query.bfloat16()}
        save_file(tensors | changed, tmp_path / "self_check.safetensors")
        return self_check.passed(serving, logging.getLogger(), latent_check.checked)

    assert "self-check of 1 layers on the model's rows passed" in passed()
    rows = latent_check.rows_of(kv.code, HEADS, 201, ModelRows(bundle))
    assert torch.equal(rows.latents[150:], latents[:51, 0].bfloat16()) and rows.query.shape == (3, HEADS, 512)
    logits = rows.query.float() @ ((rows.latents.float() - mean) @ kv.code.forward).T
    true = query[:, :HEADS].bfloat16().float() @ (rows.latents.float() - mean).T
    assert (logits / logits.std(-1, keepdim=True) - true / true.std(-1, keepdim=True)).abs().max() < 0.05
    for changed, words in (({"layers.0.q": query[:, :2].bfloat16().contiguous()}, r"\[3, 2, 512\] queries for \[150, 1, 512\] latents"),
                           ({"layers.0.k": latents[:, :, :64].bfloat16().contiguous()}, r"the tensor layers.0.k is BF16 \[150, 1, 64\]"),
                           ({"layers.0.k": torch.full_like(latents, torch.nan).bfloat16()}, "NaN or infinity")):
        with pytest.raises(InputError, match=words):
            passed(**changed)
