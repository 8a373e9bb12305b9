"""KL late in a sequence over KL early, by the context that is scored and by the length of the calibration sequences."""
import json

from .fitting import fit
from .numbers import headings, number
from .programs import VERIFY, note, run
from .rows import label

METHODS = ["naive2", "kivi2", "kivi2-g128"]  # beside the rows


def report_file(model, context):
    return model.file(f"growth-{context}.json")


def measure(model, rows, contexts, tokens):
    """A report of oscar-verify for each context, over equally many tokens."""
    model.prepare()
    fit(model, rows)
    for context in contexts:
        report = report_file(model, context)
        if report.exists():
            continue
        note(f"{model.name}: growth at {context}")
        methods = dict.fromkeys(["bf16", *METHODS, *(row.name for row in rows if row.needs == "no fit")])
        bundles = [word for row in rows if row.needs != "no fit" for word in ("--bundle", model.file(row.name))]
        # Exit code 1: the self check of the drift found what the table shows.
        run(VERIFY, "--model", model.path, "--text", model.heldout(), "--context", context, "--tokens", tokens, "--methods",
            ",".join(methods), "--layer-sequences", 1, "--resume", *bundles, "--report", report, "-q", *model.on_device(), allowed=(0, 1))


def found(model, context):
    """{row: (mean KL, growth)}"""
    if not report_file(model, context).exists():
        return {}
    methods = json.loads(report_file(model, context).read_text())["methods"]
    return {m["id"].removeprefix(model.name + "."): (m["kl"]["mean"], m["kl_growth"]["ratio"]) for m in methods if m["kl_growth"]}


def table(columns, rows):
    """columns: [(heading, model, context)]"""
    values = [found(model, context) for _, model, context in columns]
    lines = ["Growth with length, mean KL in brackets:", "",
             "| method | " + " | ".join(heading for heading, _, _ in columns) + " |", "|---|" + "---:|" * len(columns)]
    for name in dict.fromkeys([*METHODS, *(row.name for row in rows)]):
        bits = f", {name.rsplit('-', 1)[1]}" if label(name) != f"`{name}`" else ""
        pairs = [value.get(name) for value in values]
        if any(pairs):
            cells = [f"{f'{p[1]:.2f}'.removeprefix('0')} ({number(p[0])})" if p else "" for p in pairs]
            lines.append(f"| {label(name)}{bits} | " + " | ".join(cells) + " |")
    return lines


def columns_of(models, contexts):
    return [(f"{headings([model.name])[0]}, {context:,}", model, context) for model in models for context in contexts]


def calibration_columns(names, models, lengths, context):
    """models: {length: {name: Model}}"""
    return [(f"{headings([name])[0]}, calibrated at {length:,}", models[length][name], context) for name in names for length in lengths]
