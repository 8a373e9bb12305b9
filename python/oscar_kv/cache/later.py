"""Numbers of the device that the host reads without a wait."""

from typing import Any

import torch


class Later:
    """A copy of a tensor. Not to be made while a graph is recorded."""

    def __init__(self, tensor: torch.Tensor) -> None:
        self._copied: Any = None
        self._numbers = (
            tensor.clone()
            if not tensor.is_cuda
            else torch.empty(tensor.shape, dtype=tensor.dtype, device="cpu", pin_memory=True)
        )
        if tensor.is_cuda:
            self._numbers.copy_(tensor, non_blocking=True)
            self._copied = torch.cuda.Event()
            self._copied.record()

    @property
    def ready(self) -> bool:
        return self._copied is None or self._copied.query()

    def tolist(self) -> Any:
        return self._numbers.tolist()
