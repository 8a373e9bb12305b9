"""KV offloading beside the 2-bit cache: vLLM's own scheduler and connector with many requests that share prefixes, and a worker whose blocks hold token ids in
place of codes. Every request must find its own tokens in its blocks, and its own sink in its windows."""
import random
import types
import unittest.mock

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("vllm", reason="vllm is not installed (scripts/requirements-vllm.txt)")
import vllm.platforms  # noqa: E402
from vllm.platforms.cpu import CpuPlatform  # noqa: E402

vllm.platforms._current_platform = CpuPlatform()  # before any module of vLLM asks for it, so this file has a process of its own
from oscar_kv.engines.vllm import plugin  # noqa: E402
from oscar_kv.files.errors import InputError  # noqa: E402
from random_bundles import random_bundle  # noqa: E402
from test_vllm_layers import build, planned, select, serve, unequal, vllm_attention  # noqa: E402, F401  (skips this file, too, with another release)
from transformers import LlamaConfig  # noqa: E402
from vllm import SamplingParams  # noqa: E402
from vllm.config import AttentionConfig, CacheConfig, DeviceConfig, ModelConfig, ParallelConfig, SchedulerConfig, VllmConfig  # noqa: E402
from vllm.distributed.kv_transfer.kv_connector.v1.offloading.common import OffloadingWorkerMetadata  # noqa: E402
from vllm.v1.attention.backends.registry import AttentionBackendEnum  # noqa: E402
from vllm.v1.kv_cache_interface import FullAttentionSpec, KVCacheConfig, KVCacheGroupSpec  # noqa: E402
from vllm.v1.outputs import KVConnectorOutput, ModelRunnerOutput  # noqa: E402
from oscar_kv.cache.host_sinks import HostSinks  # noqa: E402
from oscar_kv.cache.prefix_table import PrefixTable, kept_sinks  # noqa: E402
from oscar_kv.engines.vllm import gauges as vllm_gauges, offloading, serving as vllm_serving  # noqa: E402

PAGE, SINK, RECENT, SLOTS = 64, 64, 128, 6


@pytest.fixture
def configured(tmp_path, monkeypatch):
    monkeypatch.setenv("VLLM_USE_V2_MODEL_RUNNER", "1")
    monkeypatch.setattr(CpuPlatform, "check_and_update_config", classmethod(lambda cls, config: None))
    monkeypatch.setattr(vllm_attention, "get_attn_backend", select)
    plugin.register()
    LlamaConfig(hidden_size=256, intermediate_size=256, num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2, head_dim=64, vocab_size=100_000,
                max_position_embeddings=8192, architectures=["LlamaForCausalLM"], torch_dtype="bfloat16").save_pretrained(tmp_path)
    bundle = random_bundle(layers=2, kv_heads=2, d=64, sink=SINK, recent=RECENT)
    monkeypatch.setattr(vllm_serving, "load_bundle", lambda path, latent=False: bundle)
    monkeypatch.setattr(vllm_gauges, "read_manifest", lambda path: bundle)

    def make(gigabytes=1, batched=2048, **cache):
        model = ModelConfig(model=str(tmp_path), dtype="bfloat16", max_model_len=8192, skip_tokenizer_init=True, enforce_eager=True)
        return VllmConfig(
            model_config=model, parallel_config=ParallelConfig(distributed_executor_backend="mp"), device_config=DeviceConfig("cpu"),
            cache_config=CacheConfig(**{"enable_prefix_caching": True, "cache_dtype": "oscar", "block_size": PAGE, "kv_offloading_size": gigabytes} | cache),
            attention_config=AttentionConfig(backend=AttentionBackendEnum["OSCAR"]), additional_config={"oscar_bundle": str(tmp_path)},
            scheduler_config=SchedulerConfig(max_num_seqs=SLOTS, max_num_batched_tokens=batched, max_model_len=8192, is_encoder_decoder=False,
                                             async_scheduling=False))
    return make


