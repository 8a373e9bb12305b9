"""Our safetensors reader and writer against the Python package, both ways, and on damaged files."""
import hashlib
import json
import random
import struct

import pytest

torch = pytest.importorskip("torch")
safetensors = pytest.importorskip("safetensors")
from safetensors.torch import load_file, save_file  # noqa: E402

DTYPES = {
    "BOOL": torch.bool, "U8": torch.uint8, "I8": torch.int8, "U16": torch.uint16, "I16": torch.int16,
    "U32": torch.uint32, "I32": torch.int32, "U64": torch.uint64, "I64": torch.int64, "F16": torch.float16,
    "BF16": torch.bfloat16, "F32": torch.float32, "F64": torch.float64, "F8_E4M3": torch.float8_e4m3fn,
    "F8_E5M2": torch.float8_e5m2,
}


def sample_tensors():
    generator = torch.Generator().manual_seed(1)
    shapes = [(), (0,), (3,), (2, 5), (1, 0, 4), (3, 1, 2, 2)]
    tensors = {}
    for i, (name, dtype) in enumerate(DTYPES.items()):
        for shape in (shapes[i % 6], shapes[(i + 2) % 6]):
            raw = torch.randint(0, 2, (*shape, dtype.itemsize), generator=generator, dtype=torch.uint8)
            tensors[f"{name}.{'x'.join(map(str, shape))} é"] = raw.view(dtype).reshape(shape)
    return tensors


def bytes_of(tensor):
    return tensor.contiguous().reshape(-1).view(torch.uint8).numpy().tobytes() if tensor.numel() else b""


def test_reads_what_python_writes(tool, tmp_path):
    tensors = sample_tensors()
    save_file(tensors, tmp_path / "p.safetensors", metadata={"format": "pt", "ключ": 'a "b" \n'})
    lines = tool("checkpoint_tool", "dump", tmp_path / "p.safetensors").splitlines()
    assert json.loads(lines[0]) == {"format": "pt", "ключ": 'a "b" \n'}
    names = {v: k for k, v in DTYPES.items()}
    expected = [
        f"{json.dumps(name, ensure_ascii=False)} {names[t.dtype]} {list(t.shape)} "
        f"{hashlib.sha256(bytes_of(t)).hexdigest()}"
        for name, t in sorted(tensors.items(), key=lambda item: item[0].encode())
    ]
    assert lines[1:] == expected


def test_python_reads_what_we_write(tool, tmp_path):
    tensors = sample_tensors()
    save_file(tensors, tmp_path / "p.safetensors", metadata={"a": "b"})
    tool("checkpoint_tool", "copy", tmp_path / "p.safetensors", tmp_path / "c.safetensors")
    ours = load_file(tmp_path / "c.safetensors")
    assert ours.keys() == tensors.keys()
    for name, t in tensors.items():
        assert ours[name].dtype == t.dtype and ours[name].shape == t.shape, name
        assert bytes_of(ours[name]) == bytes_of(t), name
    with safetensors.safe_open(tmp_path / "c.safetensors", "pt") as f:
        assert f.metadata() == {"a": "b"}
    tool("checkpoint_tool", "copy", tmp_path / "c.safetensors", tmp_path / "d.safetensors")
    assert (tmp_path / "c.safetensors").read_bytes() == (tmp_path / "d.safetensors").read_bytes()


def damaged_files(count):
    """Valid small files with one to three edits: bytes changed, removed, inserted, numbers replaced."""
    rng = random.Random(7)
    for _ in range(count):
        entries, offset = {}, 0
        for i in range(rng.randrange(1, 4)):
            shape = [rng.randrange(0, 4) for _ in range(rng.randrange(0, 3))]
            dtype, size = rng.choice([("F32", 4), ("BF16", 2), ("U8", 1)])
            for extent in shape:
                size *= extent
            entries[f"t{i}"] = {"dtype": dtype, "shape": shape, "data_offsets": [offset, offset + size]}
            offset += size
        if rng.random() < 0.5:
            entries = {"__metadata__": {"k": "v"}, **entries}
        header = bytearray(json.dumps(entries).encode())
        data = bytes(rng.randrange(256) for _ in range(offset))
        for _ in range(rng.randrange(0, 3)):
            place = rng.randrange(len(header))
            kind = rng.randrange(4)
            if kind == 0:
                header[place] = rng.choice(b'0123456789{}[]:,"-. \xff')
            elif kind == 1:
                del header[place]
            elif kind == 2:
                header.insert(place, rng.choice(b'0123456789{}[]:,"- '))
            else:
                digits = [j for j, c in enumerate(header) if chr(c).isdigit()]
                header[rng.choice(digits) if digits else 0] = rng.choice(b"0123456789")
        length = len(header) + (rng.choice([-1, 1, 1 << 40]) if rng.random() < 0.05 else 0)
        data = data[: len(data) - 1] if rng.random() < 0.05 else data + b"x" if rng.random() < 0.05 else data
        yield struct.pack("<Q", length) + bytes(header) + data


def test_agrees_with_python_on_damaged_files(tool, tmp_path):
    paths, verdicts = [], []
    for i, content in enumerate(damaged_files(1500)):
        path = tmp_path / f"{i}.safetensors"
        path.write_bytes(content)
        paths.append(path)
        try:
            safetensors.deserialize(content)
            verdicts.append("ok")
        except Exception as error:  # noqa: BLE001 (the package raises SafetensorError)
            verdicts.append(f"refused: {error}")
    ours = tool("checkpoint_tool", "check", *paths).splitlines()
    assert len(ours) == len(verdicts)
    accepted = sum(v == "ok" for v in verdicts)
    assert 100 < accepted < 1400  # the damage is neither harmless nor always fatal
    for path, mine, theirs in zip(paths, ours, verdicts):
        if mine == theirs == "ok":
            continue
        # Ours is stricter in these alone: an unknown key beside dtype, shape and data_offsets, and dtypes we do not use.
        stricter = "unknown key" in mine or "expected one of BOOL" in mine
        assert mine != "ok" and (theirs != "ok" or stricter), (path.read_bytes(), mine, theirs)
