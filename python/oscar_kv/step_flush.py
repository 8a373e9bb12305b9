"""Quantizes the tokens that leave the windows of all layers in a step of single tokens. It needs a few launches per
step instead of a few per layer. Layers with the same code share a launch, which finds their pools and windows
through address tables on the device."""
import torch

from . import ops


class StepFlush:
    """caches: {layer index: SlotKV} of layers that share block tables; pools: {layer index: its pages}. Tensors must
    not move. It must run after write-through windows have their new tokens, and before others' tokens are read as
    codes. `at` is therefore the layer before whose step, or after whose append, it runs."""

    def __init__(self, caches, pools):
        self.groups, order = [], sorted(caches)
        by_code = {}
        for index in order:
            kv = caches[index]
            numbers = tuple(map(tuple, kv.code.numbers))
            by_code.setdefault((numbers, kv.code.key.encoder, kv.policy, kv.window_pages), []).append(index)
        for indices in by_code.values():
            held = [caches[i] for i in indices]
            device = held[0].code.device
            addresses = [torch.tensor([t.data_ptr() for t in tensors], dtype=torch.int64).to(device)
                         for tensors in ([pools[i] for i in indices], [kv.windows for kv in held])]
            sides = [torch.stack([side(kv) for kv in held]) for side in (
                lambda kv: kv.code.key.sigma, lambda kv: kv.code.value.sigma, lambda kv: kv.code.clip[0], lambda kv: kv.code.clip[1])]
            bad = torch.full((2, len(held)), ops.NO_FAULT, dtype=torch.int32, device=device)
            self.groups.append((held[0], addresses, sides, bad))
        self.kept = [caches, pools]  # keeps the objects alive whose addresses are stored
        self.first, self.last = caches[order[0]], caches[order[-1]]

    def run(self, held):
        """held: the storage, in any of the layers, of the rows with a new token."""
        for kv, addresses, sides, bad in self.groups:
            lengths, table, windows = kv.flushed(held)
            ops.flush_layers(lengths, table, windows, *addresses, *sides, bad, *kv.tiers.flushed_at(), kv.code.key.encoder == "search",
                             *kv.code.numbers)
