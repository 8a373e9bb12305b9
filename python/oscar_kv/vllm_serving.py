"""State shared by the layers of one vLLM worker: the bundle, or the worker's heads of it, checked against the model
and vLLM's settings. Implements no interface of vLLM; reads its configuration as in 0.33."""
import contextlib
import functools
import logging
import os
import pathlib
import warnings

import torch

from .bundle import check_geometry, load_bundle
from .codec import side_codec
from .errors import InputError
from .fingerprint import checkpoint_fingerprint
from .kernels import HEAD_SIZES, MOST_GROUP
from .overlay_kv import OverlayKV
from .overlay_table import OverlayTable, blocks_of_window
from .page_layout import PAGE_TOKENS, PageLayout
from .paged_kv import LayerCode
from .rope import phases_of
from .slot_kv import SlotKV, SlotTable
from .step_flush import StepFlush
from .tiers import ring_pages
from .vllm_limits import IN_BF16, LAYERS, MODEL
from .vllm_pages import Places, nominal_cell
from .vllm_plugin import BUNDLE_VARIABLE, CACHE_DTYPE

BUNDLE_OPTION, CHECKPOINT_OPTION = "oscar_bundle", "oscar_checkpoint"  # of --additional-config


@contextlib.contextmanager
def plain_torch():
    """vLLM builds models under its own default device and dtype, which must not apply to bundles."""
    dtype = torch.get_default_dtype()
    torch.set_default_dtype(torch.float32)
    try:
        with torch.device("cpu"):
            yield
    finally:
        torch.set_default_dtype(dtype)


def _options(config):
    return config.additional_config if isinstance(config.additional_config, dict) else {}


def bundle_path(config):
    """--additional-config '{"oscar_bundle": DIR}' or the environment; the option takes precedence."""
    path = _options(config).get(BUNDLE_OPTION) or os.environ.get(BUNDLE_VARIABLE)
    if not path:
        raise InputError(f"--kv-cache-dtype {CACHE_DTYPE} needs a bundle of oscar-fit; name its folder in {BUNDLE_VARIABLE} or in "
                         f"--additional-config '{{\"{BUNDLE_OPTION}\": \"DIR\"}}'")
    return pathlib.Path(path)


def refusals(config):
    """Sentences for vLLM settings that this adapter does not support."""
    cache, parallel = config.cache_config, config.parallel_config
    cases = [
        (cache.kv_cache_dtype_skip_layers, "--kv-cache-dtype-skip-layers is given, but the bundle says which layers stay in BF16; "
         "leave it out"),
        (config.speculative_config is not None, "speculative decoding is asked for, but this backend decodes one token at a time; "
         "leave --speculative-config out"),
        (config.kv_transfer_config is not None, "KV transfer and offloading would leave the BF16 windows behind; leave "
         "--kv-transfer-config out"),
        (parallel.decode_context_parallel_size > 1 or parallel.prefill_context_parallel_size > 1,
         "context parallelism is asked for, but the pages of a request are not divided among GPUs; use --tensor-parallel-size"),
        (getattr(parallel, "use_ubatching", False), "batches are cut into overlapping parts (DBO), which share memory that this "
         "backend has once; leave --enable-dbo out"),
        (config.model_config.dtype != torch.bfloat16, f"the model computes in {str(config.model_config.dtype).removeprefix('torch.')}, "
         "and windows and queries are BF16; pass --dtype bfloat16"),
        (not config.use_v2_model_runner, "vLLM's first model runner does not tell a backend the slots of requests; unset "
         "VLLM_USE_V2_MODEL_RUNNER and leave out what needs that runner")]
    return [sentence for found, sentence in cases if found]


def layer_refusal(num_heads, num_kv_heads, head_size, alibi_slopes, sliding_window, logits_soft_cap, attn_type, sharing, extra):
    """Why a layer cannot have the 2-bit cache, or None. Takes the arguments of vLLM's AttentionImpl."""
    if head_size not in HEAD_SIZES:
        return f"the kernels have head sizes {', '.join(map(str, HEAD_SIZES))}, not {head_size}"
    if num_heads // num_kv_heads > MOST_GROUP:
        return f"the kernels have at most {MOST_GROUP} query heads on a KV head, not {num_heads // num_kv_heads}"
    if attn_type != "decoder":
        return f"attention of the type {attn_type} has no 2-bit cache"
    values = {"alibi_slopes": alibi_slopes, "sliding_window": sliding_window, "logits_soft_cap": logits_soft_cap,
              "kv_sharing_target_layer_name": sharing}
    found = next((f"it has {words}" for name, words in (IN_BF16 | LAYERS).items() if _is_set(values.get(name))), None)
    unknown = sorted(name for name, value in extra.items() if name != "sinks" and _is_set(value))
    return found or (f"its attention has the argument '{unknown[0]}', which oscar-kv does not know" if unknown else None)


