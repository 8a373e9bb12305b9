"""oscar-verify --served: a server that answers right passes, one that garbles what its decode kernels say fails. The server is
fake_engine.py, whose logits are those of transformers."""
import json
import socket
import time

import pytest

from harness import BAD_INPUT, ENVIRONMENT, GATE_FAILED, SAMPLE, SOURCE_DIR, USAGE, refuse, run, succeed

transformers = pytest.importorskip("transformers")

from fake_engine import FakeEngine  # noqa: E402, which needs torch

MODEL = SAMPLE / "tiny-qwen3"
CONTEXT, GENERATED, SEQUENCES, FIRST = 96, 8, 4, 24


@pytest.fixture(scope="module")
def reference():
    return transformers.AutoModelForCausalLM.from_pretrained(MODEL, dtype="float32").eval()


def line(url, *more, sequences=SEQUENCES, generated=GENERATED):
    return ["verify", "--model", MODEL, "--text", SAMPLE / "heldout.txt", "--context", CONTEXT, "--max-sequences", sequences,
            "--windows", "8,16", "--device", "cpu", "--served", url, "--served-tokens", generated, "--overwrite", *more]


def shifted(place, logits):
    """A decode kernel that reads other rows: its distribution is that of other tokens."""
    return logits.roll(7, -1) if place == "decode" else logits


def served_rows(tmp_path):
    report = json.loads((tmp_path / "r.json").read_text())
    return {m["path"]: m for m in report["methods"] if m["id"] == "served"}


@pytest.mark.parametrize("engine", ["vllm", "sglang"])
def test_a_right_server_passes(engine, reference, tmp_path):
    jsonschema = pytest.importorskip("jsonschema")
    fake = FakeEngine(reference, engine)
    with fake.running() as url:
        result = succeed(*line(url, "--served-requests", 2, "--report", tmp_path / "r.json", "--html", tmp_path / "r.html",
                               "--markdown", tmp_path / "r.md"))
    assert len(fake.requests) == SEQUENCES
    assert f"* evaluated: served, what {engine} at {url} answers for served/tiny" in " ".join(result.out.split()), str(result)
    assert "served (decode)" in result.out and result.out.rstrip().endswith("PASS")
    report = json.loads((tmp_path / "r.json").read_text())
    jsonschema.validate(report, json.loads((SOURCE_DIR / "schemas/report.schema.json").read_text()))
    assert report["served"] == {"url": url, "engine": engine, "model": "served/tiny", "generated": GENERATED}
    rows = served_rows(tmp_path)
    # Tokens of a prompt from FIRST on predict the next; the first generated one comes from the prefill.
    assert rows["prefill"]["tokens"] == SEQUENCES * (CONTEXT - GENERATED - 1 - FIRST)
    assert rows["decode"]["tokens"] == SEQUENCES * (GENERATED - 1)
    for row in rows.values():
        assert row["kl"]["mean"] < 1e-4 and row["same_top1"] > 0.99 and row["ppl_ratio"] == pytest.approx(1, abs=1e-3)
        assert row["candidate"] and row["bits_per_element"] is None and row["allocated_bytes"] is None
    assert "served" in (tmp_path / "r.html").read_text() and url in (tmp_path / "r.md").read_text()


@pytest.mark.parametrize("engine", ["vllm", "sglang"])
def test_a_server_that_garbles_what_it_writes_fails(engine, reference, tmp_path):
    """The prompt's log-probabilities are right, as are the first tokens: only decoding is wrong."""
    with FakeEngine(reference, engine, shifted).running() as url:
        result = run(*line(url, "--report", tmp_path / "r.json", "--junit", tmp_path / "r.xml"))
    assert result.code == GATE_FAILED and "FAIL  gate max_kl of served (decode)" in result.out, str(result)
    assert "pass  gate max_kl of served (prefill)" in result.out and "next: pass the --bundle that is served" in result.out
    rows = served_rows(tmp_path)
    assert rows["prefill"]["kl"]["mean"] < 1e-4 and rows["decode"]["kl"]["mean"] > 1 and rows["decode"]["same_top1"] < 0.5
    assert (tmp_path / "r.xml").read_text().count("<failure") == 1


def test_an_earlier_report_of_a_bf16_server(reference, tmp_path):
    """Gates compare a deployment with the same engine before, and needles are asked of the server."""
    def colder(place, logits):
        return 1.5 * logits

    with FakeEngine(reference, "vllm").running() as url:
        succeed(*line(url, "--report", tmp_path / "bf16.json"))
    fake = FakeEngine(reference, "vllm", colder)
    with fake.running() as url:
        compared = ["--baseline", tmp_path / "bf16.json", "--max-kl-increase", 0.01, "--report", tmp_path / "r.json"]
        result = run(*line(url, *compared, "--tasks", "vt", "--task-lengths", 256, "--task-prompts", 2))
    assert result.code == GATE_FAILED and "FAIL  gate max_kl_increase of served (prefill)" in result.out, str(result)
    rows = served_rows(tmp_path)
    scores = [rows[path]["tasks"]["vt"]["256"] for path in ("prefill", "decode")]
    # Temperature changes no most probable token: what BF16 finds, the server finds.
    assert scores[0] == scores[1] and all(score["solved"] == score["n"] for score in scores), scores
    # The prompts of the decode path are asked for without their log-probabilities, if BF16 solves any.
    assert bool(scores[0]["n"]) == bool([body for body in fake.requests if "prompt_logprobs" not in body])


