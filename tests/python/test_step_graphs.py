"""Recorded steps inside generate(), with a recorder that computes on the CPU: what it does is what a CUDA graph does, and it refuses
to replay over tensors that have moved. The tokens must be those without recordings. test_cuda_operators.py has the real ones."""
import contextlib
import warnings

import pytest

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

import oscar_kv  # noqa: E402
from conftest import SAMPLES  # noqa: E402
from oscar_kv.hf import graphs  # noqa: E402
from oscar_kv.files.errors import InputError  # noqa: E402
from oscar_kv.cache.paged_kv import PagedKV  # noqa: E402
from oscar_kv.hf.attach import ATTRIBUTE, geometry  # noqa: E402
from oscar_kv.hf.cache import CACHE_NAME, OscarCache  # noqa: E402
from random_bundles import random_bundle  # noqa: E402

torch.set_num_threads(1)


class FakeRecorder:
    """Recorder on the CPU. A recording computes nothing that stays: the cache's tensors are put back."""

    def __init__(self):
        self.runs = self.records = self.replays = 0
        self.cache = None

    def run(self, call):
        self.runs += 1
        return call()

    def record(self, call):
        self.records += 1
        cache, lengths = self.cache, [list(layer.kv.lengths) for layer in self.cache.layers]
        held, places = [t.clone() for t in cache.tensors()], [t.data_ptr() for t in cache.tensors()]
        made = call()

        def back():
            assert [layer.kv.lengths for layer in cache.layers] == lengths, "a recording counts nothing on the host"

        back()
        for tensor, was in zip(cache.tensors(), held):
            tensor.copy_(was)
        made.logits.fill_(torch.nan)

        def replay():
            self.replays += 1
            assert [t.data_ptr() for t in cache.tensors()] == places, "tensors have moved since the recording"
            with cache.recording():
                made.logits.copy_(call().logits)

        return replay, made


@pytest.fixture
def recorder(monkeypatch):
    made, original = FakeRecorder(), OscarCache.recording

    @contextlib.contextmanager
    def noted(self):
        made.cache = self
        with original(self):
            yield

    monkeypatch.setattr(OscarCache, "recording", noted)
    start = PagedKV.__init__

    def stepping(self, *arguments):  # single tokens go through step_on_device(), as on a GPU
        start(self, *arguments)
        self.step_unsupported = None

    monkeypatch.setattr(PagedKV, "__init__", stepping)
    return made


@pytest.fixture(scope="module")
def model():
    return transformers.AutoModelForCausalLM.from_pretrained(SAMPLES / "tiny-qwen3", dtype=torch.float32).eval()


@pytest.fixture(scope="module")
def ids():
    return torch.randint(5, 250, (4, 200), generator=torch.Generator().manual_seed(3))


@pytest.fixture
def attach(model, recorder, monkeypatch):
    """attach(recorded): the model with a bundle, with recorded steps or without."""
    def make(recorded=True, **options):
        if getattr(model, ATTRIBUTE, None) is not None:
            oscar_kv.detach(model)
        layers, kv_heads, d = geometry(model)
        monkeypatch.setattr("oscar_kv.hf.attach._recorder", lambda *given: recorder if recorded else None)
        return oscar_kv.attach(model, random_bundle(layers, kv_heads, d, (4, 2, 1, 1), (4, 2, 1, 1), sink=16, recent=48), **options)

    yield make
    if getattr(model, ATTRIBUTE, None) is not None:
        oscar_kv.detach(model)


def generate(model, ids, tokens=20, **options):
    return model.generate(ids, **(dict(do_sample=False, pad_token_id=0, eos_token_id=None, max_new_tokens=tokens) | options))


def both(attach, call, **options):
    """call(model) without recordings, and with them."""
    return [call(attach(recorded, **options)) for recorded in (False, True)]


def padded(ids):
    mask = torch.ones_like(ids)
    mask[1, :30] = 0
    mask[2, :199] = 0
    return mask


@pytest.mark.parametrize("batch", [1, 4])
def test_greedy_and_padding(attach, recorder, ids, batch):
    rows = ids[:batch]
    options = dict(attention_mask=padded(ids)) if batch == 4 else {}
    expected, found = both(attach, lambda m: generate(m, rows, output_logits=True, return_dict_in_generate=True, **options))
    assert torch.equal(found.sequences, expected.sequences)
    assert torch.equal(torch.stack(found.logits), torch.stack(expected.logits))
    # 19 steps after the prompt: one as it is, then recorded.
    assert (recorder.runs, recorder.records, recorder.replays) == (1, 1, 18)
    held = [getattr(r, CACHE_NAME).layers[0] for r in (expected, found)]
    assert held[0].kv.lengths == held[1].kv.lengths and held[1].columns == 219
    assert held[1].kv.device_lengths.tolist() == held[1].kv.lengths


