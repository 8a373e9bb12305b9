"""Names in bundles and statistics end in commands, cards, checksums and test reports: nothing in them is a command, markup or a
line of its own, and cards stay short."""
import json
import pathlib
import re
import shutil
import struct
import subprocess
import xml.etree.ElementTree

import pytest

import harness
from harness import BAD_INPUT, DONE, GATE_FAILED, USAGE, make_model, refuse, run, succeed, tree

NAMES = ["$(touch PWNED)", "`touch PWNED`", "a; touch PWNED", "a\n```\n\n# heading", "a' b", 'a" b', "a|b", "<img src=x>", "../../etc", "-rf", "a/b/c", "x&y"]
METHODS = ["$(touch PWNED)", "../evil", "a\nb", "a b; touch PWNED", "", "x" * 65, "a.pt\n00  b"]


def edited(bundle, folder, **changes):
    shutil.copytree(bundle, folder)
    document = json.loads((folder / "oscar_bundle.json").read_text())
    for key, value in changes.items():
        if key == "name":
            document["model"]["name"] = value
        else:
            document[key] = value
    document.pop("numbers_sha256", None)
    (folder / "oscar_bundle.json").write_text(json.dumps(document))
    return folder


@pytest.mark.parametrize("name", NAMES)
def test_a_bundle_with_a_hostile_model_name_is_refused(name, bundle, tmp_path):
    refuse(BAD_INPUT, "export", edited(bundle, tmp_path / "b", name=name), "--format", "sglang-branch", "-o", tmp_path / "o", names="name is")
    assert not (tmp_path / "o").exists()


@pytest.mark.parametrize("method", METHODS)
def test_a_bundle_with_a_hostile_method_is_refused(method, bundle, tmp_path):
    refuse(BAD_INPUT, "export", edited(bundle, tmp_path / "b", method=method), "--format", "sglang-branch", "-o", tmp_path / "o", names="'method' is")


@pytest.mark.parametrize("name", NAMES)
def test_statistics_with_a_hostile_model_name_are_refused(name, statistics, tmp_path):
    data = statistics.read_bytes()
    length = struct.unpack("<Q", data[:8])[0]
    header = json.loads(data[8:8 + length])
    document = json.loads(header["__metadata__"]["oscar"])
    document["model"]["name"] = name
    header["__metadata__"]["oscar"] = json.dumps(document)
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    (tmp_path / "s").write_bytes(struct.pack("<Q", len(text)) + text + data[8 + length:])
    refuse(BAD_INPUT, "fit", tmp_path / "s", "-o", tmp_path / "b", names="name is")
    refuse(BAD_INPUT, "collect", "show", tmp_path / "s", names="name is")


def serve_block(card):
    return re.search(r"```sh\n(.*?)```", card.read_text(), re.S)[1]


def arguments_of(block, folder):
    """What a shell makes of the serve command: python prints its arguments."""
    (folder / "python").write_text('#!/bin/sh\nprintf "%s\\0" "$@"\nprintf "%s\\0" "$SGLANG_OSCAR_K_ROTATION_PATH"\n')
    (folder / "python").chmod(0o755)
    done = subprocess.run(["bash", "-c", 'PATH="$PWD:$PATH"\n' + block], cwd=folder, capture_output=True, text=True, check=True)
    return done.stdout.split("\0")


def test_the_serve_command_names_the_model(bundle, model, tmp_path):
    """org/name as it is; a folder by a path that stands for it, because the path on the author's machine is nobody's business."""
    hub = edited(bundle, tmp_path / "hub", name="org/name-1")
    succeed("export", hub, "--format", "sglang-branch", "-o", tmp_path / "a")
    given = arguments_of(serve_block(tmp_path / "a" / "README.md"), tmp_path / "a")
    assert given[given.index("--model-path") + 1] == "org/name-1"
    assert pathlib.Path(given[-2]).exists()
    succeed("export", bundle, "--format", "sglang-branch", "-o", tmp_path / "b")
    given = arguments_of(serve_block(tmp_path / "b" / "README.md"), tmp_path / "b")
    assert given[given.index("--model-path") + 1] == "/path/to/tiny" and "stands for the folder" in (tmp_path / "b" / "README.md").read_text()
    for form in ("sglang-branch", "sglang-branch-v2", "transformers"):
        succeed("export", bundle, "--format", form, "-o", tmp_path / form, "--model", model)
        for path in (tmp_path / form).rglob("*"):
            assert not path.is_file() or str(tmp_path).encode() not in path.read_bytes(), path
    given = arguments_of(serve_block(tmp_path / "sglang-branch" / "README.md"), tmp_path / "sglang-branch")
    assert given[given.index("--model-path") + 1] == "/path/to/tiny"


