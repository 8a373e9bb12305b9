"""Helpers for tests of vLLM's engine on a GPU: bundles in its processes, an HTTP server, and the comparison of answers."""
import contextlib
import json
import os
import pathlib
import socket
import sys
import urllib.request

import engine_server
from conftest import PACKAGE_PATH

HERE = pathlib.Path(__file__).resolve().parent


def set_environment(monkeypatch, bundle, own_process=True):
    """vLLM's processes then load random_bundle(**bundle)."""
    path = filter(None, [str(HERE / "vllm_site"), str(HERE), PACKAGE_PATH, os.environ.get("PYTHONPATH")])
    values = dict(PYTHONPATH=os.pathsep.join(path), OSCAR_TEST_BUNDLE=json.dumps(bundle), VLLM_ENABLE_V1_MULTIPROCESSING=str(int(own_process)),
                  VLLM_USE_FLASHINFER_SAMPLER="0", VLLM_NO_USAGE_STATS="1", HF_HUB_OFFLINE="1", VLLM_WORKER_MULTIPROC_METHOD="spawn")
    for name, value in values.items():
        monkeypatch.setenv(name, value)


def compare(name, found, expected, limit, parting=None):
    """Answers: (tokens, log-probabilities) and perhaps {token: log-probability} of the most likely ones at each place. Compared until the
    texts part. Greedy texts may part where two tokens are level: the log-probabilities are at most `parting` apart there, and so are, if
    the most likely tokens are known, the two tokens. Where they are not known, the first token must be the same."""
    # tiny-qwen3 in BF16 differs from itself in FP32 by up to .24 in the distance of two tokens, after 2,100 random ones.
    parting = max(0.35, 2 * limit) if parting is None else parting
    for i, (one, other) in enumerate(zip(found, expected, strict=True)):
        (tokens, values), (others, theirs) = one[:2], other[:2]
        same = next((k for k, (a, b) in enumerate(zip(tokens, others)) if a != b), min(len(tokens), len(others)))
        apart = [abs(a - b) for a, b in zip(values[:same], theirs[:same])]
        mean, gap = sum(apart) / same if same else 0.0, 0.0
        if same < min(len(tokens), len(others)):
            gap = abs(values[same] - theirs[same])
            if len(one) > 2:
                gap = max(gap, values[same] - one[2][same].get(others[same], float("-inf")))
        text = f"{name}: request {i}: {same} of {len(others)} tokens the same, log-probabilities {mean:.4f} apart, {gap:.4f} where the texts part"
        print(text)
        assert len(tokens) == len(others) and mean <= limit and gap <= parting and (same > 0 or len(one) > 2), text


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def serve_command(model, port, *options):
    return [sys.executable, "-m", "vllm.entrypoints.cli.main", "serve", str(model), "--host", "127.0.0.1", "--port", str(port), "--dtype",
            "bfloat16", "--kv-cache-dtype", "oscar", "--attention-backend", "OSCAR", "--additional-config",
            json.dumps({"oscar_bundle": str(model)}), *options]


class Server:
    """vllm serve on a port of this machine."""

    def __init__(self, port, process):
        self.port, self.process = port, process

    def open(self, path, body=None, timeout=120):
        data = None if body is None else json.dumps(body).encode()
        request = urllib.request.Request(f"http://127.0.0.1:{self.port}{path}", data, {"Content-Type": "application/json"})
        return urllib.request.urlopen(request, timeout=timeout)

    def complete(self, ids, tokens, **options):
        """[(tokens, log-probabilities)] of the choices."""
        body = {"prompt": ids, "max_tokens": tokens, "temperature": 0, "ignore_eos": True, "logprobs": 0, "return_token_ids": True, **options}
        with self.open("/v1/completions", body) as answer:
            return [answer_of(choice) for choice in json.load(answer)["choices"]]

    def stream(self, ids, tokens, chunks=None, **options):
        """The same from a stream; only the first `chunks` of it, after which the connection is closed."""
        body = {"prompt": ids, "max_tokens": tokens, "temperature": 0, "ignore_eos": True, "logprobs": 0, "return_token_ids": True,
                "stream": True, **options}
        found = ([], [])
        with self.open("/v1/completions", body) as answer:
            for line in answer:
                text = line.decode().removeprefix("data: ").strip()
                if not text or text == "[DONE]":
                    continue
                for choice in json.loads(text)["choices"]:
                    for side, more in zip(found, answer_of(choice)):
                        side += more
                if chunks is not None and (chunks := chunks - 1) == 0:
                    break
        return found

    def metric(self, name):
        """The sum of a metric over its labels."""
        with self.open("/metrics") as answer:
            rows = [row for row in answer.read().decode().splitlines() if row.startswith((name + "{", name + " "))]
        assert rows, f"vLLM has no metric {name}"
        return sum(float(row.rsplit(" ", 1)[1]) for row in rows)


def answer_of(choice):
    logprobs = choice.get("logprobs") or {}
    return list(choice.get("token_ids") or []), list(logprobs.get("token_logprobs") or [])


@contextlib.contextmanager
def serving(model, log, *options, seconds=240):
    port = free_port()
    with engine_server.started(serve_command(model, port, *options), port, log, seconds) as process:
        yield Server(port, process)
