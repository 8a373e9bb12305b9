"""SGLang's own Python on the CPU without its compiled kernels. Import this before sglang.

The module sgl_kernel is replaced by one whose functions exist and raise: SGLang names them at import, and its CPU engine
falls back to torch where the processor has no AMX. Linear attention has no such way back: sgl_kernel_linear.py. The radix tree's core is SGLang's in Python, because the one in Rust
loads only with its own torch, 2.14. Everything else is SGLang's default."""
import os
import sys
import types

from entry_points import write_entry_points


class Absent(types.ModuleType):
    """A module of functions that SGLang imports and must not call."""

    def __getattr__(self, name):
        if name.startswith("__"):
            raise AttributeError(name)

        def absent(*args, **kwargs):
            raise NotImplementedError(f"sgl_kernel.{name} is not part of this test")

        return absent


def prepare():
    os.environ.setdefault("SGLANG_USE_CPU_ENGINE", "1")
    os.environ.setdefault("HF_HUB_OFFLINE", "1")
    os.environ.setdefault("SGLANG_UNIFIED_RADIX_TREE_CORE_BACKEND", "python")
    sys.modules.setdefault("sgl_kernel", Absent("sgl_kernel"))
    import sgl_kernel_linear
    sys.modules.setdefault("sgl_kernel.mamba", sgl_kernel_linear)
    sgl_kernel_linear.install()


STUB = '"""See sglang_setup.py."""\nimport sgl_kernel_linear\nfrom sglang_setup import Absent as _Absent\n\n__getattr__ = _Absent("sgl_kernel").__getattr__\n'
ENTRY = "[sglang.srt.plugins]\noscar_kv = oscar_kv.engines.sglang.plugin:register\n"


# A second plugin, which gives each process a bundle that no folder holds.
SAVED = """import torch


def register():
    from oscar_kv.engines.sglang import serving
    bundle = torch.load({path!r}, weights_only=False)
    serving.load_bundle = lambda path: bundle
"""


def process_path(folder, package_path, kernels, bundle=None):
    """PYTHONPATH for processes of SGLang, which import sgl_kernel and find plugins themselves. folder: a new one.
    package_path: of oscar_kv if it is not installed; its entry point is then written there. kernels: use SGLang's own.
    bundle: a Bundle that they serve."""
    folder.mkdir()
    if bundle is not None:
        import torch
        torch.save(bundle, folder / "saved_bundle")
        (folder / "saved_bundle_plugin.py").write_text(SAVED.format(path=str(folder / "saved_bundle")), encoding="utf-8")
        write_entry_points(folder, "saved-bundle", "1", ENTRY.splitlines()[0] + "\nsaved_bundle = saved_bundle_plugin:register\n")
    if not kernels:
        (folder / "sgl_kernel").mkdir()
        (folder / "sgl_kernel" / "__init__.py").write_text(STUB, encoding="utf-8")
        (folder / "sgl_kernel" / "mamba.py").write_text("from sgl_kernel_linear import *\n\ninstall()\n", encoding="utf-8")
    if package_path:
        write_entry_points(folder, "oscar-kv", "0.1.0", ENTRY)
    here = os.path.dirname(os.path.abspath(__file__))
    return os.pathsep.join(p for p in (str(folder), here, package_path, os.environ.get("PYTHONPATH", "")) if p)
