"""The table of docs/vllm.md from lines of throughput.py, and which goals hold.

  table.py LINES.jsonl [MORE.jsonl]                     the table in Markdown, then ratios
  table.py LINES.jsonl --missing CACHE JOB ...          the jobs without a line, for everything.sh
  table.py LINES.jsonl --failed CACHE CODE TEXT JOB ... lines that say that they failed"""
import json
import pathlib
import sys

NAMES = {"bf16": "BF16", "fp8": "FP8", "uniform": "`uniform`", "blocks": "blocks 4-2-1-1", "turboquant_3bit_nc": "TurboQuant, 3 bits",
         "turboquant_4bit_nc": "TurboQuant, 4 bits"}
ROWS = [("prompt of 8,192 tokens, s", "8192:64:1", "prompts_s"), ("prompt of 32,768 in four chunks, s", "32768:64:1", "prompts_s"),
        ("prompt of 100,000, s", "100000:64:1", "prompts_s"), ("16 prompts of 8,192 and 128 tokens each, s", "8192:128:16", "all_s"),
        ("decode tokens/s, 8,192 x 1", "8192:64:1", "decode_tokens_s"), ("decode tokens/s, 32,768 x 1", "32768:64:1", "decode_tokens_s"),
        ("decode tokens/s, 100,000 x 1", "100000:64:1", "decode_tokens_s"), ("decode tokens/s, 8,192 x 16", "8192:64:16", "decode_tokens_s"),
        ("decode tokens/s, 8,192 x 40", "8192:64:40", "decode_tokens_s"), ("full cache, 8K in, 1K out: tokens/s", "8192:1024:fill", "all_tokens_s"),
        ("full cache, 1K in, 8K out: tokens/s", "1024:8192:fill", "all_tokens_s"), ("tokens that fit", None, "capacity")]
# (row, cache beside it, least ratio of `uniform`, or largest for seconds)
GOALS = [("prompt of 8,192 tokens, s", "bf16", 1.07), ("prompt of 32,768 in four chunks, s", "bf16", 1.14), ("prompt of 100,000, s", "bf16", 1.15),
         ("decode tokens/s, 8,192 x 1", "bf16", 1.0), ("decode tokens/s, 32,768 x 1", "bf16", 1.12), ("decode tokens/s, 100,000 x 1", "bf16", 1.45),
         ("decode tokens/s, 8,192 x 16", "bf16", 1.6), ("decode tokens/s, 8,192 x 40", "bf16", 2.0),
         ("full cache, 8K in, 1K out: tokens/s", "bf16", 2.0), ("full cache, 8K in, 1K out: tokens/s", "fp8", 1.4),
         ("full cache, 1K in, 8K out: tokens/s", "bf16", 3.0), ("full cache, 1K in, 8K out: tokens/s", "fp8", 1.8)]


def lines_of(texts):
    return [json.loads(row) for text in texts for row in text.splitlines() if row.startswith("{")]


def job_of(line):
    return line.get("job") or (f"{line['input']}:{line['output']}:{line['requests']}" if "input" in line else None)


def measured(lines):
    """{(cache, job or None, field): (value, requests)}; of two lines the later one. ValueError for two kinds of GPU."""
    gpus = {line["gpu"] for line in lines if "gpu" in line}
    if len(gpus) > 1:
        raise ValueError(f"the lines are of different GPUs: {', '.join(sorted(gpus))}")
    found = {}
    for line in lines:
        for field in ("prompts_s", "all_s", "decode_tokens_s", "all_tokens_s", "capacity"):
            if field in line:
                found[line["cache"], job_of(line), field] = line[field], line.get("requests")
    return found


def missing(lines, cache, jobs):
    there = {job_of(line) for line in lines if line.get("cache") == cache}
    return [job for job in jobs if job not in there]


def shown(value, requests, job):
    text = f"{value:,.0f}" if value >= 1000 else f"{value:.1f}" if value >= 100 else f"{value:.3f}".rstrip("0").rstrip(".")
    return f"{text} ({requests} requests)" if job and job.endswith("fill") else text


def table(found):
    caches = [cache for cache in NAMES if any(key[0] == cache for key in found)]
    yield "| | " + " | ".join(NAMES[cache] for cache in caches) + " |"
    yield "|---|" + "---:|" * len(caches)
    for title, job, field in ROWS:
        cells = [found.get((cache, job, field)) for cache in caches]
        if any(cells):
            yield f"| {title} | " + " | ".join("" if cell is None else shown(*cell, job) for cell in cells) + " |"


def ratios(found):
    """`uniform` and blocks over another cache, and whether the goal holds."""
    places = {title: (job, field) for title, job, field in ROWS}
    for title, beside, limit in GOALS:
        values = {cache: found.get((cache, *places[title])) for cache in ("uniform", "blocks", beside)}
        if values["uniform"] is None or values[beside] is None:
            continue
        ratio = {cache: values[cache][0] / values[beside][0] for cache in ("uniform", "blocks") if values[cache]}
        holds = ratio["uniform"] <= limit if title.endswith(", s") else ratio["uniform"] >= limit
        blocks = f", blocks {ratio['blocks']:.2f}" if "blocks" in ratio else ""
        yield f"{title}, over {NAMES[beside]}: uniform {ratio['uniform']:.2f}{blocks}, asked {limit}: {'holds' if holds else 'MISSED'}"


def main(arguments):
    option = next((i for i, text in enumerate(arguments) if text.startswith("--")), len(arguments))
    lines, rest = lines_of(pathlib.Path(name).read_text(encoding="utf-8") for name in arguments[:option]), arguments[option:]
    if rest[:1] == ["--missing"]:
        print(*missing(lines, rest[1], rest[2:]))
    elif rest[:1] == ["--failed"]:
        for job in missing(lines, rest[1], rest[4:]):
            print(json.dumps({"cache": rest[1], "job": job, "failed": int(rest[2]), "error": rest[3]}))
    else:
        found = measured(lines)
        print(*table(found), "", *ratios(found), sep="\n")


if __name__ == "__main__":
    main(sys.argv[1:])
