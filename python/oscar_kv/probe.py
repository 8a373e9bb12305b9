"""The probe of a bundle (probe.json): tokens, and log-probabilities of the last of them with the BF16 cache and with
the bundle's. A running vLLM server answers the same question through its decode kernels: a request has the tokens
before, writes the next one, which is prescribed, and gives the log-probability of the one after it."""

import concurrent.futures
import dataclasses
import json
import math
import pathlib
import urllib.error
import urllib.request
from typing import Any

from .files.errors import EnvironmentFault, InputError, quoted
from .files.foreign_files import is_present
from .files.strict_json import Fields, parse_json, read_json
from .format.manifest import PROBE

REQUESTS = (1, 8, 40)  # at once
MOST_PROBE, MOST_ANSWER = 16 << 20, 16 << 20  # bytes
MOST_TOKENS, MOST_TOKEN = 1 << 17, (1 << 31) - 1
# A right cache is as far from BF16 as predicted; a wrong one is off by nats.
TIMES, MORE = 2.0, 0.05


@dataclasses.dataclass
class Probe:
    ids: list[int]
    bf16: list[float]  # log-probabilities of the last tokens, in nats
    bundle: list[float]  # the same, as this bundle's cache was measured to give them

    def places(self) -> range:
        return range(len(self.ids) - len(self.bf16), len(self.ids))

    def apart(self, found: list[float]) -> float:
        """The mean distance from the BF16 cache."""
        return sum(abs(a - b) for a, b in zip(found, self.bf16)) / len(self.bf16)

    def limit(self) -> float:
        return TIMES * self.apart(self.bundle) + MORE


def read_probe(bundle: pathlib.Path) -> Probe:
    path = bundle / PROBE
    if not is_present(path):
        raise InputError(
            f"{path}: is missing; oscar-fit writes it where it has a model and enough prompts to hold "
            "some out, and not with --no-check-rows"
        )
    fields = Fields(read_json(path, MOST_PROBE), path)
    if fields.text("format") != "oscar-probe" or fields.integer("format_version") != 1:
        raise InputError(f"{path}: is not 'oscar-probe' of format_version 1, which this release reads")
    ids, bf16, found = (fields.items(name) for name in ("token_ids", "bf16", "bundle"))
    if len(ids) > MOST_TOKENS or not all(type(i) is int and 0 <= i <= MOST_TOKEN for i in ids):
        raise InputError(f"{path}: 'token_ids' are not at most {MOST_TOKENS} token ids")
    if not 1 <= len(bf16) == len(found) <= len(ids) - 2 or not all(
        isinstance(x, (int, float)) and x is not True and x is not False and -1e4 < x <= 0 for x in bf16 + found
    ):
        raise InputError(f"{path}: 'bf16' and 'bundle' are no log-probabilities of the last of {len(ids)} tokens")
    return Probe(ids, bf16, found)


def _posted(url: str, body: dict[str, Any]) -> Any:
    request = urllib.request.Request(url, json.dumps(body).encode(), {"Content-Type": "application/json"})
    try:
        with urllib.request.urlopen(request, timeout=600) as answer:
            return parse_json(answer.read(MOST_ANSWER), url, strict=False)
    except urllib.error.HTTPError as error:
        raise InputError(
            f"{url}: answered {error.code}: {quoted(error.read(2000).decode(errors='replace'), 300)}"
        ) from None
    except (OSError, ValueError) as error:
        if isinstance(error, InputError):
            raise
        raise EnvironmentFault(
            f"{url}: does not answer ({error}); start the server, and name it as http://HOST:PORT"
        ) from None


def _served(url: str, model: str, ids: list[int], place: int) -> float:
    """The log-probability of token `place`, from the decode step of the token before it."""
    asked = ids[place]
    answer = _posted(
        url,
        {
            "model": model,
            "prompt": ids[: place - 1],
            "max_tokens": 2,
            "min_tokens": 2,
            "ignore_eos": True,
            "temperature": 0,
            "allowed_token_ids": [ids[place - 1]],
            "logprobs": 1,
            "logprob_token_ids": [asked],
            "return_tokens_as_token_ids": True,
        },
    )
    try:
        value = answer["choices"][0]["logprobs"]["top_logprobs"][1][f"token_id:{asked}"]
        if isinstance(value, bool) or not math.isfinite(value):
            raise TypeError
    except (KeyError, IndexError, TypeError):
        raise InputError(
            f"{url}: an answer has no log-probability of token {asked} after the first written one, which "
            "vLLM 0.33 gives; name a vLLM server"
        ) from None
    return float(value)


def served(url: str, model: str, probe: Probe, together: int) -> list[float]:
    """Log-probabilities of the probe's last tokens, with so many requests at once."""
    place = url.rstrip("/") + "/v1/completions"
    with concurrent.futures.ThreadPoolExecutor(together) as pool:
        return list(pool.map(lambda p: _served(place, model, probe.ids, p), probe.places()))


def compare(url: str, model: str, bundle: pathlib.Path) -> bool:
    """Prints one table; false if the server's cache is further from BF16 than the bundle's."""
    probe = read_probe(bundle)
    print(f"| {len(probe.bf16)} tokens, mean distance from BF16 in nats | |\n|---|---:|")
    print(f"| as measured by oscar-fit | {probe.apart(probe.bundle):.4f} |")
    good = True
    for together in REQUESTS:
        apart = probe.apart(served(url, model, probe, together))
        good = good and apart <= probe.limit()
        print(f"| served, requests at once: {together} | {apart:.4f} |", flush=True)
    print(f"| at most | {probe.limit():.4f} |")
    return good
