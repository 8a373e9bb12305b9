"""attach(): makes a transformers model generate with the cache of a bundle. Uses only documented hooks: a registered
attention function and mask, a custom Cache, and the instance's own method for preparing a cache for generate()."""

import contextlib
import dataclasses
import numbers
import pathlib
import sys
import types
import warnings
from collections.abc import Mapping
from typing import Any

import torch
from torch import nn
from transformers import AttentionInterface, AttentionMaskInterface, PreTrainedConfig, PreTrainedModel

from ..cache.layer_code import LayerCode
from ..cache.shared import Shared
from ..cache.transform import Phases
from ..files.checkpoint import checkpoint_of, snapshots
from ..files.errors import InputError, quoted
from ..files.fingerprint import checkpoint_fingerprint
from ..files.foreign_files import FileName, is_folder
from ..files.rope_settings import check_rope
from ..format.bundle import Bundle, check_geometry, load_bundle
from ..format.manifest import Layer, Side, left_out_layers
from . import cache_use
from .adapters import check_adapters, warn_of_adapters
from .attached import Attached
from .attention import attention, padding_mask
from .cache import CACHE_NAME, OscarCache
from .graphs import Recorder, recorder_of, wrapped
from .offload import held, is_offloaded
from .unwrap import unwrapped
from .weights import COMPUTED_IN, check_weights, computed_in, device_of_keys, key_projection, projection_of

NAME, ATTRIBUTE, ASSISTED = "oscar", "_oscar_attached", "assisted_generation"
MOST_TOKENS = 2**31 - 1  # positions in tables are int32
GEMMA4 = ("gemma4_text", "gemma4_unified_text")
AttentionInterface.register(NAME, attention)
AttentionMaskInterface.register(NAME, padding_mask)


def _attention_modules(model: Any) -> dict[int, nn.Module]:
    """The attention module of each decoder layer, by layer index."""
    found = {}
    for module in model.modules():
        index = getattr(module, "layer_idx", None)
        if isinstance(index, int) and key_projection(module)[1] is not None:
            found[index] = module
    return found


def _phases(model: Any) -> Phases:
    """Frequencies and attention factor of the decoder's rotary embedding."""
    rotary = next((m for m in model.modules() if hasattr(m, "inv_freq") and hasattr(m, "attention_scaling")), None)
    if rotary is None:
        raise InputError(
            "the bundle needs the rotary embedding of the model (keys centered before RoPE), which has "
            "none that is known; fit with --center mean"
        )
    return Phases(held(rotary, "inv_freq"), rotary.attention_scaling)


def _exact_layer(bundle: Bundle, index: int) -> Layer:
    """A substitute for a layer that the bundle leaves out because its queries see at most the recent window. It uses
    the model's own basis. Its pages have another layer's code, and no query reads them."""
    first = bundle.layers[0]

    def exact(side: Side) -> Side:
        sigma = None if side.sigma is None else torch.ones_like(side.sigma)
        return dataclasses.replace(
            side,
            heads=1,
            orthogonal=True,
            centered=False,
            rotated_mean=False,
            clip=[0.0],
            inverse=None,
            forward=torch.eye(first.head_dim).unsqueeze(0),
            mean=None,
            sigma=sigma,
            eigenvalues=None,
        )

    return dataclasses.replace(first, layer=index, key=exact(first.key), value=exact(first.value))


def geometry(model: Any) -> tuple[int, int, int]:
    """(layers, KV heads, head size) of a model's decoder. If layers differ (Gemma 4), the sizes of the global
    layers."""
    config = model.config.get_text_config(decoder=True)
    heads = config.num_attention_heads
    if _windows_apart(config):
        full = config.per_layer_config["full_attention"]
        return config.num_hidden_layers, full.num_key_value_heads, full.head_dim
    return (
        config.num_hidden_layers,
        getattr(config, "num_key_value_heads", None) or heads,
        getattr(config, "head_dim", None) or config.hidden_size // heads,
    )


