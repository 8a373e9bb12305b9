"""The tables of docs/transformers.md from the lines of python_caches.py, and which goals hold.

  python tests/bench/python_caches_table.py caches.jsonl [more.jsonl]"""
import json
import pathlib
import sys

BF16 = "DynamicCache", "StaticCache"
OURS = "uniform", "blocks"


def measurements(texts):
    """[fields] of what was measured; of two of the same cache, batch and context the later one. Errors (out of memory) are left out.
    ValueError where they are of different GPUs."""
    found, devices = {}, set()
    for line in (json.loads(row) for text in texts for row in text.splitlines() if row.startswith("{")):
        if line["what"] == "machine":
            devices.add(line["device"])
        elif line["what"] == "decode" and "tokens_per_s" in line:
            found[line["cache"], line["batch"], line["context"]] = line
    if len(devices) > 1:
        raise ValueError(f"the files are of different GPUs: {', '.join(sorted(devices))}")
    return list(found.values())


FIELDS = {"tokens_per_s": "tokens per second", "cache_mib": "cache, MiB", "peak_over_weights_gib": "peak of the memory over the weights, GiB"}


def table(lines, field):
    """One number of every measurement: rows are contexts and batches, columns caches."""
    caches = list(dict.fromkeys(x["cache"] for x in lines))
    cells = {(x["context"], x["batch"], x["cache"]): x[field] for x in lines}
    yield "| context | batch | " + " | ".join(caches) + " |"
    yield "|" + "---:|" * (2 + len(caches))
    for context, batch in sorted({key[:2] for key in cells}, key=lambda key: (key[1] > 1, key)):
        found = (cells.get((context, batch, cache)) for cache in caches)
        yield f"| {context:,} | {batch} | " + " | ".join("" if x is None else f"{round(x) if x >= 100 else x:,}" for x in found) + " |"


def fastest(lines, names):
    return max((x for x in lines if x["cache"].startswith(names)), key=lambda x: x["tokens_per_s"])


def goals(lines):
    """Sentences: name, what was measured, whether it holds."""
    longest = max(x["context"] for x in lines)
    alone = [x for x in lines if x["batch"] == 1 and x["context"] == longest]
    raw, our = fastest(alone, BF16), fastest(alone, OURS)
    memory = raw["cache_mib"] / max(x["cache_mib"] for x in alone if x["cache"].startswith(OURS))
    yield goal(f"BF16 cache over ours, {longest:,} tokens", memory, 6)
    yield goal(f"{our['cache']} over {raw['cache']}, batch 1, {longest:,} tokens", our["tokens_per_s"] / raw["tokens_per_s"], 1.4)
    for context in sorted({x["context"] for x in lines if x["batch"] > 1}):
        many = [x for x in lines if x["context"] == context]
        raw, our = fastest(many, BF16), fastest(many, OURS)
        yield goal(f"{our['cache']} at batch {our['batch']} over {raw['cache']} at batch {raw['batch']}, {context:,} tokens, same GPU",
                   our["tokens_per_s"] / raw["tokens_per_s"], 4)


def goal(name, found, asked):
    return f"{name}: {found:.2f} x, asked {asked}: {'holds' if found >= asked else 'MISSED'}"


if __name__ == "__main__":
    LINES = measurements(pathlib.Path(name).read_text() for name in sys.argv[1:])
    for NAME, MEANING in FIELDS.items():
        print(MEANING, *table(LINES, NAME), "", sep="\n")
    print(*goals(LINES), sep="\n")
