"""What texts of this repository name exists: links of Markdown files and their anchors, files named in documents and in
comments; and how documents and code are written: README's length, paragraphs that can be read, no fragments, functions that are
told in steps."""
import ast
import json
import pathlib
import re
import subprocess
import sys

import pytest

from conftest import SOURCE_DIR

sys.path[:0] = [str(SOURCE_DIR / "tests/bench"), str(SOURCE_DIR / "tests/bench/real")]
import page as study_page  # noqa: E402
import real_model_table  # noqa: E402

NAMED = re.compile(r"(?<![\w./-])((?:[\w-]+/)*[\w-]+\.(?:h|cpp|cu|cuh|py|md|schema\.json))(?![\w/-])")
# A path in one of our folders, of any kind of file.
PATH = re.compile(r"(?<![\w./<-])((?:apps|cmake|docs|kernels|lib|sample_data|schemas|scripts|tests|tools)/[\w./-]*[\w-])(?![\w*{<$/-])")
# Files that the commands write, and those of other projects.
WRITTEN_BY_COMMANDS = {"README.md", "summary.md", "FILE.md", "version.py"}
INSTALLED = ("lib/lib", "lib/python", "lib/oscar-toolchain")  # below the folder of an installation
SKIPPED = ("sample_data/tiny-", "tests/bench/results/")


def files():
    listed = subprocess.run(["git", "ls-files", "--cached", "--others", "--exclude-standard"], cwd=SOURCE_DIR,
                            capture_output=True, text=True)
    if listed.returncode == 0:
        names = listed.stdout.split("\n")
    else:  # a source archive
        names = [str(p.relative_to(SOURCE_DIR)) for p in SOURCE_DIR.rglob("*") if p.is_file()]
    return sorted(n for n in names if n and not n.startswith(("build", *SKIPPED)) and (SOURCE_DIR / n).is_file())


FILES = files()
TAILS = {"/".join(pathlib.PurePath(n).parts[i:]) for n in FILES for i in range(len(pathlib.PurePath(n).parts))}
DOCUMENTS = [n for n in FILES if n.endswith(".md")]
SOURCES = [n for n in FILES if n.endswith((".h", ".cpp", ".cu", ".cuh"))]
SCRIPTS = [n for n in FILES if n.endswith((".py", ".cmake", "CMakeLists.txt", ".sh", ".yml")) or n.startswith("scripts/")
           and "." not in n]
PYTHON = [n for n in SCRIPTS if n.endswith(".py") or re.match(r"#!.*python", (SOURCE_DIR / n).read_text())]
PAGES = [n for n in DOCUMENTS if not n.startswith("sample_data/golden/bundle/")]
HISTORY = ("CHANGELOG.md", "lab/tried.md")  # name what is gone, too


def comments(text):
    return "\n".join(re.findall(r"(?<!:)//(.*)$", text, re.MULTILINE))


def script_comments(text):
    """Comments behind # at the start of a line or after two spaces, and docstrings."""
    return "\n".join(re.findall(r"(?:^\s*|  )# (.*)$", text, re.MULTILINE) + re.findall(r'"""(.*?)"""', text, re.DOTALL))


def missing_paths(text):
    """Paths below one of our folders that are no file and no folder; MODEL and the like stand for names."""
    return [path for path in PATH.findall(text)
            if not (SOURCE_DIR / path).exists() and not pathlib.PurePath(path).name.isupper() and not path.startswith(INSTALLED)]


def paragraphs(text):
    """Paragraphs and items of lists; no headings, tables, blocks and formulas."""
    text = re.sub(r"^    .*$", "", without_blocks(text), flags=re.MULTILINE)
    for part in re.split(r"\n\s*\n|\n(?=\s*(?:[-*]|\d+\.) )", text):
        lines = [line for line in part.splitlines() if not line.lstrip().startswith("|") and not line.startswith("#")]
        if words := " ".join(lines).split():
            yield " ".join(words)


