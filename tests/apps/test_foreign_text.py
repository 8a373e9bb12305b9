"""Names and texts of files reach the terminal, pages and reports escaped: harness.Result asks that of every run, here with
hostile text in every place that a message, a table or a report repeats."""
import hashlib
import json
import os
import re
import shutil
import struct
import xml.etree.ElementTree

import pytest

import harness
from harness import BAD_INPUT, DONE, SAMPLE, USAGE, make_model, refuse, run, succeed

EVIL = "x\x1b[2J\x07\x9b\u202e\u2066\u2028y"  # ESC, BEL, C1 CSI, right-to-left override, isolate, line separator
BYTES = b"x\x1b[2J\xff\xc2\x9by"              # the same kind, and no UTF-8
ALL = (DONE, USAGE, BAD_INPUT)


def put(document, path, value):
    """Sets document[a][b]... for path "a.b"."""
    *parents, last = [int(p) if p.isdigit() else p for p in path.split(".")]
    for p in parents:
        document = document[p]
    document[last] = value


def safetensors(path, change):
    """Rewrites the header of a safetensors file: change(dictionary)."""
    data = path.read_bytes()
    length = struct.unpack("<Q", data[:8])[0]
    header = json.loads(data[8:8 + length])
    change(header)
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    path.write_bytes(struct.pack("<Q", len(text)) + text + data[8 + length:])


@pytest.mark.parametrize("field", ["format", "method", "scope", "model.fingerprint", "model.name", "code.encoder", "code.layout",
                                   "model.architecture", "files.rotations\x1bx", "provenance.x", "layers.0.key.clip",
                                   "files.rotations.safetensors"])
def test_manifest(field, bundle, model, tmp_path):
    bad = tmp_path / "bad"
    shutil.copytree(bundle, bad)
    document = json.loads((bad / "oscar_bundle.json").read_text())
    if field.startswith("files.r"):
        files = document["files"]
        files[field[6:] + EVIL] = files["rotations.safetensors"] | {"sha256": EVIL}
    else:
        put(document, field, EVIL)
    (bad / "oscar_bundle.json").write_text(json.dumps(document))
    for line in (["verify", "--bundle", bad, "--check-only"], ["verify", "--bundle", bad, "--check-only", "--model", model],
                 ["export", bad, "--format", "sglang-branch", "-o", tmp_path / "out"], ["export", bad, "--format", "sglang-branch", "-o", tmp_path / "j", "--json"]):
        assert run(*line).code in ALL
    for page in tmp_path.rglob("README.md"):
        assert harness.unsafe(page.read_bytes()) is None


def test_tensor_names(bundle, tmp_path):
    bad = tmp_path / "bad"
    shutil.copytree(bundle, bad)
    rotations = bad / "rotations.safetensors"
    safetensors(rotations, lambda h: h.update({EVIL: h.pop(next(k for k in h if k.endswith("forward")))}))
    document = json.loads((bad / "oscar_bundle.json").read_text())
    document["files"]["rotations.safetensors"] = {"sha256": hashlib.sha256(rotations.read_bytes()).hexdigest(), "bytes": rotations.stat().st_size}
    (bad / "oscar_bundle.json").write_text(json.dumps(document))
    assert "\\x1b[2J" in refuse(BAD_INPUT, "verify", "--bundle", bad, "--check-only")


@pytest.mark.parametrize("field", ["format", "format_version", "model.name", "model.architecture", "model.fingerprint", "parts.0.prompts.files",
                                   "parts.0.prompts.sha256", "parts.0.tokens", "parts.0.options.far_pairs", "tool.name", "tensor"])
