"""Attention inside a chunk of a prompt, on the raw keys and values of the model: by SDPA where there is nothing before the
chunk, in parts with their log-sum-exp where its past is merged with it."""
import torch
from torch.nn.functional import scaled_dot_product_attention

from .softmax_merge import Parts

QUERY_BLOCK, KEY_BLOCK = 256, 1024  # scores that are held at a time while a chunk is merged with its past


def causal_parts(query, key, value, counts, scale, window):
    """Causal attention inside a chunk with its log-sum-exp, which SDPA does not return. FP32; rows [counts, q) are padding."""
    batch, heads, tokens, d = query.shape
    kv_heads, outputs, sums = key.shape[1], [], []
    group = heads // kv_heads
    query = query.view(batch, kv_heads, group, tokens, d)
    for first in range(0, tokens, QUERY_BLOCK):
        last = min(first + QUERY_BLOCK, tokens)
        at = torch.arange(first, last, device=query.device)
        q, parts = query[:, :, :, first:last].reshape(batch, kv_heads, -1, d), Parts()
        for begin in range(0, last, KEY_BLOCK):
            end = min(begin + KEY_BLOCK, last)
            column = torch.arange(begin, end, device=query.device)
            visible = column <= at[:, None]
            if window:
                visible = visible & (column > at[:, None] - window)
            visible = visible & (column < counts[:, None, None])  # [B, q, N]
            logits = torch.matmul(q, key[:, :, begin:end].transpose(-1, -2)) * scale
            hidden = ~visible[:, None, None].expand(-1, -1, group, -1, -1).reshape(batch, 1, -1, end - begin)
            parts.add(logits.masked_fill(hidden, -torch.inf), value[:, :, begin:end])
        outputs.append(parts.output.view(batch, heads, last - first, d))
        sums.append(parts.lse.view(batch, heads, last - first))
    return torch.cat(outputs, dim=2), torch.cat(sums, dim=2)


def whole(query, key, value, mask, scale):
    """SDPA in which every token sees all keys: attention of encoders, such as those of images. mask as plain()."""
    visible = None if mask is None else mask.bool()[:, None, None, :]
    return scaled_dot_product_attention(query, key, value, attn_mask=visible, scale=scale, enable_gqa=query.shape[1] > key.shape[1])


def plain(query, key, value, mask, scale, window):
    """Causal SDPA over the keys given; mask: [B, keys] of tokens that are not padding, or None. Also the visible keys."""
    tokens, held, group = query.shape[2], key.shape[2], query.shape[1] // key.shape[1]
    if mask is None and not window and tokens == held:
        visible, causal = None, tokens > 1
    else:
        at, column = torch.arange(held - tokens, held, device=query.device)[:, None], torch.arange(held, device=query.device)
        visible, causal = column <= at, False
        if window:
            visible = visible & (column > at - window)
        visible = visible.expand(query.shape[0], 1, -1, -1)
        if mask is not None:
            visible = visible & mask.bool()[:, None, None, :]
    output = scaled_dot_product_attention(query, key, value, attn_mask=visible, is_causal=causal, scale=scale,
                                          enable_gqa=group > 1)
    if visible is not None:  # a row that sees nothing is padding: SDPA makes it NaN
        output = torch.where(visible.any(dim=-1, keepdim=True), output, torch.zeros_like(output))
    return output, visible
