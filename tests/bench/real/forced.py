"""Log-probabilities of texts that a running vLLM decodes token by token. A logits processor keeps the distribution of each step, and then leaves
only the text's own next token, so that every token but the prompt's goes through the decode kernels, beside as many requests as are asked for.

Text i is prompt + tail. Step 0 belongs to the prompt's last token; steps 1 to N, which are scored, to the tail's N tokens."""
import pathlib

import torch
from vllm import SamplingParams
from vllm.v1.worker.gpu.sample.logits_processor import LogitsProcessor

TEXTS: list[list[int]] = []  # of this process
TAIL = 64
SINK = None                  # (text, step, logits [vocabulary]) of the pass that runs


class Forced(LogitsProcessor):
    """For requests with extra_args["text"]: the index of their text. One row of logits a request, so without speculation."""

    def __init__(self, config, states):
        self.texts = {}  # by the engine's slot

    def add_request(self, slot, params):
        self.texts[slot] = (params.extra_args or {}).get("text")
        return self.texts[slot] is not None

    def apply(self, logits, context):
        for row, (slot, seen) in enumerate(zip(context.idx_mapping_np.tolist(), context.seq_lens_upper_bound_np.tolist())):
            text = self.texts.get(slot)
            step = seen - (len(TEXTS[text]) - TAIL) if text is not None else -1
            if 0 < step <= TAIL:
                SINK(text, step - 1, logits[row])
            if step >= 0:
                token = TEXTS[text][seen] if seen < len(TEXTS[text]) else 0
                logits[row] = -torch.inf
                logits[row, token] = 0.0
        return logits


def run(llm, texts, together, sink):
    """Decodes the tails of `texts` (indices), `together` at a time."""
    global SINK
    SINK = sink
    for begin in range(0, len(texts), together):
        part = texts[begin:begin + together]
        limits = [SamplingParams(max_tokens=TAIL + 1, temperature=0, ignore_eos=True, detokenize=False, extra_args={"text": i}) for i in part]
        llm.generate([{"prompt_token_ids": TEXTS[i][:len(TEXTS[i]) - TAIL]} for i in part], limits, use_tqdm=False)


class Recorded:
    """The BF16 engine's log-probabilities, a file of FP32 [TAIL, vocabulary] a text."""

    def __init__(self, folder):
        self.folder, self.rows = pathlib.Path(folder), {}

    def __call__(self, text, step, logits):
        rows = self.rows.setdefault(text, [])
        assert step == len(rows), (text, step, len(rows))
        rows.append(logits.float().log_softmax(-1))
        if len(rows) == TAIL:
            torch.save(torch.stack(rows).cpu(), self.folder / f"{text}.part")
            (self.folder / f"{text}.part").rename(self.folder / f"{text}.pt")
            del self.rows[text]


class Compared:
    """KL in nats of every step from the recorded distribution, and whether the most likely token is the same."""

    def __init__(self, folder):
        self.folder, self.base, self.kl, self.same, self.texts = pathlib.Path(folder), {}, [], [], []

    def __call__(self, text, step, logits):
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