def anchors(text):
    """As GitHub makes them of headings."""
    headings = re.findall(r"^#+ (.*)$", without_blocks(text), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


def without_blocks(text):
    return re.sub(r"^```.*?^```", "", text, flags=re.MULTILINE | re.DOTALL)


def missing(text):
    return [name for name in NAMED.findall(text) if name not in TAILS and name not in WRITTEN_BY_COMMANDS]


def long_functions(text, most=80):
    """[(lines, first line)] of C++ in the project's format: a body ends with a brace that stands as far in as its first line."""
    found, lines = [], text.splitlines()
    for indent in ("", "  "):
        start = None
        for i, line in enumerate(lines):
            if re.match(indent + r"[^\s}#/]", line):  # a statement or a signature, which may go on for lines
                table = re.search(r"(=|\]) ?\{$", line) or re.match(r"\s*(namespace|struct|class|enum|union)\b", line)
                start = None if table or line.endswith(";") else i
            elif start is not None and re.match(indent + r"\}(?! else| catch)", line):
                if i - start + 1 > most:
                    found.append((i - start + 1, lines[start].strip()))
                start = None
    return found


def long_python_functions(text, most=80):
    return [(node.end_lineno - node.lineno + 1, node.name) for node in ast.walk(ast.parse(text))
            if isinstance(node, ast.FunctionDef) and node.end_lineno - node.lineno + 1 > most]


def test_the_search_finds_what_is_missing():
    assert missing("see no_such_file.h and lib/base/errors.h, errors.h") == ["no_such_file.h"]
    assert missing(comments("int x;  // lib/base/no_such.cpp\n#include \"other.h\"")) == ["lib/base/no_such.cpp"]
    assert len(DOCUMENTS) >= 5 and len(SOURCES) >= 400


def test_the_other_searches_find_faults():
    assert missing_paths("scripts/test, scripts/tset, lib/base/, lib/base/*.h and tests/bench/results/none.json") == [
        "scripts/tset", "tests/bench/results/none.json"]
    assert script_comments('x = "a  #b"\n# see one.h\n"""two.h"""\n') == "see one.h\ntwo.h"
    assert list(paragraphs("# Head\none\ntwo\n- item\n\n| a |\n```\ncode\n```\nend")) == ["one two", "- item", "end"]
    assert anchors("## What is *judged*: `x_y`") == {"what-is-judged-x_y"}
    assert len(SCRIPTS) >= 55 and len(PAGES) >= 25 and "tests/sample_data/make_model_texts.py" in PYTHON


@pytest.mark.parametrize("name", [n for n in DOCUMENTS if n not in HISTORY])
def test_linked_files_exist(name):
    for target, anchor in re.findall(r"\]\(([^)#\s]*)#?([^)]*)\)", without_blocks((SOURCE_DIR / name).read_text())):
        if "://" in target:
            continue
        file = (SOURCE_DIR / name).parent.joinpath(target) if target else SOURCE_DIR / name
        assert file.exists(), f"{name} links to {target}"
        assert not anchor or anchor in anchors(file.read_text()), f"{name} links to {target}#{anchor}"


@pytest.mark.parametrize("name", [n for n in DOCUMENTS if n not in HISTORY])
def test_files_named_in_documents_exist(name):
    if name.startswith("sample_data/golden/bundle/"):
        return  # written by a command
    text = without_blocks((SOURCE_DIR / name).read_text())
    found = missing(text) + missing_paths(text)
    assert not found, f"{name} names {', '.join(found)}"


def test_files_named_in_comments_exist():
    found = [f"{n}: {f}" for n in SOURCES for text in [comments((SOURCE_DIR / n).read_text())]
             for f in missing(text) + missing_paths(text)]
    assert not found, "\n".join(found)


def test_files_named_in_comments_of_scripts_exist():
    found = [f"{n}: {f}" for n in SCRIPTS if n != "tests/oracles/test_documents.py"
             for f in missing_paths(script_comments((SOURCE_DIR / n).read_text()))]
    assert not found, "\n".join(found)


def test_every_header_has_a_name_of_its_own():
    names = [pathlib.PurePath(n).name for n in FILES if n.endswith((".h", ".cuh")) and n.startswith(("apps/", "kernels/", "lib/"))]
    assert len(names) > 300 and not {n for n in names if names.count(n) > 1}


def test_files_named_in_schemas_exist():
    found = [f"{n}: {f}" for n in FILES if n.endswith(".schema.json") for f in missing_paths((SOURCE_DIR / n).read_text())]
    assert not found, "\n".join(found)


def test_the_version_is_the_same_everywhere():
    found = {name: re.search(pattern, (SOURCE_DIR / name).read_text(), re.MULTILINE)[1] for name, pattern in (
        ("CMakeLists.txt", r"^project\(.*VERSION ([\d.]+)"), ("python/pyproject.toml", r'^version = "([\d.]+)"'),
        ("python/oscar_kv/__init__.py", r'^__version__ = "([\d.]+)"'))}
    assert len(set(found.values())) == 1, found


def test_the_front_page_is_short():
    assert len((SOURCE_DIR / "README.md").read_text().splitlines()) <= 120


def table_rows(text):
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in text.splitlines() if line.startswith("| `")]


