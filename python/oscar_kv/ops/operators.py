"""The cache operators on plain tensors, declared to torch: schemas, fakes for torch.compile and export, and the torch
reference (reference.py) for every device, which takes the arguments by name (view.py). If the CUDA operators (csrc/)
are installed and a GPU is present, load.py loads them for CUDA tensors. table_checks.py looks at tables before a call.

Codes of a side come as RowCode.numbers(). pool [pages, Hkv, bytes] uint8 holds pages as described in
format/page_layout.py, and windows [window pages, Hkv, 128 d] BF16 as in format/window_layout.py. Tables, lengths and
runs are int32."""

import contextlib
import functools
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import torch

from ..format.codec import code_of
from ..format.page_layout import PAGE_TOKENS
from . import chunk_reference, reference, table_checks
from .view import StepView

NO_FAULT = 2**31 - 1  # of `bad`

Reference = Callable[[StepView], Any]
_arguments: dict[torch._ops.OpOverload, list[str]] = {}
_references: dict[torch._ops.OpOverload, Reference] = {}
_reference_depth: list[None] = []  # one for each by_reference() that is open
_library = torch.library.Library("oscar_kv", "FRAGMENT")


def _view(operator: torch._ops.OpOverload, given: Sequence[Any]) -> StepView:
    return StepView(**dict(zip(_arguments[operator], given, strict=True)))


def _declare(
    name: str, schema: str, implementation: Reference | None, fake: Reference = lambda a: None, instead: str = ""
) -> torch._ops.OpOverload:
    """implementation, fake: of a StepView with the names of the schema. No implementation: only kernels serve it;
    instead: what does without them."""
    _library.define(name + schema)
    operator = getattr(torch.ops.oscar_kv, name).default
    _arguments[operator] = [argument.name for argument in operator._schema.arguments]

    def reference(a: StepView) -> Any:
        if implementation is None:
            raise RuntimeError(f"oscar_kv::{name}: the CUDA operators are not loaded{instead}")
        if table_checks.enabled():
            table_checks.check_call(name, a)
        return implementation(a)

    _references[operator] = reference
    _library.impl(name, lambda *given: reference(_view(operator, given)), "CompositeExplicitAutograd")
    torch.library.register_fake(f"oscar_kv::{name}", lambda *given: fake(_view(operator, given)), lib=_library)
    return operator


@functools.cache
def check_kernels() -> None:
    """From now on, tables are looked at before kernels are launched, too. A capture cannot read what was found."""
    later = torch._C._dispatch_keyset_full_after(torch._C.DispatchKey.BackendSelect)

    def checked(operator: torch._ops.OpOverload, keys: torch._C.DispatchKeySet, *given: Any) -> Any:
        on_cuda = any(isinstance(one, torch.Tensor) and one.is_cuda for one in given)
        if on_cuda and table_checks.enabled() and not torch.cuda.is_current_stream_capturing():
            table_checks.check_call(operator._schema.name.removeprefix("oscar_kv::"), _view(operator, given))
        return operator.redispatch(keys & later, *given)

    for operator in _arguments:
        name = operator._schema.name.removeprefix("oscar_kv::")
        _library.impl(name, functools.partial(checked, operator), "BackendSelect", with_keyset=True)


@contextlib.contextmanager
def by_reference() -> Iterator[None]:
    """Inside, run() computes with the torch reference on every device."""
    _reference_depth.append(None)
    try:
        yield
    finally:
        _reference_depth.pop()


def references() -> bool:
    """Whether run() is inside by_reference()."""
    return bool(_reference_depth)


def run(operator: torch._ops.OpOverload, a: StepView) -> Any:
    """Calls an operator with those values of a view that its schema names."""
    held = a.__dict__
    if _reference_depth:
        return _references[operator](StepView(**{name: held[name] for name in _arguments[operator]}))
    return operator(*[held[name] for name in _arguments[operator]])


def places(
    operator: torch._ops.OpOverload, names: Sequence[str], own: Mapping[str, Any]
) -> tuple[list[Any], list[int]]:
    """The operator's arguments in order, those of `own` in place, and where those of `names` go. KeyError if one is
    missing, ValueError if the operator has no such argument."""
    order = _arguments[operator]
    values = [None if name in names else own[name] for name in order]
    return values, [order.index(name) for name in names]


# Writes rows [N, Hkv, d] BF16 in the cache basis into pages, as given by runs [R, 5] (tables.RUN): clips, encodes
# (minmax or search) and packs them. clip [Hkv]; sigma [Hkv, 4]; bad [2]: the smallest position * Hkv + head that is not
# finite, for keys and for values.
quantize_rows = _declare(
    "quantize_rows",
    "(Tensor(a!) pool, Tensor key, Tensor value, Tensor runs, Tensor key_sigma, Tensor value_sigma, "
    "Tensor key_clip, Tensor value_clip, Tensor(b!) bad, bool search, int[] key_code, int[] value_code) -> ()",
    reference.quantize_rows,
)


