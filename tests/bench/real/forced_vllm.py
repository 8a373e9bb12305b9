"""vLLM's logits processor of forced.py."""
from distributions import TAIL
from forced import force
from vllm import SamplingParams
from vllm.v1.worker.gpu.sample.logits_processor import LogitsProcessor


class Forced(LogitsProcessor):
    """For requests with extra_args["forced"]. One row of logits a request, so without speculation."""

    def __init__(self, config, states):
        self.given = {}  # by the engine's slot

    def add_request(self, slot, params):
        self.given[slot] = (params.extra_args or {}).get("forced")
        return self.given[slot] is not None

    def apply(self, logits, context):
        for row, (slot, seen) in enumerate(zip(context.idx_mapping_np.tolist(), context.seq_lens_upper_bound_np.tolist())):
            given = self.given.get(slot)
            if given is not None:
                force(given, seen - given["prompt"], logits[row])
        return logits


def ask(llm, prompts, wanted):
    limits = [SamplingParams(max_tokens=TAIL + 1, temperature=0, ignore_eos=True, detokenize=False, extra_args={"forced": one}) for one in wanted]
    made = llm.generate([{"prompt_token_ids": prompt} for prompt in prompts], limits, use_tqdm=False)
    return [list(one.outputs[0].token_ids) for one in made]
