"""The four commands as functions: what they write is what the executables write, and their errors are those of the package."""
import filecmp

import pytest

pytest.importorskip("torch")

import oscar_kv  # noqa: E402
from conftest import BUILD_DIR, SAMPLES, program  # noqa: E402
from oscar_kv.files.errors import EnvironmentFault  # noqa: E402

MODEL = SAMPLES / "tiny-qwen3"


@pytest.fixture(autouse=True)
def commands(monkeypatch):
    monkeypatch.setenv("OSCAR_BIN", str(BUILD_DIR / "bin"))


def test_from_prompts_to_an_export(tmp_path, capfd):
    """The way of README in four calls, compared with the same way in a shell."""
    found = oscar_kv.collect(tmp_path / "s", model=MODEL, prompts=[SAMPLES / "prompts.jsonl"], seq_len=512, tokens=2000, quiet=True)
    assert found["plan"]["tokens"] == 2000
    found = oscar_kv.fit(tmp_path / "bundle", tmp_path / "s", method="waterfill", bits=2.25, windows="16,48", overwrite=False)
    assert found["method"] == "waterfill" and 2 < found["bits_per_element"] <= 2.25
    program("oscar-fit", tmp_path / "s", "-o", tmp_path / "again", "--method", "waterfill", "--bits", "2.25", "--windows", "16,48", "-q")
    assert filecmp.cmp(tmp_path / "bundle" / "rotations.safetensors", tmp_path / "again" / "rotations.safetensors", shallow=False)
    assert oscar_kv.load_bundle(tmp_path / "bundle").method == "waterfill"
    evaluated = dict(model=MODEL, bundle=tmp_path / "bundle", text=SAMPLES / "heldout.txt", context=256, max_sequences=8, methods="waterfill")
    report = oscar_kv.verify(max_kl=100.0, **evaluated)
    assert [gate["pass"] for gate in report["gates"]] == [True]
    report = oscar_kv.verify(max_kl=1e-9, **evaluated)  # exit code 1 of the command
    assert [gate["pass"] for gate in report["gates"]] == [False] and report["methods"]
    planned = oscar_kv.export(tmp_path / "bundle", tmp_path / "serving", "transformers", dry_run=True)
    assert planned["dry_run"] is True and planned["format"] == "transformers" and "a bundle of" in planned["plan"]
    made = oscar_kv.export(tmp_path / "bundle", tmp_path / "serving", "transformers")
    assert all((tmp_path / "serving" / name).is_file() for name in made["files"])
    assert "fit" in capfd.readouterr().err  # progress of the commands that were not quiet


def test_errors(tmp_path, monkeypatch):
    with pytest.raises(oscar_kv.InputError, match="no-such-file: cannot be opened"):
        oscar_kv.fit(tmp_path / "b", "no-such-file")
    with pytest.raises(oscar_kv.InputError, match="-s: cannot be opened"):
        oscar_kv.fit(tmp_path / "b", "-s")  # a name, and no option
    with pytest.raises(ValueError, match="--no-such-option"):
        oscar_kv.fit(tmp_path / "b", no_such_option=3)
    monkeypatch.setenv("OSCAR_BIN", str(tmp_path))
    (tmp_path / "oscar-export").write_text("of another machine")
    (tmp_path / "oscar-export").chmod(0o755)
    with pytest.raises(EnvironmentFault, match="oscar-export cannot be run .Exec format error.; install the toolchain"):
        oscar_kv.export("b", "x", "vllm")
    with pytest.raises(EnvironmentFault, match="oscar-fit is not in .*; install the toolchain"):
        oscar_kv.fit(tmp_path / "b", "s")
