"""docs/study.md, its plots in docs/study/ and README's first table, from the raw lines of scripts/study (study_ and the model's name in
tests/bench/results). The test that compares them names the command."""
import json
import pathlib
import re

import kinds
import plots
import table

ROOT = pathlib.Path(__file__).resolve().parents[3]
NAMES = {"qwen2.5-coder-1.5b": "Qwen2.5-Coder-1.5B", "smollm2-135m": "SmolLM2-135M", "gemma-3-270m": "Gemma 3 270M"}
ROWS = {"bf16": "BF16", "fp8": "`fp8`", "turboquant4": "`turboquant4`", "turboquant3": "`turboquant3`", "kivi2": "`kivi2`", "oscar": "`oscar`",
        "bits-4": "`waterfill`, 4 bits", "bits-3": "`waterfill`, 3 bits", "bits-2.25": "`waterfill`, 2.25 bits", "bits-1.5": "`waterfill`, 1.5 bits"}
SERVED = {"turboquant_4bit_nc": "turboquant4", "turboquant_3bit_nc": "turboquant3"}
ENGINES = {"vllm": "vLLM", "sglang": "SGLang"}
VARIANTS = {"": "", "prefix": ", prefix hits", "ngram": ", `ngram`", "preempt": ", preempted", "two": ", two ranks"}
WINDOWS, CONTEXT = 320, 32768
LENGTHS = 2112, 8192  # texts that engines decode; the second where windows are so long that the first finds no prefix
HEAD = """# Study of real models

What the KV cache of instruct models that others trained loses in each format: in KL to the BF16 cache, and in tasks that vLLM serves. `scripts/study`
measures it and writes this page. Raw lines with their commands are in `tests/bench/results`, as `study_` and the model's name.

- Text is of five kinds: recorded sessions of coding agents, Python code, English prose, tool calls as JSON, and prose in six other languages. Bundles are
  calibrated on one kind, on other documents than are scored.
- Rows are means to the BF16 cache in nats, with the same BF16 windows for all. On GPUs models compute in BF16, so that rows hold its rounding:
  `fp8` has .0025 there with SmolLM2-135M, and .0008 in FP32 on a CPU.
- `turboquant4` and `turboquant3` have the codes of vLLM's `turboquant_4bit_nc` and `turboquant_3bit_nc` in all layers. vLLM also corrects norms, and
  keeps the first two and the last two layers in BF16. So its tasks are better than the KL here, and its cache is larger: 5.9 and 5.0 bits
  for 28 layers.
- Tasks: HumanEval plain, and with 6,000 tokens of unrelated code between task and question; a number to find and variables to follow in up to 30,000
  tokens; four lines to quote after 3,000; the next call of recorded agent sessions of 8,000 to 30,000 tokens. A next call counts if it reads as
  JSON, names the tool that the session called, and has the arguments of the calls before it.
- Engines: KL of the last 64 of 2,112 tokens, decoded beside 0, 7 and 39 other requests, to BF16 at one request. BF16's rows are the noise of its own
  arithmetic. Predicted is `oscar-verify --path both --decode-last 64` on the same texts. "Other text" counts answers of 64 tokens that differ from those
  of one request at a time. "Two ranks" is tensor parallelism of two: vLLM on two GPUs (a single GPU had .0036, .00299 and .00298
  for that bundle), SGLang on one card (`GPUS=2 ONE_CARD=1`). At one request, rows with "of 16" there have
  8 texts, and those with "of 48" have 40.
- Calibrate on the kinds of text that you serve. A bundle for one kind has up to twice the KL on others, most on other languages.
- Small models say little about large ones. Evaluate yours.

FP8 without scales fails where key biases are large, as in Qwen2.5: E4M3 keeps three bits of a large number. `oscar-verify --methods fp8` shows
it on your model in two minutes, before you serve.

<!-- not run: network -->
```console
$ scripts/study -o study
$ scripts/study -o tests/bench/results --steps page
```
"""