def _is_set(value):
    return value is not None and not (isinstance(value, (int, float)) and value == 0)


def model_refusal(text_config):
    """One sentence for unsupported layers that AttentionImpl's arguments do not show, or None. text_config:
    transformers' own."""
    found = {"attention_chunk_size": getattr(text_config, "attention_chunk_size", None)}
    return next((f"layers with {words} are not served" for name, words in MODEL.items() if _is_set(found[name])), None)


def _numbers(indices):
    """"layers 0 to 4, 6"; "layer 5"."""
    runs = []
    for index in indices:
        if runs and index == runs[-1][1] + 1:
            runs[-1][1] = index
        else:
            runs.append([index, index])
    text = ", ".join(str(a) if a == b else f"{a} to {b}" for a, b in runs)
    return f"layer{'s' if len(indices) != 1 else ''} {text}"


def _checkpoint(config):
    named = _options(config).get(CHECKPOINT_OPTION) or config.model_config.model
    if pathlib.Path(named).is_dir():
        return pathlib.Path(named)
    from huggingface_hub import try_to_load_from_cache
    cached = try_to_load_from_cache(str(named), "config.json", revision=config.model_config.revision)
    if isinstance(cached, str):
        return pathlib.Path(cached).parent
    raise InputError(f"the checkpoint '{named}' is not found on this machine, so the bundle's fingerprint cannot be compared; pass "
                     f"--additional-config '{{\"{CHECKPOINT_OPTION}\": \"DIR\"}}'")


