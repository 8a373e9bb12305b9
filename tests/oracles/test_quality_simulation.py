"""Bundles of methods oscar, balanced and waterfill, evaluated by oscar-verify, against a simulation in Python: transformers
runs the sample model with keys and values that are transformed and quantized here, from the bundle's files alone and by
the text of docs/format-*.md."""
import json
import pathlib

import pytest

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")
safetensors = pytest.importorskip("safetensors.torch")
np = pytest.importorskip("numpy")

torch.set_num_threads(1)
SINK, RECENT, CONTEXT, SEQUENCES = 16, 32, 256, 2
ROOT = pathlib.Path(__file__).parents[2] / "sample_data"
SAMPLE = ROOT / "tiny-qwen3-outliers"
FITS = {"layer": ("--method", "oscar"), "head": ("--method", "oscar", "--scope", "head"),
        "searched": ("--method", "oscar", "--encoder", "search"), "balanced": ("--method", "balanced"),
        "waterfill": ("--method", "waterfill", "--bits", "1.75", "--center", "mean")}


def uniform_search(x, key):
    """Layout uniform, encoder search, one group. x: [..., d]."""
    low, high = x.amin(-1, keepdim=True), x.amax(-1, keepdim=True)
    mean = x.mean(-1, keepdim=True)
    y = x - mean
    best = None
    for f in np.arange(1, 0.54, -0.05):
        step = f * (high - low) / 3
        code = torch.floor((x - (low + high) / 2 + f * (high - low) / 2) / step + 0.5).clamp(0, 3)
        centered = code - code.mean(-1, keepdim=True)
        score = (y * centered).sum(-1, keepdim=True) ** 2 / centered.square().sum(-1, keepdim=True)
        better = score > (best[0] if best else -1)
        best = (torch.where(better, score, best[0]), torch.where(better, code, best[1])) if best else (score, code)
    code = best[1]
    centered = code - code.mean(-1, keepdim=True)
    dot = (y * centered).sum(-1, keepdim=True)
    scale = (y.square().sum(-1, keepdim=True) / dot if key else dot / centered.square().sum(-1, keepdim=True)).half().float()
    zero = (code.mean(-1, keepdim=True) - mean / scale).half().float()
    return (code - zero) * scale


def clipped(x, clip):
    """Each row clamped to its order statistic; 0 and 1: left alone. clip: [H or 1, 1, 1]."""
    d = x.shape[-1]
    index = (clip * d).long().clamp(max=d - 1).expand(*x.shape[:-1], 1)
    threshold = x.abs().sort(-1).values.gather(-1, index)
    return torch.where((clip > 0) & (clip < 1), torch.maximum(torch.minimum(x, threshold), -threshold), x)


def uniform_minmax(x):
    """Layout uniform, encoder minmax, one group."""
    low, high = x.amin(-1, keepdim=True), x.amax(-1, keepdim=True)
    scale = (high - low).clamp_min(1e-8) / 3
    zero = (-low / scale).half().float()
    scale = scale.half().float()
    return (torch.trunc(x / scale + zero + 0.5).clamp(0, 3) - zero) * scale


def block(x, width, sigma, key):
    """One block of layout blocks. x: [H, T, n], sigma: [H, 1, 1]."""
    if width == 0:
        return torch.zeros_like(x)
    best = None
    largest = x.abs().amax(-1, keepdim=True)
    for j in range(8 if width > 1 else 1):
        f = 1 - (0.55 if width < 4 else 0.4) * j / 7
        if width == 1:
            level = torch.where(x >= 0, 0.5, -0.5)
        else:
            step = 2 * f * largest / (2**width - 1)
            level = torch.floor(x / step + 2 ** (width - 1)).clamp(0, 2**width - 1) + 0.5 - 2 ** (width - 1)
        score = (x * level).sum(-1, keepdim=True) ** 2 / level.square().sum(-1, keepdim=True)
        if best is None:
            best = (score, level)
        else:
            best = torch.where(score > best[0], score, best[0]), torch.where(score > best[0], level, best[1])
    level = best[1]
    dot = (x * level).sum(-1, keepdim=True)
    scale = x.square().sum(-1, keepdim=True) / dot if key else dot / level.square().sum(-1, keepdim=True)
    exponent = torch.round(32 * torch.log2(scale / sigma)).clamp(-128, 127)
    return level * sigma * 2 ** (exponent / 32)


