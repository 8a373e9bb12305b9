"""Writes man pages of commands from their --help-all: OUTPUT/NAME.1.

usage: make_manuals.py --output DIR --version X.Y.Z PROGRAM...
"""
import argparse
import pathlib
import re
import subprocess

def ask(program, *words):
    return subprocess.run([str(program), *words, "--help-all"], check=True, capture_output=True, text=True).stdout


def section(text, title):
    """The lines below `title:` up to a blank line."""
    found = re.search(rf"^{title}:\n(.*?)(?:\n\n|\Z)", text, re.MULTILINE | re.DOTALL)
    return found[1] if found else ""


def roff(text):
    """Escapes text for troff, as it stands: no escapes, no requests, and hyphens that can be searched and copied."""
    text = text.strip("\n").replace("\\", "\\e").replace("-", "\\-")
    return "\n".join([".nf", *("\\&" + line for line in text.splitlines()), ".fi"])


def man_page(name, version, text, subcommands, names):
    usage = re.search(r"(.*)\nUsage: (.*)\n", text)
    options, _, notes = text[usage.end():].partition("\nExit codes: ")
    lines = [f'.TH {name.upper()} 1 "" "OSCAR toolchain {version}" "User commands"',
             ".SH NAME", f"{name} \\- {usage[1]}".replace("oscar-", "oscar\\-"), ".SH SYNOPSIS", roff(usage[2]),
             ".SH OPTIONS", roff(options)]
    for word, described in subcommands.items():
        lines += [f".SH {word.upper()}", roff(described)]
    lines += [".SH EXIT STATUS", roff(notes), ".SH EXAMPLES", roff(section(text, "Example")), ".SH SEE ALSO",
              ", ".join(f"\\fB{other}\\fR(1)" for other in names if other != name)]
    return "\n".join(lines) + "\n"


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--output", type=pathlib.Path, required=True)
    parser.add_argument("--version", required=True)
    parser.add_argument("programs", type=pathlib.Path, nargs="+")
    a = parser.parse_args()
    a.output.mkdir(parents=True, exist_ok=True)
    for program in a.programs:
        name, text = program.name, ask(program)
        words = re.findall(r"^  ([a-z]+)", section(text, "Subcommands"), re.MULTILINE)
        subcommands = {word: ask(program, word) for word in words}
        (a.output / f"{name}.1").write_text(man_page(name, a.version, text, subcommands, [other.name for other in a.programs]))


if __name__ == "__main__":
    main()
