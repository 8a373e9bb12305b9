"""Words and sentences of README, of pages of docs/ and of the help of the commands (docs/words.md)."""
import re
import subprocess

import pytest

from conftest import BUILD_DIR, SOURCE_DIR
from test_documents import paragraphs, section, without_blocks

BANNED = [r"far pairs?", r"fisher[\w-]*", r"closed form", r"judg\w+", r"the whole", r"turned back", r"behind", r"alone", r"quantis\w+", r"centre\w*", r"centring", r"normalis\w+"]
MOST_WORDS = 25  # of a sentence
PLAIN_PAGES = [  # held to these words and this length
    "CONTRIBUTING.md",
    "README.md",
    "SECURITY.md",
    "docs/README.md",
    "docs/architecture.md",
    "docs/choosing.md",
    "docs/ci.md",
    "docs/command-line.md",
    "docs/concepts.md",
    "docs/curves.md",
    "docs/families.md",
    "docs/format-bundle.md",
    "docs/format-codec.md",
    "docs/format-exports.md",
    "docs/format-pages.md",
    "docs/format-statistics.md",
    "docs/formats.md",
    "docs/install.md",
    "docs/kernels.md",
    "docs/methods.md",
    "docs/oscar-collect.md",
    "docs/oscar-export.md",
    "docs/oscar-fit.md",
    "docs/oscar-verify.md",
    "docs/prompts.md",
    "docs/quality.md",
    "docs/results.md",
    "docs/scale.md",
    "docs/sglang.md",
    "docs/transformers.md",
    "docs/transforms.md",
    "docs/vllm.md",
    "docs/words.md",
    "lab/README.md",
    "lab/kernels.md",
    "lab/results.md",
    "lab/scale.md",
    "lab/serve.md",
]
SUBCOMMANDS = {"oscar-collect": ["merge", "show"], "oscar-fit": [], "oscar-verify": ["plan", "methods"], "oscar-export": []}
COMMANDS = ["oscar-collect", "oscar-fit", "oscar-verify", "oscar-export"]


def banned_in(text):
    return [found[0] for word in BANNED for found in re.finditer(rf"(?<![\w`-]){word}(?![\w`-])", text, re.IGNORECASE)]


def long_sentences(text, most=MOST_WORDS):
    """Sentences of paragraphs and items; links count as their text, and code as one word, which may begin a sentence."""
    found = []
    for paragraph in paragraphs(re.sub(r"<!--.*?-->", "", text, flags=re.DOTALL)):
        plain = re.sub(r"`[^`]*`", "code", re.sub(r"(?<=[.?] )`[^`]*`", "Code", paragraph))
        plain = re.sub(r"[\[*]", "", re.sub(r"\]\([^)]*\)", "", plain))
        found += [s for s in re.split(r"(?<=[.:;?])\s+(?=[A-Z0-9-])", plain) if len(s.split()) > most]
    return found


def test_the_searches_find_faults():
    assert banned_in("Pairs behind it, judged; `far pairs`, far-pairs, quantised") == ["judged", "behind", "quantised"]
    assert len(long_sentences("word " * 31 + "end. Short one.")) == 1 and not long_sentences("`a b c` " * 20 + "end.")
    assert not long_sentences("word " * 20 + "end. `code` " + "word " * 20 + "end. **Bold.** " + "word " * 20 + "<!-- " + "x " * 40 + "-->")


@pytest.mark.parametrize("name", PLAIN_PAGES)
def test_pages_are_written_in_these_words(name):
    text = without_blocks((SOURCE_DIR / name).read_text())
    assert not long_sentences(text), long_sentences(text)
    if name != "docs/words.md":  # names what it replaces
        assert not banned_in(text)


def test_the_page_of_words_is_short():
    rows = [line for line in section("## x\n" + (SOURCE_DIR / "docs/words.md").read_text(), "x").splitlines() if line.startswith("| ")]
    assert 20 <= len(rows) - 1 <= 60
    written = (SOURCE_DIR / "docs/words.md").read_text().lower()
    for word in re.findall(r"\*\*([^*]+)\*\*", written):
        assert banned_in(word), f"docs/words.md: {word} is not held by this test"


@pytest.mark.parametrize("name", ["README.md"])
def test_the_front_page_is_short(name):
    assert len((SOURCE_DIR / name).read_text().splitlines()) <= 120


@pytest.mark.parametrize("command, most", list(zip(COMMANDS, (16, 20, 24, 16))))
def test_help_shows_few_options(command, most):
    program = BUILD_DIR / "bin" / command
    if not program.exists():
        pytest.skip(f"{program} is not built")
    text = subprocess.run([program, "--help"], capture_output=True, text=True, check=True).stdout
    everything = subprocess.run([program, "--help-all"], capture_output=True, text=True, check=True).stdout
    for subcommand in SUBCOMMANDS[command]:
        everything += subprocess.run([program, subcommand, "--help-all"], capture_output=True, text=True, check=True).stdout
    assert not banned_in(everything), banned_in(everything)
    assert "(default)" not in everything  # an option names its default once, in its first line
    options, all_options = (re.findall(r"^  (?:-\w,)?(--[\w-]+)", t, re.MULTILINE) for t in (text, everything))
    assert 8 <= len(options) <= most and set(options) < set(all_options), options


BRITISH = r"quantis|normalis|synchronis|summaris|randomis|recognis|factoris|memoris|initialis|optimis(?!t)|centre|centring|flavour|colour|neighbour|behaviour|honour|favour|judgement|licence|cancelled|artefact"
SPELLED_OTHERWISE = ("docs/words.md", "tests/oracles/test_words.py", "tests/bench/results/", "sample_data/", "LICENSE", "CHANGELOG.md", "tests/sample_data/sample_prompts.py",
                     "tests/oracles/text_corpus.py", "lab/")  # names of words, measured output, texts of models, notes of the past


def test_spelling_is_american():
    files = subprocess.run(["git", "ls-files"], cwd=SOURCE_DIR, capture_output=True, text=True).stdout.split()
    if not files:
        pytest.skip("no git checkout")
    found = []
    for name in files:
        if name.startswith(SPELLED_OTHERWISE) or not (SOURCE_DIR / name).is_file():
            continue
        text = (SOURCE_DIR / name).read_bytes().decode(errors="ignore")
        found += [f"{name}: {word}" for word in re.findall(rf"\w*(?:{BRITISH})\w*", text, re.IGNORECASE)]
    assert not found, found