def _group(model: Any) -> int:
    """Query heads per KV head."""
    return model.config.get_text_config(decoder=True).num_attention_heads // geometry(model)[1]


def _asks_the_interface(modules: Mapping[int, nn.Module]) -> bool:
    """Whether all attention modules call the function from ALL_ATTENTION_FUNCTIONS, even if their model does not
    declare it (Qwen3-Next)."""
    return bool(modules) and all(
        hasattr(sys.modules[type(m).__module__], "ALL_ATTENTION_FUNCTIONS") for m in modules.values()
    )


def _windows_apart(config: PreTrainedConfig) -> set[int]:
    """Which layers of a decoder have a window, and heads that differ in size or number from the global layers (Gemma
    4)."""
    kinds = getattr(config, "layer_types", None) or ()
    if config.model_type not in GEMMA4 or not {"sliding_attention", "full_attention"} <= set(kinds):
        return set()
    sizes = {(c.num_key_value_heads, c.head_dim) for c in (config.per_layer_config[kind] for kind in set(kinds))}
    return {i for i, kind in enumerate(kinds) if kind == "sliding_attention"} if len(sizes) > 1 else set()


def _sources(config: PreTrainedConfig) -> dict[int, int]:
    """For each layer that reads the cache of another one (Gemma 4 E2B and E4B), that layer: the last one of its kind
    that has a cache."""
    holding = config.num_hidden_layers - (getattr(config, "num_kv_shared_layers", None) or 0)
    kinds = getattr(config, "layer_types", None) or ()
    return {i: max(j for j in range(holding) if kinds[j] == kinds[i]) for i in range(holding, config.num_hidden_layers)}


def kept_layers(config: PreTrainedConfig) -> set[int]:
    """The layers that have no cache here: they stay with transformers' own, or read another layer's."""
    linear = {i for i, kind in enumerate(getattr(config, "layer_types", None) or ()) if kind == "linear_attention"}
    return linear | _windows_apart(config) | _sources(config).keys()


def _check_model(model: Any, bundle: Bundle, modules: Mapping[int, nn.Module]) -> None:
    config = model.config.get_text_config(decoder=True)
    if getattr(config, "num_kv_shared_layers", 0) and config.model_type not in GEMMA4:
        raise InputError(
            f"{type(model).__name__} has layers that read the cache of another layer, which oscar-kv "
            "computes for Gemma 4 only"
        )
    if getattr(config, "kv_lora_rank", None):
        raise InputError(f"{type(model).__name__} has latent attention (MLA), which oscar_kv.attach does not serve")
    kept = kept_layers(config)
    for index, reason in left_out_layers(bundle.model).items():
        if index in kept:
            continue
        if index not in modules:
            raise InputError(
                f"the bundle leaves out layer {index} ({reason}); oscar-kv serves models whose layers "
                "all hold a KV cache or linear attention, so export the bundle for an engine instead"
            )
        window = getattr(modules[index], "sliding_window", getattr(config, "sliding_window", None)) or 0  # 0: all
        if not 0 < window <= bundle.recent:
            raise InputError(
                f"the bundle leaves out layer {index} ({reason}), whose queries see {window or 'all'} "
                f"tokens: more than its recent window of {bundle.recent} holds in BF16; fit the bundle "
                "again"
            )
    layers, kv_heads, head_dim = geometry(model)
    if not (getattr(model, "_supports_attention_backend", False) or _asks_the_interface(modules)):
        raise InputError(
            f"{type(model).__name__} does not use the attention interface of transformers; oscar-kv cannot serve it"
        )
    if model.training and getattr(config, "attention_dropout", 0):
        raise InputError(f"the model trains with attention dropout {config.attention_dropout}; call model.eval()")
    check_geometry(bundle, layers, kv_heads, head_dim)
    missing = next((i for i in range(layers) if i not in modules and i not in kept), None)
    if missing is not None:
        raise InputError(
            f"layer {missing} of {type(model).__name__} has no attention module with k_proj or qkv_proj; "
            "oscar-kv cannot serve it"
        )
    for index, module in modules.items():
        dtype = computed_in(projection_of(module), model)
        if dtype not in COMPUTED_IN:
            raise InputError(
                f"layer {index} computes in {str(dtype).removeprefix('torch.')}, expected bfloat16 or "
                "float32; load the model with dtype=torch.bfloat16"
            )


