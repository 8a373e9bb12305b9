"""The self-check of engines on the CPU: right kernels pass, wrong ones stop the start with the layer and the difference. The GPU's own
kernels pass it in test_cuda_operators.py."""
import logging
import types

import pytest

torch = pytest.importorskip("torch")

from random_bundles import random_bundle  # noqa: E402
from oscar_kv.cache.paged_kv import LayerCode  # noqa: E402
from oscar_kv.cache.slot_kv import SlotKV  # noqa: E402
from oscar_kv.cache.transform import Phases  # noqa: E402
from oscar_kv.engines import self_check  # noqa: E402
from oscar_kv.files.errors import InputError  # noqa: E402
from oscar_kv.ops import operators  # noqa: E402

LOG = logging.getLogger("oscar_kv.test")


def serving_of(*bundles, slots=20, device="cpu", d=64):
    """What self_check reads of an EngineServing with one layer of each bundle."""
    caches = {}
    for index, bundle in enumerate(bundles):
        code = LayerCode(bundle, bundle.layers[0], Phases(10000.0 ** -(torch.arange(0, d, 2) / d)), device)
        caches[index] = SlotKV(code, slots, 900, 3)
    return types.SimpleNamespace(bundle=bundles[0], slots=slots, caches=lambda: caches, room=lambda: 900)


def bundles(d=64):
    large = random_bundle(kv_heads=2, d=d, key=(4, 2, 1, 0), value=(2, 1, 0, 0), rotated_mean=True)
    large.layers[0].key.mean[:, d // 4:d // 2] *= 700  # as in layer 0 of Qwen2.5-Coder-1.5B
    return [random_bundle(kv_heads=2, d=d), random_bundle(kv_heads=2, d=d, key=(4, 4, 4, 4), value=(0, 0, 0, 0)),
            random_bundle(kv_heads=2, d=d, key=(0, 0, 0, 0), value=(0, 0, 0, 0), rotated_mean=True), large]


def test_right_kernels_pass(caplog):
    with caplog.at_level(logging.INFO):
        self_check.passed(serving_of(*bundles()), LOG)
    assert "self-check of 4 layers passed" in caplog.text


@pytest.mark.parametrize("wrong", [float("nan"), 0.0, 7.0])
def test_wrong_outputs_stop_the_start(monkeypatch, wrong):
    """Only with 16 sequences, as in the engine that answered nonsense while few requests ran."""
    step = operators.step_tokens

    def broken(output, *rest):
        step(output, *rest)
        if output.shape[0] == 16:
            output[5, 2] = wrong
            output[5, 3] = -wrong

    monkeypatch.setattr(operators, "step_tokens", broken)
    monkeypatch.setitem(operators._arguments, broken, operators._arguments[step])
    with pytest.raises(InputError, match=r"layer 0 \(uniform keys, uniform values\) with 16 sequences.*expected at most 0.1"):
        self_check.passed(serving_of(*bundles()), LOG)


def test_pages_that_hold_other_codes_are_found(monkeypatch):
    """A step that reads pages as if they had been written with another code."""
    step = operators.step_tokens

    def broken(output, *rest):
        rest = list(rest)
        rest[3] = torch.randint(256, rest[3].shape, dtype=torch.uint8, generator=torch.Generator().manual_seed(1))
        step(output, *rest)

    monkeypatch.setattr(operators, "step_tokens", broken)
    monkeypatch.setitem(operators._arguments, broken, operators._arguments[step])
    with pytest.raises(InputError, match="layer 0 .4-4-4-4 keys, 0-0-0-0 values. with 1 sequences"):
        self_check.passed(serving_of(bundles()[1]), LOG)


def test_it_can_be_switched_off(monkeypatch, caplog):
    monkeypatch.setenv(self_check.VARIABLE, "off")
    monkeypatch.setattr(operators, "step_tokens", None)
    self_check.passed(serving_of(*bundles()), LOG)
    assert "skipped" in caplog.text
