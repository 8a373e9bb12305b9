"""The metrics of oscar-verify against their definitions in numpy, in double precision."""
import json

import pytest

np = pytest.importorskip("numpy")

SEQUENCES, ROWS, VOCABULARY = 3, 40, 500


@pytest.fixture(scope="module")
def data():
    rng = np.random.default_rng(11)
    base = (rng.standard_normal((SEQUENCES, ROWS, VOCABULARY)) * 3).astype(np.float32)
    noise = rng.standard_normal((SEQUENCES, ROWS, VOCABULARY)) * rng.exponential(0.4, (SEQUENCES, ROWS, 1))
    method = (base + noise).astype(np.float32)
    # Drawn from the baseline at three times its temperature: none is 16 nats below the top, where llama.cpp cuts.
    targets = (base / 3 + rng.gumbel(size=base.shape)).argmax(-1).astype(np.int32)
    return base, method, targets


@pytest.fixture(scope="module")
def metrics(tool, data, tmp_path_factory):
    path = tmp_path_factory.mktemp("metrics") / "logits.bin"
    with open(path, "wb") as out:
        for base, method, targets in zip(*data):
            out.write(base.tobytes() + method.tobytes() + targets.tobytes())
    return json.loads(tool("verify_tool", "score", SEQUENCES, ROWS, VOCABULARY, path))["methods"][0]


def log_softmax(x):
    x = x.astype(np.float64)
    x = x - x.max(-1, keepdims=True)
    return x - np.log(np.exp(x).sum(-1, keepdims=True))


def test_metrics(metrics, data):
    base, method, targets = data
    log_p, log_q = log_softmax(base), log_softmax(method)
    kl = (np.exp(log_p) * (log_p - log_q)).sum(-1).reshape(-1)
    pick = lambda x: -np.take_along_axis(x, targets[..., None].astype(np.int64), -1).reshape(-1)  # noqa: E731
    nll_base, nll = pick(log_p), pick(log_q)
    n = kl.size
    error = lambda x: x.std() / np.sqrt(n - 1)  # noqa: E731
    near = lambda x: pytest.approx(x, rel=2e-8)  # noqa: E731  (the report keeps nine digits)

    assert metrics["tokens"] == n
    assert metrics["nll"] == near(nll.mean()) and metrics["nll_stderr"] == near(error(nll))
    assert metrics["ppl"] == near(np.exp(nll.mean()))
    assert metrics["ppl_stderr"] == near(np.exp(nll.mean()) * error(nll))
    ratio = nll - nll_base
    assert metrics["ln_ppl_ratio"] == near(ratio.mean()) and metrics["ln_ppl_ratio_stderr"] == near(error(ratio))
    # The form that llama.cpp computes: var(q) + var(base) - 2 cov over n - 1.
    covariance = np.cov(nll, nll_base, bias=True)
    llama = np.sqrt((covariance[0, 0] + covariance[1, 1] - 2 * covariance[0, 1]) / (n - 1))
    assert metrics["ln_ppl_ratio_stderr"] == near(llama)
    assert metrics["ppl_ratio"] == near(np.exp(nll.mean()) / np.exp(nll_base.mean()))
    assert metrics["ppl_ratio_stderr"] == near(metrics["ppl_ratio"] * llama)
    assert metrics["kl"]["mean"] == near(kl.mean()) and metrics["kl"]["stderr"] == near(error(kl))
    quantiles = [("min", 0), ("p001", 0.1), ("p01", 1), ("p05", 5), ("p10", 10), ("median", 50), ("p90", 90), ("p95", 95),
                 ("p99", 99), ("p999", 99.9), ("max", 100)]
    for name, q in quantiles:
        assert metrics["kl"][name] == near(np.percentile(kl, q)), name
    assert metrics["ln_ppl_correlation"] == near(np.corrcoef(nll, nll_base)[0, 1])
    ppl, base_ppl = np.exp(nll.mean()), np.exp(nll_base.mean())
    assert metrics["ppl_difference"] == near(ppl - base_ppl)
    # Delta method: variance of ppl q - base_ppl b, with the means q and b of the likelihoods.
    assert metrics["ppl_difference_stderr"] == near(error(ppl * nll - base_ppl * nll_base))
    delta = 100 * (np.exp(-nll) - np.exp(-nll_base))
    assert metrics["delta_p"]["mean"] == near(delta.mean()) and metrics["delta_p"]["stderr"] == near(error(delta))
    rms = np.sqrt((delta**2).mean())
    assert metrics["delta_p"]["rms"] == near(rms)
    assert metrics["delta_p"]["rms_stderr"] == near(0.5 * error(delta**2) / rms)
    for name, q in quantiles + [("p25", 25), ("p75", 75)]:
        assert metrics["delta_p"][name] == near(np.percentile(delta, q)), name
    same = (base.argmax(-1) == method.argmax(-1)).mean()
    assert metrics["same_top1"] == near(same)
    assert metrics["same_top1_stderr"] == near(np.sqrt(same * (1 - same) / (n - 1)))