def _check_generation(
    model: Any, attached: Attached, config: PreTrainedConfig, mode: Any, tokens: int, cache: Any
) -> None:
    check_adapters(_attention_modules(model))
    if config.use_cache is False:
        raise InputError(
            "use_cache is false (in this call, in generation_config.json or in config.json), so that "
            "generate() would run without the attached bundle; pass use_cache=True, or "
            f"{cache_use.AROUND}"
        )
    if cache is not None and not isinstance(cache, OscarCache):
        raise InputError(
            f"{CACHE_NAME} is a {type(cache).__name__}, so that generate() would run without the "
            f"attached bundle; pass oscar_kv.new_cache(model), or {cache_use.AROUND}"
        )
    mode = str(getattr(mode, "value", mode))
    if mode not in ("greedy_search", "sample", ASSISTED) or (config.num_beams or 1) > 1:
        raise InputError(
            f"generation mode '{mode}' is not supported with a 2-bit cache, which cannot copy sequences; "
            "use greedy search, sampling or assisted decoding, or detach() first"
        )
    if getattr(config, "assistant_early_exit", None) is not None:
        raise InputError(
            "assistant_early_exit runs the first layers of the model alone, which the 2-bit cache does "
            "not serve; pass an assistant_model or prompt_lookup_num_tokens"
        )
    # A cache implementation named by the checkpoint is only its authors' default without a bundle.
    if config.cache_implementation not in (None, getattr(model.generation_config, "cache_implementation", None)):
        raise InputError(
            f"cache_implementation '{config.cache_implementation}' excludes the attached bundle; leave "
            "it out, or detach() first"
        )
    if attached.max_tokens is not None and tokens > attached.max_tokens:
        raise InputError(
            f"{tokens} tokens are asked for, the page table was attached for {attached.max_tokens}; "
            "attach with a larger max_tokens"
        )
    if isinstance(cache, OscarCache) and cache.attached is not attached:
        raise InputError("the cache was made for another model or bundle; make one with oscar_kv.new_cache(model)")


def _prepare(
    self: PreTrainedModel,
    generation_config: Any,
    model_kwargs: dict[str, Any],
    generation_mode: Any,
    batch_size: int,
    max_cache_length: int,
    *args: Any,
    **kwargs: Any,
) -> None:
    """generate() requests a cache from its model: returns this package's cache, new or given by the caller."""
    attached, cache = getattr(self, ATTRIBUTE), model_kwargs.get(CACHE_NAME)
    _check_generation(self, attached, generation_config, generation_mode, max_cache_length, cache)
    if cache is None:
        cache = model_kwargs[CACHE_NAME] = OscarCache(attached)
    else:
        cache._is_user_defined = True  # transformers' own mark
    cache.assisted = str(getattr(generation_mode, "value", generation_mode)) == ASSISTED
    if cache.assisted or getattr(generation_config, "is_assistant", False):
        cache.activate_past_recording()
    attached.call = cache, cache_use.columns(cache)


def _warn_of_reference(attached: Attached, group: int) -> None:
    """Warns before generation starts if a GPU does not use the kernels for attention."""
    for code in attached.codes:
        if code is None or code.device.type != "cuda":
            continue
        if (reason := attached.unsupported(code, group)) is not None:
            warnings.warn(
                f"oscar-kv: layer {code.layer.layer} and any like it run on the torch reference, which is slow because "
                f"it dequantizes the whole context at every token: {reason}",
                stacklevel=4,
            )
            return