def head_range(kv_heads, rank, ranks):
    """KV heads [begin, end) of a tensor-parallel rank. With fewer heads than ranks, several ranks have the same
    head."""
    if kv_heads >= ranks:
        if kv_heads % ranks:
            raise InputError(f"{kv_heads} KV heads cannot be divided among {ranks} GPUs; choose --tensor-parallel-size accordingly")
        return rank * (kv_heads // ranks), (rank + 1) * (kv_heads // ranks)
    return rank * kv_heads // ranks, rank * kv_heads // ranks + 1


def _warn_of_length(bundle, served):
    """Warns if the calibration contexts were shorter than the served ones, which costs quality at long contexts."""
    seen = bundle.longest_distance + 1
    if bundle.longest_distance and seen < served:
        warnings.warn(f"{bundle.path}: the calibration saw contexts of up to {seen} tokens, and --max-model-len is {served}; quality beyond "
                      f"{seen} tokens was not fitted for: collect with longer --seq-len, or serve a smaller --max-model-len", stacklevel=3)


class Serving:
    """The bundle of one worker. rank, ranks: tensor parallelism."""

    def __init__(self, config, rank=0, ranks=1):
        for sentence in refusals(config):
            raise InputError(sentence)
        model, path = config.model_config, bundle_path(config)
        with plain_torch():
            bundle = load_bundle(path)
            # With prefix caching, another request may own a request's first blocks, so windows are by block. Otherwise
            # each slot has its own windows.
            self._config = config.cache_config
            self.by_block = bool(config.cache_config.enable_prefix_caching)
            if self.by_block and bundle.sink % PAGE_TOKENS:
                raise InputError(f"prefix caching is on, which needs a sink of whole blocks of {PAGE_TOKENS} tokens, and the bundle has "
                                 f"{bundle.sink}; fit with --windows 64,256, or pass --no-enable-prefix-caching")
            text = model.hf_text_config
            if reason := model_refusal(text):
                raise InputError(f"the model cannot be served with the 2-bit cache: {reason}")
            kv_heads = model.get_total_num_kv_heads()
            check_geometry(bundle, text.num_hidden_layers, kv_heads, model.get_head_size(),
                           checkpoint_fingerprint(_checkpoint(config)) if bundle.fingerprint else None)
            self.bundle = bundle.slice_heads(*head_range(kv_heads, rank, ranks)) if ranks > 1 else bundle
            self.layers = {layer.layer: layer for layer in self.bundle.layers}
            _warn_of_length(bundle, model.max_model_len)
            rotated = any(layer.key.rotated_mean for layer in bundle.layers)  # vLLM gives a backend no rotary embedding
            self.phases = phases_of(text, model.get_head_size()) if rotated else None
            self.cells = {index: self._cell(layer) for index, layer in self.layers.items()}
        self.nominal_cell = nominal_cell(self.cells.values())
        self.page_tokens, self.pages_of_block = PAGE_TOKENS, None  # the latter if layers of other kinds share the blocks
        self._in_bf16 = {}  # {layer index: reason}
        self.slots, self.most_tokens = config.scheduler_config.max_num_seqs, model.max_model_len
        self._caches = {}

    def _cell(self, layer):
        """Bytes per token and head in a page: vLLM's block is [Hkv, 64, cell], this package's is [Hkv, page bytes]."""
        codes = [side_codec(layer, key, self.bundle.encoder, self.bundle.group).code for key in (True, False)]
        return PageLayout(*codes).bytes // PAGE_TOKENS

    @property
    def one_size(self):
        """Whether all layers have pages of the same size."""
        return len(set(self.cells.values())) == 1

    def keep_in_bf16(self, index, reason):
        """Notes that vLLM serves a layer in BF16; returns the reason."""
        self._in_bf16[index] = reason
        return reason

    def bf16_text(self):
        """"layers 0 to 4, 6 (it has a sliding window); layer 5 (...)", or empty."""
        by_reason = {}
        for index, reason in sorted(self._in_bf16.items()):
            by_reason.setdefault(reason, []).append(index)
        return "; ".join(f"{_numbers(indices)} ({reason})" for reason, indices in by_reason.items())

    def nominal_page(self, kv_heads):
        """Bytes of 64 tokens in a block that layers of other kinds share."""
        return kv_heads * PAGE_TOKENS * self.nominal_cell

    def share_blocks(self, pages):
        """Blocks hold this many pages of a layer, and layers of other kinds use them, too."""
        if self.pages_of_block is None:
            log = logging.getLogger("vllm.oscar_kv")
            log.info("2-bit cache in %s; BF16 in %s", _numbers(sorted(set(self.layers) - set(self._in_bf16))), self.bf16_text() or "no other")
        self.pages_of_block = pages

    def places(self, index):
        """vllm_pages.Places of a layer."""
        layer, pages = self.layers[index], self.pages_of_block or 1
        page = layer.kv_heads * PAGE_TOKENS * self.cells[index]
        return Places(pages, page if self.pages_of_block is None else pages * self.nominal_page(layer.kv_heads), page)

    def table(self, device):
        """Converts vLLM's batches to rows."""
        sink_pages = -(-self.bundle.sink // PAGE_TOKENS)
        if self.by_block:
            blocks = self._config.num_gpu_blocks and self._config.num_gpu_blocks * (self.pages_of_block or 1)
            return OverlayTable(self.slots, sink_pages, blocks_of_window(self.bundle.recent), device, blocks=blocks)
        return SlotTable(self.slots, sink_pages + ring_pages(self.bundle.recent, 1), device)

    def cell(self, index=None):
        """Bytes of a token and head. Without a layer, the room in blocks that all layers share."""
        if index is None:
            return self.nominal_cell
        if index not in self.cells:
            raise InputError(f"{self.bundle.path}: the bundle lacks layer {index} of the model; fit all layers")
        return self.cells[index]

    def blocks(self, layers):
        """Blocks in vLLM's memory, as seen by these layers; 0: not yet known."""
        return max((kv.engine_pages for i, kv in self._caches.items() if i in layers), default=0)

    def flush_of(self, layers, memory):
        """The StepFlush of layers that share block tables, None if kernels do not support them. memory: {layer
        index: vLLM's memory}."""
        if any(i not in self._caches or self._caches[i].code.without_kernels for i in layers):
            return None
        caches = {i: self._caches[i] for i in layers}
        return StepFlush(caches, {i: caches[i].pool(memory[i]) for i in layers})

    def fill(self, layers, blocks, entries):
        """Fills the overlays of these layers with the codes of blocks."""
        for index in layers:
            self._caches[index].fill(blocks, entries)

    def cache(self, index, group, device):
        """The SlotKV or OverlayKV of a layer, made at the first call, during vLLM's memory profile."""
        if index not in self._caches:
            self.cell(index)
            layer = self.layers[index]
            most = self.most_tokens + PAGE_TOKENS * (self.pages_of_block or 0)  # block tables have whole blocks
            with plain_torch():
                code = LayerCode(self.bundle, layer, self.phases, device)
                kv = (OverlayKV if self.by_block else SlotKV)(code, self.slots, most, group)
            kv.places_of = functools.partial(self.places, index)
            self._caches[index] = kv
        return self._caches[index]
