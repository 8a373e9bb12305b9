"""State shared by the layers of one worker of a serving engine: the bundle, or the worker's heads of it, and the cache
of each layer. Imports no engine: engines/vllm/serving.py and engines/sglang/serving.py check the settings of theirs and
fill it."""

import contextlib
import logging
import warnings
from collections.abc import Iterable, Iterator, Mapping, Sequence

import torch

from ..cache.latent_kv import LatentCode, LatentKV
from ..cache.layer_code import LayerCode
from ..cache.prefix_table import PrefixTable, kept_sinks
from ..cache.rows import Rows
from ..cache.shared import Shared
from ..cache.slot_kv import SlotKV, SlotTable
from ..cache.step_flush import StepFlush
from ..files.errors import InputError
from ..files.fingerprint import checkpoint_fingerprint
from ..files.rope_settings import check_reach, check_rope
from ..format.bundle import Bundle, check_geometry
from ..format.latent_layout import LatentPages
from ..format.manifest import Fitted, Layer, side_codec
from ..format.page_layout import PAGE_TOKENS, PageLayout
from ..format.windows import ring_pages, sink_pages
from ..ops.load import rocm_unsupported
from . import latent_check, self_check
from .faults import Faults
from .port import Settings
from .rope import phases_of


@contextlib.contextmanager
def plain_torch() -> Iterator[None]:
    """Engines build models under their own default device and dtype, which must not apply to bundles."""
    dtype = torch.get_default_dtype()
    torch.set_default_dtype(torch.float32)
    try:
        with torch.device("cpu"):
            yield
    finally:
        torch.set_default_dtype(dtype)


