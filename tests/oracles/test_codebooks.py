"""Methods with learned codebooks: bundles of oscar-fit, and the coding of rows a second time from their tensors in numpy."""
import json
import math
import pathlib
import shutil

import pytest

np = pytest.importorskip("numpy")
torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")
jsonschema = pytest.importorskip("jsonschema")
load_file = pytest.importorskip("safetensors.numpy").load_file

from random_checkpoints import randomise  # noqa: E402

SCHEMAS = pathlib.Path(__file__).parents[2] / "schemas"
SAMPLE = pathlib.Path(__file__).parents[2] / "sample_data" / "tiny-llama"
HEADS, D, TOKENS = 2, 16, 10000
THETA, FACTOR, ORIGINAL = 10000.0, 4.0, 128  # yarn: frequencies that are stretched, and a factor on cos and sin

# method -> bits of keys and of values, and what the manifest says of their codebooks
SCALE = 16 / D
METHODS = {
    "cq8x10": (1.25, 1.25, ("none", True, "float16", 1024), ("none", False, "float16", 1024)),
    "cq8x8": (1.0, 1.0, ("none", True, "float16", 256), ("none", False, "float16", 256)),
    "tasq": (1.25 + 16 / (HEADS * D), 1.25, ("token", True, "float16", 1024), ("none", False, "float16", 1024)),
    "nova": (2 + SCALE, 2 + 2 * SCALE, ("head", False, "float8_e5m2", 256), None),
    "nova1b": (1.25 + SCALE, 1 + 2 * SCALE, ("head", False, "float8_e5m2", 1024), None),
    "pq1": (1.0, 2 + 2 * SCALE, ("none", False, "float16", 256), None),
    "rvq1.5": (1.5, 2 + 2 * SCALE, ("none", False, "float16", 256), None),
}


