"""python -m oscar_kv.serve_check MODEL BUNDLE: measures gsm8k and throughput with the BF16 cache and with a bundle's
2-bit cache, and prints one table. Needs a machine with vLLM, lm-evaluation-harness and a GPU. Each measurement
runs one of their commands in a separate process; --dry-run prints the commands. With --url it only feeds the bundle's
probe through a running vLLM server, which needs no data set."""

import argparse
import os
import pathlib
import shlex
import subprocess
import sys
from collections.abc import Mapping, Sequence

from . import probe
from .engines.names import BUNDLE_VARIABLE, CACHE_DTYPE, VLLM_BACKEND
from .files.checkpoint import checkpoint_of
from .files.errors import InputError, escaped, quoted
from .files.exits import Parser, ended
from .files.fingerprint import checkpoint_fingerprint
from .files.strict_json import read_json
from .format.bundle import MOST_MANIFEST, added_fingerprints
from .format.manifest import NAME

WORSE_EXIT = 1
BATCHES = (1, 8, 32)
MOST_RESULT = 256 << 20  # bytes
MOST_LOSS = 2.0  # points of gsm8k (strict match) that the 2-bit cache may lose


def parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = Parser(prog="python -m oscar_kv.serve_check", description=__doc__.split("\n\n")[0])
    parser.add_argument("model", help="directory or org/name, as vLLM takes it")
    parser.add_argument("bundle", help="bundle of oscar-fit for this model")
    parser.add_argument(
        "-o", "--output", default="serve_check", metavar="DIR", help="where results go (default serve_check)"
    )
    parser.add_argument(
        "--max-model-len", type=int, default=16384, metavar="N", help="tokens of a request (default 16384)"
    )
    parser.add_argument("--tensor-parallel-size", type=int, default=1, metavar="N", help="GPUs (default 1)")
    parser.add_argument("--limit", type=int, metavar="N", help="questions of gsm8k (default all 1319)")
    parser.add_argument(
        "--input-len",
        type=int,
        metavar="N",
        help="of a request of the throughput runs (default 8192, or what --max-model-len leaves)",
    )
    parser.add_argument("--output-len", type=int, default=256, metavar="N", help="likewise (default 256)")
    parser.add_argument(
        "--prefix-caching",
        action="store_true",
        help="with vLLM's prefix caching, in both runs; the bundle's sink must be whole blocks of 64",
    )
    parser.add_argument(
        "--url",
        metavar="URL",
        help="vLLM server that serves MODEL with the bundle, http://HOST:PORT: "
        "only compares what it gives for the bundle's probe, at 1, 8 and 40 requests at once",
    )
    parser.add_argument("--dry-run", action="store_true", help="print the commands and end")
    options = parser.parse_args(arguments)
    if "," in options.model or options.model.startswith("-"):
        parser.error(
            f"the model {quoted(options.model)} holds a comma or begins with '-', which the other tools "
            "would take for an option; name it by a link without one"
        )
    if options.input_len is None:
        options.input_len = max(1, min(8192, options.max_model_len - options.output_len))
    for name in ("max_model_len", "tensor_parallel_size", "limit", "input_len", "output_len"):
        value = getattr(options, name)
        if value is not None and value < 1:
            parser.error(f"--{name.replace('_', '-')} is {value}, expected at least 1")
    if options.input_len + options.output_len > options.max_model_len:
        parser.error(
            f"--input-len and --output-len are {options.input_len + options.output_len} tokens, more than "
            f"--max-model-len ({options.max_model_len})"
        )
    return options


def plan(options: argparse.Namespace) -> list[tuple[str, str, list[str], dict[str, str], pathlib.Path]]:
    """[(cache, measurement, command, environment, result)]: result is a file, or a folder that contains one."""
    steps, folder = [], pathlib.Path(options.output)
    common = {
        "dtype": "bfloat16",
        "max_model_len": options.max_model_len,
        "tensor_parallel_size": options.tensor_parallel_size,
        "enable_prefix_caching": options.prefix_caching,
    }
    for cache in ("bf16", CACHE_DTYPE):
        ours = {} if cache == "bf16" else {"kv_cache_dtype": CACHE_DTYPE, "attention_backend": VLLM_BACKEND}
        environment = {} if cache == "bf16" else {BUNDLE_VARIABLE: str(pathlib.Path(options.bundle).resolve())}
        named = ",".join(f"{k}={v}" for k, v in {"pretrained": options.model, **common, **ours}.items())
        result = folder / cache / "gsm8k"
        asked = ["-m", "lm_eval", "--model", "vllm", "--model_args", named]
        asked += ["--tasks", "gsm8k", "--num_fewshot", "5", "--batch_size", "auto", "--output_path", str(result)]
        asked += ["--limit", str(options.limit)] if options.limit else []
        steps.append((cache, "gsm8k", [sys.executable, *asked], environment, result))
        size, ranks = options.max_model_len, options.tensor_parallel_size
        flags = f"--dtype bfloat16 --max-model-len {size} --tensor-parallel-size {ranks}".split()
        flags.append("--enable-prefix-caching" if options.prefix_caching else "--no-enable-prefix-caching")
        flags += [] if cache == "bf16" else ["--kv-cache-dtype", CACHE_DTYPE, "--attention-backend", VLLM_BACKEND]
        lengths = f"--random-input-len {options.input_len} --random-output-len {options.output_len}".split()
        for batch in BATCHES:
            result = folder / cache / f"batch-{batch}.json"
            given = ["--model", options.model, *flags, "--dataset-name", "random", *lengths]
            given += ["--num-prompts", str(4 * batch), "--max-num-seqs", str(batch), "--output-json", str(result)]
            steps.append((cache, f"batch {batch}", ["vllm", "bench", "throughput", *given], environment, result))
    return steps


