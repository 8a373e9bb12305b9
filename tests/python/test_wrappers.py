"""attach() on what users hold: models in wrappers, with adapters, with switches that turn caches off. Whatever runs after attach()
uses the 2-bit cache or ends in a sentence. Sample model on the CPU, random bundles."""
import copy
import pickle
import warnings

import pytest

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

import oscar_kv  # noqa: E402
from conftest import SAMPLES  # noqa: E402
from oscar_kv.files.errors import InputError  # noqa: E402
from oscar_kv.hf.attach import geometry  # noqa: E402
from random_bundles import random_bundle  # noqa: E402

torch.set_num_threads(1)
IDS = torch.randint(5, 250, (1, 120), generator=torch.Generator().manual_seed(1))


def load(dtype=torch.float32):
    return transformers.AutoModelForCausalLM.from_pretrained(SAMPLES / "tiny-qwen3", dtype=dtype).eval()


def bundle_of(model):
    return random_bundle(*geometry(model), (4, 2, 1, 1), (4, 2, 1, 1), sink=16, recent=48)


def generated(model, **options):
    return model.generate(input_ids=IDS, **(dict(do_sample=False, pad_token_id=0, eos_token_id=None, max_new_tokens=6) | options))


@pytest.fixture(scope="module")
def known():
    """(tokens of the BF16 cache, of the 2-bit cache, bundle)."""
    model = load()
    base, bundle = generated(model), bundle_of(model)
    ours = generated(oscar_kv.attach(model, bundle))
    assert not torch.equal(base, ours)  # else no test below could tell them apart
    return base, ours, bundle


@pytest.fixture
def attached(known):
    model = oscar_kv.attach(load(), known[2])
    yield model
    oscar_kv.detach(model)


class Forwarding(torch.nn.Module):
    """A wrapper of the shape of peft's and torch.compile's: attributes that it lacks are those of the model inside."""

    def __init__(self, model):
        super().__init__()
        self.inner = model

    def __getattr__(self, name):
        try:
            return super().__getattr__(name)
        except AttributeError:
            return getattr(self.inner, name)

    def forward(self, *args, **kwargs):
        return self.inner(*args, **kwargs)


class Adapter(torch.nn.Module):
    """Of the shape of peft's LoRA layers."""
    adapter_layer_names = ("lora_A", "lora_B")

    def __init__(self, layer):
        super().__init__()
        self.base_layer, self.active_adapters, self.merged, self.disable_adapters = layer, ["mine"], False, False
        self.lora_A = torch.nn.ModuleDict({"mine": torch.nn.Linear(layer.in_features, 2, bias=False)})
        self.lora_B = torch.nn.ModuleDict({"mine": torch.nn.Linear(2, layer.out_features, bias=False)})

    def forward(self, x):
        base = self.base_layer(x)
        return base if self.merged or self.disable_adapters or "mine" not in self.active_adapters else base + self.lora_B["mine"](self.lora_A["mine"](x))


class Copied(torch.nn.Module):
    """Of the shape of peft's modules_to_save."""

    def __init__(self, layer):
        super().__init__()
        self.original_module, self.modules_to_save = layer, torch.nn.ModuleDict({"mine": copy.deepcopy(layer)})
        self.active_adapters, self.disable_adapters = ["mine"], False

    def __getattr__(self, name):
        try:
            return super().__getattr__(name)
        except AttributeError:
            return getattr(self.original_module, name)

    def forward(self, x):
        return (self.original_module if self.disable_adapters else self.modules_to_save["mine"])(x)