def test_statistics(field, statistics, prompts, tmp_path):
    bad = tmp_path / "bad.safetensors"
    shutil.copyfile(statistics, bad)

    def change(header):
        metadata = header["__metadata__"]
        if field == "tensor":
            header[EVIL] = header.pop("layers.0.q_gram")
        elif field.startswith("format"):
            metadata[field] = EVIL
        else:
            document = json.loads(metadata["oscar"])
            put(document, field, [EVIL] if field.endswith("files") else EVIL)
            metadata["oscar"] = json.dumps(document)

    safetensors(bad, change)
    for line in (["collect", "show", bad], ["collect", "show", bad, "--json"], ["collect", "merge", bad, statistics, "-o", tmp_path / "m"],
                 ["collect", "merge", bad, bad, "--allow-same-prompts", "-o", tmp_path / "n"], ["fit", bad, "-o", tmp_path / "b"]):
        assert run(*line).code in ALL
    for page in tmp_path.rglob("README.md"):
        assert harness.unsafe(page.read_bytes()) is None


def tokenizer(change):
    document = json.loads((SAMPLE / "tiny-qwen3" / "tokenizer.json").read_text())
    change(document)
    return json.dumps(document)


TOKENIZERS = {
    "merge": lambda: tokenizer(lambda d: d["model"]["merges"].insert(0, [EVIL, EVIL])),
    "merge as text": lambda: tokenizer(lambda d: d["model"].update(merges=[EVIL])),
    "regex": lambda: tokenizer(lambda d: d.update(pre_tokenizer={"type": "Split", "pattern": {"Regex": "(" + EVIL}, "behavior": "Isolated"})),
    "type": lambda: tokenizer(lambda d: d["model"].update(type=EVIL)),
    "unknown token": lambda: tokenizer(lambda d: d["model"].update(unk_token=EVIL)),
    "added token": lambda: tokenizer(lambda d: d["added_tokens"].append(d["added_tokens"][0] | {"content": EVIL, "id": -1})),
    "bytes": lambda: b'{"' + BYTES + b'": 1}',
}


@pytest.mark.parametrize("case", TOKENIZERS)
def test_tokenizer(case, model, prompts, tmp_path):
    bad = harness.damaged_copy(model, tmp_path / "bad", "tokenizer.json", TOKENIZERS[case]())
    refuse(BAD_INPUT, "collect", "--model", bad, "--prompts", prompts, "-o", tmp_path / "s")


def test_config_json(model, prompts, tmp_path):
    bad = harness.damaged_copy(model, tmp_path / "bad", "config.json", b'{"hidden_size": "' + BYTES + b'"}')
    refuse(BAD_INPUT, "collect", "--model", bad, "--prompts", prompts, "-o", tmp_path / "s", names="not valid JSON")
    config = json.dumps(harness.CONFIG | {"architectures": [EVIL]})
    bad = harness.damaged_copy(model, tmp_path / "bad2", "config.json", config)
    refuse(BAD_INPUT, "collect", "--model", bad, "--prompts", prompts, "-o", tmp_path / "s", names="\\x1b")


@pytest.mark.parametrize("row", [{EVIL: 1}, {"messages": [{"role": EVIL, "content": "a"}]}, {"messages": [{"role": "user", "content": EVIL}], "text": "b"}])
def test_prompt_rows(row, model, tmp_path):
    file = tmp_path / f"{EVIL}.jsonl"
    file.write_text(json.dumps(row))
    assert run("collect", "--model", model, "--prompts", file, "-o", tmp_path / "s").code in ALL


def test_keys_of_a_configuration_file(tmp_path):
    for content in (EVIL.encode() + b" = 1\n", b'"' + BYTES + b'" = 1\n', b"seed = \"" + BYTES + b"\"\n"):
        (tmp_path / "o.toml").write_bytes(content)
        refuse(USAGE, "fit", "s", "-o", "b", "--config", tmp_path / "o.toml")


