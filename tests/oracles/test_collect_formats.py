"""Every JSON that oscar-collect writes against its schema; merge, show and memory, through the command itself."""
import copy
import json
import os
import pathlib
import random
import subprocess
import sys

import pytest

jsonschema = pytest.importorskip("jsonschema")
safetensors = pytest.importorskip("safetensors")

SCHEMAS = pathlib.Path(__file__).parents[2] / "schemas"
MODEL = pathlib.Path(__file__).parents[2] / "sample_data" / "tiny-qwen3-outliers"


def validator(name):
    schema = json.loads((SCHEMAS / name).read_text())
    jsonschema.Draft202012Validator.check_schema(schema)
    return jsonschema.Draft202012Validator(schema)


def errors(name, instance):
    return [f"{list(e.path)}: {e.message}" for e in validator(name).iter_errors(instance)]


def write_prompts(path, lengths, seed):
    source = random.Random(seed)
    rows = [{"input_ids": [source.randrange(8000) for _ in range(n)]} for n in lengths]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows) + "\n")  # the last line is blank
    return path


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("collect")


@pytest.fixture(scope="module")
def files(tool, folder):
    """Two statistics files and what the command printed for them."""
    out = {}
    for name, seed in (("a", 1), ("b", 2)):
        prompts = write_prompts(folder / f"{name}.jsonl", (40, 90, 20), seed)
        out[name] = json.loads(tool("oscar-collect", "--model", MODEL, "--prompts", prompts, "-o", folder / f"{name}.safetensors",
                                    "--tokens", 140, "--seq-len", 64, "--rows", 32, "--json", "-q"))
    return out


def metadata(path):
    with safetensors.safe_open(path, "np") as f:
        assert f.metadata()["format"] == "oscar-statistics" and f.metadata()["format_version"] == "3"
        return json.loads(f.metadata()["oscar"])


def test_metadata_follows_its_schema(files, folder):
    found = metadata(folder / "a.safetensors")
    assert errors("statistics.schema.json", found) == []
    assert found["parts"][0]["prompts"]["skipped"][0]["reason"] == "blank line"
    assert found["parts"][0]["prompts"]["shortened"]["used"] == 10


@pytest.mark.parametrize("change", [
    lambda m: m.pop("model"),
    lambda m: m.update(format_version=4),
    lambda m: m.update(tokens=0),
    lambda m: m.update(tokens="many"),
    lambda m: m.update(stranger=1),
    lambda m: m["model"].update(fingerprint="md5:0"),
    lambda m: m["model"].update(layers=-1),
    lambda m: m["parts"].clear(),
    lambda m: m["parts"][0]["prompts"].pop("sha256"),
    lambda m: m["parts"][0]["options"].update(dtype="int8"),
    lambda m: m["parts"][0]["prompts"]["skipped"][0].update(reason=""),
    lambda m: m["geometry"][0].pop("kv_heads"),
    lambda m: m["rows"].update(kept=-1),
])
def test_schema_refuses(change, files, folder):
    damaged = copy.deepcopy(metadata(folder / "a.safetensors"))
    change(damaged)
    assert errors("statistics.schema.json", damaged) != []


def test_result_follows_its_schema(files):
    assert errors("collect.schema.json", files["a"]) == []
    damaged = copy.deepcopy(files["a"])
    damaged["plan"].pop("unused")
    assert errors("collect.schema.json", damaged) != []