def raw_results(name):
    """{length: results} of Gemma 3 270M"""
    return json.loads((SOURCE_DIR / "tests/bench/results" / name).read_text())["lengths"]


def test_the_study_is_written_from_its_raw_lines():
    found = study_page.Results(SOURCE_DIR / "tests/bench/results")
    text, images = study_page.page(found)
    assert (SOURCE_DIR / "docs/study.md").read_text() == text, "scripts/study -o tests/bench/results --steps page writes it"
    assert {path.name: path.read_text() for path in (SOURCE_DIR / "docs/study").iterdir()} == images
    assert study_page.front(found) in (SOURCE_DIR / "README.md").read_text()
    assert len(table_rows(section((SOURCE_DIR / "README.md").read_text(), "Quality"))) >= 7


def test_the_table_of_gemma_is_written_from_its_raw_results():
    raw = raw_results("real_model_h200.json")
    assert real_model_table.table(raw) in section((SOURCE_DIR / "docs/results.md").read_text(), "A real model")


def test_ranges_of_quality_are_those_of_the_tables():
    results = (SOURCE_DIR / "docs/results.md").read_text()
    rows = [cells for _, *cells in table_rows(section(results, "Methods at equal bytes"))]
    points = [(float(kl.split()[0]), float(ratio), float(top.rstrip("%"))) for cells in rows for kl, ratio, top in (cells[1:4], cells[4:7])]
    assert len(points) == 18
    real = table_rows(section(results, "A real model"))
    for cells in real:
        points += [(float(kl.split()[0]), float(ratio), float(top.rstrip("%")))
                   for kl, ratio, top in zip(cells[3:6], cells[6].split(" / "), cells[7].split(" / "))]
    text = section((SOURCE_DIR / "docs/quality.md").read_text(), "What a KL means")
    assert f"{len(points)} measurements" in text and f"[{3 * len(real)} on Gemma 3 270M]" in text.replace("\n", " ")
    bounds = [(0, .01), (.01, .05), (.05, .1), (.1, .5), (.5, 1e9)]
    found = [[cell.strip() for cell in line.strip("|").split("|")] for line in text.splitlines()
             if re.match(r"\| (below|above|0)", line)]
    assert len(found) == len(bounds)
    phrases = [(m["kl"], real_model_table.recalled(m)) for length in raw_results("real_model_phrases_h100.json").values() for m in length["methods"]]
    assert f"in {len(phrases)} measurements" in text
    for (low, high), (_, count, ratio, top, recalled, _) in zip(bounds, found):
        shares = [share for kl, share in phrases if low <= kl < high]
        assert recalled == f"{min(shares):.1f} to {max(shares):.1f}%", (low, shares)
        inside = [p for p in points if low <= p[0] < high]
        assert int(count) == len(inside)
        for shown, column in ((ratio, 1), (top.rstrip("%"), 2)):
            assert [float(n) for n in shown.split(" to ")] == [f(p[column] for p in inside) for f in (min, max)], (low, shown)


