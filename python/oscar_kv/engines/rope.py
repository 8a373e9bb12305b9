"""RoPE from a model's configuration, for engines whose layers do not provide their rotary embedding."""

from typing import Any

from ..cache.transform import Phases
from ..files.errors import InputError

# the kinds of lib/model/rope.cpp that bundles with rotated means can have
KINDS = ("default", "linear", "llama3", "yarn")


def phases_of(config: Any, head_size: int) -> Phases:
    """Phases from a decoder's transformers configuration (text_config of a multimodal one). Keys centered before
    RoPE are fitted only if all layers share one rotary embedding over all channels of a head, in half-split
    pairs. Such a configuration has the same meaning as Llama's, so transformers' own frequencies are used and no
    formula is duplicated. InputError for any other configuration."""
    parameters = getattr(config, "rope_parameters", None)
    kind = parameters.get("rope_type") if isinstance(parameters, dict) else None
    if kind not in KINDS:
        raise InputError(
            "the bundle has keys centered before RoPE, and the model's config.json says of RoPE "
            f"{parameters!r}, expected one rope_type of {', '.join(KINDS)} for all layers; fit with "
            "--center mean"
        )
    from transformers.models.llama.modeling_llama import LlamaRotaryEmbedding

    rotary = LlamaRotaryEmbedding(config)
    if 2 * rotary.inv_freq.numel() != head_size:
        raise InputError(
            "the bundle has keys centered before RoPE, and RoPE of the model turns "
            f"{2 * rotary.inv_freq.numel()} of {head_size} channels, expected all; fit with --center mean"
        )
    return Phases(rotary.inv_freq, rotary.attention_scaling)
