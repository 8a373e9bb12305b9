"""Bundles of real models through both engines' own Python on the CPU: all layers of a pass in the model's order, one plan for all, pages of
every size that the fit chose, layers without bits among them. Each layer's outputs are compared with its own oracle."""
import re

import pytest

pytest.importorskip("vllm", reason="vllm is not installed (scripts/requirements-vllm.txt)")
from test_vllm_layers import build, planned  # noqa: F401, I001
from test_vllm import VllmEngine, VllmPrefixEngine, serve  # noqa: F401

import prometheus_client  # noqa: E402
import torch  # noqa: E402
from block_engine import Oracle, Request, requests  # noqa: E402
from fitted_models import MODELS, fitted_bundle  # noqa: E402
from oscar_kv.cache.paged_kv import LayerCode  # noqa: E402
from oscar_kv.cache.transform import Phases  # noqa: E402
from oscar_kv.engines import faults  # noqa: E402
from oscar_kv.engines.vllm.backend import OscarMetadataBuilder  # noqa: E402
from torch.utils._python_dispatch import TorchDispatchMode  # noqa: E402
from transformers import LlamaConfig  # noqa: E402

BLOCKS, LONGEST = 27, 380


class EveryLayer:
    """All layers of the model in the memory that vLLM plans for them, with the metadata builders that vLLM makes: one for each page size."""

    # Sums in another order turn the rounding of a query's coordinate to BF16: seldom with few coordinates, in one pass of twenty with 12 heads
    # of 128, by at most 5e-4. A wrong page differs by more than .5.
    limit = 2e-3

    def __init__(self, bundle, made, built, phases, group):
        super().__init__(bundle, 0, made, built, BLOCKS, 3, phases=phases, group=group)
        _, groups, _, self.tensors = planned(made, BLOCKS)
        self.oracles = [Oracle(LayerCode(bundle, layer, phases), group) for layer in bundle.layers]
        names, self.built, self.layers_compared, self.passes = {}, built, 0, 0
        for name, spec in groups[0].kv_cache_spec.kv_cache_specs.items():
            names.setdefault(spec, []).append(name)
        self.builders = [OscarMetadataBuilder(spec, held, made, torch.device("cpu")) for spec, held in names.items()]
        self.table = self.builders[0].table  # the first pass asks it first, and later ones in any order
        self.builder_of = {name: builder for builder, held in zip(self.builders, names.values()) for name in held}

    def compute(self, slots, starts, counts, lengths, table, mapping, query, key, value):
        common, outputs = self.metadata(slots, counts, lengths, table, mapping), []
        asked = self.builders[:1] + self.random.sample(self.builders[1:], len(self.builders) - 1)
        built = {builder: builder.build(0, common) for builder in (asked if self.passes == 0 else asked[::-1])}
        self.passes += 1
        assert all(builder.table is self.table for builder in self.builders)
        for layer in self.built:
            outputs.append(torch.zeros_like(query))
            layer.impl.forward(layer, query, key, value, self.tensors[layer.layer_name], built[self.builder_of[layer.layer_name]], outputs[-1])
        chosen = self.random.randrange(1, len(outputs))  # the simulated engine compares the first layer, and one more is compared here
        at = 0
        for slot, start, count in zip(slots, starts, counts):
            request = next(r for r in self.running if r.slot == slot)
            expected = self.oracles[chosen].attention(request, start, count, request.own if count > self.most_new else 0)
            error = float((outputs[chosen][at:at + count] - expected).abs().max())
            self.right(error, self.limit, f"layer {chosen}: {count} tokens after {start} in slot {slot}")
            at, self.layers_compared = at + count, self.layers_compared + 1
        return outputs[0]


class FittedEngine(EveryLayer, VllmEngine):
    pass


class FittedPrefixEngine(EveryLayer, VllmPrefixEngine):
    pass


@pytest.fixture(params=MODELS)
def fitted(request, build):
    """fitted(**changed): the model's bundle, a configuration, vLLM's layers, and the phases of its RoPE."""
    model, bundle = MODELS[request.param], fitted_bundle(MODELS[request.param])
    text = LlamaConfig(num_hidden_layers=len(bundle.layers), head_dim=model["d"], hidden_size=model["heads"] * model["d"],
                       num_attention_heads=model["heads"],
                       rope_parameters={"rope_type": "default", "rope_theta": model["theta"]})

    def make(**changed):
        made, built = build(bundle, [dict(num_heads=model["heads"])] * len(bundle.layers), model_config__hf_text_config=text, **changed)
        phases = Phases(1 / model["theta"] ** (torch.arange(0, model["d"], 2) / model["d"]))
        return bundle, made, built, phases, model["heads"] // model["kv_heads"]

    return make


