"""The twin of forced.py for SGLang: a custom logit processor, which SGLang calls in its scheduler's process after each pass, also after graphs.
What it finds goes to a file, because it runs in that process."""
import json
import os
import pathlib

import torch
from distributions import TAIL, Compared, Recorded
from sglang.srt.sampling.custom_logit_processor import CustomLogitProcessor

SINKS = {}  # of the runs that go on in this process, by the file that each writes, or the folder that it records


class Forced(CustomLogitProcessor):
    """For requests with the parameters of asked(). A pass is a step of the tail by its length, which SGLang sets before the pass: the tokens that a
    request has got lag one pass, and chunks of prompts are sampled too."""

    def __call__(self, logits, custom_param_list=None):
        for row, given in enumerate(custom_param_list):
            step = given["__req__"].kv.kv_committed_len - given["prompt"]
            if 0 < step <= TAIL:
                keep(given, step - 1, logits[row])
            if step >= 0:
                token = given["tail"][step] if step < TAIL else 0
                logits[row] = -torch.inf
                logits[row, token] = 0.0
        return logits


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


def asked(text, ids, steps, folder, into):
    """Sampling parameters of one text."""
    return {"max_new_tokens": TAIL + 1, "temperature": 0, "ignore_eos": True,
            "custom_params": {"text": text, "prompt": len(ids) - TAIL, "tail": ids[-TAIL:], "steps": steps, "folder": str(folder),
                              "into": str(into) if into else ""}}


def run(engine, texts, chosen, together, folder, into=None):
    """Decodes the tails of the chosen texts, `together` at a time, and returns what was found in `into`. Without `into` it records a BF16 cache."""
    if into is not None:
        into.unlink(missing_ok=True)
    for begin in range(0, len(chosen), together):
        part = chosen[begin:begin + together]
        made = engine.generate(input_ids=[texts[i][:-TAIL] for i in part], custom_logit_processor=Forced.to_str(),
                               sampling_params=[asked(i, texts[i], len(chosen) * TAIL, folder, into) for i in part])
        for i, one in zip(part, made):
            if one["output_ids"][:TAIL] != texts[i][-TAIL:]:
                raise RuntimeError(f"text {i}: SGLang decoded {one['output_ids'][:4]} ..., expected {texts[i][-TAIL:][:4]} ...")
    if into is not None and not into.exists():
        raise RuntimeError(f"{into}: SGLang did not score {len(chosen) * TAIL} steps; see its log for requests that began anew")
    return json.loads(into.read_text()) if into else None
