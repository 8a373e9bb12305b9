"""Bundles of rows (rows.py): each is fitted once and stays in the folder of the run."""
from .programs import FIT, note, run


def fit(model, rows, kind=None):
    """kind: of the text that is calibrated on; None: all prompts."""
    for row in rows:
        if row.needs == "no fit" or model.file(row.name).exists():
            continue
        note(f"{model.name}: fit {row.name}")
        if row.budgets and kind is None:
            fit_front(model, row)
        else:
            log = run(FIT, *source(model, row, rows, kind), "-o", model.file(row.name), "-q", *row.options, *needed(model, row, kind))
            model.file(f"{row.name}.txt").write_text(log)


def fit_front(model, row):
    """One measurement for all budgets."""
    stem, at = row.name.rsplit("-", 1)[0], row.options.index("--bits")
    front = model.file(stem)
    options = [*row.options[:at], "--pareto", ",".join(row.budgets), *row.options[at + 2:]]
    resume = ["--resume"] if "measured" in row.options else []
    run(FIT, model.statistics(kl="kl" in row.options), "-o", front, "-q", "--overwrite", *resume, *options, *needed(model, row))
    for bits in row.budgets:
        (front / f"bits-{float(bits):g}").rename(model.file(f"{stem}-{bits}"))
    front.rmdir()


def source(model, row, rows, kind):
    """The statistics that a row is fitted to; none where they are collected in the same run."""
    if row.needs in ("own text", "prompts"):
        return []
    if any(row.needs == other.name for other in rows):
        return [model.file(f"{row.needs}.statistics.safetensors")]
    return [model.statistics(kind, kl="kl" in row.options, rows=row.needs == "rows")]


def needed(model, row, kind=None):
    """Options of the fit for what the row needs, and the device."""
    sequences, length = model.settings.get("curve_sequences"), model.settings.get("calibration")
    curves = ["--curve-sequences", sequences] if sequences else []
    if length:
        curves += ["--curve-context", length]
    if row.needs == "text":
        return ["--model", model.path, "--text", model.calibration_text(kind), *curves, *model.on_device()]
    if row.needs == "own text":
        return ["--model", model.path, "--tokens", row.own_tokens, *curves, *model.on_device()]
    if row.needs == "prompts":
        own = ["--own-text", row.own_tokens] if row.own_tokens else []
        return ["--model", model.path, "--prompts", model.prompts(kind), *own, *curves, *model.on_device()]
    of_model = ["--model", model.path] if row.needs == "model" else []
    count = ["--rows", model.settings["rows"]] if row.needs == "rows" and model.settings.get("rows") else []
    return [*of_model, *count, "--device", model.device]
