"""What of a bundle shifts with the text: bundles of one kind of text with one part of those of the other kind, scored on the first."""
import hashlib
import json
import shutil

from .fitting import fit
from .numbers import with_error
from .rows import Row, waterfill
from .shift import KINDS

MATRICES = ["forward", "inverse_or_query", "sigma", "eigenvalues", "mean"]
PARTS = {  # name -> endings of tensors; None: widths of blocks, no tensor
    "nothing": [],
    "widths": None,
    "keys": [f".k.{name}" for name in MATRICES],
    "values": [f".v.{name}" for name in MATRICES],
    "mean of values": [".v.mean"],
}


def name_of(kind, part, bits):
    return f"parts-{kind}-{part.replace(' ', '-')}-{bits}"


def whole(kind, bits):
    return Row(f"parts-{kind}-{bits}", waterfill(bits, "--allocate", "closed"))


def with_part(own, other, part, target):
    """The bundle `own` with a part of `other`, as `target`. Its numbers have no hash, because no fit wrote them together."""
    from safetensors import safe_open
    from safetensors.torch import save_file

    if target.exists():
        return
    temporary = target.with_name(f"{target.name}.new")
    shutil.rmtree(temporary, ignore_errors=True)
    shutil.copytree(own, temporary)
    manifest, given = (json.loads((folder / "oscar_bundle.json").read_text()) for folder in (own, other))
    del manifest["numbers_sha256"]
    if part is None:
        for layer, source in zip(manifest["layers"], given["layers"]):
            for side in ("key", "value"):
                layer[side]["widths"] = source[side]["widths"]
    else:
        with safe_open(own / "rotations.safetensors", "pt") as mine, safe_open(other / "rotations.safetensors", "pt") as theirs:
            tensors = {name: (theirs if name.endswith(tuple(part)) else mine).get_tensor(name) for name in mine.keys()}
            save_file(tensors, temporary / "rotations.safetensors", metadata=mine.metadata())
        data = (temporary / "rotations.safetensors").read_bytes()
        manifest["files"]["rotations.safetensors"] = {"sha256": hashlib.sha256(data).hexdigest(), "bytes": len(data)}
    (temporary / "oscar_bundle.json").write_text(json.dumps(manifest))
    temporary.rename(target)


def measure(model, bits, sequences):
    model.prepare()
    for kind in KINDS:
        fit(model, [whole(kind, bits)], kind)
    for kind, other in zip(KINDS, reversed(KINDS)):
        own, given = (model.file(whole(k, bits).name) for k in (kind, other))
        for part, endings in PARTS.items():
            with_part(own, given, endings, model.file(name_of(kind, part, bits)))
        model.score([Row(name_of(kind, part, bits)) for part in PARTS] + [whole(other, bits)], f"kl{sequences}", "--sequences", sequences,
                    kind=kind)


def table(models, bits, sequences):
    lines = ["| model | scored on | " + " | ".join(PARTS) + " | all |", "|---|---|" + "---:|" * (len(PARTS) + 1)]
    for model in models:
        for kind, other in zip(KINDS, reversed(KINDS)):
            names = [name_of(kind, part, bits) for part in PARTS] + [whole(other, bits).name]
            found = [model.score_of(name, f"kl{sequences}", kind) for name in names]
            if all(found):
                lines.append(f"| `{model.name}` | {kind} | " + " | ".join(map(with_error, found)) + " |")
    return lines