def test_cache_sizes_follow_from_the_geometry():
    text = section((SOURCE_DIR / "docs/choosing.md").read_text(), "Memory")
    rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in text.splitlines() if re.match(r"\| [\w.-]+ \| \d", line)]
    assert len(rows) >= 5 and {"Llama-3.1-8B", "Qwen3-8B", "Qwen2.5-Coder-1.5B"} <= {row[0] for row in rows}
    for name, geometry, token, *cells in rows:
        layers, heads, size = map(int, geometry.split(", "))
        assert token == " / ".join(f"{2 * layers * heads * size * bits / 8 / 2**10:.3g}" for bits in (16, 8, 2.25)), name
        sizes = [2 * layers * heads * size * (16 * exact + 2.25 * (tokens - exact)) / 8 / 2**20
                 for all_exact in (True, False) for tokens in (8192, 32768, 131072) for exact in [tokens if all_exact else 320]]
        assert cells == [f"{size:,.0f}" for size in sizes], name
        if name == "Llama-3.1-8B":
            assert f"{sizes[1]:,.0f} MiB in BF16, {sizes[1] / 2:,.0f} in FP8 and {sizes[4]:,.0f} at 2.25 bits" in " ".join(text.split())


def test_the_pages_are_no_book():
    words = {path.name: len(path.read_text().split()) for path in (SOURCE_DIR / "docs").glob("*.md") if path.name != "study.md"}
    assert len(words) >= 25 and sum(words.values()) <= 33300, sum(words.values())


def test_needles_of_quality_are_those_of_the_raw_results():
    raw = json.loads((SOURCE_DIR / "tests/bench/results/real_model_h200.json").read_text())
    rows = [f"waterfill, {bits} bits" for bits in ("2.25", "1.5")]
    of = len(rows) * sum(cell["solved"] for cell in raw["needles"]["bf16"].values())
    lost = of - sum(cell["solved"] for row in rows for cell in raw["needles"][row].values())
    kls = {real_model_table.label(m["id"]).replace("`", ""): m["kl"]["mean"] for m in raw["lengths"]["32768"]["methods"] if "kl" in m}
    text = " ".join((SOURCE_DIR / "docs/quality.md").read_text().split())
    assert f"lose {lost} of {of} needles" in text
    assert "KLs of {} and {} at 32,768".format(*(f"{kls[row]:.2g}".removeprefix("0") for row in rows)) in text


def test_the_product_knows_no_laboratory():
    found = [name for name in FILES if name.startswith(("apps/", "kernels/", "lib/", "python/"))
             and re.search(r"(?<![\w/])lab/", (SOURCE_DIR / name).read_text(errors="replace"))]
    assert not found, found


def test_only_the_commands_print_results():
    """The library logs what it does; what a command finds, apps/ prints."""
    printing = re.compile(r"std::cout|\bprintf\(|\bstdout\b|\bprint_(result|summary)\(")
    assert printing.search('  print_result("x");') and not printing.search('  log_info("x");')
    found = [name for name in FILES if name.startswith("lib/") and not name.startswith("lib/base/") and name.endswith((".cpp", ".h"))
             and printing.search(re.sub(r"//.*", "", (SOURCE_DIR / name).read_text()))]
    assert not found, found


