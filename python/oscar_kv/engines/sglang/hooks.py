"""What the adapter changes in SGLang because it has no extension point there. Written for 0.5.23, and every wrap goes
through SGLang's own HookRegistry. SGLang only logs a wrap that failed, so the backend asks missing() before it
serves."""

import itertools
from collections.abc import Callable
from typing import Any

from ...cache.prefix_table import computed_tokens
from ...files.errors import InputError
from ...format.bundle import adapter_refusal
from ..names import SGLANG_BACKEND

OFFERED = "_oscar_offered"  # of a request: (sink, tokens that it computes itself)
_copies = itertools.count()
SERVING = "oscar_kv_serving"  # of SGLang's model: its KVCacheConfigurator has slots and takes no attribute


def _ours() -> None:
    """Whether the runner's attention is ours. InputError if only half of it is, or if a bundle is named for nothing."""
    from sglang.srt.runtime_context import attention_backends

    chosen = set(attention_backends())
    if chosen != {SGLANG_BACKEND}:
        raise InputError(
            "OSCAR_KV_BUNDLE names a bundle, but the attention backend is "
            f"{' and '.join(sorted(map(str, chosen)))}; pass --attention-backend {SGLANG_BACKEND} and no "
            "other for prefill or decode, or unset OSCAR_KV_BUNDLE"
        )


def _configure(original: Callable[..., Any], self: Any, *args: Any, **kwargs: Any) -> Any:
    """Windows and workspaces are allocated before SGLang measures the free memory, so its own plan leaves room for
    them."""
    _ours()
    from .serving import Serving

    setattr(self.model, SERVING, Serving(self).allocate(self.device))
    return original(self, *args, **kwargs)


def _cell_size(original: Callable[..., Any], self: Any, kvc: Any, num_layers: int) -> int:
    """The default multiplies heads, head size and the bytes of one dtype; layers of a bundle differ."""
    return getattr(kvc.model, SERVING).token_bytes()


def _build_pool(original: Callable[..., Any], self: Any, *, max_total_num_tokens: int, **ignored: Any) -> Any:
    """The default allocates keys and values of one dtype and shape for all layers."""
    from .pool import OscarPool

    return OscarPool(
        getattr(self.model, SERVING), max_total_num_tokens, self.pool_page_size, self.layer_info, self.device
    )


def _build_hybrid_pool(original: Callable[..., Any], self: Any, *, mha_pool_class: Any, **sizes: Any) -> Any:
    """The default has a pool of each kind of layers; that of windows stays SGLang's."""

    def pool_class(*, allocation_label: str, **given: Any) -> Any:
        if allocation_label == "SWA":
            return mha_pool_class(allocation_label=allocation_label, **given)
        return _build_pool(original, self, max_total_num_tokens=given["size"])

    return original(self, mha_pool_class=pool_class, **sizes)


