"""quality.py MODEL BUNDLE TEXT: what vLLM serves from a 2-bit cache against its BF16 cache: KL and perplexity over real text.

Each sequence passes through vLLM's engine in chunks, first with BF16, then with the bundle. A hook keeps the last hidden state of every
token (a few KB), and the GPU computes both distributions from it, some rows at a time. So no table of the vocabulary's size is stored.

A token of a chunk sees its chunk and earlier BF16 windows exactly, everything else as stored. --chunk 1 is decoding: compare with
`oscar-verify --path decode`. With longer chunks the window of a token is up to chunk - 1 tokens longer, so the KL is a little lower.
`oscar-verify --path prefill` simulates windows that end at each token, so its KL agrees with --path decode within a few percent. Give
oscar-verify the same text, `--context` and `--max-sequences`. vLLM keeps windowed layers in BF16, and oscar-verify does so for layers that the
bundle leaves out: fit with `--windows` whose recent window holds the sliding one (64,512 for Gemma 3).

Prints a line of JSON for each context. Needs one GPU, torch, transformers and vLLM 0.33."""
import argparse
import json
import math
import os
import pathlib
import subprocess
import sys
import tempfile

import torch

ROWS = 64  # of logits in memory at a time


def sequences(ids, bos, length, most):
    """As oscar-verify cuts a text: if it begins with `bos`, every sequence does. The last, shorter one is left out."""
    head = [bos] if bos is not None and ids[:1] == [bos] else []
    body, step = ids[len(head):], length - len(head)
    return [head + body[i:i + step] for i in range(0, len(body) - step + 1, step)][:most]


class Totals:
    """Sums over scored positions: KL in nats, log-likelihoods, equal top tokens."""

    def __init__(self):
        self.kl = self.base = self.coded = 0.0
        self.same = self.count = 0

    def add(self, base, coded, targets):
        """Logits [N, vocabulary] of both runs at the same positions; targets [N]: the tokens that follow."""
        a, b = base.double().log_softmax(-1), coded.double().log_softmax(-1)
        at = torch.arange(len(targets), device=a.device)
        self.kl += float((a.exp() * (a - b)).sum())
        self.base -= float(a[at, targets].sum())
        self.coded -= float(b[at, targets].sum())
        self.same += int((a.argmax(-1) == b.argmax(-1)).sum())
        self.count += len(targets)

    def found(self):
        ratio = math.exp((self.coded - self.base) / self.count)
        return {"scored": self.count, "kl": self.kl / self.count, "ppl_bf16": math.exp(self.base / self.count),
                "ppl": math.exp(self.coded / self.count), "ppl_ratio": ratio, "same_top": self.same / self.count}


class Hook:
    """Gives consume(rows, first position) the hidden states of one sequence, whose positions come in order."""

    def __init__(self, consume):
        self.consume, self.at, self.length = consume, None, 0

    def begin(self, length):
        self.at, self.length = 0, length

    def __call__(self, model, arguments, named, hidden):
        if self.at is None or self.at >= self.length:
            return
        positions = named["positions"] if "positions" in named else arguments[1]
        positions = (positions if positions.dim() == 1 else positions[0]).tolist()
        count = 0
        while count < len(positions) and positions[count] == self.at + count < self.length:
            count += 1
        if count == 0:
            raise RuntimeError(f"vLLM computed positions {positions[:4]}, expected {self.at}")
        self.consume(hidden[:count], self.at)
        self.at += count


def engine(model, bundle, longest, chunk):
    """vLLM with one request at a time, without graphs, in this process."""
    os.environ.update(VLLM_ENABLE_V1_MULTIPROCESSING="0", VLLM_USE_FLASHINFER_SAMPLER="0", VLLM_NO_USAGE_STATS="1", HF_HUB_OFFLINE="1",
                      VLLM_ALLOW_INSECURE_SERIALIZATION="1", VLLM_ALLOW_LONG_MAX_MODEL_LEN="1")  # for the one token after the last position
    from vllm import LLM
    ours = dict(kv_cache_dtype="oscar", attention_backend="OSCAR", additional_config={"oscar_bundle": bundle}) if bundle else {}
    return LLM(model=model, dtype="bfloat16", skip_tokenizer_init=True, enforce_eager=True, enable_prefix_caching=False, max_num_seqs=1,
               max_model_len=longest + 1, max_num_batched_tokens=chunk, enable_chunked_prefill=True, gpu_memory_utilization=0.5,
               kv_cache_memory_bytes=8 << 30, compilation_config={"mode": 0, "cudagraph_mode": "NONE"}, **ours)


