"""python -m oscar_kv MODEL BUNDLE: generates with the 2-bit cache of a bundle and again with the BF16 cache, and
reports the size of both. It checks on any machine that a bundle and a model fit together; oscar-verify measures
the quality."""

import argparse
import functools
import sys
from collections.abc import Callable, Sequence
from typing import Any

from . import InputError, attach, detach, load_bundle, new_cache
from .files.errors import EnvironmentFault, NumericalError, quoted
from .files.exits import Parser, ended
from .files.fingerprint import checkpoint_fingerprint
from .files.foreign_files import is_folder, read_file
from .format.bundle import check_fingerprint

MOST_PROMPT = 64 << 20  # bytes


def parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = Parser(prog="python -m oscar_kv", description=__doc__.split("\n\n")[0])
    parser.add_argument("model", help="directory or org/name of the checkpoint, as transformers takes it")
    parser.add_argument("bundle", help="bundle of oscar-fit for this checkpoint")
    text = parser.add_mutually_exclusive_group(required=True)
    text.add_argument("--prompt", metavar="TEXT")
    text.add_argument("--prompt-file", metavar="FILE", help="UTF-8 text")
    parser.add_argument("--prompt-tokens", type=int, default=1024, metavar="N", help="the first N of it (default 1024)")
    parser.add_argument(
        "--max-new-tokens", type=int, default=32, metavar="N", help="to generate, greedily (default 32)"
    )
    parser.add_argument("--device", default="cpu", help="of the model (default cpu; the reference was not run on GPUs)")
    options = parser.parse_args(arguments)
    for name in ("prompt_tokens", "max_new_tokens"):
        if getattr(options, name) < 1:
            parser.error(f"--{name.replace('_', '-')} is {getattr(options, name)}, expected at least 1")
    try:
        (options.prompt or "").encode()
    except UnicodeEncodeError:
        parser.error("--prompt is not UTF-8; pass text in UTF-8")
    try:
        import torch

        torch.device(options.device)
    except RuntimeError:
        parser.error(f"--device {quoted(options.device)} is no device of torch, expected cpu, cuda or cuda:N")
    return options


def check_device(name: str) -> None:
    import torch

    device = torch.device(name)
    if device.type == "cuda" and (not torch.cuda.is_available() or (device.index or 0) >= torch.cuda.device_count()):
        raise EnvironmentFault(
            f"--device {name}: torch finds {torch.cuda.device_count()} GPUs; choose cpu, or a machine with a GPU"
        )
    if device.type not in ("cpu", "cuda"):
        raise EnvironmentFault(f"--device {name}: oscar-kv was run on cpu and cuda only; choose one of them")


def prompt_text(options: argparse.Namespace) -> str:
    if options.prompt is not None:
        return options.prompt
    try:
        return read_file(options.prompt_file, MOST_PROMPT).decode("utf-8-sig")  # a byte order mark is no text
    except UnicodeDecodeError:
        raise InputError(f"{options.prompt_file}: cannot be read as text; pass a file in UTF-8") from None


def of_transformers(name: str, load: Callable[[], Any]) -> Any:
    """Calls load() of transformers, which may raise any exception for a damaged checkpoint."""
    try:
        return load()
    except (MemoryError, NumericalError):
        raise
    except Exception as error:
        first = str(error).split("\n")[0]
        raise InputError(f"{name}: transformers cannot load it ({type(error).__name__}: {first})") from error


def bf16_bytes(model: Any, tokens: int) -> int:
    """For the layers in the 2-bit cache."""
    from .hf.attach import geometry, kept_layers

    layers, kv_heads, head_dim = geometry(model)
    layers -= len(kept_layers(model.config.get_text_config(decoder=True)))
    return 2 * 2 * layers * kv_heads * head_dim * tokens


def shown(text: str) -> str:
    """Generated text for a terminal: escapes control characters except line feeds."""
    return "".join(c if c.isprintable() or c == "\n" else c.encode("unicode_escape").decode() for c in text)


def tell(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def run(options: argparse.Namespace) -> None:
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer
    from transformers.utils import logging

    logging.set_verbosity_error()
    logging.disable_progress_bar()
    check_device(options.device)
    text, bundle = prompt_text(options), load_bundle(options.bundle)
    if is_folder(options.model):
        # Damaged and other checkpoints give a clear error before transformers opens them.
        check_fingerprint(bundle, checkpoint_fingerprint(options.model))
    tokenizer = of_transformers(options.model, lambda: AutoTokenizer.from_pretrained(options.model))
    loaded = functools.partial(AutoModelForCausalLM.from_pretrained, options.model, dtype=torch.bfloat16)
    tell(f"reading {quoted(options.model)}")
    model = of_transformers(options.model, loaded)
    model = model.to(options.device).eval()
    ids = tokenizer(text, return_tensors="pt").input_ids[:, : options.prompt_tokens].to(model.device)
    if ids.shape[1] == 0:
        raise InputError("the prompt has no tokens; pass a longer one")
    greedy = dict(
        do_sample=False,
        max_new_tokens=options.max_new_tokens,
        attention_mask=torch.ones_like(ids),
        pad_token_id=tokenizer.pad_token_id or tokenizer.eos_token_id or 0,
    )
    tell(f"{ids.shape[1]:,} tokens of prompt; generating {options.max_new_tokens} with the BF16 cache")
    base = model.generate(ids, **greedy)[0, ids.shape[1] :].tolist()
    attach(model, bundle)
    cache = new_cache(model)
    tell(f"generating {options.max_new_tokens} with the 2-bit cache")
    answer = model.generate(ids, past_key_values=cache, **greedy)[0, ids.shape[1] :].tolist()
    detach(model)
    held, full = cache.nbytes, bf16_bytes(model, cache.get_seq_length())
    same = next((i for i, (a, b) in enumerate(zip(answer, base)) if a != b), min(len(answer), len(base)))
    for name, made in (("BF16", base), ("2-bit", answer)):
        print(f"with the {name} cache: {shown(tokenizer.decode(made))}")
    print(
        f"KV cache of {cache.get_seq_length():,} tokens: {held:,} bytes; the BF16 cache has {full:,} bytes, "
        f"{full / held:.2f} times the size"
    )
    print(f"the first {same} of {len(answer)} generated tokens are those of the BF16 cache")


def main(arguments: Sequence[str] | None = None) -> int:
    options = parse(arguments)
    return ended(lambda: run(options))


if __name__ == "__main__":
    sys.exit(main())