def test_a_folder_of_any_name_can_be_fitted_and_served(model, prompts, tmp_path):
    odd = tmp_path / "a $(touch PWNED) 'b' `c`"
    shutil.copytree(model, odd, symlinks=True)
    succeed("collect", "--model", odd, "--prompts", prompts, "-o", tmp_path / "s", "--seq-len", 128)
    succeed("fit", tmp_path / "s", "--method", "oscar", "-o", tmp_path / "b")
    assert re.fullmatch(r"[A-Za-z0-9._-]+", json.loads((tmp_path / "b" / "oscar_bundle.json").read_text())["model"]["name"])
    succeed("export", tmp_path / "b", "--format", "sglang-branch", "-o", tmp_path / "e", "--model", odd)
    given = arguments_of(serve_block(tmp_path / "e" / "README.md"), tmp_path / "e")
    assert re.fullmatch(r"/path/to/[A-Za-z0-9._-]+", given[given.index("--model-path") + 1])
    assert not list(tmp_path.rglob("PWNED"))
    assert subprocess.run(["sha256sum", "-c", "SHA256SUMS"], cwd=tmp_path / "e", capture_output=True).returncode == 0


def test_cards_are_short_and_hold_no_hashes_of_the_text(bundle, model, tmp_path):
    formats = ("sglang-branch", "sglang", "vllm", "transformers", "hub", "absorbed")
    shutil.copytree(model, tmp_path / "model")  # without links
    for name in formats:
        succeed("export", bundle, "--format", name, *([] if name == "sglang-branch" else ["--model", tmp_path / "model"]), "-o", tmp_path / name)
    hashes = json.loads((bundle / "calibration_hashes.json").read_text())["parts"][0]["prompts"]
    assert len(hashes["documents"]) == 4 and len(hashes["passages"]) > 20
    some = [hashes["documents"][0], hashes["passages"][0], hashes["passages"][-1]]
    assert all(h in json.dumps(hashes) for h in some)
    exported = [file for name in formats for file in sorted((tmp_path / name).rglob("*")) if file.is_file()]
    assert len(exported) > 20
    for file in [bundle / "README.md", bundle / "oscar_bundle.json", *exported]:
        content = file.read_bytes()
        assert not any(h.encode() in content for h in some), file
    for card in (bundle / "README.md", *(tmp_path / name / "README.md" for name in formats if name != "absorbed")):
        lines = card.read_text().splitlines()
        assert len(lines) <= 80, f"{card}: {len(lines)} lines"
        assert max(map(len, lines)) < 1000 and lines[0] == "---" and "library_name: oscar" in lines


def test_a_card_of_many_rows_and_prompt_sets_stays_short(bundle, model, text, tmp_path):
    many = edited(bundle, tmp_path / "b")
    document = json.loads((many / "oscar_bundle.json").read_text())
    document["provenance"]["collection"]["parts"] *= 60
    document["model"]["name"] = "org/name"
    (many / "oscar_bundle.json").write_text(json.dumps(document))
    succeed("export", many, "--format", "sglang-branch", "-o", tmp_path / "e")
    assert len((tmp_path / "e" / "README.md").read_text().splitlines()) <= 80


def test_rows_for_the_self_check(statistics, model, bundle, tmp_path):
    """A bundle carries rows of the sample, and exports pass them on; an option leaves them out."""
    from safetensors.numpy import load_file
    sample = load_file(statistics)
    held = (bundle / "self_check.safetensors").read_bytes()
    size = json.loads((bundle / "oscar_bundle.json").read_text())["files"]["self_check.safetensors"]["bytes"]
    assert size == len(held)
    header = json.loads(held[8:8 + int.from_bytes(held[:8], "little")])
    rows = min(192, len(sample["rows.position"]))
    layers = {name.split(".")[1] for name in sample if name.startswith("layers.")}
    assert len(header) == 2 + 3 * len(layers) and header["positions"]["shape"] == [rows]
    assert all(header[f"layers.{i}.k"]["dtype"] == "BF16" and header[f"layers.{i}.q"]["shape"][0] == 8 for i in layers)
    succeed("export", bundle, "--format", "vllm", "--model", model, "-o", tmp_path / "e")
    assert (tmp_path / "e" / "oscar_bundle" / "self_check.safetensors").read_bytes() == held
    succeed("fit", statistics, "--method", "oscar", "-o", tmp_path / "b", "--no-check-rows")
    assert not (tmp_path / "b" / "self_check.safetensors").exists()
    assert "self_check" not in (tmp_path / "b" / "oscar_bundle.json").read_text()