def _recorder(model: Any, attached: Attached, graphs: bool | None) -> Recorder | None:
    """The recorder for steps of generate(), or None. InputError if they must be recorded and cannot be."""
    if graphs is False:
        return None
    reason = Recorder.unsupported(attached, _group(model))
    if reason is None and any(
        getattr(m, "attn_temperature_tuning", False) and not m.use_rope for m in _attention_modules(model).values()
    ):
        reason = "layers without RoPE scale their queries by a length that Python counts"
    places = {str(p) for p in (getattr(model, "hf_device_map", None) or {}).values()}
    if reason is None and len(places) > 1:
        reason = "the model lies on several devices"
    if reason is None and is_offloaded(model):
        reason = "accelerate loads weights at every step"
    if reason is not None and graphs:
        raise InputError(f"steps cannot be recorded as CUDA graphs: {reason}; leave graphs=True out")
    code = attached.codes[0]
    return None if reason is not None or code is None else recorder_of(code.device)


def _directory(model: Any, checkpoint: FileName | None, fingerprints: tuple[str, ...]) -> pathlib.Path:
    """The folder that the model was loaded from. transformers 5 does not say which revision of a repository that was,
    so it is the one with such a fingerprint, if there is one; check_weights() then compares its numbers."""
    if checkpoint is not None:
        return checkpoint_of(checkpoint)
    name, commit = str(getattr(model, "name_or_path", "") or ""), getattr(model.config, "_commit_hash", None)
    for folder in snapshots(name) if commit is None and not is_folder(name) else ():
        with contextlib.suppress(InputError):  # a part of a repository
            if checkpoint_fingerprint(folder) in fingerprints:
                return folder
    return checkpoint_of(name, commit)


def prepare(
    model: Any,
    bundle: Bundle | FileName,
    *,
    checkpoint: FileName | None = None,
    max_tokens: int | None = None,
    graphs: bool | None = None,
) -> Attached:
    """Checks that a bundle fits the model, without changing the model. Returns the argument of activate(); arguments
    as in attach()."""
    model = unwrapped(model)
    if max_tokens is not None and (
        isinstance(max_tokens, bool)
        or not isinstance(max_tokens, numbers.Integral)
        or not 1 <= max_tokens <= MOST_TOKENS
    ):
        raise InputError(f"max_tokens is {quoted(repr(max_tokens))}, expected a whole number from 1 to {MOST_TOKENS:,}")
    bundle = bundle if isinstance(bundle, Bundle) else load_bundle(bundle)
    modules = _attention_modules(model)
    check_adapters(modules)
    _check_model(model, bundle, modules)
    if bundle.fingerprint:
        directory, first = _directory(model, checkpoint, (bundle.fingerprint, *bundle.added)), bundle.layers[0]
        check_geometry(bundle, geometry(model)[0], first.kv_heads, first.head_dim, checkpoint_fingerprint(directory))
        check_weights(model, modules, directory)
        plain = type(model.config).from_pretrained(directory).get_text_config(decoder=True)
        check_rope(model.config.get_text_config(decoder=True), plain, "load the model with its own configuration")
    phases = _phases(model) if any(layer.key.rotated_mean for layer in bundle.layers) else None
    kept = kept_layers(model.config.get_text_config(decoder=True))
    exact = [_exact_layer(bundle, index) for index in left_out_layers(bundle.model) if index not in kept]
    sources = _sources(model.config.get_text_config(decoder=True))
    codes: list[LayerCode | None] = [None] * (geometry(model)[0] - len(sources))
    shared = Shared()
    for layer in [*bundle.layers, *exact]:
        codes[layer.layer] = LayerCode(
            bundle, layer, phases, device_of_keys(projection_of(modules[layer.layer])), shared
        )
    for reader, source in sources.items():
        code, place = codes[source], device_of_keys(projection_of(modules[reader]))
        if code is not None and place != code.device:
            raise InputError(
                f"layer {reader} is on {place} and reads the cache of layer {source} on {code.device}; "
                "load the model on one device"
            )
    attached = Attached(bundle, codes, modules, max_tokens, model.config, sources)
    attached.graphs = _recorder(model, attached, graphs)
    _warn_of_reference(attached, _group(model))
    warn_of_adapters(model)
    return attached


