"""For tests of vLLM's engine, whose processes load bundles by themselves: in them the bundle is random_bundle(**OSCAR_TEST_BUNDLE). Put this
folder and tests/python into PYTHONPATH."""
import importlib.abc
import importlib.util
import json
import os
import sys

MODULE = "oscar_kv.engines.vllm.serving"


class Replace(importlib.abc.MetaPathFinder):
    def find_spec(self, name, path, target=None):
        if name != MODULE:
            return None
        sys.meta_path.remove(self)
        spec = importlib.util.find_spec(name)
        load = spec.loader.exec_module

        def exec_module(module):
            load(module)
            from random_bundles import asked_bundle
            bundle = asked_bundle(**json.loads(os.environ["OSCAR_TEST_BUNDLE"]))
            module.load_bundle = lambda path, latent=False: bundle
            from oscar_kv.format import bundle as files
            for reader in (files, sys.modules.get("oscar_kv.engines.vllm.gauges")):  # which may be importing this module
                if reader is not None:
                    reader.read_manifest = lambda path: bundle

        spec.loader.exec_module = exec_module
        return spec


if "OSCAR_TEST_BUNDLE" in os.environ:
    sys.meta_path.insert(0, Replace())
