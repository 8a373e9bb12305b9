"""Finds the directory of the checkpoint that a model was loaded from: a folder, or a snapshot in the Hugging Face
cache."""

import pathlib

from .errors import InputError, quoted
from .foreign_files import FileName, is_folder


def snapshots(name: str) -> list[pathlib.Path]:
    """Folders with a config.json of a cached repository, independent of its refs, because the download of a single
    commit leaves none. Empty for other names."""
    from huggingface_hub.constants import HF_HUB_CACHE

    if not name or name.count("/") > 1 or name.startswith((".", "/")):
        return []
    folder = pathlib.Path(HF_HUB_CACHE) / ("models--" + name.replace("/", "--")) / "snapshots"
    return sorted(path for path in folder.iterdir() if (path / "config.json").is_file()) if folder.is_dir() else []


def checkpoint_of(
    name: FileName | None, revision: str | None = None, hint: str = "pass checkpoint=DIR"
) -> pathlib.Path:
    """name: a folder or a repository, or empty; revision: its commit or branch, if known. InputError if it is not on
    this machine, or exists in several versions."""
    name = str(name or "")
    if name and is_folder(name):
        return pathlib.Path(name)
    found = snapshots(name) if revision is None else []
    if name and name.count("/") <= 1 and not name.startswith((".", "/")):
        from huggingface_hub import try_to_load_from_cache

        cached = try_to_load_from_cache(name, "config.json", revision=revision)
        if isinstance(cached, str):
            return pathlib.Path(cached).parent
    if len(found) > 1:
        raise InputError(
            f"the Hugging Face cache holds {len(found)} versions of {quoted(name)} and does not say "
            f"which is the main one; {hint}"
        )
    if not found:
        raise InputError(
            f"the checkpoint of the model ({quoted(name)}) is not found, so the bundle's fingerprint "
            f"cannot be compared; {hint}"
        )
    return found[0]
