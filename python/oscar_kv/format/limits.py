"""What the decode kernel serves. Written from lib/export by the test EngineLimits:

    OSCAR_WRITE_TABLES=1 build/tests/export_test --gtest_filter='EngineLimits.*'"""
HEAD_SIZES, MOST_GROUP, MOST_WINDOW = (64, 128, 256), 16, 2048  # group: query heads on a KV head
