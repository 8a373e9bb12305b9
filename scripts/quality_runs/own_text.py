"""Fitted to text that the model writes itself, beside fitted to prompts."""
from .fitting import fit
from .numbers import with_error
from .rows import Row, closed, measured, waterfill


def rows_of(bits, seeds):
    rows = [measured(bits), closed(bits)]
    for seed in seeds:
        own = Row(f"own-{seed}-{bits}", (*waterfill(bits), "--seed", seed), "own text")
        rows += [own, Row(f"own-closed-{seed}-{bits}", waterfill(bits), own.name),
                 Row(f"beside-{seed}-{bits}", own.options, "own text beside")]
    return rows


def measure(model, bits, seeds, sequences):
    model.prepare()
    rows = rows_of(bits, seeds)
    fit(model, rows)
    model.score(rows, f"kl{sequences}", "--sequences", sequences)


def table(models, bits, seeds, sequences):
    lines = ["| model | prompts, measured | seed | own text, closed form | own text, measured | measured over prompts | prompts and own text | "
             "over prompts |",
             "|---|---:|---:|---:|---:|---:|---:|---:|"]
    for model in models:
        for seed in seeds:
            found = [model.score_of(f"{row}-{bits}", f"kl{sequences}")
                     for row in ("measured", f"own-closed-{seed}", f"own-{seed}", f"beside-{seed}")]
            if all(found):
                lines.append(f"| `{model.name}` | {with_error(found[0])} | {seed} | {with_error(found[1])} | {with_error(found[2])} | "
                             f"{found[2]['kl'] / found[0]['kl']:.2f} | {with_error(found[3])} | {found[3]['kl'] / found[0]['kl']:.2f} |")
    return lines
