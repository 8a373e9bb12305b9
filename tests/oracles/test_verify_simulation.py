"""oscar-verify against an independent simulation in Python: transformers runs the sample model with keys and values that
are quantized here, by the formulas of the codec, inside its attention; windows 16/32 so that short texts leave them."""
import json
import math
import pathlib

import pytest

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")
np = pytest.importorskip("numpy")

torch.set_num_threads(1)  # small steps: threads would only wait for each other
SINK, RECENT, CONTEXT, SEQUENCES = 16, 32, 256, 2
SAMPLE = pathlib.Path(__file__).parents[2] / "sample_data" / "tiny-qwen3"


def hadamard(d):
    h = torch.ones(1, 1, dtype=torch.float64)
    while h.shape[0] < d:
        h = torch.cat([torch.cat([h, h], 1), torch.cat([h, -h], 1)], 0)
    return (h / math.sqrt(d)).float()


def quantize(x):
    """Min/max INT2 of each row, float zero point, parameters rounded to FP16."""
    low, high = x.amin(-1, keepdim=True), x.amax(-1, keepdim=True)
    scale = (high - low).clamp_min(1e-8) / 3
    zero = (-low / scale).half().float()
    scale = scale.half().float()
    code = torch.trunc(x / scale + zero + 0.5).clamp(0, 3)
    return (code - zero) * scale


class Simulation:
    """Attention of one method over whole sequences. q, k, v: [1, heads, T, d]."""

    def __init__(self, method):
        self.method = method

    def __call__(self, module, q, k, v, mask, scaling=None, **_):
        rotation = hadamard(q.shape[-1]) if self.method == "hadamard2" else torch.eye(q.shape[-1])
        q, k, v = (x.float() @ rotation for x in (q, k, v))
        k, v = k.bfloat16().float(), v.bfloat16().float()
        groups, tokens = q.shape[1] // k.shape[1], q.shape[2]
        repeat = lambda x: x.repeat_interleave(groups, 1)  # noqa: E731
        i, j = torch.arange(tokens)[:, None], torch.arange(tokens)[None]
        body = (j >= SINK) & (j <= i - RECENT) & (self.method != "bf16")
        logits = torch.where(body, q @ repeat(quantize(k)).mT, q @ repeat(k).mT) * scaling
        p = logits.masked_fill(j > i, -torch.inf).softmax(-1)
        o = (p * body) @ repeat(quantize(v)) + (p * ~body) @ repeat(v)
        return (o @ rotation.T).transpose(1, 2), None


@pytest.fixture(scope="module")
def text(tmp_path_factory):
    path = tmp_path_factory.mktemp("text") / "text.txt"
    lines = (f"Entry {i}: the valve of hall {i * 37 % 11} was set to {i * 7 % 50} bar and tested.\n" for i in range(60))
    path.write_text("".join(lines))
    return path


@pytest.fixture(scope="module")
def echo(tmp_path_factory):
    """Says everything again, a hundred tokens later."""
    path = tmp_path_factory.mktemp("echo") / "echo.txt"
    passage = (SAMPLE.parent / "heldout.txt").read_text()[:420]
    path.write_text(passage * 8)
    return path


def verified(tool, text, path):
    tool("oscar-verify", "--no-gate", "--model", SAMPLE, "--text", text, "--context", CONTEXT, "--max-sequences", SEQUENCES,
         "--windows", f"{SINK},{RECENT}", "--dtype", "float32", "--device", "cpu", "--report", path, "-q")
    return {m["id"]: m for m in json.loads(path.read_text())["methods"]}


@pytest.fixture(scope="module")
def report(tool, text, tmp_path_factory):
    return verified(tool, text, tmp_path_factory.mktemp("report") / "report.json")


@pytest.fixture(scope="module")
def logits(text):
    return simulated(text)


