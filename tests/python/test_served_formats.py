"""oscar-verify --served against the engines' own Python: their classes read our requests, and write the answers that we read."""
import dataclasses
import json
import pathlib
import sys
import types

import pytest

sys.path.insert(0, str(pathlib.Path(__file__).parents[1] / "apps"))

from fake_engine import TOP, FakeEngine  # noqa: E402
from test_served_engine import MODEL, SEQUENCES, line, served_rows  # noqa: E402

from harness import succeed  # noqa: E402

transformers = pytest.importorskip("transformers")


@pytest.fixture(scope="module")
def reference():
    return transformers.AutoModelForCausalLM.from_pretrained(MODEL, dtype="float32").eval()


class Vllm(FakeEngine):
    def vllm(self, body):
        sys.modules.setdefault("orjson", types.ModuleType("orjson"))  # imported by the module and not called here
        from vllm.entrypoints.openai.completion import protocol
        from vllm.entrypoints.openai.completion.serving import OpenAIServingCompletion
        from vllm.logprobs import Logprob

        request = protocol.CompletionRequest.model_validate(body)
        assert not request.model_extra, "a field that vLLM does not know"
        sampling = request.to_sampling_params(request.max_tokens, {})
        assert sampling.prompt_logprobs == sampling.logprobs == TOP and sampling.ignore_eos and sampling.temperature == 0
        prompt, generated = self.places(request.prompt, sampling.max_tokens)

        def entry(token, own, top):  # the token's own comes first
            return {t: Logprob(logprob=p, rank=1, decoded_token="x") for t, p in [(token, own), *top]}

        logprobs = OpenAIServingCompletion._create_completion_logprobs(
            self, [t for t, _, _ in generated], [entry(*place) for place in generated], request.logprobs, None,
            return_as_token_id=request.return_tokens_as_token_ids)
        choice = protocol.CompletionResponseChoice(index=0, text="x", logprobs=logprobs, finish_reason="length",
                                                   prompt_logprobs=[None, *(entry(*place) for place in prompt)])
        usage = protocol.UsageInfo(prompt_tokens=len(request.prompt), total_tokens=len(request.prompt) + len(generated))
        answer = protocol.CompletionResponse(model=request.model, choices=[choice], usage=usage)
        return json.loads(answer.model_dump_json())

    def _get_decoded_token(self, *arguments, **options):
        from vllm.entrypoints.openai.completion.serving import OpenAIServingCompletion

        return OpenAIServingCompletion._get_decoded_token(*arguments, **options)


class Sglang(FakeEngine):
    def sglang(self, body):
        from sglang.srt.managers.io_struct import GenerateReqInput
        from sglang.srt.managers.tokenizer_manager import TokenizerManager
        from sglang.srt.sampling.sampling_params import SamplingParams

        known = {field.name for field in dataclasses.fields(GenerateReqInput)} if dataclasses.is_dataclass(GenerateReqInput) \
            else set(GenerateReqInput.__struct_fields__)
        assert set(body) <= known, "a field that SGLang does not know"
        request = GenerateReqInput(**body)
        request.normalize_batch_and_arguments()
        assert request.is_single and request.return_logprob and request.top_logprobs_num == TOP and request.logprob_start_len == 0
        sampling = SamplingParams(**request.sampling_params)
        assert sampling.ignore_eos
        prompt, generated = self.places(request.input_ids, sampling.max_new_tokens)

        def pairs(places, first=()):
            return TokenizerManager.detokenize_logprob_tokens(self, [*(None for _ in first), *(own for _, own, _ in places)],
                                                              [*first, *(token for token, _, _ in places)], False)

        def tops(places, first=()):
            values = [*([] for _ in first), *([p for _, p in top] for _, _, top in places)]
            ids = [*([] for _ in first), *([t for t, _ in top] for _, _, top in places)]
            return TokenizerManager.detokenize_top_logprobs_tokens(self, values, ids, False)

        first = request.input_ids[:1]
        return {"text": "x", "meta_info": {
            "input_token_logprobs": pairs(prompt, first), "input_top_logprobs": tops(prompt, first),
            "output_token_logprobs": pairs(generated), "output_top_logprobs": tops(generated)}}

    def detokenize_logprob_tokens(self, *arguments):
        from sglang.srt.managers.tokenizer_manager import TokenizerManager

        return TokenizerManager.detokenize_logprob_tokens(self, *arguments)


@pytest.mark.parametrize("engine, kind, module", [("vllm", Vllm, "vllm"), ("sglang", Sglang, "sglang")])
def test_the_engines_own_classes(engine, kind, module, reference, tmp_path):
    pytest.importorskip(module)
    fake = kind(reference, engine)
    with fake.running() as url:
        succeed(*line(url, "--report", tmp_path / "r.json"))
    assert len(fake.requests) == SEQUENCES
    rows = served_rows(tmp_path)
    assert all(row["kl"]["mean"] < 1e-4 and row["same_top1"] > 0.99 for row in rows.values()), rows