class Results:
    """Raw lines by model; of two lines of one measurement the later values count."""

    def __init__(self, folder):
        lines = [json.loads(line) for path in sorted(folder.glob("study_*.jsonl")) for line in path.read_text().splitlines()]
        names = [name for name in NAMES if any(line["model"] == name for line in lines)]
        self.models = names + sorted({line["model"] for line in lines} - set(names))
        judged = [line for line in lines if line["study"] == "judge"]
        self.judged, self.mixed = ({(line["model"], line["context"], line["kind"]): line for line in judged if (line["calibrated"] == "mixed") == mixed}
                                   for mixed in (False, True))
        self.engines = {}
        for line in lines:
            if line["study"] == "serve":
                key = (line["model"], line["engine"], SERVED.get(line["cache"], line["cache"]), line.get("variant", ""))
                self.engines[key] = self.engines.get(key, {}) | line
        self.served = {(model, cache): line for (model, engine, cache, variant), line in self.engines.items() if engine == "vllm" and not variant}
        self.predicted = {(line["model"], line["cache"]): line["kl"] for line in lines if line["study"] == "predict"}

    def lengths(self, model):
        return sorted({length for name, length, _ in self.judged if name == model})

    def kinds(self, model, length):
        return [kind for kind in kinds.KINDS if (model, length, kind) in self.judged]

    def rows(self, model):
        found = {row["row"] for (name, *_), line in self.judged.items() if name == model for row in line["rows"]}
        return [row for row in ROWS if row in found]

    def row(self, model, length, kind, name):
        return next((row for row in self.judged[model, length, kind]["rows"] if row["row"] == name), None)

    def values(self, model, length, name, key, of=None):
        rows = [self.row(model, length, kind, name) for kind in (of or self.kinds(model, length))]
        return [row[key] for row in rows if row and row.get(key) is not None]

    def common(self, model, length):
        """The kinds of text that all rows of this length have, as at the first length, so that means compare."""
        rows = {kind: {row["row"] for row in self.judged[model, length, kind]["rows"]} for kind in self.kinds(model, length)}
        found, first = [kind for kind in rows if rows[kind] == set.union(*rows.values())], self.lengths(model)[0]
        if length == first:
            return found
        there = self.common(model, first)
        return [kind for kind in found if kind in there] or found

    def mean(self, model, length, name, key):
        values = self.values(model, length, name, key, self.common(model, length))
        return sum(values) / len(values) if values else None


def shown(value, form="{:.3g}"):
    return "" if value is None else form.format(value)


def lines_of(head, rows):
    """A table without the columns that are empty."""
    full = [i for i in range(len(head)) if any(row[i] for row in rows)]
    head, rows = [head[i] for i in full], [[row[i] for i in full] for row in rows]
    return ["| " + " | ".join(head) + " |", "|---|" + "---:|" * (len(head) - 1), *("| " + " | ".join(row) + " |" for row in rows), ""]


def smaller(code_bits):
    return f"{16 / (code_bits + (16 - code_bits) * WINDOWS / CONTEXT):.1f}x"


def short(tokens):
    return f"{tokens // 1024}K" if tokens % 1024 == 0 else f"{tokens:,}"


def quality(found, model):
    lengths = found.lengths(model)
    last = lengths[-1]
    of = {n: ", ".join(kinds.KINDS[kind] for kind in found.common(model, n)) for n in lengths}
    kinds_named = of[lengths[0]] + "".join(f" ({short(n)}: {of[n]})" for n in lengths[1:] if of[n] != of[lengths[0]])
    head = ["cache", "code bits", *(f"KL, {short(n)}" for n in lengths), f"99.9%, {short(last)}", f"PPL ratio, {short(last)}", f"same top, {short(last)}"]
    rows = []
    for name in found.rows(model):
        bits = next(v for n in lengths for v in found.values(model, n, name, "code_bits"))
        tail, same = found.values(model, last, name, "p999", found.common(model, last)), found.mean(model, last, name, "same_top")
        rows.append([ROWS[name], f"{bits:.2f}", *(shown(found.mean(model, n, name, "kl")) for n in lengths), shown(max(tail) if tail else None),
                     shown(found.mean(model, last, name, "ppl_ratio"), "{:.3f}"), shown(same and 100 * same, "{:.1f}%")])
    lines = [line for (name, *_), line in found.judged.items() if name == model]
    cards, calibrated = sorted({line["card"] for line in lines}), sorted({kinds.KINDS[line["calibrated"]] for line in lines})
    windows = sorted({f"{line['windows']['sink']} and {line['windows']['recent']}" for line in lines})
    return [f"Means over {kinds_named}; the 99.9th percentile is that of the worst kind. BF16 windows of {', '.join(windows)}. Calibrated on "
            f"{', '.join(calibrated)}. Computed on: {', '.join(cards)}.", ""] + lines_of(head, rows)


