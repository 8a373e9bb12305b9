"""Assisted decoding and crop() in transformers: the text of greedy search without an assistant, and caches that go on after tokens were
taken back as if those had never come. Sample models on the CPU in FP32."""
import pytest

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

import oscar_kv  # noqa: E402
from conftest import window_rows  # noqa: E402
from cache_rows import coded_rows  # noqa: E402
from oscar_kv.files.errors import InputError  # noqa: E402
from oscar_kv.hf.cache import CACHE_NAME  # noqa: E402
from test_transformers import attached, greedy, ids, load, logits_of, model  # noqa: E402, F401


def cached(model, prompt, tokens=1, **options):
    """A cache after prompt and tokens - 1 of the generated ones, and the text."""
    cache = oscar_kv.new_cache(model)
    return cache, greedy(model, prompt, tokens, past_key_values=cache, **options)


def same(found, expected):
    """Two caches hold the same: codes, windows and lengths of all layers. Sums of a forward of another length move a rare code by a step;
    a single wrong token would be a three hundredth of the codes."""
    for a, b in zip(found.paged, expected.paged):
        assert a.kv.lengths == b.kv.lengths and a.columns == b.columns and a.kv.device_lengths.tolist() == b.kv.device_lengths.tolist()
        n, sink = a.kv.lengths[0], a.kv.code.sink
        end = a.kv.quantized_end(n)
        codes = [[rows[:, :, :end - sink] for rows in coded_rows(one.kv, 0, len(one.kv.table.pages[0]))] for one in (a, b)]
        windows = [window_rows(one.kv, 0, [p for p in range(n) if p < sink or p >= end]) for one in (a, b)]
        for x, y in zip(codes[0] + list(windows[0]), codes[1] + list(windows[1])):
            apart = (x.float() - y.float()).abs() > 2e-2 * (1 + y.float().abs())
            assert float(apart.float().mean()) < 1e-3, float(apart.float().mean())


@pytest.mark.parametrize("k", [1, 4, 7, 70])  # 70: more than a page of windows
def test_prompt_lookup(attached, ids, k):
    prompt = ids[:120].repeat(3)[None, :300]
    expected_cache, expected = cached(attached, prompt, 24)
    cache, found = cached(attached, prompt, 24, prompt_lookup_num_tokens=k)
    assert torch.equal(found, expected)
    cache.crop(-(cache.get_seq_length() - expected_cache.get_seq_length()))
    same(cache, expected_cache)
    assert torch.equal(greedy(attached, prompt, 24, prompt_lookup_num_tokens=k), expected)  # with a cache that generate() makes


@pytest.mark.parametrize("prompt", [1, 60, 330])  # in the sink, at its end, and with codes
def test_assistant_model(attached, ids, prompt):
    """Another model proposes: most of its tokens are taken back, some are kept."""
    assistant, text = load("tiny-llama"), ids[None, :prompt]
    assistant.generation_config.num_assistant_tokens = 5
    expected = greedy(attached, text, 16)
    assert torch.equal(greedy(attached, text, 16, assistant_model=assistant), expected)
    itself = load("tiny-qwen3")
    assert torch.equal(greedy(attached, text, 16, assistant_model=itself), expected)


def test_an_assistant_with_a_bundle_of_its_own(attached, ids, fit):
    assistant = oscar_kv.attach(load("tiny-qwen3"), fit("tiny-qwen3", "--method", "waterfill"))
    expected = greedy(attached, ids[None, :330], 16)
    assert torch.equal(greedy(attached, ids[None, :330], 16, assistant_model=assistant), expected)
    assert torch.equal(greedy(attached, ids[None, :330], 16, assistant_model=attached), expected)  # the model assists itself


def test_sampling(attached, ids):
    text = ids[:120].repeat(3)[None, :300]
    torch.manual_seed(1)
    found = greedy(attached, text, 20, do_sample=True, top_k=5, prompt_lookup_num_tokens=4)
    assert found.shape == (1, 320)


@pytest.mark.parametrize("steps,back", [(1, 1), (20, 19)])
def test_crop_after_steps(attached, ids, steps, back):
    """A prompt of 200 tokens, then single ones, of which the last are taken back."""
    base, cache = oscar_kv.new_cache(attached), oscar_kv.new_cache(attached)
    logits_of(attached, ids[None], [200] + [1] * (steps - back), base)
    cache.activate_past_recording()
    logits_of(attached, ids[None], [200] + [1] * (steps - back), cache)
    logits_of(attached, ids[None, 1000:], [1] * back, cache)
    cache.crop(-back)
    same(cache, base)
    assert cache.get_seq_length() == 200 + steps - back
    first = 200 + steps - back
    expected, found = (logits_of(attached, ids[None, first:], [1, 1, 30, 1], one) for one in (base, cache))
    assert torch.allclose(found, expected, rtol=0, atol=1e-3)


def test_crop_within_the_window(attached, ids):
    """Without room of its own a cache gives back what the ring still has; an absolute size counts from the front."""
    cache = oscar_kv.new_cache(attached)
    logits_of(attached, ids[None], [50], cache)
    cache.crop(30)
    assert cache.get_seq_length() == 30 and cache.paged[0].kv.lengths == [30]
    logits_of(attached, ids[None, 30:], [300] + [1] * 10, cache)
    assert cache.get_seq_length() == 340
    before = [t.clone() for t in cache.tensors()]
    with pytest.raises(InputError, match=r"crop\(-11\): sequence 0 cannot go from 340 back to 329 tokens, because its recent window would begin "
                                         r"at token 281, and BF16 copies are kept from token 282 on; copy the cache before"):
        cache.crop(-11)
    assert all(torch.equal(a, b) for a, b in zip(before, cache.tensors())) and cache.get_seq_length() == 340
    cache.crop(-10)
    base = oscar_kv.new_cache(attached)
    logits_of(attached, ids[None], [30, 300], base)
    same(cache, base)
    with pytest.raises(InputError, match="the cache holds 330 tokens"):
        cache.crop(-331)
    cache.crop(-330)
    assert cache.get_seq_length() == 0


def test_crop_with_padding(attached, ids):
    batch = torch.stack([ids[:100], ids[100:200]])
    mask = torch.ones(2, 106, dtype=torch.long)
    mask[0, :30] = 0

    def run(cache, last):
        tokens = torch.cat([batch, last], dim=1)
        return logits_of(attached, tokens, [100] + [1] * last.shape[1], cache, mask[:, :100 + last.shape[1]])

    cache, base = oscar_kv.new_cache(attached), oscar_kv.new_cache(attached)
    run(cache, ids[500:510].view(2, 5))
    cache.crop(-3)
    run(base, ids[500:510].view(2, 5)[:, :2])
    assert [layer.kv.lengths for layer in cache.paged] == [layer.kv.lengths for layer in base.paged] == [[72, 102]] * len(cache.paged)
    with torch.no_grad():
        found, expected = (attached(ids[600:602].view(2, 1), attention_mask=mask[:, :103], **{CACHE_NAME: one}).logits for one in (cache, base))
    assert torch.allclose(found, expected, rtol=0, atol=1e-3)
    cache.crop(-90)  # into the padding
    assert cache.paged[0].kv.lengths == [0, 13] and cache.paged[0].held.shape == (2, 13)