def each_sequence(llm, hook, texts):
    from vllm import SamplingParams
    handle = llm.apply_model(lambda model: model.register_forward_hook(hook, with_kwargs=True))[0]
    for ids in texts:
        hook.begin(len(ids))
        llm.generate([{"prompt_token_ids": ids}], SamplingParams(max_tokens=1, temperature=0, detokenize=False), use_tqdm=False)
        if hook.at != len(ids):
            raise RuntimeError(f"vLLM computed {hook.at} of {len(ids)} positions")
        yield ids
    handle.remove()


def record(a, texts, folder):
    """The BF16 run: hidden states [T, width] of every sequence in a file of its own."""
    held = []
    hook = Hook(lambda rows, first: held.append(rows.to("cpu", copy=True)))
    for i, _ in enumerate(each_sequence(engine(a.model, None, max(map(len, texts)), a.chunk), hook, texts)):
        torch.save(torch.cat(held), folder / f"{i}.pt")
        held.clear()


def compare(a, texts, folder, first):
    """The run with the bundle, scored against the files; {length: Totals}."""
    llm, totals, now = engine(a.model, a.bundle, max(map(len, texts)), a.chunk), {}, {}
    model = llm.apply_model(lambda model: model)[0]

    @torch.no_grad()
    def consume(rows, at):
        ids, base = now["ids"], now["base"]
        begin, end = max(at, first), min(at + len(rows), len(ids) - 1)  # the last token has none after it
        for i in range(begin, end, ROWS):
            until = min(i + ROWS, end)
            targets = torch.tensor(ids[i + 1:until + 1], device=rows.device)
            both = (base[i:until].to(rows.device), rows[i - at:until - at])
            totals.setdefault(len(ids), Totals()).add(*(model.compute_logits(x.contiguous()) for x in both), targets)

    def start(i):
        if i < len(texts):
            now.update(ids=texts[i], base=torch.load(folder / f"{i}.pt", mmap=True))

    start(0)
    for i, _ in enumerate(each_sequence(llm, Hook(consume), texts)):
        start(i + 1)
    return totals


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name in ("model", "bundle", "text"):
        parser.add_argument(name)
    parser.add_argument("--contexts", default="8192,32768")
    parser.add_argument("--sequences", type=int, default=2, help="of each context")
    parser.add_argument("--chunk", type=int, default=32)
    parser.add_argument("--first", type=int, help="first scored position (default: the first that sees a quantized token)")
    parser.add_argument("--record", type=pathlib.Path, help=argparse.SUPPRESS)  # the BF16 run, in a process of its own
    a = parser.parse_args()
    from oscar_kv.format.bundle import load_bundle
    from transformers import AutoTokenizer
    tokenizer, bundle = AutoTokenizer.from_pretrained(a.model), load_bundle(a.bundle)
    ids = tokenizer(pathlib.Path(a.text).read_text(encoding="utf-8"))["input_ids"]
    texts = []
    for length in map(int, a.contexts.split(",")):
        found = sequences(ids, tokenizer.bos_token_id, length, a.sequences)
        if not found:
            sys.exit(f"{a.text}: has {len(ids)} tokens, fewer than the context {length}; pass a longer text or shorter --contexts")
        texts += found
    if a.record:
        record(a, texts, a.record)
        return
    first = bundle.sink + bundle.recent if a.first is None else a.first
    with tempfile.TemporaryDirectory() as work:
        subprocess.run([sys.executable, __file__, *sys.argv[1:], "--record", work], check=True)
        for length, total in compare(a, texts, pathlib.Path(work), first).items():
            print(json.dumps({"model": pathlib.Path(a.model).name, "bundle": pathlib.Path(a.bundle).name, "context": length,
                              "sequences": sum(len(t) == length for t in texts), "chunk": a.chunk, "first": first,
                              **{k: round(v, 6) for k, v in total.found().items()}}), flush=True)


if __name__ == "__main__":
    main()
