"""attach() on a random checkpoint of every family of the toolchain: the logits that oscar-verify's decode path has. FP32 on the
CPU."""
import json
import sys

import pytest

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

import oscar_kv  # noqa: E402
from conftest import SAMPLES, SOURCE_DIR, program  # noqa: E402

sys.path.insert(0, str(SOURCE_DIR / "tests" / "oracles"))
import family_checkpoints  # noqa: E402

torch.set_num_threads(1)
LINEAR = {"qwen3-next", "qwen3-5", "qwen3-5-wrapped", "qwen3-5-moe", "qwen3-5-moe-wrapped"}  # layers of linear attention among others
APART = {"gemma4", "gemma4-moe-wrapped", "gemma4-unified-wrapped", "gemma4-shared"}  # layers with a window in heads of another size
TEXT, CONTEXT, WINDOWS = 2000, 90, (8, 16)  # characters; tokens of each sequence; where most of them are coded
# Windows that hold all that sliding layers see, which the bundle then leaves out.
WINDOWS_OF = {"gemma3": (8, 24), "cohere2": (8, 17), "gemma4-alike": (8, 24)}


def rows_of(folder):
    """Calibration tokens, as every family takes them."""
    generator = torch.Generator().manual_seed(3)
    rows = [torch.randint(0, 8192, (n,), generator=generator).tolist() for n in (150, 64)]
    file = folder / "rows.jsonl"
    file.write_text("".join(json.dumps({"input_ids": row}) + "\n" for row in rows))
    return file


def bundle_for(model, folder, windows=WINDOWS):
    program("oscar-collect", "--model", model, "--prompts", rows_of(folder), "-o", folder / "s", "--tokens", 214, "--seq-len", 150,
            "--rows", 200, "--far-pairs", "6,20", "--dtype", "float32", "--device", "cpu", "-q")
    program("oscar-fit", folder / "s", "--method", "oscar", "-o", folder / "bundle", "--windows", "%d,%d" % windows, "-q")
    return folder / "bundle"


def decode_kl(model, bundle, folder):
    """oscar-verify's decode path with the bundle: mean KL over the scored positions."""
    text = folder / "text.txt"
    text.write_text((SAMPLES / "heldout.txt").read_text()[:TEXT])
    program("oscar-verify", "--no-gate", "--model", model, "--bundle", bundle, "--text", text, "--context", CONTEXT, "--max-sequences", 1,
            "--path", "decode", "--methods", "oscar", "--device", "cpu", "--dtype", "float32", "--bootstrap", 50,
            "--report", folder / "r.json", "-q", codes=(0, 1))  # 1: on random weights naive2 may come out as good
    report = json.loads((folder / "r.json").read_text())
    return next(m["kl"]["mean"] for m in report["methods"] if m["id"] == "oscar")


SERVED = sorted(set(family_checkpoints.CASES) - family_checkpoints.LATENT_CASES)


@pytest.mark.parametrize("name", [*SERVED, "phi3-longrope"])
def test_attach(name, tmp_path):
    folder = family_checkpoints.make(name, tmp_path / "model", tokenizer=SAMPLES / "tiny-qwen3")
    windows = WINDOWS_OF.get(name, WINDOWS)
    bundle, first = bundle_for(folder, tmp_path, windows), sum(windows)
    wrapped = '"text_config"' in (folder / "config.json").read_text()
    kind = transformers.AutoModelForImageTextToText if wrapped else transformers.AutoModelForCausalLM
    # By SDPA Gemma 2 of transformers 5.17 leaves its soft caps out.
    model = kind.from_pretrained(folder, dtype=torch.float32, **(dict(attn_implementation="eager") if name == "gemma2" else {})).eval()
    expected = decode_kl(folder, bundle, tmp_path)
    tokenizer = transformers.PreTrainedTokenizerFast(tokenizer_file=str(SAMPLES / "tiny-qwen3" / "tokenizer.json"))
    ids = tokenizer((tmp_path / "text.txt").read_text(), return_tensors="pt").input_ids[:, :CONTEXT]
    with torch.no_grad():
        try:
            base = model(input_ids=ids).logits
        except AttributeError as error:  # without an image
            if "image_outputs" not in str(error):
                raise
            pytest.skip(f"transformers {transformers.__version__} cannot run {type(model).__name__} on text: {error}")
        oscar_kv.attach(model, bundle)
        cache, logits = oscar_kv.new_cache(model), []
        for i in range(CONTEXT):
            logits.append(model(input_ids=ids[:, i:i + 1], past_key_values=cache, use_cache=True).logits)
        if name in {*LINEAR, "gemma4"}:  # states of their own beside pages: turns, chunks, and a cache that starts again
            cache.reset()
            again = torch.cat([model(input_ids=part, past_key_values=cache, use_cache=True).logits for part in ids[:, :32].split([20, 12], dim=1)], dim=1)
            assert (again - base[:, :32]).abs().max() < 2e-2 * base.abs().max() and cache.get_seq_length() == 32
            assert sum(layer.is_initialized for layer in cache.paged) == len(cache.paged) < len(cache.layers)
    p, q = base.double().log_softmax(-1), torch.cat(logits, dim=1).double().log_softmax(-1)
    kl = (p.exp() * (p - q)).sum(-1)[0]
    found = float(kl[first:CONTEXT - 1].mean())
    print(f"{name:18} KL {found:.4g}, oscar-verify {expected:.4g}; before anything is coded {float(kl[:first].max()):.1e}")
    assert kl[:first].max() < 1e-3  # nothing is coded yet, only rounded
    assert expected > 1e-3 and abs(found / expected - 1) < 0.02
    left_out = [entry["layer"] for entry in json.loads((bundle / "oscar_bundle.json").read_text())["model"].get("left_out", [])]
    kinds = getattr(model.config.get_text_config(), "layer_types", None) or ()
    linear = [i for i, kind in enumerate(kinds) if kind == "linear_attention"]
    sliding = [i for i, kind in enumerate(kinds) if kind == "sliding_attention"]
    readers = [*range(len(kinds) - getattr(model.config.get_text_config(), "num_kv_shared_layers", 0), len(kinds))] if "shared" in name else []
    assert left_out == sorted({*(sliding if name in {*WINDOWS_OF, *APART} else linear), *readers}) and bool(linear) == (name in LINEAR)
    oscar_kv.detach(model)
    assert model.generate(input_ids=ids[:, :20], max_new_tokens=2, do_sample=False, pad_token_id=0).shape == (1, 22)


def test_latent_attention_is_refused_by_name(tmp_path):
    """The bundle, the model, and the model with a bundle that a caller has read all the same."""
    folder = family_checkpoints.make("deepseek-v3", tmp_path / "model", tokenizer=SAMPLES / "tiny-qwen3")
    bundle = bundle_for(folder, tmp_path)
    model = transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
    with pytest.raises(oscar_kv.InputError, match="is a bundle for latent attention .MLA., which only oscar-verify and vLLM run$"):
        oscar_kv.attach(model, bundle)
    for other in (oscar_kv.load_bundle(bundle, latent=True), SAMPLES / "golden" / "bundle"):
        with pytest.raises(oscar_kv.InputError, match="^DeepseekV3ForCausalLM has latent attention .MLA., which oscar_kv.attach"):
            oscar_kv.attach(model, other)
