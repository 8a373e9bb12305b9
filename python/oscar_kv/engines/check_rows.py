"""Queries, keys and values for the self-check of a layer: those of the model that the bundle carries
(self_check.safetensors), or made ones. docs/format-bundle.md describes the file."""

import dataclasses

import torch

from ..cache.layer_code import LayerCode
from ..cache.transform import LayerTransform
from ..files.errors import InputError
from ..files.foreign_files import is_present
from ..files.safetensors_file import SafetensorsFile
from ..format.bundle import Bundle
from ..format.latent_layout import CHANNELS
from ..format.manifest import CHECK

MOST_QUERY = 150.0  # length of a made query; layer 0 of Qwen2.5-Coder-1.5B has such, and key means of 350
MOST_ROWS, MOST_POSITION = 4096, 1 << 30


@dataclasses.dataclass
class CheckRows:
    """Tokens [0, n) of one sequence."""

    key: torch.Tensor  # [n, Hkv, d] BF16
    value: torch.Tensor
    query: torch.Tensor  # [m, Hq, d] FP32, any of which may stand at any position
    positions: torch.Tensor | None = None  # [m] of the queries; None: they have none

    def query_at(self, positions: torch.Tensor, transform: LayerTransform) -> torch.Tensor:
        """One query for each position: [T, Hq, d] BF16."""
        chosen = torch.arange(len(positions), device=positions.device) % len(self.query)
        query = self.query[chosen]
        if self.positions is not None:
            query = turned(query, positions - self.positions[chosen], transform)
        return query.bfloat16()


def turned(rows: torch.Tensor, by: torch.Tensor, transform: LayerTransform) -> torch.Tensor:
    """rows [T, H, d] after RoPE, moved by [T] positions. Rows that lose no mean before RoPE stay as they are, because
    their place changes nothing in the cache."""
    if not transform.rotated_mean or transform.phases is None:
        return rows
    cos, sin = (transform.phases.rows(by) / transform.phases.factor).unsqueeze(1).chunk(2, dim=-1)
    first, second = rows.float().chunk(2, dim=-1)
    return torch.cat([first * cos - second * sin, second * cos + first * sin], dim=-1)