def _dequantize_fake(a: StepView) -> tuple[torch.Tensor, ...]:
    shape = (a.runs.shape[0] * PAGE_TOKENS, a.pool.shape[1])
    return tuple(
        a.pool.new_empty((*shape, code_of(code).head_dim), dtype=torch.float32) for code in (a.key_code, a.value_code)
    )


# Complete pages, one per run (page_runs()), as FP32 rows in the cache basis: keys, values [64 R, Hkv, d].
dequantize_pages = _declare(
    "dequantize_pages",
    "(Tensor pool, Tensor runs, Tensor key_sigma, Tensor value_sigma, int[] key_code, int[] value_code) -> (Tensor, "
    "Tensor)",
    reference.dequantize_pages,
    _dequantize_fake,
)


def _append_fake(a: StepView) -> torch.Tensor:
    return a.windows.new_empty((0,) if a.query is None else a.query.shape)


# Transforms the newest row of each sequence to the cache basis and writes it into its window. key and value: [B, Hkv,
# d] at position lengths[b] - 1. query [B, Hq, d] or none: returned in that basis, BF16. Matrices [1 or Hkv, d, d]
# multiply rows from the right.
append_tokens = _declare(
    "append_tokens",
    "(Tensor(a!) windows, Tensor window_table, Tensor? query, Tensor key, Tensor value, Tensor lengths, Tensor? "
    "query_matrix, Tensor? key_matrix, Tensor? value_matrix, Tensor? key_mean, Tensor? value_mean, int sink) -> "
    "Tensor",
    reference.append_tokens,
    _append_fake,
)

# Writes the newest token of each sequence (lengths counts it) from its window into its page.
flush_tokens = _declare(
    "flush_tokens",
    "(Tensor(a!) pool, Tensor windows, Tensor window_table, Tensor table, Tensor lengths, Tensor key_sigma, Tensor "
    "value_sigma, Tensor key_clip, Tensor value_clip, Tensor(b!) bad, int sink, bool search, int[] key_code, int[] "
    "value_code) -> ()",
    reference.flush_tokens,
)


def _decode_fake(a: StepView) -> tuple[torch.Tensor, torch.Tensor]:
    return (
        a.query.new_empty(a.query.shape, dtype=torch.float32),
        a.query.new_empty(a.query.shape[:-1] if a.want_lse else (0,), dtype=torch.float32),
    )


# Softmax attention of each sequence's newest token over the three tiers, in the cache basis. query [B, Hkv, g, d] BF16
# (the reference also takes FP32); table [B, P].
# turned [B, Hkv, g, d], phases [positions, d] and tile_phases: phase logits of rotated means. window: sliding window, 0
# for none. workspace: from cache.shared.Shared, not used by the reference.
# Returns output [B, Hkv, g, d] and, if requested, log-sum-exp [B, Hkv, g], FP32; 0 and -inf for a sequence of length 0.
decode_attention = _declare(
    "decode_attention",
    "(Tensor query, Tensor pool, Tensor table, Tensor windows, Tensor window_table, Tensor lengths, Tensor key_sigma, "
    "Tensor value_sigma, Tensor? turned, Tensor? phases, Tensor? tile_phases, Tensor(a!) workspace, float scale, int "
    "sink, int recent, int window, bool want_lse, int[] key_code, int[] value_code) -> (Tensor, Tensor)",
    reference.decode_attention,
    _decode_fake,
)

SIDE_BYTES = 256  # kNewestSideBytes of kernels/quantize/newest_tokens.h

# Writes the descriptors of one layer, sides [2, SIDE_BYTES] uint8 on the CPU. They hold addresses, so pool, windows and
# the other tensors must not move. bad [2]: as in quantize_rows.
describe_layer = _declare(
    "describe_layer",
    "(Tensor(a!) sides, Tensor pool, Tensor windows, Tensor key_sigma, Tensor value_sigma, Tensor key_clip, Tensor "
    "value_clip, Tensor bad, int[] key_code, int[] value_code) -> ()",
    None,
    instead="; flush_tokens serves one layer",
)

# flush_tokens for layers of any codes, in one launch. sides [2 L, SIDE_BYTES]: describe_layer() of all layers, on the
# device. row: their head size. Or latent_flush, with sides [L, SIDE_BYTES] of describe_latent(), one head, and row 576.
flush_layers = _declare(
    "flush_layers",
    "(Tensor lengths, Tensor table, Tensor window_table, Tensor sides, int kv_heads, int row, int sink, bool "
    "search) -> ()",
    None,
    instead="; flush_tokens serves one layer",
)


