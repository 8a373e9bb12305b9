"""Mean KL and needles of every row on every model."""
import json
import math

from .fitting import fit
from .numbers import headings, with_error
from .rows import BITS, label

TARGETS = [("closed-2.25", "balanced", 0.35), ("measured-2.25", "balanced", 0.3), ("measured-1.5", "balanced", 0.65),
           ("closed-1.0", "oscar", 1.0), ("measured-1.0", "oscar", 1.0), ("command-2.25", "balanced", 0.3),
           ("command-1.5", "balanced", 0.65), ("command-1.0", "oscar", 1.0)]


def measure(model, rows, sequences, needles):
    model.prepare()
    fit(model, rows)
    model.score(rows, f"kl{sequences}", "--sequences", sequences)
    if needles:
        model.score([row for row in rows if not row.name.endswith("-0.75")], f"needles{needles}", "--sequences", 0,
                    "--needles", needles, "--needle-lengths", 2048)


def codebook_megabytes(bundle):
    """Of a bundle's codebooks, as their types store centroids; None: it has none."""
    if not (bundle / "rotations.safetensors").exists() or not (bundle / "oscar_bundle.json").exists():
        return None
    with open(bundle / "rotations.safetensors", "rb") as file:
        header = json.loads(file.read(int.from_bytes(file.read(8), "little")))
    layer = json.loads((bundle / "oscar_bundle.json").read_text())["layers"][0]
    width = {"k": layer["key"], "v": layer["value"]}
    size = sum(math.prod(facts["shape"]) * (2 if width[name.split(".")[2]]["codebook"]["type"] == "float16" else 1)
               for name, facts in header.items() if name.endswith((".codebook", ".codebook2")))
    return size / 1e6 if size else None


def table(models, rows, sequences, needles):
    scores = {model.name: {row.name: model.score_of(row.name, f"kl{sequences}") for row in rows} for model in models}
    names = [model.name for model in models]

    def both(values):
        """Different values; those of tiny-qwen3 first, whose heads are larger."""
        ordered = sorted(zip(names, values), key=lambda pair: "qwen3" not in pair[0])
        return " / ".join(dict.fromkeys(value for _, value in ordered if value))

    sizes = {row.name: both([f"{size:.2f}" if (size := codebook_megabytes(model.file(row.name))) else "" for model in models])
             for row in rows}
    tables = any(sizes.values())
    lines = ["| method | code bits | " + " | ".join(headings(names)) + (" | codebooks, MB |" if tables else " |"),
             "|---|---:|" + "---:|" * (len(models) + tables)]
    for row in rows:
        found = [scores[name][row.name] for name in names]
        bits = both([f"{round(s['bits'], 2):g}" if s else "" for s in found])
        cells = [with_error(s) for s in found] + [sizes[row.name]] * tables
        lines.append(f"| {label(row.name)} | {bits} | " + " | ".join(cells) + " |")
    lines += needle_lines(models, rows, needles)
    kl = {name: {row: s["kl"] for row, s in scores[name].items() if s} for name in names}
    return [*lines, "", *target_lines(names, kl)]


def needle_lines(models, rows, needles):
    lines = ["", "Needles found at 2,048 tokens, of those that the BF16 cache finds:", "",
             "| method | " + " | ".join(f"`{model.name}`" for model in models) + " |", "|---|" + "---:|" * len(models)]
    for row in rows:
        found = [model.score_of(row.name, f"needles{needles}") for model in models]
        if any(found):
            cells = [f"{round(s['found'] * s['asked'] / 100)} of {s['asked']}" if s else "" for s in found]
            lines.append(f"| `{row.name}` | " + " | ".join(cells) + " |")
    return lines


def target_lines(models, kl):
    lines = ["Targets, as ratios of mean KL:", "", "| target | " + " | ".join(f"`{name}`" for name in models) + " |",
             "|---|" + "---:|" * len(models)]
    for row, base, most in TARGETS:
        ratios = [kl[name][row] / kl[name][base] if row in kl[name] and base in kl[name] else None for name in models]
        if any(ratios):
            cells = ["" if r is None else f"{r:.2f}" if r <= most else f"**{r:.2f}**" for r in ratios]
            lines.append(f"| `{row}` / `{base}`, at most {most:g} | " + " | ".join(cells) + " |")
    for kind in ("closed", "measured", "command"):
        cells = []
        for name in models:
            values = [(b, kl[name][f"{kind}-{b}"]) for b in BITS if f"{kind}-{b}" in kl[name]]
            rising = [b for (b, v), (_, w) in zip(values, values[1:]) if v > w]
            cells.append("" if len(values) < 2 else "yes" if not rising else f"**not at {', '.join(rising)}**")
        if any(cells):
            lines.append(f"| `{kind}` falls with bits | " + " | ".join(cells) + " |")
    return lines
