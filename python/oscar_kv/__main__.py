"""python -m oscar_kv MODEL BUNDLE: generates with the 2-bit cache of a bundle, and again with the BF16 cache, and says what
both hold. It shows on any machine that a bundle and a model go together; oscar-verify measures how well."""
import argparse
import pathlib
import sys

from . import InputError, attach, detach, new_cache
from .errors import escaped

INPUT_EXIT = 3  # as the toolchain's commands have it


class Parser(argparse.ArgumentParser):
    def error(self, message):
        super().error(escaped(message))


def parse(arguments):
    parser = Parser(prog="python -m oscar_kv", description=__doc__.split("\n\n")[0])
    parser.add_argument("model", help="directory or org/name of the checkpoint, as transformers takes it")
    parser.add_argument("bundle", help="bundle of oscar-fit for this checkpoint")
    text = parser.add_mutually_exclusive_group(required=True)
    text.add_argument("--prompt", metavar="TEXT")
    text.add_argument("--prompt-file", metavar="FILE", help="UTF-8 text")
    parser.add_argument("--prompt-tokens", type=int, default=1024, metavar="N", help="the first N of it (default 1024)")
    parser.add_argument("--max-new-tokens", type=int, default=32, metavar="N", help="to generate, greedily (default 32)")
    parser.add_argument("--device", default="cpu", help="of the model (default cpu; the reference was not run on GPUs)")
    options = parser.parse_args(arguments)
    for name in ("prompt_tokens", "max_new_tokens"):
        if getattr(options, name) < 1:
            parser.error(f"--{name.replace('_', '-')} is {getattr(options, name)}, expected at least 1")
    return options


def prompt_ids(options, model):
    """[1, T] token ids."""
    from transformers import AutoTokenizer
    text = options.prompt
    if text is None:
        try:
            text = pathlib.Path(options.prompt_file).read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError) as error:
            raise InputError(f"{options.prompt_file}: cannot be read as text ({error}); pass a file in UTF-8") from error
    tokenizer = AutoTokenizer.from_pretrained(options.model)
    ids = tokenizer(text, return_tensors="pt").input_ids[:, :options.prompt_tokens]
    if ids.shape[1] == 0:
        raise InputError("the prompt has no tokens; pass a longer one")
    return ids.to(model.device), tokenizer


def bf16_bytes(model, tokens):
    """Of the layers that the 2-bit cache holds."""
    from .transformers_attach import geometry, kept_layers
    layers, kv_heads, head_dim = geometry(model)
    layers -= len(kept_layers(model.config.get_text_config(decoder=True)))
    return 2 * 2 * layers * kv_heads * head_dim * tokens


def shown(text):
    """Generated text on a terminal: control characters but line feeds as escapes."""
    return "".join(c if c.isprintable() or c == "\n" else c.encode("unicode_escape").decode() for c in text)


def run(options):
    import torch
    from transformers import AutoModelForCausalLM
    from transformers.utils import logging
    logging.set_verbosity_error()
    logging.disable_progress_bar()
    model = AutoModelForCausalLM.from_pretrained(options.model, dtype=torch.bfloat16).to(options.device).eval()
    ids, tokenizer = prompt_ids(options, model)
    greedy = dict(do_sample=False, max_new_tokens=options.max_new_tokens, attention_mask=torch.ones_like(ids),
                  pad_token_id=tokenizer.pad_token_id or tokenizer.eos_token_id or 0)
    base = model.generate(ids, **greedy)[0, ids.shape[1]:].tolist()
    attach(model, options.bundle)
    cache = new_cache(model)
    answer = model.generate(ids, past_key_values=cache, **greedy)[0, ids.shape[1]:].tolist()
    detach(model)
    held, full = cache.allocated_bytes(), bf16_bytes(model, cache.get_seq_length())
    same = next((i for i, (a, b) in enumerate(zip(answer, base)) if a != b), min(len(answer), len(base)))
    print(shown(tokenizer.decode(answer)))
    print(f"KV cache of {cache.get_seq_length():,} tokens: {held:,} bytes, {full:,} in BF16 ({full / held:.2f} times as many)")
    print(f"the first {same} of {len(answer)} generated tokens are those of the BF16 cache")


def main(arguments=None):
    options = parse(arguments)
    try:
        run(options)
    except InputError as error:
        print(f"error: {escaped(error)}", file=sys.stderr)
        return INPUT_EXIT
    except (OSError, ValueError) as error:  # of transformers: no such model, or one that it cannot read
        print(escaped(f"error: {options.model}: transformers cannot load it ({error})"), file=sys.stderr)
        return INPUT_EXIT
    return 0


if __name__ == "__main__":
    sys.exit(main())
