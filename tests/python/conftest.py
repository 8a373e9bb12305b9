"""The Python package under test, from the source tree, and where programs and samples are."""
import os
import pathlib
import sys

SOURCE_DIR = pathlib.Path(os.environ.get("OSCAR_SOURCE_DIR", pathlib.Path(__file__).resolve().parents[2]))
BUILD_DIR = pathlib.Path(os.environ.get("OSCAR_BUILD_DIR", SOURCE_DIR / "build"))
GOLDEN = SOURCE_DIR / "sample_data" / "golden"
sys.path.insert(0, str(SOURCE_DIR / "python"))
