"""oscar_bundle.json with every field checked: the data for bundle.py, and the names and shapes of its tensors.
docs/format-bundle.md of the toolchain describes the format; errors match its C++ reader."""

import dataclasses
import hashlib
import json
import re
from typing import Any

import torch

from ..files.canonical_json import canonical_json
from ..files.errors import InputError, quoted
from ..files.foreign_files import FileName
from ..files.strict_json import Fields
from .codec import MOST_HEAD_DIM, RowCode, RowCodec, validate
from .limits import LARGEST_HEAD_DIM, MOST_HEADS, MOST_LAYERS

NAME, ROTATIONS, CARD, HASHES = "oscar_bundle.json", "rotations.safetensors", "README.md", "calibration_hashes.json"
CHECK, PROBE = "self_check.safetensors", "probe.json"  # for engines
CHECKPOINTS = "checkpoints.json"  # that oscar-verify --add-checkpoint added
DELETABLE = (HASHES, CHECK, PROBE)  # before a bundle is shared
NEWEST_VERSION = 5
NUMBERS = ("code", "files", "format_version", "global_clip", "hadamard_block", "layers", "method", "scope", "windows")


@dataclasses.dataclass
class Side:
    """Keys or values of a layer. Row vectors: x' = (x - mean) forward; keys: q' = q back; values: o = o' back +
    mean."""

    heads: int  # stored matrices: 1 (shared) or Hkv
    orthogonal: bool
    centered: bool
    rotated_mean: bool  # keys: the mean was taken before RoPE
    clip: list[float]  # [1 or Hkv]; 0: off
    widths: tuple[int, ...] | None  # None: layout uniform; otherwise bits of the four groups
    refined: bool = False  # latent attention: codec.RowCode.refined
    forward: torch.Tensor = torch.empty(0)  # [heads, d, d] FP32
    inverse: torch.Tensor | None = None  # [heads, d, d] FP32; None when orthogonal
    mean: torch.Tensor | None = None  # [Hkv, d] FP32
    sigma: torch.Tensor | None = None  # [Hkv, 4] FP32, with widths
    eigenvalues: torch.Tensor | None = None  # [heads, d]

    def code(self, head_dim: int, group: int) -> RowCode:
        if self.widths is None:
            return RowCode("uniform", head_dim, group=group or head_dim)
        return RowCode("blocks", head_dim, widths=self.widths, refined=self.refined)

    def back(self, key: bool) -> torch.Tensor:
        """The matrix that undoes `forward`: for queries (keys) or outputs (values). [heads, d, d]"""
        if self.inverse is not None:
            return self.inverse
        return self.forward if key else self.forward.transpose(1, 2).contiguous()


@dataclasses.dataclass
class Layer:
    layer: int
    head_dim: int
    kv_heads: int
    key: Side
    value: Side  # latent attention: as_value_side() of the key


def as_value_side(key: Side) -> Side:
    """The transform of values that are the rows of the keys (latent attention)."""
    return dataclasses.replace(key, inverse=None if key.inverse is None else key.inverse.transpose(1, 2).contiguous())


def side_codec(layer: Layer, key: bool, encoder: str, group: int) -> RowCodec:
    """The codec of one side of a layer of a bundle."""
    side = layer.key if key else layer.value
    return RowCodec(side.code(layer.head_dim, group), key, layer.kv_heads, encoder, side.clip, side.sigma)


@dataclasses.dataclass(kw_only=True)
class Fitted:
    """What a manifest and its bundle say of a fit."""

    method: str
    scope: str
    fingerprint: str  # of the fitted model; empty: unknown
    model: dict[str, Any]  # name, architecture, ...: for messages
    sink: int  # BF16 tokens at the start
    recent: int  # BF16 tokens at the end
    encoder: str  # minmax | search
    group: int  # for layout uniform; 0: the full head
    # ascending layer ids; model["left_out"] lists layers that are intentionally missing
    layers: list[Layer]
    longest_distance: int = 0  # longest key-query distance in the calibration, in tokens; 0: not recorded

    @property
    def rope_dim(self) -> int:
        """Latent attention: BF16 channels of a token beside its row, which no code stores. 0: keys and values apart."""
        return self.model["rope_dim"] if "attention" in self.model else 0