class Engine:
    """vLLM's scheduler, and a worker that notes tokens."""

    def __init__(self, config, blocks, places, monkeypatch):
        from vllm.utils.hashing import sha256
        from vllm.v1.core.kv_cache_utils import get_request_block_hasher, init_none_hash
        from vllm.v1.core.sched.scheduler import Scheduler
        init_none_hash(sha256)
        monkeypatch.setattr(offloading, "host_places", lambda config: places)
        spec = FullAttentionSpec(block_size=PAGE, num_kv_heads=2, head_size=64, dtype=torch.bfloat16)
        plan = KVCacheConfig(num_blocks=blocks, kv_cache_tensors=[], kv_cache_groups=[KVCacheGroupSpec(["model.layers.0.self_attn.attn"], spec)])
        config.cache_config.num_gpu_blocks = blocks
        self.scheduler = Scheduler(vllm_config=config, kv_cache_config=plan, structured_output_manager=unittest.mock.Mock(), block_size=PAGE, hash_block_size=PAGE)
        self.connector, self.hasher = self.scheduler.connector, get_request_block_hasher(PAGE, sha256, 0)
        self.gpu, self.host = torch.full((blocks, PAGE), -1), {}
        self.slots, self.free, self.counts = {}, list(range(SLOTS)), [0] * SLOTS
        self.table = PrefixTable(SLOTS, 1, 3, "cpu", kept_sinks(SLOTS, 1), RECENT, lambda slot: self.counts[slot])
        pages = (SLOTS + 1) * 4 + kept_sinks(SLOTS, 1)
        self.cache = types.SimpleNamespace(windows=torch.full((pages, PAGE), -1.0), policy=types.SimpleNamespace(sink_pages=1))
        self.sinks = HostSinks({0: self.cache}, places)
        self.blocks, self.jobs, self.stores = {}, [], []
        self.loaded, self.hits, self.now = 0, [], 0

    def add(self, name, ids, answer):
        from vllm.v1.request import Request
        self.scheduler.add_request(Request(name, ids, SamplingParams(max_tokens=answer, ignore_eos=True), None, block_hasher=self.hasher))

    def submit(self, job, meta, load):
        """Copies at once; the scheduler is told some steps later."""
        gpu, host = (meta.dst_spec, meta.src_spec) if load else (meta.src_spec, meta.dst_spec)
        for one, other in zip(gpu.block_ids, host.block_ids):
            if load:
                self.gpu[one], self.loaded = self.host[int(other)], self.loaded + 1
            else:
                self.host[int(other)] = self.gpu[one].clone()
        self.jobs.append((self.now + random.randint(0, 2), job, meta.req_id if load else None))

    def flush_stores(self):
        for job, meta in self.stores:
            self.submit(job, meta, False)
        self.stores = []

    def step(self):
        self.now += 1
        out = self.scheduler.schedule()
        meta = out.kv_connector_metadata
        self.flush_stores()
        for job in meta.jobs_to_flush or ():
            if job in meta.store_jobs:
                self.submit(job, meta.store_jobs.pop(job), False)
        for name in {*out.finished_req_ids, *(out.preempted_req_ids or ())}:
            if name in self.slots:
                self.free.append(self.slots.pop(name))
        self.sinks.come(self.table, meta.coming)
        names = list(out.num_scheduled_tokens)
        if names:
            self.run(out, names)
        for job, one in meta.load_jobs.items():
            self.submit(job, one, True)
        self.sinks.leave(self.table, meta.leaving)
        self.stores = list(meta.store_jobs.items())
        ready = [one for one in self.jobs if one[0] <= self.now]
        self.jobs = [one for one in self.jobs if one[0] > self.now]
        told = KVConnectorOutput(finished_recving={name for *_, name in ready if name} or None,
                                 kv_connector_worker_meta=OffloadingWorkerMetadata(completed_jobs={job: 1 for _, job, _ in ready}) if ready else None)
        self.scheduler.update_from_output(out, ModelRunnerOutput(
            req_ids=names, req_id_to_index={name: i for i, name in enumerate(names)}, sampled_token_ids=[self.next(name) for name in names], logprobs=None,
            prompt_logprobs_dict={}, pooler_output=[], kv_connector_output=told))

    def next(self, name):
        """The token that follows; none while a prompt is not complete."""
        request = self.scheduler.requests[name]
        return [int(request.num_tokens % 50) + 7] if request.num_computed_tokens >= request.num_tokens else []

    def run(self, out, names):
        for new in out.scheduled_new_reqs:
            self.slots[new.req_id], self.blocks[new.req_id] = self.free.pop(), list(new.block_ids[0])
            self.counts[self.slots[new.req_id]] += 1
            if new.num_computed_tokens:
                self.hits.append(new.num_computed_tokens)
                assert out.num_scheduled_tokens[new.req_id] >= RECENT  # steps of single tokens need a window
        cached = out.scheduled_cached_reqs
        for name, blocks in zip(cached.req_ids, cached.new_block_ids):
            assert name not in cached.resumed_req_ids
            self.blocks[name] += blocks[0] if blocks else []
        starts = [self.scheduler.requests[name].num_computed_tokens - out.num_scheduled_tokens[name] for name in names]
        counts = [out.num_scheduled_tokens[name] for name in names]
        slots = [self.slots[name] for name in names]
        widest = 8192 // PAGE
        table = torch.zeros((len(names), widest), dtype=torch.int32)
        for row, name in enumerate(names):
            table[row, :len(self.blocks[name])] = torch.tensor(self.blocks[name], dtype=torch.int32)
        ends = torch.tensor([s + c for s, c in zip(starts, counts)], dtype=torch.int32)
        made = self.table.rows(slots, starts, counts, ends, table, torch.zeros(sum(counts), dtype=torch.int64))
        if made.sinks is not None:
            self.cache.windows.index_copy_(0, made.sinks[0], self.cache.windows.index_select(0, made.sinks[1]))
        for row, (name, start, count) in enumerate(zip(names, starts, counts)):
            ids = torch.tensor(self.scheduler.requests[name].all_token_ids[:])
            place = self.table._sink_of_slot[slots[row]]
            for at in range(0, start, PAGE):  # what it reads
                end = min(at + PAGE, start)
                held = self.gpu[self.blocks[name][at // PAGE], :end - at]
                if at >= SINK:
                    assert torch.equal(held, ids[at:end]), (name, at)
            if start >= SINK:
                assert torch.equal(self.cache.windows[place][0], ids[:SINK].float()), name
            for at in range(start, start + count):
                self.gpu[self.blocks[name][at // PAGE], at % PAGE] = ids[at]
                if at < SINK:
                    self.cache.windows[place, at] = float(ids[at])
        for chunk in made.chunks:
            if chunk.kept >= 0:
                self.cache.windows[chunk.kept] = self.cache.windows[self.table._sink_of_slot[slots[chunk.row]]][0]


def prompts(count, generator):
    """Sessions that grow, which come in turn with others."""
    sessions = [[generator.randint(100, 90_000) for _ in range(generator.randint(600, 900))] for _ in range(12)]
    for number in range(count):
        session = sessions[generator.randrange(len(sessions))]
        if len(session) < 5000:
            session += [generator.randint(100, 90_000) for _ in range(generator.randint(20, 300))]
        yield str(number), list(session)


@pytest.mark.parametrize("places, batched", [(40, 2048), (4, 2048), (40, 300)])
def test_requests_find_their_own_tokens_and_sinks(configured, monkeypatch, places, batched):
    generator = random.Random(3)
    random.seed(4)
    engine = Engine(configured(batched=batched), 260, places, monkeypatch)  # blocks of the GPU: a few of the sessions
    todo = list(prompts(220, generator))
    while todo or engine.scheduler.has_requests():
        while todo and len(engine.scheduler.requests) < 10:
            name, ids = todo.pop(0)
            engine.add(name, ids, generator.randint(1, 90))
        engine.step()
        assert engine.now < 30_000
    assert engine.loaded > (500 if places == 40 else 50) and len(engine.hits) > (100 if places == 40 else 20)
    host = engine.scheduler.kv_cache_manager
    assert not engine.connector._host.loading and not +engine.connector._host.places._wanted, host
    engine.table._check()


def test_sinks_that_host_memory_holds():
    places = offloading.Places(2)
    assert (places.add("a"), places.add("b"), places.add("a")) == (0, 1, None)
    places.find("a")
    places.want("a", 1)
    assert places.add("c") == 1 and places.find("b") is None  # the one that was used longest ago
    places.want("c", 1)
    assert places.add("d") is None  # requests wait for both
    places.want("a", -1)
    assert places.add("d") == 0 and places.find("c") == 1
    places.drop(len(places))  # all but the one that a request waits for
    assert places.find("d") is None and places.find("c") == 1 and places.add("e") == 0


def test_a_sink_that_is_not_there_is_noted():
    table = PrefixTable(2, 1, 3, "cpu", 3, RECENT, lambda slot: 1)
    cache = types.SimpleNamespace(windows=torch.arange(60.0).reshape(15, 4).clone(), policy=types.SimpleNamespace(sink_pages=1))
    sinks = HostSinks({0: cache}, 2)
    pages = table.keep(7, torch.tensor(True))
    before = cache.windows[pages].clone()
    sinks.leave(table, [(7, 1), (8, 0)])
    cache.windows.zero_()
    sinks.come(table, [(9, 1)])
    assert torch.equal(cache.windows[table.kept_of(9)[0]], before) and table.holds(torch.tensor(9))
    table._check()
    sinks.come(table, [(10, 0)])  # of block 8, whose sink nobody kept
    with pytest.raises(InputError, match="are no longer in BF16"):
        table._check()


def test_what_is_refused(configured, monkeypatch):
    assert vllm_serving.offloading_refusal(configured()) is None
    assert "--enable-prefix-caching" in vllm_serving.offloading_refusal(configured(enable_prefix_caching=False))
    config = configured()
    config.kv_transfer_config.kv_connector_extra_config["blocks_per_chunk"] = 4
    assert "OffloadingConnector with blocks_per_chunk would leave" in vllm_serving.offloading_refusal(config)
    config = configured()
    config.kv_transfer_config.kv_connector = "NixlConnector"
    assert "KV transfer by NixlConnector would leave" in vllm_serving.offloading_refusal(config)
    groups = types.SimpleNamespace(kv_cache_groups=[1, 2])
    with pytest.raises(InputError, match="the model has 2 groups of layers"):
        offloading.OscarOffloadingConnector(configured(), None, groups)


@pytest.mark.parametrize("mixed", [False, True])
def test_vllms_worker_moves_our_blocks(build, monkeypatch, mixed):  # noqa: F811
    """The regions that vLLM's worker copies hold whole pages of all layers, also of unequal widths."""
    from vllm.distributed.kv_transfer.kv_connector.v1.offloading import worker
    made, built = build(unequal() if mixed else random_bundle(2, d=64), [{}, {}], cache_config__enable_prefix_caching=True)
    found, groups, _, memory = planned(made, 8)
    assert len(groups) == 1
    caches = []
    monkeypatch.setattr(worker, "derive_canonical_mappings", lambda *given: {})
    of = worker.OffloadingConnectorWorker(types.SimpleNamespace(replicated_layout=False), made, found)
    monkeypatch.setattr(of, "_init_worker", caches.append)
    of.register_kv_caches(memory)
    (canonical,) = caches
    pools = dict(memory)
    for seed, pool in enumerate(pools.values()):
        pool.view(torch.uint8).random_(0, 256, generator=torch.Generator().manual_seed(seed))
    before = {name: pool[3].clone() for name, pool in pools.items()}
    held = [one.tensor[3].clone() for one in canonical.tensors]
    for pool in pools.values():
        pool.zero_()
    for one, row in zip(canonical.tensors, held):
        one.tensor[5] = row  # to another block
    for name, pool in pools.items():
        assert torch.equal(pool[5], before[name]) and not pool[[0, 3, 4, 6]].any(), name


def test_places_in_host_memory(configured):
    known = vllm_gauges.facts(config := configured(gigabytes=2))
    bytes_of_sink = 2 * SINK * 2 * 64 * 2 * 2  # layers, tokens, heads, channels, sides, BF16
    assert offloading.host_places(config) == int(2 * 2**30 / 8 / (SINK * known.bytes_per_token * 16 / known.bits))
    assert abs(SINK * known.bytes_per_token * 16 / known.bits - bytes_of_sink) < 1
