"""The cache of oscar_kv with transformers' cache interface: one layer per decoder layer. `update` takes the new keys
and values and returns them with a reference to the layer. The attention function (attention.py)
finds the cache through it, and appends them after attending."""

import contextlib
import copy
from collections.abc import Callable, Iterator
from typing import Any, NoReturn

import torch
from transformers.cache_utils import Cache, CacheLayerMixin, DynamicCache
from transformers.generation import utils as generation

from ..cache.layer_code import LayerCode
from ..cache.paged_kv import PagedKV, PageTable
from ..files.errors import InputError
from .attached import Attached

CARRIER = "_oscar_layer"
# The name of a cache in models and generate(): "cache" since transformers 5.24, which also accepts the older name.
CACHE_NAME = next(iter(getattr(generation, "ALL_CACHE_NAMES", ["past_key_values"])))


PROPOSALS = 64  # tokens for which assisted decoding makes room in the windows, until it proposes more


def _refuse(
    what: str, why: str = "a 2-bit cache cannot copy sequences; generate without it"
) -> Callable[..., NoReturn]:
    def method(self: object, *args: Any, **kwargs: Any) -> NoReturn:
        raise InputError(f"{what}: {why}")

    return method


Copied = tuple[torch.Tensor, torch.Tensor]  # a tensor, and its copy on another device


