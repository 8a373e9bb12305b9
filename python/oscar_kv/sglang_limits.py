"""What the adapter for SGLang does not serve. Written from lib/export/vllm_limits.cpp by the test VllmLimits:

    OSCAR_WRITE_TABLES=1 build/tests/export_test --gtest_filter='VllmLimits.*'"""
RELEASE = "0.5.23"
# Names in SGLang's RadixAttention and its calls, and what a layer has that is given one.
LAYERS = {
    "sliding_window_size": "a sliding window",
    "use_irope": "attention in chunks of the sequence",
    "logit_cap": "a soft cap on logits",
    "sinks": "learned sink logits",
    "shared_layer": "the cache of another layer",
    "pos_encoding_mode": "ALiBi",
}
# Facts of the model, and what its layers then have.
MODEL = {
    "linear_attention": "linear attention",
}
