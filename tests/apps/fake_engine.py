"""A server that answers as vLLM or SGLang do, from the logits of transformers, with faults on demand."""
import contextlib
import json
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import torch

TOP = 20


class FakeEngine:
    """fault(place, logits): what the engine computes in place of the logits; place is "prefill" or "decode"."""

    def __init__(self, model, engine, fault=None):
        self.model, self.engine, self.fault = model, engine, fault
        self.lock = threading.Lock()
        self.name = "served/tiny"
        self.requests, self.keys = [], []  # bodies, and keys of all requests
        self.change = lambda answer: answer  # of an answer, before it is written as JSON
        self.raw = None  # bytes in place of all of the answer, head included

    def logits(self, ids, place):
        with torch.no_grad():
            out = self.model(torch.tensor([ids])).logits[0].float()
        return self.fault(place, out) if self.fault else out

    def places(self, ids, count):
        """[(token, logprob, [(token, logprob)...])...] of the prompt's tokens from the second on, and of `count` more."""

        def told(logits, token):
            logprobs = torch.log_softmax(logits, -1)
            top = torch.topk(logprobs, TOP)
            return token, float(logprobs[token]), list(zip(top.indices.tolist(), top.values.tolist()))

        prefill = self.logits(ids, "prefill")
        prompt = [told(prefill[t - 1], ids[t]) for t in range(1, len(ids))]
        generated = []
        for place in range(count):
            row = prefill[-1] if place == 0 else self.logits(ids, "decode")[-1]
            token = int(row.argmax())
            generated.append(told(row, token))
            ids = [*ids, token]
        return prompt, generated

    def vllm(self, body):
        assert body["temperature"] == 0 and body["ignore_eos"] and body["return_tokens_as_token_ids"]
        assert body["model"] == self.name
        prompt, generated = self.places(body["prompt"], body["max_tokens"])
        places = None
        if body.get("prompt_logprobs") == TOP:
            places = [None] + [{str(t): {"logprob": p, "rank": 1, "decoded_token": "x"} for t, p in [(token, own), *top]}
                               for token, own, top in prompt]
        logprobs = {"tokens": [f"token_id:{token}" for token, _, _ in generated],
                    "token_logprobs": [own for _, own, _ in generated],
                    "top_logprobs": [{f"token_id:{t}": p for t, p in top} for _, _, top in generated],
                    "text_offset": [0] * len(generated)}
        return {"choices": [{"text": "x", "prompt_logprobs": places, "logprobs": logprobs}]}

    def sglang(self, body):
        ids, start = body["input_ids"], body["logprob_start_len"]
        assert body["return_logprob"] and body["top_logprobs_num"] == TOP and start in (0, len(ids) - 1)
        prompt, generated = self.places(ids, body["sampling_params"]["max_new_tokens"])

        def pairs(places):
            return [[own, token, None] for token, own, _ in places]

        def tops(places):
            return [[[p, t, None] for t, p in top] for _, _, top in places]

        return {"text": "x", "meta_info": {
            "input_token_logprobs": [[None, ids[start], None], *pairs(prompt[start:])],
            "input_top_logprobs": [None, *tops(prompt[start:])],
            "output_token_logprobs": pairs(generated), "output_top_logprobs": tops(generated)}}

    def respond(self, path, body):
        if body is None:
            known = {"/v1/models": {"data": [{"id": self.name}]}}
            if self.engine == "sglang":
                known["/model_info"] = {}
            return (200, json.dumps(known[path])) if path in known else (404, '{"detail": "Not Found"}')
        assert path == {"vllm": "/v1/completions", "sglang": "/generate"}[self.engine]
        with self.lock:
            self.requests.append(body)
            return 200, json.dumps(self.change(getattr(self, self.engine)(body)))

    @contextlib.contextmanager
    def running(self):
        """The URL of the server while the block runs."""
        engine = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def reply(self, body=None):
                engine.keys.append(self.headers.get("Authorization"))
                if body is not None and engine.raw is not None:
                    for part in engine.raw if isinstance(engine.raw, list) else [engine.raw]:
                        self.wfile.write(part() if callable(part) else part)
                    self.close_connection = True
                    return
                status, text = engine.respond(self.path, body)
                content = text.encode()
                self.send_response(status)
                self.send_header("Content-Type", "application/json")
                if body is not None:  # in chunks, as servers of long answers may
                    self.send_header("Transfer-Encoding", "chunked")
                    parts = (content[i:i + 5000] for i in range(0, len(content), 5000))
                    content = b"".join(b"%x\r\n%s\r\n" % (len(part), part) for part in parts) + b"0\r\n\r\n"
                else:
                    self.send_header("Content-Length", str(len(content)))
                self.end_headers()
                self.wfile.write(content)

            def do_GET(self):
                self.reply()

            def do_POST(self):
                self.reply(json.loads(self.rfile.read(int(self.headers["Content-Length"]))))

            def log_message(self, *arguments):
                pass

        server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        threading.Thread(target=server.serve_forever, daemon=True).start()
        try:
            yield f"http://127.0.0.1:{server.server_port}"
        finally:
            server.shutdown()
            server.server_close()