class OscarLayer(CacheLayerMixin):
    is_compileable = False
    is_croppable = False
    is_sliding = False
    supports_early_init = False

    def __init__(self, owner: "OscarCache", index: int, code: LayerCode) -> None:
        super().__init__()
        self.owner, self.index, self.code = owner, index, code
        self.last_reader = max((i for i, source in owner.attached.sources.items() if source == index), default=index)
        self._kv: PagedKV | None = None  # once the batch size is known (is_initialized)
        self.columns = 0  # tokens including padding, as attention masks count them
        # [B, first columns] bool on the CPU: not padding; later columns have no padding
        self.held: torch.Tensor | None = None
        self.pending: tuple[torch.Tensor, torch.Tensor] | None = None  # keys and values before attention

    @property
    def kv(self) -> PagedKV:
        assert self._kv is not None
        return self._kv

    def lazy_initialization(self, key_states: torch.Tensor, value_states: torch.Tensor) -> None:
        layer = self.code.layer
        batch, heads, _, d = key_states.shape
        if (heads, d) != (layer.kv_heads, layer.head_dim):
            raise InputError(
                f"layer {self.index}: keys have {heads} heads of {d} channels, the bundle "
                f"{layer.kv_heads} of {layer.head_dim}; the cache belongs to another model"
            )
        if key_states.dtype not in (torch.bfloat16, torch.float32):
            raise InputError(f"layer {self.index}: keys are {key_states.dtype}, expected bfloat16 or float32")
        self._kv = PagedKV(self.code, self.owner.table(batch))
        self.kv.make_room(self.owner.room)
        self.is_initialized = True

    @torch.compiler.disable
    def update(
        self, key_states: torch.Tensor, value_states: torch.Tensor, *args: Any, **kwargs: Any
    ) -> tuple[torch.Tensor, torch.Tensor]:
        if self.pending is not None:
            raise InputError(
                f"layer {self.index}: the model attended without this cache; attach() the bundle to the "
                "model that uses it"
            )
        if not self.is_initialized:
            self.lazy_initialization(key_states, value_states)
        if key_states.shape[0] != self.kv.batch:
            raise InputError(
                f"the cache holds {self.kv.batch} sequences, the model brings {key_states.shape[0]}; use "
                "one cache for one batch"
            )
        self.pending = (key_states, value_states)
        # A separate view, so that no tensor of the model holds the reference.
        keys = key_states.view(key_states.shape)
        setattr(keys, CARRIER, self)
        return keys, value_states

    def _new(self) -> tuple[torch.Tensor, torch.Tensor]:
        """The pending keys and values."""
        if self.pending is None:
            raise InputError(
                f"layer {self.index}: the model attends more than once to the same keys, which oscar-kv does not serve"
            )
        return self.pending

    def valid(self, mask: torch.Tensor | None) -> torch.Tensor | None:
        """Which [B, q] of the pending rows are not padding, on the CPU; None: all. mask: [B, columns] of the model,
        or None."""
        keys, _ = self._new()
        batch, new = keys.shape[0], keys.shape[2]
        mask = None if mask is None else self.owner.on_cpu(mask)
        if mask is None and self.held is None:
            return None
        if mask is None:
            mask = torch.ones(batch, self.columns + new, dtype=torch.bool)
        if mask.shape != (batch, self.columns + new):
            raise InputError(
                f"the attention mask is {list(mask.shape)}, expected [{batch}, {self.columns + new}]: the "
                "tokens of the cache and the new ones"
            )
        first = 0 if self.held is None else self.held.shape[1]
        if not bool(mask[:, first : self.columns].all()) or (
            self.held is not None and not torch.equal(mask[:, :first], self.held)
        ):
            raise InputError(
                "the attention mask differs from that of earlier calls at tokens which the cache holds; "
                "pass the mask of the whole conversation, padding included"
            )
        return mask[:, self.columns :]

    def keep(self, valid: torch.Tensor | None) -> None:
        """Appends the pending rows, without padding."""
        keys, values = self._new()
        batch, tokens = keys.shape[0], keys.shape[2]
        if valid is None:
            keys, values = (x.transpose(1, 2).flatten(0, 1) for x in (keys, values))
            counts = [tokens] * batch
        else:
            chosen = valid.to(keys.device)
            keys, values = (x.transpose(1, 2)[chosen] for x in (keys, values))
            counts = valid.sum(dim=1).tolist()
        self.kv.append(keys, values, counts)
        self.count(valid)

    def count(self, valid: torch.Tensor | None) -> None:
        """The pending rows are in the cache."""
        keys, _ = self._new()
        if valid is not None and not bool(valid.all()):
            held = valid.new_ones(keys.shape[0], 0) if self.held is None else self.held
            between = valid.new_ones(keys.shape[0], self.columns - held.shape[1])
            self.held = torch.cat([held, between, valid], dim=1)
        self.columns, self.pending = self.columns + keys.shape[2], None

    def state(self) -> Any:
        """For rewind()."""
        return self.columns, self.held, self.pending, self.kv.state()

    def rewind(self, state: Any) -> None:
        """Takes back all tokens since state()."""
        self.columns, self.held, self.pending, held = state
        self.kv.rewind(held)

    def get_seq_length(self) -> int:
        return self.columns

    def get_mask_sizes(self, query_length: int) -> tuple[int, int]:
        return self.columns + query_length, 0

    def get_max_length(self) -> int:
        return self.owner.attached.max_tokens or -1

    get_max_cache_shape = get_max_length  # the older name in transformers 5.17

    def reset(self) -> None:
        self.columns, self.held, self.pending = 0, None, None
        if self.is_initialized:
            self.kv.reset()

    def lengths_of(self, columns: int) -> list[int]:
        """Tokens of each sequence among the first columns."""
        if self.held is None:
            return [columns] * self.kv.batch
        padded = self.held.shape[1]
        return [int(n) + max(0, columns - padded) for n in self.held[:, :columns].sum(dim=1)]

    def crop(self, tokens: int) -> None:
        """Takes back -tokens tokens, or all but the first `tokens` if that is above 0. InputError if the windows do not
        have what is then in them."""
        columns = self.columns + tokens if tokens <= 0 else min(tokens, self.columns)
        if not self.is_initialized or columns == self.columns:
            return
        if columns < 0:
            raise InputError(f"crop({tokens}): the cache holds {self.columns} tokens")
        lengths = self.lengths_of(columns)
        if (reason := self.kv.crop_refusal(lengths)) is not None:
            raise InputError(
                f"crop({tokens}): {reason}; copy the cache before (copy.deepcopy), or take back fewer tokens"
            )
        self.kv.crop(lengths)
        self.columns = columns
        self.held = None if self.held is None else self.held[:, :columns]

    def activate_past_recording(self) -> None:
        self.owner.activate_past_recording()

    reorder_cache = _refuse("beam search")
    batch_repeat_interleave = _refuse("batch_repeat_interleave")
    batch_select_indices = _refuse("batch_select_indices")
    offload = prefetch = _refuse("cache offloading")


