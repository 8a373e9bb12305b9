"""Numbers of the 2-bit cache among vLLM's metrics. A worker in a process of its own is seen at /metrics with
PROMETHEUS_MULTIPROC_DIR, which vLLM sets where it starts several API servers."""

import functools
from typing import Any


@functools.cache
def _nonfinite() -> Any:
    """The counter, made once a process; None without prometheus_client."""
    try:
        import prometheus_client
    except ImportError:
        return None
    return prometheus_client.Counter(
        "oscar_kv_nonfinite_rows",
        "Keys and values with a NaN or an infinity; the least "
        "number of rows, because a layer's side counts once in 256 passes",
    )


def count_nonfinite(rows: int) -> None:
    """Adds to oscar_kv_nonfinite_rows_total."""
    if _nonfinite() is not None:
        _nonfinite().inc(rows)
