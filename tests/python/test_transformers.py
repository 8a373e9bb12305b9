"""attach(): a model of transformers generates with the 2-bit cache. Sample models on the CPU in FP32."""
import json
import math
import warnings

import pytest

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

import oscar_kv  # noqa: E402
from conftest import SAMPLES, window_rows  # noqa: E402
from cache_rows import coded_rows  # noqa: E402
from oscar_kv.files.errors import InputError  # noqa: E402
from oscar_kv.hf.cache import CACHE_NAME  # noqa: E402

torch.set_num_threads(1)


def load(name, **options):
    return transformers.AutoModelForCausalLM.from_pretrained(SAMPLES / name, dtype=torch.float32, **options).eval()


@pytest.fixture(scope="module")
def ids():
    """[1400] tokens of the held-out text; the sample models share one tokenizer's vocabulary size, not its words."""
    tokenizer = transformers.AutoTokenizer.from_pretrained(SAMPLES / "tiny-qwen3")
    return tokenizer((SAMPLES / "heldout.txt").read_text()[:12000], return_tensors="pt").input_ids[0, :1400]


@pytest.fixture(scope="module")
def model():
    return load("tiny-qwen3")


@pytest.fixture
def attached(model, fit):
    oscar_kv.attach(model, fit("tiny-qwen3", "--method", "waterfill"))
    yield model
    oscar_kv.detach(model)


def greedy(model, ids, tokens=12, **options):
    options = dict(do_sample=False, pad_token_id=0, eos_token_id=None, max_new_tokens=tokens) | options
    return model.generate(ids, **options)


def logits_of(model, ids, pieces, cache, mask=None):
    """[B, T, V]: the logits of ids in chunks of these lengths through a cache."""
    parts, first = [], 0
    for n in pieces:
        part = None if mask is None else mask[:, :first + n]
        with torch.no_grad():
            parts.append(model(ids[:, first:first + n], attention_mask=part, past_key_values=cache, use_cache=True).logits)
        first += n
    return torch.cat(parts, dim=1)


def divergence(logits, base):
    p, q = base.double().log_softmax(-1), logits.double().log_softmax(-1)
    return (p.exp() * (p - q)).sum(-1)


