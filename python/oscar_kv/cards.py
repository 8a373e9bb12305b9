"""Which GPUs the CUDA operators run on. Everything is asked of one device, because one host may have different cards, and
because some drivers cannot load the operators."""
import functools
import warnings

import torch

from . import ops

LEAST_CAPABILITY = (8, 0)
INSUFFICIENT_DRIVER, NO_CODE, UNSUPPORTED_PTX = 35, 209, 222  # cudaErrorInsufficientDriver and so on


def rocm_unsupported():
    """Why this torch has no CUDA, or None. torch for ROCm calls its devices "cuda", too."""
    return "this torch is built for ROCm, and the CUDA operators run on NVIDIA GPUs" if torch.version.hip else None


def capability_unsupported(major, minor):
    """Why no build has kernels for a compute capability, or None."""
    if (major, minor) < LEAST_CAPABILITY:
        return f"the CUDA operators need compute capability 8.0 or newer, not {major}.{minor}"
    return None


def code_unsupported(capability, error, driver, needed):
    """Why the loaded operators do not run on a device, or None. error: of CUDA, 0 for none; driver, needed: versions of CUDA
    as 13000."""
    def version(number):
        return f"{number // 1000}.{number % 1000 // 10}"

    if error == 0:
        return None
    if error in (INSUFFICIENT_DRIVER, UNSUPPORTED_PTX):
        return (f"the CUDA operators need a driver for CUDA {version(needed)} on this GPU, and the driver is for CUDA {version(driver)}; "
                "update the driver")
    if error == NO_CODE:
        return (f"this build of the CUDA operators has no code for compute capability {capability[0]}.{capability[1]}; use a wheel of "
                "scripts/wheel")
    return f"the CUDA operators do not load on this GPU (CUDA error {error})"


@functools.lru_cache(maxsize=1)
def load(path):
    """Loads the operators once. None, or the reason why they cannot be loaded."""
    try:
        torch.ops.load_library(path)
    except OSError as error:
        return f"{path} cannot be loaded ({error})"
    return None


@functools.lru_cache(maxsize=None)
def missing_on(index, path):
    """Why kernels do not serve CUDA device `index`, or None. path: of the operators, None without. Warns once for a GPU that
    the operators of this wheel do not serve."""
    if path is None:
        return rocm_unsupported() or "this build of oscar-kv has no CUDA operators"
    reason = rocm_unsupported()
    if reason is None:
        capability = torch.cuda.get_device_capability(index)
        reason = capability_unsupported(*capability) or load(path) or code_unsupported(
            capability, *ops.device_code(torch.empty(0, device=f"cuda:{index}")))
    if reason is not None:
        warnings.warn(f"oscar-kv runs its torch reference on GPU {index}, which is slow: {reason}", stacklevel=3)
    return reason
