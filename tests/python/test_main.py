"""python -m oscar_kv: what it says about bad input holds nothing that a terminal obeys."""
import json
import os
import subprocess
import sys

import pytest

pytest.importorskip("torch")

from conftest import GOLDEN, PACKAGE_PATH, SAMPLES  # noqa: E402
from oscar_kv import InputError, __main__ as command  # noqa: E402
from oscar_kv.files.errors import NumericalError, escaped  # noqa: E402

FOREIGN = "\x1b[31m\udcff\u202e\x85\n"
SHOWN = r"\x1b[31m\xff\u202e"


def test_escapes():
    assert escaped("plain: 'é' \\") == "plain: 'é' \\" and escaped(FOREIGN) == SHOWN + r"\x85\n"


@pytest.mark.parametrize("kind,code", [(InputError, 3), (OSError, 4), (ValueError, 3), (RuntimeError, 3), (MemoryError, 4), (NumericalError, 5)])
def test_errors_are_escaped(kind, code, monkeypatch, capsys):
    def fail(options):
        raise kind(f"config.json: {FOREIGN.strip() if kind in (ValueError, RuntimeError) else FOREIGN}")

    monkeypatch.setattr(command, "run", fail)
    assert command.main([f"model{FOREIGN}", "bundle", "--prompt", "x"]) == code
    said = capsys.readouterr().err
    assert SHOWN in said and said.isascii() and said.endswith("\n") and all(c.isprintable() for c in said[:-1])


def python(code, **options):
    """Runs Python code with the package; what it says on standard error, which is no traceback."""
    done = subprocess.run([sys.executable, "-c", code], stderr=subprocess.PIPE, text=True, timeout=120,
                          env={**os.environ, "PYTHONPATH": PACKAGE_PATH or os.environ.get("PYTHONPATH", "")}, **options)
    assert "Traceback" not in done.stderr, done.stderr
    return done.returncode, done.stderr.strip().split("\n")[-1]


def test_a_closed_output_is_told():
    code = "import os, sys; os.close(1); sys.stdout = None\nfrom oscar_kv.files import exits\nsys.exit(exits.ended(lambda: print('x')))"
    assert python(code) == (4, "error: standard output is closed; open it, or send it to a file")


def test_lm_eval_that_is_not_installed():
    code = "import runpy, sys; sys.modules['lm_eval'] = None; runpy.run_module('oscar_kv.lm_eval', run_name='__main__')"
    found, said = python(code)
    assert found == 4 and said.startswith("error: lm-evaluation-harness cannot be imported") and said.endswith("install lm_eval")


def test_a_byte_order_mark_of_a_prompt_is_no_text(tmp_path):
    (tmp_path / "p.txt").write_bytes(b"\xef\xbb\xbfa")
    assert command.prompt_text(command.parse(["m", "b", "--prompt-file", str(tmp_path / "p.txt")])) == "a"


def test_a_checkpoint_of_another_bundle_is_not_given_to_transformers(tmp_path, monkeypatch, capsys):
    """Which would make as many layers as it names."""
    model = tmp_path / "model"
    model.mkdir()
    for path in (SAMPLES / "tiny-qwen3").iterdir():
        (model / path.name).symlink_to(path)
    (model / "config.json").unlink()
    config = json.loads((SAMPLES / "tiny-qwen3" / "config.json").read_text())
    (model / "config.json").write_text(json.dumps({**config, "num_hidden_layers": 10 ** 9}))
    monkeypatch.setattr(command, "of_transformers", lambda *_: pytest.fail("transformers was called"))
    assert command.main([str(model), str(GOLDEN / "bundle"), "--prompt", "x"]) == 3
    assert "the bundle was fitted on another model" in capsys.readouterr().err


def test_usage_errors_are_escaped(capsys):
    with pytest.raises(SystemExit) as stopped:
        command.main(["m", "b", "--prompt", "x", f"--no{FOREIGN}"])
    last = capsys.readouterr().err.rstrip("\n").split("\n")[-1]
    assert stopped.value.code == 2 and SHOWN in last and all(c.isprintable() for c in last)