class OscarCache(Cache):
    """One page table for all layers. Made by oscar_kv.new_cache(model), or by generate() after attach()."""

    def __init__(self, attached: Attached) -> None:
        self.attached = attached
        self._table: PageTable | None = None
        self._mask: Copied | None = None  # the last call's mask and its copy on the CPU, shared by layers
        self._held: Copied | None = None  # the padding mask, and its copy on the masks' device
        self.steps: Any = None  # graphs.Steps, once steps are recorded
        self.is_recording = False
        # tokens that may be taken back; last tokens of the running forward that are proposals
        self.room = self.proposed = 0
        self.assisted = False  # during assisted decoding
        own = self._own_layers()
        super().__init__(
            layers=[own[i] if code is None else OscarLayer(self, i, code) for i, code in enumerate(attached.codes)]
        )
        self.paged = [layer for layer in self.layers if isinstance(layer, OscarLayer)]

    def _own_layers(self) -> list[Any]:
        """transformers' layers, by decoder layer index, if some layers have linear attention or windows in other
        heads."""
        return DynamicCache(config=self.attached.config).layers if None in self.attached.codes else []

    def table(self, batch: int) -> PageTable:
        if self._table is None:
            self._table = PageTable(batch, self.attached.most_pages)
        return self._table

    def on_cpu(self, mask: torch.Tensor) -> torch.Tensor:
        if self._mask is None or self._mask[0] is not mask:
            self._mask = (mask, mask.to("cpu", torch.bool))
        return self._mask[1]

    def holds(self, batch: int, mask: torch.Tensor | None) -> bool:
        """Whether one new token of each of `batch` sequences may be recorded. The mask [B, columns + 1] or None must
        match the cache, and no new token may be padding. Waits for the mask's device."""
        first = self.paged[0]
        if (
            any(not layer.is_initialized or layer.columns != first.columns for layer in self.paged)
            or first.kv.batch != batch
            or first.columns == 0
        ):
            return False
        if mask is None:
            return first.held is None
        if mask.dim() != 2 or mask.shape != (batch, first.columns + 1):
            return False
        if first.held is None:
            return bool(mask.all())
        if self._held is None or self._held[0] is not first.held:
            self._held = (first.held, first.held.to(mask.device))
        padded = first.held.shape[1]
        return bool(((mask[:, :padded] != 0) == self._held[1]).all() & mask[:, padded:].all())

    def reserve_steps(self, steps: int) -> int:
        """Reserves room for this many more tokens of every sequence, or for the rest up to max_tokens; returns the
        number."""
        most = self.attached.max_tokens
        for layer in self.paged:
            if most is not None:
                steps = max(0, min(steps, most - max(layer.kv.lengths)))
            layer.kv.reserve(steps, more=True)
        return steps

    def tensors(self) -> list[torch.Tensor]:
        """The tensors that a recorded step reads and writes, beside weights."""
        return [t for layer in self.paged for t in layer.kv.tensors()]

    @contextlib.contextmanager
    def recording(self) -> Iterator[None]:
        """Inside, attention launches its kernels but does not count."""
        self.is_recording = True
        try:
            yield
        finally:
            self.is_recording = False
            for layer in self.paged:
                layer.pending = None

    def count_steps(self, steps: int) -> None:
        """Counts replays of a recorded step."""
        for layer in self.paged:
            layer.kv.count(steps)
            layer.columns += steps

    @property
    def nbytes(self) -> int:
        """Bytes of windows and pages in all layers."""
        return sum(layer.kv.allocated_bytes() for layer in self.paged if layer.is_initialized)

    def __repr__(self) -> str:
        """The cache's content, and the size of the same tokens in BF16."""
        bundle, filled = self.attached.bundle, [layer.kv for layer in self.paged if layer.is_initialized]
        if not filled or not any(filled[0].lengths):
            return f"OscarCache(empty, method {bundle.method}, {len(self.paged)} of {len(self.layers)} layers)"
        lengths = filled[0].lengths
        full = 4 * sum(kv.code.layer.kv_heads * kv.code.layer.head_dim * sum(kv.lengths) for kv in filled)
        of = f"{lengths[0]:,} tokens"
        if len(lengths) > 1:
            of = f"{len(lengths)} sequences of up to {max(lengths):,} tokens"
        coded = sum(max(0, kv.quantized_end(n) - bundle.sink) for kv in filled[:1] for n in kv.lengths)
        return (
            f"OscarCache({of}, {coded:,} of {sum(lengths):,} tokens coded, method {bundle.method}, "
            f"{len(self.paged)} of {len(self.layers)} layers: {self.nbytes:,} bytes, {full:,} in BF16)"
        )

    def __deepcopy__(self, memo: dict[int, Any]) -> "OscarCache":
        """A separate cache with the same tokens, for several continuations of one prompt. Shares the result of
        attach()."""
        if any(layer.pending is not None for layer in self.paged):
            raise InputError(
                "the cache holds keys that its model has not attended to; copy it between calls of the model"
            )
        memo[id(self.attached)] = self.attached
        memo |= {id(code): code for code in self.attached.codes if code is not None}
        twin = memo[id(self)] = type(self).__new__(type(self))
        # the masks and recorded steps belong to one cache
        fresh = dict(_mask=None, _held=None, steps=None)
        twin.__dict__.update(
            fresh | {name: copy.deepcopy(value, memo) for name, value in self.__dict__.items() if name not in fresh}
        )
        return twin

    __copy__ = _refuse("copy.copy", "both caches would write the same pages; use copy.deepcopy")
    __getstate__ = _refuse(
        "pickle", "a cache belongs to the model in this process; keep the tokens and fill a new cache"
    )

    def reset(self) -> None:
        self.steps = None
        if self._table is not None:
            self._table.release()
        for layer in self.paged:
            layer.reset()
        # their own reset() keeps zeroed tokens in transformers 5.17
        for i, (code, fresh) in enumerate(zip(self.attached.codes, self._own_layers())):
            if code is None:
                self.layers[i] = fresh

    def activate_past_recording(self) -> None:
        """Assisted decoding will take tokens back."""
        self.make_room(PROPOSALS)
        for layer in self.layers:
            if not isinstance(layer, OscarLayer) and hasattr(layer, "activate_past_recording"):
                layer.activate_past_recording()

    def make_room(self, tokens: int) -> None:
        if tokens > self.room:
            self.room = tokens
            self._changed()
            for layer in self.paged:
                if layer.is_initialized:
                    layer.kv.make_room(tokens)

    def _changed(self) -> None:
        if self.steps is not None:
            self.steps.forget()

    def propose(self, kept: Any) -> None:
        """A forward of assisted decoding begins. kept: its last tokens with logits, all but the first of which are
        proposals; None: the model does not say."""
        if not self.assisted:
            return
        if kept is None:
            raise InputError(
                "assisted decoding needs a model whose forward has the argument logits_to_keep; generate "
                "without an assistant"
            )
        self.proposed = max(0, int(kept) - 1)
        self.make_room(self.proposed)

    def end_assistance(self) -> None:
        self.assisted, self.proposed = False, 0

    def crop(self, tokens: int) -> None:
        """OscarLayer.crop() of every layer. Layers of transformers itself must keep past states
        (activate_past_recording())."""
        for layer in self.layers:
            if not isinstance(layer, OscarLayer) and tokens != 0 and not layer.is_croppable:
                raise InputError(
                    f"crop({tokens}): a layer keeps the state of its last token only ({type(layer).__name__})"
                )
        self._changed()
        for layer in self.layers:
            layer.crop(tokens)

    reorder_cache = _refuse("beam search")
    batch_repeat_interleave = _refuse("batch_repeat_interleave")
    batch_select_indices = _refuse("batch_select_indices")
