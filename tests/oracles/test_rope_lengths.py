"""RoPE whose frequencies follow from the length of a sequence (longrope, dynamic) against transformers, below and above the
original length: logits, moments, what statistics say of it, and the commands after them."""
import json

import pytest

np = pytest.importorskip("numpy")
torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")
safetensors = pytest.importorskip("safetensors")
safetensors_torch = pytest.importorskip("safetensors.torch")

import family_checkpoints  # noqa: E402  (needs the packages above)
from conftest import DEVICE, SOURCE_DIR  # noqa: E402
from test_families import relative  # noqa: E402

SHORT, LONG, ORIGINAL = 90, 150, 96


def ids_of(length):
    return torch.randint(0, 8192, (length,), generator=torch.Generator().manual_seed(length)).tolist()


def peer(model, length):
    """Logits, frequencies [P], attention factor, and key moments by layer of one sequence."""
    network = transformers.AutoModelForCausalLM.from_pretrained(model, dtype="float32", attn_implementation="eager").eval()
    with torch.no_grad():
        output = network(input_ids=torch.tensor([ids_of(length)]), use_cache=True)
    rotary = network.model.rotary_emb
    keys = [layer.keys[0].double() for layer in output.past_key_values.layers]
    grams = [torch.einsum("hti,htj->hij", k, k) for k in keys]
    return output.logits[0], rotary.inv_freq, rotary.attention_scaling, grams


def header(statistics):
    with safetensors.safe_open(statistics, "pt") as file:
        return json.loads(file.metadata()["oscar"])["model"]


@pytest.mark.parametrize("name", family_checkpoints.BY_LENGTH)
def test_both_sides_of_the_original_length(name, tool, tmp_path):
    model = family_checkpoints.make(name, tmp_path / "model", SOURCE_DIR / "sample_data" / "tiny-qwen3")
    text, files = tmp_path / "text.txt", {}
    text.write_text((SOURCE_DIR / "sample_data" / "heldout.txt").read_text()[:2500])
    found = {}
    for length in (SHORT, LONG):
        theirs, frequencies, factor, grams = peer(model, length)
        (tmp_path / "ids.txt").write_text(" ".join(map(str, ids_of(length))) + "\n")
        tool("oscar_logits", model, tmp_path / "ids.txt", tmp_path / "logits.bin", "--device", DEVICE)
        ours = torch.from_numpy(np.fromfile(tmp_path / "logits.bin", np.float32)).view(length, -1)
        error = ((ours - theirs).abs().max() / (theirs.max() - theirs.min())).item()
        assert error < 1e-4 and torch.equal(ours.argmax(-1), theirs.argmax(-1)), (name, length, error)

        prompts, files[length] = tmp_path / f"{length}.jsonl", tmp_path / f"{length}.safetensors"
        prompts.write_text(json.dumps({"input_ids": ids_of(length)}) + "\n")
        tool("oscar-collect", "--model", model, "--prompts", prompts, "-o", files[length], "--tokens", length, "--rows", 40,
             "--far-pairs", "6,20", "--dtype", "float32", "--device", DEVICE, "-q")
        tensors = safetensors_torch.load_file(files[length])
        for layer, gram in enumerate(grams):
            assert relative(tensors[f"layers.{layer}.k_gram"], gram) < 1e-5, (name, length, layer)
        torch.testing.assert_close(tensors["rope_frequency"], frequencies.double(), rtol=1e-6, atol=0)
        assert header(files[length])["rope_scale"] == pytest.approx(factor, rel=1e-6)
        found[length] = tensors["rope_frequency"]
    assert not torch.equal(found[SHORT], found[LONG])  # the two sides differ, or this test shows nothing
    assert header(files[SHORT])["rope_reach"] == ORIGINAL
    assert header(files[LONG]).get("rope_reach") == (LONG if name == "llama-dynamic" else None)

    # Keys before RoPE are the same rows on both sides in the first layer: what is turned back with the right frequencies.
    short, both = tmp_path / "short.safetensors", safetensors_torch.load_file(files[SHORT])
    assert "different frequencies of RoPE" in tool("oscar-collect", "merge", files[SHORT], files[LONG], "-o", short, code=3)
    assert both["layers.0.pre_k_gram"].isfinite().all()

    tool("oscar-fit", files[SHORT], "--method", "oscar", "-o", tmp_path / "b0", "--windows", "8,24", "-q")
    assert f"--context {LONG} is beyond {ORIGINAL} tokens" in tool(
        "oscar-fit", files[SHORT], "-o", tmp_path / "b1", "--windows", "8,24", "--method", "balanced", "--context", LONG, "-q", code=3)
    tool("oscar-fit", files[LONG], "-o", tmp_path / "bundle", "--windows", "8,24", "--method", "balanced", "--context", LONG, "-q")
    for context, bundle, method in ((SHORT, "b0", "oscar"), (LONG, "bundle", "balanced")):
        report = tmp_path / f"{context}.json"
        tool("oscar-verify", "--no-gate", "--model", model, "--bundle", tmp_path / bundle, "--text", text, "--context", context,
             "--max-sequences", 1, "--path", "both", "--device", DEVICE, "--dtype", "float32", "--report", report, "-q",
             "--methods", f"bf16,naive2,{method}", "--bootstrap", 50)
        rows = {(m["id"], m["path"]): m["kl"]["mean"] for m in json.loads(report.read_text())["methods"]}
        # The paged cache in pieces is the whole prefill, whose frequencies do not change on the way.
        assert rows["bf16", "decode"] < 1e-5 < rows[method, "decode"], rows
        assert rows[method, "decode"] == pytest.approx(rows[method, "prefill"], rel=0.05), rows


def test_a_run_has_the_frequencies_of_its_longest_sequence(tool, tmp_path):
    model = family_checkpoints.make("llama-longrope", tmp_path / "model", SOURCE_DIR / "sample_data" / "tiny-qwen3")
    prompts, both = tmp_path / "rows.jsonl", tmp_path / "s.safetensors"
    prompts.write_text("".join(json.dumps({"input_ids": ids_of(n)}) + "\n" for n in (SHORT, LONG)))
    tool("oscar-collect", "--model", model, "--prompts", prompts, "-o", both, "--tokens", SHORT + LONG, "--rows", 1, "--dtype",
         "float32", "--device", DEVICE, "-q")
    frequencies = peer(model, LONG)[1]
    torch.testing.assert_close(safetensors_torch.load_file(both)["rope_frequency"], frequencies.double(), rtol=1e-6, atol=0)
    # Cut to pieces that are not long, it is the run of a short model.
    tool("oscar-collect", "--model", model, "--prompts", prompts, "-o", both, "--tokens", SHORT + LONG, "--rows", 1, "--dtype",
         "float32", "--device", DEVICE, "--seq-len", ORIGINAL, "--overwrite", "-q")
    assert header(both)["rope_reach"] == ORIGINAL
