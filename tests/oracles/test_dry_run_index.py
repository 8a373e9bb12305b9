"""oscar-collect --dry-run of a checkpoint whose shards are not here: config.json and the index tell what the shards would."""
import json

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("transformers")
pytest.importorskip("compressed_tensors")

import quantized_checkpoints  # noqa: E402  (needs the packages above)
from conftest import DEVICE, SOURCE_DIR  # noqa: E402


def collect(tool, model, folder, *options, **how):
    prompts = folder / "rows.jsonl"
    prompts.write_text(json.dumps({"input_ids": list(range(40, 440))}) + "\n")
    return tool("oscar-collect", "--model", model, "--prompts", prompts, "-o", folder / "s.safetensors", "--device", DEVICE, *options, **how)


@pytest.mark.parametrize("name", ["fp8-channel", "fp8-blocks", "gptq", "mxfp4-experts"])
def test_the_index_alone(name, tool, tmp_path):
    model = quantized_checkpoints.make(name, tmp_path, SOURCE_DIR / "sample_data" / "tiny-qwen3")[0]
    index = model / "model.safetensors.index.json"
    content = json.loads(index.read_text())
    plan = ["--dry-run", "--json"]
    with_shards = json.loads(collect(tool, model, tmp_path, *plan))
    content["metadata"]["total_size"] = with_shards["stored_weight_bytes"]
    index.write_text(json.dumps(content))
    for shard in model.glob("*.safetensors"):
        shard.unlink()
    alone = json.loads(collect(tool, model, tmp_path, *plan))
    # The process itself is in it, and has no shards mapped.
    assert alone.pop("peak_memory_bytes") == pytest.approx(with_shards.pop("peak_memory_bytes"), rel=0.3)
    assert alone == with_shards
    assert "plan       400 tokens" in collect(tool, model, tmp_path, "--dry-run")
    # A run needs the shards.
    assert "is missing; complete the checkpoint" in collect(tool, model, tmp_path, code=3)
    # What no shard holds is seen before one is fetched.
    lost = next(tensor for tensor in content["weight_map"] if tensor.endswith("k_proj.weight") or "k_proj.qweight" in tensor)
    module = lost.rpartition(".")[0]
    content["weight_map"] = {t: file for t, file in content["weight_map"].items() if not t.startswith(module + ".") or t.endswith("bias")}
    index.write_text(json.dumps(content))
    assert f"{module}.weight is missing from model.safetensors.index.json" in collect(tool, model, tmp_path, *plan, code=3)
    # An index that does not tell its size, or tells none.
    content["weight_map"][lost] = "model-00001-of-00002.safetensors"
    content["metadata"] = {}
    index.write_text(json.dumps(content))
    assert "an unknown size in files" in collect(tool, model, tmp_path, "--dry-run")
    content["metadata"] = {"total_size": "many"}
    index.write_text(json.dumps(content))
    assert "'total_size' of 'metadata' is \"many\"" in collect(tool, model, tmp_path, "--dry-run", code=3)
