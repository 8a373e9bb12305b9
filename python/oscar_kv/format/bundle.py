"""A bundle of oscar-fit as tensors, with the checks of the C++ reader, and its slices for tensor parallelism."""

import dataclasses
import os
import pathlib
import warnings
from collections.abc import Iterable
from typing import Any

import torch

from ..files.errors import InputError, escaped, quoted
from ..files.foreign_files import FileName, RegularFile, is_folder, is_present
from ..files.safetensors_file import SafetensorsFile
from ..files.strict_json import Fields, read_json
from . import manifest as manifest_file
from .manifest import (
    CARD,
    NAME,
    ROTATIONS,
    Fitted,
    Manifest,
    Side,
    as_value_side,
    left_out_layers,
    parse_manifest,
    tensor_name,
)

MOST_MANIFEST = 64 << 20
FITTED = {"q_proj", "k_proj", "v_proj", "qkv_proj", "q_norm", "k_norm"}  # modules to whose outputs a bundle is fitted
ORTHOGONALITY_LIMIT = 1e-4  # FP32 storage leaves about 1e-7


def adapter_refusal(adapter: str, changed: Iterable[str], place: str = "") -> str | None:
    """Why a bundle does not serve an adapter (LoRA, IA3 ...), or None. changed: dotted names of modules, or of the
    adapter's tensors. place: follows such a name in the message."""
    found = next((name for name in sorted(changed) if not FITTED.isdisjoint(name.split("."))), None)
    return found and (
        f"{found}{place} has the adapter {quoted(adapter)}, which is not merged, and the bundle was "
        "fitted without it; merge it (merge_and_unload), save the model and fit a bundle for that "
        "checkpoint"
    )


@dataclasses.dataclass(kw_only=True)
class Bundle(Fitted):
    path: pathlib.Path
    added: tuple[str, ...] = ()  # fingerprints of further checkpoints that it may serve
    first_head: int = 0  # of the model, after slice_heads()

    def slice_heads(self, begin: int, end: int) -> "Bundle":
        """The bundle of one rank: KV heads [begin, end) of every layer."""

        def part(tensor: torch.Tensor | None, side: Side, kv_heads: int) -> torch.Tensor | None:
            if tensor is None or (tensor.shape[0] == 1 and side.heads == 1 and kv_heads > 1):  # shared
                return tensor
            return tensor[begin:end].clone()

        layers = []
        for layer in self.layers:
            if not 0 <= begin < end <= layer.kv_heads:
                raise InputError(
                    f"{self.path}: KV heads {begin} to {end} are no part of the {layer.kv_heads} heads of "
                    f"layer {layer.layer}"
                )
            sides = []
            for side in (layer.key, layer.value):
                names = ("forward", "inverse", "mean", "sigma", "eigenvalues")
                own: dict[str, Any] = {name: part(getattr(side, name), side, layer.kv_heads) for name in names}
                clip = side.clip if len(side.clip) == 1 else side.clip[begin:end]
                sides.append(dataclasses.replace(side, heads=own["forward"].shape[0], clip=clip, **own))
            layers.append(dataclasses.replace(layer, kv_heads=end - begin, key=sides[0], value=sides[1]))
        return dataclasses.replace(self, layers=layers, first_head=self.first_head + begin)


def _check_files(manifest: Manifest, directory: pathlib.Path) -> RegularFile:
    """Opens the rotations. The file stays open, so the data read is the data hashed."""
    opened = {}
    for name, (size, digest) in manifest.files.items():
        path = directory / name
        if name == CARD:
            if not os.path.isfile(path) or RegularFile(path).sha256() != digest:
                warnings.warn(f"{escaped(path)}: is not the model card that was written with this bundle", stacklevel=3)
            continue
        if not is_present(path):
            if name in manifest_file.DELETABLE:
                continue
            raise InputError(f"{path}: is missing; the manifest lists it")
        file = RegularFile(path)
        if file.size != size:
            raise InputError(f"{path}: has {file.size} bytes, the manifest says {size}; copy or fit the bundle again")
        found = file.sha256()
        if found != digest:
            raise InputError(f"{path}: sha256 is {found}, the manifest says {digest}; copy or fit the bundle again")
        opened[name] = file
    return opened[ROTATIONS]


