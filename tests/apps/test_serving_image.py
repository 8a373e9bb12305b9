"""docs/serving: the image and the compose file name the release that the wheel serves, and options that the card has."""
import re

import pytest

from harness import SOURCE_DIR

yaml = pytest.importorskip("yaml")
IMAGE = (SOURCE_DIR / "docs/serving/Containerfile").read_text()
VERSION = re.search(r"^project\(oscar VERSION ([\d.]+)", (SOURCE_DIR / "CMakeLists.txt").read_text(), re.MULTILINE)[1]


def served():
    release = re.search(r'RELEASE = "([\d.]+)"', (SOURCE_DIR / "python/oscar_kv/engines/vllm/limits.py").read_text())[1]
    return release, next(line for line in (SOURCE_DIR / "scripts/requirements-vllm.txt").read_text().splitlines() if line.startswith("vllm=="))


def test_the_image_pins_what_the_tests_run():
    release, pinned = served()
    assert re.search(r"pip install --no-cache-dir (\S+)", IMAGE)[1] == pinned and pinned.startswith(f"vllm=={release}.")
    assert f"COPY SHA256SUMS oscar_kv-{VERSION}-*.whl" in IMAGE and "sha256sum --check" in IMAGE and "[vllm]" in IMAGE


def test_compose_starts_what_the_image_starts():
    service = yaml.safe_load((SOURCE_DIR / "docs/serving/compose.yml").read_text())["services"]["vllm"]
    assert service["image"] == f"oscar-kv-vllm:{VERSION}" and service["build"]["dockerfile"].endswith("docs/serving/Containerfile")
    default = re.findall(r'"([^"]+)"', re.search(r"^CMD (\[.*\])$", IMAGE, re.MULTILINE)[1])
    assert [word for word in default if word not in service["command"]] == []
    targets = {volume.split(":")[-2] for volume in service["volumes"]}
    assert targets == {"/model", re.search(r"OSCAR_KV_BUNDLE=(\S+)", IMAGE)[1]}
