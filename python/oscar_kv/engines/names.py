"""What users write to name the 2-bit cache in an engine, and whether an engine is the release that its adapter is
written for."""

import os
from collections.abc import Iterable, Sequence
from typing import Any

from ..files.errors import InputError, quoted
from ..files.foreign_files import is_folder

BUNDLE_VARIABLE = "OSCAR_KV_BUNDLE"  # of the environment: the bundle's folder
CACHE_DTYPE, VLLM_BACKEND = "oscar", "OSCAR"  # vLLM's --kv-cache-dtype and --attention-backend
SGLANG_BACKEND = "oscar"  # SGLang's --attention-backend
CHECKPOINT_VARIABLE = "OSCAR_KV_CHECKPOINT"  # of the environment, for SGLang: the checkpoint's folder
VARIABLES = (
    BUNDLE_VARIABLE,
    CHECKPOINT_VARIABLE,
    "OSCAR_KV_CHECK_TABLES",
    "OSCAR_KV_OPERATORS",
    "OSCAR_KV_SELF_CHECK",
    "OSCAR_KV_STORE",
)


def known_names(found: Iterable[Any], known: Sequence[str], place: str) -> None:
    """InputError for a name that begins as this package's and is none, such as a misspelled one."""
    start = os.path.commonprefix(known)
    for name in found:
        if isinstance(name, str) and name.startswith(start) and name not in known:
            raise InputError(f"{place} has {quoted(name)}, which oscar-kv does not know; it knows {', '.join(known)}")


def folder_name(value: Any, place: str) -> str | None:
    """The value of an option that names a folder, None if it is not given."""
    if value is not None and (not isinstance(value, str) or not value.strip() or "\0" in value):
        raise InputError(f"{place} is {quoted(value)}, expected the name of a folder")
    return value


def existing_folder(value: Any, place: str) -> str | None:
    """The same for a folder that must be there."""
    if folder_name(value, place) is not None and not is_folder(value):
        raise InputError(f"{place} is {quoted(value)}, which is no folder on this machine; name a checkpoint's folder")
    return value


def is_release(found: str, *releases: str) -> bool:
    """releases: "0.5.23", or "0.33" for all of 0.33.x. Engines guarantee plugins nothing across releases."""
    return any(found == one or (one.count(".") == 1 and found.startswith(f"{one}.")) for one in releases)


def check_version(engine: str, found: str, *releases: str) -> None:
    """InputError unless an engine is one of the releases whose interfaces its adapter uses, the newest last."""
    if not is_release(found, *releases):
        shown = " and ".join(f"{one}.x" if one.count(".") == 1 else one for one in releases)
        wanted = releases[-1] + (".0" if releases[-1].count(".") == 1 else "")
        raise InputError(
            f"{engine} {found} is installed, oscar-kv serves {engine} {shown}; install {engine.lower()}=={wanted}"
        )
