"""Our reader and writer of torch.save files against torch itself, both ways, and on damaged and hostile files."""
import collections
import hashlib
import json
import os
import pathlib
import random
import zipfile

import pytest

torch = pytest.importorskip("torch")

NAMES = {
    torch.float32: "F32", torch.float16: "F16", torch.bfloat16: "BF16", torch.float64: "F64", torch.int64: "I64",
    torch.int32: "I32", torch.int16: "I16", torch.int8: "I8", torch.uint8: "U8", torch.bool: "BOOL",
}


def digest(tensor):
    tensor = tensor.detach().contiguous()
    data = tensor.reshape(-1).view(torch.uint8).numpy().tobytes() if tensor.numel() else b""
    return {"tensor": NAMES[tensor.dtype], "shape": list(tensor.shape), "sha256": hashlib.sha256(data).hexdigest()}


def described(value):
    if isinstance(value, torch.Tensor):
        return digest(value)
    if isinstance(value, dict):
        return {"dict": [[described(k), described(v)] for k, v in value.items()]}
    if isinstance(value, (list, tuple)):
        return [described(item) for item in value]
    return value


def equal(a, b):
    if isinstance(a, torch.Tensor):
        return isinstance(b, torch.Tensor) and a.dtype == b.dtype and digest(a) == digest(b)
    if isinstance(a, dict):
        return list(a) == list(b) and all(equal(a[k], b[k]) for k in a)
    if isinstance(a, (list, tuple)):
        return len(a) == len(b) and all(equal(x, y) for x, y in zip(a, b))
    return type(a) is type(b) and a == b


def everything():
    base = torch.arange(60, dtype=torch.float32)
    shared = torch.randn(5, 5, generator=torch.Generator().manual_seed(1))
    values = {
        "types": {str(dtype): torch.arange(6).reshape(2, 3).to(dtype) for dtype in NAMES},
        "views": [base[7:19].reshape(3, 4).t(), base[::7], base.reshape(3, 4, 5).permute(2, 0, 1)[1:4, :, 2],
                  base[59:], base[3].clone().expand(4, 6), torch.empty(0, 3), torch.tensor(2.5)],
        "shared": {i: {"rotation": shared, "self": i} for i in (3, 7, 300, 70000)},
        "plain": [None, True, False, 0, 255, 256, 65535, 65536, -1, -2**31, 2**40, -2**63, 2**63 - 1, 0.1, -1e300,
                  "", "é \n\u2028 😀", [], {}, (), (1,), (1, 2), (1, 2, 3), (1, 2, 3, 4)],
        "ordered": collections.OrderedDict([("b", 1), ("a", 2)]),
        "size": torch.Size([4, 5]),
        "parameter": torch.nn.Parameter(torch.ones(2)),
        -5: "a negative key",
    }
    values["again"] = values["plain"]  # one list under two keys
    return values


def test_reads_what_torch_writes(tool, tmp_path):
    value = everything()
    torch.save(value, tmp_path / "x.pt")
    assert json.loads(tool("torch_pt_tool", "dump", tmp_path / "x.pt")) == described(value)
    (tmp_path / "x.pt").rename(tmp_path / "renamed.pt")  # the root inside the archive stays "x"
    assert json.loads(tool("torch_pt_tool", "dump", tmp_path / "renamed.pt")) == described(value)


@pytest.mark.parametrize("value", [{"only": 1}, torch.eye(3), 3, [torch.zeros(2)], {1: torch.ones(1)}, {}])
def test_reads_small_files(tool, tmp_path, value):
    torch.save(value, tmp_path / "x.pt")
    assert json.loads(tool("torch_pt_tool", "dump", tmp_path / "x.pt")) == described(value)


def test_reads_a_state_dict(tool, tmp_path):
    state = torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.LayerNorm(4)).state_dict()  # has _metadata
    torch.save(state, tmp_path / "x.pt")
    assert json.loads(tool("torch_pt_tool", "dump", tmp_path / "x.pt")) == described(state)