def test_hashes_of_the_text_can_be_left_out(statistics, model, prompts, bundle, tmp_path):
    succeed("fit", statistics, "--method", "oscar", "-o", tmp_path / "b", "--no-text-hashes")
    assert not (tmp_path / "b" / "calibration_hashes.json").exists()
    assert "calibration_hashes" not in (tmp_path / "b" / "oscar_bundle.json").read_text()
    succeed("collect", "--model", model, "--prompts", prompts, "-o", tmp_path / "s", "--seq-len", 128, "--no-text-hashes")
    assert b'passages' not in (tmp_path / "s").read_bytes()[:20000]
    succeed("fit", tmp_path / "s", "--method", "oscar", "-o", tmp_path / "c")
    assert not (tmp_path / "c" / "calibration_hashes.json").exists()
    # A bundle whose file was deleted before it was passed on is sound; an edited one is not.
    shutil.copytree(bundle, tmp_path / "d")
    (tmp_path / "d" / "calibration_hashes.json").unlink()
    succeed("verify", "--bundle", tmp_path / "d", "--check-only", "--model", model)
    (tmp_path / "d" / "calibration_hashes.json").write_text("{}")
    refuse(BAD_INPUT, "verify", "--bundle", tmp_path / "d", "--check-only", names="calibration_hashes.json")


def test_junit_is_xml_whatever_the_names(model, bundle, text, tmp_path):
    odd = tmp_path / "r\x01\x0b\x1b<&\"'\ud7ff\U0001f600]]>"
    odd.mkdir()
    shutil.copytree(bundle, odd / "b")
    shutil.copyfile(text, odd / "t.txt")
    result = run("verify", "--model", model, "--bundle", odd / "b", "--text", odd / "t.txt", "--context", 400, "--max-sequences", 1, "--bootstrap", 0,
                 "--max-kl", "1e-9", "--junit", odd / "j.xml", "--html", odd / "h.html", "--markdown", odd / "m.md", "--report", odd / "r.json")
    assert result.code in (DONE, GATE_FAILED), str(result)
    suite = xml.etree.ElementTree.parse(odd / "j.xml").getroot()
    assert int(suite.get("tests")) == len(suite.findall("testcase")) > 0
    for name in ("j.xml", "h.html", "m.md", "r.json"):
        assert harness.unsafe((odd / name).read_bytes()) is None, name


@pytest.mark.parametrize("line", [
    ["verify", "plan", "--model", "{model}", "--memory", "8GiB", "--bundle", "{bundle}"],
    ["verify", "plan", "--model", "{model}", "--memory", "8GiB", "--text", "{text}"],
    ["verify", "--model", "{model}", "--text", "{text}", "--context", 400, "--bits", 3],
    ["verify", "--model", "{model}", "--text", "{text}", "--context", 400, "--task-prompts", 3],
    ["verify", "--bundle", "{bundle}", "--check-only", "--revision", "main"],
    ["fit", "{statistics}", "--method", "oscar", "-o", "{out}", "--model", "{model}"],
    ["fit", "{statistics}", "--method", "oscar", "-o", "{out}", "--curve-context", 128], ["fit", "{statistics}", "--method", "oscar", "-o", "{out}", "--dtype", "float32"],
    ["collect", "show", "{statistics}", "--seed", 3],
    ["collect", "merge", "{statistics}", "{statistics}", "-o", "{out}", "--tokens", 5],
    ["export", "{bundle}", "--format", "sglang-branch", "-o", "{out}", "--dtype", "float32"], ["export", "{bundle}", "--format", "sglang-branch", "-o", "{out}", "--revision", "x"],
], ids=lambda line: " ".join(map(str, line[:2] + line[-2:])))
def test_options_that_would_do_nothing_are_refused(line, model, bundle, statistics, text, tmp_path):
    places = {"model": model, "bundle": bundle, "statistics": statistics, "text": text, "out": tmp_path / "out"}
    given = [str(x).format(**places) for x in line]
    option = [x for x in map(str, line) if x.startswith("-")][-1]
    sentence = refuse(USAGE, *given)
    assert option in sentence or (option == "-o" and "--output" in sentence), sentence
    assert tree(tmp_path) == {}


@pytest.mark.parametrize("name", ["collect", "verify"])
def test_help_says_what_is_required(name):
    out = succeed(name, "--help").out
    for option in {"collect": ["--model", "--prompts", "--output"], "verify": ["--model", "--text"]}[name]:
        entry = re.search(rf"\n +(?:-o,)?{option} .*?(?=\n +-)", out, re.S)
        assert "required" in re.sub(r"\s+", " ", entry[0]), entry[0]


def test_quiet_prints_results_only_where_they_are_asked_for(statistics, bundle, tmp_path):
    assert succeed("fit", statistics, "-o", tmp_path / "a", "-q").out == ""
    assert json.loads(succeed("fit", statistics, "-o", tmp_path / "b", "-q", "--json").out)["method"] == "waterfill"
    assert succeed("export", bundle, "--format", "sglang-branch", "-o", tmp_path / "c", "-q").out == ""
    assert "geometry" in succeed("collect", "show", statistics, "-q").out
