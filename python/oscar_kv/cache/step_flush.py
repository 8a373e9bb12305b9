"""Quantizes the tokens that leave the windows of all layers in a step of single tokens, with one launch for layers of
any codes. It finds their pools, windows and codes through descriptors on the device, made once."""
import torch

from ..ops import operators


class StepFlush:
    """caches: {layer index: SlotKV} of layers that share block tables; pools: {layer index: its pages}. Tensors must
    not move. It must run after write-through windows have their new tokens, and before others' tokens are read as
    codes. `at` is therefore the layer before whose step, or after whose append, it runs."""

    def __init__(self, caches, pools):
        order, by_shape = sorted(caches), {}
        for index in order:
            kv = caches[index]
            layer = kv.code.layer
            by_shape.setdefault((layer.kv_heads, layer.head_dim, kv.code.key.encoder, kv.policy, kv.window_pages),
                                []).append(index)
        self.groups = []  # layers of one shape: one launch; (one of them, their descriptors, the most words)
        for indices in by_shape.values():
            sides, words = torch.zeros((len(indices), 2, operators.SIDE_BYTES), dtype=torch.uint8), 0
            for i, index in enumerate(indices):
                kv, code = caches[index], caches[index].code
                words = max(words, operators.describe_layer(sides[i], pools[index], kv.windows, code.key.sigma,
                                                            code.value.sigma, *code.clip, kv.bad, *code.numbers))
            self.groups.append((kv, sides.flatten(0, 1).to(code.device), words))
        self.kept = [caches, pools]  # keeps the objects alive whose addresses are stored
        self.first, self.last = caches[order[0]], caches[order[-1]]

    def run(self, held):
        """held: the storage, in any of the layers, of the rows with a new token."""
        for kv, sides, words in self.groups:
            layer, (sink, recent, _) = kv.code.layer, kv.tiers.flushed_at()
            operators.flush_layers(*kv.flushed(held), sides, words, layer.kv_heads, layer.head_dim, sink, recent,
                                   kv.code.key.encoder == "search")
