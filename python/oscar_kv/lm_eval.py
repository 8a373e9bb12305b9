"""python -m oscar_kv.lm_eval --model_args pretrained=DIR,bundle=DIR --tasks ...: lm-evaluation-harness (with its own
command line) with the 2-bit cache of a bundle. The harness's model `hf` computes perplexity and multiple choice
in one forward, which never reads a cache, so no cache quantizer changes those scores. Here such a forward runs in
chunks through the cache."""

import sys
from typing import Any

import torch

from .files.errors import InputError
from .files.exits import ENVIRONMENT_EXIT, ended
from .files.foreign_files import FileName
from .hf.attach import attach, new_cache
from .hf.cache import CACHE_NAME

try:
    from lm_eval.__main__ import cli_evaluate
    from lm_eval.api.registry import register_model
    from lm_eval.models.huggingface import HFLM
except ImportError as error:
    if __name__ != "__main__":
        raise
    print(f"error: lm-evaluation-harness cannot be imported ({error}); install lm_eval", file=sys.stderr)
    sys.exit(ENVIRONMENT_EXIT)

NAME = "oscar-kv"


@register_model(NAME)
class OscarLM(HFLM):
    """Arguments of the harness's model `hf`, and:
    bundle: directory of oscar-fit. checkpoint: as in attach().
    chunk: tokens of a scoring forward. They see each other unquantized and earlier tokens as stored, so 1 equals
    decoding. Chunks that are not short relative to the BF16 window hide errors."""

    def __init__(
        self,
        pretrained: Any,
        bundle: FileName | None = None,
        chunk: int = 4,
        checkpoint: FileName | None = None,
        **options: Any,
    ) -> None:
        if bundle is None:
            raise InputError(f"model {NAME} needs the folder of a bundle; add bundle=DIR to --model_args")
        if not (isinstance(chunk, int) and chunk >= 1):
            raise InputError(f"chunk is {chunk!r}, expected a whole number from 1 on")
        super().__init__(pretrained, **options)
        self.chunk = chunk
        attach(self.model, bundle, checkpoint=checkpoint)

    def _model_call(self, inps: torch.Tensor, attn_mask: Any = None, labels: Any = None) -> torch.Tensor:
        """[B, T, V] logits of inps [B, T]. Padding is on the right and is not visible to scored tokens."""
        cache = new_cache(self.model)
        with torch.no_grad():
            return torch.cat(
                [
                    self.model(part, use_cache=True, **{CACHE_NAME: cache}).logits
                    for part in inps.split(self.chunk, dim=1)
                ],
                dim=1,
            )


def main() -> int:
    if not any(a == "--model" or a.startswith("--model=") for a in sys.argv[1:]):
        sys.argv += ["--model", NAME]
    return ended(cli_evaluate)


if __name__ == "__main__":
    sys.exit(main())
