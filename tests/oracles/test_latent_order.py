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
        ordered = [kl[name, path] for name in ("waterfill-b", "balanced-b", "oscar-b", "naive2")]
        assert all(2 * better < worse for better, worse in zip(ordered, ordered[1:])), ordered
        assert kl["waterfill-b", path] < kl["waterfill-15", path] < kl["waterfill-1", path]
        # Widths by measured curves of the vectors lose no more than those of the closed form, but for what short texts leave open.
        for bits in ("b", "15", "1"):
            assert kl["measured-" + bits, path] < 1.05 * kl["waterfill-" + bits, path], bits
    width = 128 + 32
    assert rows["bf16", "prefill"]["token_bytes"] == 2 * width
    for name in ("oscar-b", "balanced-b", "naive2"):
        assert rows[name, "prefill"]["token_bytes"] == width / 4 + 4
    for name in ("waterfill-b", "measured-b"):
        assert rows[name, "prefill"]["token_bytes"] <= width / 4 + 4
    failed = [check["name"] for check in report["self_checks"] if check["pass"] is False]
    assert not failed and report["pass"], report["self_checks"]
