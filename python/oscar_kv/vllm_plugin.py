"""The entry point vllm.general_plugins for vLLM: the cache type `oscar2` and the attention backend `OSCAR`. vLLM
calls register() in each of its processes, even if no one wants a 2-bit cache, so it reads and checks nothing. It also
wraps vLLM's Attention (vllm_layers.py) and its manager of blocks (vllm_prefixes.py). An unsupported release is refused
when the backend is requested.

    OSCAR_KV_BUNDLE=bundle vllm serve MODEL --kv-cache-dtype oscar2 --attention-backend OSCAR"""
import contextlib
import copyreg
import os

from .errors import InputError

BACKEND, CACHE_DTYPE = "OSCAR", "oscar2"
BUNDLE_VARIABLE = "OSCAR_KV_BUNDLE"
RELEASE = (0, 33)  # major and minor; vLLM guarantees plugins nothing across minor releases


def is_served(found):
    return tuple(found.split(".")[:2]) == tuple(map(str, RELEASE))


def check_version(found):
    """InputError unless vLLM is the release whose interfaces this adapter uses."""
    if not is_served(found):
        expected = ".".join(map(str, RELEASE))
        raise InputError(f"vLLM {found} is installed, oscar-kv serves vLLM {expected}.x; install vllm=={expected}.0")


class OscarCacheType:
    """Answers vLLM's queries about --kv-cache-dtype oscar2."""
    name = CACHE_DTYPE

    def torch_dtype(self):
        import torch
        return torch.uint8

    def quant_mode(self):
        from vllm.v1.kv_cache_interface import KVQuantMode
        return KVQuantMode.CUSTOM


def backend():
    """The member OSCAR of vLLM's AttentionBackendEnum."""
    from vllm.v1.attention.backends.registry import AttentionBackendEnum, register_backend
    if BACKEND not in AttentionBackendEnum.__members__:
        register_backend(BACKEND, "oscar_kv.vllm_backend.OscarBackend")
        copyreg.pickle(AttentionBackendEnum, reduced)
    return AttentionBackendEnum[BACKEND]


def reduced(member):
    """For pickle. vLLM hands its configuration to new processes, which read it before they load plugins."""
    return (backend, ()) if member.name == BACKEND else (type(member), (member.value,))


def register():
    """The entry point. May be called any number of times."""
    try:
        from vllm.config.cache import is_known_kv_cache_dtype, register_kv_cache_dtype
        backend()
    except ImportError:  # another release: its users may not know that oscar-kv is installed
        if os.environ.get(BUNDLE_VARIABLE):
            from vllm import __version__
            check_version(__version__)
            raise
        return
    if not is_known_kv_cache_dtype(CACHE_DTYPE):
        register_kv_cache_dtype(CACHE_DTYPE)(OscarCacheType)
    from vllm import __version__
    if is_served(__version__):
        from . import vllm_layers, vllm_prefixes
        vllm_prefixes.install()
        with contextlib.suppress(ImportError):  # a process without vLLM's kernels, which builds no model
            vllm_layers.install()