@pytest.mark.parametrize("name", ("tiny-llama", "tiny-qwen2"))  # and tiny-qwen3 everywhere else
def test_families_generate(name, ids, fit):
    """Every family that the tool supports and the samples hold: far from the windows the text stays the model's own."""
    model, prompt = load(name), ids[None, :150]
    base = greedy(model, prompt, tokens=6)
    with torch.no_grad():
        plain = model(base).logits
    oscar_kv.attach(model, fit(name, "--method", "waterfill"))
    cache = oscar_kv.new_cache(model)
    out = greedy(model, prompt, tokens=6, past_key_values=cache)
    assert out.shape == base.shape and torch.equal(out[:, :151], base[:, :151])  # the prompt attends to raw keys
    assert [layer.kv.lengths for layer in cache.layers] == [[155]] * len(cache.layers)
    pages = len(cache._table.pages[0])
    assert pages == -(-(155 - 16) // 64)
    kl = divergence(logits_of(model, base, [150] + [1] * 6, oscar_kv.new_cache(model)), plain)[0, 150:].mean()
    assert 0 < kl < 0.2, kl  # quantized, and near
    oscar_kv.detach(model)
    assert torch.equal(greedy(model, prompt, tokens=6), base) and model.config._attn_implementation == "sdpa"


def test_plain_generate_uses_the_cache(attached, ids, monkeypatch):
    """generate() without any argument of ours, and two prompts: as one cache after another."""
    from oscar_kv.cache.paged_kv import PagedKV
    counts, append = [], PagedKV.append
    monkeypatch.setattr(PagedKV, "append", lambda self, k, v, n: (counts.append(list(n)), append(self, k, v, n))[1])
    first = greedy(attached, ids[None, :100], tokens=3)
    assert counts == [[100]] * 4 + [[1]] * 8
    assert torch.equal(greedy(attached, ids[None, :100], tokens=3), first)


def test_the_command(fit, capsys):
    """python -m oscar_kv, with which README's five minutes end."""
    import re
    from oscar_kv.__main__ import main
    given = [str(SAMPLES / "tiny-qwen3"), str(fit("tiny-qwen3", "--method", "waterfill")), "--prompt-file", str(SAMPLES / "heldout.txt")]
    assert main([*given, "--prompt-tokens", "300", "--max-new-tokens", "5"]) == 0
    out, progress = capsys.readouterr()
    assert re.search(r"with the BF16 cache: .*\nwith the 2-bit cache: ", out, re.DOTALL)
    assert "300 tokens of prompt; generating 5 with the BF16 cache" in progress and "generating 5 with the 2-bit" in progress
    held, full, times = re.search(r"KV cache of 304 tokens: ([\d,]+) bytes; the BF16 cache has ([\d,]+) bytes, ([\d.]+) times the size", out).groups()
    assert int(full.replace(",", "")) == 2 * 2 * 4 * 2 * 128 * 304 and float(times) > 1.5, (held, times)
    assert re.search(r"the first [0-5] of 5 generated tokens are those of the BF16 cache", out)
    assert main([given[0], str(SAMPLES), "--prompt", "a"]) == 3


def test_pipelines_and_chat_use_the_cache(attached, monkeypatch):
    """Text and messages through transformers' pipeline give what generate() gives, from our cache."""
    from oscar_kv.cache.paged_kv import PagedKV
    counts, append = [], PagedKV.append
    monkeypatch.setattr(PagedKV, "append", lambda self, k, v, n: (counts.append(sum(n)), append(self, k, v, n))[1])
    tokenizer = transformers.AutoTokenizer.from_pretrained(SAMPLES / "tiny-qwen3")
    tokenizer.chat_template = "{% for m in messages %}{{ m.role }}: {{ m.content }}\n{% endfor %}assistant:"
    pipe = transformers.pipeline("text-generation", model=attached, tokenizer=tokenizer)
    options = dict(do_sample=False, max_new_tokens=4, min_new_tokens=4, pad_token_id=0, return_full_text=False)
    text = (SAMPLES / "heldout.txt").read_text()[:900]
    messages = [{"role": "user", "content": text}]
    for given, prompt in ((text, text), (messages, f"user: {text}\nassistant:")):
        counts.clear()
        found = pipe(given, **options)[0]["generated_text"]
        ids = tokenizer(prompt, return_tensors="pt").input_ids
        assert counts == [ids.shape[1]] * 4 + [1] * 12 and ids.shape[1] > 100  # four layers, three tokens after the first
        expected = greedy(attached, ids, tokens=4)[0, ids.shape[1]:]
        assert (found[-1]["content"] if isinstance(found, list) else found) == tokenizer.decode(expected, skip_special_tokens=True)


def test_batch_is_single_and_padding_counts_nothing(attached, ids):
    """Left-padded rows of a batch generate what each does alone."""
    lengths, width = [150, 97, 70], 150
    rows = [ids[200 * i:200 * i + n] for i, n in enumerate(lengths)]
    batch = torch.zeros(3, width, dtype=torch.long)
    mask = torch.zeros(3, width, dtype=torch.long)
    for i, row in enumerate(rows):
        batch[i, width - len(row):], mask[i, width - len(row):] = row, 1
    options = dict(output_logits=True, return_dict_in_generate=True, tokens=8)
    together = greedy(attached, batch, attention_mask=mask, **options)
    chunked = greedy(attached, batch, attention_mask=mask, prefill_chunk_size=60, **options)
    for i, row in enumerate(rows):
        alone = greedy(attached, row[None], **options)
        assert torch.equal(together.sequences[i, width:], alone.sequences[0, len(row):]), i
        assert divergence(torch.stack(together.logits)[:, i], torch.stack(alone.logits)[:, 0]).max() < 1e-3
        assert divergence(torch.stack(chunked.logits)[:1, i], torch.stack(alone.logits)[:1, 0]).max() < 0.3
    assert getattr(together, CACHE_NAME).layers[0].kv.lengths == [n + 7 for n in lengths]
    # Layer 0 stores the same bytes, however the prompt was cut: its keys depend on tokens alone.
    one, other = (getattr(r, CACHE_NAME).layers[0].kv for r in (together, chunked))
    for b in range(3):
        a, c = (coded_rows(k, 0, 1)[0][b, :, :lengths[b] - 64] for k in (one, other))
        assert torch.allclose(a, c, atol=1e-5)


def test_chunks_inside_the_windows_are_one_prompt(attached, ids):
    """As long as nothing is quantized, chunks differ from the whole by the rounding of BF16 rows alone."""
    whole = logits_of(attached, ids[None, :64], [64], oscar_kv.new_cache(attached))
    for pieces in ([32, 32], [1, 62, 1], [5] * 12 + [4]):
        assert divergence(logits_of(attached, ids[None, :64], pieces, oscar_kv.new_cache(attached)), whole).max() < 2e-3


def test_several_turns_on_one_cache(attached, ids):
    """Two turns through generate() give what the same pieces give by hand."""
    cache = oscar_kv.new_cache(attached)
    first = greedy(attached, ids[None, :90], tokens=5, past_key_values=cache)
    talk = torch.cat([first, ids[None, 300:340]], dim=1)  # 95 tokens, then 40 new ones
    second = greedy(attached, talk, tokens=5, past_key_values=cache)
    assert cache.get_seq_length() == 139 and cache.layers[3].kv.lengths == [139]
    logits = logits_of(attached, second[:, :139], [90, 1, 1, 1, 1, 41, 1, 1, 1, 1], oscar_kv.new_cache(attached))
    assert torch.equal(logits[0, 134:].argmax(-1), second[0, 135:])
    cache.reset()
    assert torch.equal(greedy(attached, ids[None, :90], tokens=5, past_key_values=cache), first)


SINKS = torch.tensor([2.0, -1.0, 5.0, 0.0])
# What a model brings -> what attention is then: window, chunk, cap, sinks.
KINDS = {"all": ({}, (0, 0, 0, None)), "window": (dict(sliding_window=30), (30, 0, 0, None)), "chunks": ({}, (0, 37, 0, None)),
         "cap": (dict(softcap=1.5), (0, 0, 1.5, None)), "sinks": (dict(s_aux=SINKS), (0, 0, 0, SINKS)),
         "everything": (dict(sliding_window=60, softcap=2.0, s_aux=SINKS), (60, 64, 2.0, SINKS))}


def textbook(query, keys, values, kind, scale=0.3):
    """Causal attention in FP64 of the last tokens: query [Hq, T, d], keys and values [Hkv, N, d]."""
    window, chunk, cap, sinks = kind
    n, t = keys.shape[1], query.shape[1]
    logits = query.view(2, 2, t, 32).double() @ keys.double()[:, None].transpose(-1, -2) * scale
    logits = cap * (logits / cap).tanh() if cap else logits
    at, column = torch.arange(n - t, n)[:, None], torch.arange(n)
    hidden = (column > at) | (column <= at - (window or n)) | (column // (chunk or n) != at // (chunk or n))
    logits = logits.masked_fill(hidden, -torch.inf).flatten(0, 1)
    if sinks is not None:
        logits = torch.cat([logits, sinks.double()[:, None, None].expand(-1, t, 1)], dim=-1)
    weights = logits.softmax(-1)[..., :n]
    return (weights @ values.double().repeat_interleave(2, dim=0)).float()


@pytest.mark.parametrize("name", KINDS)
def test_a_chunk_is_dense_attention(name):
    """A padded chunk, and one behind a cache, against textbook softmax over dequantized rows and the chunk's raw ones."""
    import types
    from conftest import GOLDEN
    from oscar_kv.cache.paged_kv import LayerCode
    from oscar_kv.hf.attention import attention
    from oscar_kv.hf.cache import OscarCache
    given, kind = KINDS[name]
    config = types.SimpleNamespace(layer_types=["chunked_attention" if kind[1] else "full_attention"], attention_chunk_size=kind[1])
    bundle, module = oscar_kv.load_bundle(GOLDEN / "bundle"), types.SimpleNamespace(config=config, layer_idx=0)
    code = LayerCode(bundle, bundle.layers[0])
    cache = OscarCache(types.SimpleNamespace(codes=[code], modules=[module], sources={}, max_tokens=None, most_pages=None))
    layer, generator = cache.layers[0], torch.Generator().manual_seed(1)

    def step(tokens, mask):
        q, k, v = (torch.randn(2, h, tokens, 32, generator=generator) for h in (4, 2, 2))
        keys, values = cache.update(k, v, 0)
        return q, k, v, attention(module, q, keys, values, mask, scaling=0.3, **given)[0].transpose(1, 2)

    mask = torch.ones(2, 100, dtype=torch.bool)
    mask[1, :30] = False
    q, k, v, output = step(100, mask)
    for b, first in enumerate((0, 30)):
        assert torch.allclose(output[b, :, first:], textbook(q[b, :, first:], k[b, :, first:], v[b, :, first:], kind), rtol=1e-3, atol=1e-3), b
    without = attention(module, q, k, v, mask, scaling=0.3, **given)[0].transpose(1, 2)  # and without any cache
    assert torch.allclose(without[0], output[0], atol=1e-5) and torch.allclose(without[1, :, 30:], output[1, :, 30:], atol=1e-5)
    held = [100, 70]
    window = [window_rows(layer.kv, b, [*range(4), *range(n - 8, n)]) for b, n in enumerate(held)]  # recent 8
    rows = coded_rows(layer.kv, 0, 2)
    mask = torch.cat([mask, torch.ones(2, 9, dtype=torch.bool)], dim=1)
    q, k, v, output = step(9, mask)
    for b, n in enumerate(held):
        past = [torch.cat([w[:4].transpose(0, 1).float(), r[b, :, :n - 12], w[4:].transpose(0, 1).float()], dim=1)
                for w, r in zip(window[b], rows)]
        t = code.transform
        old_k = past[0].double() @ torch.linalg.inv(t.key_forward.double()) + t.key_mean.double()[:, None]
        old_v = past[1].double() @ t.output.double() + t.value_mean.double()[:, None]
        keys, values = torch.cat([old_k, k[b].double()], dim=1), torch.cat([old_v, v[b].double()], dim=1)
        assert torch.allclose(output[b], textbook(q[b], keys, values, kind), rtol=1e-3, atol=1e-3), b
    assert layer.kv.lengths == [109, 79]


def test_encoders_beside_a_decoder_see_all_their_tokens():
    """The encoder of images in a wrapped model has the same attention function, no cache, and is not causal."""
    import types
    from oscar_kv.hf.attention import attention
    q, k, v = (torch.randn(2, h, 9, 16, generator=torch.Generator().manual_seed(h)) for h in (4, 2, 3))
    v = v[:, :2]
    for module, given, causal in ((types.SimpleNamespace(is_causal=False), {}, False), (types.SimpleNamespace(), {}, True),
                                  (types.SimpleNamespace(), {"is_causal": False}, False)):
        expected = torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=causal, scale=0.3, enable_gqa=True)
        assert torch.allclose(attention(module, q, k, v, None, scaling=0.3, **given)[0].transpose(1, 2), expected, atol=1e-5), (module, given)


def test_a_layer_that_attends_twice_is_refused(attached):
    """Its second call has no new keys for the cache."""
    from oscar_kv.hf.attention import attention
    layer = oscar_kv.new_cache(attached).layers[0]
    module = next(m for m in attached.modules() if getattr(m, "layer_idx", None) == 0)
    rows = torch.ones(1, layer.code.layer.kv_heads, 3, layer.code.layer.head_dim)
    keys, values = layer.update(rows, rows)
    attention(module, rows, keys, values, None)
    with pytest.raises(InputError, match="layer 0: the model attends more than once to the same keys"):
        attention(module, rows, keys, values, None)


def test_sliding_windows(tmp_path, fit):
    """A layer with a sliding window sees no further back: tokens beyond it change nothing."""
    config = json.loads((SAMPLES / "tiny-qwen3" / "config.json").read_text())
    config |= dict(use_sliding_window=True, sliding_window=40, max_window_layers=0)
    folder = tmp_path / "sliding"
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(config))
    (folder / "model.safetensors").symlink_to(SAMPLES / "tiny-qwen3" / "model.safetensors")
    model = transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
    import dataclasses
    bundle = dataclasses.replace(oscar_kv.load_bundle(fit("tiny-qwen3")), fingerprint="")
    generator = torch.Generator().manual_seed(2)
    tokens = torch.randint(0, 8000, (1, 260), generator=generator)
    with torch.no_grad():
        base = model(tokens).logits
    oscar_kv.attach(model, bundle)
    assert divergence(logits_of(model, tokens, [130, 100] + [1] * 30, oscar_kv.new_cache(model)), base).max() < 2e-3


