"""Writes man pages and completion scripts of commands from their --help-all: OUTPUT/{man,bash,zsh}.

usage: make_manuals.py --output DIR --version X.Y.Z PROGRAM...
"""
import argparse
import pathlib
import re
import subprocess

# One function for every command: subcommands and files, or the options of the command and its subcommand.
BASH = """# Completion of {name} for bash.
{function}() {{
  local current=${{COMP_WORDS[COMP_CWORD]}} word options={options}
  for word in "${{COMP_WORDS[@]:1:COMP_CWORD - 1}}"; do
    case $word in
{cases}
    esac
  done
  compopt -o filenames 2>/dev/null
  case $current in
    -*) COMPREPLY=($(compgen -W "$options" -- "$current")) ;;
    *) COMPREPLY=($(compgen -W {subcommands} -- "$current") $(compgen -f -- "$current")) ;;
  esac
}}
complete -F {function} {name}
"""
ZSH = """#compdef {name}
# Completion of {name} for zsh, by that for bash.
autoload -U +X bashcompinit && bashcompinit
{bash}"""


def ask(program, *words):
    return subprocess.run([str(program), *words, "--help-all"], check=True, capture_output=True, text=True).stdout


def section(text, title):
    """The lines below `title:` up to a blank line."""
    found = re.search(rf"^{title}:\n(.*?)(?:\n\n|\Z)", text, re.MULTILINE | re.DOTALL)
    return found[1] if found else ""


def options_of(text):
    """The words that begin with dashes at the head of an entry: `-o,--output PATH`, `--a,--no-a{false}=on`."""
    heads = re.findall(r"^  (-\S+)", text, re.MULTILINE)
    return [re.match(r"--?[a-z][a-z0-9-]*", word)[0] for head in heads for word in head.split(",") if word[0] == "-"]


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
    for folder in ("man", "bash", "zsh"):
        (a.output / folder).mkdir(parents=True, exist_ok=True)
    for program in a.programs:
        name, text = program.name, ask(program)
        words = re.findall(r"^  ([a-z]+)", section(text, "Subcommands"), re.MULTILINE)
        subcommands = {word: ask(program, word) for word in words}
        own = options_of(text)
        cases = "\n".join(f"      {word}) options='{' '.join(options_of(told) + own)}' ;;"
                          for word, told in subcommands.items())
        bash = BASH.format(name=name, function="_" + name.replace("-", "_"), options=f"'{' '.join(own)}'",
                           cases=cases or "      *) ;;", subcommands=f"'{' '.join(words)}'")
        (a.output / "man" / f"{name}.1").write_text(
            man_page(name, a.version, text, subcommands, [other.name for other in a.programs]))
        (a.output / "bash" / name).write_text(bash)
        (a.output / "zsh" / f"_{name}").write_text(ZSH.format(name=name, bash=bash))


if __name__ == "__main__":
    main()
