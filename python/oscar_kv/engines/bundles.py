"""Which bundle an engine serves: a folder, a repository in the Hugging Face cache (hf:ORG/NAME@REVISION), or, where
none is named, the one that was fitted on the checkpoint, from the store or the cache. `auto` is the one that this
module fits. Never uses the network, and never takes a bundle of another model."""

import fcntl
import logging
import os
import pathlib

from .. import commands
from ..files.errors import EnvironmentFault, InputError, NumericalError, quoted
from ..files.fingerprint import checkpoint_fingerprint
from ..files.strict_json import read_json
from ..format.bundle import MOST_MANIFEST, added_fingerprints
from ..format.manifest import NAME
from .names import BUNDLE_VARIABLE

STORE_VARIABLE, HUB, AUTO = "OSCAR_KV_STORE", "hf:", "auto"
WINDOWS = (64, 256)  # of fitted bundles: whole pages, so that requests share prefixes
MOST_FOLDERS = 4096  # that are looked at


def store() -> pathlib.Path:
    """The folder whose folders are bundles."""
    return pathlib.Path(os.environ.get(STORE_VARIABLE) or "~/.cache/oscar-kv/bundles").expanduser()


def _hub_cache() -> pathlib.Path:
    from huggingface_hub.constants import HF_HUB_CACHE

    return pathlib.Path(HF_HUB_CACHE)


def named(text: str) -> pathlib.Path:
    """The folder of a bundle that a user named."""
    if not text.startswith(HUB):
        return pathlib.Path(text)
    from huggingface_hub import try_to_load_from_cache
    from huggingface_hub.errors import HFValidationError

    name, _, revision = text.removeprefix(HUB).partition("@")
    try:
        found = try_to_load_from_cache(name, NAME, revision=revision or None)
    except HFValidationError:
        raise InputError(f"{quoted(text)} names no repository; expected hf:ORG/NAME or hf:ORG/NAME@REVISION") from None
    if not isinstance(found, str):
        option = f" --revision {revision}" if revision else ""
        raise InputError(
            f"the Hugging Face cache {_hub_cache()} has no {NAME} of {quoted(text)}; fetch the bundle "
            f"with: hf download {name}{option}"
        )
    return pathlib.Path(found).parent


def of_checkpoint(checkpoint: pathlib.Path, option: str) -> pathlib.Path:
    """The folder of the only bundle that was fitted on a checkpoint, or to which it was added. option: how a user names
    one, for messages. InputError if there is none, or if there are several with different numbers."""
    wanted = checkpoint_fingerprint(checkpoint)
    for folders in (store().glob("*"), _hub_cache().glob("models--*/snapshots/*")):
        found: dict[str, pathlib.Path] = {}
        for folder in sorted(folders)[:MOST_FOLDERS]:
            facts = _facts(folder)
            if facts is not None and wanted in facts[0]:
                found.setdefault(facts[1], folder)
        if len(found) > 1:
            raise InputError(
                f"{len(found)} bundles of the model {quoted(str(checkpoint))} are on this machine: "
                f"{', '.join(quoted(str(folder)) for folder in found.values())}; choose one with {option}"
            )
        if found:
            return next(iter(found.values()))
    place = store() / checkpoint.resolve().name
    raise InputError(
        f"no bundle of the model {quoted(str(checkpoint))} is in {store()} or in the Hugging Face cache; "
        f"fit one with: oscar-fit --model {checkpoint} --prompts PROMPTS.jsonl -o {place}; evaluate it "
        f"with: oscar-verify --model {checkpoint} --bundle {place} --text TEXT; or name one with {option} "
        f"or {BUNDLE_VARIABLE}"
    )


def fitted(checkpoint: pathlib.Path, context: int, log: logging.Logger) -> pathlib.Path:
    """The bundle in the store that oscar-fit made of this checkpoint for contexts of so many tokens, made now if there
    is none. Processes that start together wait for the first one."""
    wanted = checkpoint_fingerprint(checkpoint)
    folder = store() / f"{wanted.rpartition(':')[2][:32]}-{WINDOWS[0]}-{WINDOWS[1]}-{context}"
    folder.parent.mkdir(parents=True, exist_ok=True)
    with folder.with_suffix(".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not folder.exists():
            log.warning("oscar-kv: fitting a bundle of %s into %s; this takes minutes, once", checkpoint, folder)
            try:
                commands.fit(folder, model=checkpoint, context=context, windows=f"{WINDOWS[0]},{WINDOWS[1]}")
            except (EnvironmentFault, NumericalError, ValueError) as error:
                raise InputError(f"no bundle of {quoted(str(checkpoint))} was fitted: {error}") from error
    facts = _facts(folder)
    if facts is None or wanted not in facts[0]:
        raise InputError(f"{folder} holds no bundle of the model {quoted(str(checkpoint))}; remove it and start again")
    return folder


def _facts(folder: pathlib.Path) -> tuple[tuple[str, ...], str] | None:
    """(fingerprints, hash of the numbers) of what looks like a bundle, or None. load_bundle() checks the rest."""
    path = folder / NAME
    try:
        manifest = read_json(path, MOST_MANIFEST) if path.is_file() else None
        model = manifest.get("model") if isinstance(manifest, dict) else None
        fingerprint = model.get("fingerprint") if isinstance(model, dict) else None
        numbers = (manifest or {}).get("numbers_sha256")
        if not (isinstance(fingerprint, str) and isinstance(numbers, str)):
            return None
        return (fingerprint, *added_fingerprints(folder, numbers)), numbers
    except (InputError, OSError):
        return None
