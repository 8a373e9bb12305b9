"""What a run has done so far, as reproduce.json and reproduce.html."""
import importlib.metadata
import json
import subprocess
import sys

from quality_runs.programs import FIT

from . import page, results
from .benchmarks import LEFT_OUT
from .plan import CACHES
from .steps import shown


def versions():
    made = {"python": sys.version.split()[0]}
    for name in ("lm_eval", "torch", "transformers", "oscar_kv"):
        try:
            made[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            made[name] = "of this checkout" if name == "oscar_kv" else "not installed"
    done = subprocess.run([str(FIT), "--version"], capture_output=True, text=True, check=False)
    made["oscar-fit"] = " ".join(done.stdout.split()[:2])
    return made


def written(options):
    """Options of the page: those that a number depends on."""
    names = ("tasks", "limit", "seeds", "greedy", "max_gen_toks", "chat", "think_end", "ruler_lengths", "bits", "windows", "tokens", "allocate",
             "context", "text_tokens", "batch_size", "device", "dtype")
    return {name: getattr(options, name) for name in names} | {
        "prompts": [p.name for p in options.prompts] or "written by the model", "text": options.text.name}


def gathered(benchmarks, planned, finished, failures):
    """Rows of the page: a row for each metric of each benchmark, with the runs that are finished."""
    rows = []
    for benchmark in benchmarks:
        found = {}  # ending -> cache -> [score of a seed]
        for run in planned:
            if run.benchmark is not benchmark or run.step.name not in finished:
                continue
            try:
                for ending, one in results.scores(benchmark, run.results).items():
                    found.setdefault(ending, {}).setdefault(run.cache, []).append(one | {"seed": run.seed})
            except results.Unreadable as error:
                failures.append(str(error))
        for ending, caches in found.items():
            cells = {}
            for cache, seeds in caches.items():
                mean, spread = results.over_seeds([s["score"] for s in seeds])
                cells[cache] = {"score": mean, "stdev": spread, "seeds": len(seeds), "documents": seeds[0]["documents"], "runs": seeds}
            rows.append({"name": benchmark.name, "title": benchmark.title + ending, "paper": benchmark.paper, "tasks": list(benchmark.tasks),
                         "dataset": benchmark.dataset, "caches": cells})
    return rows


class Book:
    """What has been done so far; written after every step, so that a run that is stopped has its page."""

    def __init__(self, options, benchmarks, planned, absent):
        self.options, self.benchmarks, self.planned, self.absent = options, benchmarks, planned, absent
        self.steps, self.finished, self.failures, self.verify, self.versions = [], set(), [], [], versions()

    def did(self, step, record):
        self.finished.add(step.name)
        self.steps.append({"name": step.name, "seconds": record["seconds"], "code": record["code"], "command": shown(step)})

    def write(self):
        failures = list(self.failures)
        rows = gathered(self.benchmarks, self.planned, self.finished, failures)
        document = {"format": "oscar-reproduce", "version": 1, "model": self.options.model, "caches": CACHES, "benchmarks": rows,
                    "verify": self.verify, "left_out": [dict(zip(("name", "paper", "reason"), row)) for row in (*LEFT_OUT, *self.absent)],
                    "failures": failures, "options": written(self.options), "versions": self.versions, "steps": self.steps}
        for name, text in (("reproduce.json", json.dumps(document, indent=1) + "\n"), ("reproduce.html", page.render(document))):
            temporary = self.options.output / f".{name}.new"
            temporary.write_text(text, encoding="utf-8")
            temporary.replace(self.options.output / name)
        return failures
