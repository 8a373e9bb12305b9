"""The shared object of the CUDA operators: where it is, when it is loaded, and on which GPUs it runs. Everything is
asked of one device, because one host may have different cards, and because some drivers cannot load the operators.

OSCAR_KV_OPERATORS names another shared object, or is "off" to use the reference everywhere."""

import functools
import os
import pathlib
import warnings

import torch

from . import operators, table_checks

LEAST_CAPABILITY = (8, 0)
INSUFFICIENT_DRIVER, NO_CODE, UNSUPPORTED_PTX = 35, 209, 222  # cudaErrorInsufficientDriver and so on


def rocm_unsupported() -> str | None:
    """Why this torch has no CUDA, or None. torch for ROCm calls its devices "cuda", too."""
    return "this torch is built for ROCm, and the CUDA operators run on NVIDIA GPUs" if torch.version.hip else None


def capability_unsupported(major: int, minor: int) -> str | None:
    """Why no build has kernels for a compute capability, or None."""
    if (major, minor) < LEAST_CAPABILITY:
        return f"the CUDA operators need compute capability 8.0 or newer, not {major}.{minor}"
    return None


def device_unsupported(capability: tuple[int, int], error: int, driver: int, needed: int) -> str | None:
    """Why the loaded operators do not run on a device, or None. error: of CUDA, 0 for none; driver, needed: versions of
    CUDA as 13000."""

    def version(number: int) -> str:
        return f"{number // 1000}.{number % 1000 // 10}"

    if error == 0:
        return None
    if error in (INSUFFICIENT_DRIVER, UNSUPPORTED_PTX):
        return (
            f"the CUDA operators need a driver for CUDA {version(needed)} on this GPU, and the driver is for CUDA "
            f"{version(driver)}; update the driver"
        )
    if error == NO_CODE:
        return (
            "this build of the CUDA operators has no code for compute capability "
            f"{capability[0]}.{capability[1]}; use a wheel of scripts/wheel"
        )
    return f"the CUDA operators do not load on this GPU (CUDA error {error})"


@functools.lru_cache(maxsize=1)
def load(path: str) -> str | None:
    """Loads the operators once. None, or the reason why they cannot be loaded."""
    try:
        torch.ops.load_library(path)
    except OSError as error:
        return f"{path} cannot be loaded ({error})"
    if table_checks.enabled():
        operators.check_kernels()
    return None


@functools.cache
def missing_on(index: int, path: str | None) -> str | None:
    """Why kernels do not serve CUDA device `index`, or None. path: of the operators, None without. Warns once for a GPU
    that the operators of this wheel do not serve."""
    if path is None:
        return rocm_unsupported() or "this build of oscar-kv has no CUDA operators"
    reason = rocm_unsupported()
    if reason is None:
        capability = torch.cuda.get_device_capability(index)
        reason = (
            capability_unsupported(*capability)
            or load(path)
            or device_unsupported(capability, *operators.device_code(torch.empty(0, device=f"cuda:{index}")))
        )
    if reason is not None:
        warnings.warn(f"oscar-kv runs its torch reference on GPU {index}, which is slow: {reason}", stacklevel=3)
    return reason


def library_path() -> pathlib.Path | None:
    """The shared object of the operators. None if the package was built without it or it is switched off."""
    named = os.environ.get("OSCAR_KV_OPERATORS", "")
    if named == "off":
        return None
    path = pathlib.Path(named) if named else pathlib.Path(__file__).parents[1] / "liboscar_kv_cuda.so"
    return path if named or path.is_file() else None


def missing(device: torch.device | str | int | None = None) -> str | None:
    """None if kernels serve this CUDA device, otherwise the reason. None names the current device."""
    if not torch.cuda.is_available():
        return rocm_unsupported() or "torch finds no CUDA device"
    index = torch.device(device).index if device is not None else None
    path = library_path()
    return missing_on(torch.cuda.current_device() if index is None else index, None if path is None else str(path))
