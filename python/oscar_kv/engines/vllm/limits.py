"""What the adapter for vLLM does not serve. Written from lib/export by the test EngineLimits:

    OSCAR_WRITE_TABLES=1 build/tests/export_test --gtest_filter='EngineLimits.*'"""
RELEASE = "0.33"
# Arguments of vLLM's AttentionImpl. A layer that is given one stays in BF16.
IN_BF16 = {
    "sliding_window": "a sliding window",
    "logits_soft_cap": "a soft cap on logits",
    "alibi_slopes": "ALiBi",
}
# Facts of the model whose layers are refused.
MODEL = {
    "attention_chunk_size": "attention in chunks of the sequence",
}
