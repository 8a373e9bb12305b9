"""Bundles with random rotations for tests and benchmarks of the cache that need no fit: any geometry, layout and centering."""
import dataclasses
import pathlib

import torch

from oscar_kv.format.bundle import Bundle
from oscar_kv.engines.serving import plain_torch
from oscar_kv.format.manifest import Layer, Side, as_value_side


def _rotation(heads, d, generator):
    return torch.stack([torch.linalg.qr(torch.randn(d, d, generator=generator))[0] for _ in range(heads)])


def _side(heads, kv_heads, d, widths, clip, centered, rotated_mean, generator):
    return Side(heads, True, centered, rotated_mean, [clip], widths, forward=_rotation(heads, d, generator),
                mean=0.5 * torch.randn(kv_heads, d, generator=generator) if centered else None,
                sigma=0.5 + torch.rand(kv_heads, 4, generator=generator) if widths is not None else None)


def _of(widths, index):
    return widths[index] if widths and isinstance(widths[0], tuple) else widths


@plain_torch()  # vLLM's processes make bundles while a model is built, where the default device is the GPU
def random_bundle(layers=1, kv_heads=2, d=128, key=None, value=None, sink=64, recent=256, encoder="search", group=0, clip=0.96,
                  heads=None, centered=True, rotated_mean=False, seed=1):
    """key, value: widths of the four blocks, of all layers or a list of one for each; None for layout uniform. heads: matrices of a side, 1 or kv_heads."""
    generator = torch.Generator().manual_seed(seed)
    heads = kv_heads if heads is None else heads
    held = []
    for index in range(layers):
        sides = [_side(heads, kv_heads, d, widths, clip, centered, rotated, generator)
                 for widths, rotated in ((_of(key, index), rotated_mean), (_of(value, index), False))]
        held.append(Layer(index, d, kv_heads, *sides))
    return Bundle(path=pathlib.Path("random"), method="random", scope="layer", fingerprint="", model={}, sink=sink, recent=recent, encoder=encoder,
                  group=group, layers=held)


def latent_bundle(layers=1, widths=(4, 2, 1, 1), rope=64, refined=False, **options):
    """A bundle for latent attention; widths: of all layers, or a list of one for each; refined: the last block refines the first, and the last 128
    channels of latents, which it loses, turn among themselves, as where a fit finds them small."""
    bundle = random_bundle(layers, kv_heads=1, d=512, key=widths, value=widths, **options)
    for layer in bundle.layers:
        if refined:
            layer.key.refined = True
            layer.key.forward[:, :384, 384:] = layer.key.forward[:, 384:, :384] = 0
            layer.key.forward = torch.linalg.qr(layer.key.forward)[0]
            layer.key.sigma[:, 3] *= 0.1
        layer.value = as_value_side(layer.key)
    bundle.model |= {"attention": "latent", "latent_dim": 512, "rope_dim": rope}
    return bundle


def asked_bundle(numbers=None, left_out=(), latent=False, **asked):
    """random_bundle(**asked), or latent_bundle(**asked), of a model's layers with these numbers; left_out: those in BF16."""
    bundle = (latent_bundle if latent else random_bundle)(**asked)
    for layer, number in zip(bundle.layers, numbers or range(len(bundle.layers))):
        layer.layer = number
    bundle.model["left_out"] = [{"layer": i, "reason": "a window"} for i in left_out]
    return bundle


def exact_bundle(**options):
    """Its matrices are the identity, so that rows do not depend on how many are multiplied at once."""
    bundle = random_bundle(encoder="minmax", **options)
    layer = bundle.layers[0]
    one = torch.eye(layer.head_dim).expand_as(layer.key.forward).contiguous()
    sides = {name: dataclasses.replace(getattr(layer, name), forward=one, inverse=one) for name in ("key", "value")}
    return dataclasses.replace(bundle, layers=[dataclasses.replace(layer, **sides)])