@pytest.mark.parametrize("name", [EVIL.encode(), BYTES], ids=["controls", "bytes"])
def test_names_of_files_and_options(name, statistics, bundle, model, tmp_path):
    folder = tmp_path / os.fsdecode(name)
    for line in (["collect", "show", folder], ["fit", folder, "-o", tmp_path / "b"], ["export", folder, "--format", "sglang-branch", "-o", tmp_path / "o"],
                 ["export", bundle, "--format", os.fsdecode(name), "-o", tmp_path / "o"], ["verify", "--bundle", folder, "--check-only"],
                 ["verify", "--rotations", f"{folder},{folder}", "--check-only"], ["collect", "--device", os.fsdecode(name)],
                 ["fit", statistics, "-o", folder], ["fit", statistics, "-o", folder], ["export", bundle, "--format", "sglang-branch", "-o", folder],
                 ["collect", "--model", folder, "--prompts", folder, "-o", tmp_path / "s"], ["verify", "plan", "--model", model, "--memory", os.fsdecode(name)]):
        assert run(*line).code in ALL


def test_a_run_in_a_work_directory(statistics, model, prompts, tmp_path):
    """run.json of another run: its options and version are repeated in the refusal."""
    data = statistics.read_bytes()
    metadata = json.loads(json.loads(data[8:8 + struct.unpack("<Q", data[:8])[0]])["__metadata__"]["oscar"])
    part = metadata["parts"][0]
    base = {"model": metadata["model"]["fingerprint"], "prompts": part["prompts"]["sha256"], "threads": 1}
    for document in (base | {"tool_version": "0", "options": {"tokens": EVIL}},
                     base | {"tool_version": EVIL, "options": part["options"]}, {EVIL: EVIL, "model": EVIL}):
        work = tmp_path / "w"
        work.mkdir(exist_ok=True)
        (work / "run.json").write_text(json.dumps(document))
        refuse((USAGE, BAD_INPUT), "collect", "--model", model, "--prompts", prompts, "-o", tmp_path / "s", "--seq-len", 128,
               "--work-dir", work, "--resume")


def test_published_files(bundle, tmp_path):
    torch = pytest.importorskip("torch")
    succeed("export", bundle, "--format", "sglang-branch", "-o", tmp_path / "e")
    key, value = sorted((tmp_path / "e").glob("*.pt"))
    for objective in ("sst" + EVIL, "qqt" + EVIL):
        content = torch.load(key, weights_only=True)
        torch.save(content | {"objective": objective}, tmp_path / "k.pt")
        assert run("verify", "--rotations", f"{tmp_path / 'k.pt'},{value}", "--check-only").code in ALL
    content = torch.load(key, weights_only=True)
    layer = next(iter(content["layers"].values()))
    layer[EVIL] = layer["rotation"]
    torch.save(content, tmp_path / "k.pt")
    refuse(BAD_INPUT, "verify", "--rotations", f"{tmp_path / 'k.pt'},{value}", "--check-only", names="\\x1b")


@pytest.fixture(scope="module")
def hostile_report(tmp_path_factory, text):
    """Every report of a run whose model, text and bundle carry hostile names."""
    folder = tmp_path_factory.mktemp("names")
    name = f'{EVIL}<blink>"&|`$(id)`\n# h'
    model = make_model(folder / name)
    shutil.copyfile(text, folder / f"{name}.txt")
    files = {kind: folder / f"r.{kind}" for kind in ("json", "html", "md", "xml")}
    result = run("verify", "--model", model, "--text", folder / f"{name}.txt", "--context", 400, "--max-sequences", 1, "--methods", "naive2",
                 "--bootstrap", 0, "--report", files["json"], "--html", files["html"], "--markdown", files["md"], "--junit", files["xml"])
    assert result.code in (0, 1), str(result)
    return files


def test_reports(hostile_report):
    for kind, path in hostile_report.items():
        assert harness.unsafe(path.read_bytes()) is None, kind
    assert json.loads(hostile_report["json"].read_text())["text"]["name"].startswith(EVIL)  # escaped, not lost
    xml.etree.ElementTree.parse(hostile_report["xml"])
    page, markdown = hostile_report["html"].read_text(), hostile_report["md"].read_text()
    assert "<blink>" not in page and "\\x1b[2J" in page
    shown = re.sub(r"(`+)(?!`).*?(?<!`)\1(?!`)", "", markdown)  # without code spans, where nothing is a tag
    assert "<blink>" not in shown and not [line for line in markdown.splitlines() if line.startswith("# ")]
