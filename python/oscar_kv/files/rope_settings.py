"""The configuration of a running model against that of the checkpoint which the bundle was fitted on. Engines and
transformers can change it at start, and then make other keys, or turn them otherwise."""

import warnings
from typing import Any

from .errors import InputError

MOST_SHOWN = 4
SHARED = ("rope_type", "rope_theta", "partial_rotary_factor")
BY_LAYER = ("layer_types", "no_rope_layers")  # which layers turn keys, and how
HARMLESS = (
    "architectures",
    "bos_token_id",
    "dtype",
    "eos_token_id",
    "max_position_embeddings",
    "pad_token_id",
    "quantization_config",
    "torch_dtype",
    "transformers_version",
    "use_cache",
)
BY_LENGTH = ("dynamic", "longrope")  # kinds whose angles depend on the longest sequence
FROM_ORIGINAL = ("llama3", "longrope", "yarn")


def _kind(parameters: dict[str, Any], config: Any) -> dict[str, Any]:
    """{name: value} of one kind of layers, under the newer of two names. Leaves out what transformers and engines write
    there without effect: M-RoPE of text, and an original length where the kind does not read it."""
    found = {key: value for key, value in parameters.items() if value is not None and not key.startswith("mrope_")}
    old = found.pop("type", "default")
    kind = found.setdefault("rope_type", old)
    part = getattr(config, "rotary_dim", 0) or 0
    part = part / config.head_dim if part and getattr(config, "head_dim", None) else 1.0
    found.setdefault("partial_rotary_factor", getattr(config, "partial_rotary_factor", None) or part)
    if kind == "default":
        return {key: value for key, value in found.items() if key in SHARED}
    most = getattr(config, "max_position_embeddings", None)
    original = found.pop("original_max_position_embeddings", getattr(config, "original_max_position_embeddings", most))
    if kind in FROM_ORIGINAL:
        found["original_max_position_embeddings"] = original
    if kind in BY_LENGTH:
        found["max_position_embeddings"] = most
    return found


def _kinds(config: Any) -> dict[str, dict[str, Any]]:
    """{kind of layers: its settings}; the kind is "" where all layers share one."""
    parameters = getattr(config, "rope_parameters", None)
    if not isinstance(parameters, dict) or not parameters:
        return {}
    by_layer = {kind: _kind(one, config) for kind, one in parameters.items() if isinstance(one, dict)}
    return by_layer or {"": _kind(parameters, config)}


def rope_of(config: Any) -> dict[str, Any]:
    """{name: value} of what turns keys in a decoder's transformers configuration."""
    made = {f"{kind} {key}".strip(): value for kind, one in _kinds(config).items() for key, value in one.items()}
    made |= {name: (getattr(config, name, None) or [])[: config.num_hidden_layers] for name in BY_LAYER}
    lists = {name: value for name, value in made.items() if isinstance(value, (list, tuple))}
    return {name: value for name, value in made.items() if name not in lists} | {
        f"{name}[{index}]": one for name, value in lists.items() for index, one in enumerate(value)
    }


def check_rope(running: Any, plain: Any, advice: str) -> None:
    """InputError if the two configurations turn keys otherwise; a warning if they differ in anything else that a layer
    may read. plain: of the checkpoint as it is on disk."""
    found, expected = rope_of(running), rope_of(plain)
    other = [
        f"{name} {found.get(name)!r:.60} for {expected.get(name)!r:.60}"
        for name in sorted({*found, *expected})
        if found.get(name) != expected.get(name)
    ]
    if other:
        more = f" and {len(other) - MOST_SHOWN} more" if len(other) > MOST_SHOWN else ""
        raise InputError(
            "keys would be turned by another RoPE than those that the bundle was fitted on: "
            f"{', '.join(other[:MOST_SHOWN])}{more}; {advice}, or write it into config.json of the "
            "checkpoint and fit a bundle on that"
        )
    one, two = (config.to_dict() if hasattr(config, "to_dict") else {} for config in (running, plain))
    changed = [
        f"{name} {one.get(name)!r:.60} for {two.get(name)!r:.60}"
        for name in sorted(one.keys() & two.keys())
        if one[name] != two[name] and name not in HARMLESS and not name.startswith(("_", "rope_"))
    ]
    if changed:
        warnings.warn(
            f"the model runs with {', '.join(changed[:MOST_SHOWN])} in the checkpoint: its keys and values "
            f"may not be those that the bundle was fitted on; {advice}",
            stacklevel=5,
        )


def check_reach(config: Any, seen: int, served: int, option: str) -> None:
    """InputError if an engine that serves `served` tokens takes other factors of longrope than a calibration of `seen`
    tokens did. Engines choose them by the longest request."""
    for one in _kinds(config).values():
        border = one["original_max_position_embeddings"] if one["rope_type"] == "longrope" else None
        if border and (seen > border) != (served > border):
            advice = (
                f"{option} {border}, or collect with --context {served}"
                if served > border
                else f"a larger {option}, or collect with --context {border}"
            )
            raise InputError(
                f"keys would be turned by another RoPE than in the calibration, which saw {seen} tokens: "
                f"{option} is {served}, and longrope has other factors above {border}; pass {advice}"
            )
