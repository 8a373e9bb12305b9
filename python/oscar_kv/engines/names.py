"""What users write to name the 2-bit cache in an engine, and whether an engine is the release that its adapter is
written for."""
from ..files.errors import InputError

BUNDLE_VARIABLE = "OSCAR_KV_BUNDLE"  # of the environment: the bundle's folder
CACHE_DTYPE, VLLM_BACKEND = "oscar", "OSCAR"  # vLLM's --kv-cache-dtype and --attention-backend
SGLANG_BACKEND = "oscar"  # SGLang's --attention-backend


def is_release(found: str, release: str) -> bool:
    """release: "0.5.23", or "0.33" for all of 0.33.x. Engines guarantee plugins nothing across releases."""
    return found == release or (release.count(".") == 1 and found.startswith(f"{release}."))


def check_version(engine: str, found: str, release: str) -> None:
    """InputError unless an engine is the release whose interfaces its adapter uses."""
    if not is_release(found, release):
        shown, wanted = (f"{release}.x", f"{release}.0") if release.count(".") == 1 else (release, release)
        raise InputError(f"{engine} {found} is installed, oscar-kv serves {engine} {shown}; install "
                         f"{engine.lower()}=={wanted}")
