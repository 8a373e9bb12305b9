"""The entry point vllm.general_plugins for vLLM: the cache type `oscar` and the attention backend `OSCAR`. vLLM calls
register() in each of its processes, even if no one wants a 2-bit cache, so it reads, checks and wraps nothing. The
first configuration with this cache type wraps what vLLM has no extension point for: its Attention (layers.py), its
manager of blocks (prefixes.py) and its connectors (connectors.py). An unsupported release is refused when the backend
is requested.

    OSCAR_KV_BUNDLE=bundle vllm serve MODEL --kv-cache-dtype oscar --attention-backend OSCAR"""

import contextlib
import copyreg
import os
from typing import Any

from ..names import BUNDLE_VARIABLE, CACHE_DTYPE, VLLM_BACKEND
from .release import check_release, register_cache_type, served


class OscarCacheType:
    """Answers vLLM's queries about --kv-cache-dtype oscar."""

    name = CACHE_DTYPE

    def torch_dtype(self) -> Any:
        import torch

        return torch.uint8

    def quant_mode(self) -> Any:
        """vLLM asks when it makes a configuration with this type."""
        from vllm.v1.kv_cache_interface import KVQuantMode

        install()
        return getattr(KVQuantMode, "CUSTOM", KVQuantMode.NONE)


def backend() -> Any:
    """The member OSCAR of vLLM's AttentionBackendEnum."""
    from vllm.v1.attention.backends.registry import AttentionBackendEnum, register_backend

    if VLLM_BACKEND not in AttentionBackendEnum.__members__:
        register_backend(VLLM_BACKEND, "oscar_kv.engines.vllm.backend.OscarBackend")
        copyreg.pickle(AttentionBackendEnum, reduced)
    return AttentionBackendEnum[VLLM_BACKEND]


def reduced(member: Any) -> tuple[Any, tuple[Any, ...]]:
    """For pickle. vLLM hands its configuration to new processes, which read it before they load plugins."""
    return (received, ()) if member.name == VLLM_BACKEND else (type(member), (member.value,))


def received() -> Any:
    """The member in a process that reads the configuration of another."""
    register()
    install()
    return backend()


def install() -> None:
    """Wraps vLLM's classes once. Other releases stay as they are; backend.py refuses them."""
    if served():
        from . import connectors, gauges, prefixes

        connectors.install()
        prefixes.install()
        gauges.install()
        with contextlib.suppress(ImportError):  # a process without vLLM's kernels, which builds no model
            from . import latent_layers, layers

            layers.install()
            latent_layers.install()


def register() -> None:
    """The entry point. May be called any number of times."""
    try:
        register_cache_type(OscarCacheType)
        backend()
    except ImportError:  # another release: its users may not know that oscar-kv is installed
        if os.environ.get(BUNDLE_VARIABLE):
            check_release()
            raise
