"""Log-probabilities of texts that a running vLLM decodes token by token. A logits processor keeps the distribution of each step, and then leaves
only the text's own next token, so that every token but the prompt's goes through the decode kernels, beside as many requests as are asked for.

Text i is prompt + tail. Step 0 belongs to the prompt's last token; steps 1 to N, which are scored, to the tail's N tokens."""
import torch
from distributions import TAIL, Compared, Recorded  # noqa: F401
from vllm import SamplingParams
from vllm.v1.worker.gpu.sample.logits_processor import LogitsProcessor

TEXTS: list[list[int]] = []  # of this process
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
