"""Fitted to text that the model writes itself, alone and beside prompts, over fitted to prompts alone."""
from .fitting import fit
from .numbers import geometric_mean, with_error
from .rows import Row, closed, measured, waterfill

ALONE = {"closed": [30000, 120000], "measured": [30000]}  # tokens
BESIDE = {"closed": [30000, 60000, 120000], "measured": [120000]}


def named(bits, allocate, seed):
    """(the row of each column, for one seed)"""
    options = (*waterfill(bits, "--allocate", allocate), "--seed", seed)
    mark = "" if allocate == "closed" else f"{allocate}-"
    return ([Row(f"own-{mark}{tokens}-{seed}-{bits}", options, "own text", own_tokens=tokens) for tokens in ALONE[allocate]]
            + [Row(f"beside-{mark}{tokens}-{seed}-{bits}", options, "prompts", own_tokens=tokens) for tokens in BESIDE[allocate]])


def prompts_alone(bits, allocate):
    return closed(bits) if allocate == "closed" else measured(bits)


def measure(model, bits, allocate, seeds, sequences):
    model.prepare()
    rows = [prompts_alone(bits, allocate)] + [row for seed in seeds for row in named(bits, allocate, seed)]
    fit(model, rows)
    model.score(rows, f"kl{sequences}", "--sequences", sequences)


def table(models, bits, allocate, seeds, sequences):
    headings = [f"own text, {n:,}" for n in ALONE[allocate]] + [f"beside, {n:,}" for n in BESIDE[allocate]]
    lines = [f"| model | prompts | {' | '.join(headings)} |", "|---|" + "---:|" * (1 + len(headings))]
    columns = [[] for _ in headings]
    for model in models:
        alone = model.score_of(prompts_alone(bits, allocate).name, f"kl{sequences}")
        found = [[model.score_of(row.name, f"kl{sequences}") for row in named(bits, allocate, seed)] for seed in seeds]
        if not alone or not all(score for scores in found for score in scores):
            continue
        ratios = [[scores[column]["kl"] / alone["kl"] for scores in found] for column in range(len(headings))]
        for column, values in zip(columns, ratios):
            column += values
        lines.append(f"| `{model.name}` | {with_error(alone)} | {' | '.join(', '.join(f'{v:.2f}' for v in values) for values in ratios)} |")
    means = [geometric_mean(column) for column in columns]
    return [*lines, f"| geometric mean | | {' | '.join(means)} |"]
