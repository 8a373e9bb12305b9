"""Codes as the golden vectors hold them: the interchange view of docs/format-codec.md."""
import torch


def pack_codes(code, codes):
    """Interchange bytes of codes [..., d] uint8."""
    if code.layout == "uniform":
        q = codes.unflatten(-1, (4, -1)).int()
        return (q[..., 0, :] | q[..., 1, :] << 2 | q[..., 2, :] << 4 | q[..., 3, :] << 6).to(torch.uint8)
    parts = []
    for b, width in enumerate(code.widths):
        if width:
            q = codes[..., b * code.block:(b + 1) * code.block].int().unflatten(-1, (-1, 8 // width))
            parts.append((q << torch.arange(0, 8, width, device=q.device)).sum(dim=-1).to(torch.uint8))
    return torch.cat(parts, dim=-1) if parts else codes[..., :0]


def unpack_codes(code, packed):
    """The codes [..., d] of interchange bytes."""
    if code.layout == "uniform":
        return torch.cat([packed >> shift & 3 for shift in (0, 2, 4, 6)], dim=-1)
    parts, at = [], 0
    for width in code.widths:
        if width == 0:
            parts.append(torch.zeros((*packed.shape[:-1], code.block), dtype=torch.uint8, device=packed.device))
            continue
        taken = packed[..., at:at + code.block * width // 8]
        at += taken.shape[-1]
        shifts = torch.arange(0, 8, width, device=packed.device, dtype=torch.uint8)
        parts.append((taken.unsqueeze(-1) >> shifts & (1 << width) - 1).flatten(-2))
    return torch.cat(parts, dim=-1)