class Side:
    def __init__(self, manifest, tensors, layer, key):
        name = f"layers.{layer}.{'k' if key else 'v'}."
        self.key = key
        self.forward = tensors[name + "forward"]  # [1 or H, d, d]
        # Queries by (M^-1)^T, outputs by M^-1: of an orthogonal matrix only M is stored.
        self.back = tensors.get(name + "inverse_or_query", self.forward if key else self.forward.mT)
        heads = manifest["model"]["kv_heads"]
        self.forward, self.back = (m.expand(heads, -1, -1) for m in (self.forward, self.back))
        mean = tensors.get(name + "mean")
        self.mean = torch.zeros(heads, 1, self.forward.shape[-1]) if mean is None else mean[:, None]
        side = manifest["layers"][layer]["key" if key else "value"]
        self.widths, self.encoder = side.get("widths"), manifest["code"]["encoder"]
        self.clip = torch.tensor(side["clip"], dtype=torch.float32)[:, None, None]
        self.sigma = tensors.get(name + "sigma")

    def rows(self, x):  # [H, T, d] -> as the cache holds them
        return ((x - self.mean) @ self.forward).bfloat16().float()

    def quantize(self, x):
        if self.widths is None:
            x = clipped(x, self.clip)
            return uniform_search(x, self.key) if self.encoder == "search" else uniform_minmax(x)
        parts = x.chunk(4, -1)
        return torch.cat([block(p, w, self.sigma[:, b, None, None], self.key)
                          for b, (p, w) in enumerate(zip(parts, self.widths))], -1)


class Simulation:
    """q, k, v: [1, heads, T, d]. bundle: a folder, or None for the BF16 cache."""

    def __init__(self, bundle):
        self.sides = None
        if bundle is not None:
            manifest = json.loads((bundle / "oscar_bundle.json").read_text())
            tensors = safetensors.load_file(bundle / "rotations.safetensors")
            self.sides = [(Side(manifest, tensors, i, True), Side(manifest, tensors, i, False)) for i in range(4)]

    def __call__(self, module, q, k, v, mask, scaling=None, **_):
        q, k, v = q[0], k[0], v[0]
        group, tokens = q.shape[0] // k.shape[0], q.shape[1]
        i, j = torch.arange(tokens)[:, None], torch.arange(tokens)[None]
        repeat = lambda x: x.repeat_interleave(group, 0)  # noqa: E731
        if self.sides is None:
            logits = (q @ repeat(k.bfloat16().float()).mT * scaling).masked_fill(j > i, -torch.inf)
            return (logits.softmax(-1) @ repeat(v.bfloat16().float())).transpose(0, 1)[None], None
        key, value = self.sides[module.layer_idx]
        k, v = key.rows(k), value.rows(v)
        q = q @ repeat(key.back)
        body = (j >= SINK) & (j <= i - RECENT)
        logits = torch.where(body, q @ repeat(key.quantize(k)).mT, q @ repeat(k).mT) * scaling
        p = logits.masked_fill(j > i, -torch.inf).softmax(-1)
        o = (p * body) @ repeat(value.quantize(v)) + (p * ~body) @ repeat(v)
        return (o @ repeat(value.back) + repeat(value.mean)).transpose(0, 1)[None], None


@pytest.fixture(scope="module")
def folder(tool, tmp_path_factory):
    out = tmp_path_factory.mktemp("simulation")
    tool("oscar-collect", "--model", SAMPLE, "--prompts", ROOT / "prompts.jsonl", "-o", out / "s", "--tokens", 6000, "-q")
    for name, options in FITS.items():
        tool("oscar-fit", out / "s", "-o", out / name, "--windows", f"{SINK},{RECENT}", *options, *(() if "--method" in options else ("--method", "oscar")), "-q")
    return out


def logits_of(name, bundle, ids):
    from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

    ALL_ATTENTION_FUNCTIONS.register(f"quality_{name}", Simulation(bundle))
    model = transformers.AutoModelForCausalLM.from_pretrained(SAMPLE, dtype=torch.float32,
                                                              attn_implementation=f"quality_{name}")
    with torch.no_grad():
        return torch.cat([model(row[None]).logits[0, SINK + RECENT:-1].double() for row in ids]).log_softmax(-1)


@pytest.mark.parametrize("name", FITS)
def test_same_numbers_on_both_paths(tool, folder, name):
    text = folder / "text.txt"
    text.write_text((ROOT / "heldout.txt").read_text()[:8000])
    path, method = folder / f"{name}.json", FITS[name][1]
    tool("oscar-verify", "--no-gate", "--model", SAMPLE, "--bundle", folder / name, "--text", text, "--context", CONTEXT,
         "--max-sequences", SEQUENCES, "--methods", method, "--path", "both", "--dtype", "float32", "--device", "cpu",
         "--report", path, "-q")
    report = {m["path"]: m for m in json.loads(path.read_text())["methods"] if m["id"] == method}
    ids = transformers.AutoTokenizer.from_pretrained(SAMPLE)(text.read_text(), return_tensors="pt").input_ids[0]
    ids = ids[:CONTEXT * SEQUENCES].view(SEQUENCES, CONTEXT)
    exact, simulated = logits_of("bf16", None, ids), logits_of(name, folder / name, ids)
    kl = (exact.exp() * (exact - simulated)).sum(-1)
    assert report["prefill"]["tokens"] == kl.numel()
    assert report["prefill"]["kl"]["mean"] == pytest.approx(kl.mean().item(), rel=0.08)
    # The two paths sum in different orders, which flips codes at rounding boundaries: 2.2 % was seen on one processor.
    assert report["decode"]["kl"]["mean"] == pytest.approx(report["prefill"]["kl"]["mean"], rel=0.05)