def _hybrid_sizes(result: None, self: Any, kvc: Any) -> None:
    """Windowed layers take what SGLang counts, the others what a bundle says."""
    self._full_per_token = -(-getattr(kvc.model, SERVING).token_bytes() // self._full_layers_num)
    self._recompute_cell_size()


def _adjust(original: Callable[..., Any], args: Any) -> Any:
    """SGLang lists the backends of some models, and ours has its Triton backend for layers in BF16. It also leaves out
    images, unless asked for, in models whose image tokens see one another: not yet in all."""
    from sglang.srt.arg_groups import model_hook

    from .serving import SEE_IMAGES

    chosen, known = model_hook.resolved_view(args), model_hook.attention_backends_of
    if chosen.enable_multimodal is None and model_hook.model_config_of(args).hf_text_config.model_type in SEE_IMAGES:
        model_hook.declare_resolution(args, "oscar-kv", enable_multimodal=False)
    model_hook.attention_backends_of = lambda view: tuple(
        "triton" if name == SGLANG_BACKEND else name for name in known(view)
    )
    try:
        return original(args)
    finally:
        model_hook.attention_backends_of = known


def _longest_prefix(result: int, self: Any, input_len: int) -> int:
    """Tokens that a request may begin with: it computes its recent window itself, because only its own is in BF16."""
    offered = getattr(self, OFFERED, None)
    if offered is None:
        return result
    sink, own = offered
    return min(result, input_len - own) if input_len - own >= sink else 0


def _next_round(original: Callable[..., Any], self: Any, tree_cache: Any = None, *args: Any, **kwargs: Any) -> Any:
    """A prefix is taken from the radix tree only with its sink in BF16, and without its end."""
    allocator = getattr(tree_cache, "token_to_kv_pool_allocator", None)
    pool = None if allocator is None else allocator.get_kvcache()
    serving = getattr(getattr(pool, "full_kv_pool", pool), "serving", None)
    if serving is None or not serving.shares:
        return original(self, tree_cache, *args, **kwargs)
    sink = serving.bundle.sink
    setattr(self, OFFERED, (sink, computed_tokens(serving.bundle.recent)))
    made = original(self, tree_cache, *args, **kwargs)
    found = self.prefix_len
    if found > 0 and (found < sink or not serving.holds_sink(tree_cache.prefix_device_indices(self))):
        # The tree keeps the old copy, so that the new one, under the same key, would not be found.
        self.extra_key = f"{self.extra_key or ''} oscar-kv {next(_copies)}"
        if self.kv.mamba_cow_src_index is not None:  # the state of linear attention after these tokens
            self.kv.mamba_cow_src_index, self.kv.mamba_needs_clear = None, True
        made = original(self, tree_cache, *args, **kwargs)
    return made


def _verify(self: Any, *args: Any, **kwargs: Any) -> None:
    """Beams of a request get slots of their own, whose windows were never written. Only this request is refused."""
    if (self.beam_width or 1) > 1:
        raise ValueError("beam_width is not served with the 2-bit cache of oscar-kv; leave it out")


def _adapter(self: Any, *args: Any, **kwargs: Any) -> None:
    """SGLang answers a load with what is raised here, and goes on."""
    if reason := adapter_refusal(
        self.config.path or self.uid, (name for layer in self.layers for name in layer.weights)
    ):
        raise InputError(reason)


def _table() -> list[tuple[str, Callable[..., Any], Any]]:
    from sglang.srt.plugins.hook_registry import HookType

    pools = "sglang.srt.mem_cache.kv_cache_configurator.KVCacheConfigurator"
    sizes = "sglang.srt.model_executor.pool_configurator"
    return [
        ("sglang.srt.arg_groups.model_hook.handle_model_specific_adjustments", _adjust, HookType.AROUND),
        (f"{pools}.configure", _configure, HookType.AROUND),
        (f"{pools}._build_mha_kv_pool", _build_pool, HookType.AROUND),
        (f"{pools}._build_hybrid_linear_kv_pool", _build_pool, HookType.AROUND),
        (f"{pools}._build_hybrid_swa_kv_pool", _build_hybrid_pool, HookType.AROUND),
        (f"{sizes}.DefaultPoolConfigurator._compute_cell_size", _cell_size, HookType.AROUND),
        (f"{sizes}.HybridSWAPoolConfigurator.__init__", _hybrid_sizes, HookType.AFTER),
        ("sglang.srt.managers.schedule_batch.Req._compute_max_prefix_len", _longest_prefix, HookType.AFTER),
        ("sglang.srt.managers.schedule_batch.Req.init_next_round_input", _next_round, HookType.AROUND),
        ("sglang.srt.lora.lora.LoRAAdapter._normalize_weights", _adapter, HookType.BEFORE),
        ("sglang.srt.sampling.sampling_params.SamplingParams.verify", _verify, HookType.BEFORE),
    ]


def register() -> None:
    """Any number of times."""
    from sglang.srt.plugins.hook_registry import HookRegistry

    for target, hook, kind in _table():
        if all(known is not hook for _, known, _ in HookRegistry._hooks[target]):
            HookRegistry.register(target, hook, kind)


def missing() -> list[str]:
    """Targets that SGLang did not wrap."""
    from sglang.srt.plugins.hook_registry import HookRegistry

    return [target for target, _, _ in _table() if target not in HookRegistry._patched]