@pytest.mark.parametrize("mmap", [False, True])
def test_torch_reads_what_we_write(tool, tmp_path, mmap):
    value = everything()
    torch.save(value, tmp_path / "x.pt")
    tool("torch_pt_tool", "copy", tmp_path / "x.pt", tmp_path / "copy.pt")
    ours = torch.load(tmp_path / "copy.pt", weights_only=True, mmap=mmap)
    assert equal(ours, value)
    assert ours["shared"][3]["rotation"].data_ptr() == ours["shared"][70000]["rotation"].data_ptr()
    tool("torch_pt_tool", "copy", tmp_path / "copy.pt", tmp_path / "sub.pt")
    assert equal(torch.load(tmp_path / "sub.pt", weights_only=True), value)


def test_the_container_is_laid_out_as_torch_does(tool, tmp_path):
    torch.save({"a": torch.arange(3), "b": torch.arange(5.0)}, tmp_path / "stem.pt")
    (tmp_path / "ours").mkdir()
    tool("torch_pt_tool", "copy", tmp_path / "stem.pt", tmp_path / "ours" / "stem.pt")
    ours, theirs = zipfile.ZipFile(tmp_path / "ours" / "stem.pt"), zipfile.ZipFile(tmp_path / "stem.pt")
    assert ours.namelist() == theirs.namelist()
    assert ours.testzip() is None
    for name in ours.namelist():
        assert ours.getinfo(name).compress_type == zipfile.ZIP_STORED
        if name.endswith("data.pkl"):
            continue
        if name.endswith("serialization_id"):
            assert ours.read(name).isdigit() and len(ours.read(name)) == 40
        else:
            assert ours.read(name) == theirs.read(name), name
    raw = (tmp_path / "ours" / "stem.pt").read_bytes()
    for info in ours.infolist():
        start = info.header_offset
        content = start + 30 + int.from_bytes(raw[start + 26:start + 28], "little") + int.from_bytes(
            raw[start + 28:start + 30], "little")
        assert content % 64 == 0, info.filename


class Evil:
    def __reduce__(self):
        return os.system, ("touch owned",)


@pytest.mark.parametrize("value", [
    Evil(), {"a": Evil()}, [print], torch.nn.Linear(2, 2), {1.5: 1}, {(1, 2): 3}, {None: 1}, 2**64, {1, 2}, b"bytes",
    torch.float32, torch.eye(2).to_sparse(), 1 + 2j,
], ids=str)
def test_refuses_what_is_not_plain_data(tool, tmp_path, value):
    torch.save(value, tmp_path / "x.pt")
    error = tool("torch_pt_tool", "dump", tmp_path / "x.pt", code=3, cwd=tmp_path)
    assert error.startswith(f"{tmp_path}/x.pt: ") and error.count("\n") == 1
    assert not (tmp_path / "owned").exists()


def test_refuses_the_old_format_and_other_zip_files(tool, tmp_path):
    torch.save({"a": torch.ones(2)}, tmp_path / "old.pt", _use_new_zipfile_serialization=False)
    assert "before version 1.6" in tool("torch_pt_tool", "dump", tmp_path / "old.pt", code=3)
    with zipfile.ZipFile(tmp_path / "z.pt", "w", zipfile.ZIP_DEFLATED) as z:
        z.writestr("x/data.pkl", b"\x80\x02" + b"N" * 1000 + b".")
    assert "compressed" in tool("torch_pt_tool", "dump", tmp_path / "z.pt", code=3)
    torch.jit.save(torch.jit.script(torch.nn.Linear(2, 2)), tmp_path / "script.pt")
    assert tool("torch_pt_tool", "dump", tmp_path / "script.pt", code=3).startswith(f"{tmp_path}/script.pt: ")


def test_zip64_and_other_writers(tool, tmp_path):
    """Python's zipfile writes another directory than torch: sizes in the local headers, no alignment, zip64 fields."""
    torch.save({"a": torch.arange(4.0)}, tmp_path / "x.pt")
    theirs = zipfile.ZipFile(tmp_path / "x.pt")
    with zipfile.ZipFile(tmp_path / "z.pt", "w", zipfile.ZIP_STORED) as z:
        for name in theirs.namelist():
            with z.open(name, "w", force_zip64=True) as out:
                out.write(theirs.read(name))
        z.comment = b"a comment with PK\x05\x06 inside"
    value = {"a": torch.arange(4.0)}
    assert json.loads(tool("torch_pt_tool", "dump", tmp_path / "z.pt")) == described(value)


