"""The helpers of test_vllm_engine.py without a GPU: vLLM accepts the command and the options, its processes get the bundle, and the
comparison and the reader of streams find what they must."""
import dataclasses
import json
import subprocess
import sys
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

pytest.importorskip("torch")
import vllm_requests as helpers  # noqa: E402


def test_compare():
    one, other = ([1, 2, 3], [-0.1, -0.2, -0.3]), ([1, 2, 4], [-0.15, -0.25, -0.35])
    helpers.compare("near", [one], [other], 0.051)
    tops = [{1: -0.1}, {2: -0.2}, {3: -0.3, 4: -0.45}]
    helpers.compare("level tokens", [(*one, tops)], [other], 0.051)
    far = ([1, 2, 4], [-0.15, -0.25, -9.0])
    helpers.compare("samples", [one], [far], 0.051, parting=float("inf"))
    first = ([9, 2, 3], [-0.15, -0.2, -0.3])
    helpers.compare("level first tokens", [(*first, [{9: -0.15, 1: -0.2}, {}, {}])], [one], 0.04)
    for name, found, expected, limit in (
            ("far", one, other, 0.04), ("not level", one, far, 0.051), ("another token", (*one, [{1: -0.1}, {2: -0.2}, {3: -0.3, 4: -2.0}]), other, 0.051),
            ("unknown token", (*one, [{1: -0.1}, {2: -0.2}, {3: -0.3}]), other, 0.051), ("other text", first, one, 0.1),
            ("shorter", ([1, 2], [-0.1, -0.2]), one, 0.1)):
        with pytest.raises(AssertionError):
            helpers.compare(name, [found], [expected], limit)
    with pytest.raises(ValueError):
        helpers.compare("missing", [one], [one, other], 1)


def test_processes_get_the_bundle(monkeypatch):
    helpers.set_environment(monkeypatch, dict(layers=2, kv_heads=1, d=64, key=[4, 2, 1, 1], value=[4, 2, 1, 1], numbers=[2, 5], left_out=[0, 1, 3, 4]))
    code = ("import torch; torch.set_default_device('meta'); import oscar_kv.engines.vllm.serving as s; b = s.load_bundle('x'); "  # as vLLM sets the GPU
            "assert b.layers[0].key.forward.device.type == 'cpu'; "
            "print([l.layer for l in b.layers], [e['layer'] for e in b.model['left_out']])")
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert found.stdout.split("\n")[0] == "[2, 5] [0, 1, 3, 4]"


class Answers(BaseHTTPRequestHandler):
    """The shapes of vLLM's answers."""

    def do_POST(self):
        asked = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        self.send_response(200)
        self.end_headers()
        choice = {"token_ids": [len(asked["prompt"])], "logprobs": {"token_logprobs": [-0.5]}}
        if asked.get("stream"):
            for _ in range(asked["max_tokens"]):
                self.wfile.write(f"data: {json.dumps({'choices': [choice]})}\n\n".encode())
            self.wfile.write(b"data: [DONE]\n\n")
        else:
            self.wfile.write(json.dumps({"choices": [choice] * asked.get("n", 1)}).encode())

    def do_GET(self):
        self.send_response(200)
        self.end_headers()
        self.wfile.write(b'# HELP vllm:a\nvllm:a_total{engine="0"} 2.0\nvllm:a_total{engine="1"} 3.0\nvllm:ab 9\n')

    def log_message(self, *arguments):
        pass


def test_the_client():
    with ThreadingHTTPServer(("127.0.0.1", 0), Answers) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        client = helpers.Server(server.server_address[1], None)
        assert client.complete([1, 2], 1, n=2) == [([2], [-0.5])] * 2
        assert client.stream([1, 2, 3], 3) == ([3] * 3, [-0.5] * 3) and client.stream([1], 9, chunks=2) == ([1] * 2, [-0.5] * 2)
        assert client.metric("vllm:a_total") == 5
        with pytest.raises(AssertionError, match="no metric"):
            client.metric("vllm:a")
        server.shutdown()


