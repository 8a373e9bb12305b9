"""Bundles of latent attention, made of the golden one."""
import hashlib
import json
import shutil

from conftest import GOLDEN
from safetensors.torch import load_file, save_file

LATENT = {"attention": "latent", "latent_dim": 32, "rope_dim": 16}


def make_latent(folder, **facts):
    """The key side of the first head of each layer, as a bundle of latent attention; facts: changes to LATENT."""
    shutil.copytree(GOLDEN / "bundle", folder)
    rotations, manifest = folder / "rotations.safetensors", folder / "oscar_bundle.json"
    tensors = {name: x[:1].contiguous() for name, x in load_file(rotations).items() if ".k." in name}
    save_file(tensors, rotations, {"format": "oscar-rotations", "format_version": "1"})
    data = rotations.read_bytes()
    document = json.loads(manifest.read_text())
    document.update(format_version=4)
    document["model"].update(LATENT | facts)
    document["files"] = {rotations.name: {"sha256": hashlib.sha256(data).hexdigest(), "bytes": len(data)}}
    for layer in document["layers"]:
        del layer["value"]
        layer["kv_heads"], layer["key"]["heads"] = 1, 1
        layer["key"]["clip"] = layer["key"]["clip"][:1]
    del document["numbers_sha256"]
    manifest.write_text(json.dumps(document))
    return folder
