"""The rows of a table: names, options of oscar-fit, and what a fit needs besides statistics."""
import dataclasses

BITS = ["3", "2.25", "1.75", "1.5", "1.25", "1.0", "0.75"]
FIELD_BITS = ["2.25", "1.5", "1.25", "1.0"]
FIELD = ["naive2", "hadamard2", "kivi2-g128", "oscar-tns-g128", "turboquant2", "turboquant2.5", "nsn", "nsn2"]
CODEBOOKS = ["cq4x8", "cq8x10", "cq8x8", "tasq", "nova", "nova1b", "pq1", "rvq1.5"]
GROUPS = ["default", "oscar", "balanced", "closed", "measured", "command", "kl", "more", "field", "uncalibrated",
          "codebooks"]
GROUPS_HELP = (
    "command: what oscar-fit makes of a model and prompts; more: oscar-head, encoder feedback, center mean on measured curves; "
    "uncalibrated, codebooks: parts of field; field: all methods between 1 and 2.5 bits")


@dataclasses.dataclass(frozen=True)
class Row:
    """needs: "" statistics alone; "no fit": the name is a method of oscar-verify; "model": the model's weights; "prompts":
    no statistics, the model and the kind's prompts in one command; "text": the model and its calibration text; "rows":
    statistics with many sampled rows and their gradients; "own text": no statistics, the model writes its own; the name of
    another row: the statistics that this one left beside its bundle.
    budgets: one measurement serves the rows of all these bits, whose names end in them.
    own_tokens: of text that the model writes; 0 beside prompts: what oscar-fit takes by default."""

    name: str
    options: tuple = ()
    needs: str = ""
    budgets: tuple = ()
    own_tokens: int = 0


def waterfill(bits, *more):
    return ("--method", "waterfill", "--bits", bits, *more)


def closed(bits):
    return Row(f"closed-{bits}", waterfill(bits, "--allocate", "closed"))


def measured(bits, name="measured", *more):
    return Row(f"{name}-{bits}", waterfill(bits, "--allocate", "measured", *more), "text", tuple(BITS))


def rows_of(groups):
    groups = {"oscar", "balanced", "closed", "measured", "command"} if groups == ["default"] else set(groups)
    field = "field" in groups
    rows = []
    if field or "uncalibrated" in groups:
        rows += [Row(name, (), "no fit") for name in FIELD]
    if field:
        rows += [Row(name, ("--method", name)) for name in ("oscar", "oscar2-center", "balanced")]
    if field or "codebooks" in groups:
        rows += [Row(name, ("--method", name), "rows") for name in CODEBOOKS]
    if "oscar" in groups and not field:
        rows += [Row("oscar")]
    if "oscar" in groups:
        rows += [Row("oscar-published-clip", ("--clip", "0.96,0.92"))]
    if "balanced" in groups and not field:
        rows += [Row("balanced", ("--method", "balanced"))]
    for kind, make in (("closed", closed), ("measured", measured)):
        if groups & {kind, "field"}:
            rows += [make(b) for b in (BITS if kind in groups else FIELD_BITS)]
    if "command" in groups:
        rows += [Row(f"command-{b}", waterfill(b), "prompts") for b in BITS]
    if "kl" in groups:
        kl = ("--metric", "kl")
        rows += [Row("oscar-kl", kl), Row("balanced-kl", ("--method", "balanced", *kl))]
        rows += [Row(f"closed-kl-{b}", waterfill(b, *kl)) for b in BITS]
        rows += [measured(b, "measured-kl", *kl) for b in BITS]
    if "more" in groups:
        rows += [Row("oscar-head", ("--scope", "head")), Row("balanced-feedback", ("--method", "balanced", "--encoder", "feedback"))]
        rows += [measured(b, f"measured-{name}", *option) for name, option in
                 (("feedback", ("--encoder", "feedback")), ("mean", ("--center", "mean"))) for b in FIELD_BITS]
    return rows


def label(name):
    """A row's name in the documents."""
    kind = {"closed": "closed form", "measured": "measured curves", "command": "in one command"}.get(name.rsplit("-", 1)[0])
    return f"`waterfill` {kind}" if kind else f"`{name}`"
