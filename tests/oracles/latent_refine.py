"""What the last block of a latent's code would give if it coded what the first block loses, in place of its own channels. By a model in torch
whose every query reads codes between its windows, on the checkpoint of latent_checkpoint.py.

    python tests/oracles/latent_checkpoint.py DIR/model --tokenizer sample_data/tiny-qwen3 --rank 512 --rotated 64
    oscar-fit --model DIR/model --prompts sample_data/prompts.jsonl -o DIR/waterfill-4 --allocate analytic --bits 4
    python tests/oracles/latent_refine.py DIR"""
import importlib
import pathlib
import sys

import torch
import transformers

SOURCE_DIR = pathlib.Path(__file__).parents[2]
sys.path.insert(0, str(SOURCE_DIR / "python"))
from oscar_kv.format.bundle import load_bundle  # noqa: E402
from oscar_kv.format.codec import RowCode, RowCodec  # noqa: E402
from oscar_kv.format.manifest import side_codec  # noqa: E402

SINK, RECENT, CONTEXT, SEQUENCES, SCORED = 64, 256, 1024, 6, 512
ROWS = (((4, 4, 4, 4), False), ((4, 4, 4, 4), True), ((4, 4, 2, 4), True), ((4, 2, 2, 1), False), ((4, 2, 1, 2), True))


class Coder:
    """Latents [T, rank] of a layer as the cache would give them back. refine: the last block codes the error of the first."""

    def __init__(self, bundle, widths, refine):
        self.bundle, self.widths, self.refine = bundle, widths, refine

    def codes(self, layer, rows, widths, sigma):
        own = side_codec(layer, False, self.bundle.encoder, self.bundle.group)
        codec = RowCodec(RowCode("blocks", rows.shape[1], widths=widths), False, 1, "search", own.clip, sigma)
        return codec.decode(*codec.encode(rows[:, None]))[:, 0]

    def __call__(self, index, rows):
        layer, key = self.bundle.layers[index], self.bundle.layers[index].key
        mean, block = 0.0 if key.mean is None else key.mean[0], rows.shape[1] // 4
        turned = ((rows - mean) @ key.forward[0]).bfloat16().float()
        read = self.codes(layer, turned, self.widths, key.sigma)
        if self.refine:
            error = torch.zeros_like(turned)
            error[:, :block] = turned[:, :block] - read[:, :block]
            sigma = key.sigma.clone()
            sigma[:, 0] = error[:, :block].std()
            read[:, -block:] = 0  # what the refined code drops
            read += self.codes(layer, error, (self.widths[3], 0, 0, 0), sigma)
        return read @ layer.value.back(False)[0] + mean


def attention_of(module, coder):
    """forward() of DeepSeek's attention, absorbed. coder(layer, latents), or None for what BF16 would hold."""
    def forward(self, hidden_states, position_embeddings=None, **_):
        count, heads = hidden_states.shape[1], self.num_heads
        query = self.q_proj(hidden_states).view(1, count, heads, -1).transpose(1, 2)
        plain, turned = query.split([self.qk_nope_head_dim, self.qk_rope_head_dim], dim=-1)
        latent, rope = self.kv_a_proj_with_mqa(hidden_states).split([self.kv_lora_rank, self.qk_rope_head_dim], dim=-1)
        rotate = module.apply_rotary_pos_emb_interleave if self.config.rope_interleave else module.apply_rotary_pos_emb
        turned, rope = rotate(turned, rope.view(1, 1, count, -1), *position_embeddings)
        latent = self.kv_a_layernorm(latent)[0]
        read = latent if coder is None else coder(self.layer_idx, latent)
        keys, values = self.kv_b_proj.weight.view(heads, -1, self.kv_lora_rank).split([self.qk_nope_head_dim, self.v_head_dim], dim=1)
        absorbed, at = torch.einsum("bhtd,hdc->htc", plain, keys), torch.arange(count)
        coded = (at >= SINK) & (at <= at[:, None] - RECENT)
        logits = torch.where(coded, absorbed @ read.T, absorbed @ latent.T) + (turned @ rope.transpose(-1, -2))[0]
        share = (logits * self.scaling).masked_fill(at > at[:, None], -torch.inf).softmax(-1)
        sums = (share * coded) @ read + (share * ~coded) @ latent
        return self.o_proj(torch.einsum("htc,hvc->thv", sums, values).reshape(1, count, -1)), None
    return forward


@torch.no_grad()
def main():
    folder = pathlib.Path(sys.argv[1])
    model = transformers.AutoModelForCausalLM.from_pretrained(folder / "model", dtype=torch.float32).eval()
    ids = transformers.AutoTokenizer.from_pretrained(folder / "model")((SOURCE_DIR / "sample_data/heldout.txt").read_text()).input_ids
    bundle, kind = load_bundle(folder / "waterfill-4", latent=True), type(model.model.layers[0].self_attn)
    module = importlib.import_module(kind.__module__)

    def found(coder):
        kind.forward = attention_of(module, coder)
        texts = (ids[i * CONTEXT:(i + 1) * CONTEXT] for i in range(SEQUENCES))
        return torch.cat([model(torch.tensor([text])).logits[0, -SCORED:].log_softmax(-1) for text in texts])

    exact = found(None)
    print("| widths | bits | KL |\n|---|---:|---:|")
    for widths, refine in ROWS:
        kl = (exact.exp() * (exact - found(Coder(bundle, widths, refine)))).sum(-1).mean()
        print(f"| {'-'.join(map(str, widths))}{', last refines first' if refine else ''} | {sum(widths) / 4:g} | {kl:.5f} |", flush=True)


if __name__ == "__main__":
    main()
