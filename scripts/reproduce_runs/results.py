"""What the steps wrote, as numbers: scores of the harness, and KL of oscar-verify."""
import json
import math
import pathlib
import statistics


class Unreadable(Exception):
    """One sentence about a result file."""


def read_json(path):
    try:
        found = json.loads(pathlib.Path(path).read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise Unreadable(f"{path}: is not the result that was expected ({error})") from None
    if not isinstance(found, dict):
        raise Unreadable(f"{path}: is not the result that was expected (no object)")
    return found


def newest(folder):
    found = sorted(pathlib.Path(folder).rglob("results_*.json"), key=lambda path: (path.stat().st_mtime_ns, path.name))
    if not found:
        raise Unreadable(f"{folder}: holds no results_*.json of lm-evaluation-harness")
    return found[-1]


def _number(value):
    return isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value)


def first_metric(row):
    """The harness's name of the first score of a task."""
    return next((k for k, v in row.items() if "," in k and "_stderr," not in k and _number(v)), None)


def scores(benchmark, folder):
    """{ending of the title: {"score": percent, "metric": name, "tasks": {task: percent}, "documents": n}} of one run. A score of -1
    (RULER: no document of that length) is none."""
    path = newest(folder)
    found = read_json(path)
    rows, counts = found.get("results", {}), found.get("n-samples", {})
    made = {}
    for ending, metric in benchmark.metrics or (("", None),):
        parts, name, documents = {}, metric, 0
        for task in benchmark.tasks:
            row = rows.get(task)
            if not isinstance(row, dict):
                raise Unreadable(f"{path}: has no results of the task '{task}'")
            name = metric or first_metric(row)
            value = row.get(name) if name else None
            if not _number(value):
                raise Unreadable(f"{path}: has no number '{name}' of the task '{task}', which lm-evaluation-harness 0.4.13 has")
            if value != -1:
                parts[task] = 100.0 * value
            documents += int(counts.get(task, {}).get("effective", 0))
        if parts:
            made[ending] = {"score": statistics.fmean(parts.values()), "metric": name, "tasks": parts, "documents": documents}
    return made


def over_seeds(values):
    """Mean and standard deviation; None of the latter for one seed."""
    return statistics.fmean(values), statistics.stdev(values) if len(values) > 1 else None


def judged(path):
    """[{id, path, kl, same_top1, bits}] of oscar-verify's report: KL in nats, the share of equal top tokens, bits of an element."""
    made = []
    for row in read_json(path).get("methods", []):
        made.append({"id": row["id"], "path": row["path"], "kl": row["kl"]["mean"], "same_top1": row["same_top1"], "bits": row["bits_per_element"]})
    return made
