"""python -m oscar_kv: what it says about bad input holds nothing that a terminal obeys."""
import pytest

pytest.importorskip("torch")

from oscar_kv import InputError, __main__ as command  # noqa: E402
from oscar_kv.errors import NumericalError, escaped  # noqa: E402

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


def test_usage_errors_are_escaped(capsys):
    with pytest.raises(SystemExit) as stopped:
        command.main(["m", "b", "--prompt", "x", f"--no{FOREIGN}"])
    last = capsys.readouterr().err.rstrip("\n").split("\n")[-1]
    assert stopped.value.code == 2 and SHOWN in last and all(c.isprintable() for c in last)
