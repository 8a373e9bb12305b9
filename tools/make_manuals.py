"""Writes man pages and completion scripts of commands from their --help-all: OUTPUT/{man,bash,zsh}.

usage: make_manuals.py --output DIR --version X.Y.Z PROGRAM...
"""
import argparse
import pathlib

import completion
from command_help import read_command


def roff(text):
    """Escapes text for troff: no escapes, no request at the start of a line, and hyphens that can be searched and
    copied."""
    text = text.replace("\\", "\\e").replace("-", "\\-")
    return "\n".join("\\&" + line if line[:1] in (".", "'") else line for line in text.splitlines())


def option_entry(option):
    head = ", ".join(f"\\fB{roff(name)}\\fR" for name in option.names)
    if option.argument and not option.positional():
        head += f" \\fI{roff(option.argument)}\\fR"
    lines = [".TP", head, roff(option.text()) or "\\&"]
    for line in option.lines[1:]:
        lines += [".br", roff(line)]
    if option.notes:
        lines += [".br", f"({roff(option.notes)})"]
    return lines


def option_sections(command, macro):
    lines = []
    for group in command.groups:
        lines += [f".{macro} {group.title.upper()}" if macro == "SH" else f".PP\n{roff(group.title)}:"]
        for option in group.options:
            lines += option_entry(option)
    return lines


def notes_section(blocks):
    lines = []
    for block in blocks:
        for line in block.splitlines():
            if line.startswith("Exit codes: "):
                lines += [".SH EXIT STATUS", roff(line.removeprefix("Exit codes: "))]
            elif line.startswith("Results go to "):
                lines += [".SH OUTPUT AND ENVIRONMENT", roff(line)]
            else:
                lines += [roff(line)]
    return lines


def man_page(command, version, names):
    lines = [f'.TH {command.name.upper()} 1 "" "OSCAR toolchain {version}" "User commands"',
             ".SH NAME", f"{roff(command.name)} \\- {roff(command.summary)}",
             ".SH SYNOPSIS", f"\\fB{roff(command.name)}\\fR{roff(command.usage.removeprefix(command.name))}"]
    for sub in command.subcommands:
        lines += [".br", f"\\fB{roff(sub.name)}\\fR{roff(sub.usage.removeprefix(sub.name))}"]
    lines += option_sections(command, "SH")
    if command.subcommands:
        lines += [".SH SUBCOMMANDS", "Options of the command itself may follow its subcommand."]
        for sub in command.subcommands:
            lines += [f".SS {roff(sub.name)}", roff(sub.summary), *option_sections(sub, "PP")]
    lines += notes_section(command.notes)
    lines += [".SH EXAMPLES", ".nf", *(roff(line) for line in command.example), ".fi"]
    lines += [".SH SEE ALSO", ", ".join(f"\\fB{roff(name)}\\fR(1)" for name in names if name != command.name)]
    return "\n".join(lines) + "\n"


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--output", type=pathlib.Path, required=True)
    parser.add_argument("--version", required=True)
    parser.add_argument("programs", type=pathlib.Path, nargs="+")
    a = parser.parse_args()
    for folder in ("man", "bash", "zsh"):
        (a.output / folder).mkdir(parents=True, exist_ok=True)
    names = [program.name for program in a.programs]
    for program in a.programs:
        command = read_command(program)
        (a.output / "man" / f"{command.name}.1").write_text(man_page(command, a.version, names))
        (a.output / "bash" / command.name).write_text(completion.bash(command))
        (a.output / "zsh" / f"_{command.name}").write_text(completion.zsh(command))


if __name__ == "__main__":
    main()
