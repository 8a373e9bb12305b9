"""The study of real models: what a cache costs by kind of text, by length and in tasks, beside what engines ship.

    scripts/study -o WORK                                                   on a GPU
    scripts/study -o WORK --models smollm2-135m --lengths 2048 --steps judge --tokens 8192 --device cpu

Steps: `judge` fits bundles on one kind of text and evaluates them by oscar-verify on all kinds; `predict` decodes by oscar-verify what `serve` decodes;
`serve` asks vLLM 0.33 or SGLang 0.5.23 with each cache, and `grade` runs what it answered; `page` writes docs/study.md, its plots and README's table
from the raw lines. Each measurement is a line of JSON in WORK/study_MODEL.jsonl. What has a line is not measured again, so a run can be stopped and
called again; with --seconds nothing is begun after that time, and exit code 3 says that something is missing. Models are made from packages
(tests/bench/real/models.py), or are folders of other checkpoints. The table and its conditions: docs/study.md."""
import argparse
import concurrent.futures
import json
import os
import pathlib
import subprocess
import sys
import time

import kinds

HERE = pathlib.Path(__file__).resolve().parent
ROOT = HERE.parents[2]
MODELS = "smollm2-135m,qwen2.5-coder-1.5b,gemma-3-270m"
METHODS = "bf16,fp8,turboquant4,turboquant3,kivi2,oscar"
BITS = "2.25,4,3,1.5"
SERVED = {"vllm": "bf16,fp8,turboquant_4bit_nc,turboquant_3bit_nc", "sglang": "bf16,fp8"}
SCRIPTS = {"vllm": "serve.py", "sglang": "serve_sglang.py"}
# Of the first budget's bundle: prefix caching, speculation, a cache that holds a fraction of 40 long requests, and two GPUs. KL and answers only.
VARIANTS = {"prefix": {"PREFIX": "1"}, "ngram": {"NGRAM": "1"}, "preempt": {"MEMORY": os.environ.get("MEMORY", "4e8")}, "two": {"GPUS": "2"}}
PREDICTED = 40  # texts of served.py, whose last 64 of 2,112 tokens are scored


