"""The definition of a command, parsed from its --help-all output (the layout of CLI11)."""
import dataclasses
import re
import subprocess

COLUMN = 30  # start column of option descriptions


@dataclasses.dataclass
class Option:
    names: list      # ["-o", "--output"]; a positional argument has a name without dashes
    argument: str    # "FILE.json", "TEXT:auto|cpu"; empty for a flag
    notes: str       # "REQUIRED", "Excludes: --verbose"
    lines: list      # the description; further lines may list values

    def positional(self):
        return not self.names[0].startswith("-")

    def repeats(self):
        return self.argument.endswith(" ...")

    def text(self):
        return self.lines[0] if self.lines else ""

    def values(self):
        """The possible words of the argument, if the definition lists them."""
        named = re.search(r"\{([^}]*)\}", self.argument)
        if named:
            return named[1].split(",")
        kind = re.sub(r"=.*", "", self.argument.removesuffix(" ..."))
        if "|" in kind and ":" in kind:  # TEXT:auto|cpu|cuda[:i]
            return [re.sub(r"\[.*", "", word) for word in kind.split(":", 1)[1].split("|")]
        if re.fullmatch(r"[a-z]+(,[a-z]+)+", kind):
            return kind.split(",")
        listed = [line.split(":")[0] for line in self.lines[1:] if re.match(r"[\w-]+: ", line)]
        if listed:
            return listed
        in_text = re.search(r": ((?:[a-z][\w-]*, )+(?:or )?[a-z][\w-]*)(?= \(|$)", self.text())
        return [word.removeprefix("or ") for word in in_text[1].split(", ")] if in_text else []

    def takes(self):
        """The shell completion for the argument: file, folder, path, or none of these."""
        kind = self.argument
        if kind.startswith("FILE"):
            return "file"
        if kind.startswith("DIR"):
            return "folder"
        return "path" if kind.startswith("PATH") or kind.startswith("K.pt") else ""


@dataclasses.dataclass
class Group:
    title: str
    options: list


@dataclasses.dataclass
class Command:
    name: str         # "oscar-fit" or "oscar-fit check"
    summary: str
    example: list
    usage: str
    groups: list
    subcommands: list
    notes: list       # the text that follows: exit codes, destinations of results

    def options(self):
        return [option for group in self.groups for option in group.options if not option.positional()]

    def positionals(self):
        return [option for group in self.groups for option in group.options if option.positional()]


def read_option(head, lines):
    words = head.split(" ")
    names, argument = words[0], " ".join(words[1:])
    names = re.sub(r"\{[^}]*\}", "", names).split("=")[0]
    note = re.search(r"(^| )(REQUIRED|Excludes:|Needs:).*$", argument)
    notes = note[0].strip() if note else ""
    return Option(names.split(","), argument[:note.start()].strip() if note else argument, notes, lines)


def split_entry(line):
    """Splits a line into head and first line of the description; after a long head, the description is on the next
    line. A long head may have a space in the column where descriptions start: `--decay D:FLOAT in [1e-06 - 1]`."""
    head = line[:COLUMN].rstrip()
    in_brackets = any(head.count(opening) > head.count(closing) for opening, closing in ("[]", "{}", "()"))
    if line[COLUMN - 1:COLUMN] == " " and line[COLUMN:] and not in_brackets and not head.endswith(":"):
        return head.strip(), [line[COLUMN:]]
    return line.strip(), []


def entries(lines):
    found = []
    for line in lines:
        if re.match(r"  \S", line):
            found.append(split_entry(line))
        elif line.strip() and found:
            found[-1][1].append(line.strip())
    return found


def parse(name, text, help_of_subcommand):
    """help_of_subcommand(word): returns its --help-all text."""
    blocks = re.split(r"\n\s*\n", text.strip("\n"))
    example, groups, subcommands, notes, summary, usage = [], [], [], [], "", ""
    for block in blocks:
        lines = block.splitlines()
        title = lines[0].removesuffix(":")
        if title == "Example":
            example = [line[2:] for line in lines[1:]]
        elif "Usage: " in block:
            summary = " ".join(line for line in lines if not line.startswith("Usage: "))
            usage = next(line for line in lines if line.startswith("Usage: ")).removeprefix("Usage: ")
        elif title == "Subcommands":
            subcommands = [parse(f"{name} {word}", help_of_subcommand(word), None) for word, _ in entries(lines[1:])]
        elif lines[0].endswith(":") and not lines[0].startswith(" "):
            groups.append(Group(title, [read_option(*entry) for entry in entries(lines[1:])]))
        else:
            notes.append(block)
    if not usage or not any(group.title == "Options" for group in groups):
        raise ValueError(f"{name} --help-all has no usage line or no options:\n{text}")
    return Command(name, summary, example, usage, groups, subcommands, notes)


def read_command(program):
    def ask(*words):
        return subprocess.run([str(program), *words, "--help-all"], check=True, capture_output=True, text=True).stdout

    return parse(program.name, ask(), ask)
