"""oscar-verify with several bundles, methods that are fitted beside one, and several texts: the report says which is which,
and what decides."""
import json
import shutil

import pytest

from harness import BAD_INPUT, DONE, GATE_FAILED, USAGE, phases_of, refuse, run, succeed


@pytest.fixture(scope="module")
def pair(bundle, statistics, tmp_path_factory):
    folder = tmp_path_factory.mktemp("pair")
    shutil.copytree(bundle, folder / "by-layer")
    succeed("fit", statistics, "--method", "oscar", "-o", folder / "by-head", "--scope", "head", "--encoder", "search")
    return folder


@pytest.fixture(scope="module")
def line(model, text):
    return ["verify", "--model", model, "--text", text, "--context", 400, "--max-sequences", 4, "--methods", "bf16,hadamard2"]


def test_rows_and_gates(pair, line, tmp_path):
    files = [tmp_path / "r.json", tmp_path / "r.html"]
    result = run(*line, "--bundle", pair / "by-layer", "--bundle", pair / "by-head", "--path", "both", "--report", files[0],
                 "--html", files[1], "--max-kl", 100)
    assert result.code in (DONE, GATE_FAILED), str(result)
    report = json.loads(files[0].read_text())
    rows = {m["id"]: m for m in report["methods"]}
    assert set(rows) == {"bf16", "hadamard2", "by-layer", "by-head"}
    assert [m["evaluated"] for m in rows.values()].count(True) == 2
    assert rows["by-layer"]["kl"]["mean"] != rows["by-head"]["kl"]["mean"]
    assert [m["candidate"] for m in rows.values()].count(True) == 1 and rows["by-layer"]["candidate"]
    assert [b["row"] for b in report["bundles"]] == ["by-layer", "by-head"]
    assert [b["scope"] for b in report["bundles"]] == ["layer", "head"]
    assert report["bundle"] == report["bundles"][0]
    assert {g["method"] for g in report["gates"]} == {"by-layer", "by-head"} and all(g["pass"] for g in report["gates"])
    checks = {c["name"]: c for c in report["self_checks"]}
    assert set(checks) == {"null_run", "negative_control", "writer_reader", "prefill_decode", "drift", "prediction"}
    assert checks["writer_reader"]["pass"] is True and checks["prefill_decode"]["pass"] is True, checks
    paths = {m["path"] for m in report["methods"] if m["id"] == "hadamard2"}
    assert paths == {"prefill", "decode"}


def test_reports_have_the_noise_that_no_code_causes(pair, line, tmp_path):
    files = [tmp_path / f"r.{kind}" for kind in ("json", "html", "md")]
    table = succeed(*line, "--bundle", pair / "by-layer", "--bundle", pair / "by-head", "--max-kl", 100, "--report", files[0],
                    "--html", files[1], "--markdown", files[2]).out
    report = json.loads(files[0].read_text())
    noise, kl = report["noise"], {m["id"]: m["kl"]["mean"] for m in report["methods"]}
    assert noise["tokens"] == report["scoring"]["tokens"] // report["scoring"]["sequences"]
    assert [row["method"] for row in noise["without_codes"]] == ["by-layer", "by-head"]
    assert all(0 < row["kl"] < 0.1 * kl[row["method"]] for row in noise["without_codes"]), (noise, kl)
    assert noise["arithmetic"] is None or 0 < noise["arithmetic"] < 0.01
    text = f"by-layer without codes {noise['without_codes'][0]['kl']:.3g}"[:30]
    assert all(text in " ".join(page.split()) for page in (table, files[1].read_text(), files[2].read_text().replace("\\", "")))
    coarse = tmp_path / "b.json"
    succeed(*line, "--bundle", pair / "by-layer", "--max-kl", 100, "--report", coarse, "--dtype", "bfloat16")
    assert json.loads(coarse.read_text())["noise"] is None


def test_verbose_says_where_the_time_went(pair, line, tmp_path):
    reports = [tmp_path / "quiet.json", tmp_path / "verbose.json"]
    asked = [*line[:-1], "bf16,oscar,hadamard2", "--bundle", pair / "by-layer", "--path", "both", "--bootstrap", 0]
    quiet, verbose = (run(*asked, "--report", file, *flags) for file, flags in zip(reports, ([], ["-v"])))
    assert quiet.code == verbose.code and quiet.code in (DONE, GATE_FAILED), str(verbose)
    rows = phases_of(verbose)
    passes = {"forward bf16", *(f"{way} {m}" for way in ("forward", "decode") for m in ("oscar", "hadamard2"))}
    expected = {"starting", "reading", "weights", "coding", "layer errors", "checks", "scoring", "saving", "report", "decode bf16"} | passes
    assert set(rows) == expected | {"other", "wall time"}
    assert abs(sum(rows.values()) - 2 * rows["wall time"]) < 0.02  # a row is rounded to milliseconds
    assert "where the time went" not in quiet.err
    measured = [{k: v for k, v in json.loads(r.read_text()).items() if k != "command"} for r in reports]
    assert measured[0] == measured[1]