def arguments():
    parser = argparse.ArgumentParser(prog="scripts/study", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("-o", "--output", type=pathlib.Path, required=True, help="folder of everything that is made")
    parser.add_argument("--models", default=MODELS, help=f"names or folders, with commas (default {MODELS})")
    parser.add_argument("--steps", default="judge,serve,grade", help="of judge, predict, serve, grade and page (default judge,serve,grade)")
    parser.add_argument("--engine", choices=SERVED, default="vllm", help="that serves")
    parser.add_argument("--variants", default="", help=f"of the first bundle in the engine: {', '.join(VARIANTS)}")
    parser.add_argument("--lengths", default="2048,8192,32768", help="contexts, with commas; longer ones than the model's are left out")
    parser.add_argument("--tokens", type=int, default=32768, help="tokens to score at each length (default 32768)")
    parser.add_argument("--kinds", default=",".join(kinds.KINDS), help="kinds of text to score")
    parser.add_argument("--calibrate", default="agent", help="kind of text to calibrate on")
    parser.add_argument("--methods", default=METHODS, help=f"rows beside the bundles (default {METHODS})")
    parser.add_argument("--bits", default=BITS, help=f"budgets, the served one first (default {BITS})")
    parser.add_argument("--served", help=f"caches of the engine beside the bundles' (default {SERVED})")
    parser.add_argument("--device", default="auto", help="of the commands: cpu, cuda or auto")
    parser.add_argument("--fit-options", default="", help="more options of oscar-fit")
    parser.add_argument("--at-a-time", type=int, default=1, help="measurements that share the device")
    parser.add_argument("--seconds", type=float, default=float("inf"), help="begin nothing after this time")
    parser.add_argument("--build", type=pathlib.Path, default=ROOT / "build", help="build folder of the commands")
    parser.add_argument("--python", default=sys.executable, help="Python that has vLLM and the wheel")
    parser.add_argument("--dry-run", action="store_true", help="print the steps that are missing, and run none")
    given = parser.parse_args()
    given.served = SERVED[given.engine] if given.served is None else given.served
    return given


def card(device):
    """The GPU's name, or cpu."""
    if device != "cpu":
        try:
            named = subprocess.run(["nvidia-smi", "--query-gpu=name", "--format=csv,noheader"], capture_output=True, text=True, check=True)
            return named.stdout.splitlines()[0]
        except (OSError, subprocess.CalledProcessError, IndexError):
            pass
    return "cpu"


def judged_row(method):
    """What the page shows of a row of oscar-verify's report."""
    kl = method["kl"]
    bends = method["kl_by_position"]
    return {"row": method["id"], "code_bits": method["code_bits_per_element"], "bits": method["bits_per_element"], "kl": kl["mean"], "ci": kl["ci"],
            "p99": kl["p99"], "p999": kl["p999"], "ppl_ratio": method["ppl_ratio"], "same_top": method["same_top1"], "tokens": method["tokens"],
            "by_position": [[part["from"], part["to"], part["kl"]] for part in bends]}


class Study:
    """A model's steps. `lines`: the file of its raw lines."""

    def __init__(self, given, model):
        self.given, self.started = given, time.monotonic()
        folder = pathlib.Path(model)
        self.name, self.place = folder.name, given.output / folder.name
        self.model = folder if folder.is_dir() else self.place / "model"
        self.bundles, self.texts = self.place / given.calibrate, given.output / "texts"
        self.lines = given.output / f"study_{self.name}.jsonl"
        self.known = [json.loads(line) for line in self.lines.read_text().splitlines()] if self.lines.exists() else []

    def has(self, **key):
        return any(all(line.get(name) == value for name, value in key.items()) for line in self.known)

    def write(self, line, command, seconds):
        shown = " ".join(map(str, command)).replace(f"{self.given.output}/", "").replace(f"{self.given.build}/bin/", "").replace(str(self.model), self.name)
        line = {"card": card(self.given.device)} | line | {"model": self.name, "seconds": round(seconds, 1), "command": shown}
        self.known.append(line)
        with self.lines.open("a") as file:
            file.write(json.dumps(line) + "\n")

    def call(self, command, **environment):
        print("$", *command, flush=True)
        subprocess.run(list(map(str, command)), check=True, env=os.environ | environment, stdout=subprocess.DEVNULL)

    def program(self, name, *options):
        return [self.given.build / "bin" / name, "--model", self.model, "--device", self.given.device, "--no-progress", *options]

    # Steps: (0 what the rest needs, 1 measurements, 2 what needs these; what is shown; whether it is done; what it does).
    def steps(self):
        yield from self.prepared()
        wanted = self.given.steps.split(",")
        if {"judge", "predict", "serve"} & set(wanted):
            yield 0, "fit", all((self.bundles / f"bits-{bits}").exists() for bits in self.bits()), self.fit
        if "judge" in wanted:
            limit = self.limit()
            for length in map(int, self.given.lengths.split(",")):
                for kind in self.given.kinds.split(",") if length <= limit else ():
                    yield (1, f"judge {kind} {length}", self.has(study="judge", kind=kind, context=length, calibrated=self.given.calibrate),
                           lambda kind=kind, length=length: self.judge(kind, length))
        if "predict" in wanted:
            yield 1, "predict", all(self.has(study="predict", cache=f"bits-{bits}") for bits in self.bits()), self.predict
        if "serve" in wanted:
            for cache, variant in self.served():
                yield (1, f"serve {cache} {variant}".strip(), self.mark(cache, variant).exists(),
                       lambda cache=cache, variant=variant: self.serve(cache, variant))
        if "grade" in wanted:
            yield 2, "grade", self.has(study="serve", cache="bf16", engine=self.given.engine), self.grade

    def prepared(self):
        yield 0, "texts", (self.texts / "sessions.json").exists(), lambda: self.call(
            [sys.executable, HERE / "kinds.py", self.texts])
        yield 0, "model", (self.model / "config.json").exists(), lambda: self.call([sys.executable, HERE / "models.py", self.name, self.model])

    def bits(self):
        return list(filter(None, self.given.bits.split(",")))

    def limit(self):
        path = self.model / "config.json"
        return json.loads(path.read_text())["max_position_embeddings"] if path.exists() else float("inf")

    def fit(self):
        prompts, bits = self.texts / f"{self.given.calibrate}_calib.jsonl", self.given.bits
        command = self.program("oscar-fit", "--prompts", prompts, "-o", self.bundles, "--pareto", bits, "--resume", *self.given.fit_options.split())
        begin = time.monotonic()
        self.call(command)
        first = self.bundles / f"bits-{bits.split(',')[0]}"
        link = self.bundles / f"{first.name}.statistics.safetensors"  # where oscar-verify looks for it
        link.unlink(missing_ok=True)
        link.symlink_to(self.bundles.resolve().with_name(self.bundles.name + ".statistics.safetensors"))
        told = {name: json.loads((self.bundles / f"bits-{name}" / "oscar_bundle.json").read_text())["provenance"] for name in bits.split(",")}
        self.write({"study": "fit", "calibrated": self.given.calibrate} | {
            key: {name: made[key] for name, made in told.items() if key in made} for key in ("prediction", "measured")}, command, time.monotonic() - begin)

    def judge(self, kind, length):
        report = self.place / f"{self.given.calibrate}-{kind}-{length}.json"
        bundles = [word for bits in self.bits() for word in ("--bundle", self.bundles / f"bits-{bits}")]
        command = self.program("oscar-verify", *bundles, "--text", self.texts / f"{kind}_eval.txt", "--context", length, "--tokens", 0, "--max-sequences",
                               max(1, self.given.tokens // length), "--methods", self.given.methods, "--layer-sequences", 1, "--no-gate",
                               "--overwrite", "--report", report)
        begin = time.monotonic()
        done = subprocess.run(list(map(str, command)), stdout=subprocess.DEVNULL)
        print("$", *command, flush=True)
        if done.returncode not in (0, 1):  # 1: a self-check failed, which the line says
            raise subprocess.CalledProcessError(done.returncode, command)
        made = json.loads(report.read_text())
        seen = (made["bundle"] or {}).get("calibration_text") or {}
        self.write({"study": "judge", "calibrated": self.given.calibrate, "kind": kind, "context": length, "sequences": made["scoring"]["sequences"],
                    "windows": made["windows"], "shared": [seen.get("shared"), seen.get("compared")],
                    "failed_checks": [check["name"] for check in made["self_checks"] if check["pass"] is False],
                    "rows": [judged_row(method) | {"row": self.row_name(method["id"])} for method in made["methods"] if method["id"] != "bf16"]},
                   command, time.monotonic() - begin)

    def row_name(self, method):
        """A row of oscar-verify's report by the bundle's folder, also where one bundle alone is named by its method."""
        return f"bits-{self.bits()[0]}" if method == "waterfill" and len(self.bits()) == 1 else method

    def predict(self):
        report, named = self.place / "predicted.json", [self.bundles / f"bits-{bits}" for bits in self.bits()]
        command = self.program("oscar-verify", *(word for bundle in named for word in ("--bundle", bundle)), "--text", self.texts / "agent_eval.txt",
                               "--context", min(2112, self.limit()), "--tokens", 0, "--max-sequences", PREDICTED, "--path", "both", "--decode-last", 64, "--no-gate",
                               "--overwrite", "--report", report)
        begin = time.monotonic()
        self.call(command)
        decoded = {self.row_name(method["id"]): method["kl"] for method in json.loads(report.read_text())["methods"] if method["path"] == "decode"}
        for bundle in named:
            kl = decoded[bundle.name]
            self.write({"study": "predict", "cache": bundle.name, "kl": kl["mean"], "ci": kl["ci"], "sequences": PREDICTED}, command,
                       time.monotonic() - begin)

    def found(self):
        return self.place / ("found" if self.given.engine == "vllm" else f"found-{self.given.engine}")

    def served(self):
        """[(cache, variant or nothing)]"""
        bundles = [f"bits-{bits}" for bits in self.bits()]
        return [(cache, "") for cache in [*filter(None, self.given.served.split(",")), *bundles]] + [
            (bundles[0], variant) for variant in filter(None, self.given.variants.split(","))]

    def mark(self, cache, variant):
        return self.found() / f"{'-'.join(filter(None, (cache, variant)))}.done"

    def serve(self, cache, variant):
        found = self.found()
        found.mkdir(parents=True, exist_ok=True)
        for name in ("tasks.json", "sessions.json", "agent_eval.txt"):
            if not (found / name).exists():
                (found / name).write_bytes((self.texts / name).read_bytes())
        bundle, script = self.bundles / cache, HERE / SCRIPTS[self.given.engine]
        of_variant = VARIANTS[variant] | {"TASKS": "0", "VARIANT": variant} if variant else {}
        self.call([self.given.python, script, self.model, bundle if bundle.is_dir() else cache, found], NOISE="1", **of_variant)
        self.mark(cache, variant).touch()

    def grade(self):
        import table
        script, begin = SCRIPTS[self.given.engine], time.monotonic()
        predicted = {line["cache"]: line["kl"] for line in self.known if line["study"] == "predict"}
        for line in table.lines_of(self.found(), predicted):
            cache = pathlib.Path(line.pop("cache")).name
            self.write({"study": "serve", "cache": cache, "card": line.pop("gpu")} | line, [f"tests/bench/real/{script}", self.name, cache],
                       time.monotonic() - begin)


def run(given, study):
    """The exit code. Measurements share the device, if asked."""
    missing, failed = [], []

    def one(step):
        _, name, _, act = step
        if time.monotonic() - study.started > given.seconds:
            missing.append(name)
            return
        try:
            act()
        except subprocess.CalledProcessError as error:
            print(f"error: {name} ended with code {error.returncode}: {' '.join(map(str, error.cmd))}", file=sys.stderr)
            failed.append(name)

    for phase in (0, 1, 2):
        with concurrent.futures.ThreadPoolExecutor(given.at_a_time if phase == 1 else 1) as pool:
            list(pool.map(one, [step for step in study.steps() if step[0] == phase and not step[2]]))
        if failed or missing:
            break
    if missing:
        print(f"call it again: {study.name} misses {', '.join(missing)}", file=sys.stderr)
    return 1 if failed else 3 if missing else 0


def main():
    given = arguments()
    given.output.mkdir(parents=True, exist_ok=True)
    if given.steps == "page":
        import page
        return page.write(given.output)
    for model in given.models.split(","):
        study = Study(given, model)
        if given.dry_run:
            print("\n".join(f"{study.name}: {name}{' (has a line)' if done else ''}" for _, name, done, _ in study.steps()))
        elif code := run(given, study):
            sys.exit(code)


if __name__ == "__main__":
    main()