def test_what_we_accept_of_damaged_files_torch_reads_alike(tool, tmp_path):
    torch.save({"layers": {i: {"rotation": torch.eye(3) * i, "n": i} for i in range(3)}, "t": "text"}, tmp_path / "x.pt")
    good = (tmp_path / "x.pt").read_bytes()
    rng = random.Random(3)
    pickle_start = good.index(b"\x80\x02")
    pickle_end = good.index(b"PK\x07\x08")
    paths = []
    for i in range(1200):
        data = bytearray(good)
        for _ in range(rng.randrange(1, 3)):
            place = rng.randrange(pickle_start, pickle_end) if rng.random() < 0.6 else rng.randrange(len(data))
            data[place] = rng.choice([data[place] ^ (1 << rng.randrange(8)), rng.randrange(256)])
        if rng.random() < 0.8:  # repair the pickle's checksum, so that the damage reaches the interpreter
            import zlib
            crc = zlib.crc32(bytes(data[pickle_start:pickle_end])).to_bytes(4, "little")
            place = bytes(data).rindex(b"x/data.pkl") - 46 + 16
            data[place:place + 4] = crc
        path = tmp_path / f"{i}.pt"
        path.write_bytes(data)
        paths.append(path)
    verdicts = tool("torch_pt_tool", "check", *paths).splitlines()
    assert len(verdicts) == len(paths)
    accepted = [p for p, v in zip(paths, verdicts) if v == "ok"]
    assert 20 < len(accepted) < 1000
    compared = 0
    for path in accepted:
        try:
            theirs = torch.load(path, weights_only=True)
        except Exception:  # noqa: BLE001 (torch checks the other entries, such as "version", which we do not need)
            continue
        compared += 1
        assert json.loads(tool("torch_pt_tool", "dump", path)) == described(theirs), path
    assert compared > 10


def rotation(version, **extra):
    generator = torch.Generator().manual_seed(5)
    shape = (2, 8, 8) if version == 2 else (8, 8)
    layers = {}
    for i in (0, 4, 9):
        layers[i] = {"layer_id": i, "rotation": torch.randn(*shape, generator=generator)}
        if version == 1:
            layers[i]["eigenvalues"] = torch.sort(torch.rand(8, generator=generator)).values
        if version == 3:
            layers[i]["q_rotation"] = torch.randn(8, 8, generator=generator)
            layers[i]["k_mean"] = torch.randn(2, 8, generator=generator)
    return {"format_version": version, "objective": "o", "source_grouping": "layer", "layers": layers, **extra}


@pytest.mark.parametrize("version", [1, 2, 3])
def test_rotation_files(tool, tmp_path, version):
    value = rotation(version, calibration={"tokens": 7, "names": ["a"], "post_rope": True, "ratio": 0.25, "none": None})
    torch.save(value, tmp_path / "k.pt")
    read = json.loads(tool("torch_pt_tool", "rotation", tmp_path / "k.pt"))
    assert read["format_version"] == version and read["extra"] == {"calibration": value["calibration"]}
    for layer, (i, expected) in zip(read["layers"], value["layers"].items()):
        assert layer["layer"] == i
        for field in ("rotation", "eigenvalues", "q_rotation", "k_mean", "o_rotation"):
            assert layer[field] == (digest(expected[field]) if field in expected else None)
    if version < 3:
        (tmp_path / "ours").mkdir()
        tool("torch_pt_tool", "rewrite", tmp_path / "k.pt", tmp_path / "ours" / "k.pt")
        assert equal(torch.load(tmp_path / "ours" / "k.pt", weights_only=True), value)


def test_published_files(tool, tmp_path):
    folder = pathlib.Path(os.environ.get("OSCAR_INTEROP_DIR") or
                          pathlib.Path(os.environ["OSCAR_SOURCE_DIR"]) / ".." / "shared" / "interop")
    files = sorted(folder.glob("*.pt")) if folder.is_dir() else []
    if not files:
        pytest.skip("no folder of published files")
    for path in files:
        theirs = torch.load(path, weights_only=True)
        assert json.loads(tool("torch_pt_tool", "dump", path)) == described(theirs)
        tool("torch_pt_tool", "rewrite", path, tmp_path / path.name)
        assert equal(torch.load(tmp_path / path.name, weights_only=True), theirs), path