class TestWrappers:
    @pytest.mark.parametrize("wrap", [Forwarding, lambda m: torch.compile(m, backend="eager"), lambda m: Forwarding(Forwarding(m))])
    def test_generate_of_a_wrapper_uses_the_cache(self, known, wrap):
        base, ours, bundle = known
        wrapper = wrap(load())
        assert oscar_kv.attach(wrapper, bundle) is wrapper
        assert torch.equal(generated(wrapper), ours)
        assert torch.equal(generated(wrapper, past_key_values=oscar_kv.new_cache(wrapper)), ours)
        assert oscar_kv.detach(wrapper) is wrapper and torch.equal(generated(wrapper), base)

    def test_data_parallel(self, known):
        wrapper = torch.nn.DataParallel(load())
        oscar_kv.attach(wrapper, known[2])
        assert torch.equal(generated(wrapper.module), known[1])

    def test_accelerate(self, known):
        accelerate = pytest.importorskip("accelerate")
        model = accelerate.Accelerator(cpu=True).prepare(load())
        assert torch.equal(generated(oscar_kv.attach(model, known[2])), known[1])

    def test_the_forward_of_a_compiled_model(self, known):
        """It is cut where the cache counts, and has the logits of the model itself."""
        model = load()
        wrapper = oscar_kv.attach(torch.compile(model, backend="eager"), known[2])
        caches = [oscar_kv.new_cache(model) for _ in range(2)]
        with torch.no_grad():
            for part in IDS[:, :100].split([98, 1, 1], dim=1):
                found, expected = (m(part, past_key_values=cache).logits for m, cache in zip((wrapper, model), caches))
                assert torch.equal(found, expected)
        assert caches[0].get_seq_length() == 100

    def test_compiled_in_place(self, known):
        model = load()
        model.compile(backend="eager")
        with pytest.raises(InputError, match="was compiled in place by model.compile"):
            oscar_kv.attach(model, known[2])

    def test_no_model_or_two(self, known):
        pair = torch.nn.ModuleList([load(), load()])
        with pytest.raises(InputError, match="'ModuleList' holds 2 models of transformers, expected one"):
            oscar_kv.attach(pair, known[2])
        with pytest.raises(InputError, match="'Linear' holds 0 models"):
            oscar_kv.attach(torch.nn.Linear(2, 2), known[2])
        with pytest.raises(InputError, match="a 'str' is no model"):
            oscar_kv.attach("Qwen/Qwen3-8B", known[2])
        tokenizer = transformers.AutoTokenizer.from_pretrained(SAMPLES / "tiny-qwen3")
        pipe = transformers.pipeline("text-generation", model=load(), tokenizer=tokenizer)
        with pytest.raises(InputError, match="is no model; pass its attribute .model"):
            oscar_kv.attach(pipe, known[2])

    def test_sharded(self, known):
        kind = type("FullyShardedDataParallel", (Forwarding,), {})
        with pytest.raises(InputError, match="are sharded"):
            oscar_kv.attach(kind(load()), known[2])


class TestAdapters:
    @pytest.mark.parametrize("name", ["q_proj", "k_proj", "v_proj"])
    def test_not_merged_is_refused(self, known, name):
        model = load()
        part = model.model.layers[2].self_attn
        setattr(part, name, Adapter(getattr(part, name)))
        with pytest.raises(InputError, match=f"{name} of layer 2 has the adapter 'mine', which is not merged"):
            oscar_kv.attach(Forwarding(model), known[2])

    @pytest.mark.parametrize("name", ["k_norm", "q_norm", "v_proj"])
    def test_a_trained_copy_of_a_layer(self, known, name):
        """peft's modules_to_save: a copy of the whole layer runs in its place."""
        model = load()
        part = model.model.layers[1].self_attn
        setattr(part, name, Copied(getattr(part, name)))
        with pytest.raises(InputError, match=f"{name} of layer 1 has the adapter 'mine', which is not merged"):
            oscar_kv.attach(model, known[2])
        getattr(part, name).disable_adapters = True
        assert torch.equal(generated(oscar_kv.attach(model, known[2])), known[1])

    def test_switched_off_and_on(self, known):
        """An adapter that is off changes nothing; the next generate() notices that it is on."""
        model = load()
        part = model.model.layers[2].self_attn
        part.k_proj = Adapter(part.k_proj)
        part.k_proj.disable_adapters = True
        assert torch.equal(generated(oscar_kv.attach(model, known[2])), known[1])
        part.k_proj.disable_adapters = False
        with pytest.raises(InputError, match="k_proj of layer 2 has the adapter 'mine'"):
            generated(model)
        part.k_proj.active_adapters = ["another"]
        assert torch.equal(generated(model), known[1])

    def test_elsewhere_is_told(self, known):
        model = load()
        mlp = model.model.layers[1].mlp
        mlp.down_proj = Adapter(mlp.down_proj)
        with pytest.warns(UserWarning, match="layers.1.mlp.down_proj has the adapter 'mine'"):
            oscar_kv.attach(model, known[2])

    def test_peft(self, known):
        peft = pytest.importorskip("peft")
        options = dict(task_type="CAUSAL_LM", init_lora_weights=False)
        wrapper = peft.get_peft_model(load(), peft.LoraConfig(target_modules=["k_proj"], **options))
        with pytest.raises(InputError, match="k_proj of layer 0 has the adapter 'default'"):
            oscar_kv.attach(wrapper, known[2])
        for other in (peft.LoraConfig(target_modules=["down_proj"], modules_to_save=["k_norm"], **options),
                      peft.LNTuningConfig(target_modules=["k_norm"], task_type="CAUSAL_LM")):
            with pytest.raises(InputError, match="k_norm of layer 0 has the adapter 'default'"):
                oscar_kv.attach(peft.get_peft_model(load(), other), known[2])
        with wrapper.disable_adapter():
            oscar_kv.attach(wrapper, known[2])
            assert torch.equal(generated(wrapper), known[1])
        with pytest.raises(InputError, match="k_proj of layer 0"):
            generated(wrapper)
        oscar_kv.detach(wrapper)
        merged = wrapper.merge_and_unload()
        assert generated(oscar_kv.attach(merged, bundle_of(merged))).shape == (1, 126)
        prefix = peft.get_peft_model(load(), peft.PrefixTuningConfig(num_virtual_tokens=4, task_type="CAUSAL_LM"))
        with pytest.raises(InputError, match="of the kind PREFIX_TUNING"):
            oscar_kv.attach(prefix, known[2])


