"""README.md and the pages of docs/: every `sh` block runs, in the order of its page, in a folder that looks like the root of
the repository, with the changes of runnable(). A comment "# exit code N" says which exit code is expected. A `text` block right
after an `sh` block shows what its commands print: each line must be printed, numbers apart, and "..." stands for lines that are
left out. Pages of docs/ start from the files that README's example made. What cannot run in a test stands in `console` blocks,
whose options are checked."""
import functools
import itertools
import json
import os
import re
import shlex
import subprocess
import sys

import pytest

from harness import BUILD_DIR, SOURCE_DIR

README = "README.md"
PAGES = [README, *sorted(f"docs/{p.name}" for p in (SOURCE_DIR / "docs").glob("*.md"))]
MADE_BY_README = {"statistics.safetensors": "best.statistics.safetensors", "bundle": "bundle", "report.json": "report.json",
                  "branch": "branch"}  # name in docs/: name in README
NAMED_MODEL, STAND_IN = "Qwen/Qwen2.5-Coder-1.5B-Instruct", "sample_data/tiny-qwen2"  # of the pages of engines: one architecture
BLOCK = re.compile(r"^```(\w*)\n(.*?)^```\n(?=(?:```text\n(.*?)^```)?)", re.MULTILINE | re.DOTALL)


def text_of(page):
    return (SOURCE_DIR / page).read_text()


def command_lines(page):
    """[(line, shown)]: shown are the lines of the output block behind the last command of a block, for its whole block."""
    found = []
    for language, block, shown in BLOCK.findall(text_of(page)):
        if language != "sh":
            continue
        lines = [line.strip() for line in block.replace("\\\n", " ").splitlines() if line.strip()]
        found += [(line, [], len(lines)) for line in lines[:-1]] + [(lines[-1], shown.splitlines(), len(lines))]
    return found


COMMANDS = [(page, i) for page in PAGES for i in range(len(command_lines(page)))]


def runnable(line, folder):
    """The scripts that build are run without building: this test is itself part of a build's tests. Fewer sequences are evaluated."""
    if line.startswith("scripts/quickstart"):
        return f"OSCAR_LOGS={folder}/logs scripts/quickstart --no-build --output {folder}/quickstart"
    if line.startswith(f"oscar-fit --model {NAMED_MODEL}"):  # measuring on all prompts takes a minute
        return line + " --tokens 3000 --context 1024 --curve-context 512 --curve-sequences 2"
    if line.startswith("scripts/test"):
        return "scripts/test --help"
    if line.startswith("oscar-verify"):  # both paths of eight sequences take a minute and a half
        return line.replace("--max-sequences 8", "--max-sequences 4")
    if line.startswith("python3 -m oscar_kv"):  # as if the wheel were installed
        return line.replace("python3", f"PYTHONPATH=python {sys.executable}", 1)
    return line


def hugging_face_cache(home):
    """A cache in which the model that pages name is the stand-in."""
    place, commit = home / "hub" / f"models--{NAMED_MODEL.replace('/', '--')}", "0" * 40
    (place / "snapshots").mkdir(parents=True)
    (place / "refs").mkdir()
    os.symlink(SOURCE_DIR / STAND_IN, place / "snapshots" / commit)
    (place / "refs" / "main").write_text(commit)


class Folder:
    """The repository by links, with this build's executables under build/bin, in which the commands of one page run. The Hugging Face cache
    there holds the model that pages name."""

    def __init__(self, root, page):
        self.root, self.commands, self.done = root, command_lines(page), []
        for path in SOURCE_DIR.iterdir():
            if not path.name.startswith((".", "build")):
                os.symlink(path, root / path.name)
        (root / "build").mkdir()
        os.symlink(BUILD_DIR / "bin", root / "build" / "bin")
        hugging_face_cache(root / "build" / "huggingface")

    def environment(self):
        environment = {**os.environ, "PATH": f"{BUILD_DIR / 'bin'}:{os.environ['PATH']}", "NO_COLOR": "1", "HF_HUB_OFFLINE": "1",
                       "HF_HOME": str(self.root / "build" / "huggingface")}
        for name in ("HF_HUB_CACHE", "HUGGINGFACE_HUB_CACHE"):
            environment.pop(name, None)
        return environment

    def run(self, index):
        """The result of a command, after all those before it."""
        environment = self.environment()
        while len(self.done) <= index:
            line = runnable(self.commands[len(self.done)][0], self.root)
            self.done.append(subprocess.run(["bash", "-c", line], cwd=self.root, capture_output=True, text=True, timeout=1500,
                                            env=environment))
        return self.done[index]


