"""Captured steps inside generate(). A forward of one new token per sequence through the model is recorded once and
replayed for later tokens, which removes Python's time between kernels. transformers controls the loop: stopping,
sampling and streaming see the same logits. Steps that cannot be recorded run eagerly. Their results are equal bit for
bit while the page tables are equally wide, because the decode kernel divides a sequence by that width.

A recording is valid while the tensors that it reads do not move. After a move, the first step runs eagerly on the
recorder's stream to allocate workspaces. The second step is recorded, and later ones are replayed."""

import contextlib
import functools
import inspect
import warnings
from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from transformers import PreTrainedModel

from .attached import Attached
from .cache import CACHE_NAME, OscarCache

ROOM = 256  # steps for which pages are reserved at a time


class Recorder:
    """Records a function's launches on a CUDA device."""

    def __init__(self, device: torch.device) -> None:
        self.stream = torch.cuda.Stream(device)

    @staticmethod
    def unsupported(attached: Attached, group: int) -> str | None:
        """Why steps cannot be recorded, or None."""
        codes = [code for code in attached.codes if code is not None]
        if len(codes) < len(attached.codes):
            return f"layer {attached.codes.index(None)} keeps states of its own"
        if attached.sources:
            return "layers share a cache"
        devices = {code.device for code in codes}
        if len(devices) != 1 or next(iter(devices)).type != "cuda":
            return "the layers are not on one CUDA device"
        for code in codes:
            if (reason := attached.unsupported(code, group)) is not None:
                return f"layer {code.layer.layer}: {reason}"
        return None

    def run(self, call: Callable[[], Any]) -> Any:
        """call() on the recorder's stream."""
        current = torch.cuda.current_stream(self.stream.device)
        self.stream.wait_stream(current)
        with torch.cuda.stream(self.stream):
            made = call()
        current.wait_stream(self.stream)
        return made

    def record(self, call: Callable[[], Any]) -> tuple[Callable[[], None], Any]:
        """(replay, result of call()): nothing is computed before the first replay(). Exceptions of call() propagate."""
        graph = torch.cuda.CUDAGraph()
        self.stream.wait_stream(torch.cuda.current_stream(self.stream.device))
        with torch.cuda.stream(self.stream):
            graph.capture_begin(capture_error_mode="thread_local")
            try:
                made = call()
            except BaseException:
                with contextlib.suppress(RuntimeError):  # the error raised here broke the capture
                    graph.capture_end()
                raise
            graph.capture_end()
        return graph.replay, made


@functools.cache
def recorder_of(device: torch.device) -> Recorder:
    """One per device, because workspaces belong to its stream."""
    return Recorder(device)


class Recording(NamedTuple):
    replay: Callable[[], None]
    inputs: tuple[torch.Tensor, torch.Tensor]
    output: Any
    kept: list[torch.Tensor]  # what it reads, even if a longer table has replaced one