def test_requests_of_a_real_bundle(fitted, caplog):
    with caplog.at_level("INFO"):
        engine = FittedEngine(*fitted(cache_config__num_gpu_blocks=1000))
    told = [record.message for record in caplog.records if "bits a number" in record.message]
    memory = sum(tensor.numel() * tensor.element_size() for tensor in engine.tensors.values())
    assert len(told) == 1 and f"; {memory // BLOCKS // 64} bytes a token" in told[0] and " 64000 tokens fit" in told[0]  # those of the memory that vLLM plans
    assert re.search(r"layers 0 to (27|29); .* (6|7)\.\dx less than BF16; .*windows of 64 and 256 tokens", told[0])
    assert len(engine.builders) > 10  # as many page sizes
    engine.run(requests(5, LONGEST, 5))
    assert engine.kinds == {"decode", "mixed", "prefill"} and engine.layers_compared > 40


def test_prefix_caching_with_a_real_bundle(fitted):
    engine = FittedPrefixEngine(*fitted(cache_config__enable_prefix_caching=True))
    engine.run([Request(LONGEST, seed, LONGEST - 6, family=1, shared=130) for seed in range(5)])
    assert engine.hits > 1 and engine.layers_compared > 40


def test_keys_that_are_not_finite_are_told(fitted, caplog, monkeypatch):
    """The model writes a NaN into a key that leaves the window: it is logged with its layer and head, and serving goes on."""
    monkeypatch.setattr(faults, "EVERY", 8)
    engine = FittedEngine(*fitted())
    engine.built = engine.built[:3]
    new_rows, broken = engine.new_rows, []

    def rows(request, count):
        made = new_rows(request, count)
        if request.done <= 70 < request.done + count:
            made[1][70 - request.done, 1, 5] = float("nan")
            broken.append(request)
        return made

    counted = lambda: prometheus_client.REGISTRY.get_sample_value("oscar_kv_nonfinite_rows_total") or 0.0  # noqa: E731
    before = counted()
    engine.new_rows, engine.right = rows, lambda *given: None  # outputs have a NaN as long as the window has it
    with caplog.at_level("ERROR"):
        engine.run([Request(380, 1, 330)])
        for _ in range(20):
            engine.built[0].impl.serving.passed()
    told = [record.message for record in caplog.records if "NaN or an infinity" in record.message]
    assert counted() == before + 3 * len(told)
    assert 1 <= len(told) <= len(broken) and all("layer 0, key: KV head 1 and 2 more" in text for text in told)  # a request may begin again


class Work(TorchDispatchMode):
    """Counts what would be launches and copies on a GPU: operators that make or change tensors, and tensors of host numbers."""

    def __init__(self):
        super().__init__()
        self.launches, self.copies = [], []

    def __torch_dispatch__(self, function, types, arguments=(), named=None):
        aliases = [made.alias_info for made in function._schema.returns]
        moves = function.overloadpacket is torch.ops.aten._to_copy and (named or {}).get("dtype") in (None, arguments[0].dtype)
        if moves or function.overloadpacket is torch.ops.aten.lift_fresh:
            self.copies.append(function)
        elif not any(alias is not None and not alias.is_write for alias in aliases):
            self.launches.append(function)
        return function(*arguments, **(named or {}))


@pytest.mark.parametrize("shared,counts,launches,copies", [
    (False, [1] * 4, 3, 1), (False, [1, 1, 1, 90], 9, 2), (False, [1, 1, 60, 90], 9, 2),
    (True, [1] * 4, 4, 1), (True, [1, 1, 1, 90], 18, 3)])
def test_work_of_a_plan(fitted, shared, counts, launches, copies):
    """The plan of a step, for all layers and builders of a real bundle, is few launches, however many its requests, of which one begins a block.
    shared: with prefix caching."""
    engine = FittedPrefixEngine(*fitted(cache_config__enable_prefix_caching=True)) if shared else FittedEngine(*fitted())
    starts = [0 if count > 1 else 318 + i for i, count in enumerate(counts)]
    lengths = torch.tensor([start + count for start, count in zip(starts, counts)], dtype=torch.int32)
    engine.running = [Request(380, 1, 330 if count == 1 else 370, slot=i, done=start) for i, (start, count) in enumerate(zip(starts, counts))]
    common = engine.metadata(range(len(counts)), counts, lengths, torch.arange(24, dtype=torch.int32).view(4, 6), torch.arange(64, 64 + sum(counts)))
    [builder.build(0, common) for builder in engine.builders]  # makes the tables at fixed addresses
    engine.builders[0].serving.plan = None
    if shared and counts[3] > 1:  # the request that begins is new
        engine.builders[0].serving.requests[3] += 1
    with Work() as found:
        rows = [builder.build(0, common).rows for builder in engine.builders][-1]
        if rows.chunks:
            rows.work(engine.kv.policy, engine.kv.room)
    assert len(found.launches) <= launches and len(found.copies) <= copies, (found.launches, found.copies)