def aim(found, model):
    """The aims at 2.25 bits, over all kinds of text at the longest length."""
    last = found.lengths(model)[-1]
    kls = {kind: row["kl"] for kind in found.kinds(model, last) if (row := found.row(model, last, kind, "bits-2.25"))}
    if not kls:
        return []
    worst, tail = max(kls, key=kls.get), max(found.values(model, last, "bits-2.25", "p999"))
    more = max(found.values(model, last, "bits-4", "p999"), default=0)
    named = f" (most with {kinds.KINDS[worst]}, {kls[worst]:.3g})" if len(kls) > 1 else ""
    return [f"Aims at 2.25 bits and {short(last)}, over all kinds of text: KL at most 0.012, here {sum(kls.values()) / len(kls):.3g}{named}; 99.9th percentile "
            f"at most 0.5, here {tail:.3g}{f' (at 4 bits {more:.3g})' if tail > .5 and more else ''}.", ""]


def by_kind(found, model):
    """All rows at the first length, then ours at the others."""
    made = []
    for length in found.lengths(model):
        named = found.kinds(model, length)
        names = [name for name in found.rows(model) if not made or name in ("fp8", "bits-2.25")]
        if len(named) > 1:
            rows = [[ROWS[name], *(shown((found.row(model, length, kind, name) or {}).get("kl")) for kind in named)] for name in names]
            made += [f"KL at {length:,} tokens by kind of text:", ""] + lines_of(["cache", *(kinds.KINDS[kind] for kind in named)], rows)
    return made


def calibrated_on_all(found, model):
    """2.25 bits calibrated on a fifth of each kind of text, beside what the other tables have."""
    lengths, rows = sorted({length for name, length, _ in found.mixed if name == model}), []
    for length in lengths:
        for named, lines in (("one kind", found.judged), ("all kinds", found.mixed)):
            of = {kind: next(row for row in lines[model, length, kind]["rows"] if row["row"] == "bits-2.25")
                  for kind in kinds.KINDS if (model, length, kind) in lines}
            whole = len(of) == len(kinds.KINDS)
            rows.append([f"{short(length)}, {named}", *(shown((of.get(kind) or {}).get("kl")) for kind in kinds.KINDS),
                         shown(sum(row["kl"] for row in of.values()) / len(of) if whole else None), shown(max(row["p999"] for row in of.values()) if whole else None)])
    return ["KL at 2.25 bits, calibrated on one kind of text as above, and on a fifth of each kind (`--calibrate mixed`):", "",
            *lines_of(["context, calibrated on", *kinds.KINDS.values(), "mean", "99.9%"], rows)] if rows else []


def task(line, name):
    if name not in line:
        return ""
    lost = line.get(f"{name}_lost_won_p")
    return line[name] + (f" ({lost[0]}, {lost[1]}, {f'{lost[2]:.2g}' if lost[2] >= .001 else '<.001'})" if lost else "")


