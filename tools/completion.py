"""Completion scripts for bash and zsh, made from a command's definition (command_help.py)."""
import re


def quote(text):
    return "'" + text.replace("'", "'\\''") + "'"


def words_of(options):
    return " ".join(name for option in options for name in option.names)


def bash_answer(option):
    """The commands that complete the argument of `option`."""
    values = option.values()
    if values:
        return f"COMPREPLY=($(compgen -W {quote(' '.join(values))} -- \"$current\"))"
    if option.takes() == "folder":
        return 'COMPREPLY=($(compgen -d -- "$current"))'
    if option.takes():
        return 'COMPREPLY=($(compgen -f -- "$current"))'
    return "COMPREPLY=()"


def bash_cases(command, prefix=""):
    lines = []
    for option in command.options():
        if option.argument:
            names = "|".join(prefix + name for name in option.names)
            lines.append(f"    {names}) {bash_answer(option)}; return ;;")
    return lines


def bash(command):
    function = "_" + command.name.replace("-", "_")
    short = {sub.name.split()[1]: sub for sub in command.subcommands}
    lines = [f"# Completion of {command.name} for bash.", f"{function}() {{",
             "  local current=${COMP_WORDS[COMP_CWORD]} previous=${COMP_WORDS[COMP_CWORD - 1]} subcommand= word"]
    if short:
        lines += ['  for word in "${COMP_WORDS[@]:1:COMP_CWORD - 1}"; do',
                  f"    case $word in {'|'.join(short)}) subcommand=$word ;; esac", "  done"]
    lines += ['  compopt -o filenames 2>/dev/null', '  case $subcommand:$previous in']
    for word, sub in short.items():
        lines += bash_cases(sub, f"{word}:")
    lines += ["  esac", "  case $previous in", *bash_cases(command), "  esac",
              '  if [[ $current != -* ]]; then',
              '    COMPREPLY=($(compgen -f -- "$current"))']
    if short:
        lines += [f"    [ -n \"$subcommand\" ] || COMPREPLY+=($(compgen -W {quote(' '.join(short))} -- \"$current\"))"]
    lines += ["    return", "  fi", "  case $subcommand in"]
    for word, sub in short.items():
        # Options of the command itself, such as --json, may follow the subcommand.
        lines.append(f"    {word}) COMPREPLY=($(compgen -W {quote(words_of(sub.options() + command.options()))} -- \"$current\")) ;;")
    lines += [f"    *) COMPREPLY=($(compgen -W {quote(words_of(command.options()))} -- \"$current\")) ;;", "  esac", "}",
              f"complete -F {function} {command.name}"]
    return "\n".join(lines) + "\n"


def zsh_escape(text):
    return re.sub(r"([\[\]:\\])", r"\\\1", text)


def zsh_action(option):
    values = option.values()
    if values:
        return "(" + " ".join(values) + ")"
    return {"folder": "_directories", "file": "_files", "path": "_files"}.get(option.takes(), " ")


def zsh_spec(option):
    label = zsh_escape(option.names[-1].lstrip("-"))
    text = zsh_escape(option.text())
    if option.positional():
        return [quote(f"{'*' if option.repeats() else ''}:{label}:{zsh_action(option)}")]
    tail = f":{label}:{zsh_action(option)}" if option.argument else ""
    repeat = "*" if option.repeats() else ""
    others = "(" + " ".join(option.names) + ")" if len(option.names) > 1 and not repeat else ""
    return [quote(f"{others}{repeat}{name}[{text}]{tail}") for name in option.names]


def zsh_arguments(options, indent):
    specs = [spec for option in options for spec in zsh_spec(option)]
    return (" \\\n" + indent + "  ").join([indent + "_arguments -s", *specs])


def zsh(command):
    function = "_" + command.name.replace("-", "_")
    short = {sub.name.split()[1]: sub for sub in command.subcommands}
    lines = [f"#compdef {command.name}", f"# Completion of {command.name} for zsh.", f"{function}() {{"]
    if short:
        lines += ["  local word subcommand=", "  for word in ${words[2,CURRENT-1]}; do",
                  f"    case $word in {'|'.join(short)}) subcommand=$word ;; esac", "  done", "  case $subcommand in"]
        for word, sub in short.items():
            own = {name for option in sub.options() for name in option.names}
            shared = [option for option in command.options() if not own & set(option.names)]
            lines += [f"    {word})", zsh_arguments(sub.options() + sub.positionals() + shared, "      "), "      return ;;"]
        lines += ["  esac"]
        choice = [quote("1:subcommand:(" + " ".join(short) + ")")] if not command.positionals() else []
        lines += [(" \\\n    ").join([zsh_arguments(command.options() + command.positionals(), "  "), *choice])]
    else:
        lines += [zsh_arguments(command.options() + command.positionals(), "  ")]
    lines += ["}", f"{function} \"$@\""]
    return "\n".join(lines) + "\n"
