"""vLLM's cache manager, with what this package adds to its scheduler, beside the table of a worker: whatever prefix the one offers, the other has
the sink of."""
import collections
import inspect
import random
import types

import pytest

torch = pytest.importorskip("torch")

from test_vllm import serve, speculation, vllm_planning  # noqa: F401, I001  (skips this file, too, with another release)
from test_vllm_layers import build, cache_manager, planned  # noqa: F401
from oscar_kv.cache.prefix_table import PrefixTable  # noqa: E402
from oscar_kv.engines.vllm import backend, prefixes, requests  # noqa: E402
from oscar_kv.files.errors import InputError  # noqa: E402
from random_bundles import random_bundle  # noqa: E402

SLOTS, BUDGET, WIDTH = 4, 1400, 20  # requests at a time, tokens of a step, blocks of a request


class Server:
    """Steps of a scheduler and of a worker. Requests begin as one of three others or as nobody, in chunks of any size; some are taken off."""

    def __init__(self, manager, admit, kept, seed, pages=None):
        """pages: {group of our layers: pages of a block}."""
        self.manager, self.offer, self.random, self.requests = manager, admit, random.Random(seed), collections.Counter()
        self.pages = pages or {0: 1}
        self.tables = {group: PrefixTable(SLOTS, 1, 5, "cpu", kept, 256, self.requests.__getitem__) for group in self.pages}
        self.running, self.free, self.count, self.hits, self.anew, self.waited = [], list(range(SLOTS)), 0, 0, 0, 0

    def prompt(self):
        self.count += 1
        shared = self.random.choice([0, 0, 40, 130, 300])
        family = self.random.choice([1, 1, 1, 1, 2, 3, self.count])
        return [family] * shared + [10 ** 4 + self.count] * self.random.randint(780, 900) if shared != 40 else [self.count] * 40

    def step(self):
        """One pass, or none if nothing can run. Requests that run come first, as in vLLM's scheduler."""
        self.manager.new_step_starts()
        rows, left = [], BUDGET
        for request, slot in list(self.running):
            if self.random.random() < 0.1 or request.num_computed_tokens >= len(request.prompt_token_ids):
                self.manager.free(request)
                self.running.remove((request, slot))
                self.free.append(slot)
                continue
            count = min(left, len(request.prompt_token_ids) - request.num_computed_tokens)
            if count > 0 and self.manager.allocate_slots(request, count) is not None:
                rows.append((request, slot, request.num_computed_tokens, count))
                left -= count
        while self.free and left > 0:
            name, waits = f"r{self.count}", self.offer.requests.get("waits")
            request = waits or self.offer.made(name, self.prompt())
            blocks, hit, *_ = self.manager.get_computed_blocks(request)
            count = min(left, request.num_tokens - hit, self.random.choice([10 ** 6, 10 ** 6, 100, 30]))
            if self.manager.allocate_slots(request, count, hit, blocks) is None:
                self.offer.requests["waits"] = request
                self.waited += 1
                break
            self.offer.requests["waits"] = None
            slot = self.free.pop(self.random.randrange(len(self.free)))
            self.requests[slot] += 1
            self.hits, self.anew = self.hits + (hit > 0), self.anew + (hit == 0)
            rows.append((request, slot, hit, count))
            self.running.append((request, slot))
            left -= count
        if rows:
            self.run(rows)

    def run(self, rows):
        _, slots, starts, counts = zip(*rows)
        lengths = torch.tensor([s + c for s, c in zip(starts, counts)], dtype=torch.int32)
        for request, _, start, count in rows:
            request.num_computed_tokens = start + count
        for group, pages in self.pages.items():
            table = torch.zeros(len(rows), WIDTH, dtype=torch.int32)
            for b, (request, *_) in enumerate(rows):
                ids = [block * pages + j for block in self.manager.get_block_ids(request.request_id)[group] for j in range(pages)]
                table[b, :len(ids)] = torch.tensor(ids, dtype=torch.int32)
            self.tables[group].rows(slots, starts, counts, lengths, table, torch.arange(sum(counts)))


