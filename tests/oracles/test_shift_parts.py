"""scripts/quality --shift-parts: a bundle with one part of another is read, and differs from its own in that part alone."""
import json
import os
import pathlib
import sys

import numpy as np
import pytest

safetensors = pytest.importorskip("safetensors")
from safetensors import numpy as st  # noqa: E402

SOURCE = pathlib.Path(os.environ["OSCAR_SOURCE_DIR"])
sys.path.insert(0, str(SOURCE / "scripts"))
from quality_runs.shift_parts import PARTS, with_part  # noqa: E402


@pytest.fixture(scope="module")
def bundles(tool, tmp_path_factory):
    """Two fits whose widths differ, and the statistics of the first."""
    folder, rng = tmp_path_factory.mktemp("parts"), np.random.default_rng(7)
    for name, bits, low in (("own", "2.25", 0), ("other", "1.0", 4000)):
        rows = [rng.integers(low, low + 4000, n).tolist() for n in (300, 250)]
        (folder / f"{name}.jsonl").write_text("".join(json.dumps({"input_ids": row}) + "\n" for row in rows))
        tool("oscar-collect", "--model", SOURCE / "sample_data" / "tiny-qwen3-outliers", "--prompts", folder / f"{name}.jsonl",
             "-o", folder / f"{name}.statistics", "--device", "cpu", "-q", "--far-pairs", "16,64")
        tool("oscar-fit", folder / f"{name}.statistics", "-o", folder / name, "--method", "waterfill", "--bits", bits)
    return folder


def read(bundle):
    layers = json.loads((bundle / "oscar_bundle.json").read_text())["layers"]
    return [layer[side]["widths"] for layer in layers for side in ("key", "value")], st.load_file(bundle / "rotations.safetensors")


@pytest.mark.parametrize("part", PARTS)
def test_one_part_is_of_the_other_bundle(part, bundles, tool):
    target = bundles / f"part-{part.replace(' ', '-')}"
    with_part(bundles / "own", bundles / "other", PARTS[part], target)
    (own_widths, own), (other_widths, other), (widths, tensors) = (read(b) for b in (bundles / "own", bundles / "other", target))
    assert own_widths != other_widths
    assert widths == (other_widths if PARTS[part] is None else own_widths)
    endings = tuple(PARTS[part] or [])
    taken = {name for name in own if endings and name.endswith(endings)}
    assert bool(taken) == bool(endings)
    for name, tensor in tensors.items():
        assert np.array_equal(tensor, (other if name in taken else own)[name]), name
        if name in taken and name.endswith(".mean"):
            assert not np.array_equal(own[name], other[name]), name
    # Hashes of files and shapes are checked where a bundle is read.
    tool("oscar-fit", "check", target, "--statistics", bundles / "own.statistics", "--max-regret", "1000")
