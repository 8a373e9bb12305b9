"""KL to the BF16 cache, token by token, of what a user of transformers can pick: QuantizedCache of optimum-quanto and HQQ, and bundles
through attach(). One forward takes the first tokens, then each token is fed alone. One line of JSON for each cache.

  python tests/bench/python_quality.py MODEL TEXT BUNDLE... [--context 1024] [--sequences 4] [--device cuda] [--backends quanto,hqq]"""
import argparse
import json
import pathlib
import sys

import torch

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2] / "python"))

import oscar_kv  # noqa: E402


def logits_of(model, ids, cache, prompt):
    """[B, T - prompt, V] after `prompt` tokens in one forward."""
    parts = [model(ids[:, :prompt], past_key_values=cache, use_cache=True).logits[:, -1:]]
    for i in range(prompt, ids.shape[1]):
        parts.append(model(ids[:, i:i + 1], past_key_values=cache, use_cache=True).logits)
    return torch.cat(parts, dim=1)[:, 1:]


def main():
    from transformers import AutoModelForCausalLM, AutoTokenizer, QuantizedCache
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("model"), parser.add_argument("text"), parser.add_argument("bundles", nargs="*")
    for name, value in (("--context", 1024), ("--sequences", 4), ("--prompt", 64)):
        parser.add_argument(name, type=int, default=value)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--backends", default="quanto,hqq", help="of QuantizedCache; empty for none")
    given = parser.parse_args()
    model = AutoModelForCausalLM.from_pretrained(given.model, dtype=torch.float32).to(given.device).eval()
    text = pathlib.Path(given.text).read_text(encoding="utf-8")
    ids = AutoTokenizer.from_pretrained(given.model)(text, return_tensors="pt").input_ids[0, :given.context * given.sequences]
    ids = ids.view(given.sequences, given.context).to(given.device)

    def report(name, cache):
        try:
            logits = logits_of(model, ids, cache, given.prompt).log_softmax(-1)
        except Exception as error:
            print(json.dumps(dict(cache=name, error=f"{type(error).__name__}: {str(error).splitlines()[0][:200]}")), flush=True)
            return
        kl = (base.exp() * (base - logits)).sum(-1)
        print(json.dumps(dict(cache=name, kl=float(f"{float(kl.mean()):.4g}"), same_top=round(float((base.argmax(-1) == logits.argmax(-1)).float().mean()), 4),
                              context=given.context, sequences=given.sequences)), flush=True)

    with torch.no_grad():
        base = model(ids).logits[:, given.prompt:].log_softmax(-1)
        for backend in filter(None, given.backends.split(",")):
            axis = {"quanto": 0, "hqq": 1}[backend]
            for bits in (4, 2):
                try:
                    cache = QuantizedCache(backend, model.config, nbits=bits, axis_key=axis, axis_value=axis)
                except ImportError as error:
                    print(json.dumps(dict(cache=f"{backend}, {bits} bits", error=str(error).splitlines()[0])))
                    continue
                report(f"QuantizedCache, {backend}, {bits} bits", cache)
        for path in given.bundles:
            oscar_kv.attach(model, path, checkpoint=given.model)
            report(path, oscar_kv.new_cache(model))
            oscar_kv.detach(model)


if __name__ == "__main__":
    main()
