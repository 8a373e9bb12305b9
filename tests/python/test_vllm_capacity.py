"""Tokens that fit into vLLM's memory for models whose attention layers share blocks with states or with windowed layers, planned by vLLM's
own classes on the CPU. The table of docs/vllm.md is written from here:

    OSCAR_WRITE_TABLES=1 python3 -m pytest tests/python/test_vllm_capacity.py"""
import contextlib
import dataclasses
import math
import os
import types

import pytest

pytest.importorskip("vllm", reason="vllm is not installed (scripts/requirements-vllm.txt)")
from test_vllm import config, serve, vllm_planning  # noqa: F401, I001  (skips this file, too, with another release)

import torch  # noqa: E402
import transformers  # noqa: E402
from conftest import SOURCE_DIR  # noqa: E402
from oscar_kv.engines.serving import bits_and_bytes  # noqa: E402
from oscar_kv.engines.vllm.backend import OscarImpl, serving_of  # noqa: E402
from random_bundles import random_bundle  # noqa: E402
from test_vllm_layers import PlainBackend, build  # noqa: E402, F401
from vllm.compilation.backends import set_model_tag  # noqa: E402
from vllm.model_executor.layers.mamba.mamba_utils import MambaStateDtypeCalculator, MambaStateShapeCalculator  # noqa: E402
from vllm.v1.kv_cache_interface import FullAttentionSpec, MambaSpec, SlidingWindowSpec  # noqa: E402

GIB, CONTEXTS, CHUNK, SLOTS = 40, (2048, 8192, 32768, 131072), 2048, 64
CACHES = {"auto": "BF16", "fp8": "FP8", "oscar": "4-2-1-1"}
PAGE, HEADING = SOURCE_DIR / "docs" / "vllm.md", "| model | cache | 2K | 8K | 32K | 128K |\n|---|---|---:|---:|---:|---:|\n"


@dataclasses.dataclass(frozen=True)
class Shape:
    """full, others: numbers of layers; the latter have a window, or states."""
    heads: int
    kv_heads: int
    d: int
    full: int
    others: int
    window: int = 0
    states: tuple = ()
    dtypes: tuple = ()


def gated_delta(config, states):
    """states: vLLM's type of them."""
    shapes = MambaStateShapeCalculator.gated_delta_net_state_shape(
        1, config.linear_num_key_heads, config.linear_num_value_heads, config.linear_key_head_dim, config.linear_value_head_dim, config.linear_conv_kernel_dim)
    kinds = config.layer_types
    return Shape(config.num_attention_heads, config.num_key_value_heads, config.head_dim, kinds.count("full_attention"), kinds.count("linear_attention"),
                 states=shapes, dtypes=MambaStateDtypeCalculator.gated_delta_net_state_dtype(torch.bfloat16, "auto", states))


GRANITE = MambaStateShapeCalculator.mamba2_state_shape(intermediate_size=8192, tp_world_size=1, n_groups=1, num_heads=128, head_dim=64, state_size=128, conv_kernel=4)
SHAPES = {
    "Qwen3.5-9B": gated_delta(transformers.Qwen3_5TextConfig(), "float32"),  # as its configuration asks for
    "Qwen3-Next-80B-A3B": gated_delta(transformers.Qwen3NextConfig(), "auto"),
    "Granite 4.0 H Small": Shape(32, 8, 128, 4, 36, states=GRANITE, dtypes=MambaStateDtypeCalculator.mamba2_state_dtype(torch.bfloat16, "auto", "auto")),
    "gpt-oss-120b": Shape(64, 8, 64, 18, 18, window=128),
    "Gemma 3 27B": Shape(32, 16, 128, 10, 52, window=1024),
}