def shell_word(text: str) -> str:
    """For a shell, and for a terminal: bytes that are no plain text become \\xNN, as in the commands."""
    if text.isprintable():
        return shlex.quote(text)
    return (
        "$'"
        + "".join(chr(b) if 0x20 <= b < 0x7F and b not in b"'\\" else f"\\x{b:02x}" for b in os.fsencode(text))
        + "'"
    )


def shown(command: Sequence[str], environment: Mapping[str, str]) -> str:
    return " ".join([*(f"{k}={shell_word(v)}" for k, v in environment.items()), *map(shell_word, command)])


def read_result(measurement: str, place: pathlib.Path) -> float:
    """Strict gsm8k in percent, or requests per second."""
    if measurement == "gsm8k":
        found = sorted(pathlib.Path(place).rglob("results_*.json"), key=lambda path: path.stat().st_mtime)
        if not found:
            raise InputError(
                f"{place}: holds no results_*.json of lm-evaluation-harness; look at the output of its command"
            )
        path, names = found[-1], ["results", "gsm8k", "exact_match,strict-match"]
    else:
        path, names = place, ["requests_per_second"]  # its tokens per second include prompts
    value, name = read_json(path, MOST_RESULT, strict=False), names[-1]
    for one in names:
        value = value.get(one) if isinstance(value, dict) else None
    if not isinstance(value, (int, float)):
        raise InputError(f"{path}: has no number '{name}', which this release of oscar-kv looks for")
    return 100.0 * value if measurement == "gsm8k" else float(value)


def table(results: Mapping[tuple[str, str], float], options: argparse.Namespace) -> str:
    """Markdown; results: {(cache, measurement): number}."""
    lines = [f"| {escaped(options.model)} | BF16 cache | {CACHE_DTYPE} | |", "|---|---:|---:|---:|"]
    base, ours = (results[cache, "gsm8k"] for cache in ("bf16", CACHE_DTYPE))
    lines.append(f"| gsm8k, strict match, % | {base:.1f} | {ours:.1f} | {ours - base:+.1f} points |")
    for batch in BATCHES:
        base, ours = (results[cache, f"batch {batch}"] for cache in ("bf16", CACHE_DTYPE))
        base, ours = options.output_len * base, options.output_len * ours
        lines.append(
            f"| tokens written per second, {options.input_len} + {options.output_len}, batch {batch} | "
            f"{base:.1f} | {ours:.1f} | {ours / base if base else float('nan'):.2f} times |"
        )
    return "\n".join(lines)


def run(options: argparse.Namespace) -> int:
    results = {}
    for cache, measurement, command, environment, place in plan(options):
        print(f"{cache}, {measurement}: {shown(command, environment)}", file=sys.stderr)
        place.parent.mkdir(parents=True, exist_ok=True)
        try:
            done = subprocess.run(command, env={**os.environ, **environment}, check=False)
        except OSError as error:
            raise InputError(f"{command[0]} cannot be run ({error}); install vllm==0.33.0 and lm_eval[vllm]") from None
        if done.returncode != 0:
            raise InputError(
                f"{cache}, {measurement}: the command ended with {done.returncode}; its own output says why"
            )
        results[cache, measurement] = read_result(measurement, place)
    print(table(results, options))
    lost = results["bf16", "gsm8k"] - results[CACHE_DTYPE, "gsm8k"]
    if lost > MOST_LOSS:
        print(f"gsm8k loses {lost:.1f} points, expected at most {MOST_LOSS}", file=sys.stderr)
        return WORSE_EXIT
    return 0


def _was_added(model: str, bundle: str) -> bool:
    """Whether the model's files are here, and it is not the fitted checkpoint but one of the added ones."""
    numbers = read_json(os.path.join(bundle, NAME), MOST_MANIFEST).get("numbers_sha256")
    added = added_fingerprints(pathlib.Path(bundle), numbers)
    try:
        return bool(added) and checkpoint_fingerprint(checkpoint_of(model)) in added
    except InputError:
        return False


def check(options: argparse.Namespace) -> int:
    if not os.path.isfile(os.path.join(options.bundle, NAME)):
        raise InputError(f"{options.bundle}: holds no {NAME}, expected a bundle of oscar-fit")
    if options.url is not None:
        if _was_added(options.model, options.bundle):
            raise InputError(
                f"{options.model}: was added to the bundle, whose probe is of the fitted checkpoint; "
                f"evaluate the server with: oscar-verify --served {options.url} --model {options.model} "
                "--text TEXT"
            )
        if probe.compare(options.url, options.model, pathlib.Path(options.bundle)):
            return 0
        print(
            "the server's cache is further from BF16 than the bundle's: do not serve it, and report it", file=sys.stderr
        )
        return WORSE_EXIT
    plugins = os.environ.get("VLLM_PLUGINS")
    if plugins is not None and "oscar_kv" not in plugins.split(","):
        raise InputError(
            f"VLLM_PLUGINS is {quoted(plugins)} and leaves out oscar_kv, so that vLLM would not know the "
            f"cache type {CACHE_DTYPE}; add oscar_kv to it, or unset it"
        )
    if not options.dry_run:
        return run(options)
    for _, _, command, environment, _ in plan(options):
        print(shown(command, environment))
    return 0


def main(arguments: Sequence[str] | None = None) -> int:
    options = parse(arguments)
    return ended(lambda: check(options))


if __name__ == "__main__":
    sys.exit(main())
