"""Bundles as oscar-fit makes them of real models: their geometry, windows, bit widths and centers, with random rotations in place of
weights. Widths of four blocks of keys and values by layer; "rope" are keys whose mean is taken before RoPE."""
import dataclasses

from random_bundles import random_bundle

# SmolLM2-135M-Instruct: --bits 2.25 --allocate analytic. Layer 11 has no bits at all, seven others none for values.
SMOLLM2 = dict(heads=9, kv_heads=3, d=64, theta=100000.0, layers="""
2000 2000 rope
2000 2210 rope
4200 4221 rope
4222 4444 rope
4221 4444 rope
4422 4444 rope
4222 4444 rope
4422 4444 rope
4442 4444 rope
4222 4444 rope
4220 4444 rope
0000 0000 rope
2000 0000 rope
2000 0000 rope
4420 4422 rope
4200 4221 rope
2000 0000 rope
4420 4442 rope
4400 4444 rope
2000 2000 rope
4420 4444 rope
4200 4221 rope
4200 2210 rope
4420 4444 rope
4420 4442 rope
2000 0000 rope
4200 2210 rope
2000 0000 rope
4100 2210 rope
2000 1000 rope""")
# Qwen2.5-Coder-1.5B-Instruct: the default, allocation measured.
QWEN25_CODER = dict(heads=12, kv_heads=2, d=128, theta=1000000.0, layers="""
4200 4422 rope
2000 2210 rope
4210 4442 rope
4100 2211 rope
4210 4222 rope
4200 4221 rope
4410 4422 rope
2000 2000 rope
4200 4422 rope
4100 4210 rope
4210 4222 rope
4200 4221 rope
4220 4422 rope
4000 2100 rope
4410 4444
4000 2210 rope
4421 4442
4100 4222 rope
4000 2100 rope
4410 4444
4220 4422
4200 4221 rope
4200 4422 rope
4410 4444
4200 4422
4200 4422
4200 4442
4200 4442""")
MODELS = {"SmolLM2-135M": SMOLLM2, "Qwen2.5-Coder-1.5B": QWEN25_CODER}


def fitted_bundle(model, **options):
    """The bundle of a model above, with BF16 windows of 64 and 256 tokens."""
    layers = []
    for index, line in enumerate(model["layers"].split("\n")[1:]):
        key, value, *rope = line.split()
        made = random_bundle(kv_heads=model["kv_heads"], d=model["d"], key=tuple(map(int, key)), value=tuple(map(int, value)),
                             rotated_mean=bool(rope), seed=index, **options)
        layers.append(dataclasses.replace(made.layers[0], layer=index))
    return dataclasses.replace(made, layers=layers)