def test_the_interval_covers_the_resampled_means(metrics, data):
    """With three sequences the bootstrap draws from 10 distinct means; the interval spans them but for the tails."""
    base, method, _ = data
    log_p, log_q = log_softmax(base), log_softmax(method)
    sums = (np.exp(log_p) * (log_p - log_q)).sum(-1).mean(-1)
    low, high = metrics["kl"]["ci"]
    assert sums.min() - 1e-9 <= low < sums.mean() < high <= sums.max() + 1e-9


def llama_perplexity(base, method, targets):
    """llama-perplexity --kl-divergence on these rows, step by step: the base's log probabilities as 16-bit numbers over a
    range of at most 16 nats below the top, the divergence over tokens of base log probability above -16 alone."""
    kl, nll, base_nll, delta, same = [], [], [], [], []
    for p_row, q_row, token in zip(base.reshape(-1, VOCABULARY), method.reshape(-1, VOCABULARY), targets.reshape(-1)):
        largest = p_row.max()
        log_sum = np.float32(np.log(np.exp((p_row - largest).astype(np.float64)).sum()))
        least = np.float32(max(p_row.min() - largest, -16) - log_sum)
        scale = np.float32((-log_sum - least) / 65535)
        codes = np.rint((p_row - largest - log_sum - least).clip(0, None) / scale).clip(0, 65535)
        stored = scale * codes.astype(np.float32) + least  # what the reader of the file has
        log_q = q_row - q_row.max() - np.float32(np.log(np.exp((q_row - q_row.max()).astype(np.float64)).sum()))
        seen = stored > -16
        kl.append((np.exp(stored[seen]) * (stored[seen] - log_q[seen])).sum(dtype=np.float64))
        nll.append(-log_q[token])
        base_nll.append(-stored[token])
        delta.append(np.exp(log_q[token]) - np.exp(stored[token]))
        same.append(stored.argmax() == log_q.argmax())
    return (np.array(x, dtype=np.float64) for x in (kl, nll, base_nll, delta, same))


def test_equal_to_llama_perplexity_up_to_its_16_bits(metrics, data):
    kl, nll, base_nll, delta, same = llama_perplexity(*data)
    n = kl.size
    near = lambda x: pytest.approx(x, rel=2e-3, abs=2e-4)  # noqa: E731
    assert metrics["kl"]["mean"] == near(kl.mean())
    assert metrics["kl"]["stderr"] == near(np.sqrt((np.mean(kl**2) - kl.mean() ** 2) / (n - 1)))
    for name, fraction in (("median", 0.5), ("p90", 0.9), ("p95", 0.95), ("p99", 0.99), ("p999", 0.999), ("max", 1.0)):
        rank = fraction * (n - 1)
        low = int(rank)
        ordered = np.sort(kl)
        value = (1 - (rank - low)) * ordered[low] + (rank - low) * ordered[min(low + 1, n - 1)]
        assert metrics["kl"][name] == near(value), name
    assert metrics["nll"] == near(nll.mean())
    ratio = nll.mean() - base_nll.mean()
    assert metrics["ln_ppl_ratio"] == near(ratio) and metrics["ppl_ratio"] == near(np.exp(ratio))
    covariance = (nll * base_nll).mean() - nll.mean() * base_nll.mean()
    assert metrics["ln_ppl_correlation"] == near(covariance / (nll.std() * base_nll.std()))
    assert metrics["delta_p"]["mean"] == near(100 * delta.mean())
    assert metrics["delta_p"]["rms"] == near(100 * np.sqrt((delta**2).mean()))
    assert metrics["same_top1"] == near(same.mean())