class TestPackedRows:
    """Rows of several texts, whose position_ids start again: transformers keeps them apart in a forward without a cache."""
    POSITIONS = torch.cat([torch.arange(60), torch.arange(60)])[None]

    def test_texts_of_one_row_are_not_mixed_in_silence(self, attached):
        with pytest.raises(InputError, match="several texts"):
            attached(IDS, position_ids=self.POSITIONS, use_cache=False)

    def test_what_is_no_packed_row_goes_on(self, known, attached):
        whole = torch.arange(120)[None]
        for options in (dict(position_ids=whole, use_cache=False), dict(position_ids=whole + 7, use_cache=False), dict(position_ids=whole),
                        dict(use_cache=False)):
            with torch.no_grad(), warnings.catch_warnings():
                warnings.simplefilter("ignore")
                assert torch.equal(attached(IDS, **options).logits, load()(IDS, **options).logits), options


class TestSwitches:
    def test_a_checkpoint_names_a_cache(self, attached, known):
        """What the authors would take without a bundle; what a call asks for is refused."""
        for name in ("dynamic", "static", "hybrid", "offloaded"):
            attached.generation_config.cache_implementation = name
            assert torch.equal(generated(attached), known[1]), name
        attached.generation_config.cache_implementation = None
        for name in ("dynamic", "static", "quantized"):
            with pytest.raises(InputError, match=f"cache_implementation '{name}' excludes the attached bundle"):
                generated(attached, cache_implementation=name)

    def test_use_cache_false(self, attached, known):
        with pytest.raises(InputError, match="use_cache is false"):
            generated(attached, use_cache=False)
        attached.generation_config.use_cache = False
        with pytest.raises(InputError, match="use_cache is false"):
            generated(attached)
        attached.generation_config.use_cache = True
        attached.config.use_cache = False  # which generate() overrules
        assert torch.equal(generated(attached), known[1])

    def test_use_cache_false_in_files(self, known, tmp_path):
        import json
        import shutil
        for name, generation in (("config.json", None), ("generation_config.json", {"use_cache": False})):
            folder = tmp_path / name
            shutil.copytree(SAMPLES / "tiny-qwen3", folder)
            if generation is None:
                config = json.loads((folder / "config.json").read_text()) | {"use_cache": False}
                (folder / "config.json").write_text(json.dumps(config))
            else:
                (folder / "generation_config.json").write_text(json.dumps(generation))
            model = oscar_kv.attach(transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval(), known[2])
            try:
                assert torch.equal(generated(model), known[1]), name
            except InputError as error:
                assert "use_cache is false" in str(error)

    def test_caches_of_another_kind(self, attached):
        with pytest.raises(InputError, match="past_key_values is a DynamicCache|cache is a DynamicCache"):
            generated(attached, past_key_values=transformers.DynamicCache())
        out = attached(IDS)  # a loop of the user's own
        with pytest.raises(InputError, match="layer 0 read 120 tokens from a cache of another kind"):
            attached(IDS[:, :1], past_key_values=out.past_key_values)

    def test_continuous_batching(self, attached):
        for call in (lambda: attached.generate_batch([[1, 2, 3]]), lambda: generated(attached, cache_implementation="paged")):
            with pytest.raises(InputError, match="continuous batching .* brings a cache of its own"):
                call()

    def test_another_attention_function(self, attached):
        attached.set_attn_implementation("sdpa")
        for tokens in (1, 3):
            with pytest.raises(InputError, match="put no token into the cache|attended without this cache"):
                generated(attached, max_new_tokens=tokens)

    def test_gradient_checkpointing(self, attached):
        attached.gradient_checkpointing_enable()
        attached.train()
        with pytest.raises(InputError, match="layer 0 put no token into the cache of the attached bundle"):
            generated(attached)
        attached.gradient_checkpointing_disable()

    def test_a_generate_that_never_asks(self, known):
        """A class that prepares its cache elsewhere."""
        class Own(type(load())):
            def generate(self, input_ids, **options):
                return torch.cat([input_ids, self(input_ids).logits[:, -1:].argmax(-1)], dim=1)

        model = load()
        model.__class__ = Own
        with pytest.raises(InputError, match="did not ask for the cache of the attached bundle"):
            generated(oscar_kv.attach(model, known[2]))

    def test_one_forward_is_told(self, attached):
        """Once: perplexity in one forward is that of BF16, with a cache and without."""
        with pytest.warns(UserWarning, match="many tokens in one forward attend to each other in BF16"):
            attached(IDS)
        with warnings.catch_warnings():
            warnings.simplefilter("error", UserWarning)
            attached(IDS)
            generated(attached)
        oscar_kv.attach(oscar_kv.detach(attached), bundle_of(attached))
        with pytest.warns(UserWarning, match="many tokens in one forward"):
            attached(IDS, labels=IDS, past_key_values=oscar_kv.new_cache(attached))


