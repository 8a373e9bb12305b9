"""Distributions that an engine decodes, written by its BF16 cache and compared with those of another cache. Text i is prompt + tail: the tail's TAIL
tokens are scored. Needs torch alone."""
import os
import pathlib

import torch

TAIL = 64


class Recorded:
    """The BF16 engine's log-probabilities, a file of FP32 [TAIL, vocabulary] a text."""

    def __init__(self, folder):
        self.folder, self.rows = pathlib.Path(folder), {}

    def __call__(self, text, step, logits):
        rows = self.rows.setdefault(text, [])
        assert step == len(rows), (text, step, len(rows))
        rows.append(logits.float().log_softmax(-1))
        if len(rows) == TAIL:
            part = self.folder / f"{text}.{os.getpid()}"  # each GPU's process writes it
            torch.save(torch.stack(rows).cpu(), part)
            part.rename(self.folder / f"{text}.pt")
            del self.rows[text]


class Compared:
    """KL in nats of every step from the recorded distribution, and whether the most likely token is the same."""

    def __init__(self, folder):
        self.folder, self.base, self.kl, self.same, self.texts, self.seen = pathlib.Path(folder), {}, [], [], [], set()

    def __call__(self, text, step, logits):
        if (text, step) in self.seen:  # of a request that was preempted
            return
        self.seen.add((text, step))
        if text not in self.base:
            self.base[text] = torch.load(self.folder / f"{text}.pt").to(logits.device)
        base, now = self.base[text][step], logits.float().log_softmax(-1)
        self.kl.append((base.exp() * (base - now)).sum())
        self.same.append(base.argmax() == now.argmax())
        self.texts.append(text)

    def found(self):
        kl, texts = torch.stack(self.kl).double().cpu(), torch.tensor(self.texts)
        by_text = [round(kl[texts == text].mean().item(), 6) for text in sorted(set(self.texts))]
        kl = kl.sort().values
        return {"kl_served": kl.mean().item(), "kl_p99": kl[int(len(kl) * .99)].item(), "same_top": torch.stack(self.same).float().mean().item(),
                "steps": len(kl), "kl_by_text": by_text}
