"""Texts that an engine decodes token by token. A logits processor of the engine (forced_vllm.py, forced_sglang.py) keeps the distribution of each step,
and then leaves only the text's own next token, so that every token but the prompt's goes through the decode kernels, beside as many requests as are
asked for.

Text i is prompt + tail. Step 0 belongs to the prompt's last token; steps 1 to N, which are scored, to the tail's N tokens. Processors run in the processes
of an engine's GPUs. So a request carries what they need, and what they find goes to files."""
import json
import os
import pathlib

import torch
from distributions import TAIL, Compared, Recorded

SINKS = {}  # of the runs that go on in this process, by the file that each writes, or the folder that it records


def wanted(text, ids, steps, folder, into):
    """What a processor needs to know of a request. steps: of the whole run. into: the file for what is found, or nothing where a BF16 cache records."""
    return {"text": text, "prompt": len(ids) - TAIL, "tail": ids[-TAIL:], "steps": steps, "folder": str(folder), "into": str(into) if into else ""}


def force(given, step, row):
    """Keeps the distribution of a step that is scored, and then leaves one token in `row`, the logits [vocabulary]. Steps before 0 are parts of a prompt."""
    if 0 < step <= TAIL:
        keep(given, step - 1, row)
    if step >= 0:
        row.fill_(-torch.inf)
        row[given["tail"][step] if step < TAIL else 0] = 0.0


def keep(given, step, logits):
    name = given["into"] or given["folder"]
    if name not in SINKS:
        SINKS[name] = Compared(given["folder"]) if given["into"] else Recorded(given["folder"])
    sink = SINKS[name]
    sink(given["text"], step, logits)
    if given["into"] and len(sink.kl) == given["steps"]:
        part = pathlib.Path(f"{given['into']}.{os.getpid()}")  # each GPU's process writes what it found
        part.write_text(json.dumps(sink.found()))
        part.rename(given["into"])
        del SINKS[name]


def run(ask, texts, chosen, together, folder, into=None):
    """Decodes the tails of the chosen texts, `together` at a time, and returns what was found in `into`. Without `into` it records a BF16 cache.
    ask(prompts, wanted() of each): the tokens that the engine decodes."""
    if into is not None:
        into.unlink(missing_ok=True)
    for begin in range(0, len(chosen), together):
        part = chosen[begin:begin + together]
        made = ask([texts[i][:-TAIL] for i in part], [wanted(i, texts[i], len(chosen) * TAIL, folder, into) for i in part])
        for i, tokens in zip(part, made):
            if list(tokens[:TAIL]) != texts[i][-TAIL:]:
                raise RuntimeError(f"text {i}: the engine decoded {list(tokens[:4])} ..., expected {texts[i][-TAIL:][:4]} ...")
    if into is not None and not into.exists():
        raise RuntimeError(f"{into}: the engine did not score {len(chosen) * TAIL} steps; see its log for requests that began anew")
    return json.loads(into.read_text()) if into else None