def served(found, model):
    caches = [name for name in ROWS if (model, name) in found.served]
    if not caches:
        return []
    lines = {name: found.served[model, name] for name in caches}
    base = lines.get("bf16", {})
    again = base.get("he_behind_again_lost_won_p")
    noise = f" BF16 16 requests at a time loses {again[0]} and wins {again[1]} of these tasks (p {again[2]:.2g})." if again else ""
    told = [f"Tasks, served by {base.get('versions', 'vllm')}, {base.get('card', '')}. In brackets: lost and won against BF16, and McNemar's exact p.{noise}", ""]
    named = [name for name in table.TASKS if any(name in line for line in lines.values())]
    if not named:
        return []
    rows = [[ROWS[name] + ("*" if "paired_with" in line else ""), *(task(line, one) for one in named)]
            for name, line in lines.items() if any(one in line for one in named)]
    told += lines_of(["cache", *(table.TASKS[name] for name in named)], rows)
    for other in sorted({line["paired_with"] for line in lines.values() if "paired_with" in line}):
        scores = next(line["paired_scores"] for line in lines.values() if line.get("paired_with") == other)
        told += [f"\\* Against {ROWS[other]} in the same run, which solved {', '.join(str(scores[name]) for name in named)}.", ""]
    long = "he_behind_answers"
    ends = [[ROWS[name], *(shown(line[long][key], form) for key, form in (("tokens", "{:.0f}"), ("endless", "{:.1%}"), ("degenerate", "{:.1%}")))]
            for name, line in lines.items() if long in line]
    return told + (["Answers to HumanEval after 6,000 tokens:", ""] + lines_of(["cache", "tokens", "never end", "degenerate"], ends) if ends else [])


def in_engines(found, model):
    """KL of what engines decode, beside what oscar-verify predicts."""
    keys = sorted((key for key in found.engines if key[0] == model), key=lambda key: (list(ENGINES).index(key[1]), list(ROWS).index(key[2]), key[3]))
    rows = []
    for key in keys:
        line, (_, engine, cache, variant) = found.engines[key], key
        other = line["differ_from_one"]
        again = "_again" if variant == "prefix" else ""
        predicted = found.predicted.get((model, cache)) if not variant else None
        length = next((n for n in LENGTHS if f"kl_served_{n}_1" in line), LENGTHS[0])
        named = f"{ENGINES[engine]}, {ROWS[cache]}{VARIANTS[variant]}" + (f" ({length:,} tokens)" if length != LENGTHS[0] else "")
        rows.append([named, *(shown(line.get(f"kl_served_{length}_{n}{again}")) for n in (1, 8, 40)),
                     shown(predicted), "" if other.endswith("of 0") else other, str(line.get("degenerate", ""))])
    versions = sorted({f"{found.engines[key]['versions']}, {found.engines[key]['card']}" for key in keys})
    return [f"In engines: {'; '.join(versions)}.", "",
            *lines_of(["engine, cache", "1 at once", "8", "40", "predicted", "other text", "degenerate"], rows)] if keys else []


def pictures(found, model):
    """{file: SVG}"""
    lengths, made = found.lengths(model), {}
    last, title = lengths[-1], NAMES.get(model, model)
    named = [name for name in found.rows(model) if found.mean(model, last, name, "kl")]
    points = {name: (found.mean(model, last, name, "code_bits"), found.mean(model, last, name, "kl")) for name in named}
    ours = sorted(points[name] for name in named if name.startswith("bits-"))
    series = ({"waterfill": ours} if ours else {}) | {name: [points[name]] for name in named if not name.startswith("bits-")}
    made[f"{model}-bits.svg"] = plots.plot(f"{title}: KL by bits at {last:,} tokens", "code bits", "KL to BF16, nats", series, log_y=True)
    kind = found.kinds(model, last)[0]
    lines = {name: row["by_position"] for name in named if (row := found.row(model, last, kind, name)) and row.get("by_position")}
    if lines:
        chosen = [name for name in ("bits-2.25", "fp8", "turboquant4", "kivi2", "bits-1.5") if name in lines]
        made[f"{model}-position.svg"] = plots.plot(
            f"{title}: KL by position, {kinds.KINDS[kind]}", "position in tokens", "KL to BF16, nats",
            {name: [((a + b) / 2, max(kl, 1e-6)) for a, b, kl in lines[name]] for name in chosen}, log_y=True)
    scores, caches = {}, set()
    for name, code in ROWS.items():
        line = found.served.get((model, name))
        for one in table.TASKS if line and name in points else ():
            if one in line:
                caches.add(name)
                scores.setdefault((table.TASKS[one], name.startswith("bits-")), []).append(
                    (line.get("served_bits", points[name][0]), share_of(line[one])))
    if len(caches) > 1:  # a single one is no plot
        made[f"{model}-tasks.svg"] = plots.plot(f"{title}: tasks solved by bits", "code bits", "share solved",
                                                {f"{'waterfill' if own else 'others'}: {one}": sorted(of) for (one, own), of in scores.items()})
    return made


