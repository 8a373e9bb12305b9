"""python -m oscar_kv.serve_check without vLLM: its commands, what it reads of their results, and its table."""
import json
import re
import subprocess

import pytest

pytest.importorskip("torch")

from conftest import GOLDEN  # noqa: E402
from oscar_kv import serve_check  # noqa: E402
from oscar_kv.files.errors import InputError  # noqa: E402

BUNDLE = str(GOLDEN / "bundle")


def fake(scores, speeds, broken=None):
    """subprocess.run that writes the results of the tools."""
    def run(command, env, check):
        cache = "oscar" if "OSCAR_KV_BUNDLE" in env else "bf16"
        code = 0
        if "lm_eval" in command:
            place = command[command.index("--output_path") + 1]
            import pathlib
            folder = pathlib.Path(place) / "org__model"
            folder.mkdir(parents=True)
            (folder / "results_2026.json").write_text(json.dumps({"results": {"gsm8k": {"exact_match,strict-match": scores[cache]}}}))
        else:
            with open(command[command.index("--output-json") + 1], "w") as file:
                json.dump({} if broken == "number" else {"requests_per_second": speeds[cache], "tokens_per_second": 1e6}, file)
            code = 7 if broken == "code" else 0
        return subprocess.CompletedProcess(command, code)
    return run


def test_dry_run_prints_commands(capsys, monkeypatch):
    monkeypatch.delenv("OSCAR_KV_BUNDLE", raising=False)
    assert serve_check.main(["org/a model", BUNDLE, "--dry-run", "--limit", "50"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == 8 and not any("cache-dtype" in line or "cache_dtype" in line or "OSCAR" in line for line in lines[:4])
    for line in lines[4:]:
        assert line.startswith(f"OSCAR_KV_BUNDLE={GOLDEN / 'bundle'} ") and re.search("kv.cache.dtype[ =]oscar[, ]", line) and "attention" in line
    assert "--limit 50" in lines[0] and "enable_prefix_caching=False" in lines[0] and "'org/a model'" in lines[1]
    assert [line.split("--max-num-seqs ")[1].split()[0] for line in lines[5:]] == ["1", "8", "32"]


def test_plugins_without_ours_are_told(capsys, monkeypatch):
    for plugins, code in (("lora_filesystem_resolver", 3), ("", 3), ("other,oscar_kv", 0)):
        monkeypatch.setenv("VLLM_PLUGINS", plugins)
        assert serve_check.main(["org/model", BUNDLE, "--dry-run"]) == code
        assert ("leaves out oscar_kv" in capsys.readouterr().err) == bool(code)


def test_commands_hold_nothing_that_a_terminal_obeys(tmp_path, capsys):
    """And a shell reads the same words from them."""
    bundle = tmp_path / "b\x1b[31m\udcff'\\"
    bundle.mkdir()
    (bundle / "oscar_bundle.json").write_text("{}")
    model = "\x1b[31mx\ny"
    assert serve_check.main([model, str(bundle), "--dry-run"]) == 0
    said = capsys.readouterr().out
    assert all(line.isprintable() for line in said.splitlines()) and len(said.splitlines()) == 8
    line = said.splitlines()[-1].split(" ", 1)
    read = subprocess.run(["bash", "-c", f"{line[0]} env | grep -za ^OSCAR_KV_BUNDLE=; printf '%s\\0' {line[1]}".replace("env |", "env -0 |")],
                          capture_output=True, check=True).stdout.split(b"\0")
    import os
    assert read[0] == b"OSCAR_KV_BUNDLE=" + os.fsencode(bundle) and model.encode() in read
    options = serve_check.parse([model, str(bundle)])
    results = {(cache, name): 1.0 for cache in ("bf16", "oscar") for name in ("gsm8k", *(f"batch {b}" for b in serve_check.BATCHES))}
    assert all(line.isprintable() for line in serve_check.table(results, options).splitlines())


def test_prefix_caching_is_of_both_caches(capsys):
    assert serve_check.main(["org/model", BUNDLE, "--dry-run", "--prefix-caching"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert sum("enable_prefix_caching=True" in line for line in lines) == 2 and sum(" --enable-prefix-caching " in line for line in lines) == 6


@pytest.mark.parametrize("score,code", [(0.70, 0), (0.60, 1)])
def test_table(score, code, tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(serve_check.subprocess, "run", fake({"bf16": 0.71, "oscar": score}, {"bf16": 0.5, "oscar": 1.25}))
    assert serve_check.main(["org/model", BUNDLE, "-o", str(tmp_path)]) == code
    out, err = capsys.readouterr()
    assert f"| gsm8k, strict match, % | 71.0 | {100 * score:.1f} | {100 * score - 71:+.1f} points |" in out
    assert "| tokens written per second, 8192 + 256, batch 32 | 128.0 | 320.0 | 2.50 times |" in out
    assert ("loses 11.0 points" in err) == (code == 1)


@pytest.mark.parametrize("broken,sentence", [("code", "bf16, batch 1: the command ended with 7"), ("number", "no number 'requests_per_second'")])
def test_failures_are_told(broken, sentence, tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(serve_check.subprocess, "run", fake({"bf16": 0.7, "oscar": 0.7}, {"bf16": 1, "oscar": 1}, broken))
    assert serve_check.main(["org/model", BUNDLE, "-o", str(tmp_path)]) == 3
    assert sentence in capsys.readouterr().err


def test_bad_arguments(tmp_path, capsys):
    (tmp_path / "file").write_text("")
    assert serve_check.main(["org/model", BUNDLE, "-o", str(tmp_path / "file" / "x")]) == 4
    assert "Not a directory" in capsys.readouterr().err
    assert serve_check.main(["org/model", str(tmp_path), "--dry-run"]) == 3
    assert "holds no oscar_bundle.json" in capsys.readouterr().err
    for model in ("a,trust_remote_code=True", "--help-me"):
        with pytest.raises(SystemExit) as end:
            serve_check.main(["--dry-run", "--", model, BUNDLE])
        assert end.value.code == 2 and "holds a comma or begins with '-'" in capsys.readouterr().err
    assert serve_check.parse(["m", "b", "--max-model-len", "8192"]).input_len == 7936
    for arguments in (["--limit", "0"], ["--input-len", "16384"], ["--output-len", "x"]):
        with pytest.raises(SystemExit) as end:
            serve_check.main(["org/model", BUNDLE, *arguments])
        assert end.value.code == 2


@pytest.mark.parametrize("text", ["[]", "3", '{"results": []}', '{"results": {"gsm8k": [1]}}', '{"results": {"gsm8k": {"exact_match,strict-match": "1"}}}'])
def test_results_of_another_form(text, tmp_path):
    (tmp_path / "results_1.json").write_text(text)
    with pytest.raises(InputError, match="has no number 'exact_match,strict-match'"):
        serve_check.read_result("gsm8k", tmp_path)