def test_vllm_knows_the_options(monkeypatch):
    pytest.importorskip("vllm", reason="vllm is not installed (scripts/requirements-vllm.txt)")
    from oscar_kv.engines.vllm import plugin as vllm_plugin
    from vllm import SamplingParams
    from vllm.engine.arg_utils import EngineArgs
    from vllm.platforms import current_platform
    monkeypatch.setattr(type(current_platform), "device_type", "cuda")  # as on the machine that serves
    vllm_plugin.register()
    fields = {field.name for field in dataclasses.fields(EngineArgs)}
    assert fields >= {"kv_cache_dtype", "attention_backend", "additional_config", "num_gpu_blocks_override", "enable_prefix_caching",
                      "max_num_batched_tokens", "enable_chunked_prefill", "tensor_parallel_size", "disable_custom_all_reduce",
                      "skip_tokenizer_init", "enforce_eager", "compilation_config", "gpu_memory_utilization"}
    SamplingParams(n=3, max_tokens=4, temperature=0.7, seed=11, ignore_eos=True, logprobs=1, detokenize=False)
    try:
        from vllm.entrypoints.common.cli_args import make_arg_parser
    except ImportError:  # 0.32
        from vllm.entrypoints.launchers.cli_args import make_arg_parser
    from vllm.entrypoints.openai.completion.protocol import CompletionRequest
    from vllm.utils.argparse_utils import FlexibleArgumentParser
    command = helpers.serve_command("MODEL", 1, "--max-model-len", "4096", "--max-num-seqs", "8", "--max-num-batched-tokens", "1024",
                                    "--gpu-memory-utilization", "0.2", "--no-enable-prefix-caching", "--compilation-config",
                                    '{"mode": 0, "cudagraph_mode": "FULL_DECODE_ONLY"}')
    found = make_arg_parser(FlexibleArgumentParser()).parse_args(command[command.index("serve") + 1:])
    assert found.kv_cache_dtype == "oscar" and found.additional_config == {"oscar_bundle": "MODEL"} and found.enable_prefix_caching is False
    asked = CompletionRequest(prompt=[1, 2], max_tokens=3, temperature=0, ignore_eos=True, logprobs=0, return_token_ids=True, stream=True, n=1)
    assert asked.return_token_ids and asked.ignore_eos


def test_the_probe_in_vllms_own_classes(monkeypatch):
    """vLLM knows every field of serve_check's requests, and writes what serve_check reads."""
    import types

    sys.modules.setdefault("orjson", types.ModuleType("orjson"))  # imported by the module and not called here
    from oscar_kv import probe
    from vllm.entrypoints.openai.completion import protocol
    from vllm.entrypoints.openai.completion.serving import OpenAIServingCompletion
    from vllm.logprobs import Logprob

    def answered(url, body):
        request = protocol.CompletionRequest.model_validate(body)
        assert not request.model_extra and request.prompt == [11, 12]
        sampling = request.to_sampling_params(request.max_tokens, {})
        assert sampling.allowed_token_ids == [13] and sampling.logprob_token_ids == [14] and sampling.min_tokens == sampling.max_tokens == 2
        entries = [{13: Logprob(-1.0, 1, "x"), 14: Logprob(p, 2, "y")} for p in (-7.0, -2.5)]
        serving = types.SimpleNamespace(_get_decoded_token=OpenAIServingCompletion._get_decoded_token)
        logprobs = OpenAIServingCompletion._create_completion_logprobs(
            serving, [13, 13], entries, request.logprobs, None, logprob_token_ids=request.logprob_token_ids,
            return_as_token_id=request.return_tokens_as_token_ids)
        return {"choices": [{"logprobs": logprobs.model_dump()}]}

    monkeypatch.setattr(probe, "_posted", answered)
    assert probe.served("http://h", "m", probe.Probe([11, 12, 13, 14], [-2.0], [-2.2]), 1) == [-2.5]
