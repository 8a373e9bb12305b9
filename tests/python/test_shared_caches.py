"""attach() where the last layers read the cache of an earlier one (Gemma 4 E2B and E4B): all of them see what the layer that holds it
saw in the same forward. The oracle is transformers' own sharing over a cache that returns stored rows. FP32 on the CPU."""
import pytest

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

from transformers.cache_utils import DynamicCache, DynamicLayer  # noqa: E402

import oscar_kv  # noqa: E402
from conftest import SAMPLES, window_rows  # noqa: E402
from cache_rows import coded_rows  # noqa: E402
from oscar_kv.cache.layer_code import LayerCode  # noqa: E402
from oscar_kv.cache.paged_kv import PagedKV, PageTable  # noqa: E402
from oscar_kv.files.errors import InputError  # noqa: E402
from test_families import WINDOWS, bundle_for, family_checkpoints  # noqa: E402
from test_transformers import divergence, greedy, logits_of  # noqa: E402

HOLDS, READ = 1, (3, 5)  # the full-attention layer with a cache, and those that read it; the others have a window


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """The checkpoint's folder, a bundle, and 130 tokens."""
    folder = tmp_path_factory.mktemp("shared")
    model = family_checkpoints.make("gemma4-shared", folder / "model", tokenizer=SAMPLES / "tiny-qwen3")
    ids = torch.randint(0, 8192, (3, 130), generator=torch.Generator().manual_seed(5))
    return model, bundle_for(model, folder), ids


def load(folder, **options):
    return transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32, **options).eval()


@pytest.fixture
def attached(made):
    return oscar_kv.attach(load(made[0]), made[1])


class StoredLayer(DynamicLayer):
    """What a query sees: a single token all rows as stored, a chunk the earlier ones as stored and its own as they are."""

    def __init__(self, code):
        super().__init__()
        self.code, self.kv = code, PagedKV(code, PageTable(1))

    def stored(self):
        kv, t, n = self.kv, self.code.transform, self.kv.lengths[0]
        sink, end = self.code.sink, kv.quantized_end(n)
        window = window_rows(kv, 0, [p for p in range(n) if p < sink or p >= end])
        parts = []
        for w, rows, back, mean in zip(window, coded_rows(kv, 0, len(kv.table.pages[0])), (torch.linalg.inv(t.key_forward.double()), t.output.double()),
                                       (t.key_mean, t.value_mean)):
            w, first = w.transpose(0, 1).double(), min(sink, n)
            whole = torch.cat([w[:, :first], rows[0, :, :end - sink].double(), w[:, first:]], dim=1)
            parts.append((whole @ back + (0 if mean is None else mean.double()[:, None])).float()[None])
        return parts

    def update(self, keys, values, *args, **kwargs):
        new = keys.shape[2]
        past = self.stored() if self.kv.lengths[0] else [keys[:, :, :0], values[:, :, :0]]
        self.kv.append(keys[0].transpose(0, 1), values[0].transpose(0, 1), [new])
        return self.stored() if new == 1 else [torch.cat(x, dim=2) for x in zip(past, (keys, values))]

    def get_seq_length(self):
        return self.kv.lengths[0]


def stored_cache(model, bundle):
    cache, bundle = DynamicCache(config=model.config), oscar_kv.load_bundle(bundle)
    assert [layer.layer for layer in bundle.layers] == [HOLDS]
    cache.layers[HOLDS] = StoredLayer(LayerCode(bundle, bundle.layers[0]))
    return cache


@pytest.mark.parametrize("pieces", [[60] + [1] * 20, [60, 30, 1, 1, 25, 1, 1], [1] * 40 + [40, 2, 1]], ids=("prompt", "turns", "late chunk"))
def test_readers_see_what_the_holder_saw(made, pieces):
    folder, bundle, ids = made
    plain, ids = load(folder, attn_implementation="eager"), ids[:1, :sum(pieces)]
    expected = logits_of(plain, ids, pieces, stored_cache(plain, bundle))
    base = logits_of(plain, ids, [sum(pieces)], DynamicCache(config=plain.config))
    model = oscar_kv.attach(load(folder), bundle)
    cache = oscar_kv.new_cache(model)
    found = logits_of(model, ids, pieces, cache)
    apart, cost = divergence(found, expected), divergence(expected, base)
    print(f"KL to the oracle {apart.mean():.1e}, at most {apart.max():.1e}; of the 2-bit cache {cost.mean():.1e}")
    assert cost[0, sum(WINDOWS):].mean() > 1e-3 and apart.max() < 1e-5
    # one cache, whatever reads it
    assert [layer.index for layer in cache.paged] == [HOLDS] and cache.paged[0].kv.lengths == [sum(pieces)]


