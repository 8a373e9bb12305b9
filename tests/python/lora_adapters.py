"""LoRA adapters of a sample model as peft writes them, for the engines' own loaders."""
import pytest

from conftest import SAMPLES

FITTED = [["k_proj"], ["q_proj", "v_proj"], "all-linear", r".*\.layers\.[01]\.(mlp\..*_proj|self_attn\.v_proj)"]
OTHERS = [["down_proj"], ["o_proj", "gate_proj", "up_proj"], r".*\.mlp\..*_proj"]


def save_adapter(folder, targets, model="tiny-qwen3"):
    """targets: of peft's LoraConfig: names, a pattern of names, or "all-linear"."""
    peft = pytest.importorskip("peft")
    from transformers import AutoModelForCausalLM
    config = peft.LoraConfig(task_type="CAUSAL_LM", init_lora_weights=False, target_modules=targets, r=8)
    peft.get_peft_model(AutoModelForCausalLM.from_pretrained(SAMPLES / model), config).save_pretrained(folder)
    return str(folder)
