"""What the kernels serve, and the most that a manifest may name. Written from lib/export by the test EngineLimits:

    OSCAR_WRITE_TABLES=1 build/tests/export_test --gtest_filter='EngineLimits.*'"""
HEAD_SIZES = {64: 16, 128: 16, 256: 16, 512: 8}  # the most query heads on a KV head
MOST_HEAD_SCALE, MOST_WINDOW = 256, 2048  # head size in layout HEAD_SCALE; tokens
RING_SLACK, MOST_FREQUENCY = 15, 1  # slots that the last tile may read beyond the ring; radians a token
HEAD_SCALE, ROTATED_MEAN = "uniform", "blocks"  # layouts: one FP16 scale and zero a head; keys centered before RoPE
MOST_LAYERS, MOST_HEADS, LARGEST_HEAD_DIM = 10000, 4096, 4096