@dataclasses.dataclass(kw_only=True)
class Manifest(Fitted):
    files: dict[str, tuple[int, str]]  # (bytes, SHA-256)
    tensors: dict[str, tuple[int, ...]]  # shapes
    numbers_sha256: str


def tensor_name(layer: int, key: bool, part: str) -> str:
    return f"layers.{layer}.{'k' if key else 'v'}.{part}"


def _ratio(value: object, where: FileName) -> float:
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 <= value <= 1:
        raise InputError(f"{where}: a clip ratio is {quoted(json.dumps(value))}, expected a number from 0 to 1")
    return float(value)


def _widths(values: list[Any], where: FileName, d: int) -> tuple[int, ...]:
    for w in values:
        if type(w) is not int or w not in (0, 1, 2, 4):
            raise InputError(f"{where}: a block width is {quoted(json.dumps(w))}, expected 0, 1, 2 or 4")
    if len(values) != 4:
        raise InputError(f"{where}: 'widths' has {len(values)} entries, expected 4")
    if d % 32 != 0 or d > MOST_HEAD_DIM:
        raise InputError(
            f"{where}: has block widths, which need a head_dim that 32 divides, up to {MOST_HEAD_DIM}; found {d}"
        )
    return tuple(values)


def _side(
    fields: Fields, key: bool, layer: int, d: int, kv_heads: int, latent: bool, tensors: dict[str, tuple[int, ...]]
) -> Side:
    where = fields.where
    heads = fields.integer("heads")
    if heads not in (1, kv_heads):
        raise InputError(f"{where}: 'heads' is {heads}, expected 1 or the layer's {kv_heads} KV heads")
    side = Side(
        heads,
        fields.flag("orthogonal", True),
        fields.flag("centered", False),
        fields.flag("rotated_mean", False),
        [_ratio(c, where) for c in fields.items("clip")],
        None,
    )
    if side.rotated_mean and (not key or not side.centered or d % 2):
        raise InputError(f"{where}: 'rotated_mean' is for centered keys of an even head_dim")
    if len(side.clip) not in (1, kv_heads):
        raise InputError(f"{where}: 'clip' has {len(side.clip)} entries, expected 1 or {kv_heads}")
    tensors[tensor_name(layer, key, "forward")] = (heads, d, d)
    tensors[tensor_name(layer, key, "eigenvalues")] = (heads, d)
    if not side.orthogonal:
        tensors[tensor_name(layer, key, "inverse_or_query")] = (heads, d, d)
    if side.centered:
        tensors[tensor_name(layer, key, "mean")] = (kv_heads, d)
    if "widths" in fields.value:
        side.widths = _widths(fields.items("widths"), where, d)
        tensors[tensor_name(layer, key, "sigma")] = (kv_heads, 4)
    side.refined = fields.flag("refined", False)
    if side.refined and not (latent and side.widths and side.widths[0] and side.widths[-1]):
        raise InputError(f"{where}: 'refined' is for latent attention whose first and last block have bits")
    return side


def _layers(fields: Fields, latent: bool, tensors: dict[str, tuple[int, ...]]) -> list[Layer]:
    entries = fields.items("layers")
    layers: list[Layer] = []
    if not 1 <= len(entries) <= MOST_LAYERS:
        raise InputError(f"{fields.where}: 'layers' has {len(entries)} entries, expected 1 to {MOST_LAYERS}")
    for entry in entries:
        layer = Fields(entry, fields.where).integer("layer", 0, MOST_LAYERS - 1)
        here = Fields(entry, f"{fields.where}, layer {layer}")
        if layers and layer <= layers[-1].layer:
            raise InputError(f"{here.where}: layers are not in ascending order")
        d, heads = here.integer("head_dim", 1, LARGEST_HEAD_DIM), here.integer("kv_heads", 1, MOST_HEADS)
        key = _side(here.object("key"), True, layer, d, heads, latent, tensors)
        if latent and "value" in here.value:
            raise InputError(f"{here.where}: has a value side, but with latent attention values are the keys")
        value = as_value_side(key) if latent else _side(here.object("value"), False, layer, d, heads, latent, tensors)
        layers.append(Layer(layer, d, heads, key, value))
    return layers


