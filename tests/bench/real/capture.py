"""capture.py MODEL TEXT OUT.safetensors [TOKENS]: the rows of a real model that decode_rows.py reads: keys and values [n, Hkv, d] of all layers after
RoPE, and queries [m, Hq, d] of the last 16 tokens, in BF16, over the first TOKENS (2,048) of a text."""
import pathlib
import sys

import torch
from safetensors.torch import save_file
from transformers import AutoModelForCausalLM, AutoTokenizer
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

QUERIES = 16


def main():
    model, text, out = sys.argv[1:4]
    device, found = "cuda" if torch.cuda.is_available() else "cpu", {}
    whole = ALL_ATTENTION_FUNCTIONS["sdpa"]

    def captured(module, query, key, value, *given, **named):
        for name, rows in (("q", query[:, :, -QUERIES:]), ("k", key), ("v", value)):
            found[f"{module.layer_idx}.{name}"] = rows[0].transpose(0, 1).bfloat16().contiguous().cpu()
        return whole(module, query, key, value, *given, **named)

    ALL_ATTENTION_FUNCTIONS.register("captured", captured)
    ids = AutoTokenizer.from_pretrained(model)(pathlib.Path(text).read_text()[:40_000], return_tensors="pt").input_ids
    loaded = AutoModelForCausalLM.from_pretrained(model, dtype=torch.bfloat16, attn_implementation="captured").to(device).eval()
    with torch.no_grad():
        loaded(ids[:, :int((sys.argv[4:] or [2048])[0])].to(device), use_cache=False, logits_to_keep=1)
    save_file(found, out)


if __name__ == "__main__":
    main()
