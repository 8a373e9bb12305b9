"""What differs between the releases of vLLM that this adapter serves: how a plugin adds a cache type. 0.33 has a
registry. In 0.32 a cache type is a member of a Literal, from which CacheConfig and the command line read."""

import sys
from typing import Annotated, Any, Literal, get_args

from ..names import check_version, is_release
from .limits import RELEASE

RELEASES = ("0.32", RELEASE)  # the newest last


def served() -> bool:
    from vllm import __version__

    return is_release(__version__, *RELEASES)


def check_release() -> None:
    """InputError unless vLLM is one of RELEASES."""
    from vllm import __version__

    check_version("vLLM", __version__, *RELEASES)


def register_cache_type(handler: type[Any]) -> None:
    """Makes a cache type known, any number of times. handler: as vLLM 0.33 wants it; its quant_mode() is called when a
    configuration with this type is made. ImportError in a release without either way."""
    from vllm.config import cache

    if hasattr(cache, "register_kv_cache_dtype"):
        if not cache.is_known_kv_cache_dtype(handler.name):
            cache.register_kv_cache_dtype(handler.name)(handler)
    elif not served():
        raise ImportError("this release of vLLM registers no cache type")
    elif handler.name not in get_args(cache.CacheDType):
        _extend(cache, handler())


def _extend(cache: Any, handler: Any) -> None:
    from pydantic import AfterValidator
    from pydantic.dataclasses import rebuild_dataclass
    from vllm.utils.torch_utils import STR_DTYPE_TO_TORCH_DTYPE

    def told(name: str) -> str:
        if name == handler.name:
            handler.quant_mode()
        return name

    literal: Any = Literal
    known = literal[get_args(cache.CacheDType) + (handler.name,)]
    modules: list[Any] = [cache, sys.modules.get("vllm.v1.attention.selector")]  # later, it reads the former
    for module in modules:
        if module is not None:
            module.CacheDType = known
    STR_DTYPE_TO_TORCH_DTYPE[handler.name] = handler.torch_dtype()
    cache.CacheConfig.__dataclass_fields__["cache_dtype"].type = Annotated[known, AfterValidator(told)]
    rebuild_dataclass(cache.CacheConfig, force=True)
    if "vllm.engine.arg_utils" in sys.modules:  # its options of the command line may have been read before
        sys.modules["vllm.engine.arg_utils"]._compute_kwargs.cache_clear()