@pytest.fixture(scope="module")
def folder(tool, tmp_path_factory):
    out = tmp_path_factory.mktemp("codebooks")
    config = transformers.AutoConfig.for_model(
        "llama", vocab_size=331, hidden_size=48, intermediate_size=64, num_hidden_layers=1, num_attention_heads=4,
        num_key_value_heads=HEADS, head_dim=D, max_position_embeddings=2048, bos_token_id=1, eos_token_id=2,
        pad_token_id=None, rope_parameters=dict(rope_type="yarn", rope_theta=THETA, factor=FACTOR,
                                                original_max_position_embeddings=ORIGINAL))
    model = transformers.AutoModelForCausalLM.from_config(config)
    randomise(model, seed=5)
    model.save_pretrained(out / "model")
    # Rows of ids need none of it, but a model has one.
    shutil.copy(SAMPLE / "tokenizer.json", out / "model")
    generator = np.random.default_rng(3)
    rows = [{"input_ids": generator.integers(3, 331, 400).tolist()} for _ in range(TOKENS // 400)]
    (out / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    tool("oscar-collect", "--model", out / "model", "--prompts", out / "rows.jsonl", "-o", out / "s", "--rows", TOKENS,
         "--tokens", TOKENS, "--device", "cpu", "-q")
    return out


def fit(tool, folder, method, *options, code=0):
    return tool("oscar-fit", folder / "s", "-o", folder / method, "--method", method, "--device", "cpu", "--overwrite",
                "-q", *options, code=code)


def manifest_of(bundle):
    return json.loads((bundle / "oscar_bundle.json").read_text())


def half(x):
    return x.astype(np.float16).astype(np.float64)


def turned(x, sign):
    """[T, H, d] by the positions from 0 on, halves paired, in the frequencies that transformers computes for yarn."""
    config = transformers.AutoConfig.for_model(
        "llama", head_dim=D, hidden_size=48, num_attention_heads=4, max_position_embeddings=2048,
        rope_parameters=dict(rope_type="yarn", rope_theta=THETA, factor=FACTOR, original_max_position_embeddings=ORIGINAL))
    from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

    inverse, factor = ROPE_INIT_FUNCTIONS["yarn"](config, "cpu")
    angle = np.arange(len(x))[:, None, None] * inverse.double().numpy()
    cos, sin = np.cos(angle), sign * np.sin(angle)
    a, b = x[..., : D // 2], x[..., D // 2:]
    return np.concatenate([a * cos - b * sin, b * cos + a * sin], -1) * factor**sign


def nearest(points, centroids):
    """[N, c] -> the centroid nearest to each."""
    distance = ((points[:, None] - centroids[None]) ** 2).sum(-1)
    return centroids[distance.argmin(1)]


def uniform(x, clip, bits):
    """OSCAR's row: clamped to the rho-quantile of |x|, s and z as 16-bit floats; with 2 bits the codec that test_codec_vectors holds."""
    most = 2**bits - 1
    if 0 < clip < 1:
        limit = np.sort(np.abs(x))[min(int(np.float32(clip) * len(x)), len(x) - 1)]
        x = x.clip(-limit, limit)
    s = half(np.maximum(x.max() - x.min(), 1e-8) / most)
    z = half(-x.min() / s)
    q = np.trunc(x / s + z + 0.5).clip(0, most)
    return (q - z) * s


def decoded(tensors, side, name, x):
    """[T, H, d] as a reader gets it back, from the tensors and the manifest's side."""
    get = lambda part: tensors.get(f"layers.0.{name}.{part}")  # noqa: E731
    forward = get("forward").astype(np.float64)
    inverse = get("inverse_or_query")
    back = forward.transpose(0, 2, 1) if inverse is None else inverse.astype(np.float64)
    if inverse is not None and name == "k":
        back = back.transpose(0, 2, 1)
    book = side.get("codebook")
    before = book is not None and book["before_rope"]
    if before:
        x = turned(x, -1)
    y = np.stack([x[:, h] @ forward[h % len(forward)] for h in range(HEADS)])  # [H, T, d]
    if book is None:
        y = torch.tensor(y, dtype=torch.float32).bfloat16().double().numpy()
        y = np.stack([[uniform(row, side["clip"][0], side.get("bits", 2)) for row in rows] for rows in y])
    else:
        axes = {"none": None, "head": 2, "token": (0, 2)}[book["scale"]]
        scale = np.ones((1, 1, 1)) if axes is None else half(np.sqrt((y**2).mean(axes, keepdims=True)))
        y, c = y / scale, book["channels"]
        for h in range(HEADS):
            for g in range(D // c):
                part = slice(g * c, (g + 1) * c)
                first = get("codebook")[h % book["heads"], g].astype(np.float64)
                points = y[h, :, part].copy()
                y[h, :, part] = nearest(points, first)
                if "second" in book:
                    second = get("codebook2")[h % book["heads"], g].astype(np.float64)
                    y[h, :, part] += nearest(points - y[h, :, part], second)
        y = y * scale
    out = np.stack([y[h] @ back[h % len(back)] for h in range(HEADS)], 1)
    return turned(out, 1) if before else out


@pytest.mark.parametrize("method", METHODS)
def test_rows_are_coded_as_the_bundle_says(tool, folder, method):
    fit(tool, folder, method)
    bundle = folder / method
    manifest = manifest_of(bundle)
    jsonschema.validate(manifest, json.loads((SCHEMAS / "bundle.schema.json").read_text()))
    assert manifest["format_version"] == 4 and manifest["code"]["layout"] == "codebook"
    key_bits, value_bits, *books = METHODS[method]
    layer = manifest["layers"][0]
    for side, expected in zip((layer["key"], layer["value"]), books):
        book = side.get("codebook")
        found = book and (book["scale"], book["before_rope"], book["type"], book["centroids"])
        assert found == expected
    tensors = load_file(bundle / "rotations.safetensors")
    for name, tensor in tensors.items():
        if name.endswith(("codebook", "codebook2")) and books[0][2] == "float16":
            assert np.array_equal(tensor, tensor.astype(np.float16).astype(np.float32)), name

    generator = np.random.default_rng(11)
    rows = generator.standard_normal((2, 300, HEADS, D)).astype(np.float32) * np.linspace(0.3, 3, D, dtype=np.float32)
    rows[0, 7] = 0  # a row of zeros has no norm
    (folder / "rows").write_bytes(rows.tobytes())
    facts = json.loads(tool("codebook_tool", bundle, folder / "model", 0, 300, folder / "rows"))
    read = np.frombuffer((folder / "rows.out").read_bytes(), np.float32).reshape(rows.shape)
    assert facts["bits"] == pytest.approx((key_bits + value_bits) / 2, abs=1e-12)
    stored = sum(t.size for name, t in tensors.items() if name.endswith(("codebook", "codebook2")))
    assert facts["codebook_bytes"] == stored * (2 if books[0][2] == "float16" else 1)
    window = 64 + 256
    assert facts["allocated"] == math.ceil(facts["bits"] * 2 * HEADS * D * (1000 - window) / 8) + 4 * HEADS * D * window
    for i, (name, side) in enumerate((("k", layer["key"]), ("v", layer["value"]))):
        with np.errstate(divide="ignore", invalid="ignore"):
            expected = np.nan_to_num(decoded(tensors, side, name, rows[i].astype(np.float64)))
        if side.get("codebook", {}).get("scale") == "head":
            read_rows, expected_rows = read[i][8:], expected[8:]
        else:
            read_rows, expected_rows = read[i], expected
        # Rounding decides between centroids that are equally near, and between codes at a border.
        same = np.abs(read_rows - expected_rows).max(-1) < 2e-3 * (1 + np.abs(expected_rows).max(-1))
        assert same.mean() > 0.99, f"{method} {name}: {1 - same.mean():.3f} of the rows differ"
        assert np.abs(read_rows - rows[i][-len(read_rows):]).mean() < np.abs(rows[i]).mean(), "rows come back, roughly"


def test_codes_of_the_calibration_rows_are_better_than_their_mean(tool, folder):
    """What k-means is for: rows like those it saw lose far less than all of their variance."""
    fit(tool, folder, "cq8x10")
    layer = load_file(folder / "s")
    values = layer["rows.0.v"][:500].astype(np.float32)
    (folder / "rows").write_bytes(np.concatenate([values, values]).tobytes())
    tool("codebook_tool", folder / "cq8x10", folder / "model", 0, 500, folder / "rows")
    read = np.frombuffer((folder / "rows.out").read_bytes(), np.float32).reshape(2, *values.shape)[1]
    assert ((read - values) ** 2).sum() < 0.35 * ((values - values.mean(0)) ** 2).sum()


def test_errors_of_cells_are_those_of_the_calibration_rows(tool, folder):
    """What --logit-correction reads: the mean squared error of a channel in each cell, and of 8 more points as bad as the mean."""
    fit(tool, folder, "cq8x8")
    tensors, statistics = load_file(folder / "cq8x8" / "rotations.safetensors"), load_file(folder / "s")
    assert manifest_of(folder / "cq8x8")["layers"][0]["key"]["codebook"]["errors"] is True
    rows = turned_at(statistics["rows.0.k"].astype(np.float64), statistics["rows.position"])
    book, told = tensors["layers.0.k.codebook"].astype(np.float64), tensors["layers.0.k.codebook_errors"]
    for h in range(HEADS):
        for g in range(D // 8):
            points, centroids = rows[:, h, g * 8:g * 8 + 8], book[h, g]
            label = (points @ centroids.T - 0.5 * (centroids**2).sum(1)).argmax(1)
            error = ((points - centroids[label])**2).mean(1)
            count = np.bincount(label, minlength=len(centroids))
            expected = (np.bincount(label, error, len(centroids)) + 8 * error.mean()) / (count + 8)
            close = np.abs(told[h, g] - expected) < 0.02 * expected
            assert close.mean() > 0.97, (h, g, close.mean())
            channels = ((points - centroids[label])**2).mean(0)
            assert np.allclose(tensors["layers.0.k.codebook_profile"][h, g], channels / channels.mean(), rtol=5e-3)


def test_the_same_statistics_give_the_same_bytes(tool, folder):
    fit(tool, folder, "cq8x8")
    first = (folder / "cq8x8" / "rotations.safetensors").read_bytes()
    fit(tool, folder, "cq8x8")
    assert (folder / "cq8x8" / "rotations.safetensors").read_bytes() == first


def test_what_codebooks_cannot_be_is_refused_in_one_sentence(tool, folder):
    error = fit(tool, folder, "cq8x10", "--rows", 8191, code=3)
    assert "needs at least 8192 (8 for each centroid)" in error and "--rows 32768" in error
    assert "keys and values both have codebooks" in fit(tool, folder, "cq8x10", "--clip", "0.9,0.9", code=2)
    fit(tool, folder, "pq1")
    refused = tool("oscar-export", folder / "pq1", "--format", "sglang", "-o", folder / "e", code=3)
    assert "has codebooks (method pq1), which format sglang cannot carry" in refused
    refused = tool("oscar-export", folder / "pq1", "--format", "absorbed", "--model", folder / "model", "-o", folder / "e",
                   code=3)
    assert "has codebooks" in refused
    assert "holds codebooks" in tool("oscar-fit", "check", folder / "pq1", "--statistics", folder / "s", code=3)
    assert not (folder / "e").exists()


def test_gradients_weigh_the_means_of_k_means(tool, folder):
    """CQ and TaSQ: centroids are means weighed by the squared gradients of a group's channels together, and borders are plain.
    Lloyd's algorithm is near its end, so centroids are the weighed means of the rows nearest to them."""
    from safetensors import safe_open
    from safetensors.numpy import save_file

    statistics = load_file(folder / "s")
    generator = np.random.default_rng(9)
    for name in ("k", "v"):  # rows that are all different, and weights of many sizes
        statistics[f"rows.0.{name}"] = generator.standard_normal((TOKENS, HEADS, D)).astype(np.float32)
    for name in ("pre_k", "v"):
        statistics[f"rows.0.{name}_fisher"] = 1e-6 * np.exp(2 * generator.standard_normal((TOKENS, HEADS, D))).astype(np.float32)
    with safe_open(folder / "s", "numpy") as file:
        save_file(statistics, folder / "g", file.metadata())
    position = statistics["rows.position"]
    for method, name, side in (("cq8x8", "v", "v"), ("tasq", "k", "pre_k")):
        tool("oscar-fit", folder / "g", "-o", folder / "weighed", "--method", method, "--device", "cpu", "--overwrite", "-q")
        manifest, tensors = manifest_of(folder / "weighed"), load_file(folder / "weighed" / "rotations.safetensors")
        assert manifest["provenance"]["options"]["codebook_weights"] == "gradients"
        x = statistics[f"rows.0.{name}"].astype(np.float64)
        fisher = statistics[f"rows.0.{side}_fisher"].astype(np.float64)
        if name == "k":
            x = turned_at(x, position)
        forward, book = tensors[f"layers.0.{name}.forward"].astype(np.float64), tensors[f"layers.0.{name}.codebook"].astype(np.float64)
        y = np.stack([x[:, h] @ forward[h % len(forward)] for h in range(HEADS)])
        # TaSQ scales channels, so that an error of y is one of e / w in x, and then a token by its norm.
        back = np.linalg.inv(forward).transpose(0, 2, 1)
        f = np.stack([fisher[:, h] @ back[h % len(back)] ** 2 for h in range(HEADS)])
        if name == "k":
            scale = half(np.sqrt((y**2).mean((0, 2), keepdims=True)))
            y, f = y / scale, f * scale**2
        near, far = [], []
        for h in range(HEADS):
            for g in range(D // 8):
                points, weights = y[h, :, g * 8:g * 8 + 8], f[h, :, g * 8:g * 8 + 8].sum(1)
                centroids = book[h, g]
                label = (points @ centroids.T - 0.5 * (centroids**2).sum(1)).argmax(1)
                for k in np.unique(label):
                    mine, w = points[label == k], weights[label == k]
                    mean = (mine * w[:, None]).sum(0) / max(w.sum(), 1e-30)
                    if len(mine) > 3:
                        near.append(np.abs(mean - centroids[k]).max())
                        far.append(np.abs(mine.mean(0) - centroids[k]).max())
        assert len(near) > 200 and np.median(near) < 0.1 * np.median(far), (method, np.median(near), np.median(far))
    error = tool("oscar-fit", folder / "s", "-o", folder / "plain", "--method", "cq8x8", "--device", "cpu", "--overwrite")
    assert manifest_of(folder / "plain")["provenance"]["options"]["codebook_weights"] == "metric" and error is not None


def turned_at(x, position):
    """As turned(x, -1), at these positions."""
    table = turned(np.eye(D)[None].repeat(int(position.max()) + 1, 0), -1)  # [positions, D, D]: rows are turned unit vectors
    return np.einsum("thc,tcd->thd", x, table[position])
