"""sglang_answers.py JOB: one engine of SGLang in a process of its own. JOB is JSON: options (of sglang.Engine), prompts
(token ids), rounds (lists of prompt numbers that are asked together), tokens, out. Writes [[[tokens, log-probability of each,
{token: log-probability} of the 20 most likely at each place, cached tokens]]]."""
import json
import sys

import sglang_setup


def answer(facts):
    chosen = facts["output_token_logprobs"]
    tops = [{token: value for value, token, *_ in place} for place in facts["output_top_logprobs"]]
    return [token for _, token, *_ in chosen], [value for value, *_ in chosen], tops, facts["cached_tokens"]


def main():
    job = json.loads(sys.argv[1])
    if job["options"]["device"] == "cpu":
        sglang_setup.prepare()
    import sglang
    engine = sglang.Engine(page_size=64, dtype="bfloat16", sampling_backend="pytorch", skip_tokenizer_init=True,
                           disable_prefill_cuda_graph=True, **{"log_level": "error", **job["options"]})
    sampling = {"temperature": 0, "max_new_tokens": job["tokens"], "ignore_eos": True}
    rounds = []
    for asked in job["rounds"]:
        found = engine.generate(input_ids=[job["prompts"][i] for i in asked], sampling_params=sampling, return_logprob=True, top_logprobs_num=20)
        rounds.append([answer(one["meta_info"]) for one in found])
    with open(job["out"], "w", encoding="utf-8") as file:
        json.dump(rounds, file)
    engine.shutdown()


if __name__ == "__main__":  # SGLang starts its processes anew
    main()