def _replace(model: Any, attached: Attached, name: str, method: Any) -> None:
    attached.own[name] = model.__dict__.get(name)  # accelerate puts a forward there, an export its generate
    setattr(model, name, method)


def activate(model: Any, attached: Attached) -> Any:
    """Makes the model generate with the result of prepare(), until detach(). Returns its argument, even if that is a
    wrapper."""
    given, model = model, unwrapped(model)
    if getattr(model, ATTRIBUTE, None) is not None:
        raise InputError("the model has a bundle attached already; detach() it first")
    attached.implementation = model.config._attn_implementation
    model.set_attn_implementation(NAME)
    if model.config._attn_implementation != NAME:
        raise InputError(
            f"{type(model).__name__} does not take an attention function of its own; oscar-kv cannot serve it"
        )
    setattr(model, ATTRIBUTE, attached)
    _replace(model, attached, "_prepare_cache_for_generation", types.MethodType(_prepare, model))
    if hasattr(model, "generate"):
        _replace(model, attached, "generate", cache_use.checked(attached, model.generate))
        for name in ("generate_batch", "init_continuous_batching", "continuous_batching_context_manager"):
            if hasattr(model, name):
                _replace(model, attached, name, cache_use.refuse_continuous_batching)
    if attached.graphs is not None:
        _replace(model, attached, "forward", wrapped(model, attached, model.forward))
    cache_use.serve(attached)
    attached.hook = model.register_forward_pre_hook(cache_use.watch_forward(attached, CACHE_NAME), with_kwargs=True)
    return given


def attach(
    model: Any,
    bundle: Bundle | FileName,
    *,
    checkpoint: FileName | None = None,
    max_tokens: int | None = None,
    graphs: bool | None = None,
) -> Any:
    """From now on, generate(), pipelines and chat of `model` use the 2-bit cache of `bundle`. `model` may be wrapped
    by peft, torch.compile, DataParallel or accelerate. InputError if a generate() would bypass the cache.

    bundle: a directory of oscar-fit, or a Bundle.
    checkpoint: the directory that the model was loaded from, if its name does not lead to it; its fingerprint must
    equal the bundle's.
    max_tokens: refuse longer sequences before they start.
    graphs: record steps of one token as a CUDA graph and replay them. None: if possible; True: InputError if not
    possible; False: never.
    InputError if the bundle does not fit. Returns the model."""
    return activate(model, prepare(model, bundle, checkpoint=checkpoint, max_tokens=max_tokens, graphs=graphs))


def detach(model: Any) -> Any:
    """Restores the model's state before attach(). Returns its argument."""
    given, model = model, unwrapped(model)
    attached = _attached(model)
    model.set_attn_implementation(attached.implementation)
    attached.hook.remove()
    cache_use.release(attached)
    for name, method in attached.own.items():
        if method is not None:
            setattr(model, name, method)
        else:
            model.__dict__.pop(name, None)
    attached.own = {}
    delattr(model, ATTRIBUTE)
    return given


def new_cache(model: Any) -> OscarCache:
    """An empty cache for several turns: generate(..., past_key_values=cache) or model(..., past_key_values=cache)."""
    return OscarCache(_attached(unwrapped(model)))


def _attached(model: Any) -> Attached:
    attached = getattr(model, ATTRIBUTE, None)
    if attached is None:
        raise InputError("no bundle is attached to the model; call oscar_kv.attach(model, bundle)")
    return attached