def test_prompts_of_generate_in_a_padded_batch(made, attached):
    """transformers computes only the last token of a prompt in the readers, and cuts the rows of masks before them."""
    ids, lengths = made[2], (100, 61, 12)
    batch, mask = torch.zeros(3, 100, dtype=torch.long), torch.zeros(3, 100, dtype=torch.long)
    for i, n in enumerate(lengths):
        batch[i, 100 - n:], mask[i, 100 - n:] = ids[i, :n], 1
    options = dict(output_logits=True, return_dict_in_generate=True, tokens=8)
    together = greedy(attached, batch, attention_mask=mask, **options)
    for i, n in enumerate(lengths):
        alone = greedy(attached, ids[i:i + 1, :n], **options)
        assert torch.equal(together.sequences[i, 100:], alone.sequences[0, n:]), i
        assert divergence(torch.stack(together.logits)[:, i], torch.stack(alone.logits)[:, 0]).max() < 1e-5
        steps = logits_of(attached, alone.sequences[:, :n + 7], [n] + [1] * 7, oscar_kv.new_cache(attached))  # all rows of the prompt
        assert divergence(torch.stack(alone.logits)[:, 0], steps[0, n - 1:]).max() < 1e-5
    # A second turn: the readers have queries of its last token only, after stored ones.
    cache, turn = oscar_kv.new_cache(attached), ids[:1, :110]
    greedy(attached, ids[:1, :60], tokens=1, past_key_values=cache)
    second = greedy(attached, turn, past_key_values=cache, **options)
    steps = logits_of(attached, turn, [60, 50], oscar_kv.new_cache(attached))
    assert divergence(second.logits[0], steps[:, -1]).max() < 1e-5


def test_proposals_see_what_steps_see(made, attached):
    prompt = made[2][:1, :30].repeat(1, 3)
    assert torch.equal(greedy(attached, prompt, 16, prompt_lookup_num_tokens=4), greedy(attached, prompt, 16))
    # A long chunk after stored tokens, with four proposals: the readers take them one by one, after what the holder had put in.
    ids, cache = made[2][:1, :110], oscar_kv.new_cache(attached)
    logits_of(attached, ids, [60], cache)
    cache.assisted = True
    with torch.no_grad():
        found = attached(ids[:, 60:], past_key_values=cache, logits_to_keep=5).logits
    steps = logits_of(attached, ids, [60, 46, 1, 1, 1, 1], oscar_kv.new_cache(attached))
    assert divergence(found, steps[:, -5:]).max() < 1e-5 < divergence(found, logits_of(attached, ids, [60, 50], oscar_kv.new_cache(attached))[:, -5:]).max()
    assert cache.paged[0].kv.lengths == [110]


def test_what_would_leave_the_cache_out_is_refused(made, attached):
    ids = made[2][:1]
    with pytest.raises(InputError, match="layer 1 read 5 tokens from a cache of another kind"), torch.no_grad():
        cache = DynamicCache(config=attached.config)
        attached(ids[:, :5], past_key_values=cache)
        attached(ids[:, 5:6], past_key_values=cache)
    with pytest.raises(InputError, match="attention mask of 4 dimensions"), torch.no_grad():
        mask = torch.zeros(1, 1, 1, 5)
        attached(ids[:, :5], attention_mask={"full_attention": mask, "sliding_attention": mask}, past_key_values=oscar_kv.new_cache(attached))


def test_readers_on_another_device_are_refused(made, monkeypatch):
    """transformers would bring copies of keys there, which lead to no cache."""
    from oscar_kv.hf import attach
    model, place = load(made[0]), attach.device_of_keys
    far = model.model.layers[READ[-1]].self_attn.q_proj
    monkeypatch.setattr(attach, "device_of_keys", lambda projection: torch.device("meta") if projection is far else place(projection))
    with pytest.raises(InputError, match="layer 5 is on meta and reads the cache of layer 1 on cpu"):
        oscar_kv.attach(model, made[1])


def test_steps_are_not_captured(made, attached):
    """A captured step would put its token into the cache once for each layer that reads it."""
    from oscar_kv.hf.graphs import Recorder
    assert Recorder.unsupported(attached._oscar_attached, 2) == "layer 0 keeps states of its own"
    attached._oscar_attached.codes = attached._oscar_attached.codes[HOLDS:HOLDS + 1]  # as with heads of one size
    assert Recorder.unsupported(attached._oscar_attached, 2) == "layers share a cache"


def test_adapters_on_queries_of_readers_are_refused(made):
    pytest.importorskip("peft")
    import peft
    model = peft.get_peft_model(load(made[0]), peft.LoraConfig(r=2, target_modules=[f"layers.{READ[0]}.self_attn.q_proj"]))
    with pytest.raises(InputError, match="layer 3"):
        oscar_kv.attach(model, made[1])
