"""Samples text from a sample model itself; shared by make_sample_data.py and make_model_texts.py.

Documents are sampled together at temperature 1, with spans forced into them at chosen positions. These are needles,
their later recall, verbatim repeats of an earlier span, and openers that keep a document to one kind of text."""
import random
import unicodedata

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

NEEDLE = "One of the special magic numbers for {key} is: {value}."
QUESTION = (
    "What is the special magic number for {key} mentioned in the provided text? "
    "The special magic number for {key} mentioned in the provided text is: {value}."
)


def load(path, device="cpu"):
    """(tokenizer, FP32 model) of a directory; checks the decoder below against transformers."""
    tok = AutoTokenizer.from_pretrained(path)
    model = AutoModelForCausalLM.from_pretrained(path, dtype=torch.float32).eval().to(device)
    check_decoder(model, tok)
    return tok, model


def plan(tok, rng, keys, length, every):
    """Forced spans of one document: (position, tokens) for needles and recalls, (position, None) for a repeat."""
    spans = []
    encode = lambda text: tok(text, add_special_tokens=False).input_ids
    position = rng.randrange(40, 120)
    while position < length - 200:
        if rng.random() < 0.2:
            spans.append((position, None))
        else:
            key, value = keys.pop(), str(rng.randrange(10**6, 10**7))
            spans.append((position, encode("\n" + NEEDLE.format(key=key, value=value) + "\n")))
            # Recalled at a distance that often exceeds a recent window of 256 tokens, sometimes twice.
            for _ in range(rng.choice([1, 1, 2])):
                recall = position + rng.choice([120, 300, 500, 800, 1200, 1800]) + rng.randrange(100)
                if recall < length - 60:
                    form = NEEDLE if rng.random() < 0.6 else QUESTION
                    spans.append((recall, encode("\n" + form.format(key=key, value=value) + "\n")))
        position += every + rng.randrange(every)
    return sorted(spans, key=lambda span: span[0])


class Decoder:
    """Llama, Qwen2 or Qwen3, one token at a time with a preallocated cache. Growing the cache of transformers by
    concatenation would take hours for documents of thousands of tokens. load() checks it against transformers."""

    def __init__(self, model, rows, length):
        self.model, config = model.model, model.config
        self.head = model.get_output_embeddings().weight
        self.eps, self.heads = config.rms_norm_eps, config.num_key_value_heads
        self.dim = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
        self.cache = torch.zeros(config.num_hidden_layers, 2, rows, self.heads, length, self.dim, device=self.head.device)
        theta = getattr(config, "rope_theta", None) or config.rope_parameters["rope_theta"]
        self.frequencies = theta ** -(torch.arange(0, self.dim, 2).double() / self.dim).to(self.head.device)
        self.position = 0

    def norm(self, x, weight):
        return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + self.eps) * weight

    def rotate(self, x):
        angle = (self.position * self.frequencies).float().repeat(2)
        low, high = x.chunk(2, -1)
        return x * angle.cos() + torch.cat([-high, low], -1) * angle.sin()

    def heads_of(self, x, norm):
        """x [B, heads * d] -> [B, heads, d], normed if the family has QK-norm"""
        x = x.view(len(x), -1, self.dim)
        return x if norm is None else self.norm(x, norm.weight)

    def step(self, tokens):
        """tokens [B] -> logits [B, vocabulary]"""
        x = self.model.embed_tokens(tokens)
        end = self.position + 1
        for layer, (keys, values) in zip(self.model.layers, self.cache):
            a, h = layer.self_attn, self.norm(x, layer.input_layernorm.weight)
            q = self.rotate(self.heads_of(a.q_proj(h), getattr(a, "q_norm", None)))
            keys[:, :, self.position] = self.rotate(self.heads_of(a.k_proj(h), getattr(a, "k_norm", None)))
            values[:, :, self.position] = self.heads_of(a.v_proj(h), None)
            q = q.view(len(tokens), self.heads, -1, self.dim)  # [B, Hkv, g, d]
            weights = torch.softmax(q @ keys[:, :, :end].transpose(-1, -2) * self.dim**-0.5, -1)
            x = x + a.o_proj((weights @ values[:, :, :end]).flatten(1))
            x = x + layer.mlp(self.norm(x, layer.post_attention_layernorm.weight))
        self.position = end
        return self.norm(x, self.model.norm.weight) @ self.head.T


@torch.no_grad()
def sample(model, tok, plans, length, seed, openers=None):
    """One document per plan, sampled together; returns token lists. openers: for each document a list of token
    lists. A document starts with one of its openers, and with another one after the model ends the text."""
    device = model.device
    generator = torch.Generator(device).manual_seed(seed)
    banned = tok.convert_tokens_to_ids(["<|im_start|>", "<|im_end|>"])
    choose = random.Random(seed)
    decoder = Decoder(model, len(plans), length)
    rows = [[] for _ in plans]
    queues = [list(choose.choice(o)) for o in openers] if openers else [[] for _ in plans]
    pending = [list(p) for p in plans]
    last = [tok.eos_token_id] * len(plans)
    for t in range(length):
        logits = decoder.step(torch.tensor(last, device=device)).double()
        logits[:, banned] = -torch.inf
        drawn = torch.multinomial(torch.softmax(logits, -1), 1, generator=generator)[:, 0].tolist()
        for b, row in enumerate(rows):
            if not queues[b] and pending[b] and pending[b][0][0] <= t:
                _, forced = pending[b].pop(0)
                if forced is None and len(row) > 100:
                    start = max(0, len(row) - 700)
                    forced = row[start : start + 60]
                queues[b] = list(forced or [])
            row.append(queues[b].pop(0) if queues[b] else drawn[b])
            if openers and row[-1] == tok.eos_token_id:
                queues[b] = list(choose.choice(openers[b]))
        last = [row[-1] for row in rows]
        if t % 500 == 0:
            print(f"  token {t} of {length}", flush=True)
    return rows


@torch.no_grad()
def check_decoder(model, tok):
    ids = tok("The valve is open and the pump is running.").input_ids
    decoder = Decoder(model, 1, len(ids))
    ids = torch.tensor([ids], device=model.device)
    ours = torch.cat([decoder.step(ids[:, i]) for i in range(ids.shape[1])])
    difference = (ours - model(ids).logits[0]).abs().max().item()
    assert difference < 1e-3, f"the decoder of this script differs from transformers by {difference}"


def clean(tok, ids):
    """Text that can be read back unchanged: valid, NFC, no control characters; end-of-text marks become blank lines."""
    text = tok.decode(ids).replace(tok.eos_token, "\n\n")
    text = unicodedata.normalize("NFC", text)
    return "".join(c for c in text if c == "\n" or c == "\t" or (c != "\ufffd" and unicodedata.category(c)[0] != "C"))


def ngrams(ids, n=24):
    """Runs of n tokens, except repetitive ones (fewer than n / 3 different tokens)."""
    runs = (tuple(ids[i : i + n]) for i in range(len(ids) - n + 1))
    return {run for run in runs if len(set(run)) >= n // 3}


def tokens_of(tok, row):
    if "input_ids" in row:
        return row["input_ids"]
    if "messages" in row:
        return tok("\n".join(m["content"] for m in row["messages"])).input_ids
    return tok(row.get("text") or row["prompt"]).input_ids