@pytest.fixture
def server(build, monkeypatch):  # noqa: F811
    """server(kept, seed, believed, apart): the scheduler believes that so many sinks are kept. apart: two layers of ours, a windowed layer and a
    draft head, each in a group of blocks of its own."""
    from vllm.v1.core.kv_cache_utils import generate_scheduler_kv_cache_config

    def make(kept, seed, believed=None, apart=False):
        monkeypatch.setattr(prefixes, "kept_sinks", lambda slots, pages: believed or kept)
        if apart:
            return Server(*groups_apart(build, 300), kept, seed, {0: 2, 1: 2})
        made, _ = build(random_bundle(1, d=64, sink=64), [{}], cache_config__enable_prefix_caching=True)
        return Server(*cache_manager(generate_scheduler_kv_cache_config([planned(made, 160)[0]]), made, 64, 64), kept, seed)

    return make


def groups_apart(build, blocks):  # noqa: F811
    """cache_manager() of a model whose four layers have blocks of their own."""
    from vllm.compilation.backends import set_model_tag
    from vllm.v1.core.kv_cache_utils import generate_scheduler_kv_cache_config, resolve_kv_cache_block_sizes
    small = {"num_heads": 2, "num_kv_heads": 1}
    windowed, head = {"per_layer_sliding_window": 2048, **small}, {"prefix": "mtp.layers.0.self_attn.attn", "inside": set_model_tag("eagle_head"), **small}
    bundle = random_bundle(2, d=64, sink=64, key=(4, 4, 4, 4), value=(4, 4, 4, 4))
    bundle.model["left_out"] = [{"layer": 2, "reason": "a window"}]
    made, _ = build(bundle, [{}, {}, windowed, head], cache_config__enable_prefix_caching=True, speculative_config=speculation(method="draft_model"))
    found = generate_scheduler_kv_cache_config([planned(made, blocks)[0]])
    assert [group.kv_cache_spec.block_size for group in found.kv_cache_groups] == [128, 128, 64, 64] and len(found.kv_cache_groups[0].layer_names) == 1
    return cache_manager(found, made, *resolve_kv_cache_block_sizes(found, made))


@pytest.mark.parametrize("apart", [False, True])
@pytest.mark.parametrize("kept", [1, 3, 6])
def test_the_worker_has_the_sinks_that_the_scheduler_offers(server, kept, apart):
    hits = waited = 0
    for seed in range(3):
        one = server(kept, seed, apart=apart)
        for _ in range(250):
            one.step()  # PrefixTable refuses what it cannot serve, a step later
        hits, waited = hits + one.hits, waited + one.waited
        assert one.anew > 100
    assert hits > 20 * kept and waited > 5, (hits, waited)


def test_a_hit_with_several_groups_of_layers(build):  # noqa: F811
    """A request computes its last 772 tokens itself, however many groups of blocks there are."""
    manager, admit = groups_apart(build, 300)
    text = list(range(1400))
    assert admit("first", text) == 0 and admit("second", text) is None  # blocks of its own step
    manager.new_step_starts()
    assert admit("third", text) == (1400 - 772) // 128 * 128


def test_a_scheduler_that_believes_too_much_is_seen(server):
    with pytest.raises(InputError, match="no longer in BF16"):
        for seed in range(5):
            one = server(2, seed, believed=6)
            for _ in range(250):
                one.step()


def test_a_worker_counts_the_requests_of_its_slots(build, monkeypatch):  # noqa: F811
    """vLLM's own method, which gives slots to requests that are new or come back: with the 2-bit cache and prefix caching it counts."""
    from vllm.v1.worker.gpu.model_runner import GPUModelRunner
    from vllm.v1.worker.gpu.states import RequestState
    assert "add_request" in vars(RequestState) and "req_id_to_index" in inspect.getsource(RequestState)
    index, places, given = {}, {"a": 0, "b": 1, "c": 0}, []

    def add(self, output):
        given.append(output)
        index.update({one.req_id: places[one.req_id] for one in output.scheduled_new_reqs})

    monkeypatch.setattr(GPUModelRunner, "add_requests", add)
    made, _ = build(random_bundle(1, d=64, sink=64), [{}], cache_config__enable_prefix_caching=True)
    requests.install(backend.SERVING)
    serving, space = backend.serving_of(made), types.SimpleNamespace
    runner = space(vllm_config=made, req_states=space(req_id_to_index=index))
    for names in (["a", "b"], ["c"], [], ["b"]):  # the last one is a session with streaming input
        GPUModelRunner.add_requests(runner, space(scheduled_new_reqs=[space(req_id=name) for name in names]))
    assert [serving.request_of(slot) for slot in range(3)] == [2, 1, 0] and len(given) == 4
    other = space(vllm_config=space(compilation_config=space()), req_states=None)
    GPUModelRunner.add_requests(other, space(scheduled_new_reqs=[space(req_id="a")]))  # without the 2-bit cache
