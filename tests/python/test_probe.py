"""python -m oscar_kv.serve_check --url: the probe of a bundle through a server's completions, which a server here plays."""
import http.server
import json
import threading

import pytest

pytest.importorskip("torch")

from conftest import SAMPLES  # noqa: E402
from oscar_kv import serve_check  # noqa: E402
from oscar_kv.files.errors import InputError  # noqa: E402
from oscar_kv.files.fingerprint import checkpoint_fingerprint  # noqa: E402
from oscar_kv.probe import read_probe  # noqa: E402

IDS = [7 * i % 901 for i in range(40)]
BF16 = [-0.5 - 0.01 * i for i in range(8)]
PROBE = {"format": "oscar-probe", "format_version": 1, "token_ids": IDS, "bf16": BF16, "bundle": [x - 0.02 for x in BF16], "kl": 0.01}


def bundle(folder, **changed):
    (folder / "oscar_bundle.json").write_text("{}")
    (folder / "probe.json").write_text(json.dumps(PROBE | changed))
    return str(folder)


@pytest.fixture
def server():
    """Gives what BF16 gives, less `lost`, and counts requests at once."""
    class Handler(http.server.BaseHTTPRequestHandler):
        def do_POST(self):
            asked = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            with made.lock:
                made.now += 1
                made.most = max(made.most, made.now)
            made.barrier.wait(0.05)
            done = len(asked["prompt"])
            right = (asked["prompt"] == IDS[:done] and asked["allowed_token_ids"] == [IDS[done]] and asked["max_tokens"] == 2
                     and asked["logprob_token_ids"] == [IDS[done + 1]])
            value = BF16[done + 1 - 32] - made.lost
            body = {"choices": [{"logprobs": {"top_logprobs": [{"token_id:1": -9.0}, {f"token_id:{IDS[done + 1]}": value}]}}]}
            body = json.dumps(body if made.answer is None else made.answer).encode()
            with made.lock:
                made.now -= 1
            self.send_response(200 if right else 400)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_):
            pass

    made = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    made.lock, made.barrier, made.now, made.most, made.lost, made.answer = threading.Lock(), threading.Event(), 0, 0, 0.03, None
    made.url = f"http://127.0.0.1:{made.server_port}"
    thread = threading.Thread(target=made.serve_forever)
    thread.start()
    yield made
    made.shutdown()
    thread.join()
    made.server_close()


@pytest.mark.parametrize("lost, code", [(0.03, 0), (0.08, 0), (0.1, 1), (3.0, 1)])
def test_a_server_is_compared_with_the_prediction(server, tmp_path, capsys, lost, code):
    server.lost = lost
    assert serve_check.main(["org/model", bundle(tmp_path), "--url", server.url]) == code
    out, err = capsys.readouterr()
    assert "measured by oscar-fit | 0.0200 |" in out and "at most | 0.0900 |" in out
    assert all(f"requests at once: {n} | {lost:.4f} |" in out for n in (1, 8, 40)) and ("do not serve" in err) == bool(code)
    assert 2 <= server.most <= 8  # of eight tokens


def test_an_added_checkpoint_is_not_compared_with_the_fitted_one(server, tmp_path, capsys):
    """Quantized weights are further from the fitted BF16 than a right cache."""
    line, numbers = [str(SAMPLES / "tiny-qwen3"), bundle(tmp_path), "--url", server.url], "1" * 64
    (tmp_path / "oscar_bundle.json").write_text(json.dumps({"numbers_sha256": numbers}))
    added = {"format": "oscar-checkpoints", "format_version": 1, "numbers_sha256": numbers,
             "checkpoints": [{"fingerprint": checkpoint_fingerprint(line[0]), "name": "twin", "kl": 0.01}]}
    (tmp_path / "checkpoints.json").write_text(json.dumps(added))
    assert serve_check.main(line) == 3
    assert f"oscar-verify --served {server.url} --model {line[0]} --text TEXT" in capsys.readouterr().err
    assert serve_check.main(["org/model", *line[1:]]) == 0  # its files are not here
    assert serve_check.main([str(SAMPLES / "tiny-qwen2"), *line[1:]]) == 0


def test_other_answers_get_a_sentence(server, tmp_path, capsys):
    for answer in ({}, {"choices": [{"logprobs": None}]}, {"choices": [{"logprobs": {"top_logprobs": [{}]}}]}, [1]):
        server.answer = answer
        assert serve_check.main(["org/model", bundle(tmp_path), "--url", server.url]) == 3
        assert "no log-probability of token" in capsys.readouterr().err
    assert serve_check.main(["org/model", bundle(tmp_path), "--url", "http://127.0.0.1:9"]) == 4
    assert "does not answer" in capsys.readouterr().err


@pytest.mark.parametrize("changed", [
    {"format": "other"}, {"format_version": 2}, {"token_ids": IDS[:9]}, {"token_ids": [-1] * 40}, {"token_ids": [1.5] * 40},
    {"bf16": BF16[1:]}, {"bundle": [1.0] * 8}, {"bf16": [True] * 8}, {"bf16": ["x"] * 8}, {"bf16": [], "bundle": []},
])
def test_hostile_probes_get_a_sentence(tmp_path, changed):
    bundle(tmp_path, **changed)
    with pytest.raises(InputError, match="probe.json: "):
        read_probe(tmp_path)


def test_a_bundle_without_a_probe(tmp_path, capsys):
    (tmp_path / "oscar_bundle.json").write_text("{}")
    assert serve_check.main(["org/model", str(tmp_path), "--url", "http://127.0.0.1:9"]) == 3
    assert "probe.json: is missing" in capsys.readouterr().err