def share_of(text):
    solved, of = map(int, text.split(" of "))
    return solved / of


def page(found):
    """docs/study.md and {picture: SVG}."""
    text, images = [HEAD], {}
    for model in found.models:
        judged = bool(found.lengths(model))
        made = pictures(found, model) if judged else {}
        images |= made
        text += [f"## {NAMES.get(model, model)}", *(quality(found, model) + by_kind(found, model) + calibrated_on_all(found, model) + aim(found, model) if judged else []), *served(found, model), *in_engines(found, model),
                 *(f"![{file.removesuffix('.svg')}](study/{file})" for file in made), ""]
    return "\n".join(text), images


def speed(cache):
    """Tokens read and written per second by an 8B model whose cache is full (tests/bench/vllm, H100); the mean of its runs."""
    path = ROOT / "tests/bench/results/vllm_h100.jsonl"
    lines = [line for line in map(json.loads, path.read_text().splitlines()) if line.get("job") == "1024:8192:fill" and line["cache"] == cache]
    return f"{sum(line['all_tokens_s'] for line in lines) / len(lines):,.0f}" if lines else ""


def front(found):
    """README's table."""
    models = [model for model in found.models if found.lengths(model)]
    ends = {model: (found.lengths(model)[0], found.lengths(model)[-1]) for model in models}
    head = ["cache", "code bits", "smaller"] + [f"{NAMES.get(m, m)}: KL, {' / '.join(short(n) for n in dict.fromkeys(ends[m]))}" for m in models]
    head += [f"{NAMES.get(m, m)}: KL in vLLM" for m in found.models if m not in models]
    tasks = [(model, one) for model in found.models for one in ("he", "he_behind")
             if share_of(found.served.get((model, "bf16"), {}).get(one, "0 of 1")) > .1]
    head += [f"{NAMES.get(model, model)}: {table.TASKS[one]}" for model, one in tasks] + ["8B, tokens/s"]
    rows = []
    for name, label in ROWS.items():
        bits = [v for m in models for n in ends[m] for v in found.values(m, n, name, "code_bits")]
        if name != "bf16" and not bits:
            continue
        code = bits[0] if bits else 16.0
        kls = [" / ".join(shown(found.mean(m, n, name, "kl")) for n in dict.fromkeys(ends[m])) if name != "bf16" else "0" for m in models]
        scores = [found.served.get((model, name), {}).get(one, "") for model, one in tasks]
        kls += [shown(found.served.get((m, name), {}).get("kl_served_2112_40")) for m in found.models if m not in models]
        rows.append([label, f"{code:.2f}", smaller(code), *(kl.strip(" /") for kl in kls), *scores,
                     speed({"bf16": "bf16", "fp8": "fp8", "bits-2.25": "uniform"}.get(name, "-"))])
    return "\n".join(lines_of(head, rows))


def write(folder, root=ROOT):
    found = Results(folder)
    text, images = page(found)
    (root / "docs/study").mkdir(exist_ok=True)
    for name, svg in images.items():
        (root / "docs/study" / name).write_text(svg)
    (root / "docs/study.md").write_text(text)
    readme = (root / "README.md").read_text()
    (root / "README.md").write_text(re.sub(r"\| cache \|.*\n(\|.*\n)*", lambda _: front(found), readme, count=1))
