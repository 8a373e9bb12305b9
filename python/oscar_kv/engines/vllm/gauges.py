"""The 2-bit cache among vLLM's own metrics at /metrics. The scheduler counts the tokens of its requests and sends the
counts with its statistics; the process that answers /metrics, which may be another one, holds the metrics. The counts
ride in a field for LoRA that vLLM sends along and, with LoRA, overwrites: then quantized_share stays 0."""

from collections.abc import Callable
from typing import Any, NamedTuple

from ...format.bundle import read_manifest
from ..names import CACHE_DTYPE
from ..serving import bits_and_bytes
from . import serving
from .wraps import wrap_once

FACTS = "_oscar_gauges"  # of a compilation configuration
TOKENS, CODED = "oscar_kv_tokens", "oscar_kv_coded"  # keys of the counts
GAUGES = {
    "bits": "Bits of a number in the pages of the 2-bit cache.",
    "bytes_per_token": "Bytes of a token in the pages of the 2-bit cache, of all layers and GPUs.",
    "quantized_share": "Share of the tokens of running requests that are quantized; windows are in BF16.",
}
PREFIX_HITS = "Requests that began with a cached prefix, which is read from codes after its sink."


class Facts(NamedTuple):
    """What the scheduler and the process of /metrics know of the bundle."""

    sink: int
    recent: int
    bits: float  # of a number
    bytes_per_token: int


def facts(config: Any) -> Facts:
    """Reads the manifest of the bundle, once for a configuration."""
    held = vars(config.compilation_config)
    if FACTS not in held:
        manifest = read_manifest(serving.bundle_path(config))
        held[FACTS] = Facts(manifest.sink, manifest.recent, *bits_and_bytes(manifest))
    return held[FACTS]


def ours(config: Any) -> bool:
    return config.cache_config.cache_dtype == CACHE_DTYPE


def counts(requests: Any, windows: int) -> dict[str, int]:
    """Of running requests: tokens in the cache, and those that left the windows of so many tokens."""
    lengths = [request.num_computed_tokens for request in requests]
    return {TOKENS: sum(lengths), CODED: sum(max(0, length - windows) for length in lengths)}


def _make_stats(original: Callable[..., Any], self: Any, *arguments: Any, **named: Any) -> Any:
    stats = original(self, *arguments, **named)
    if stats is not None and ours(self.vllm_config):
        known = facts(self.vllm_config)
        stats.waiting_lora_adapters.update(counts(self.running, known.sink + known.recent))
    return stats


def _make_logger(original: Callable[..., Any], self: Any, vllm_config: Any, *arguments: Any, **named: Any) -> None:
    original(self, vllm_config, *arguments, **named)
    if not ours(vllm_config):
        return
    labels = ["model_name", "engine"]
    held = {
        name: self._gauge_cls(
            name=f"vllm:oscar_kv_{name}", documentation=text, labelnames=labels, multiprocess_mode="mostrecent"
        )
        for name, text in GAUGES.items()
    }
    held["prefix_hits"] = self._counter_cls(
        name="vllm:oscar_kv_prefix_hits", documentation=PREFIX_HITS, labelnames=labels
    )
    self._oscar_metrics = {
        index: {name: metric.labels(*values) for name, metric in held.items()}
        for index, values in self.per_engine_labelvalues.items()
    }
    known = facts(vllm_config)
    for metrics in self._oscar_metrics.values():
        metrics["bits"].set(known.bits)
        metrics["bytes_per_token"].set(known.bytes_per_token)


def _record(
    original: Callable[..., Any], self: Any, scheduler_stats: Any, iteration_stats: Any, *arguments: Any, **named: Any
) -> None:
    original(self, scheduler_stats, iteration_stats, *arguments, **named)
    index = named.get("engine_idx", arguments[1] if len(arguments) > 1 else 0)
    metrics = getattr(self, "_oscar_metrics", {}).get(index)
    if metrics is None:
        return
    found = scheduler_stats.waiting_lora_adapters if scheduler_stats is not None else {}
    if TOKENS in found:
        metrics["quantized_share"].set(found[CODED] / max(1, found[TOKENS]))
    finished = iteration_stats.finished_requests if iteration_stats is not None else ()
    metrics["prefix_hits"].inc(sum(one.num_cached_tokens > 0 for one in finished))


def install() -> None:
    """Wraps vLLM's scheduler and its Prometheus logger once. Engines with other cache types work as before."""
    from vllm.v1.core.sched.scheduler import Scheduler
    from vllm.v1.metrics.loggers import PrometheusStatLogger

    wrap_once(Scheduler, "make_stats", _make_stats)
    wrap_once(PrometheusStatLogger, "__init__", _make_logger)
    wrap_once(PrometheusStatLogger, "record", _record)
