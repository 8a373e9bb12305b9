"""Fitted to text that the model writes itself, alone and beside prompts, over fitted to prompts alone: the closed form."""
from .fitting import fit
from .numbers import geometric_mean, with_error
from .rows import Row, closed, waterfill

ALONE, BESIDE = [30000, 120000], [30000, 60000, 120000]  # tokens


def named(bits, seed):
    """(the row of each column, for one seed)"""
    options = (*waterfill(bits, "--allocate", "closed"), "--seed", seed)
    return ([Row(f"own-{tokens}-{seed}-{bits}", options, "own text", own_tokens=tokens) for tokens in ALONE]
            + [Row(f"beside-{tokens}-{seed}-{bits}", options, "own text beside", own_tokens=tokens) for tokens in BESIDE])


def measure(model, bits, seeds, sequences):
    model.prepare()
    rows = [closed(bits)] + [row for seed in seeds for row in named(bits, seed)]
    fit(model, rows)
    model.score(rows, f"kl{sequences}", "--sequences", sequences)


def table(models, bits, seeds, sequences):
    headings = [f"own text, {n:,}" for n in ALONE] + [f"beside, {n:,}" for n in BESIDE]
    lines = [f"| model | prompts | {' | '.join(headings)} |", "|---|" + "---:|" * (1 + len(headings))]
    columns = [[] for _ in headings]
    for model in models:
        alone = model.score_of(f"closed-{bits}", f"kl{sequences}")
        found = [[model.score_of(row.name, f"kl{sequences}") for row in named(bits, seed)] for seed in seeds]
        if not alone or not all(score for scores in found for score in scores):
            continue
        ratios = [[scores[column]["kl"] / alone["kl"] for scores in found] for column in range(len(headings))]
        for column, values in zip(columns, ratios):
            column += values
        lines.append(f"| `{model.name}` | {with_error(alone)} | {' | '.join(', '.join(f'{v:.2f}' for v in values) for values in ratios)} |")
    means = [geometric_mean(column) for column in columns]
    return [*lines, f"| geometric mean | | {' | '.join(means)} |"]