def masked(line):
    """A line with every number as #, and spaces as one."""
    return re.sub(r"(?<![\w.])[-+]?\d[\d,.]*(?:e[-+]?\d+)?", "#", " ".join(line.split()))


def absent(shown, printed):
    """The shown lines that were not printed; a line may end with "..." for what follows in it."""
    printed = [masked(line) for line in printed]
    missing = []
    for line in shown:
        if line.strip() in ("", "..."):
            continue
        want = masked(line)
        begin = want.removesuffix("...").rstrip()
        if not any(p == want or (want.endswith("...") and p.startswith(begin)) for p in printed):
            missing.append(line)
    return missing


def test_the_comparison_sees_differences():
    assert absent(["a  12.5%  3e-05", "...", "took -4 s"], ["a 1%  2", "took 5 s"]) == []
    assert absent(["error: x.json: ..."], ["error: x.json: not there"]) == []
    assert absent(["a 1 pass", "b"], ["a 1 FAIL", "bb"]) == ["a 1 pass", "b"]
    assert absent(["layer 0 of x2"], ["layer 0 of x3"]) == ["layer 0 of x2"]


def test_there_are_commands():
    assert len(command_lines(README)) >= 5
    assert len({page for page, _ in COMMANDS}) >= 9, "pages of docs/ without commands"


@pytest.mark.parametrize("page, index", COMMANDS, ids=[f"{page}:{i}" for page, i in COMMANDS])
def test_command(page, index, folder_of):
    folder = folder_of(page)
    line, shown, commands = folder.commands[index]
    done = folder.run(index)
    expected = re.search(r"# exit code (\d+)", line)
    assert done.returncode == int(expected.group(1) if expected else 0), f"$ {line}\n{done.stdout}\n{done.stderr}"
    block = folder.done[index + 1 - commands:index + 1]
    output = "".join(result.stdout + "\n" + result.stderr + "\n" for result in block)
    printed = output.replace(str(folder.root), "/path/to/oscar-toolchain").splitlines()
    assert not absent(shown, printed), "not printed: " + "\n".join(absent(shown, printed)) + "\n---\n" + "\n".join(printed)


def console_lines(text):
    """Commands of console blocks, continued lines joined."""
    return [" ".join(command.replace("\\\n", " ").split()) for language, block, _ in BLOCK.findall(text) if language == "console"
            for command in re.findall(r"^(?:\$ )?((?:.*\\\n)*.*)$", block, re.MULTILINE)]


def any_length(text):
    return re.sub(r"(--max-model-len|--context-length) \d+", r"\1 N", text)


@pytest.mark.parametrize("page", [README, "docs/vllm.md", "docs/sglang.md"])
def test_the_serve_command_of_a_page_is_that_of_the_card(page, folder_of):
    """tests/python/test_vllm.py and test_sglang.py read a card's command with the parsers of the engines."""
    folder = folder_of(page)
    folder.run(len(folder.commands) - 1)
    card = any_length("\n".join(console_lines((folder.root / "serving" / "README.md").read_text()))).splitlines()
    lines = console_lines(text_of(page))
    served = [line for line in lines if f" serve {NAMED_MODEL} " in line]
    assert len(served) == 1 and any_length(served[0]) in card, f"{served} is not in {card}"
    asked = [shlex.split(line) for line in lines if line.startswith("curl ")]
    assert len(asked) == 1 and json.loads(asked[0][-1])["model"] == NAMED_MODEL
    assert json.loads(asked[0][-1])["messages"] and asked[0][1].endswith("/v1/chat/completions")


