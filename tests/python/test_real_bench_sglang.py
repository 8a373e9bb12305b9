"""tests/bench/real/forced_sglang.py with SGLang's own requests, batches and calls of logit processors, on made-up distributions. Needs no GPU."""
import json
import pathlib
import sys
import time
import types

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("sglang.version", reason="sglang is not installed (scripts/requirements-sglang.txt)")
import sglang_setup  # noqa: E402

sglang_setup.prepare()
BENCH = pathlib.Path(__file__).resolve().parents[1] / "bench"
sys.path.insert(0, str(BENCH / "real"))
import forced  # noqa: E402
import forced_sglang  # noqa: E402
from distributions import TAIL  # noqa: E402
from sglang.srt.layers.sampler import apply_custom_logit_processor  # noqa: E402
from sglang.srt.managers.schedule_batch import Req  # noqa: E402
from sglang.srt.sampling.custom_logit_processor import CustomLogitProcessor  # noqa: E402
from sglang.srt.sampling.sampling_batch_info import ProcessorEntry, SamplingBatchInfo  # noqa: E402
from sglang.srt.sampling.sampling_params import SamplingParams  # noqa: E402

TEXTS, VOCABULARY = [list(range(100, 300)), list(range(300, 500))], 600
PROMPT = 200 - TAIL


def request(text, folder, into):
    """As SGLang makes one of what its engine was given; without a text, one that asks for no processor."""
    if text is None:
        return Req("x", "", [1, 2, 3], SamplingParams(max_new_tokens=9, temperature=0))
    given = forced_sglang.asked(forced.wanted(text, TEXTS[text], 2 * TAIL, folder, into))
    return Req(str(text), "", TEXTS[text][:PROMPT], SamplingParams(**given), custom_logit_processor=forced_sglang.Forced.to_str())


def batch(requests):
    rows = [i for i, r in enumerate(requests) if r.custom_logit_processor]
    ones = torch.ones(len(requests))
    processor = CustomLogitProcessor.from_str(requests[rows[0]].custom_logit_processor)
    return SamplingBatchInfo(temperatures=ones[:, None], top_ps=ones, top_ks=ones.int(), min_ps=ones, is_all_greedy=True, is_any_greedy=True,
                             need_top_p_sampling=False, need_top_k_sampling=False, need_min_p_sampling=False, vocab_size=VOCABULARY,
                             has_custom_logit_processor=True, custom_params=[r.sampling_params.custom_params for r in requests],
                             custom_logit_processor={1: ProcessorEntry(processor, rows, torch.tensor(rows))}, device="cpu")


def pass_of(requests, info, length, logits):
    """One pass after which the requests with texts have `length` tokens in the cache; returns the chosen tokens."""
    for one in requests:
        one.kv.kv_committed_len = length
    apply_custom_logit_processor(logits, info)
    return logits.argmax(-1).tolist()


def decode(folder, into, made):
    requests = [request(1, folder, into), request(None, folder, into), request(0, folder, into)]
    info = batch(requests)
    chunk = made[0].clone()
    assert pass_of(requests, info, PROMPT - 8, chunk) == made[0].argmax(-1).tolist()  # a part of the prompts
    for step in range(TAIL + 2):  # the last one runs beside the answer: SGLang sees a pass later that a request has ended
        logits = made[step].clone()
        tokens = pass_of(requests, info, PROMPT + step, logits)
        assert torch.equal(logits[1], made[step, 1])
        if step < TAIL:
            assert (tokens[0], tokens[2]) == (TEXTS[1][PROMPT + step], TEXTS[0][PROMPT + step])
        if step == 0:
            assert not (into and into.exists())


def test_texts_are_decoded_token_by_token(tmp_path):
    made = torch.randn(TAIL + 2, 3, VOCABULARY)
    decode(tmp_path, None, made)
    assert torch.allclose(torch.load(tmp_path / "1.pt"), made[1:-1, 0].log_softmax(-1))
    other = made.clone()
    other[:, 0, 3] += 1
    decode(tmp_path, tmp_path / "found", other)
    found = json.loads((tmp_path / "found").read_text())
    assert found["steps"] == 2 * TAIL and found["kl_by_text"][0] == 0 < found["kl_by_text"][1]
    a, b = made[1:-1, 0].log_softmax(-1), other[1:-1, 0].log_softmax(-1)
    assert found["kl_by_text"][1] == pytest.approx(float((a.exp() * (a - b)).sum(-1).mean()), rel=1e-3)


class Made:
    """An engine that decodes what it is told."""

    def __init__(self, token):
        self.token = token

    def generate(self, input_ids, sampling_params, custom_logit_processor):
        assert [len(p) for p in input_ids] == [PROMPT] * len(input_ids) and "Forced" in bytes.fromhex(
            json.loads(custom_logit_processor)["callable"]).decode(errors="ignore")
        return [{"output_ids": [self.token or t for t in given["custom_params"]["tail"]] + [0]} for given in sampling_params]


def test_tokens_that_were_not_forced_and_steps_that_were_not_scored(tmp_path):
    def ask(token):
        return lambda prompts, wanted: forced_sglang.ask(Made(token), prompts, wanted)

    forced.run(ask(None), TEXTS, [0, 1], 1, tmp_path)
    with pytest.raises(RuntimeError, match="text 0: the engine decoded .7, 7, 7, 7. ..., expected .236, 237"):
        forced.run(ask(7), TEXTS, [0, 1], 2, tmp_path)
    with pytest.raises(RuntimeError, match="the engine did not score 128 steps"):
        forced.run(ask(None), TEXTS, [0, 1], 2, tmp_path, tmp_path / "found")


class Slow:
    """An engine that writes a token in 10 ms, and whose radix cache is emptied at the second call."""

    def __init__(self):
        self.asked, self.flushed = [], 0

    def flush_cache(self):
        self.flushed += 1
        return types.SimpleNamespace(success=self.flushed % 2 == 0)

    def generate(self, input_ids, sampling_params, stream=False):
        self.asked.append(len(input_ids))
        if stream:
            return self.tokens(sampling_params["max_new_tokens"])
        return [{"meta_info": {"completion_tokens": given["max_new_tokens"]}} for given in sampling_params]

    @staticmethod
    def tokens(count):
        for number in [1, *range(3, count, 2), count]:  # some come in pairs
            time.sleep(.02)
            yield {"meta_info": {"completion_tokens": number}}


def test_rows_of_traffic(monkeypatch):
    monkeypatch.syspath_prepend(BENCH / "sglang")
    import traffic
    engine = Slow()
    row = traffic.Traffic(engine, forgets=True).row(1, 20, 30)
    assert row["requests"] == 1 and row["out_tok_s"] > 0 and 9.9 < row["decode_ms"] < 15
    assert engine.asked[:2] == [1, 1] and 10 <= engine.asked[2] <= 30 and engine.flushed == 6
    assert "decode_ms" not in traffic.Traffic(engine, forgets=False).row(9, 20, 30) and engine.asked[3:] == [8, 9] and engine.flushed == 6
