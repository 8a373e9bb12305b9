"""Numbers of the 2-bit cache among vLLM's metrics. A worker in a process of its own is seen at /metrics with
PROMETHEUS_MULTIPROC_DIR, which vLLM sets where it starts several API servers."""
import functools
from typing import Any

PREFIX = "oscar_kv_"


@functools.cache
def metric(kind: str, name: str, text: str) -> Any:
    """The Counter or Gauge of this name, made once a process; None without prometheus_client."""
    try:
        import prometheus_client
    except ImportError:
        return None
    return getattr(prometheus_client, kind)(PREFIX + name, text)


def count_nonfinite(rows: int) -> None:
    """Adds to oscar_kv_nonfinite_rows_total."""
    counter = metric("Counter", "nonfinite_rows", "Keys and values with a NaN or an infinity; the least number of rows,"
                                                  " because a layer's side counts once in 256 passes")
    if counter is not None:
        counter.inc(rows)
