"""One model, its texts, and what is kept about it in the folder of a run."""
import json
import os
import subprocess
import sys

from .programs import COLLECT, DATA, ROOT, SCORE, note, run

PLAIN = ["tiny-llama", "tiny-qwen2", "tiny-qwen3"]
MODELS = [name + suffix for name in PLAIN for suffix in ("", "-outliers")]


class Model:
    """Statistics, bundles, and a line of JSON for each score. settings: device, curve_sequences, calibration, rows (of
    codebooks), texts (a folder of held-out texts in place of those of the repository)."""

    def __init__(self, name, out, **settings):
        self.name, self.out, self.settings = name, out, settings
        self.plain = name.removesuffix("-outliers")
        self.text = DATA / "text" / self.plain
        self.path = DATA / name if (DATA / name).exists() else out / name

    def prepare(self):
        if not self.path.exists():
            temporary = self.out / f"{self.name}.{os.getpid()}"
            run(sys.executable, ROOT / "scripts" / "make_outlier_twin.py", DATA / self.plain, temporary)
            temporary.rename(self.path)

    @property
    def device(self):
        return self.settings.get("device", "cpu")

    def on_device(self):
        return ["--device", self.device, "--dtype", "float32"]

    def file(self, name):
        return self.out / f"{self.name}.{name}"

    def prompts(self, kind=None):
        """The calibration prompts; of one kind: those rows alone. Held-out texts from elsewhere are of these kinds, too."""
        if kind is None:
            return DATA / "prompts.jsonl" if self.plain == "tiny-qwen3" and not self.settings.get("texts") else self.text / "prompts.jsonl"
        rows = (self.text / "prompts.jsonl").read_text().splitlines()
        file = self.file(f"{kind}.jsonl")
        file.write_text("".join(row + "\n" for row in rows if json.loads(row)["kind"] == kind))
        return file

    def heldout(self, kind=None):
        texts = self.settings.get("texts")
        if texts:
            return texts / self.plain / (f"heldout-{kind}.txt" if kind else "heldout.txt")
        if kind is not None:
            return self.text / f"heldout-{kind}.txt"
        return DATA / "heldout.txt" if self.plain == "tiny-qwen3" else self.text / "heldout.txt"

    def calibration_text(self, kind=None):
        """The prompts as one document, for measured curves: never the text that is scored."""
        rows = [json.loads(row) for row in self.prompts(kind).read_text().splitlines()]
        file = self.file(f"{kind or 'calibration'}.txt")
        file.write_text("\n\n".join(row["text"] for row in rows if len(row.get("text", "")) > 1000) + "\n")
        return file

    def statistics(self, kind=None, kl=False, rows=False):
        """rows: 32 rows for each of 1,024 centroids (or all tokens of the prompts, where they are fewer), with gradients."""
        file = self.file(f"{kind + '.' if kind else ''}{'kl.' if kl else ''}{'rows.' if rows else ''}statistics")
        if not file.exists():
            note(f"{self.name}: collect {kind or ''}{' with the KL metric' if kl else ''}")
            length = self.settings.get("calibration")
            text = ["--prompts", self.calibration_text(kind), "--seq-len", length] if length else ["--prompts", self.prompts(kind)]
            run(COLLECT, "--model", self.path, "-o", file, "-q", *text, *(["--metric", "kl"] if kl else []),
                *(["--row-gradients"] if rows else []), *self.on_device())
        return file

    def scores(self):
        """{(bundle, text, what): score} of everything measured so far."""
        log = self.file("scores.jsonl")
        if not log.exists():
            return {}
        lines = [json.loads(line) for line in log.read_text().splitlines() if line.endswith("}")]
        return {(s["bundle"], s["text"], s["what"]): s for s in lines}

    def score_of(self, row, what, kind=None):
        return self.scores().get((self.file(row).name, self.heldout(kind).name, what))

    def keep(self, score):
        with open(self.file("scores.jsonl"), "a") as log:
            log.write(json.dumps(score) + "\n")

    def score(self, rows, what, *options, kind=None):
        """One baseline for all rows that have no score yet; each is kept as soon as it is there."""
        known, text = self.scores(), self.heldout(kind)
        left = [row for row in rows if (self.file(row.name).name, text.name, what) not in known]
        if not left:
            return
        note(f"{self.name}: {what} of {len(left)} bundles on {text.name}")
        command = [SCORE, "--model", self.path, "--text", text, "--device", self.device, *options,
                   *[row.name if row.needs == "no fit" else self.file(row.name) for row in left]]
        with subprocess.Popen([str(c) for c in command], stdout=subprocess.PIPE, text=True) as process:
            for line, row in zip(process.stdout, left):
                words = line.split()
                score = {"bundle": self.file(row.name).name, "text": text.name, "what": what, "bits": float(words[1])}
                if "KL" in words:
                    score["kl"], score["error"] = float(words[4]), float(words[6])
                if "needles" in words:
                    score["found"], score["asked"] = float(words[-3].rstrip("%")), int(words[-1])
                self.keep(score)
        if process.returncode != 0:
            raise SystemExit(f"score_bundles ended with {process.returncode}")
