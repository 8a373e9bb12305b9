"""Models that were loaded in 4 or 8 bits: layers of the shapes that bitsandbytes, AWQ, GPTQ, HQQ, FP8 and compressed-tensors put in place
of a Linear. Their keys are BF16 all the same."""
import dataclasses
import json
import shutil

import pytest

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

import oscar_kv  # noqa: E402
from conftest import SAMPLES  # noqa: E402
from oscar_kv.files.checkpoint import checkpoint_of  # noqa: E402
from oscar_kv.files.errors import InputError  # noqa: E402
from oscar_kv.files.fingerprint import checkpoint_fingerprint  # noqa: E402
from oscar_kv.hf.attach import geometry  # noqa: E402
from random_bundles import random_bundle  # noqa: E402

CHECKPOINT = SAMPLES / "tiny-qwen3"
IDS = torch.randint(5, 250, (1, 120), generator=torch.Generator().manual_seed(1))


class Coded(torch.nn.Module):
    """8 bits a weight, one scale a row; `name` holds the codes, in a parameter or a buffer of `dtype`."""

    def __init__(self, linear, name, dtype, buffer):
        super().__init__()
        scale = linear.weight.detach().abs().amax(1, keepdim=True) / 127
        codes = (linear.weight.detach() / scale).round()
        codes = codes.to(dtype) if dtype.is_floating_point else (codes + (128 if dtype == torch.uint8 else 0)).to(dtype)
        self.name, self.offset = name, 128 if dtype == torch.uint8 else 0
        if buffer:
            self.register_buffer(name, codes)
        else:
            self.register_parameter(name, torch.nn.Parameter(codes, requires_grad=False))
        self.register_buffer("scales", scale)

    def forward(self, x):
        return x @ ((getattr(self, self.name).to(x.dtype) - self.offset) * self.scales).to(x.dtype).T


KINDS = {"bitsandbytes 4": ("weight", torch.uint8, False), "bitsandbytes 8": ("weight", torch.int8, False),
         "FP8": ("weight", torch.float8_e4m3fn, False), "AWQ, GPTQ": ("qweight", torch.int32, True), "HQQ": ("W_q", torch.uint8, False),
         "compressed-tensors": ("weight_packed", torch.int32, False)}


def coded_model(name, dtype, buffer, of=torch.bfloat16):
    model = transformers.AutoModelForCausalLM.from_pretrained(CHECKPOINT, dtype=of).eval()
    for layer in model.model.layers:
        for part in ("q_proj", "k_proj", "v_proj", "o_proj"):
            setattr(layer.self_attn, part, Coded(getattr(layer.self_attn, part), name, dtype, buffer))
    return model


def fitted(model):
    bundle = random_bundle(*geometry(model), (4, 2, 1, 1), (4, 2, 1, 1), sink=16, recent=48)
    return dataclasses.replace(bundle, fingerprint=checkpoint_fingerprint(CHECKPOINT))


@pytest.mark.parametrize("kind", KINDS)
def test_generates(kind):
    model = coded_model(*KINDS[kind])
    oscar_kv.attach(model, fitted(model))
    cache = oscar_kv.new_cache(model)
    out = model.generate(IDS, past_key_values=cache, do_sample=False, max_new_tokens=4, pad_token_id=0, eos_token_id=None)
    assert out.shape == (1, 124) and [layer.kv.lengths for layer in cache.layers] == [[123]] * 4
    assert cache.layers[0].kv.windows.dtype == torch.bfloat16


def test_float16_is_refused():
    model = coded_model(*KINDS["AWQ, GPTQ"], of=torch.float16)
    with pytest.raises(InputError, match="layer 0 computes in float16, expected bfloat16 or float32"):
        oscar_kv.attach(model, fitted(model))


def test_norms_tell_other_weights():
    """Codes cannot be compared with the checkpoint; the norms of the layer can."""
    model = coded_model(*KINDS["HQQ"])
    with torch.no_grad():
        model.model.layers[2].input_layernorm.weight[3] += 1
    with pytest.raises(InputError, match="the weights of layer 2 are not those of the checkpoint"):
        oscar_kv.attach(model, fitted(model))


