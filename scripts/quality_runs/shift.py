"""Fitted on one kind of text, scored on both, with the regret that moments predict."""
import json

from .fitting import fit
from .numbers import with_error
from .programs import FIT, run
from .rows import Row, waterfill

KINDS = ["code", "stories"]
SCORED = "kl6"


def name_of(kind, bits):
    return f"shift-{kind}-{bits}"


def measure(model, bits):
    model.prepare()
    rows = {kind: Row(name_of(kind, bits), waterfill(bits, "--allocate", "measured"), "text") for kind in KINDS}
    for kind, row in rows.items():
        fit(model, [row], kind)
    for scored in KINDS:
        model.score(list(rows.values()), SCORED, "--sequences", 6, kind=scored)
    for row in rows.values():
        for kind in KINDS:
            if model.score_of(row.name, "regret", kind):
                continue
            check = json.loads(run(FIT, "check", model.file(row.name), "--statistics", model.statistics(kind), "--json"))
            model.keep({"bundle": model.file(row.name).name, "text": model.heldout(kind).name, "what": "regret",
                        "regret": check["total"]["regret"]})


def table(models, bits):
    lines = ["| model | scored on | fitted on the same | fitted on the other | ratio | regret predicted, same | other |",
             "|---|---|---:|---:|---:|---:|---:|"]
    for model in models:
        for kind in KINDS:
            fitted = [name_of(k, bits) for k in (kind, KINDS[1 - KINDS.index(kind)])]
            pair = [model.score_of(name, SCORED, kind) for name in fitted]
            regret = [model.score_of(name, "regret", kind) for name in fitted]
            if not all(pair):
                continue
            predicted = [f"{r['regret']:.2f}" if r else "" for r in regret]
            lines.append(f"| `{model.name}` | {kind} | {with_error(pair[0])} | {with_error(pair[1])} | "
                         f"{pair[1]['kl'] / pair[0]['kl']:.2f} | {predicted[0]} | {predicted[1]} |")
    return lines
