"""What the adapter for SGLang does not serve. Written from lib/export by the test EngineLimits:

    OSCAR_WRITE_TABLES=1 build/tests/export_test --gtest_filter='EngineLimits.*'"""
RELEASE = "0.5.23"
# Names in SGLang's RadixAttention and its calls. A layer that has one stays in BF16.
IN_BF16 = {
    "sliding_window_size": "a sliding window",
    "logit_cap": "a soft cap on logits",
}
# A layer that has one of these is refused.
LAYERS = {
    "use_irope": "attention in chunks of the sequence",
    "sinks": "learned sink logits",
    "pos_encoding_mode": "ALiBi",
}
