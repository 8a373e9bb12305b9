"""oscar-fit with a model: measured curves as files, other budgets without a pass, going on after a kill, refusals."""
import itertools
import json
import math
import pathlib
import signal
import subprocess
import time

import pytest

jsonschema = pytest.importorskip("jsonschema")

from conftest import BUILD_DIR  # noqa: E402

SCHEMAS = pathlib.Path(__file__).parents[2] / "schemas"
ROOT = pathlib.Path(__file__).parents[2] / "sample_data"
MODEL = ROOT / "tiny-qwen3-outliers"
SHORT = ["--curve-context", 128, "--curve-sequences", 2]
MASK = 2 ** 64 - 1
FILES = ("curves.json", "calibration_hashes.json", "rotations.safetensors", "oscar_bundle.json")


@pytest.fixture(scope="module")
def folder(tool, tmp_path_factory):
    out = tmp_path_factory.mktemp("curves")
    text = (ROOT / "heldout.txt").read_text()
    (out / "calibration.txt").write_text(text[:4000])
    (out / "unseen.txt").write_text(text[6000:9000])
    tool("oscar-collect", "--model", MODEL, "--prompts", out / "calibration.txt", "-o", out / "s", "--device", "cpu", "-q",
         "--far-pairs", "16,32")
    return out


def arguments(folder, output, *options, method="waterfill"):
    return [folder / "s", "-o", output, "--method", method, "--device", "cpu", "--windows", "16,32", *options]


def measured(folder, output, *options):
    return arguments(folder, output, "--bits", "1.5", "--model", MODEL, "--text", folder / "calibration.txt", *SHORT,
                     *options)


@pytest.fixture(scope="module")
def bundle(tool, folder):
    return folder / "b", tool("oscar-fit", *measured(folder, folder / "b"))


def manifest_of(directory):
    return json.loads((directory / "oscar_bundle.json").read_text())


def curves_of(directory):
    return json.loads((directory / "curves.json").read_text())


def widths_of(directory):
    return [tuple(layer[side]["widths"]) for layer in manifest_of(directory)["layers"] for side in ("key", "value")]


PROFILES = [w for w in itertools.product((0, 1, 2, 4), repeat=4) if list(w) == sorted(w, reverse=True)]


def bits_of(widths, head_dim):
    return sum(w * head_dim / 4 + 8 for w in widths if w) / head_dim


def estimates(curve, head_dim, spread=0.3, reach=0.6):
    """The formulas of lib/bundle/curve_estimate.h once more: KL of each of the 35 profiles."""
    largest = max(curve["analytic"])
    analytic = {w: math.log(max(c / largest, 1e-12)) for w, c in zip(PROFILES, curve["analytic"])}
    points = {tuple(p["widths"]): p for p in curve["points"]}
    kl = {w: max(p["kl"], 1e-9) for w, p in points.items()}
    noise = {w: min(p["standard_error"] / kl[w], 1) for w, p in points.items()}
    found = {}
    for w in PROFILES:
        others = {v: math.exp(-((bits_of(v, head_dim) - bits_of(w, head_dim)) / reach) ** 2 / 2) / (noise[v] ** 2 + spread ** 2)
                  for v in points if v != w}
        ratio = sum(k * (math.log(kl[v]) - analytic[v]) for v, k in others.items()) / sum(others.values())
        share = spread ** 2 / (spread ** 2 + noise[w] ** 2) if w in points else 0
        found[w] = math.exp(share * math.log(kl[w] if w in points else 1) + (1 - share) * (analytic[w] + ratio))
    return found


def least_sum(places, head_dim, budget):
    """No choice within the budget has a smaller sum: the knapsack once more, over bits."""
    best = {0: 0.0}
    for place in places:
        after = {}
        for used, sum_ in best.items():
            for widths, kl in place.items():
                bits = used + round(bits_of(widths, head_dim) * head_dim)
                if bits <= int(budget * head_dim * len(places) + 1e-6):
                    after[bits] = min(after.get(bits, float("inf")), sum_ + kl)
        best = after
    return min(best.values())