def test_the_bundle_is_shown_beside_it(reference, tmp_path):
    """It is the codes' loss that the server may have; what exceeds it is the engine's."""
    succeed("collect", "--model", MODEL, "--prompts", SAMPLE / "prompts.jsonl", "-o", tmp_path / "s", "--tokens", 1000, "--device", "cpu")
    succeed("fit", tmp_path / "s", "-o", tmp_path / "b")
    with FakeEngine(reference, "vllm", lambda place, logits: 3 * logits).running() as url:
        result = run(*line(url, "--bundle", tmp_path / "b", "--report", tmp_path / "r.json"))
    assert result.code == GATE_FAILED, str(result)
    words = " ".join(result.out.split())
    assert "beside it: waterfill as transformers serves it" in words and "what differs is the engine" in words, str(result)
    report = json.loads((tmp_path / "r.json").read_text())
    assert [m["id"] for m in report["methods"] if m["candidate"]] == ["served", "served"]
    assert all(not g["decides"] for g in report["gates"] if g["method"] == "waterfill")
    plan = succeed(*line("http://nowhere.invalid:1", "--bundle", tmp_path / "b", "--dry-run")).out
    assert f"served     http://nowhere.invalid:1: 4 requests of {CONTEXT - GENERATED} tokens, 8 more generated after each" in plan


def test_a_port_on_which_nobody_answers():
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        refuse(ENVIRONMENT, *line(f"http://127.0.0.1:{free.getsockname()[1]}"), names=["Connection refused", "start the server"])


HEAD = b"HTTP/1.1 200 OK\r\n"


@pytest.mark.parametrize("raw, code, names", [
    (b"", BAD_INPUT, "HTTP/1.1"),
    (b"HTTP/1.1 400 No\r\n\r\n" + b'{"error": "more than max-logprobs"}', ENVIRONMENT, ["status 400", "more than max-logprobs"]),
    (b"HTTP/1.1 307 Moved\r\nLocation: http://elsewhere/\r\n\r\n", ENVIRONMENT, ["redirects to", "elsewhere"]),
    (HEAD + b"\r\nnot JSON", BAD_INPUT, ["/v1/completions", "not valid JSON"]),
    (HEAD + b'\r\n{"choices": [{"prompt_logprobs": [NaN]}]}', BAD_INPUT, "not valid JSON"),
    (HEAD + b"\r\n" + b"[" * 100000, BAD_INPUT, "/v1/completions"),
    (HEAD + b"Content-Length: 99\r\n\r\n{}", BAD_INPUT, "before its length"),
    (HEAD + b"Transfer-Encoding: chunked\r\n\r\nff\r\n{}", BAD_INPUT, "within a chunk"),
    ([HEAD + b"\r\n", *[b" " * (1 << 20)] * 40], BAD_INPUT, "answers with more than 17 MiB"),
    ([lambda: time.sleep(3) or b"", HEAD + b"\r\n{}"], ENVIRONMENT, ["took too long", "--served-timeout"]),
    ([HEAD + b"\r\n", *[lambda: time.sleep(0.2) or b" "] * 15], ENVIRONMENT, ["took too long", "--served-timeout"]),
], ids=["nothing", "status", "redirect", "words", "nan", "depth", "length", "chunk", "huge", "late", "slow"])
def test_hostile_answers(raw, code, names, reference):
    fake = FakeEngine(reference, "vllm")
    fake.raw = raw
    with fake.running() as url:
        refuse(code, *line(url, "--served-timeout", 1, sequences=1), names=names)


def test_another_model_is_named(reference):
    def longer(place, logits):
        out = logits.new_full((len(logits), 9000), -50.0)
        out[:, 8999] = 9.0
        return out

    with FakeEngine(reference, "vllm", longer).running() as url:
        refuse(BAD_INPUT, *line(url, generated=0), names=["token 8999", "another model"])


@pytest.mark.parametrize("arguments, names", [
    (["--served", "https://host:8000"], ["TLS", "http://"]),
    (["--served", "localhost:8000"], "http://localhost:8000"),
    (["--served", "http://me:secret@host"], "OSCAR_SERVER_KEY"),
    (["--served", "http://host:99999"], "http://localhost:8000"),
    (["--served", "http://host", "--served-tokens", "200"], ["--served-tokens 200", "400"]),
    (["--served-tokens", "5"], "--served"),
    (["--served-timeout", "5"], "--served"),
])
def test_refusals(arguments, names):
    refuse(USAGE, "verify", "--model", MODEL, "--text", SAMPLE / "heldout.txt", "--context", 400, *arguments, names=names)


def test_a_key_is_sent(reference, monkeypatch, tmp_path):
    """And the base of OpenAI's API is the server, as clients write it. A name obeys no terminal and no page."""
    fake = FakeEngine(reference, "vllm")
    fake.name = "a\x1b[31m<b>|"
    with fake.running() as url:
        monkeypatch.setenv("OSCAR_SERVER_KEY", "secret")
        succeed(*line(url + "/v1/", "--no-gate", "--html", tmp_path / "r.html", "--markdown", tmp_path / "r.md", sequences=1))
        assert r"a\x1b[31m&lt;b&gt;|" in (tmp_path / "r.html").read_text() and "<b>" not in (tmp_path / "r.md").read_text()
        assert set(fake.keys) == {"Bearer secret"} and len(fake.keys) == 3
        monkeypatch.setenv("OSCAR_SERVER_KEY", "a\r\nX: b")
        refuse(USAGE, *line(url, "--no-gate"), names="OSCAR_SERVER_KEY")