def test_sampling_and_stopping(attach, recorder, ids):
    def sampled(model):
        torch.manual_seed(5)
        return generate(model, ids[:2], do_sample=True, temperature=1.5, top_k=50)

    expected, found = both(attach, sampled)
    assert torch.equal(found, expected) and recorder.replays == 18
    end = int(expected[0, 207])  # the eighth token of one sequence; the other goes on
    expected, found = both(attach, lambda m: (torch.manual_seed(5), generate(m, ids[:2], do_sample=True, temperature=1.5, top_k=50, eos_token_id=end))[1])
    assert torch.equal(found, expected) and int(expected[0, 208]) == 0


def test_recordings_follow_tensors_that_move(attach, recorder, ids, monkeypatch):
    monkeypatch.setattr(graphs, "ROOM", 8)
    short = ids[:1, :70]
    expected, found = both(attach, lambda m: generate(m, short, tokens=70))
    assert torch.equal(found, expected)
    assert recorder.records > 1 and recorder.runs == recorder.records and recorder.replays == 69 - recorder.runs


def test_several_turns_and_chunks(attach, recorder, ids):
    def talk(model):
        cache, made = oscar_kv.new_cache(model), ids[:1, :90]
        for turn in range(3):
            made = generate(model, torch.cat([made, ids[1:2, 30 * turn:30 * turn + 30]], dim=1), tokens=10, past_key_values=cache)
        cache.reset()
        return torch.cat([made, generate(model, made[:, :100], tokens=5, past_key_values=cache)], dim=1)

    expected, found = both(attach, talk)
    assert torch.equal(found, expected)
    assert recorder.replays > 20 and recorder.replays + recorder.runs == 3 * 9 + 4


def test_each_batch_has_its_recording(attach, recorder, ids):
    model = attach()
    for count in (1, 3, 1):
        generate(model, ids[:count], tokens=6)
    assert (recorder.records, recorder.replays) == (3, 12)


def test_forwards_by_hand(attach, recorder, ids):
    """Single tokens through model(...), positional or named, scored as without; with gradients nothing is recorded."""
    def scores(model, **options):
        cache = oscar_kv.new_cache(model)
        with torch.set_grad_enabled(options.pop("gradients", False)):
            model(ids[:1, :100], past_key_values=cache)
            return torch.cat([model(ids[:1, i:i + 1], past_key_values=cache, **options).logits for i in range(100, 110)], dim=1).detach()

    expected, found = both(attach, scores)
    assert torch.equal(found, expected) and recorder.replays == 9
    assert torch.equal(scores(attach(), gradients=True), expected) and recorder.replays == 9
    assert torch.equal(scores(attach(), output_hidden_states=True), expected) and recorder.replays == 9


def test_what_cannot_be_recorded_runs_as_it_is(attach, recorder, ids, monkeypatch):
    expected = generate(attach(False), ids[:2])

    def fails(call):
        call()
        raise RuntimeError("operation not permitted when stream is capturing\nmore")

    monkeypatch.setattr(recorder, "record", fails)
    held = {}
    original = OscarCache.recording

    @contextlib.contextmanager
    def guarded(self):  # a capture computes nothing
        held["was"] = [t.clone() for t in self.tensors()]
        with original(self):
            try:
                yield
            finally:
                for tensor, was in zip(self.tensors(), held["was"]):
                    tensor.copy_(was)

    monkeypatch.setattr(OscarCache, "recording", guarded)
    model = attach()
    with pytest.warns(UserWarning, match=r"cannot be recorded as a CUDA graph \(operation not permitted when stream is capturing\)"):
        assert torch.equal(generate(model, ids[:2]), expected)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert torch.equal(generate(model, ids[:2]), expected)
    assert recorder.replays == 0


def test_errors_are_the_same(attach, recorder, ids):
    model = attach(max_tokens=205)
    assert generate(model, ids[:1], tokens=6).shape == (1, 206) and recorder.replays == 4
    with pytest.raises(InputError, match="206 tokens are asked for"):
        generate(model, ids[:1], tokens=7)
    cache, mask = oscar_kv.new_cache(model), torch.ones(1, 201, dtype=torch.long)
    with torch.no_grad():
        model(ids[:1], past_key_values=cache)
        mask[0, 3] = 0
        with pytest.raises(InputError, match="differs from that of earlier calls"):
            model(input_ids=ids[:1, :1], attention_mask=mask, past_key_values=cache)


def test_detach_leaves_the_model_as_it_was(model, attach):
    attach()
    assert "forward" in model.__dict__
    oscar_kv.detach(model)
    assert "forward" not in model.__dict__


def test_graphs_are_of_cuda_devices(model):
    layers, kv_heads, d = geometry(model)
    with pytest.raises(InputError, match="the layers are not on one CUDA device; leave graphs=True out"):
        oscar_kv.attach(model, random_bundle(layers, kv_heads, d), graphs=True)
    assert getattr(model, ATTRIBUTE, None) is None
