"""report.json against its schema, by Python jsonschema, and report.html by Python's HTML parser."""
import copy
import html.parser
import json
import pathlib

import pytest

jsonschema = pytest.importorskip("jsonschema")

SCHEMA = json.loads((pathlib.Path(__file__).parents[2] / "schemas" / "report.schema.json").read_text())
VOID = {"meta", "br", "img", "hr", "input", "link"}


@pytest.fixture(scope="module")
def files(tool, tmp_path_factory):
    directory = tmp_path_factory.mktemp("report")
    tool("verify_tool", "report", directory)
    return directory


@pytest.fixture()
def report(files):
    return json.loads((files / "report.json").read_text())


def errors(instance):
    return [e.message for e in jsonschema.Draft202012Validator(SCHEMA).iter_errors(instance)]


def test_the_schema_is_a_schema():
    jsonschema.Draft202012Validator.check_schema(SCHEMA)


def test_our_report_is_valid(report):
    assert errors(report) == []


def put(report, path, value):
    *parents, last = path
    for key in parents:
        report = report[key]
    report[last] = value


BROKEN = {
    "another version": (["format_version"], 3),
    "version as text": (["format_version"], "1"),
    "no methods": (["methods"], []),
    "negative KL": (["methods", 1, "kl", "mean"], -1e-9),
    "KL as text": (["methods", 1, "kl", "mean"], "0.1"),
    "same_top1 in percent": (["methods", 1, "same_top1"], 98.7),
    "perplexity below one": (["methods", 1, "ppl"], 0.5),
    "an unknown path": (["methods", 0, "path"], "sideways"),
    "an id with a space": (["methods", 0, "id"], "os car"),
    "a hash that is cut": (["text", "sha256"], "abc"),
    "a fingerprint without its kind": (["model", "fingerprint"], "a" * 64),
    "an unknown gate": (["gates", 0, "name"], "max_luck"),
    "a gate that says maybe": (["gates", 0, "pass"], "yes"),
    "bits beyond any code": (["methods", 0, "bits_per_element"], 64),
    "an interval of one": (["methods", 1, "ppl_ratio_ci"], [1.0]),
    "a task length that is no number": (["methods", 1, "tasks"], {"niah": {"long": {}}}),
    "a score above one": (["methods", 1, "tasks", "niah", "384", "score"], 1.5),
    "a stray member": (["surprise"], 1),
    "a stray member of a method": (["methods", 0, "surprise"], 1),
    "no tokens": (["scoring", "tokens"], 0),
    "a negative window": (["windows", "sink"], -1),
    "noise without a unit": (["noise"], {"tokens": 10, "arithmetic": "small", "without_codes": []}),
    "an unknown self check": (["self_checks", 0, "name"], "weather"),
}


@pytest.mark.parametrize("name", BROKEN)
def test_broken_reports_are_refused(report, name):
    path, value = BROKEN[name]
    broken = copy.deepcopy(report)
    put(broken, path, value)
    assert errors(broken), name


@pytest.mark.parametrize("member", SCHEMA["required"])
def test_missing_members_are_refused(report, member):
    del report[member]
    assert errors(report)


class Checker(html.parser.HTMLParser):
    """Every element is closed in order; ids are unique; headings and scopes are there."""

    def __init__(self):
        super().__init__(convert_charrefs=True)
        self.open, self.seen, self.text = [], [], []

    def handle_starttag(self, tag, attributes):
        self.seen.append((tag, dict(attributes)))
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag, attributes):
        self.seen.append((tag, dict(attributes)))

    def handle_endtag(self, tag):
        assert self.open and self.open[-1] == tag, f"</{tag}> closes {self.open[-3:]} at {self.getpos()}"
        self.open.pop()

    def handle_data(self, data):
        self.text.append(data)


def test_the_page_is_well_formed_and_self_contained(files):
    page = (files / "report.html").read_text()
    checker = Checker()
    checker.feed(page)
    checker.close()
    assert checker.open == []
    tags = [tag for tag, _ in checker.seen]
    assert tags.count("h1") == 1 and "script" not in tags and "link" not in tags and "img" not in tags
    assert dict(checker.seen)["html"]["lang"] == "en"
    for tag, attributes in checker.seen:
        assert not {"src", "href", "onclick"} & set(attributes)
        if tag == "th":
            assert attributes.get("scope") in ("row", "col")
        if tag == "svg":
            assert attributes.get("role") == "img" or attributes.get("aria-hidden") == "true"
    assert tags.count("table") == tags.count("caption") >= 3
    words = " ".join(checker.text)
    for expected in ("oscar", "naive2", "PASS", "KL by position", "sha256:" + "a" * 64):
        assert expected in words
    assert "nan" not in words.lower().split() and "inf" not in words.lower().split()


def test_what_the_command_writes_is_valid(tool, tmp_path):
    """Every comparison, both paths, methods left out, tasks, gates: one small run of the real command."""
    sample = pathlib.Path(__file__).parents[2] / "sample_data"
    path = tmp_path / "r.json"
    tool("oscar-verify", "--model", sample / "tiny-qwen3", "--text", sample / "heldout.txt", "--context", 384, "--max-sequences", 1,
         "--layer-sequences", 1, "--methods", "bf16,naive2,kivi2,fp8,turboquant2.5", "--compare", "authors,common,bytes", "--bits", 13.9,
         "--tasks", "niah,vt", "--task-lengths", 400, "--task-prompts", 1, "--report", path, "--device", "cpu", "-q")
    report = json.loads(path.read_text())
    assert errors(report) == []
    assert {m["comparison"] for m in report["methods"]} == {"authors", "common", "bytes"}
    for m in report["methods"]:
        assert m["bits_per_element"] > 0 and m["allocated_bytes"] > 0 and m["source"], m["id"]
        if m["comparison"] == "bytes" and m["id"] != "bf16":
            # Bytes of one sequence, pages and windows at their capacity: 4 layers, K and V, 2 heads of 128.
            assert m["allocated_bytes"] == pytest.approx(13.9 / 8 * 4 * 2 * 2 * 128 * 384, rel=0.021), m["id"]
            assert "windows" in m["settings"] and "groups of" in m["settings"], m["id"]