def test_verbose_says_where_the_time_went(files, folder):
    arguments = ["--model", MODEL, "--prompts", folder / "a.jsonl", "-o", folder / "verbose.safetensors", "--tokens", "140", "--seq-len", "64",
                 "--rows", "32", "--json", "-v"]
    done = subprocess.run([_program(), *arguments], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    result = json.loads(done.stdout)
    assert errors("collect.schema.json", result) == []
    phases = ["starting", "prompts", "range", "weights", "forward", "moments", "outside pairs", "spool", "synchronizing", "other ranks",
              "saving", "other"]
    assert [row["phase"] for row in result["timeline"]] == phases
    entered = {row["phase"] for row in result["timeline"] if row["seconds"] > 0}
    assert entered >= set(phases) - {"other ranks", "range"}
    table = done.stderr[done.stderr.index("where the time went:"):].splitlines()
    assert table[1].split()[0] == "starting" and table[-1].split()[:2] == ["wall", "time"] and table[-1].endswith("100.0%")
    assert "timeline" not in files["a"]  # without -v
    assert (folder / "verbose.safetensors").read_bytes() == (folder / "a.safetensors").read_bytes()


def test_dry_run_follows_its_schema_and_writes_nothing(tool, files, folder):
    before = sorted(folder.iterdir())
    plan = json.loads(tool("oscar-collect", "--model", MODEL, "--prompts", folder / "a.jsonl", "-o", folder / "c.safetensors",
                           "--dry-run", "--json", "-q"))
    assert errors("collect.schema.json", plan) == []
    assert plan["plan"]["tokens"] == 150
    assert plan["disk_bytes"] > 150 * 4 * 192
    assert sorted(folder.iterdir()) == before


def test_show(tool, files, folder):
    shown = json.loads(tool("oscar-collect", "show", folder / "a.safetensors", "--json"))
    assert errors("statistics.schema.json", shown) == []
    for layer in shown["layers"]:
        for key in ("q", "k", "v", "o", "energy"):
            values = layer[key]["eigenvalues"]
            assert values == sorted(values, reverse=True) and len(values) == 128
            assert sum(values) == pytest.approx(layer[key]["trace"])
            assert sum(values[:8]) / sum(values) == pytest.approx(layer[key]["top8"])
            assert sum(values) ** 2 / sum(v * v for v in values) == pytest.approx(layer[key]["participation"])


def test_show_draws_with_blocks_or_ascii(tool, files, folder):
    show = lambda locale: tool("oscar-collect", "show", folder / "a.safetensors",
                               env={**os.environ, "LC_ALL": locale, "PYTHONIOENCODING": "utf-8"})
    assert "█" in show("C.UTF-8")
    plain = show("C")
    assert plain.isascii() and "@" in plain
    assert "4 layers, 4 query heads, 2 KV heads, head_dim 128, hidden 192" in plain
    assert "a.jsonl: 140 tokens in 3 sequences" in plain


def test_merge(tool, files, folder):
    out = folder / "ab.safetensors"
    done = json.loads(tool("oscar-collect", "merge", folder / "a.safetensors", folder / "b.safetensors", "-o", out, "--json"))
    assert errors("collect.schema.json", done) == []
    assert done["tokens"] == 280
    found = metadata(out)
    assert errors("statistics.schema.json", found) == []
    assert {p["prompts"]["files"][0] for p in found["parts"]} == {"a.jsonl", "b.jsonl"}
    names = [name for name in ("q_gram", "k_sum", "o_gram")]
    with safetensors.safe_open(out, "np") as m, safetensors.safe_open(folder / "a.safetensors", "np") as a, \
            safetensors.safe_open(folder / "b.safetensors", "np") as b:
        for name in names:
            key = f"layers.2.{name}"
            assert (m.get_tensor(key) == a.get_tensor(key) + b.get_tensor(key)).all()
    error = tool("oscar-collect", "merge", folder / "a.safetensors", out, "-o", folder / "x.safetensors", code=3)
    assert "same prompt set" in error
    warned = subprocess.run([_program(), "merge", folder / "a.safetensors", out, "-o", folder / "x.safetensors",
                             "--allow-same-prompts"], capture_output=True, text=True)
    assert warned.returncode == 0 and "counts more than once" in warned.stderr


def _program():
    return pathlib.Path(os.environ["OSCAR_BUILD_DIR"]) / "bin" / "oscar-collect"


# In a process of its own: a program's peak begins at that of the process which starts it, and this one may hold torch.
PEAK = """import resource, subprocess, sys
subprocess.run(sys.argv[1:], stdout=subprocess.DEVNULL, check=True)
print(resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss)"""


def peak_memory(arguments):
    """Peak resident bytes of one run of oscar-collect."""
    line = [sys.executable, "-c", PEAK, _program(), *arguments]
    return int(subprocess.run([str(word) for word in line], capture_output=True, text=True, check=True).stdout) * 1024


def test_config_file_equals_the_options(tool, files, folder):
    config = folder / "run.toml"
    config.write_text(f"""# the run of a.safetensors
model = "{MODEL}"
prompts = ["{folder / 'a.jsonl'}"]
output = "{folder / 'config.safetensors'}"
tokens = 140
seq-len = 64
rows = 999
quiet = true
""")
    tool("oscar-collect", "--config", config, "--rows", 32)  # the command line wins
    assert (folder / "config.safetensors").read_bytes() == (folder / "a.safetensors").read_bytes()


def test_dry_run_knows_the_memory(tool, folder):
    prompts = write_prompts(folder / "memory.jsonl", [512] * 8, 4)
    arguments = ["--model", MODEL, "--prompts", prompts, "-o", folder / "memory.safetensors", "--seq-len", 512, "-q"]
    plan = json.loads(tool("oscar-collect", *arguments, "--dry-run", "--json"))
    used = peak_memory(arguments)
    assert 0.5 < plan["peak_memory_bytes"] / used < 2, f"{plan['peak_memory_bytes']} planned, {used} used"


def test_memory_does_not_grow_with_the_tokens(folder):
    """Twelve times the tokens; hidden states, keys and values of the extra 22528 alone would be 80 MB."""
    prompts = write_prompts(folder / "many.jsonl", [256] * 96, 3)
    run = lambda tokens: peak_memory(["--model", MODEL, "--prompts", prompts, "-o", folder / f"m{tokens}.safetensors",
                                      "--tokens", tokens, "--seq-len", 256, "-q"])
    few, many = run(2048), run(24576)
    assert many - few < 30e6, f"{few / 1e6:.0f} MB for 2048 tokens, {many / 1e6:.0f} MB for 24576"