def _read_tensors(manifest: Manifest, rotations: RegularFile) -> None:
    file, path = SafetensorsFile(rotations.path, rotations), rotations.path
    for name in file.entries:
        if name not in manifest.tensors:
            raise InputError(f"{path}: holds the tensor {quoted(name)}, which the manifest does not mention")
    for layer in manifest.layers:
        for key, side in ((True, layer.key), (False, layer.value)):
            for field, part in (
                ("forward", "forward"),
                ("inverse", "inverse_or_query"),
                ("mean", "mean"),
                ("eigenvalues", "eigenvalues"),
                ("sigma", "sigma"),
            ):
                name = tensor_name(layer.layer, key, part)
                shape = manifest.tensors.get(name)
                if shape is None:
                    continue
                entry = file.entries.get(name)
                if entry is None:
                    raise InputError(f"{path}: the tensor {name} is missing")
                if entry.dtype != "F32" or entry.shape != shape:
                    raise InputError(
                        f"{path}: {name} is {entry.dtype} {entry.shape_text()}, expected F32 "
                        f"[{', '.join(map(str, shape))}]"
                    )
                setattr(side, field, file.float32(name))
        if manifest.rope_dim:
            layer.value = as_value_side(layer.key)


def _side_faults(side: Side, key: bool, name: str, head_dim: int, group: int) -> list[str]:
    """One sentence per fault in the numbers of a side."""
    for tensor in (side.forward, side.inverse, side.mean, side.eigenvalues):
        if tensor is not None and not bool(torch.isfinite(tensor).all()):
            return [f"{name} rotation holds NaN or infinity"]
    faults = []
    if side.sigma is not None and not (bool(torch.isfinite(side.sigma).all()) and float(side.sigma.min()) > 0):
        faults.append(f"{name} block deviations are not all positive numbers")
    forward = side.forward.double()
    eye = torch.eye(head_dim, dtype=torch.float64)
    if side.orthogonal:
        error = float((forward @ forward.transpose(1, 2) - eye).abs().max())
        if not error <= ORTHOGONALITY_LIMIT:
            faults.append(
                f"{name} rotation is not orthogonal (max |M M^T - I| = {error:.3g}, limit {ORTHOGONALITY_LIMIT})"
            )
    else:
        back = side.back(key).double()
        product = forward.transpose(1, 2) @ back if key else back @ forward
        error = float((product - eye).abs().max())
        if not error <= ORTHOGONALITY_LIMIT:
            faults.append(
                f"{name} transform and its inverse do not cancel (error {error:.3g}, limit {ORTHOGONALITY_LIMIT})"
            )
    return faults


def added_fingerprints(directory: pathlib.Path, numbers_sha256: str) -> tuple[str, ...]:
    """Fingerprints of further checkpoints that a bundle may serve. InputError if their file is damaged, or of another
    bundle. numbers_sha256: of the manifest."""
    path = directory / manifest_file.CHECKPOINTS
    if not is_present(path):
        return ()
    fields = Fields(read_json(path, 1 << 20), path)
    if fields.text("format") != "oscar-checkpoints" or fields.integer("format_version") != 1:
        raise InputError(
            f"{path}: is not 'oscar-checkpoints' of format_version 1, which this package reads; update "
            "oscar-kv, or remove the file"
        )
    if not numbers_sha256 or fields.text("numbers_sha256") != numbers_sha256:
        raise InputError(
            f"{path}: belongs to another bundle (its numbers_sha256 is not the manifest's); remove it, "
            "and add the checkpoints with oscar-verify --add-checkpoint"
        )
    return tuple(Fields(entry, path).text("fingerprint") for entry in fields.items("checkpoints"))


