"""Fitted on one kind of text, alone and with text that the model writes itself beside it, scored on both kinds, with the regret that
moments predict for the first."""
import json

from .fitting import fit
from .numbers import with_error
from .programs import FIT, run
from .rows import Row, waterfill

KINDS = ["code", "stories"]


def name_of(kind, bits, own=False):
    return f"shift-{'own-' if own else ''}{kind}-{bits}"


def rows_of(kind, bits):
    options = waterfill(bits, "--allocate", "measured")
    return [Row(name_of(kind, bits), options, "text"), Row(name_of(kind, bits, True), options, "own text beside")]


def measure(model, bits, sequences):
    model.prepare()
    rows = {kind: rows_of(kind, bits) for kind in KINDS}
    for kind in KINDS:
        fit(model, rows[kind], kind)
    for scored in KINDS:
        model.score([row for kind in KINDS for row in rows[kind]], f"kl{sequences}", "--sequences", sequences, kind=scored)
    for row, _ in rows.values():
        for kind in KINDS:
            if model.score_of(row.name, "regret", kind):
                continue
            check = json.loads(run(FIT, "check", model.file(row.name), "--statistics", model.statistics(kind), "--json"))
            model.keep({"bundle": model.file(row.name).name, "text": model.heldout(kind).name, "what": "regret",
                        "regret": check["total"]["regret"]})


def table(models, bits, sequences):
    lines = ["| model | scored on | same kind | other kind | ratio | regret predicted | same, with own text | other, with own text | ratio |",
             "|---|---|---:|---:|---:|---:|---:|---:|---:|"]
    for model in models:
        for kind in KINDS:
            other = KINDS[1 - KINDS.index(kind)]
            pairs = [[model.score_of(name_of(k, bits, own), f"kl{sequences}", kind) for k in (kind, other)] for own in (False, True)]
            if not all(score for pair in pairs for score in pair):
                continue
            alone, beside = (f"{with_error(same)} | {with_error(far)} | {far['kl'] / same['kl']:.2f}" for same, far in pairs)
            regret = model.score_of(name_of(other, bits), "regret", kind)
            lines.append(f"| `{model.name}` | {kind} | {alone} | {regret['regret']:.2f} | {beside} |" if regret else
                         f"| `{model.name}` | {kind} | {alone} | | {beside} |")
    return lines