class Planner:
    def __init__(self, shape, build, monkeypatch):
        self.shape, self.build, self.proposed = shape, build, 0  # tokens that an MTP layer of the model's geometry proposes
        every = (shape.full + shape.others) // shape.full
        self.full = [every * (i + 1) - 1 for i in range(shape.full)]
        model = types.SimpleNamespace(get_mamba_state_shape_from_config=lambda config: shape.states,
                                      get_mamba_state_dtype_from_config=lambda config: shape.dtypes)
        from vllm.model_executor.models import ModelRegistry
        monkeypatch.setattr(type(ModelRegistry), "resolve_model_cls", lambda *given, **named: (model, None))
        monkeypatch.setattr("vllm.config.vllm.set_current_vllm_config", contextlib.nullcontext)

    def made(self, cache, context, caching, widths):
        """The configuration, and vLLM's layers with the 2-bit cache and beside it."""
        shape, count = self.shape, self.shape.full + self.shape.others
        changed = {"model_config__is_hybrid": bool(shape.states), "cache_config__enable_prefix_caching": caching}
        if cache == "oscar":
            pairs = [one if isinstance(one[0], tuple) else (one, one) for one in widths]
            layers = [random_bundle(1, shape.kv_heads, shape.d, *pair, heads=1).layers[0] for pair in pairs]
            held = [dataclasses.replace(layers[j % len(layers)], layer=i) for j, i in enumerate(self.full)]
            others = [{"layer": i, "reason": "a window"} for i in range(count) if i not in self.full]
            bundle = dataclasses.replace(random_bundle(1, shape.kv_heads, shape.d, *pairs[0], heads=1), layers=held, model={"left_out": others})
            head = {"num_heads": shape.heads, "prefix": "mtp.layers.0.self_attn.attn", "inside": set_model_tag("eagle_head")}
            made, built = self.build(bundle, [{"num_heads": shape.heads, "per_layer_sliding_window": None if i in self.full else shape.window}
                                              if i in self.full or shape.window else None for i in range(count)] + [head] * bool(self.proposed), **changed)
        else:
            made, built = config(**changed), []
            made.cache_config.cache_dtype, made.cache_config.block_size = cache, 16  # vLLM's default
        vars(made.model_config).update(use_mla=False, architecture="", get_num_kv_heads=lambda parallel: shape.kv_heads, get_head_size=lambda: shape.d,
                                       max_model_len=context)
        vars(made.cache_config).update(kv_cache_layout="LBHNC", num_gpu_blocks_override=None)
        vars(made.cache_config).update(zip(("mamba_cache_mode", "mamba_block_size"), ("align", 16) if caching and shape.states else ("none", context)))
        made.max_in_flight_tokens, made.num_speculative_tokens = CHUNK, self.proposed
        return made, built

    def specs(self, cache, made, built):
        from vllm.platforms.interface import Platform
        from vllm.v1.worker.gpu.attn_utils import get_kv_cache_spec
        shape, names, held = self.shape, [f"model.layers.{i}" for i in range(self.shape.full + self.shape.others)], made.cache_config
        if shape.states:
            Platform._align_hybrid_block_size(made, built[0].get_attn_backend() if built else PlainBackend)
        if cache == "oscar":
            found = dict(get_kv_cache_spec(made))
        else:
            sizes = dict(block_size=held.block_size, num_kv_heads=shape.kv_heads, head_size=shape.d, dtype=torch.bfloat16 if cache == "auto" else torch.uint8)
            found = {name: FullAttentionSpec(**sizes) if i in self.full else SlidingWindowSpec(**sizes, sliding_window=shape.window)
                     for i, name in enumerate(names) if i in self.full or shape.window}
            found |= {"mtp.layers.0": FullAttentionSpec(**sizes)} if self.proposed else {}
        if shape.states:
            found |= {f"{name}.mixer": MambaSpec(block_size=held.mamba_block_size, shapes=shape.states, dtypes=shape.dtypes,
                                                 page_size_padded=held.mamba_page_size_padded, mamba_cache_mode=held.mamba_cache_mode,
                                                 num_speculative_blocks=self.proposed)
                      for i, name in enumerate(names) if i not in self.full}
        return found

    def plan(self, cache, context, caching=False, widths=((4, 2, 1, 1),)):
        made, built = self.made(cache, context, caching, widths)
        groups = vllm_planning.get_kv_cache_groups(made, self.specs(cache, made, built))
        return made, built, vllm_planning.get_kv_cache_config_from_groups(made, groups, GIB << 30)

    def tokens(self, cache, context, caching=False, widths=((4, 2, 1, 1),)):
        """That fit, in requests of this length, with the BF16 windows that the 2-bit cache has beside vLLM's memory."""
        from vllm.v1.core.kv_cache_utils import get_max_concurrency_for_kv_cache_config
        made, built, found = self.plan(cache, context, caching, widths)
        bytes_of_request = (GIB << 30) / get_max_concurrency_for_kv_cache_config(made, found)
        return int((GIB << 30) / (bytes_of_request + self.windows(made, built))) * context

    def windows(self, made, built):
        """Bytes of a request in BF16 windows."""
        ours = [one for one in built if isinstance(one.impl, OscarImpl)]
        if not ours:
            return 0
        serving_of(made).slots = SLOTS
        return 2 * ours[0].impl.cache(ours[0], torch.device("cpu")).windows.numel() / SLOTS * len(ours)


@pytest.fixture
def planner(build, monkeypatch):
    return lambda model: Planner(SHAPES[model], build, monkeypatch)


