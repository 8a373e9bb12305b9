"""The entry point sglang.srt.plugins for SGLang: the attention backend `oscar`. SGLang calls register() in each of its
processes, even if no one wants a 2-bit cache; it then only adds the backend's name. With a bundle in the environment
it also wraps what SGLang has no extension point for (hooks.py). SGLang only logs what a plugin raises, so an
unsupported release ends the process.

    OSCAR_KV_BUNDLE=bundle sglang serve MODEL --attention-backend oscar --page-size 64 --max-running-requests 32 ..."""

import os
from typing import Any

from ...files.errors import InputError
from ..names import BUNDLE_VARIABLE, SGLANG_BACKEND, check_version
from .limits import RELEASE


def _create(runner: Any) -> Any:
    from .backend import OscarAttentionBackend

    return OscarAttentionBackend(runner)


def register() -> None:
    """The entry point. May be called any number of times."""
    wanted = bool(os.environ.get(BUNDLE_VARIABLE))
    try:
        from sglang.version import __version__

        check_version("SGLang", __version__, RELEASE)
    except (ImportError, InputError) as error:  # its users may not know that oscar-kv is installed
        if wanted:
            raise SystemExit(f"error: {error}") from error
        return
    from sglang.srt.arg_groups import choices
    from sglang.srt.layers.attention.attention_registry import ATTENTION_BACKENDS, register_attention_backend

    if SGLANG_BACKEND not in ATTENTION_BACKENDS:
        register_attention_backend(SGLANG_BACKEND)(_create)
    if SGLANG_BACKEND not in choices.ATTENTION_BACKEND_CHOICES:
        choices.add_attention_backend_choices([SGLANG_BACKEND])
    if wanted:
        from . import hooks

        hooks.register()
