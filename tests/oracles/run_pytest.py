"""Runs one pytest file for CTest; exit code 77 (skipped) where pytest is missing or every test was skipped."""

import importlib.util
import sys

SKIPPED = 77


class AllSkipped:
    """Counts outcomes: a run in which nothing passed or failed compared nothing."""

    def __init__(self):
        self.done = 0

    def pytest_runtest_logreport(self, report):
        if report.failed or (report.when == "call" and report.passed):
            self.done += 1


def main():
    if importlib.util.find_spec("pytest") is None:
        print("skipped: this Python has no pytest")
        return SKIPPED
    import pytest

    counter = AllSkipped()
    code = pytest.main(["-q", "-x", "-rfEs", "-p", "no:cacheprovider", *sys.argv[1:]], plugins=[counter])
    if code in (0, 5) and counter.done == 0:
        return SKIPPED
    return int(code)


if __name__ == "__main__":
    sys.exit(main())