def test_the_table(planner):
    rows = []
    for model in SHAPES:
        plan, plain = planner(model), {}
        for cache, name in CACHES.items():
            tokens = [plan.tokens(cache, context) for context in CONTEXTS]
            plain = plain or dict(zip(CONTEXTS, tokens))
            cells = [f"{n:,}" + ("" if cache == "auto" else f" ({n / plain[context]:.1f})") for n, context in zip(tokens, CONTEXTS)]
            rows.append(f"| {model} | {name} | {' | '.join(cells)} |")
            if cache == "oscar" and model != "Gemma 3 27B":
                assert tokens[2] >= (3 if "Granite" not in model else 2.9) * plain[CONTEXTS[2]], (model, tokens)
    table, text = HEADING + "\n".join(rows) + "\n\n", PAGE.read_text(encoding="utf-8")
    before, rest = text.split(HEADING)
    if os.environ.get("OSCAR_WRITE_TABLES"):
        PAGE.write_text(before + table + rest.split("\n\n", 1)[1], encoding="utf-8")
    assert table in PAGE.read_text(encoding="utf-8")


def test_with_prefix_caching(planner):
    """vLLM then keeps two states of a request and not one."""
    gains = []
    for model in SHAPES:
        if SHAPES[model].states:
            plan = planner(model)
            gains.append(plan.tokens("oscar", 32768, True) / plan.tokens("auto", 32768, True))
    assert "At 32K Qwen3.5-9B then gains {:.1f} times, Qwen3-Next {:.1f}, Granite {:.1f}.".format(*gains) in " ".join(PAGE.read_text(encoding="utf-8").split())
    assert min(gains[:2]) >= 3


def test_with_an_mtp_layer(planner):
    """It keeps BF16, and each state is kept once more for each proposed token."""
    gains = []
    for model in ("Qwen3.5-9B", "Qwen3-Next-80B-A3B"):
        plan = planner(model)
        plan.proposed = 2
        gains += [plan.tokens("oscar", context) / plan.tokens("auto", context) for context in CONTEXTS[2:]]
    assert "gains are {:.1f} and {:.1f} times with Qwen3.5-9B at 32K and 128K, {:.1f} and {:.1f} with Qwen3-Next".format(*gains) in " ".join(
        PAGE.read_text(encoding="utf-8").split()), gains


def test_one_wide_layer_costs_all(planner):
    """Blocks have one size, so all layers get the bytes of the widest one."""
    plan = planner("Qwen3-Next-80B-A3B")
    even, uneven, wide = (plan.tokens("oscar", 131072, widths=widths) for widths in (((4, 2, 1, 1),), ((4, 4, 2, 2), (4, 2, 1, 1)), ((4, 4, 2, 2),)))
    assert even > uneven == wide
    assert f"{uneven:,} for {even:,} tokens" in " ".join(PAGE.read_text(encoding="utf-8").split())


def test_layers_of_nearly_one_width(planner):
    """Pages of all layers begin at multiples of their own bytes, which costs a page of a block: one of many, where a state makes blocks large."""
    plan = planner("Qwen3-Next-80B-A3B")
    wide = ((4, 4, 2, 2), (4, 4, 2, 2))
    even, uneven = (plan.tokens("oscar", 131072, widths=widths) for widths in ((wide,), (wide, ((4, 4, 2, 2), (4, 4, 2, 1)))))
    assert 0.97 * even <= uneven <= even


def test_what_stops_the_gain(planner):
    """At short contexts a block that holds a state, beside windows the layers that stay in BF16."""
    text = " ".join(PAGE.read_text(encoding="utf-8").split())
    made, _, found = planner("Qwen3-Next-80B-A3B").plan("oscar", 2048)
    sizes = {group.kv_cache_spec.block_size for group in found.kv_cache_groups if isinstance(group.kv_cache_spec, FullAttentionSpec)}
    assert f"a block of Qwen3-Next has {sizes.pop():,} tokens" in text and not sizes
    plan = planner("Qwen3-Next-80B-A3B")
    states = plan.shape.others * sum(math.prod(one) * dtype.itemsize for one, dtype in zip(plan.shape.states, plan.shape.dtypes))
    made, built, _ = plan.plan("oscar", 2048)
    bits, coded = bits_and_bytes(serving_of(made).bundle)
    windows = plan.windows(made, built)
    gains = [(states + n * coded * 16 / bits) / (states + windows + n * coded) for n in CONTEXTS[:3]]
    assert "would stop Qwen3-Next at {:.1f} times at 2K, {:.1f} at 8K, {:.1f} at 32K".format(*gains) in text, gains
    made, _, found = planner("Gemma 3 27B").plan("oscar", 32768)
    blocks = {}
    for group in found.kv_cache_groups:
        kind, spec = isinstance(group.kv_cache_spec, SlidingWindowSpec), group.kv_cache_spec
        blocks[kind] = blocks.get(kind, 0) + -(-spec.max_memory_usage_bytes(made) // spec.page_size_bytes)
    assert f"{blocks[True]} of {sum(blocks.values())} blocks" in text, blocks
