"""tests/bench/real: grades of answers, texts that are decoded token by token, and the table, on made-up answers. Needs no GPU."""
import json
import os
import pathlib
import socket
import subprocess
import sys
import types

import pytest
from conftest import BUILD_DIR, SAMPLES, SOURCE_DIR

torch = pytest.importorskip("torch")
BENCH = pathlib.Path(__file__).resolve().parents[1] / "bench" / "real"
sys.path.insert(0, str(BENCH))
import grade  # noqa: E402

TASK = dict(prompt='import math\n\n\ndef double(x):\n    """Twice x."""\n', entry_point="double", test="def check(f):\n    assert f(3) == 6\n")


def test_grades():
    right = "Here:\n```python\ndef double(x):\n    return 2 * x\n```\nDone."
    body, wrong, endless = "```python\n    return x + x\n```", "```python\ndef double(x):\n    return x\n```", "```python\ndef double(x):\n    while True: pass\n"
    assert grade.human_eval([{"text": t} for t in (right, body, wrong)], [TASK] * 3) == [True, True, False]
    assert "while True" in grade.code(endless, TASK)
    assert grade.needles([{"text": "It is 123."}, {"text": "no"}], ["123", "4"]) == [True, False]


@pytest.mark.parametrize("ids,found", [(list(range(500)), False), ([7] * 31, False), ([1, 2, 3] + [7] * 40, True), ([1, 2, 3, 4, 5] * 8, False),
                                       (list(range(40)) + [1, 2, 3, 4, 5] * 9, True), ([*range(20)] * 9, True), ([*range(20)] * 8, False)])
def test_answers_that_repeat_themselves(ids, found):
    assert grade.degenerate(ids) == found


def test_exact_test_of_pairs():
    assert grade.mcnemar(0, 0) == 1 and grade.mcnemar(3, 3) == 1 and grade.mcnemar(0, 6) == 2 / 64 and grade.mcnemar(5, 1) == pytest.approx(14 / 64)


def test_a_tokenizer_from_gguf_merges(tmp_path):
    """As transformers reads it: the first token of texts, merges, a run of spaces, bytes of what has no token."""
    transformers = pytest.importorskip("transformers")
    sys.path.insert(0, str(BENCH.parent))
    import real_model_files
    tokens = ["<pad>", "<eos>", "<bos>", "<unk>", "  ", *(f"<0x{n:02X}>" for n in range(256)), "a", "b", "\u2581", "ab", "\u2581ab", "abab"]
    types_ = [3] * 4 + [4] + [6] * 256 + [1] * 6
    fields = {"tokenizer.ggml.tokens": tokens, "tokenizer.ggml.token_type": types_}
    reader = types.SimpleNamespace(fields={name: types.SimpleNamespace(contents=lambda found=found: found) for name, found in fields.items()})
    for name, content in zip(("tokenizer.json", "tokenizer_config.json"), real_model_files.tokenizer_of(reader)):
        (tmp_path / name).write_text(json.dumps(content))
    tokenizer = transformers.AutoTokenizer.from_pretrained(tmp_path)
    assert tokenizer("ab abab a\n").input_ids == [2, *(tokens.index(t) for t in ("ab", "\u2581ab", "ab", "\u2581", "a", "<0x0A>"))]  # by rank
    assert tokenizer.convert_ids_to_tokens(tokenizer("a  b<eos>").input_ids) == ["<bos>", "a", "\u2581\u2581", "b", "<eos>"]
    assert tokenizer.decode(tokenizer("ab  ab\u00e9").input_ids, skip_special_tokens=True) == "ab  ab\u00e9"