# Whether the operators run on the device of `like`: CUDA's error or 0, the driver's version of CUDA (13000), and the
# version that it must have to translate the operators' PTX.
device_code = _declare("device_code", "(Tensor like) -> (int, int, int)", None, lambda a: (0, 0, 0))

# Bytes that decode_attention needs on the device of `like`. page_queries: from support.page_queries() with rotated
# means, otherwise 0.
decode_workspace_bytes = _declare(
    "decode_workspace_bytes",
    "(Tensor like, int head_dim, int group, int batch, int kv_heads, int page_queries) -> int",
    lambda a: 0,
    lambda a: 0,
)

# Chunks of prompts (cache/chunk_pass.py). Writes stored tokens and new rows [N, Hkv, d], in the model's basis, into
# key_out and value_out [M, Hkv, d], as given by tiles [T, 6] (tables.TILE). Matrices [1 or Hkv, d, d] undo the change
# of basis. Kernels take them in two terms (chunk_reference.split_matrix()). phases [positions, d] if the mean was taken
# before RoPE.
past_rows = _declare(
    "past_rows",
    "(Tensor pool, Tensor windows, Tensor tiles, Tensor key, Tensor value, Tensor key_matrix, Tensor value_matrix, "
    "Tensor? key_mean, Tensor? value_mean, Tensor? phases, Tensor key_sigma, Tensor value_sigma, Tensor(a!) key_out, "
    "Tensor(b!) value_out, int[] key_code, int[] value_code) -> ()",
    chunk_reference.past_rows,
)

# Writes new rows [N, Hkv, d] of the model into windows and pages, as given by runs [R, 6] (tables.NEW_RUN). Other
# arguments as in quantize_rows.
new_rows = _declare(
    "new_rows",
    "(Tensor(a!) pool, Tensor(b!) windows, Tensor key, Tensor value, Tensor runs, Tensor key_matrix, Tensor "
    "value_matrix, Tensor? key_mean, Tensor? value_mean, Tensor? phases, Tensor key_sigma, Tensor value_sigma, Tensor "
    "key_clip, Tensor value_clip, Tensor(c!) bad, bool search, int[] key_code, int[] value_code) -> ()",
    chunk_reference.new_rows,
)


PASS_BYTES = 2048  # kPassBytes of csrc/step.cpp

# Writes into state [PASS_BYTES] uint8 on the CPU the arguments of a step and of new_rows that stay the same from pass
# to pass. It holds addresses. key_terms, value_terms: key_matrix and value_matrix of new_rows.
describe_pass = _declare(
    "describe_pass",
    "(Tensor(a!) state, Tensor pool, Tensor windows, Tensor query_matrix, Tensor key_matrix, Tensor value_matrix, "
    "Tensor output_matrix, Tensor key_terms, Tensor value_terms, Tensor? key_mean, Tensor? value_mean, Tensor? phases, "
    "Tensor? tile_phases, Tensor key_sigma, Tensor value_sigma, Tensor key_clip, Tensor value_clip, Tensor bad, Tensor "
    "workspace, float scale, int sink, int recent, bool search, int[] key_code, int[] value_code) -> ()",
    None,
    instead="; other operators serve a layer",
)

# new_rows with these runs, then a step for the first rows, as many as lengths has: they enter their windows and attend,
# and output [.., Hq, d] is written. None leaves either out. state: of describe_pass().
layer_pass = _declare(
    "layer_pass",
    "(Tensor(a!) output, Tensor query, Tensor key, Tensor value, Tensor state, Tensor? table, Tensor? window_table, "
    "Tensor? lengths, Tensor? runs) -> ()",
    None,
    instead="; other operators serve a layer",
)

# Merges another part of a softmax into out [N, H, d] with log-sum-exp [H, N] FP32.
merge_outputs = _declare(
    "merge_outputs",
    "(Tensor(a!) out, Tensor(b!) lse, Tensor part, Tensor part_lse) -> ()",
    lambda a: chunk_reference.merge_outputs(**vars(a)),
)


PAGE_RANK = 32  # kPageRank of kernels/decode/tile_phases.h

# The tables of kernels/decode/tile_phases.h that the kernel reads beside phases, FP16 bits, from frequencies [d / 2] on
# the CPU.
tile_phases = _declare(
    "tile_phases",
    "(Tensor frequencies) -> Tensor",
    None,
    lambda a: a.frequencies.new_empty((2 * PAGE_RANK * (2 * a.frequencies.shape[0] + PAGE_TOKENS),), dtype=torch.int16),
    "; the reference needs no such table",
)

page_runs = reference.page_runs
