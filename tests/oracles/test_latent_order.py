"""Latent attention with trained-like spectra: which method loses less, on both paths, and what a token takes."""
import pytest

pytest.importorskip("transformers")

import latent_order  # noqa: E402  (needs the packages above)


def test_order_of_methods(tool, tmp_path):
    rows, report = latent_order.run(tool, tmp_path, windows=(16, 48), context=256, sequences=3, tokens=5000, path="both")
    print(latent_order.table(rows))
    kl = {key: m["kl"]["mean"] for key, m in rows.items()}
    assert kl["bf16", "decode"] < 1e-5  # the paged cache of BF16 rows is the model
    for path in ("prefill", "decode"):
        ordered = [kl[name, path] for name in ("waterfill-225", "balanced", "oscar", "naive2")]
        assert all(1.5 * better < worse for better, worse in zip(ordered, ordered[1:])), ordered
        assert 1.5 * kl["waterfill-4", path] < kl["waterfill-225", path] < kl["waterfill-15", path]
        # Widths by measured curves lose no more than those of the analytic allocation, but for what short texts leave open.
        for bits in latent_order.BITS:
            assert kl["measured-" + bits, path] < 1.05 * kl["waterfill-" + bits, path], bits
    assert rows["bf16", "prefill"]["token_bytes"] == 2 * 128 + 2 * 32
    assert rows["fp8", "prefill"]["token_bytes"] == 128 + 2 * 32
    for name in ("oscar", "balanced", "naive2"):
        assert rows[name, "prefill"]["token_bytes"] == 128 / 4 + 4 + 2 * 32
    for name, bits in latent_order.BITS.items():
        for row in ("waterfill-", "measured-"):
            assert rows[row + name, "prefill"]["token_bytes"] <= 128 * bits / 8 + 2 * 32
    failed = [check["name"] for check in report["self_checks"] if check["pass"] is False]
    assert not failed and report["pass"], report["self_checks"]