class ModelRows:
    """The file of a bundle. InputError if it is not what docs/format-bundle.md says."""

    def __init__(self, bundle: Bundle) -> None:
        self._file, self._first = SafetensorsFile(bundle.path / CHECK), bundle.first_head
        self._positions = self._tensor("positions", "I64", (0,))
        if not bool(((self._positions >= 0) & (self._positions <= MOST_POSITION)).all()):
            raise InputError(
                f"{self._file.path}: a position is negative or above {MOST_POSITION}; fit the bundle again"
            )

    def _tensor(self, name: str, dtype: str, shape: tuple[int, ...]) -> torch.Tensor:
        """shape: 0 stands for 1 to MOST_ROWS."""
        entry = self._file.entries.get(name)
        if (
            entry is None
            or entry.dtype != dtype
            or len(entry.shape) != len(shape)
            or not all(1 <= n <= MOST_ROWS if want == 0 else n == want for n, want in zip(entry.shape, shape))
        ):
            found = "missing" if entry is None else f"{entry.dtype} {entry.shape_text()}"
            raise InputError(
                f"{self._file.path}: the tensor {name} is {found}, expected {dtype} {list(shape)}, where "
                f"0 stands for 1 to {MOST_ROWS}; fit the bundle again, or delete the file"
            )
        kind = torch.int64 if dtype == "I64" else torch.bfloat16
        return torch.frombuffer(bytearray(self._file.bytes_of(name)), dtype=kind).reshape(entry.shape)

    def _check_finite(self, layer: int, *rows: torch.Tensor) -> None:
        if not all(bool(torch.isfinite(x).all()) for x in rows):
            raise InputError(f"{self._file.path}: rows of layer {layer} hold NaN or infinity")

    def rows(self, code: LayerCode, group: int, count: int) -> CheckRows:
        """`count` tokens of a layer; the rows come again where there are fewer."""
        name, d, n = f"layers.{code.layer.layer}", code.layer.head_dim, len(self._positions)
        heads = slice(self._first, self._first + code.layer.kv_heads)
        key, value = (self._tensor(f"{name}.{side}", "BF16", (n, 0, d)) for side in "kv")
        query = self._tensor(f"{name}.q", "BF16", (0, 0, d))
        if (
            key.shape != value.shape
            or key.shape[1] < heads.stop
            or query.shape[1] % key.shape[1]
            or (len(query) > n or query.shape[1] // key.shape[1] < group)
        ):
            raise InputError(
                f"{self._file.path}: layer {code.layer.layer} has {list(query.shape)} queries for "
                f"{list(key.shape)} keys and {list(value.shape)} values, which are no rows of this model"
            )
        self._check_finite(code.layer.layer, query, key, value)
        query = query.unflatten(1, (key.shape[1], -1))[:, heads, :group].flatten(1, 2).float().to(code.device)
        again, places = torch.arange(count) % n, self._positions.to(code.device)
        key, value = (x[again, heads].to(code.device) for x in (key, value))
        key = turned(key, torch.arange(count, device=code.device) - places[again.to(code.device)], code.transform)
        return CheckRows(key.bfloat16().contiguous(), value.contiguous(), query, places[n - len(query) :])

    def latents(self, layer: int, heads: int, count: int) -> tuple[torch.Tensor, torch.Tensor]:
        """Of latent attention: rows [count, 512], which come again where there are fewer, and absorbed queries
        [m, heads, 512], both in FP32."""
        n = len(self._positions)
        key, query = (self._tensor(f"layers.{layer}.{name}", "BF16", (0, 0, CHANNELS)).float() for name in "kq")
        if key.shape[:2] != (n, 1) or len(query) > n or query.shape[1] < heads:
            raise InputError(
                f"{self._file.path}: layer {layer} has {list(query.shape)} queries for {list(key.shape)} latents, "
                f"which are no rows of this model"
            )
        self._check_finite(layer, query, key)
        return key[torch.arange(count) % n, 0], query[:, :heads]


def model_rows(bundle: Bundle) -> ModelRows | None:
    """None if the bundle carries none, or if they were deleted."""
    return ModelRows(bundle) if is_present(bundle.path / CHECK) else None


def made_rows(code: LayerCode, group: int, count: int) -> CheckRows:
    """Of what the bundle knows of its model: the mean of its keys and values, and their deviations in the cache's
    basis. One query is along the mean of the newest key, if that was taken before RoPE, as strong as those of real
    models, where the logits of large key means are in the thousands; the other is random."""
    layer, transform, made = code.layer, code.transform, []
    generator = torch.Generator().manual_seed(layer.layer)
    for codec, back, mean in (
        (code.key, transform.query.transpose(1, 2), transform.key_mean),
        (code.value, transform.output, transform.value_mean),
    ):
        spread = codec.sigma.repeat_interleave(layer.head_dim // 4, dim=1) if codec.sigma is not None else 1.0
        rows = torch.randn(layer.kv_heads, count, layer.head_dim, generator=generator).to(code.device) * (
            spread if isinstance(spread, float) else spread[:, None]
        )
        rows = torch.matmul(rows, back).transpose(0, 1)
        if codec is code.key and transform.rotated_mean:
            rows = rows + transform.mean_at(torch.arange(count, device=code.device))
        elif mean is not None:
            rows = rows + mean
        made.append(rows.bfloat16().contiguous())
    key, value = made
    noise = torch.randn(layer.kv_heads * group, layer.head_dim, generator=generator).to(code.device)
    length = key[-1].float().norm(dim=-1).clamp(min=1e-6)
    queries = [noise * 3 * layer.head_dim**0.5 / length.repeat_interleave(group)[:, None]]
    if transform.rotated_mean:
        own = transform.mean_at(torch.tensor([count - 1], device=code.device))[0]
        own = own / own.norm(dim=-1, keepdim=True).clamp(min=1e-6) * MOST_QUERY
        queries.append(own.repeat_interleave(group, 0) + noise)
    return CheckRows(key, value, torch.stack(queries))
