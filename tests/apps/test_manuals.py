"""Man pages name every option that --help-all prints, and man shows them."""
import re
import shutil
import subprocess

import pytest

from harness import BUILD_DIR, run

COMMANDS = {"collect": ["merge", "show"], "fit": [], "verify": ["plan", "methods"], "export": []}
CASES = [(name, sub) for name, subs in COMMANDS.items() for sub in [None, *subs]]


def options_of(name, sub=None):
    """The words that begin with dashes at the head of an entry of --help-all: `-o,--output PATH`, `--a,--no-a{false}=on`."""
    found = set()
    for line in run(name, *([sub] if sub else []), "--help-all").out.splitlines():
        entry = re.match(r"  (-\S+)", line)
        if entry:
            found.update(re.match(r"--?[a-z][a-z0-9-]*", word)[0] for word in entry[1].split(",") if word.startswith("-"))
    return found


@pytest.mark.parametrize("name, sub", CASES)
def test_every_option_is_named(name, sub):
    options = options_of(name, sub)
    assert "--help" in options and (sub or len(options) > 12), options
    page = (BUILD_DIR / f"manuals/oscar-{name}.1").read_text().replace("\\-", "-")
    for option in options:
        assert re.search(rf"^\\&  (\S+,)?{option}\b", page, re.MULTILINE), option


@pytest.mark.parametrize("name", COMMANDS)
def test_man_shows_the_page(name):
    page = BUILD_DIR / f"manuals/oscar-{name}.1"
    if shutil.which("man") is None:
        pytest.skip("man is not installed")
    done = subprocess.run(["man", "--warnings", "-E", "UTF-8", "-l", page], capture_output=True, text=True, env={"MANWIDTH": "100", "PATH": "/usr/bin:/bin"})
    assert done.returncode == 0 and not done.stderr, done.stderr
    for section in ("NAME", "SYNOPSIS", "OPTIONS", "EXIT STATUS", "EXAMPLES", "SEE ALSO"):
        assert re.search(rf"^{section}$", done.stdout, re.MULTILINE), done.stdout
