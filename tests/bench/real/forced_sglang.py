"""SGLang's logit processor of forced.py, which its scheduler calls after each pass, also after graphs."""
from distributions import TAIL
from forced import force
from sglang.srt.sampling.custom_logit_processor import CustomLogitProcessor


class Forced(CustomLogitProcessor):
    """For requests with the parameters of asked(). A pass is a step of the tail by its length, which SGLang sets before the pass: the tokens that a
    request has got lag one pass, and chunks of prompts are sampled too."""

    def __call__(self, logits, custom_param_list=None):
        for row, given in enumerate(custom_param_list):
            force(given, given["__req__"].kv.kv_committed_len - given["prompt"], logits[row])
        return logits


def asked(given):
    """Sampling parameters of one text."""
    return {"max_new_tokens": TAIL + 1, "temperature": 0, "ignore_eos": True, "custom_params": given}


def ask(engine, prompts, wanted):
    made = engine.generate(input_ids=prompts, custom_logit_processor=Forced.to_str(), sampling_params=[asked(one) for one in wanted])
    return [one["output_ids"] for one in made]