def left_out_layers(model: dict[str, Any]) -> dict[int, str]:
    """{layer: reason} of the layers that a bundle leaves out, from the model facts in its manifest."""
    return {entry["layer"]: entry["reason"] for entry in model.get("left_out", [])}


def _check_left_out(model: Fields, present: set[int], total: int) -> None:
    """Checks that every layer is in the bundle or in its list of left-out layers, if there is one."""
    if "left_out" not in model.value:
        return
    found: dict[int, str] = {}
    for entry in model.items("left_out"):
        item = Fields(entry, f"{model.where}, left_out")
        layer, reason = item.integer("layer", max(found, default=-1) + 1, total - 1), item.text("reason")
        if not reason:
            raise InputError(f"{model.where}: layer {layer} is left out without a reason, expected one")
        found[layer] = reason
    for layer in range(total):
        if (layer in present) == (layer in found):
            where = "in 'layers' and in 'left_out'" if layer in found else "neither in 'layers' nor in 'left_out'"
            raise InputError(f"{model.where}: layer {layer} is {where}, expected it in one of them")


def _check_latent(model: Fields, layers: list[Layer]) -> None:
    """Checks what the manifest tells of latent attention."""
    if model.value["attention"] != "latent":
        raise InputError(
            f"{model.where}: 'attention' is {quoted(json.dumps(model.value['attention']))}, expected \"latent\", or no "
            "such key"
        )
    rank = model.integer("latent_dim", 1, LARGEST_HEAD_DIM)
    model.integer("rope_dim", 1, LARGEST_HEAD_DIM)
    for layer in layers:
        if layer.kv_heads != 1 or layer.head_dim != rank or layer.key.rotated_mean:
            raise InputError(
                f"{model.where}: 'latent_dim' is {rank}, expected layers with one KV head of this size and no rotated "
                f"mean; found {layer.kv_heads} of {layer.head_dim} in layer {layer.layer}"
            )


def _check_version(version: int, layers: list[Layer], latent: bool, where: FileName) -> None:
    """Refuses what a manifest of this version could not hold."""
    sides = [side for layer in layers for side in (layer.key, layer.value)]
    for least, what, found in (
        (5, "refined codes", any(side.refined for side in sides)),
        (4, "latent attention", latent),
        (3, "rotated means", any(side.rotated_mean for side in sides)),
        (2, "block widths", any(side.widths for side in sides)),
    ):
        if found and version < least:
            raise InputError(
                f"{where}: format_version is {version}, expected at least {least} for {what}; fit the model again"
            )


def _code(fields: Fields, layers: list[Layer]) -> tuple[str, int]:
    code = fields.object("code", fields.where)
    blocks = any(side.widths for layer in layers for side in (layer.key, layer.value))
    layout, expected = code.text("layout"), "blocks" if blocks else "uniform"
    encoder, group = code.text("encoder"), code.integer("group", 0, LARGEST_HEAD_DIM)
    if layout != expected:
        raise InputError(
            f"{fields.where}: code layout {quoted(layout)} is not known, or not that of the layers; "
            f"expected '{expected}'"
        )
    if not blocks and code.integer("bits") != 2:
        raise InputError(
            f"{fields.where}: code layout 'uniform' with {code.integer('bits')} bits is not known to this "
            "version, expected 2 bits"
        )
    if encoder not in ("minmax", "search"):
        raise InputError(
            f"{fields.where}: encoder {quoted(encoder)} is not known to this version, expected 'minmax' or 'search'"
        )
    for layer in layers:
        if group and layer.head_dim % group:
            raise InputError(
                f"{fields.where}: group {group} does not divide head_dim {layer.head_dim} of layer {layer.layer}"
            )
        for side in (layer.key, layer.value):
            try:
                validate(side.code(layer.head_dim, group))
            except InputError as error:
                raise InputError(f"{fields.where}, layer {layer.layer}: {error}") from None
    return encoder, group


