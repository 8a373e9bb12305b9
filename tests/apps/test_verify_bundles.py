"""oscar-verify with several bundles: rows are named by directory, all are evaluated, and the report says which is which."""
import json
import shutil

import pytest

from harness import DONE, GATE_FAILED, USAGE, phases_of, refuse, run, succeed


@pytest.fixture(scope="module")
def pair(bundle, statistics, tmp_path_factory):
    folder = tmp_path_factory.mktemp("pair")
    shutil.copytree(bundle, folder / "by-layer")
    succeed("fit", statistics, "--method", "oscar", "-o", folder / "by-head", "--scope", "head", "--encoder", "search")
    return folder


@pytest.fixture(scope="module")
def line(model, text):
    return ["verify", "--model", model, "--text", text, "--context", 400, "--max-sequences", 4, "--methods", "bf16,oscar-tns"]


def test_rows_and_gates(pair, line, tmp_path):
    files = [tmp_path / "r.json", tmp_path / "r.html"]
    result = run(*line, "--bundle", pair / "by-layer", "--bundle", pair / "by-head", "--path", "both", "--report", files[0],
                 "--html", files[1], "--max-kl", 100)
    assert result.code in (DONE, GATE_FAILED), str(result)
    report = json.loads(files[0].read_text())
    rows = {m["id"]: m for m in report["methods"]}
    assert set(rows) == {"bf16", "oscar-tns", "by-layer", "by-head"}
    assert [m["evaluated"] for m in rows.values()].count(True) == 2
    assert rows["by-layer"]["kl"]["mean"] != rows["by-head"]["kl"]["mean"]
    assert [b["row"] for b in report["bundles"]] == ["by-layer", "by-head"]
    assert [b["scope"] for b in report["bundles"]] == ["layer", "head"]
    assert report["bundle"] == report["bundles"][0]
    assert {g["method"] for g in report["gates"]} == {"by-layer", "by-head"} and all(g["pass"] for g in report["gates"])
    checks = {c["name"]: c for c in report["self_checks"]}
    assert set(checks) == {"null_run", "negative_control", "writer_reader", "prefill_decode", "drift", "prediction"}
    assert checks["writer_reader"]["pass"] is True and checks["prefill_decode"]["pass"] is True, checks
    # OScaR runs through pages of its own on the decode path.
    paths = {m["path"] for m in report["methods"] if m["id"] == "oscar-tns"}
    assert paths == {"prefill", "decode"}
    assert {s["layer"] for s in report["spectra"]} == {0, 1}
    for spectrum in report["spectra"]:
        assert spectrum["before"] == sorted(spectrum["before"], reverse=True) and len(spectrum["after"]) == 64
        # A rotation keeps the sum of the variances (the cache rounds to BF16).
        assert sum(spectrum["after"]) == pytest.approx(sum(spectrum["before"]), rel=0.01)
    assert "Spectra before and after" in files[1].read_text()



def test_verbose_says_where_the_time_went(pair, line, tmp_path):
    reports = [tmp_path / "quiet.json", tmp_path / "verbose.json"]
    asked = [*line[:-1], "bf16,oscar,oscar-tns", "--bundle", pair / "by-layer", "--path", "both", "--bootstrap", 0]
    quiet, verbose = (run(*asked, "--report", file, *flags) for file, flags in zip(reports, ([], ["-v"])))
    assert quiet.code == verbose.code and quiet.code in (DONE, GATE_FAILED), str(verbose)
    rows = phases_of(verbose)
    passes = {"forward bf16", *(f"{way} {m}" for way in ("forward", "decode") for m in ("oscar", "oscar-tns"))}
    expected = {"starting", "reading", "weights", "coding", "layer errors", "checks", "scoring", "saving", "report", "decode bf16"} | passes
    assert set(rows) == expected | {"other", "wall time"}
    assert abs(sum(rows.values()) - 2 * rows["wall time"]) < 0.02  # a row is rounded to milliseconds
    assert "where the time went" not in quiet.err
    measured = [{k: v for k, v in json.loads(r.read_text()).items() if k != "command"} for r in reports]
    assert measured[0] == measured[1]


def test_two_of_one_name_are_refused(pair, line, tmp_path):
    (tmp_path / "x").mkdir()
    shutil.copytree(pair / "by-head", tmp_path / "x" / "by-head")
    refuse(USAGE, *line, "--bundle", pair / "by-head", "--bundle", tmp_path / "x" / "by-head", names="by-head")
    shutil.copytree(pair / "by-head", tmp_path / "x" / "oscar-tns")
    refuse(USAGE, *line, "--bundle", pair / "by-head", "--bundle", tmp_path / "x" / "oscar-tns", names="oscar-tns")
    refuse(USAGE, "verify", "--check-only", "--bundle", pair / "by-head", "--bundle", pair / "by-layer", names="one bundle")