def test_texts_are_decoded_token_by_token(tmp_path):
    pytest.importorskip("vllm", reason="vllm is not installed (scripts/requirements-vllm.txt)")
    np = pytest.importorskip("numpy")
    import forced
    import forced_vllm
    texts, made = [list(range(100, 300)), list(range(300, 500))], torch.randn(forced.TAIL + 2, 3, 600)
    for into, noise in ((None, 0), (tmp_path / "found", 1)):
        processor = forced_vllm.Forced(None, None)
        asked = [(slot, {"forced": forced.wanted(i, texts[i], 2 * forced.TAIL, tmp_path, into)}) for slot, i in ((5, 0), (9, 1))]
        assert [processor.add_request(slot, types.SimpleNamespace(extra_args=text)) for slot, text in (*asked, (2, None))] == [True, True, False]
        steps = [*range(forced.TAIL // 2), *range(forced.TAIL // 2 - 3 * bool(into), forced.TAIL + 2)]  # the second run is preempted
        for step in steps:
            logits = made[step].clone()
            logits[0, 3] += noise
            before = logits[1].clone()
            end = 200 - forced.TAIL + step
            logits = processor.apply(logits, types.SimpleNamespace(idx_mapping_np=np.array([9, 2, 5]), seq_lens_upper_bound_np=np.array([end, 50, end])))
            assert torch.equal(logits[1], before)
            if end < 200:
                assert [int(logits[i].argmax()) for i in (0, 2)] == [texts[1][end], texts[0][end]]
    found = json.loads((tmp_path / "found").read_text())
    assert found["steps"] == 2 * forced.TAIL and found["kl_by_text"][0] == 0 < found["kl_by_text"][1] and not forced.SINKS.get(str(tmp_path / "found"))
    a, b = (x.log_softmax(-1) for x in (made[1:-1, 0], made[1:-1, 0] + torch.nn.functional.one_hot(torch.tensor(3), 600)))
    assert found["kl_by_text"][1] == pytest.approx(float((a.exp() * (a - b)).sum(-1).mean()), rel=1e-3)


def test_table(tmp_path):
    def answers(*texts):
        return [{"text": t, "ids": [*map(ord, t)]} for t in texts]

    right, wrong = "```python\ndef double(x):\n    return 2 * x\n```", "no"
    about = dict(model="m", engine="vllm", gpu="g", versions="v", prefix_caching=False, wanted={"needles": ["123", "45"]}, most={"he": 512, "needles": 24})
    bf16 = about | dict(cache="bf16", he=answers(right, right, wrong), needles=answers("123", "45"), one=answers("a", "b"), eight=answers("a", "b"))
    ours = about | dict(cache="/b/oscar-2.25", he=answers(right, wrong, "x" * 100), needles=answers("123", "no"), one=answers("a", "b"),
                        eight=answers("a", "c"), forty=answers("a"), kl_2112_1=dict(kl_served=0.00512), kl_2112_40=dict(kl_served=0.00498))
    for name, found in (("bf16", bf16), ("oscar-2.25", ours)):
        (tmp_path / f"{name}.json").write_text(json.dumps(found))
    (tmp_path / "tasks.json").write_text(json.dumps({"he": [TASK] * 3}))
    lines = tmp_path / "lines.jsonl"
    made = subprocess.run([sys.executable, str(BENCH / "table.py"), str(tmp_path), "--lines", str(lines), "--predicted", "oscar-2.25=0.005"],
                          capture_output=True, text=True, check=True)
    assert made.stdout.splitlines() == [
        "| cache | KL 2112 x 1 | KL 2112 x 40 | predicted | other text than alone | degenerate | HumanEval | after 6,000 tokens | needles | variables | quotes | next call |",
        "|---|---:|---:|---:|---:|---:|---:|---:|---:|---:|---:|---:|",
        "| bf16 |  |  |  | 0 of 2 | 0 | 2 of 3 |  | 2 of 2 |  |  |  |",
        "| oscar-2.25 | 0.0051 | 0.0050 | 0.0050 | 1 of 3 | 1 | 1 of 3 (lost 1, won 0, p 1.0) |  | 1 of 2 (lost 1, won 0, p 1.0) |  |  |  |"]
    assert [json.loads(line)["cache"] for line in lines.read_text().splitlines()] == ["bf16", "/b/oscar-2.25"]


def test_captured_rows_are_those_of_the_cache(tmp_path):
    transformers = pytest.importorskip("transformers")
    from safetensors.torch import load_file
    text, model = SAMPLES / "heldout.txt", SAMPLES / "tiny-qwen2"
    subprocess.run([sys.executable, BENCH / "capture.py", model, text, tmp_path / "rows", "300"], check=True, capture_output=True)
    found = load_file(tmp_path / "rows")
    ids = transformers.AutoTokenizer.from_pretrained(model)(text.read_text()[:4000], add_special_tokens=False, return_tensors="pt").input_ids[:, :300]
    loaded = transformers.AutoModelForCausalLM.from_pretrained(model, dtype=torch.bfloat16).eval()
    with torch.no_grad():
        layers = loaded(ids).past_key_values.layers
    assert len(found) == 3 * len(layers) and found["0.q"].shape == (16, loaded.config.num_attention_heads, 64)
    for index, layer in enumerate(layers):
        for name, kept in (("k", layer.keys), ("v", layer.values)):
            assert torch.equal(found[f"{index}.{name}"], kept[0].transpose(0, 1))


SERVER = """import http.server, json, os, pathlib, sys
assert sys.argv[1] == "serve" and "--attention-backend OSCAR --max-model-len" in " ".join(sys.argv), sys.argv
probe = json.loads((pathlib.Path(os.environ["OSCAR_KV_BUNDLE"]) / "probe.json").read_text())
class Handler(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        self.answer({})
    def do_POST(self):
        asked = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        assert asked["model"] == sys.argv[2]
        if "messages" in asked:
            return self.answer({"choices": [{"message": {"content": os.environ["ANSWER"]}}]})
        place = len(asked["prompt"]) + 1 - len(probe["token_ids"])  # from the end
        found = {f"token_id:{probe['token_ids'][place]}": probe["bundle"][place]}
        self.answer({"choices": [{"logprobs": {"top_logprobs": [{}, found]}}]})
    def answer(self, body):
        text = json.dumps(body).encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(text)))
        self.end_headers()
        self.wfile.write(text)
http.server.ThreadingHTTPServer.request_queue_size = 64
http.server.ThreadingHTTPServer(("127.0.0.1", int(sys.argv[sys.argv.index("--port") + 1])), Handler).serve_forever()
"""


def first_answer(folder, binaries, **environment):
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    environment = dict(os.environ, PATH=f"{binaries}:{os.environ['PATH']}", PYTHON=sys.executable, PORT=str(port), PYTHONPATH=str(SOURCE_DIR / "python"),
                       **environment)
    done = subprocess.run([BENCH / "first_answer.sh", SAMPLES / "tiny-qwen2", folder / "work"], env=environment, capture_output=True, text=True, timeout=300)
    with socket.socket() as again:  # the server has ended
        assert again.connect_ex(("127.0.0.1", port)) != 0
    return done


def test_first_answer(tmp_path):
    """The script's way through page and card, with a stand-in for vLLM's server, and less text."""
    for name, arguments in (("fit", '"$@" --tokens 3000 --context 1024 --curve-context 512 --curve-sequences 2'), ("verify", '"${@/#8/4}"'),
                            ("export", '"$@"')):
        (tmp_path / f"oscar-{name}").write_text(f"#!/bin/bash\nexec {BUILD_DIR}/bin/oscar-{name} {arguments}\n")
        (tmp_path / f"oscar-{name}").chmod(0o755)
    (tmp_path / "server.py").write_text(SERVER)
    done = first_answer(tmp_path, tmp_path, VLLM=f"{sys.executable} {tmp_path}/server.py", ANSWER="int search(void);")
    assert done.returncode == 0 and "PASS" in done.stdout and "int search(void);" in done.stdout, done.stdout + done.stderr
    (tmp_path / "oscar-verify").write_text("#!/bin/sh\nexit 1\n")
    (tmp_path / "oscar-fit").write_text("#!/bin/sh\nexit 0\n")
    failed = first_answer(tmp_path, tmp_path)
    assert failed.returncode == 1 and "failed: oscar-verify" in failed.stderr, failed.stdout + failed.stderr


def test_vllm_reads_the_options(tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(BENCH.parent / "vllm")
    import bench_serve
    from vllm.benchmarks import serve
    from vllm.engine.arg_utils import EngineArgs
    from vllm.utils.argparse_utils import FlexibleArgumentParser
    monkeypatch.setattr("vllm.platforms.current_platform.device_type", "cpu", raising=False)
    parser = FlexibleArgumentParser()
    serve.add_cli_args(parser)
    model = pathlib.Path("a model")
    found = parser.parse_args(bench_serve.Server(model, "bf16", 8001, "", tmp_path).client(3.5, 9, 1, tmp_path))
    assert (found.request_rate, found.random_input_len, found.random_output_len, found.percentile_metrics) == (3.5, 512, 256, "ttft,tpot,itl")
    for cache in ("bf16", "fp8+prefix", str(tmp_path)):
        name, *options = bench_serve.Server(model, cache, 8001, "5e9", tmp_path).options()
        options = [o for o in options if o not in ("--port", "8001")]  # the server's own
        found = EngineArgs.add_cli_args(FlexibleArgumentParser()).parse_args(["--model", name, *options])
        assert found.max_num_seqs == 64 and found.enable_prefix_caching is cache.endswith("+prefix")
        assert (found.kv_cache_memory_bytes, found.gpu_memory_utilization) == (5_000_000_000, .2)