def _files(fields: Fields) -> dict[str, tuple[int, str]]:
    files = {}
    listed = fields.object("files", fields.where)
    for name in listed.value:
        if not re.fullmatch(r"[A-Za-z0-9_-][A-Za-z0-9._-]{0,99}", name):
            raise InputError(f"{fields.where}: file name {quoted(name)} is not a plain name inside the bundle")
        entry = listed.object(name, f"{fields.where}, files.{name}")
        digest, size = entry.text("sha256"), entry.integer("bytes", 0, 1 << 50)
        if not re.fullmatch(r"[0-9a-f]{64}", digest):
            raise InputError(f"{fields.where}: sha256 of {name} is {quoted(digest)}, expected 64 hexadecimal digits")
        files[name] = (size, digest)
    if ROTATIONS not in files:
        raise InputError(f"{fields.where}: 'files' does not list {ROTATIONS}")
    return files


def parse_manifest(document: dict[str, Any], where: FileName) -> Manifest:
    fields = Fields(document, where)
    if fields.text("format") != "oscar-bundle":
        raise InputError(f"{where}: 'format' is {quoted(fields.text('format'))}, expected 'oscar-bundle'")
    version = fields.integer("format_version")
    code = document.get("code")
    if isinstance(code, dict) and code.get("layout") == "codebook":
        raise InputError(
            f"{where}: holds learned codebooks, which this version does not read; fit a bundle with "
            "--method oscar or waterfill"
        )
    facts = document.get("model")
    if isinstance(facts, dict) and "latent" in facts:
        raise InputError(
            f"{where}: is an early bundle for latent attention, which also codes the channels with RoPE; fit the model "
            "again"
        )
    if version > NEWEST_VERSION:
        raise InputError(
            f"{where}: format_version {version} is newer than the {NEWEST_VERSION} this package reads; update oscar-kv"
        )
    if version < 1:
        raise InputError(f"{where}: format_version {version} does not exist")
    method, scope = fields.text("method"), fields.text("scope")
    if not re.fullmatch(r"[A-Za-z0-9_-]+", method):
        raise InputError(f"{where}: 'method' is {quoted(method)}, expected a word of letters, digits, '_' and '-'")
    if scope not in ("layer", "head"):
        raise InputError(f"{where}: 'scope' is {quoted(scope)}, expected 'layer' or 'head'")
    model = fields.object("model")
    fingerprint = model.text("fingerprint")
    if fingerprint.startswith("sha256:"):
        raise InputError(
            f"{where}: 'fingerprint' is of version 1 ({quoted(fingerprint)}), which this release does not "
            "compare; make the file again with this release"
        )
    tensors: dict[str, tuple[int, ...]] = {}
    layers = _layers(fields, "attention" in model.value, tensors)
    encoder, group = _code(fields, layers)
    total = model.integer("layers", 1, MOST_LAYERS, default=MOST_LAYERS)
    if layers[-1].layer >= total:
        raise InputError(f"{where}: layer {layers[-1].layer} is beyond the model's {total} layers")
    _check_left_out(model, {layer.layer for layer in layers}, total)
    if "attention" in model.value:
        _check_latent(model, layers)
    _check_version(version, layers, "attention" in model.value, where)
    windows = fields.object("windows")
    sink, recent = (windows.integer(name, 0, 1 << 32) for name in ("sink", "recent"))
    fields.integer("hadamard_block", 0, LARGEST_HEAD_DIM)
    clip = fields.object("global_clip")
    for name in ("key", "value"):
        _ratio(clip.number(name), clip.where)
    provenance = fields.object("provenance")
    fields.object("fit")
    distance = provenance.value.get("longest_distance", 0)
    if not isinstance(distance, int) or isinstance(distance, bool) or not 0 <= distance <= 1 << 40:
        distance = 0
    return Manifest(
        method=method,
        scope=scope,
        fingerprint=fingerprint,
        model=model.value,
        layers=layers,
        encoder=encoder,
        group=group,
        sink=sink,
        recent=recent,
        files=_files(fields),
        tensors=tensors,
        numbers_sha256=fields.text("numbers_sha256", ""),
        longest_distance=distance,
    )


def numbers_sha256(document: dict[str, Any]) -> str:
    """SHA-256 of everything that affects the numbers of a bundle: docs/format-bundle.md, `numbers_sha256`."""
    numbers = {key: document[key] for key in NUMBERS} | {"fingerprint": document["model"]["fingerprint"]}
    return hashlib.sha256(canonical_json(numbers).encode()).hexdigest()
