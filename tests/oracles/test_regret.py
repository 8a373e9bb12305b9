"""oscar-fit check as a command, on two kinds of text that a sample model wrote."""
import json
import pathlib

import pytest

jsonschema = pytest.importorskip("jsonschema")

ROOT = pathlib.Path(__file__).parents[2]
MODEL = ROOT / "sample_data" / "tiny-qwen2"
TEXT = ROOT / "sample_data" / "text" / "tiny-qwen2"
KINDS = ("code", "stories")


@pytest.fixture(scope="module")
def folder(tool, tmp_path_factory):
    """Statistics of 4,000 tokens of each kind, code in two halves, and bundles fitted to code."""
    out = tmp_path_factory.mktemp("regret")
    rows = [json.loads(line) for line in (TEXT / "prompts.jsonl").read_text().splitlines()]
    for kind in KINDS:
        texts = [row["text"] for row in rows if row["kind"] == kind and len(row["text"]) > 4000]
        (out / f"{kind}.jsonl").write_text("".join(json.dumps({"text": t}) + "\n" for t in texts[:2]))
        (out / f"{kind}2.jsonl").write_text("".join(json.dumps({"text": t}) + "\n" for t in texts[2:4]))
    for name in ("code", "code2", "stories"):
        tool("oscar-collect", "--model", MODEL, "--prompts", out / f"{name}.jsonl", "-o", out / name, "--device", "cpu",
             "--tokens", 4000, "--seq-len", 2048, "-q")
    for method in ("balanced", "waterfill", "oscar"):
        options = ["--clip", "none"] if method == "oscar" else []
        tool("oscar-fit", out / "code", "-o", out / method, "--method", method, "-q", *options)
    return out


def check(tool, folder, bundle, statistics, *options):
    found = json.loads(tool("oscar-fit", "check", folder / bundle, "--statistics", folder / statistics, "--json", *options))
    jsonschema.validate(found, json.loads((ROOT / "schemas" / "regret.schema.json").read_text()))
    return found


@pytest.mark.parametrize("method", ["balanced", "waterfill"])
def test_other_traffic_costs_more(tool, folder, method):
    own, same, other = (check(tool, folder, method, s) for s in ("code", "code2", "stories"))
    assert own["total"]["regret"] == pytest.approx(1.0, abs=1e-3)
    assert own["total"]["regret"] < same["total"]["regret"] < other["total"]["regret"]
    assert len(other["layers"]) == 5
    for found in (own, same, other):
        sums = [sum(layer[side][part] for layer in found["layers"] for side in ("key", "value"))
                for part in ("bundle", "refit")]
        assert sums == pytest.approx([found["total"]["bundle"], found["total"]["refit"]])
        assert found["moved"] <= found["total"]["refit"] * (1 + 1e-9)


def test_the_gate(tool, folder):
    regret = check(tool, folder, "waterfill", "stories")["total"]["regret"]
    assert check(tool, folder, "waterfill", "stories", "--max-regret", regret * 1.01)["pass"]
    tool("oscar-fit", "check", folder / "waterfill", "--statistics", folder / "stories", "--max-regret", 1 + (regret - 1) / 2,
         code=1)
    text = tool("oscar-fit", "check", folder / "waterfill", "--statistics", folder / "code", "--max-regret", 1.1)
    assert "regret end to end: 1.000" in text and "pass" in text
    assert tool("oscar-fit", "check", folder / "waterfill", "--statistics", folder / "code", "--max-regret", 1.1, "-q") == ""


def test_refusals(tool, folder):
    assert "orthogonal" in tool("oscar-fit", "check", folder / "oscar", "--statistics", folder / "code", code=3)
    assert "--statistics" in tool("oscar-fit", "check", folder / "oscar", code=2)
    tool("oscar-fit", "check", folder / "waterfill", "--statistics", folder / "code", "--max-regret", 0.5, code=2)
    manifest = json.loads((folder / "waterfill" / "oscar_bundle.json").read_text())
    manifest["provenance"]["options"]["center"] = "elsewhere"
    damaged = folder / "damaged"
    damaged.mkdir()
    for file in (folder / "waterfill").iterdir():
        (damaged / file.name).write_bytes(file.read_bytes())
    (damaged / "oscar_bundle.json").write_text(json.dumps(manifest))
    assert "'center'" in tool("oscar-fit", "check", damaged, "--statistics", folder / "code", code=3)
