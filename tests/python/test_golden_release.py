"""Files of every release, tests/golden/VERSION: this version reads them and gets the values that they had then.
tests/golden/write_release.sh wrote them."""
import hashlib
import json
import re

import pytest
from conftest import SAMPLES, SOURCE_DIR, program

import oscar_kv
from oscar_kv.engines import bundles

MODEL = SAMPLES / "tiny-qwen2"
# By version: hashes of the files, so that none is written anew, and values that readers must find in them.
STATED = {"0.1.0": {
    "files": {"statistics.safetensors": "d9d377c7d48bd27b", "bundle/oscar_bundle.json": "2b47a3b6e1875c27",
              "bundle/rotations.safetensors": "b769e93ae545f0da", "report.json": "1ecc34f18cb1a2cd"},
    "fingerprint": "v2:sha256:b0ac7cccde32f6629d3f891ade9fae906c950c375120f07cec8b8daff1f41ead",
    "tokens": 3000, "trace": 138.91052593, "kl": .005749, "ppl_ratio": .9994,
    "widths": [[(4, 2, 2, 0), (4, 4, 2, 2)], [(4, 4, 2, 1), (4, 4, 2, 1)], [(0, 0, 0, 0), (0, 0, 0, 0)],
               [(2, 0, 0, 0), (2, 1, 0, 0)], [(4, 4, 4, 2), (4, 4, 4, 4)]]}}
VERSIONS = sorted(p.name for p in (SOURCE_DIR / "tests/golden").iterdir() if p.is_dir())
near = pytest.approx


@pytest.fixture(params=VERSIONS)
def release(request):
    """(folder, stated values) of a release."""
    assert request.param in STATED, f"tests/golden/{request.param} has no stated values"
    return SOURCE_DIR / "tests/golden" / request.param, STATED[request.param]


def test_every_release_is_here(release):
    folder, stated = release
    assert set(STATED) == set(VERSIONS)
    for name, digest in stated["files"].items():
        assert hashlib.sha256((folder / name).read_bytes()).hexdigest().startswith(digest), f"{name} was written anew"


def test_statistics(release, tmp_path):
    folder, stated = release
    shown = json.loads(program("oscar-collect", "show", "--json", folder / "statistics.safetensors"))
    assert (shown["tokens"], shown["model"]["fingerprint"]) == (stated["tokens"], stated["fingerprint"])
    assert shown["layers"][0]["q"]["trace"] == near(stated["trace"], rel=1e-8)
    # With the curves of the bundle they give its widths again, of which the sizes follow.
    program("oscar-fit", folder / "statistics.safetensors", "--curves", folder / "bundle/curves.json", "--windows", "16,64", "-o", tmp_path / "again")
    again = oscar_kv.load_bundle(tmp_path / "again")
    assert [[layer.key.widths, layer.value.widths] for layer in again.layers] == stated["widths"]


def test_bundle_in_python(release):
    folder, stated = release
    bundle = oscar_kv.load_bundle(folder / "bundle")
    assert (bundle.fingerprint, bundle.sink, bundle.recent) == (stated["fingerprint"], 16, 64)
    assert [[layer.key.widths, layer.value.widths] for layer in bundle.layers] == stated["widths"]
    assert bundles.checkpoint_fingerprint(MODEL) == stated["fingerprint"]


def test_bundle_and_report_in_commands(release, tmp_path):
    folder, stated = release
    # The report of then is the baseline of now.
    program("oscar-verify", "-q", "--model", MODEL, "--bundle", folder / "bundle", "--text", SAMPLES / "heldout.txt", "--context", 512,
            "--max-sequences", 4, "--bootstrap", 100, "--baseline", folder / "report.json", "--max-kl-increase", .001,
            "--report", tmp_path / "report.json")
    for path in (folder / "report.json", tmp_path / "report.json"):
        row = next(m for m in json.loads(path.read_text())["methods"] if m["evaluated"])
        assert row["kl"]["mean"] == near(stated["kl"], rel=.02) and row["ppl_ratio"] == near(stated["ppl_ratio"], rel=2e-3)
    program("oscar-export", folder / "bundle", "--format", "transformers", "--report", folder / "report.json", "-o", tmp_path / "serving")
    assert "0.0057" in (tmp_path / "serving/README.md").read_text()


FORMATS = {  # the pattern of each version in the sources, of what docs/formats.md freezes
    "`statistics.safetensors`": ("lib/statistics/statistics.h", r"kStatisticsVersion = (\d+)"),
    "`oscar_bundle.json`": ("lib/bundle/bundle.h", r"kBundleFormatVersion = (\d+)"),
    "`rotations.safetensors`": ("lib/bundle/bundle.cpp", r'"oscar-rotations"}, {"format_version", "(\d+)"'),
    "`self_check.safetensors`": ("lib/bundle/bundle.cpp", r'"oscar-self-check"}, {"format_version", "(\d+)"'),
    "`probe.json`": ("lib/pipeline/fit/fit_measure.cpp", r'"oscar-probe"},\s+{"format_version", (\d+)}'),
    "`calibration_hashes.json`": ("lib/bundle/calibration_hashes.cpp", r"kVersion = (\d+)"),
    "`checkpoints.json`": ("lib/bundle/checkpoints.cpp", r"kAddedVersion = (\d+)"),
    "`curves.json`": ("lib/bundle/curves.h", r"kCurvesFormatVersion = (\d+)"),
    "`report.json`": ("lib/bundle/report_format.h", r"kReportFormatVersion = (\d+)"),
    "fingerprint of a checkpoint": ("lib/checkpoint/fingerprint.cpp", r'"v(\d+):sha256:"')}


def test_the_page_states_the_versions():
    table = (SOURCE_DIR / "docs/formats.md").read_text().split("## Versions")[1]
    rows = dict(re.findall(r"^\| (.*?) \| (\d+)", table, re.MULTILINE))
    for name, (path, pattern) in FORMATS.items():
        found = re.search(pattern, (SOURCE_DIR / path).read_text())
        assert found and rows.get(name) == found[1], f"{name}: docs/formats.md has {rows.get(name)}, {path} has {found and found[1]}"
    assert set(rows) == set(FORMATS)