class Steps:
    """The recorded step of one cache. forward: the model's, without recordings; recorder: as Recorder."""

    def __init__(self, cache: OscarCache, forward: Callable[..., Any], recorder: Recorder) -> None:
        self.cache, self.forward, self.recorder = cache, forward, recorder
        self.key: Any = None
        self.recorded: Recording | None = None
        self.is_recording = False
        self.room = 0  # steps until pages must be reserved again

    def forget(self) -> None:
        """Called if anything other than a recorded step used the cache."""
        self.room = 0

    def __call__(
        self, ids: torch.Tensor, positions: torch.Tensor, options: dict[str, Any], eager: dict[str, Any]
    ) -> Any:
        """One step. eager: arguments of the eager forward, if this step is not recorded."""
        if self.room == 0:
            self.room = self.cache.reserve_steps(ROOM)
            if self.room == 0:  # the page table is full: the forward reports it
                return self.forward(**eager)
            key = (
                ids.shape,
                ids.dtype,
                positions.shape,
                positions.dtype,
                tuple(sorted(options.items())),
                torch.is_inference_mode_enabled(),
                *(t.data_ptr() for t in self.cache.tensors()),
            )
            if key != self.key:
                self.key, self.recorded = key, None
                made = self.recorder.run(lambda: self.forward(**eager))
                self.room = 0  # pages and tables may have moved; the next step checks
                return made
        if self.recorded is None:
            self.is_recording = True
            self.recorded = self._record(ids, positions, options)
            self.is_recording = False
        for to, of in zip(self.recorded.inputs, (ids, positions)):
            to.copy_(of)
        self.recorded.replay()
        self.cache.count_steps(1)
        self.room -= 1
        output = self.recorded.output
        return type(output)(logits=output.logits.clone(), **{CACHE_NAME: self.cache})

    def _record(self, ids: torch.Tensor, positions: torch.Tensor, options: dict[str, Any]) -> Recording:
        inputs = ids.clone(), positions.clone()
        with self.cache.recording():
            replay, output = self.recorder.record(
                lambda: self.forward(input_ids=inputs[0], position_ids=inputs[1], **{CACHE_NAME: self.cache}, **options)
            )
        extra = [name for name, value in output.items() if value is not None and name not in ("logits", CACHE_NAME)]
        if extra:
            raise RuntimeError(f"the model returns {', '.join(extra)} beside logits")
        return Recording(replay, inputs, output, self.cache.tensors())


PLAIN = (bool, int, float, str, type(None))
# steps with these arguments are not recorded
BESIDE_LOGITS = ("labels", "output_attentions", "output_hidden_states", "output_router_logits")


def _plan(
    attached: Attached, cache: OscarCache, arguments: dict[str, Any]
) -> tuple[torch.Tensor, torch.Tensor, dict[str, Any]] | None:
    """(ids, positions, options) of a forward that may be recorded, or None. arguments: the forward's keywords."""
    ids, positions, mask = (arguments.get(name) for name in ("input_ids", "position_ids", "attention_mask"))
    if (
        ids is None
        or ids.dim() != 2
        or ids.shape[1] != 1
        or torch.is_grad_enabled()
        or arguments.get("use_cache") is False
    ):
        return None
    options = {
        k: v for k, v in arguments.items() if k not in ("input_ids", "position_ids", "attention_mask", CACHE_NAME)
    }
    if not all(isinstance(v, PLAIN) for v in options.values()) or options.get("return_dict") is False:
        return None
    if any(options.get(name) not in (None, False) for name in BESIDE_LOGITS):
        return None
    if not cache.holds(ids.shape[0], mask):
        return None
    if positions is None:
        positions = torch.full((1, 1), cache.get_seq_length(), device=ids.device)
    return ids, positions, options


def wrapped(model: PreTrainedModel, attached: Attached, forward: Callable[..., Any]) -> Callable[..., Any]:
    """The forward of a model with an attached bundle. forward: the model's own."""

    names = tuple(inspect.signature(forward).parameters)

    @functools.wraps(forward)
    def call(*args: Any, **kwargs: Any) -> Any:
        kwargs = dict(zip(names, args)) | kwargs
        if kwargs.get("past_key_values") is not None:
            kwargs[CACHE_NAME] = kwargs.pop("past_key_values")
        cache: Any = kwargs.get(CACHE_NAME)
        if attached.graphs is None or getattr(cache, "attached", None) is not attached:
            return forward(**kwargs)
        plan = _plan(attached, cache, kwargs)
        if plan is None:
            if cache.steps is not None:
                cache.steps.forget()
            return forward(**kwargs)
        if cache.steps is None:
            cache.steps = Steps(cache, forward, attached.graphs)
        try:
            return cache.steps(*plan, kwargs)
        except Exception as error:
            recording, cache.steps = cache.steps.is_recording, None
            if not recording:
                raise
            attached.graphs = None  # nothing was computed yet: this step and all others run eagerly
            lines = str(error).splitlines() or [type(error).__name__]
            warnings.warn(
                f"oscar-kv: steps of {type(model).__name__} cannot be recorded as a CUDA graph "
                f"({lines[0]}); generate() runs without, which is slower",
                stacklevel=2,
            )
            return forward(**kwargs)

    return call