def _read_document(directory: pathlib.Path) -> dict[str, Any]:
    if not is_folder(directory):
        raise InputError(f"{directory}: is not a directory, expected a bundle written by oscar-fit")
    path = directory / NAME
    if not is_present(path):
        raise InputError(f"{directory}: holds no {NAME}, expected a bundle written by oscar-fit")
    return read_json(path, MOST_MANIFEST)


def read_manifest(directory: pathlib.Path) -> Manifest:
    """What a bundle's manifest says, without its tensors."""
    return parse_manifest(_read_document(directory), directory / NAME)


def load_bundle(path: FileName, latent: bool = False) -> Bundle:
    """Reads and checks a bundle: manifest, files, hashes, shapes, numbers. InputError at the first fault, and for a
    bundle of latent attention unless the caller serves it (`latent`)."""
    directory = pathlib.Path(path)
    path = directory / NAME
    document = _read_document(directory)
    manifest = parse_manifest(document, path)
    if manifest.rope_dim and not latent:
        raise InputError(f"{path}: is a bundle for latent attention (MLA), which only oscar-verify and vLLM run")
    _read_tensors(manifest, _check_files(manifest, directory))
    faults = []
    for layer in manifest.layers:
        for key, side in ((True, layer.key), (False, layer.value)):
            name = f"layer {layer.layer} {'key' if key else 'value'}"
            faults += _side_faults(side, key, name, layer.head_dim, manifest.group)
    if faults:
        more = f" (and {len(faults) - 1} more faults)" if len(faults) > 1 else ""
        raise InputError(f"{directory}: {faults[0]}{more}")
    if manifest.numbers_sha256 and manifest.numbers_sha256 != manifest_file.numbers_sha256(document):
        raise InputError(
            f"{path}: its clip ratios, windows, code or other numbers were changed after the fit (its "
            "numbers_sha256 does not fit them); copy or fit the bundle again"
        )
    said = {field.name: getattr(manifest, field.name) for field in dataclasses.fields(Fitted)}
    return Bundle(path=directory, added=added_fingerprints(directory, manifest.numbers_sha256), **said)


def check_geometry(bundle: Bundle, layers: int, kv_heads: int, head_dim: int, fingerprint: str | None = None) -> None:
    """InputError unless the bundle fits the model's geometry and, if both are known, its fingerprint."""

    def differ(what: str, ours: int, theirs: int) -> InputError:
        return InputError(
            f"{bundle.path}: the bundle has {what} {ours}, the model {theirs}; take the bundle of this model"
        )

    for layer in bundle.layers:
        if layer.layer >= layers:
            raise InputError(
                f"{bundle.path}: the bundle has layer {layer.layer}, the model only {layers} layers; "
                "take the bundle of this model"
            )
        if layer.head_dim != head_dim:
            raise differ(f"head_dim of layer {layer.layer}", layer.head_dim, head_dim)
        if layer.kv_heads != kv_heads:
            raise differ(f"KV heads of layer {layer.layer}", layer.kv_heads, kv_heads)
    present = {layer.layer for layer in bundle.layers} | set(left_out_layers(bundle.model))
    missing = next((i for i in range(layers) if i not in present), None)
    if missing is not None:
        raise InputError(f"{bundle.path}: the bundle lacks layer {missing} of the model's {layers}; fit all layers")
    check_fingerprint(bundle, fingerprint)


def check_fingerprint(bundle: Bundle, fingerprint: str | None) -> None:
    """InputError if both have a fingerprint, and that of the model is none of the bundle's."""
    if bundle.fingerprint and fingerprint and fingerprint not in (bundle.fingerprint, *bundle.added):
        raise InputError(
            f"{bundle.path}: the bundle was fitted on another model (fingerprint {bundle.fingerprint}, "
            f"found {fingerprint}); fit a bundle for this one, or add a quantized twin with oscar-verify "
            "--add-checkpoint"
        )
