"""traffic.py CACHE [SLOTS REQUESTS:IN:OUT ...]: the rows of ../vllm/traffic.py in SGLang 0.5.23, with made-up weights of ../served_rows.py's geometry: the
same prompts and answers wait at once for SLOTS places (64 256:512:256). Prints a line of JSON a row: tokens per second, and with one request decode_ms, the
median time of a token after the first (the request is answered twice, and the second answer comes token by token).

CACHE: bf16, fp8 (fp8_e4m3), or one of ../served_rows.py (mixed: widths as fitted). Environment: TOKENS (of the KV cache, needed where engines share
a card), CONTEXT (the longest request that SGLang is told of, in place of the longest of the rows), and MEMORY, BACKEND, CHUNK, RADIX, EAGER, LAYERS, GEOMETRY, DEVICE of throughput.py and ../served_rows.py; TURNS and TURNS_WAIT as in
../vllm/traffic.py."""
import json
import os
import pathlib
import statistics
import sys
import time

sys.path[:0] = [str(pathlib.Path(__file__).resolve().parent), str(pathlib.Path(__file__).resolve().parents[1])]
import throughput  # noqa: E402
import torch  # noqa: E402
from served_rows import CONFIG, NAME  # noqa: E402
from turns import Turns, longest_request, requests_of  # noqa: E402


def asked_for(tokens):
    return {"max_new_tokens": tokens, "temperature": 0, "ignore_eos": True}


class Traffic:
    """Requests of random tokens to an engine. forgets: its radix cache is emptied before each measurement, so that none finds what the last one left."""

    def __init__(self, engine, forgets):
        self.engine, self.forgets = engine, forgets

    def forget(self):
        for _ in range(100):  # a request that has ended may still be listed
            if not self.forgets or self.engine.flush_cache().success:
                return
            time.sleep(.1)
        raise RuntimeError("SGLang did not empty its radix cache within 10 s")

    def go(self, count, given, made):
        """Seconds, and tokens that were written."""
        prompts, limits = requests_of(count, given, made, CONFIG["vocab_size"])
        self.forget()
        begin = time.perf_counter()
        answers = self.engine.generate(input_ids=prompts, sampling_params=[asked_for(n) for n in limits])
        return time.perf_counter() - begin, sum(a["meta_info"]["completion_tokens"] for a in answers)

    def decode_ms(self, given, made):
        """Median milliseconds of a token of one request, from the times at which they come; several may come at once."""
        (prompt,), (limit,) = requests_of(1, given, made, CONFIG["vocab_size"])
        self.forget()
        came = [(time.perf_counter(), part["meta_info"]["completion_tokens"])
                for part in self.engine.generate(input_ids=prompt, sampling_params=asked_for(limit), stream=True)]
        gaps = [1e3 * (end - begin) / (now - before) for (begin, before), (end, now) in zip(came, came[1:]) if now > before]
        return round(statistics.median(gaps), 2) if gaps else None

    def row(self, requests, given, made):
        """A measured row: a few requests first, which warm the engine up."""
        self.go(min(8, requests), given, made)
        seconds, tokens = self.go(requests, given, made)
        alone = {"decode_ms": self.decode_ms(given, made)} if requests == 1 else {}
        return dict(requests=requests, inp=given, out=made, seconds=round(seconds, 2), out_tok_s=round(tokens / seconds), **alone)


def main():
    turns, cache, slots = Turns(os.environ.get("TURNS", "")), sys.argv[1], int((sys.argv[2:3] or [64])[0])
    rows = [tuple(map(int, row.split(":"))) for row in sys.argv[3:] or ["256:512:256"]]
    engine, options = throughput.engine_of(cache, slots, longest_request(rows))
    capacity = throughput.capacity_of(engine)
    if capacity < (options["max_total_tokens"] or 0):
        print(f"the cache holds {capacity} tokens, asked for {options['max_total_tokens']}: raise MEMORY", file=sys.stderr)
    about = dict(model=NAME, engine="sglang", cache=cache, prefix_caching=not options["disable_radix_cache"], slots=slots, capacity=capacity,
                 gpu=torch.cuda.get_device_name() if torch.cuda.is_available() else "cpu")
    traffic = Traffic(engine, forgets=not options["disable_radix_cache"])
    for number in turns:
        for row in rows:
            print(json.dumps(about | traffic.row(*row) | {"round": number}), flush=True)
    engine.shutdown()


if __name__ == "__main__":  # SGLang starts its processes anew
    main()