def simulated(text):
    from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

    tokenizer = transformers.AutoTokenizer.from_pretrained(SAMPLE)
    ids = tokenizer(text.read_text()).input_ids[: CONTEXT * SEQUENCES]
    assert len(ids) == CONTEXT * SEQUENCES
    result = {"targets": [], "ids": torch.tensor(ids).view(SEQUENCES, CONTEXT)}
    for method in ("bf16", "naive2", "hadamard2"):
        name = f"simulation_{method}"
        ALL_ATTENTION_FUNCTIONS.register(name, Simulation(method))
        model = transformers.AutoModelForCausalLM.from_pretrained(SAMPLE, dtype=torch.float32, attn_implementation=name)
        rows = []
        for s in range(SEQUENCES):
            sequence = torch.tensor([ids[s * CONTEXT : (s + 1) * CONTEXT]])
            with torch.no_grad():
                rows.append(model(sequence).logits[0, SINK + RECENT : -1].double())
            if method == "bf16":
                result["targets"].append(sequence[0, SINK + RECENT + 1 :])
        result[method] = torch.cat(rows)
    result["targets"] = torch.cat(result["targets"])
    return result


@pytest.mark.parametrize("method", ["naive2", "hadamard2"])
def test_same_numbers(report, logits, method):
    log_p, log_q = (logits[m].log_softmax(-1) for m in ("bf16", method))
    kl = (log_p.exp() * (log_p - log_q)).sum(-1).numpy()
    nll = -log_q.gather(1, logits["targets"][:, None]).mean().item()
    base = -log_p.gather(1, logits["targets"][:, None]).mean().item()
    ours = report[method]
    assert ours["tokens"] == kl.size
    assert kl.mean() > 1e-3  # there is something to compare
    # The first queries see few quantized keys: there the two agree closely.
    per_sequence = kl.reshape(SEQUENCES, -1)
    for bucket in ours["kl_by_position"][:3]:
        columns = slice(bucket["from"] - SINK - RECENT, bucket["to"] - SINK - RECENT)
        assert bucket["kl"] == pytest.approx(per_sequence[:, columns].mean(), rel=0.02)
    # Later, rounding has put a few keys into another code and the layers behind carry it on; the averages stay.
    assert ours["kl"]["mean"] == pytest.approx(kl.mean(), rel=0.05)
    assert ours["kl"]["median"] == pytest.approx(np.median(kl), rel=0.15)
    assert ours["nll"] == pytest.approx(nll, rel=1e-2)
    assert ours["ln_ppl_ratio"] == pytest.approx(nll - base, abs=1e-2)
    same = (log_p.argmax(-1) == log_q.argmax(-1)).double().mean().item()
    assert ours["same_top1"] == pytest.approx(same, abs=8.0 / kl.size)


def test_the_baseline(report, logits):
    base = -logits["bf16"].log_softmax(-1).gather(1, logits["targets"][:, None]).mean().item()
    assert report["bf16"]["nll"] == pytest.approx(base, rel=2e-5)
    assert report["bf16"]["kl"]["max"] == 0 and report["bf16"]["same_top1"] == 1


def repeated(ids):
    """Tokens that end a phrase of five which stood before the windows; a search through all earlier places."""
    found = []
    for t in range(4, len(ids)):
        before = max((u for u in range(4, t) if ids[u - 4 : u] == ids[t - 4 : t]), default=None)
        if before is not None and ids[before] == ids[t] and before - 4 >= SINK and t - before > RECENT:
            found.append(t)
    return found


def test_repeated_phrases(tool, echo, tmp_path):
    report, logits = verified(tool, echo, tmp_path / "report.json"), simulated(echo)
    places = [(s, t - 1 - SINK - RECENT) for s, ids in enumerate(logits["ids"].tolist()) for t in repeated(ids)]
    assert len(places) > 100 and all(at >= 0 for _, at in places)
    shares = {}
    for method in ("bf16", "naive2", "hadamard2"):
        nll = -logits[method].log_softmax(-1).gather(1, logits["targets"][:, None]).view(SEQUENCES, -1)
        shares[method] = sum(nll[place].item() < math.log(2) for place in places) / len(places)
        ours = report[method]["recall"]
        assert ours["tokens"] == len(places) and ours["bf16"] == pytest.approx(shares["bf16"], abs=1e-8)
        # Rounding puts a few keys into another code, and a probability at one half to the other side.
        slack = 0 if method == "bf16" else 3 / len(places)
        assert ours["share"] == pytest.approx(shares[method], abs=slack + 1e-8), method
    assert shares["naive2"] < shares["bf16"]  # there is something to notice