class TestRefusals:
    def test_bundle_of_another_model(self, model, fit):
        with pytest.raises(InputError, match="layer 0 64, the model 128|layers"):
            oscar_kv.attach(model, fit("tiny-llama"))
        assert model.config._attn_implementation == "sdpa"

    def test_fingerprint_of_other_weights(self, model, fit, tmp_path):
        other = load("tiny-qwen3-outliers")
        with pytest.raises(InputError, match="fitted on another model .fingerprint v2:sha256"):
            oscar_kv.attach(other, fit("tiny-qwen3"))
        with pytest.raises(InputError, match="weights of layer 0 are not those of the checkpoint"):
            oscar_kv.attach(transformers.AutoModelForCausalLM.from_config(model.config), fit("tiny-qwen3"))
        with pytest.raises(InputError, match="is not found"):
            oscar_kv.attach(model, fit("tiny-qwen3"), checkpoint=tmp_path / "none")

    def test_a_layer_missing(self, model, fit):
        bundle = oscar_kv.load_bundle(fit("tiny-qwen3"))
        del bundle.layers[2]
        with pytest.raises(InputError, match="lacks layer 2 of the model's 4"):
            oscar_kv.attach(model, bundle)

    def test_dtype_dropout_head_size(self, fit):
        half = load("tiny-qwen3").half()
        with pytest.raises(InputError, match="layer 0 computes in float16, expected bfloat16 or float32"):
            oscar_kv.attach(half, fit("tiny-qwen3"))
        dropout = load("tiny-qwen3", attention_dropout=0.1)
        with pytest.raises(InputError, match="trains with attention dropout 0.1; call model.eval"):
            oscar_kv.attach(dropout.train(), fit("tiny-qwen3"))
        oscar_kv.attach(dropout.eval(), fit("tiny-qwen3"))
        with pytest.raises(InputError, match="attention dropout 0.1 is not supported"):
            dropout.train()(torch.tensor([[1, 2, 3]]), past_key_values=oscar_kv.new_cache(dropout))

    def test_head_sizes_and_query_heads(self):
        """Heads that 2-bit codes cannot pack are refused; more query heads on a KV head than the kernels take are not, in torch."""
        from random_bundles import random_bundle
        from oscar_kv.hf.attach import geometry

        def made(heads, head_size):
            return transformers.Qwen3ForCausalLM(transformers.Qwen3Config(
                hidden_size=64, intermediate_size=64, num_hidden_layers=1, num_attention_heads=heads, num_key_value_heads=1, head_dim=head_size,
                vocab_size=300)).eval()

        odd = made(2, 6)
        with pytest.raises(InputError, match="head_dim 6 is not a multiple of 4, as 2-bit packing needs"):
            oscar_kv.attach(odd, random_bundle(*geometry(odd)))
        huge = made(1, 1028)
        with pytest.raises(InputError, match="head_dim 1028 cannot be quantized; expected 4 to 1024"):
            oscar_kv.attach(huge, random_bundle(*geometry(huge)))
        many, tokens = made(20, 32), torch.arange(3, 63)[None]
        before = many(tokens).logits
        oscar_kv.attach(many, random_bundle(*geometry(many), (4, 2, 1, 1), (4, 2, 1, 1), sink=8, recent=16))
        assert divergence(logits_of(many, tokens, [20] + [1] * 4, oscar_kv.new_cache(many)), before[:, :24]).max() < 1e-3  # nothing is coded yet
        assert greedy(many, tokens[:, :40], tokens=3).shape == (1, 43)

    def test_a_gpu_without_a_kernel_is_told(self):
        """Only a warning: the reference gives the same tokens."""
        import types
        from oscar_kv.hf.attach import _warn_of_reference
        code = types.SimpleNamespace(device=torch.device("cuda"), layer=types.SimpleNamespace(layer=3))
        for step, decode in (("no head size 96", None), (None, "at most 16 query heads on a KV head, not 20"), (None, None)):
            attached = types.SimpleNamespace(codes=[None, code], unsupported=lambda code, group, reason=step or decode: reason)
            if step or decode:
                with pytest.warns(UserWarning, match=f"layer 3 and any like it run on the torch reference.*: {step or decode}"):
                    _warn_of_reference(attached, 4)
            else:
                with warnings.catch_warnings():
                    warnings.simplefilter("error")
                    _warn_of_reference(attached, 4)

    def test_twice_and_never(self, attached, fit):
        with pytest.raises(InputError, match="attached already"):
            oscar_kv.attach(attached, fit("tiny-qwen3"))
        with pytest.raises(InputError, match="no bundle is attached"):
            oscar_kv.new_cache(load("tiny-qwen3"))

    @pytest.mark.parametrize("options,what", [
        (dict(num_beams=2), "generation mode 'beam_search'"), (dict(num_beams=2, do_sample=True), "generation mode 'beam_sample'"),
        (dict(prompt_lookup_num_tokens=3, assistant_early_exit=1), "assistant_early_exit runs the first layers"),
        (dict(cache_implementation="static"), "cache_implementation 'static' excludes")])
    def test_generation_modes(self, attached, ids, options, what):
        with pytest.raises(InputError, match=what):
            greedy(attached, ids[None, :20], **options)

    def test_cache_methods(self, attached):
        cache = oscar_kv.new_cache(attached)
        for call in (lambda: cache.reorder_cache(torch.tensor([0])), lambda: cache.layers[0].reorder_cache(torch.tensor([0])),
                     lambda: cache.batch_repeat_interleave(2), lambda: cache.layers[0].offload()):
            with pytest.raises(InputError, match="a 2-bit cache cannot copy sequences"):
                call()

    @pytest.mark.parametrize("most", [-1, 0, 1.5, True, math.nan, "128", 2 ** 31, 10 ** 18])
    def test_page_tables_of_no_length(self, model, fit, most):
        with pytest.raises(InputError, match="max_tokens is .*, expected a whole number from 1 to 2,147,483,647"):
            oscar_kv.attach(model, fit("tiny-qwen3"), max_tokens=most)

    def test_lengths_beyond_the_page_table(self, model, ids, fit):
        oscar_kv.attach(model, fit("tiny-qwen3"), max_tokens=128)
        try:
            with pytest.raises(InputError, match="132 tokens are asked for, the page table was attached for 128"):
                greedy(model, ids[None, :121])
            # The last token that is generated never enters the cache.
            assert greedy(model, ids[None, :121], tokens=7).shape == (1, 128)
            with pytest.raises(InputError, match="needs 3 pages .* has 2"):
                model(ids[None, :200], past_key_values=oscar_kv.new_cache(model))
        finally:
            oscar_kv.detach(model)

    def test_a_cache_of_another_model(self, attached, ids, fit):
        other = oscar_kv.attach(load("tiny-qwen3"), fit("tiny-qwen3"))
        cache = oscar_kv.new_cache(other)
        with pytest.raises(InputError, match="made for another model"):
            greedy(attached, ids[None, :20], past_key_values=cache)
        with pytest.raises(InputError, match="made for another model"):
            attached(ids[None, :20], past_key_values=cache)
        plain, cache = load("tiny-qwen3"), oscar_kv.new_cache(other)
        plain(ids[None, :20], past_key_values=cache)
        with pytest.raises(InputError, match="attended without this cache"):
            plain(ids[None, 20:21], past_key_values=cache)

    def test_masks(self, attached, ids):
        mask = torch.ones(2, 20, dtype=torch.long)
        mask[0, :4] = 0
        cache, batch = oscar_kv.new_cache(attached), ids[:40].view(2, 20)
        attached(batch, attention_mask=mask, past_key_values=cache)
        with pytest.raises(InputError, match="differs from that of earlier calls"):
            attached(batch[:, :1], past_key_values=cache)
        cache = oscar_kv.new_cache(attached)
        attached(batch, past_key_values=cache)
        with pytest.raises(InputError, match="holds 2 sequences, the model brings 1"):
            attached(batch[:1, :1], past_key_values=cache)
