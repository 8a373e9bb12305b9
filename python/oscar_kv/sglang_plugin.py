"""The entry point sglang.srt.plugins for SGLang: the attention backend `oscar`. SGLang calls register() in each of its
processes, even if no one wants a 2-bit cache; it then only adds the backend's name. With a bundle in the environment
it also wraps what SGLang has no extension point for (sglang_hooks.py). SGLang only logs what a plugin raises, so an
unsupported release ends the process.

    OSCAR_KV_BUNDLE=bundle sglang serve MODEL --attention-backend oscar --page-size 64 --max-running-requests 32 ..."""
import os

from .errors import InputError
from .sglang_limits import RELEASE
from .vllm_plugin import BUNDLE_VARIABLE

BACKEND = "oscar"


def check_version(found):
    """InputError unless SGLang is the release whose classes this adapter wraps."""
    if found != RELEASE:
        raise InputError(f"SGLang {found} is installed, oscar-kv serves SGLang {RELEASE}; install sglang=={RELEASE}")


def _create(runner):
    from .sglang_backend import OscarAttentionBackend
    return OscarAttentionBackend(runner)


def register():
    """The entry point. May be called any number of times."""
    wanted = bool(os.environ.get(BUNDLE_VARIABLE))
    try:
        from sglang.version import __version__
        check_version(__version__)
    except (ImportError, InputError) as error:  # its users may not know that oscar-kv is installed
        if wanted:
            raise SystemExit(f"error: {error}") from error
        return
    from sglang.srt.arg_groups import choices
    from sglang.srt.layers.attention.attention_registry import ATTENTION_BACKENDS, register_attention_backend
    if BACKEND not in ATTENTION_BACKENDS:
        register_attention_backend(BACKEND)(_create)
    if BACKEND not in choices.ATTENTION_BACKEND_CHOICES:
        choices.add_attention_backend_choices([BACKEND])
    if wanted:
        from . import sglang_hooks
        sglang_hooks.register()