class TestCopies:
    def test_deepcopy(self, attached, known):
        """Two continuations of one prompt: each as if it were alone."""
        cache = oscar_kv.new_cache(attached)
        with torch.no_grad():
            attached(IDS[:, :100], past_key_values=cache)
        twin = copy.deepcopy(cache)
        assert twin.attached is cache.attached and twin.nbytes == cache.nbytes and twin.get_seq_length() == 100
        assert twin.layers[1].owner is twin and twin.paged[1] is twin.layers[1] and twin.layers[1].kv.pool.data_ptr() != cache.layers[1].kv.pool.data_ptr()
        other = IDS.flip(1)
        with torch.no_grad():
            for i in range(3):
                attached(other[:, i:i + 1], past_key_values=twin)
            logits = [attached(IDS[:, 100:101], past_key_values=c).logits for c in (cache, twin)]
            fresh = oscar_kv.new_cache(attached)
            attached(IDS[:, :100], past_key_values=fresh)
            expected = attached(IDS[:, 100:101], past_key_values=fresh).logits
        assert torch.equal(logits[0], expected) and not torch.equal(logits[0], logits[1])
        assert (cache.get_seq_length(), twin.get_seq_length()) == (101, 104)
        with pytest.raises(InputError, match="copy.copy: both caches would write the same pages; use copy.deepcopy"):
            copy.copy(cache)
        with pytest.raises(InputError, match="pickle: a cache belongs to the model in this process"):
            pickle.dumps(cache)

    def test_summary(self, attached):
        cache = oscar_kv.new_cache(attached)
        assert repr(cache) == "OscarCache(empty, method random, 4 of 4 layers)"
        with torch.no_grad():
            attached(IDS, past_key_values=cache)
        held, full = cache.nbytes, 2 * 2 * 4 * 2 * 128 * 120
        assert held == sum(layer.kv.allocated_bytes() for layer in cache.layers) > 0
        assert str(cache) == f"OscarCache(120 tokens, 56 of 120 tokens coded, method random, 4 of 4 layers: {held:,} bytes, {full:,} in BF16)"