def test_files_and_prediction(bundle):
    directory, out = bundle
    curves, manifest = curves_of(directory), manifest_of(directory)
    jsonschema.validate(curves, json.loads((SCHEMAS / "curves.schema.json").read_text()))
    jsonschema.validate(manifest, json.loads((SCHEMAS / "bundle.schema.json").read_text()))
    assert not directory.with_name("b.curves.work").exists()
    assert (curves["context"], curves["sequences"], curves["windows"]) == (128, 2, {"sink": 16, "recent": 32})
    assert len(curves["curves"]) == 2 * len(manifest["layers"])
    for curve in curves["curves"]:
        assert 3 <= len(curve["points"]) <= 8
        bits = [p["bits"] for p in curve["points"]]
        assert bits == sorted(bits)
        for p in curve["points"]:
            assert p["kl"] == pytest.approx(sum(p["sequences"]) / 2) and len(p["sequences"]) == 2
            assert p["standard_error"] == pytest.approx(abs(p["sequences"][0] - p["sequences"][1]) / 2)
        # Most of what a side costs with few bits is gone with more.
        assert min(p["kl"] for p in curve["points"]) < 0.5 * curve["points"][0]["kl"] + 1e-6
    # A side without bits was measured so before that was relied on.
    for curve, widths in zip(curves["curves"], widths_of(directory)):
        if tuple(widths) == (0, 0, 0, 0):
            assert curve["points"][0]["widths"] == [0, 0, 0, 0]
    widths = widths_of(directory)
    assert sum(bits_of(w, curves["head_dim"]) for w in widths) / len(widths) <= 1.5
    # Both allocations were measured end to end. The measured one is in the bundle if it is clearly better, else the analytic one.
    end_to_end = curves["end_to_end"]
    assert [w["from"] for w in end_to_end] == ["measured", "analytic"] and {w["bits"] for w in end_to_end} == {1.5}
    kl = manifest["provenance"]["prediction"]["kl"]
    pairs = list(zip(end_to_end[0]["sequences"], end_to_end[1]["sequences"]))
    clear = [(a + b) / 2 > 7.39 * abs(a - b) / 2  # Student's t of two sequences
             for a, b in ([c - m for m, c in pairs], [math.log(c / m) for m, c in pairs])]
    best = end_to_end[0] if any(clear) and end_to_end[0]["kl"] < end_to_end[1]["kl"] else end_to_end[1]
    assert kl == best["kl"] == pytest.approx(sum(best["sequences"]) / 2, rel=1e-12)
    assert widths == [tuple(side[i]) for i in range(len(widths) // 2) for side in (best["key"], best["value"])]
    assert f"predicted end-to-end KL {kl:.4g}" in out
    # Hashes of the text stand in the one file that may be deleted, and nowhere else.
    parts = json.loads((directory / "calibration_hashes.json").read_text())["parts"]
    assert len(parts) == 2 and len(parts[1]["prompts"]["documents"]) == 2
    assert curves["text"] == manifest["provenance"]["curves"]["text"] == {
        "name": "calibration.txt", "sha256": parts[1]["prompts"]["sha256"]}


def test_text_of_the_curves_is_known_to_verify(tool, folder, bundle):
    """The collection is of other text here, so that only the curves have seen what is scored."""
    tool("oscar-collect", "--model", MODEL, "--prompts", folder / "unseen.txt", "-o", folder / "s2", "--device", "cpu", "-q",
         "--far-pairs", "16,32")
    for name, options, seen in (("b2", [], True), ("b3", ["--no-text-hashes"], None)):
        tool("oscar-fit", folder / "s2", *measured(folder, folder / name, "-q", *options)[1:])
        tool("oscar-verify", "--no-gate", "--model", MODEL, "--bundle", folder / name, "--text", folder / "calibration.txt", "--context", 128,
             "--max-sequences", 2, "--methods", "bf16,naive2,waterfill", "--report", folder / f"{name}.json", "--html",
             folder / f"{name}.html", "--device", "cpu", "-q")
        found = json.loads((folder / f"{name}.json").read_text())["bundle"]
        assert (found["calibration_text"] and found["calibration_text"]["seen"]) == seen
        page = (folder / f"{name}.html").read_text()
        assert "Errors by layer" in page
        assert found["prediction"] == {**manifest_of(folder / name)["provenance"]["prediction"], "kl": found["prediction"]["kl"],
                                       "standard_error": found["prediction"]["standard_error"]}


def test_exact_allocation(tool, folder, bundle):
    """The widths of the curves are the least sum of the estimates, those of the analytic allocation the least sum of its costs."""
    curves = curves_of(bundle[0])
    d = curves["head_dim"]
    estimated = [estimates(curve, d) for curve in curves["curves"]]
    analytic = [dict(zip(PROFILES, curve["analytic"])) for curve in curves["curves"]]
    for places, point in ((estimated, curves["end_to_end"][0]), (analytic, curves["end_to_end"][1])):
        chosen = [tuple(side[i]) for i in range(len(places) // 2) for side in (point["key"], point["value"])]
        assert sum(p[w] for p, w in zip(places, chosen)) == pytest.approx(least_sum(places, d, 1.5), rel=1e-9)
    # A budget that was not measured end to end is predicted by the sum.
    tool("oscar-fit", *arguments(folder, folder / "other", "--bits", "1.25", "--curves", bundle[0] / "curves.json", "-q"))
    assert manifest_of(folder / "other")["provenance"]["prediction"]["kl"] == pytest.approx(
        least_sum(estimated, d, 1.25), rel=1e-9)
    # Without a model the analytic allocation is what --allocate analytic gives.
    tool("oscar-fit", *arguments(folder, folder / "analytic-1.5", "--bits", "1.5", "-q"))
    point = curves["end_to_end"][1]
    assert widths_of(folder / "analytic-1.5") == [tuple(side[i]) for i in range(len(analytic) // 2) for side in (point["key"], point["value"])]


def test_other_budgets_need_no_pass(tool, folder, bundle):
    directory = bundle[0]
    tool("oscar-fit", *arguments(folder, folder / "again", "--bits", "1.5", "--curves", directory / "curves.json", "-q"))
    for name in FILES:
        assert (folder / "again" / name).read_bytes() == (directory / name).read_bytes()
    out = json.loads(tool("oscar-fit", *arguments(folder, folder / "front", "--pareto", "0.75,1,2.5,3", "--curves",
                                                 directory / "curves.json", "--json", "-q")))
    predicted = [manifest_of(pathlib.Path(row["bundle"]))["provenance"]["prediction"]["kl"] for row in out["pareto"]]
    assert predicted == sorted(predicted, reverse=True) and len(set(predicted)) == 4
    analytic = tool("oscar-fit", *arguments(folder, folder / "analytic", "--bits", "1.5", "--allocate", "analytic"))
    assert "predicted end-to-end KL" not in analytic and not (folder / "analytic" / "curves.json").exists()


def wait_for(condition, process):
    while process.poll() is None and not condition():
        time.sleep(0.005)


def checked(content):
    """The text of a run's file, with the checksum of lib/base/hash.h."""
    def mixed(word, place):
        x = ((word ^ place * 0xd1b54a32d192ed03 & MASK) + 0x9e3779b97f4a7c15) & MASK
        x = (x ^ x >> 30) * 0xbf58476d1ce4e5b9 & MASK
        x = (x ^ x >> 27) * 0x94d049bb133111eb & MASK
        return x ^ x >> 31

    text = json.dumps(content, separators=(",", ":")).encode()
    padded = len(text).to_bytes(8, "little") + text + bytes(-len(text) % 8)
    words = [int.from_bytes(padded[i:i + 8], "little") for i in range(0, len(padded), 8)]
    checksum = sum(mixed(word, place) for place, word in enumerate(words)) & MASK
    return json.dumps({**content, "checksum": f"{checksum:016x}"}, separators=(",", ":"))


def test_kill_and_resume(folder, bundle, tool):
    """Killed twice when batches are in the work directory, interrupted once: the same bytes as in one go."""
    directory, _ = bundle
    command = [str(a) for a in (BUILD_DIR / "bin" / "oscar-fit", *measured(folder, folder / "killed", "--resume"))]
    work = folder / "killed.curves.work"
    batches = 0
    for stop in (signal.SIGKILL, signal.SIGKILL, signal.SIGINT):
        process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)

        def count():
            points = work / "points.json"
            return len(json.loads(points.read_text())["batches"]) if points.exists() else 0

        wait_for(lambda: count() > batches, process)
        process.send_signal(stop)
        errors = process.communicate()[1]
        assert process.returncode == (130 if stop == signal.SIGINT else -signal.SIGKILL), errors
        assert count() > batches, "nothing was added"
        assert batches == 0 or f"{batches} batches are taken from it" in errors, errors
        batches = count()
    assert "Resume with: " in errors and "--resume" in errors and not (folder / "killed").exists()
    refused = subprocess.run([a for a in command if a != "--resume"], capture_output=True, text=True)
    assert refused.returncode == 2 and "--resume" in refused.stderr
    # Damage, and numbers that no run measures, as one who forges the checksum would write them.
    points = work / "points.json"
    good = points.read_text()
    points.write_text(good.replace('"place":0', '"place":1', 1))
    assert "points.json: its content is not what the run wrote (the checksum differs)" in tool("oscar-fit", *command[1:], code=3)
    for number in (-1.0, 2000000.0):
        batches = [{"round": 0, "place": 0, "kl": [[number]], "rounding": [0.0]}]
        points.write_text(checked({"batches": batches, "run": json.loads(good)["run"]}))
        assert f"points.json: a score is {number:g}, expected 0 to a million" in tool("oscar-fit", *command[1:], code=3)
    points.write_text(good)
    tool("oscar-fit", *command[1:])
    for name in FILES:
        assert (folder / "killed" / name).read_bytes() == (directory / name).read_bytes()
    assert not work.exists()


def test_refusals(tool, folder, bundle):
    def refuse(code, *options, names, **more):
        message = tool("oscar-fit", *arguments(folder, folder / "none", "-q", *options, **more), code=code)
        assert names in message and not (folder / "none").exists(), message

    curves = bundle[0] / "curves.json"
    refuse(2, "--allocate", "measured", "--model", MODEL, names="--text")
    refuse(2, "--allocate", "measured", "--text", folder / "unseen.txt", names="--model")
    refuse(2, "--text", folder / "unseen.txt", names="--model")
    refuse(2, "--curve-context", 128, names="--curve-context")
    refuse(2, "--allocate", "analytic", "--model", MODEL, names="--model")
    refuse(2, "--allocate", "measured", names="--model")
    refuse(2, "--allocate", "analytic", "--curves", curves, names="--curves")
    refuse(2, "--curves", curves, names="waterfill", method="balanced")
    refuse(2, "--curves", curves, "--context", "512", names="context")
    refuse(3, "--allocate", "measured", "--model", ROOT / "tiny-qwen3", "--text", folder / "unseen.txt", names="another model")
    short = folder / "short.txt"
    short.write_text("Too short.")
    refuse(3, "--allocate", "measured", "--model", MODEL, "--text", short, names="too few")
    damaged = folder / "damaged.json"
    damaged.write_text(curves.read_text().replace('"side": "value"', '"side": "other"', 1))
    refuse(3, "--curves", damaged, names="expected 'key' or 'value'")
    other = json.loads(curves.read_text())
    other["statistics_sha256"] = "0" * 64
    damaged.write_text(json.dumps(other))
    refuse(3, "--curves", damaged, names="other statistics")


def test_prediction_fails_on_widths_of_the_wrong_normalizer(tool, tmp_path):
    """Measured over predicted KL is about one; with the widths that the residual stream after the layer asks for (the MLP
    of layer 0 of this model multiplies it by 490, so that layer gets nothing), it is far beyond four."""
    safetensors = pytest.importorskip("safetensors.torch")
    from safetensors import safe_open

    model, text = ROOT / "tiny-llama", ROOT / "text" / "tiny-llama"
    prompts, windows = text / "prompts.jsonl", ["--windows", "16,32"]
    tool("oscar-collect", "--model", model, "--prompts", prompts, "-o", tmp_path / "s", "--tokens", 3000, "--seq-len", 256,
         "--far-pairs", "16,32", "--device", "cpu", "-q")
    fit = ["--method", "waterfill", "--bits", 2.25, *windows, "--device", "cpu", "-q"]
    tool("oscar-fit", tmp_path / "s", "-o", tmp_path / "b", *fit, "--allocate", "measured", "--model", model, "--text",
         prompts, "--curve-context", 256, "--curve-sequences", 2)

    def prediction(bundle, code):
        short = tmp_path / "text.txt"
        short.write_text((text / "heldout.txt").read_text()[:16000])
        tool("oscar-verify", "--no-gate", "--model", model, "--bundle", tmp_path / bundle, "--text", short, "--context", 256, "--max-sequences", 4,
             "--methods", "bf16,naive2,waterfill", "--report", tmp_path / "r.json", "--overwrite", "--device", "cpu", "-q", code=code)
        checks = {c["name"]: c for c in json.loads((tmp_path / "r.json").read_text())["self_checks"]}
        assert checks["prediction"]["pass"] == (code == 0), checks
        return checks["prediction"]["value"]

    assert 0.5 < prediction("b", 0) < 2.0
    with safe_open(tmp_path / "s", "pt") as f:
        tensors, metadata = {k: f.get_tensor(k) for k in f.keys()}, f.metadata()
    for name in [k for k in tensors if k.endswith(".attention_residual")]:
        after = tensors[name.replace("attention_residual", "residual_energy")]
        tensors[name][:, 0] = tensors[name][:, 1] * after[0] / after[1]
    safetensors.save_file(tensors, tmp_path / "wrong", metadata)
    tool("oscar-fit", tmp_path / "wrong", "-o", tmp_path / "w", *fit)
    wrong = manifest_of(tmp_path / "w")
    wrong["provenance"]["prediction"] = manifest_of(tmp_path / "b")["provenance"]["prediction"]
    (tmp_path / "w" / "oscar_bundle.json").write_text(json.dumps(wrong))
    assert prediction("w", 1) > 4.0