def test_a_checkpoint_without_the_prefix(tmp_path):
    """Names in the file lack "model.", and the weights are compared all the same."""
    from safetensors.torch import load_file, save_file
    from oscar_kv.hf.weights import check_weights
    from oscar_kv.hf.attach import _attention_modules
    save_file({name.removeprefix("model."): tensor for name, tensor in load_file(CHECKPOINT / "model.safetensors").items()}, tmp_path / "model.safetensors")
    model = transformers.AutoModelForCausalLM.from_pretrained(CHECKPOINT, dtype=torch.bfloat16).eval()
    check_weights(model, _attention_modules(model), tmp_path)
    with torch.no_grad():
        model.model.layers[3].self_attn.k_proj.weight[0, 1] += 1
    with pytest.raises(InputError, match="the weights of layer 3 are not those"):
        check_weights(model, _attention_modules(model), tmp_path)


def test_pieces_of_weights_are_refused():
    model = transformers.AutoModelForCausalLM.from_pretrained(CHECKPOINT, dtype=torch.bfloat16).eval()
    bundle = fitted(model)
    model.model.layers[0].self_attn.k_proj.weight.device_mesh = "2 devices"
    with pytest.raises(InputError, match="divided among devices"):
        oscar_kv.attach(model, bundle)


def test_another_rope_than_the_checkpoints_is_refused():
    other = {"rope_type": "linear", "factor": 2.0, "rope_theta": 1e6}
    model = transformers.AutoModelForCausalLM.from_pretrained(CHECKPOINT, dtype=torch.bfloat16, rope_parameters=other).eval()
    with pytest.raises(InputError, match="another RoPE than those that the bundle was fitted on: .*factor 2.0 for None"):
        oscar_kv.attach(model, fitted(model))


def test_other_settings_than_the_checkpoints_get_a_warning():
    model = transformers.AutoModelForCausalLM.from_pretrained(CHECKPOINT, dtype=torch.bfloat16, rms_norm_eps=0.5).eval()
    with pytest.warns(UserWarning, match="the model runs with rms_norm_eps 0.5 for 1e-06 in the checkpoint"):
        oscar_kv.attach(model, fitted(model))


class TestPlaces:
    @pytest.fixture
    def cache(self, tmp_path, monkeypatch):
        """A Hugging Face cache with two snapshots of one model, and no refs."""
        import huggingface_hub.constants as constants
        import huggingface_hub.file_download as download
        for module in (constants, download):
            if hasattr(module, "HF_HUB_CACHE"):
                monkeypatch.setattr(module, "HF_HUB_CACHE", str(tmp_path))
        for commit in ("a" * 40, "b" * 40):
            folder = tmp_path / "models--org--model" / "snapshots" / commit
            folder.mkdir(parents=True)
            (folder / "config.json").write_text(json.dumps({}))
        return tmp_path / "models--org--model" / "snapshots"

    def test_another_revision_than_main(self, cache):
        """transformers 5 does not say that a model came from another one. The bundle is that of "a", and "b" is main."""
        for commit in "ab":
            shutil.rmtree(cache / (commit * 40))
            shutil.copytree(CHECKPOINT, cache / (commit * 40))
        other = transformers.AutoModelForCausalLM.from_pretrained(CHECKPOINT, dtype=torch.bfloat16)
        with torch.no_grad():
            for layer in other.model.layers:
                layer.self_attn.k_proj.weight.mul_(-1)
        other.save_pretrained(cache / ("b" * 40))
        (cache.parent / "refs").mkdir()
        (cache.parent / "refs" / "main").write_text("b" * 40)
        model = transformers.AutoModelForCausalLM.from_pretrained(cache / ("a" * 40), dtype=torch.bfloat16).eval()
        main = transformers.AutoModelForCausalLM.from_pretrained(cache / ("b" * 40), dtype=torch.bfloat16).eval()
        model.name_or_path = main.name_or_path = "org/model"
        oscar_kv.attach(model, fitted(model))
        with pytest.raises(InputError, match="the weights of layer 0 are not those"):
            oscar_kv.attach(main, fitted(main))

    def test_without_refs(self, cache):
        assert checkpoint_of("org/model", "a" * 40).name == "a" * 40
        with pytest.raises(InputError, match="holds 2 versions of 'org/model' and does not say which is the main one; pass checkpoint=DIR"):
            checkpoint_of("org/model")
        shutil.rmtree(cache / ("a" * 40))
        assert checkpoint_of("org/model").name == "b" * 40
        with pytest.raises(InputError, match="'org/model'. is not found"):
            checkpoint_of("org/model", "c" * 40)
        for name in ("", "org/other", "../org/model", "/nowhere", "a/b/c"):
            with pytest.raises(InputError, match="is not found"):
                checkpoint_of(name)
