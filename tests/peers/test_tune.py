"""oscar-fit --tune as a command: what it writes, that it goes on from its log, and what it refuses."""
import json
import pathlib

import pytest

jsonschema = pytest.importorskip("jsonschema")

SCHEMAS = pathlib.Path(__file__).parents[2] / "schemas"
ROOT = pathlib.Path(__file__).parents[2] / "sample_data"
SAMPLE = ROOT / "tiny-qwen3-outliers"


@pytest.fixture(scope="module")
def folder(tool, tmp_path_factory):
    out = tmp_path_factory.mktemp("tune")
    text = (ROOT / "heldout.txt").read_text()
    (out / "seen.txt").write_text(text[:2500])
    (out / "unseen.txt").write_text(text[5000:7500])
    tool("oscar-collect", "--model", SAMPLE, "--prompts", out / "seen.txt", "-o", out / "s", "--device", "cpu", "-q",
         "--far-pairs", "16,32")
    return out


def fit(tool, folder, *options, code=0):
    return tool("oscar-fit", folder / "s", "-o", folder / "b", "--windows", "16,32", "--overwrite", "-q", *options, code=code)


TUNE = ["--tune-context", 128, "--tune-sequences", 1, "--tune-prompts", 0]


def test_tunes_and_goes_on(tool, folder):
    def run():
        out = fit(tool, folder, "--method", "waterfill", "--bits", "1.75", "--tune", folder / "unseen.txt", "--model",
                  SAMPLE, *TUNE)
        return out, (folder / "b" / "oscar_bundle.json").read_text(), (folder / "b.tune.json").read_text()

    out, manifest, log = run()
    assert "third split, unseen" in out
    tuning = json.loads(manifest)["provenance"]["tuning"]
    jsonschema.validate(json.loads(log), json.loads((SCHEMAS / "tune.schema.json").read_text()))
    trials = json.loads(log)["trials"]
    assert tuning["trials"] == len(trials) >= 2 * 4 + 1 + 10
    assert len(tuning["sensitivity"]["key"]) == len(tuning["sensitivity"]["value"]) == 4
    # The third split scored the closed form and one trial of the second split, which had a better objective there.
    scores = {json.dumps(t["trial"]["options"], sort_keys=True): t["score"] for t in trials if t["trial"]["split"] == 1}
    third = {json.dumps(t["trial"]["options"], sort_keys=True): t["score"] for t in trials if t["trial"]["split"] == 2}
    assert set(third) <= set(scores) and 1 <= len(third) <= 2
    objective = {k: scores[k]["text_kl"] + 0.2 * scores[k]["retrieval_kl"] for k in third}
    closed, chosen = list(third)[0], list(third)[-1]
    assert third[chosen]["text_kl"] == tuning["third_split"]["chosen"]["text_kl"]
    assert objective[chosen] <= objective[closed] and tuning["closed_form_kept"] == (len(third) == 1)
    # Again, from half of the log: the same bundle.
    half = json.loads(log)
    half["trials"] = half["trials"][:7]
    (folder / "b.tune.json").write_text(json.dumps(half))
    assert run()[1:] == (manifest, log)


def test_windows_and_balanced(tool, folder):
    """Other windows at equal bytes, when asked; balanced has a clip in place of the layers' weights."""
    for options in (["--method", "waterfill", "--tune-windows", "12,32;16,34"], ["--method", "balanced"]):
        fit(tool, folder, *options, "--tune", folder / "unseen.txt", "--model", SAMPLE, *TUNE)
        log = json.loads((folder / "b.tune.json").read_text())
        jsonschema.validate(log, json.loads((SCHEMAS / "tune.schema.json").read_text()))
        manifest = json.loads((folder / "b" / "oscar_bundle.json").read_text())
        jsonschema.validate(manifest, json.loads((SCHEMAS / "bundle.schema.json").read_text()))
        tried = [t["trial"].get("options", {}) for t in log["trials"]]
        if "balanced" in options:
            assert sum("clip" in t for t in tried) >= 2 and not any("probe" in t["trial"] for t in log["trials"])
            continue
        windows = {tuple(t["windows"]): t["bits"] for t in tried if "windows" in t}
        assert set(windows) == {(12, 32), (16, 34)}
        for (sink, recent), bits in windows.items():
            held = sink + recent
            assert 16 * held + bits * (128 - held) == pytest.approx(16 * 48 + 2.25 * (128 - 48))
        chosen = manifest["provenance"]["tuning"]["windows"]
        assert manifest["windows"] == chosen
    message = fit(tool, folder, "--method", "waterfill", "--tune-windows", "32,90", "--tune", folder / "unseen.txt", "--model",
                  SAMPLE, *TUNE, code=2)
    assert "would leave" in message


def test_refusals(tool, folder):
    waterfill = ["--method", "waterfill"]
    seen, unseen = folder / "seen.txt", folder / "unseen.txt"
    assert "needs --model" in fit(tool, folder, *waterfill, "--tune", unseen, code=2)
    assert "has nothing to tune" in fit(tool, folder, "--tune", unseen, "--model", SAMPLE, code=2)
    message = fit(tool, folder, *waterfill, "--tune", seen, "--model", SAMPLE, *TUNE, code=3)
    assert "is one of the prompts" in message and "seen.txt" in message
    overlapping = folder / "overlapping.txt"  # another document, with a part of the calibration text inside
    overlapping.write_text(unseen.read_text() + "\n" + seen.read_text()[600:1900] + "\n")
    message = fit(tool, folder, *waterfill, "--tune", overlapping, "--model", SAMPLE, *TUNE, code=3)
    assert "shares passages" in message
    assert "of another model" in fit(tool, folder, *waterfill, "--tune", unseen, "--model", ROOT / "tiny-qwen3", code=3)
    assert "too short to tune on" in fit(tool, folder, *waterfill, "--tune", unseen, "--model", SAMPLE, code=3)
