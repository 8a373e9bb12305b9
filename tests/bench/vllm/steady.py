"""steady.py CACHE [STEPS]: what a step costs in vLLM when nothing changes: 60 requests decode, and a prompt of 512 tokens comes in every step, or none
does. The geometry is Qwen2.5-Coder-1.5B's with made-up weights. Prints the milliseconds of a step in five rounds of STEPS (40), then the kernels of a step
by their time, and the functions of the host by theirs, for both kinds of steps.

CACHE: bf16, fp8, or one of ../served_rows.py (mixed: widths as fitted). Environment: GEOMETRY=8b, TOKENS (of a running request at first, 400), and
PREFIX, EAGER_COMPILE, MEMORY of traffic.py."""
import cProfile
import json
import os
import pathlib
import pstats
import sys
import time

sys.path[:0] = [str(pathlib.Path(__file__).resolve().parent), str(pathlib.Path(__file__).resolve().parents[1])]
os.environ.setdefault("GEOMETRY", "1.5b")
import served_rows  # noqa: E402
import torch  # noqa: E402
import traffic  # noqa: E402

RUNNING, PROMPT, SLOTS = 60, 512, 64


class Server:
    """An engine that the caller steps."""

    def __init__(self, cache):
        self.engine = traffic.engine_of(served_rows.model_folder(), cache, SLOTS, 8192).llm_engine
        self.generator, self.count = torch.Generator().manual_seed(1), 0

    def add(self, tokens, answer):
        from vllm import SamplingParams
        self.count += 1
        ids = torch.randint(100, 150_000, (tokens,), generator=self.generator).tolist()
        self.engine.add_request(str(self.count), {"prompt_token_ids": ids},
                                SamplingParams(max_tokens=answer, temperature=0, ignore_eos=True, detokenize=False))

    def steps(self, count, mixed):
        """Milliseconds of a step."""
        torch.cuda.synchronize()
        begin = time.perf_counter()
        for _ in range(count):
            if mixed:
                self.add(PROMPT, 1)
            self.engine.step()
        torch.cuda.synchronize()
        return round(1e3 * (time.perf_counter() - begin) / count, 2)


def functions(server, mixed):
    found = cProfile.Profile()
    found.enable()
    server.steps(20, mixed)
    found.disable()
    pstats.Stats(found, stream=sys.stdout).sort_stats("tottime").print_stats(25)


def main():
    cache, count = sys.argv[1], int((sys.argv[2:3] or [40])[0])
    server = Server(cache)
    for _ in range(RUNNING):
        server.add(int(os.environ.get("TOKENS", 400)), 3000)
    server.steps(8, False)
    server.steps(20, True)
    about = dict(model=served_rows.NAME, cache=cache, compiled=not traffic.throughput.eager_compile("1"), prefix_caching=bool(os.environ.get("PREFIX")), gpu=torch.cuda.get_device_name())
    rounds = [(server.steps(count, True), server.steps(count, False)) for _ in range(5)]
    print(json.dumps(about | {name: [row[i] for row in rounds] for i, name in enumerate(("mixed_ms", "decode_ms"))}), flush=True)
    for mixed in (True, False):
        print(f"steps {'with' if mixed else 'without'} a prompt:")
        traffic.profiled(lambda mixed=mixed: server.steps(10, mixed), 10)
        functions(server, mixed)


if __name__ == "__main__":
    main()