def test_a_bundle_beside_the_candidate_decides_nothing(pair, line, tmp_path):
    """The two differ in KL: a limit between them passes one order of the bundles and fails the other."""
    kl = {}
    succeed(*line, "--bundle", pair / "by-layer", "--bundle", pair / "by-head", "--no-gate", "--report", tmp_path / "r.json")
    for m in json.loads((tmp_path / "r.json").read_text())["methods"]:
        kl[m["id"]] = m["kl"]["ci"][1], m["kl"]["mean"]
    good, bad = sorted(("by-layer", "by-head"), key=kl.get)
    assert kl[good][0] < kl[bad][1], kl
    limit = (kl[good][0] + kl[bad][1]) / 2
    result = succeed(*line, "--bundle", pair / good, "--bundle", pair / bad, "--max-kl", limit, "--junit", tmp_path / "r.xml",
                     "--html", tmp_path / "r.html")
    assert "FAIL" not in result.out and f"fail  gate max_kl of {bad}" in result.out and result.out.rstrip().endswith("PASS")
    assert "<failure" not in (tmp_path / "r.xml").read_text() and 'class="banner pass"' in (tmp_path / "r.html").read_text()
    assert f'<p class="verdict fail">{bad} (' in (tmp_path / "r.html").read_text()
    result = run(*line, "--bundle", pair / bad, "--bundle", pair / good, "--max-kl", limit)
    assert result.code == GATE_FAILED and result.out.rstrip().endswith("FAIL"), str(result)


def test_names_add_rows_that_are_fitted_from_the_statistics(model, text, prompts, tmp_path):
    far = tmp_path / "best.statistics.safetensors"
    succeed("collect", "--model", model, "--prompts", prompts, "-o", far, "--seq-len", 128, "--far-pairs", "4,16")
    for name, *options in (["best"], ["other", "--method", "oscar"], ["balanced"]):
        succeed("fit", far, "-o", tmp_path / name, *options)
    asked = ["verify", "--model", model, "--text", text, "--context", 400, "--max-sequences", 4, "--bootstrap", 0, "--no-gate"]
    result = succeed(*asked, "--bundle", tmp_path / "best", "--methods", "fp8,oscar,balanced", "--report", tmp_path / "r.json")
    assert "fitted for comparison: oscar, from best.statistics.safetensors" in result.out
    report = json.loads((tmp_path / "r.json").read_text())
    rows = {m["id"]: m for m in report["methods"]}
    assert set(rows) == {"fp8", "oscar", "balanced", "waterfill"} and not rows["oscar"]["evaluated"] and rows["waterfill"]["candidate"]
    assert [(b["row"], b["kind"]) for b in report["bundles"]] == [("waterfill", "bundle"), ("oscar", "fitted"), ("balanced", "fitted")]
    # The same as a fit by hand.
    succeed(*asked, "--bundle", tmp_path / "other", "--report", tmp_path / "other.json")
    by_hand = {m["id"]: m for m in json.loads((tmp_path / "other.json").read_text())["methods"]}
    assert by_hand["oscar"]["kl"] == rows["oscar"]["kl"]
    # A folder may have the name of a method that it does not hold, but not the one that rows are compared with.
    result = succeed(*asked, "--bundle", tmp_path / "best", "--bundle", tmp_path / "balanced", "--methods", "oscar", "--dry-run")
    assert "methods    oscar, best, balanced (bundles: best, balanced)" in result.out, str(result)
    shutil.copytree(tmp_path / "best", tmp_path / "oscar")
    refuse(USAGE, *asked, "--bundle", tmp_path / "best", "--bundle", tmp_path / "oscar", names=["oscar", "rename"])
    # Without the statistics, or with others.
    far.rename(tmp_path / "kept.safetensors")
    missing = [*asked, "--bundle", tmp_path / "best", "--methods", "oscar"]
    refuse(BAD_INPUT, *missing, names=["best.statistics.safetensors is not beside", "oscar-fit STATISTICS --method oscar"])
    succeed("collect", "--model", model, "--prompts", prompts, "-o", far, "--seq-len", 96, "--far-pairs", "4,16")
    refuse(BAD_INPUT, *missing, names=["best.statistics.safetensors holds other statistics"])


