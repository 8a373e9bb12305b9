"""Fitted on one kind of text, alone and with text that the model writes itself beside it, scored on both kinds, with the regret that
moments predict for the first."""
import json

from .fitting import fit
from .numbers import geometric_mean, number, with_error
from .programs import FIT, run
from .rows import Row, waterfill

KINDS = ["code", "stories"]
OWN = {"closed": [0, 30000, 120000], "measured": [0, 120000]}  # tokens that the model writes beside the prompts


def name_of(kind, bits, allocate, own=0):
    return f"shift-{allocate}-{own}-{kind}-{bits}"


def rows_of(kind, bits, allocate):
    options = waterfill(bits, "--allocate", allocate)
    alone = "text" if allocate == "measured" else ""
    return [Row(name_of(kind, bits, allocate, own), options, "prompts" if own else alone, own_tokens=own) for own in OWN[allocate]]


def measure(model, bits, allocate, sequences):
    model.prepare()
    rows = {kind: rows_of(kind, bits, allocate) for kind in KINDS}
    for kind in KINDS:
        fit(model, rows[kind], kind)
    for scored in KINDS:
        model.score([row for kind in KINDS for row in rows[kind]], f"kl{sequences}", "--sequences", sequences, kind=scored)
    for row, *_ in rows.values():
        for kind in KINDS:
            if model.score_of(row.name, "regret", kind):
                continue
            check = json.loads(run(FIT, "check", model.file(row.name), "--statistics", model.statistics(kind), "--json"))
            model.keep({"bundle": model.file(row.name).name, "text": model.heldout(kind).name, "what": "regret",
                        "regret": check["total"]["regret"]})


def table(models, bits, allocate, sequences):
    headings = ["prompts alone", *(f"own text, {own:,} tokens" for own in OWN[allocate][1:])]
    lines = ["Same kind, other kind, ratio.", "", f"| model | scored on | {' | '.join(headings)} | regret predicted |",
             "|---|---|" + "---:|" * (1 + len(OWN[allocate]))]
    columns = [[] for _ in OWN[allocate]]
    for model in models:
        for kind in KINDS:
            other = KINDS[1 - KINDS.index(kind)]
            pairs = [[model.score_of(name_of(k, bits, allocate, own), f"kl{sequences}", kind) for k in (kind, other)] for own in OWN[allocate]]
            regret = model.score_of(name_of(other, bits, allocate), "regret", kind)
            if not regret or not all(score for pair in pairs for score in pair):
                continue
            cells = []
            for column, (same, far) in zip(columns, pairs):
                column.append(far["kl"] / same["kl"])
                cells.append(f"{with_error(same)}, {number(far['kl'])}, {column[-1]:.2f}")
            lines.append(f"| `{model.name}` | {kind} | {' | '.join(cells)} | {regret['regret']:.2f} |")
    means = [geometric_mean(column) for column in columns]
    return [*lines, f"| geometric mean of the ratios | | {' | '.join(means)} | |"]
