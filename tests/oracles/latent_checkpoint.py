"""A made checkpoint with latent attention whose statistics look trained: latents with a power-law spectrum, projections of keys
and values with spectra of their own in other directions, a few large channels, and heads that attend sharply. All layers are
dense. Which cache method is better shows on it; of the quality of a real model it says nothing.

    python tests/oracles/latent_checkpoint.py DIR --tokenizer sample_data/tiny-qwen3 [--rank 512 --rotated 64 --head 128]"""
import argparse
import pathlib
import shutil

import torch
import transformers

HEADS, LAYERS = 8, 4
LATENT_DECAY, KEY_DECAY, VALUE_DECAY = 0.6, 0.3, 0.3  # deviation of the i-th direction: i to the power of -decay
LARGE_CHANNEL = 6.0  # of one channel in 32, times the others
SHARPNESS = 3.0  # deviation of a head's attention logits over tokens
CONFIDENCE = 2.5  # deviation of the model's logits


def orthogonal(n, generator):
    return torch.linalg.qr(torch.randn(n, n, generator=generator)).Q


def with_spectrum(rows, columns, decay, generator):
    """[rows, columns] of unit rows on average, whose directions in the columns fall off as a power law."""
    spectrum = torch.arange(1, columns + 1).float() ** -decay
    spectrum /= spectrum.square().mean().sqrt()
    return torch.randn(rows, columns, generator=generator) * columns**-0.5 * spectrum @ orthogonal(columns, generator)


def hidden_size(rank):
    """More than the latent, so that each of its directions varies, as in models that others trained."""
    return max(256, 3 * rank // 2)


def fill_attention(attention, rank, rotated, head, generator):
    """Weights of one layer. Queries are scaled until logits of random tokens have the deviation SHARPNESS."""
    hidden = hidden_size(rank)
    down = torch.randn(rank + rotated, hidden, generator=generator) * hidden**-0.5
    spectrum = torch.arange(1, rank + 1).float() ** -LATENT_DECAY
    down[:rank] = orthogonal(rank, generator) @ (spectrum[:, None] * down[:rank])
    norm = torch.exp(0.3 * torch.randn(rank, generator=generator))
    norm[torch.randperm(rank, generator=generator)[: rank // 32]] *= LARGE_CHANNEL
    keys = with_spectrum(HEADS * head, rank, KEY_DECAY, generator).view(HEADS, head, rank)
    values = with_spectrum(HEADS * head, rank, VALUE_DECAY, generator).view(HEADS, head, rank)
    queries = torch.randn(HEADS, head + rotated, hidden, generator=generator) * hidden**-0.5

    x = torch.randn(512, hidden, generator=generator)
    latent = torch.nn.functional.rms_norm(x @ down[:rank].T, (rank,)) * norm
    asked = torch.einsum("hqi,ti->htq", queries, x)
    of_keys = torch.cat([torch.einsum("hnr,tr->htn", keys, latent), (x @ down[rank:].T).expand(HEADS, -1, -1)], 2)
    logits = asked @ of_keys.transpose(1, 2) * attention.scaling
    queries *= SHARPNESS / logits.std(2).mean((1,))[:, None, None]

    attention.kv_a_proj_with_mqa.weight.data.copy_(down)
    attention.kv_a_layernorm.weight.data.copy_(norm)
    attention.kv_b_proj.weight.data.copy_(torch.cat([keys, values], 1).reshape(-1, rank))
    attention.q_proj.weight.data.copy_(queries.reshape(-1, hidden))


def make(directory, tokenizer, rank=128, rotated=32, head=32, seed=0):
    """Writes the checkpoint, of type deepseek_v3, with the tokenizer of the folder `tokenizer`. head: channels of a head's keys without RoPE, and of its
    values; vLLM's kernels for prompts need 128."""
    hidden = hidden_size(rank)
    config = transformers.AutoConfig.for_model(
        "deepseek_v3", vocab_size=8192, hidden_size=hidden, intermediate_size=2 * hidden, moe_intermediate_size=32, num_hidden_layers=LAYERS,
        num_attention_heads=HEADS, num_key_value_heads=HEADS, first_k_dense_replace=LAYERS, n_routed_experts=8, n_group=1, topk_group=1,
        num_experts_per_tok=2, q_lora_rank=None, kv_lora_rank=rank, qk_rope_head_dim=rotated, qk_nope_head_dim=head, v_head_dim=head,
        max_position_embeddings=8192, tie_word_embeddings=False, bos_token_id=1, eos_token_id=2, pad_token_id=None,
        rope_parameters=dict(rope_type="default", rope_theta=10000.0))
    model = transformers.AutoModelForCausalLM.from_config(config)
    generator = torch.Generator().manual_seed(seed)
    for name, parameter in model.named_parameters():
        if "norm" in name:
            parameter.data.fill_(1.0)
        else:
            spread = 1.0 if "embed" in name else CONFIDENCE * hidden**-0.5 if "lm_head" in name else parameter.shape[1] ** -0.5
            parameter.data.copy_(torch.randn(parameter.shape, generator=generator) * spread)
    for layer in model.model.layers:
        fill_attention(layer.self_attn, rank, rotated, head, generator)
    model.save_pretrained(directory)
    for file in ("tokenizer.json", "tokenizer_config.json"):
        shutil.copyfile(pathlib.Path(tokenizer) / file, pathlib.Path(directory) / file)
    return pathlib.Path(directory)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("directory")
    parser.add_argument("--tokenizer", required=True, help="folder with tokenizer.json")
    parser.add_argument("--rank", type=int, default=128)
    parser.add_argument("--rotated", type=int, default=32)
    parser.add_argument("--head", type=int, default=32)
    parser.add_argument("--seed", type=int, default=0)
    arguments = vars(parser.parse_args())
    make(arguments.pop("directory"), arguments.pop("tokenizer"), **arguments)
