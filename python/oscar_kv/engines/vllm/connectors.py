"""Which of vLLM's connectors moves blocks of the 2-bit cache: that of offloading.py, where vLLM makes its own for
--kv-offloading-size. serving.refusals() refuses the others."""

from collections.abc import Callable
from typing import Any

from .gauges import ours
from .serving import OFFLOADING_CONNECTOR
from .wraps import wrap_once


def _create(original: Callable[..., Any], config: Any, role: Any, kv_cache_config: Any) -> Any:
    if not ours(config) or config.kv_transfer_config.kv_connector != OFFLOADING_CONNECTOR:
        return original(config=config, role=role, kv_cache_config=kv_cache_config)
    from .offloading import OscarOffloadingConnector

    return OscarOffloadingConnector(config, role, kv_cache_config)


def install() -> None:
    """Wraps vLLM's factory of connectors once."""
    from vllm.distributed.kv_transfer.kv_connector.factory import KVConnectorFactory

    wrap_once(KVConnectorFactory, "create_connector", _create)