def head_range(kv_heads: int, rank: int, ranks: int, option: str) -> tuple[int, int]:
    """KV heads [begin, end) of a tensor-parallel rank. With fewer heads than ranks, several ranks have the same
    head. option: the engine's, for the message."""
    if kv_heads >= ranks:
        if kv_heads % ranks:
            raise InputError(f"{kv_heads} KV heads cannot be divided among {ranks} GPUs; choose {option} accordingly")
        return rank * (kv_heads // ranks), (rank + 1) * (kv_heads // ranks)
    return rank * kv_heads // ranks, rank * kv_heads // ranks + 1


def _check(bundle: Bundle, settings: Settings) -> None:
    """InputError unless the bundle fits the engine's settings. Warns if the calibration contexts were shorter than the
    served ones, which costs quality at long contexts."""
    if settings.shares and bundle.sink % PAGE_TOKENS:
        raise InputError(
            f"requests share prefixes, which needs a sink of whole blocks of {PAGE_TOKENS} tokens, and "
            f"the bundle has {bundle.sink}; fit with --windows 64,256, or pass "
            f"{settings.no_sharing_option}"
        )
    if settings.proposed >= bundle.recent:
        raise InputError(
            f"steps of up to {1 + settings.proposed} tokens do not fit into the bundle's recent window of "
            f"{bundle.recent}; speculate fewer, or fit with a longer window (--windows)"
        )
    folder = settings.checkpoint() if bundle.fingerprint else None
    check_geometry(
        bundle,
        settings.text.num_hidden_layers,
        settings.kv_heads,
        settings.head_size,
        checkpoint_fingerprint(folder) if folder else None,
    )
    if folder and hasattr(settings.text, "rope_parameters"):
        check_rope(settings.text, settings.plain(folder), f"leave {settings.override_option} out")
    seen, option = bundle.longest_distance + 1, settings.length_option
    if bundle.longest_distance:
        check_reach(settings.text, seen, settings.most_tokens, option)
    if bundle.longest_distance and seen < settings.most_tokens:
        warnings.warn(
            f"{bundle.path}: the calibration saw contexts of up to {seen} tokens, and {option} is "
            f"{settings.most_tokens}; quality beyond {seen} tokens was not fitted for: collect with longer "
            f"--seq-len, or serve a smaller {option}",
            stacklevel=4,
        )


def is_set(value: object) -> bool:
    """Whether an engine's argument that stands for an unsupported feature is in use."""
    return value is not None and not (isinstance(value, (int, float)) and value == 0)


def unserved(words: Mapping[str, str], values: Mapping[str, object]) -> str | None:
    """One sentence for the first feature of a layer that is not served, or None. words: {name: "a sliding window"};
    values: {name: the engine's argument}."""
    return next(
        (f"layers with {text} are not served" for name, text in words.items() if is_set(values.get(name))), None
    )


def layer_numbers(indices: Sequence[int]) -> str:
    """ "layers 0 to 4, 6"; "layer 5"."""
    runs: list[list[int]] = []
    for index in indices:
        if runs and index == runs[-1][1] + 1:
            runs[-1][1] = index
        else:
            runs.append([index, index])
    text = ", ".join(str(a) if a == b else f"{a} to {b}" for a, b in runs)
    return f"layer{'s' if len(indices) != 1 else ''} {text}"


def layers_by_reason(reasons: Mapping[int, str]) -> str:
    """ "layers 0 to 4, 6 (it has a sliding window); layer 5 (...)", or empty. reasons: {layer index: why it stays in
    BF16}."""
    by_reason: dict[str, list[int]] = {}
    for index, reason in sorted(reasons.items()):
        by_reason.setdefault(reason, []).append(index)
    return "; ".join(f"{layer_numbers(indices)} ({reason})" for reason, indices in by_reason.items())


def _cell(bundle: Fitted, layer: Layer) -> int:
    """Bytes per token and head in a page: an engine's block is [Hkv, 64, cell], this package's is [Hkv, page
    bytes]. A layer without bits has a byte that nobody reads, because engines know no pages without bytes."""
    codes = [side_codec(layer, key, bundle.encoder, bundle.group).code for key in (True, False)]
    if bundle.rope_dim:
        return LatentPages(codes[1]).bytes // PAGE_TOKENS
    return max(1, PageLayout(*codes).bytes // PAGE_TOKENS)


def bits_and_bytes(bundle: Fitted, layers: Sequence[Layer] | None = None) -> tuple[float, int]:
    """Bits of a number, and bytes of a token, in the pages of these layers, or of all."""
    layers = bundle.layers if layers is None else layers
    coded = sum(_cell(bundle, layer) * layer.kv_heads for layer in layers)
    rope = bundle.rope_dim  # of latents, beside which there are no values
    numbers = sum(layer.head_dim + rope if rope else 2 * layer.head_dim * layer.kv_heads for layer in layers)
    return 8 * coded / numbers, coded


class EngineServing:
    """bundle: of the full model, loaded under plain_torch(). InputError if it does not fit the engine's settings."""

    def __init__(self, bundle: Bundle, settings: Settings) -> None:
        if reason := rocm_unsupported():
            raise InputError(f"the 2-bit cache cannot be served: {reason}")
        with plain_torch():
            _check(bundle, settings)
            heads = head_range(settings.kv_heads, settings.rank, settings.ranks, settings.rank_option)
            self.bundle = bundle if settings.ranks == 1 else bundle.slice_heads(*heads)
            rotated = any(layer.key.rotated_mean for layer in bundle.layers)
            self.phases = phases_of(settings.text, settings.head_size) if rotated else None
            self.layers = {layer.layer: layer for layer in self.bundle.layers}
            self.cells = {index: _cell(self.bundle, layer) for index, layer in self.layers.items()}
        self.shares, self.slots, self.most_tokens = settings.shares, settings.slots, settings.most_tokens
        self.most_new = 1 + settings.proposed  # tokens of a request in a decode step
        self._caches: dict[int, SlotKV] = {}
        self._latents: dict[int, LatentKV] = {}
        self._faults: Faults | None = None
        self.shared, self._verdict, self._told = Shared(settings.flash), "", False

    def cell(self, index: int) -> int:
        """InputError if the layer is not in the bundle."""
        if index not in self.cells:
            raise InputError(f"{self.bundle.path}: the bundle lacks layer {index} of the model; fit all layers")
        return self.cells[index]

    @property
    def kept(self) -> int:
        """Sinks of other requests that are kept in BF16."""
        return kept_sinks(self.slots, sink_pages(self.bundle.sink)) if self.shares else 0

    def new_table(self, device: torch.device) -> SlotTable:
        """Converts the engine's batches to rows."""
        sinks, recent, new = sink_pages(self.bundle.sink), self.bundle.recent, self.most_new
        ring = ring_pages(recent, new)
        if self.shares:
            return PrefixTable(self.slots, sinks, ring, device, self.kept, recent, self.request_of, new)
        return SlotTable(self.slots, sinks + ring, device, new)

    def request_of(self, slot: int) -> int:
        """A number that changes whenever this slot gets another request, 0 before the first."""
        raise NotImplementedError

    def flush_of(self, layers: Sequence[int], memory: Mapping[int, torch.Tensor]) -> StepFlush | None:
        """The StepFlush of layers that share block tables, None if kernels do not support them. memory: {layer index:
        the engine's memory}."""
        held = self.caches()
        if any(i not in held or held[i].code.without_kernels for i in layers):
            return None
        return StepFlush({i: held[i] for i in layers}, {i: held[i].pool(memory[i]) for i in layers})

    def restore(self, layers: Iterable[int], rows: Rows) -> None:
        """Before a pass, outside graphs: requests that begin with others' blocks get their sinks in these layers."""
        for index in layers if rows.sinks is not None else ():
            assert rows.sinks is not None
            self.caches()[index].restore(*rows.sinks)

    def caches(self) -> Mapping[int, SlotKV | LatentKV]:
        """{layer index: its cache} of the layers that were made; all of one kind."""
        return self._latents if self.bundle.rope_dim else self._caches

    def check(self, log: logging.Logger, tokens: int, context: int = 0) -> None:
        """The self-check, once, on a GPU, and one line on what is served. InputError if the check fails. log: also for
        what passed() finds later. tokens: that fit into the engine's memory. context: of a request; less
        is memory for a trial."""
        if self._faults is None:
            self._faults = Faults(self.caches, log, self.count_nonfinite)
        if not self._verdict and any(kv.code.device.type == "cuda" for kv in self.caches().values()):
            check = latent_check.checked if self.bundle.rope_dim else None
            self._verdict = self_check.passed(self, log, check)
        if not self._told and tokens >= context:
            self._told = True
            log.info("oscar-kv: %s", self.summary(tokens))

    def summary(self, tokens: int) -> str:
        """One line on what is served."""
        served = sorted(self.caches() or self.layers)
        bits, coded = bits_and_bytes(self.bundle, [self.layers[i] for i in served])
        return (
            f"bundle {self.bundle.path}, method {self.bundle.method}, {bits:.2f} bits a number in "
            f"{layer_numbers(served)}; {coded} bytes a token on this GPU, {16 / bits:.1f}x less than BF16; "
            f"{tokens} tokens fit; windows of {self.bundle.sink} and {self.bundle.recent} tokens in BF16; layers "
            f"in BF16: {self.bf16_text() or 'none'}; {self._verdict or 'no self-check without a GPU'}"
        )

    def bf16_text(self) -> str:
        """Layers that stay in BF16, with reasons; empty: none."""
        raise NotImplementedError

    def passed(self) -> None:
        """Called once a forward pass, outside graphs: logs keys and values that were not finite."""
        if self._faults is not None:
            self._faults.passed()

    def count_nonfinite(self, rows: int) -> None:
        """Counts rows that were not finite, in an engine with metrics."""

    def room(self) -> int:
        """Tokens that the table of a request may have."""
        return self.most_tokens

    def latent_cache(self, index: int, heads: int, device: torch.device) -> LatentKV:
        """cache() of latent attention. heads: query heads on this GPU."""
        if index not in self._latents:
            self.cell(index)
            with plain_torch():
                code = LatentCode(self.bundle, self.layers[index], device)
                space = next((kv.space for kv in self._latents.values()), None)
                self._latents[index] = LatentKV(code, self.slots, heads, self.most_new, self.kept, space)
        return self._latents[index]

    def cache(self, index: int, group: int, device: torch.device) -> SlotKV:
        """The cache of a layer, made at the first call, before or while the engine measures its memory."""
        if index not in self._caches:
            self.cell(index)
            with plain_torch():
                code = LayerCode(self.bundle, self.layers[index], self.phases, device, self.shared)
                kv = SlotKV(code, self.slots, self.room(), group, self.most_new, self.kept)
            self._caches[index] = kv
        return self._caches[index]