def test_the_python_of_transformers_runs(folder_of):
    """The first block of Python, with the bundle of the page's commands."""
    torch = pytest.importorskip("torch")
    assert torch and pytest.importorskip("transformers")
    folder = folder_of("docs/transformers.md")
    folder.run(len(folder.commands) - 1)
    block = re.search(r"^```python\n(.*?)^```", text_of("docs/transformers.md"), re.MULTILINE | re.DOTALL)[1]
    assert NAMED_MODEL in block and "oscar_kv.attach(" in block
    done = subprocess.run([sys.executable, "-c", block + "assert cache.get_seq_length() > 600 and cache.nbytes > 0"], cwd=folder.root,
                          capture_output=True, text=True, timeout=600, env={**folder.environment(), "PYTHONPATH": "python"})
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("page", PAGES)
def test_every_block_has_a_known_language(page):
    opened = re.findall(r"^```(.*)$", text_of(page), re.MULTILINE)[::2]
    assert set(opened) <= {"sh", "text", "console", "python"}, opened  # Python has tests of its own
    for language, block, _ in BLOCK.findall(text_of(page)):
        if language == "console":
            assert block.startswith("$ "), block


@functools.cache  # a command takes long to start beside others
def help_of(program, *subcommand):
    done = subprocess.run([BUILD_DIR / "bin" / program, *subcommand, "--help-all"], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return done.stdout


LONG_OPTION = re.compile(r"(?<![\w-])--[a-z][a-z0-9-]*")
SUBCOMMANDS = {"oscar-collect": ["merge", "show"], "oscar-fit": [], "oscar-verify": ["plan", "methods"], "oscar-export": []}
SHARED = {"--help", "--help-all", "--version", "--quiet", "--verbose", "--no-progress", "--json", "--config", "--output", "--overwrite",
          "--dry-run"}  # docs/command-line.md has these


def options_of(program):
    """Those of the command and its subcommands. Options, not what descriptions say about them: names begin their lines."""
    found = set()
    for subcommand in ([], *([s] for s in SUBCOMMANDS[program])):
        for line in help_of(program, *subcommand).splitlines():
            names = re.match(r"\s{1,8}((?:-\w,)?--[a-z][a-z0-9-]*(?:\{\w+\})?(?:,--[a-z][a-z0-9-]*(?:\{\w+\})?)*)", line)
            found |= set(LONG_OPTION.findall(names.group(1).replace(",", " "))) if names else set()
    return found


@pytest.mark.parametrize("program", sorted(SUBCOMMANDS))
def test_the_page_of_a_command_has_its_options(program):
    """All of them in its tables, and none that the command has not."""
    rows = re.findall(r"^\| (.*?)(?<!\\) \|", text_of(f"docs/{program}.md"), re.MULTILINE)
    documented = {name for row in rows if row.startswith("`-") for name in LONG_OPTION.findall(row)}
    options = options_of(program) - SHARED
    if program == "oscar-fit":  # measuring curves has a page of its own
        if (SOURCE_DIR / "docs/curves.md").exists():
            options -= set(LONG_OPTION.findall(text_of("docs/curves.md"))) - documented
    assert documented - SHARED == options


@functools.cache
def known_options():
    """Of the commands, the scripts, the programs that measure and the Python package."""
    known = set().union(*map(options_of, SUBCOMMANDS))
    scripts = (path for path in (SOURCE_DIR / "scripts").rglob("*") if path.suffix in ("", ".py") and path.is_file())
    benches = (path for path in (SOURCE_DIR / "tests" / "bench").rglob("*") if path.suffix in (".cpp", ".cu", ".cuh", "", ".py") and path.is_file())
    for program in itertools.chain(scripts, benches, (SOURCE_DIR / "docs" / "ci").glob("*.sh"),
                                   (SOURCE_DIR / "tests" / "oracles").glob("*.py"), (SOURCE_DIR / "python").rglob("*.py")):
        known |= set(LONG_OPTION.findall(program.read_text()))
    return known


@pytest.mark.parametrize("page", PAGES)
def test_every_option_that_is_named_exists(page):
    others = {"--kv-cache-dtype", "--page-size", "--output-on-failure", "--build", "--install", "--prefix", "--strip", "--no-deps",
              "--nproc-per-node", "--no-python", "--nnodes", "--max-restarts", "--rdzv-backend", "--rdzv-endpoint", "--language-model-only",
              "--swa-full-tokens-ratio", "--speculative-algorithm"}
    # of SGLang, CTest, CMake, pip, torchrun and vLLM
    named = set(LONG_OPTION.findall(re.sub(r"\]\([^)]*\)|<[^>]*>|\|[-:|]+\|", "", text_of(page))))
    assert named <= known_options() | others, sorted(named - known_options() - others)


FOREIGN = {"--attention-backend", "--context-length", "--decode-attention-backend", "--disable-prefill-cuda-graph", "--disable-radix-cache",
           "--kv-cache-dtype", "--kv-cache-quant-group-size", "--logprobs-mode", "--max-model-len", "--max-running-requests", "--model-path",
           "--nnodes", "--no-enable-prefix-caching", "--no-python", "--nproc-per-node", "--page-size", "--prefill-attention-backend",
           "--tensor-parallel-size", "--tp-size"}
STRING = re.compile(r'"((?:[^"\\\n]|\\.)*)"')


def options_in_messages(code):
    """Those in string literals, not in comments."""
    return {name for line in code.splitlines() for text in STRING.findall(re.sub(r"^\s*//.*|  // .*", "", line))
            for name in LONG_OPTION.findall(text)}


def test_every_option_that_a_message_names_exists():
    assert options_in_messages('f("fit without --group", x);  // "--other"\n// "--third"') == {"--group"}
    known = set().union(*map(options_of, SUBCOMMANDS)) | SHARED | FOREIGN
    files = [p for room in ("lib", "apps") for p in (SOURCE_DIR / room).rglob("*") if p.suffix in (".h", ".cpp") and "html" not in p.parts]
    assert len(files) > 500  # style sheets in html/ have names with two dashes, too
    found = [f"{p.relative_to(SOURCE_DIR)}: {name}" for p in files for name in sorted(options_in_messages(p.read_text()) - known)]
    assert not found, "\n".join(found)


def test_every_named_folder_exists():
    page = text_of("docs/architecture.md")
    folders = re.findall(r"`((?:[a-z_0-9]+/)+)`", page)
    assert len(folders) >= 15
    for target in folders:
        assert (SOURCE_DIR / target).is_dir(), target
    for folder in {source.parent for source in (SOURCE_DIR / "lib").glob("*/*.h")}:
        assert f"`lib/{folder.name}/`" in page, folder


def test_the_ci_example():
    """The workflow runs docs/ci/gate.sh, which docs/ci.md runs here, and sets its variables; the image runs scripts that exist.
    tests/apps/test_ci_gate.py runs its steps."""
    yaml = pytest.importorskip("yaml")
    gate = (SOURCE_DIR / "docs/ci/gate.sh").read_text()
    job = yaml.safe_load((SOURCE_DIR / "docs/ci/workflow.yml").read_text())["jobs"]["gate"]
    assert any(step.get("run") == "gate.sh" for step in job["steps"])
    variables = {v for v in re.findall(r"\$\{([A-Z_]+):", gate) if not v.startswith(("HF_", "HUGGINGFACE_", "XDG_"))}
    assert set(job["env"]) <= variables and {"MODEL", "PROMPTS", "TEXT"} <= set(job["env"])
    assert variables == set(re.findall(r"^\| `([A-Z_]+)` \|", text_of("docs/ci.md"), re.MULTILINE))
    scripts = re.findall(r"scripts/\w+[^&|\n]*", (SOURCE_DIR / "docs/ci/Containerfile").read_text())
    assert len(scripts) == 2
    for script in scripts:
        name, *options = script.split()
        usage = subprocess.run(["bash", SOURCE_DIR / name, "--help"], capture_output=True, text=True)
        assert usage.returncode == 0 and all(option in usage.stdout for option in options), script
