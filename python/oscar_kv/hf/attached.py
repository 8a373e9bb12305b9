"""What attach() makes of a model and a bundle."""

import weakref
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import nn

from ..cache.layer_code import LayerCode
from ..cache.tiers import Tiers
from ..format.bundle import Bundle
from ..format.page_layout import PAGE_TOKENS
from ..ops.rule import Rule


def rule_of(
    module: nn.Module, window: int | None = None, cap: float | None = None, sinks: torch.Tensor | None = None
) -> Rule:
    """rule.Rule of a transformers attention module; its configuration gives the chunks (Llama 4)."""
    config: Any = getattr(module, "config", None)
    index = getattr(module, "layer_idx", None)
    kinds = getattr(config, "layer_types", None) or ()
    chunked = isinstance(index, int) and index < len(kinds) and kinds[index] == "chunked_attention"
    return Rule(window or 0, (config.attention_chunk_size or 0) if chunked else 0, float(cap or 0.0), sinks)


class Attached:
    """The result of attach() for a model and a bundle; oscar_kv.detach(model) undoes it. codes: None
    for layers with linear attention, or with a window in heads of another size; they keep transformers' own
    states. sources: which earlier layer's cache the last layers read, which have no codes."""

    def __init__(
        self,
        bundle: Bundle,
        codes: Sequence[LayerCode | None],
        modules: Mapping[int, nn.Module],
        max_tokens: int | None,
        config: Any = None,
        sources: Mapping[int, int] = {},
    ) -> None:
        """modules: attention modules by layer."""
        self.bundle, self.codes, self.config, self.sources = bundle, list(codes), config, sources
        self.modules: weakref.WeakSet[Any] = weakref.WeakSet(modules.values())
        cap = None if config is None else getattr(config.get_text_config(decoder=True), "attn_logit_softcapping", None)
        self.rules = {index: rule_of(module, cap=cap) for index, module in modules.items()}  # without their windows
        self.max_tokens = max_tokens
        self.graphs: Any = None  # graphs.Recorder if steps are recorded
        self.implementation = None  # the model's own, while it is active
        self.own: dict[str, Any] = {}  # methods that the instance had before; None: only its class has one
        self.hook: Any = None  # of the model's forward
        self.call: tuple[Any, list[int]] | None = None  # OscarCache and its columns before the running generate()
        self.warned = False  # about a forward of many tokens
        coded = None if max_tokens is None else max(0, max_tokens - bundle.sink)
        self.most_pages = None if coded is None else -(-coded // PAGE_TOKENS)

    def unsupported(self, code: LayerCode, group: int) -> str | None:
        """Why kernels do not serve a step of a layer, or None. group: query heads per KV head."""
        tiers = Tiers(code)
        return tiers.step_unsupported or tiers.decode_unsupported(group, self.rules[code.layer.layer])
