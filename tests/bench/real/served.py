"""What serve.py (vLLM) and serve_sglang.py measure alike of one cache of a real model: KL of what it decodes from what the engine's BF16 cache
decodes at 1, 8 and 40 requests, answers to the same prompts at 1, 8 and 40 requests, the tasks of prompts.py, and a row of traffic."""
import json
import os
import pathlib
import sys
import time

BENCH = pathlib.Path(__file__).resolve().parents[1]
sys.path[:0] = [str(BENCH / "vllm"), str(BENCH)]
import forced  # noqa: E402
import one_card  # noqa: E402
import prompts  # noqa: E402
import quality  # noqa: E402
import torch  # noqa: E402
from transformers import AutoTokenizer  # noqa: E402
from turns import Turns  # noqa: E402

REQUESTS = (1, 8, 40)
LENGTHS = [int(n) for n in os.environ.get("LENGTHS", "2112,8192").split(",")]
TASKS = (("he", 512), ("he_behind", 512), ("needles", 24), ("variables", 48), ("quotes", 256), ("calls", 512))  # sets, and the longest answers
AT_ONE = int(os.environ.get("AT_ONE", 40))  # texts and answers that are made one at a time
SLOTS = int(os.environ.get("SLOTS", 96))
PREFIX = bool(os.environ.get("PREFIX"))
GPUS = int(os.environ.get("GPUS", 1))
if os.environ.get("ONE_CARD") == "1" and GPUS > 1:
    one_card.prepare()


class Measured:
    """A JSON file that is written after every measurement."""

    def __init__(self, path):
        self.path = path
        self.found = json.loads(path.read_text()) if path.exists() else {}

    def __call__(self, name, make):
        if name not in self.found:
            begin = time.perf_counter()
            self.found[name] = make()
            self.found[name + "_s"] = round(time.perf_counter() - begin, 2)
            self.path.write_text(json.dumps(self.found))
            print(self.path.stem, name, self.found[name + "_s"], "s", flush=True)


def score(engine, measured, work, length, ids, bos):
    """KL at `length`; the BF16 cache is compared with itself at one request. bos: as in quality.sequences(): without its first token, which
    servers and oscar-fit give it, Gemma 3 270M has 3.5 times the KL at 2.25 bits."""
    folder = work / f"bf16-{length}"
    texts = quality.sequences(ids, bos, length, max(REQUESTS))
    done = folder / "done"
    if not done.exists() and measured.found["cache"] == "bf16":
        folder.mkdir(exist_ok=True)
        forced.run(engine.force, texts, list(range(len(texts))), 1, folder)
        done.touch()
    while not done.exists():
        time.sleep(.2)
    for requests in REQUESTS:
        for again in ("", "_again") if PREFIX else ("",):
            chosen = list(range(len(texts)))[:AT_ONE if requests == 1 else None]
            name = f"kl_{length}_{requests}{again}"
            measured(name, lambda: forced.run(engine.force, texts, chosen, requests, folder, work / f"{measured.path.stem}-{name}.found"))  # noqa: B023


def main(make):
    """make(model, cache, longest): the engine. It has name, versions, scores (whether it can force tokens), ask(prompts, most),
    force(prompts, wanted), which forced.run() asks, and row(vocabulary), which gives traffic.py's rows."""
    turns = Turns(os.environ.get("TURNS", ""))
    model, cache, work = sys.argv[1], sys.argv[2], pathlib.Path(sys.argv[3])
    variant = os.environ.get("VARIANT") or "-".join(v.lower() for v in ("PREFIX", "NGRAM", "EAGER") if os.environ.get(v))
    name = "-".join(filter(None, (pathlib.Path(cache).name, variant)))
    measured = Measured(work / f"{name}.json")
    tokenizer = AutoTokenizer.from_pretrained(model)
    config = json.loads((pathlib.Path(model) / "config.json").read_text())
    limit = config["max_position_embeddings"]
    sets, wanted = prompts.of(tokenizer, work, limit)
    longest = min(limit, max(len(p) for s in sets.values() for p in s) + 600)
    sets = {k: [p for p in s if len(p) + 512 <= longest or k not in ("he", "he_behind")] for k, s in sets.items()}
    begin = time.perf_counter()
    engine = make(model, cache, longest)
    about = dict(model=pathlib.Path(model).name, engine=engine.name, cache=cache, gpu=torch.cuda.get_device_name() if torch.cuda.is_available() else "cpu",
                 prefix_caching=PREFIX, variant=variant)
    measured.found.update(about, name=name, longest=longest, versions=f"{engine.versions}, torch {torch.__version__}",
                          start_s=round(time.perf_counter() - begin, 1), wanted=wanted, most={name: most for name, most in TASKS})

    def scores():
        ids = tokenizer((work / "agent_eval.txt").read_text())["input_ids"]
        for length in LENGTHS:
            if length <= longest:
                score(engine, measured, work, length, ids, tokenizer.bos_token_id)

    def answers():
        some = sets["he_behind"][:40]
        measured("one", lambda: [engine.ask([p], 64)[0] for p in some[:AT_ONE]])
        measured("eight", lambda: engine.ask(some[:8], 64))
        measured("forty", lambda: engine.ask(some, 64))

    def tasks_solved():
        for key, most in TASKS:
            if key not in os.environ.get("SETS", key).split(",") or not sets.get(key):
                continue
            measured(key, lambda: engine.ask(sets[key], most))
        if cache == "bf16" and os.environ.get("NOISE"):  # of another batch size
            measured("he_behind_again", lambda: [a for i in range(0, len(sets["he_behind"]), 16) for a in engine.ask(sets["he_behind"][i:i + 16], 512)])

    def traffic():
        row, given = engine.row(config["vocab_size"]), list(map(int, os.environ["TRAFFIC"].split(":")))
        rows = [about | {"slots": SLOTS} | row(*given) | {"round": number} for number in turns]
        measured("traffic", lambda: rows)

    parts = [scores, answers] + [tasks_solved] * (os.environ.get("TASKS") != "0")
    if not engine.scores:
        parts.remove(scores)
    for part in parts if cache == "bf16" else parts[::-1]:  # others wait for the files of the BF16 cache last
        part()
    if os.environ.get("TRAFFIC"):
        traffic()
