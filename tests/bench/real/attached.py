"""attached.py MODEL BUNDLE TEXT [OUT.jsonl]: the 2-bit cache in transformers on a GPU: KL of tokens that come one at a time from what the BF16 cache
gives at the same batch size, with 1, 4 and 40 sequences of 2,112 tokens, the last 64 of which are scored. Prints a line of JSON for each."""
import json
import pathlib
import sys
import time

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "vllm"))
import quality  # noqa: E402
import torch  # noqa: E402
from transformers import AutoModelForCausalLM, AutoTokenizer  # noqa: E402

import oscar_kv  # noqa: E402

TOKENS, SCORED, BATCHES = 2112, 64, (1, 4, 40)


def decoded(model, ids, cache=None):
    """Log-probabilities [B, SCORED, V] of the last tokens, each of which came in a step of its own."""
    out = model(ids[:, :TOKENS - SCORED], past_key_values=cache, use_cache=True, logits_to_keep=1)
    made, cache = [], out.past_key_values
    for at in range(TOKENS - SCORED, TOKENS):
        out = model(ids[:, at:at + 1], past_key_values=cache, use_cache=True)
        made.append(out.logits[:, -1].float().log_softmax(-1))
    return torch.stack(made, dim=1)


@torch.no_grad()
def main():
    name, bundle, text = sys.argv[1:4]
    tokenizer = AutoTokenizer.from_pretrained(name)
    device = "cuda" if torch.cuda.is_available() else "cpu"
    model = AutoModelForCausalLM.from_pretrained(name, dtype=torch.bfloat16).to(device).eval()
    ids = torch.tensor(quality.sequences(tokenizer(pathlib.Path(text).read_text()).input_ids, tokenizer.bos_token_id, TOKENS, max(BATCHES)))
    for batch in BATCHES:
        some, sums, begin = ids[:max(8, batch)].to(device), [], time.perf_counter()
        for part in some.split(batch):
            exact = decoded(model, part)
            oscar_kv.attach(model, bundle)
            found = decoded(model, part, oscar_kv.new_cache(model))
            oscar_kv.detach(model)
            sums.append((exact.exp() * (exact - found)).sum(-1).flatten())
        row = dict(model=pathlib.Path(name).name, engine="transformers", cache=pathlib.Path(bundle).name, requests=batch, steps=sum(map(len, sums)),
                   kl_served=round(float(torch.cat(sums).mean()), 5), seconds=round(time.perf_counter() - begin, 1),
                   gpu=torch.cuda.get_device_name() if device == "cuda" else "none")
        print(json.dumps(row), flush=True)
        if len(sys.argv) > 4:
            with open(sys.argv[4], "a") as out:
                out.write(json.dumps(row) + "\n")


main()
