"""The implementation of the generate() that `oscar-export --format transformers` writes. transformers loads that
function from a folder custom_generate, in a model or separate, and does not pass its path. The bundle is expected
beside the model."""

import os
import pathlib
import weakref
from collections.abc import Sequence
from typing import Any

from transformers import PreTrainedModel

from ..files.checkpoint import snapshots
from ..files.errors import InputError, quoted
from ..files.foreign_files import FileName, RegularFile
from ..format.manifest import NAME
from . import cache_use
from .attach import activate, detach, prepare
from .attached import Attached

FOLDER = "oscar_bundle"
# by model: the manifest's SHA-256 with the folder, and the result of prepare()
_prepared: weakref.WeakKeyDictionary[PreTrainedModel, tuple[tuple[str, FileName | None], Attached]] = (
    weakref.WeakKeyDictionary()
)


def _beside(model: PreTrainedModel) -> pathlib.Path | None:
    """The bundle's folder in the directory or hub repository that the model was loaded from; None if there is none."""
    name = str(getattr(model, "name_or_path", "") or "")
    if not name:
        return None
    if pathlib.Path(name).is_dir():
        return pathlib.Path(name) / FOLDER
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import HfHubHTTPError, HFValidationError, LocalEntryNotFoundError

    try:
        snapshot = snapshot_download(
            name, revision=getattr(model.config, "_commit_hash", None), allow_patterns=f"{FOLDER}/*"
        )
    except (HFValidationError, HfHubHTTPError, LocalEntryNotFoundError):
        return None
    return pathlib.Path(snapshot) / FOLDER


def find_bundle(model: PreTrainedModel, manifest_sha256: str, folder: FileName | None = None) -> pathlib.Path:
    """The folder of the bundle whose manifest has this digest. InputError if there is none, or a different one."""
    if folder is None:  # transformers 5 does not say which revision of a repository the model is
        for snapshot in snapshots(str(getattr(model, "name_or_path", "") or "")):
            manifest = snapshot / FOLDER / NAME
            if os.path.isfile(manifest) and RegularFile(manifest).sha256() == manifest_sha256:
                return manifest.parent
    place = pathlib.Path(folder) if folder is not None else _beside(model)
    if place is None or not os.path.isfile(place / NAME):
        raise InputError(
            f"{place or FOLDER}: holds no {NAME}; copy {FOLDER} of the export into the directory or "
            f"repository of the model ({quoted(str(getattr(model, 'name_or_path', '')))}), or pass "
            "oscar_bundle=DIR to generate()"
        )
    found = RegularFile(place / NAME).sha256()
    if found != manifest_sha256:
        raise InputError(
            f"{place / NAME}: is not the bundle that this generate() was exported with (sha256 {found}, "
            f"expected {manifest_sha256}); copy both folders from one export"
        )
    return place


def generate_with(
    model: PreTrainedModel,
    manifest_sha256: str,
    folder: FileName | None,
    inputs: Sequence[Any],
    arguments: dict[str, Any],
) -> Any:
    """model.generate(*inputs, **arguments) with the 2-bit cache during this call. The first call reads the bundle
    and compares it with the model. folder: the bundle's folder, None if it is beside the model. InputError as in
    find_bundle(), or if the bundle does not fit the model."""
    key, ready = _prepared.get(model, (None, None))
    if ready is None or key != (manifest_sha256, folder):
        ready = prepare(model, find_bundle(model, manifest_sha256, folder))
        _prepared[model] = (manifest_sha256, folder), ready
    activate(model, ready)
    try:
        # Not model.generate, because from_pretrained() puts the exported function there.
        return cache_use.checked(ready, type(model).generate)(model, *inputs, **arguments)
    finally:
        detach(model)