def test_every_text_is_gated(model, bundle, text, tmp_path):
    other = tmp_path / "other.txt"
    other.write_text("".join(f"Pump {i} takes {i * 13 % 70} liters from tank {i % 9}.\n" for i in range(120)))
    line = ["verify", "--model", model, "--context", 400, "--max-sequences", 4, "--bundle", bundle, "--report", tmp_path / "r.json", "--overwrite"]
    alone = {}
    for file in (text, other):
        succeed(*line, "--text", file, "--no-gate")
        row = next(m for m in json.loads((tmp_path / "r.json").read_text())["methods"] if m["evaluated"])
        alone[file.name] = row["kl"]["ci"][1], row["kl"]["mean"]
    bad, good = sorted(alone, key=alone.get, reverse=True)
    limit = alone[bad][1] * 0.999  # below the mean of one text
    assert alone[good][0] < limit, alone
    result = run(*line, "--text", text, other, "--max-kl", limit, "--junit", tmp_path / "r.xml", "--html", tmp_path / "r.html",
                 "--markdown", tmp_path / "r.md")
    assert result.code == GATE_FAILED and result.out.rstrip().endswith(f"FAIL on {bad}"), str(result)
    report = json.loads((tmp_path / "r.json").read_text())
    assert [(t["name"], t["sequences"]) for t in report["texts"]] == [(text.name, 4), (other.name, 4)]
    assert {g["text"]: g["pass"] for g in report["gates"]} == {bad: False, good: True}
    row = next(m for m in report["methods"] if m["evaluated"])
    assert {t["text"]: (t["kl"]["ci"][1], t["kl"]["mean"]) for t in row["texts"]} == alone
    for file in ("r.xml", "r.html", "r.md"):
        assert bad in (tmp_path / file).read_text()
    short = tmp_path / "short.txt"
    short.write_text(other.read_text()[:960])
    refuse(BAD_INPUT, *line, "--text", text, short, names=["short.txt", "longer texts"])


def test_a_twin_is_added_if_its_gates_pass(model, bundle, text, tmp_path):
    ours, twin = tmp_path / "bundle", tmp_path / "twin"
    shutil.copytree(bundle, ours)
    shutil.copytree(model, twin)
    weights = bytearray((twin / "model.safetensors").read_bytes())
    weights[-2] ^= 1  # the last weight, a little
    (twin / "model.safetensors").write_bytes(weights)
    added, line = ours / "checkpoints.json", ["verify", "--model", twin, "--bundle", ours, "--text", text, "--context", 400,
                                              "--max-sequences", 4, "--report", tmp_path / "r.json"]
    refuse(BAD_INPUT, *line, names=["fitted on another model", "--add-checkpoint"])
    refuse(USAGE, *line, "--add-checkpoint", "--no-gate", names=["--no-gate"])
    failed = run(*line, "--add-checkpoint", "--max-kl", 1e-9, "--overwrite")
    assert failed.code == GATE_FAILED and "was not added" in failed.err and not added.exists(), str(failed)
    few = run(*[2 if part == 4 else part for part in line], "--add-checkpoint", "--overwrite")
    assert few.code == GATE_FAILED and "too few sequences" in " ".join(few.out.split()) and not added.exists(), str(few)
    succeed(*line, "--add-checkpoint", "--max-kl", 100, "--overwrite")
    listed = json.loads(added.read_text())["checkpoints"]
    row = next(m for m in json.loads((tmp_path / "r.json").read_text())["methods"] if m["candidate"])
    assert [c["name"] for c in listed] == ["twin"] and listed[0]["kl"] == pytest.approx(row["kl"]["mean"], rel=1e-6)
    # Now the twin is one of its checkpoints, as the fitted one still is; the report of the twin may stand beside an export.
    for checkpoint in (model, twin):
        succeed("verify", "--bundle", ours, "--model", checkpoint, "--check-only")
    succeed("export", ours, "--format", "transformers", "--model", twin, "--report", tmp_path / "r.json", "-o", tmp_path / "serving")
    assert (tmp_path / "serving/oscar_bundle/checkpoints.json").read_bytes() == added.read_bytes()
    succeed(*line, "--add-checkpoint", "--max-kl", 100, "--overwrite")
    assert len(json.loads(added.read_text())["checkpoints"]) == 1
    added.write_text(added.read_text().replace('"numbers_sha256": "', '"numbers_sha256": "0'))
    refuse(BAD_INPUT, "verify", "--bundle", ours, "--check-only", names=["belongs to another bundle"])


def test_two_of_one_name_are_refused(pair, line, tmp_path):
    (tmp_path / "x").mkdir()
    shutil.copytree(pair / "by-head", tmp_path / "x" / "by-head")
    refuse(USAGE, *line, "--bundle", pair / "by-head", "--bundle", tmp_path / "x" / "by-head", names="by-head")
    shutil.copytree(pair / "by-head", tmp_path / "x" / "hadamard2")
    refuse(USAGE, *line, "--bundle", pair / "by-head", "--bundle", tmp_path / "x" / "hadamard2", names="hadamard2")
    refuse(USAGE, "verify", "--check-only", "--bundle", pair / "by-head", "--bundle", pair / "by-layer", names="one bundle")