def test_functions_are_told_in_steps():
    body = "  if (x) {\n    y();\n  } else {\n    z();\n  }\n" * 17
    assert long_functions("int f(int x) {\n" + body + "}\n") == [(87, "int f(int x) {")]
    inside = "".join("  " + line + "\n" for line in body.splitlines())
    assert long_functions("class A {\n  int f(int x) {\n" + inside + "  }\n};\nint g() {\n}\n") == [(87, "int f(int x) {")]
    assert long_functions("int f(int x,\n      int y) {\n" + body + "}\n") == [(88, "int f(int x,")]
    assert long_functions("const int kRows[] = {\n" + "    1,\n" * 90 + "};\n") == []
    assert long_python_functions("def f():\n" + "    x()\n" * 80) == [(81, "f")]
    found = [f"{name}: {line} has {count} lines" for name in SOURCES for text in [(SOURCE_DIR / name).read_text()]
             if not text.startswith("// Written by tools/") for count, line in long_functions(text)]
    found += [f"{name}: {function} has {count} lines" for name in PYTHON
              for count, function in long_python_functions((SOURCE_DIR / name).read_text())]
    assert not found, "\n".join(found)


def section(text, heading):
    return re.search(rf"^## {re.escape(heading)}$(.*?)(?=^## |\Z)", text, re.MULTILINE | re.DOTALL)[1]


# Functions that architecture.md names beside a file are there.
def test_a_key_passes_at_most_eight_files():
    path = section((SOURCE_DIR / "docs/architecture.md").read_text(), "The path of a key").split("The walk is that")[0]
    steps, file = [], ""
    for line in path.splitlines():
        cells = [cell.strip() for cell in line.strip("|").split("|")]
        if not line.startswith("| ") or cells[0] == "file":
            continue
        file = cells[0].strip("`") or file
        steps.append((file, re.findall(r"`(?:\w+::)?(\w+)\(\)`", cells[1])))
    files_named = {file for file, _ in steps}
    assert 5 <= len(files_named) <= 8 and len(steps) > len(files_named), sorted(files_named)
    for file, functions in steps:
        text = (SOURCE_DIR / file).read_text()
        assert functions and all(re.search(rf"\b{f}\(", text) for f in functions), (file, functions)


# Files that may say where a method comes from: what is asked there, by the folders and files that may ask it.
ORIGINS = {
    r"\bMethodEngine\b": ("lib/methods/", "lib/cache/spec_coder.cpp"),
    r"\bspec_coder\(": ("lib/cache/rows_coder.h", "lib/cache/spec_coder.cpp", "lib/cache/make_method.cpp"),
    r"(?:\.|->)engine\b": (),
    r"\bdynamic_(?:pointer_)?cast\b": ("apps/", "lib/pipeline/"),  # of exceptions
    r"\bprint_(?:result|summary)\(|\bstd::cout\b|\bstdout\b": ("apps/", "lib/base/"),  # the commands print
}


def asked_elsewhere(name, text):
    code = re.sub(r"//.*", "", text)
    return [f"{name}: {found[0]}" for pattern, allowed in ORIGINS.items()
            if not name.startswith(allowed or ("no folder",)) for found in [re.search(pattern, code)] if found]


def test_only_the_factory_asks_where_a_method_comes_from():
    assert asked_elsewhere("lib/verify/plan.cpp", "x = MethodEngine(a);") and asked_elsewhere("apps/a.cpp", "if (m.engine) {")
    assert asked_elsewhere("lib/pipeline/a.cpp", "print_result(text);")
    assert not asked_elsewhere("lib/verify/plan.cpp", "x();  // MethodEngine")
    found = [line for name in SOURCES if name.startswith(("lib/", "apps/"))
             for line in asked_elsewhere(name, (SOURCE_DIR / name).read_text())]
    assert not found, "\n".join(found)


@pytest.mark.parametrize("name", PAGES)
def test_paragraphs_can_be_read(name):
    for paragraph in paragraphs((SOURCE_DIR / name).read_text()):
        assert len(paragraph.split()) < 120, f"{name}: {len(paragraph.split())} words: {paragraph[:80]}"
        fragment = re.search(r"(?:^|[.:!?] )((?:Of|The same,|Same|Beside that:) .{0,40})", paragraph)
        assert not fragment, f"{name}: a sentence without a head: {fragment[1]}"
