"""The C++ tokenizer as a Python object: runs oscar_tokenize of the build folder."""

import json
import os
import struct
import subprocess

from conftest import BUILD_DIR


class CppTokenizer:
    def __init__(self, folder, description):
        self.path = os.path.join(str(folder), "tokenizer.json")
        with open(self.path, "w", encoding="utf-8") as file:
            file.write(description if isinstance(description, str) else json.dumps(description))

    def _run(self, mode, data):
        done = subprocess.run([str(BUILD_DIR / "tests/oscar_tokenize"), self.path, mode], input=data, capture_output=True)
        if done.returncode != 0:
            raise ValueError(done.stderr.decode())
        return done.stdout

    def encode(self, texts, special=False):
        data = b"".join(struct.pack("<I", len(t)) + t for t in texts)
        out = self._run("encode-special" if special else "encode", data)
        return list(self._records(out, len(texts), 4, lambda raw, n: list(struct.unpack(f"<{n}i", raw))))

    def decode(self, rows, keep_special=False):
        data = b"".join(struct.pack(f"<I{len(ids)}i", len(ids), *ids) for ids in rows)
        out = self._run("decode-all" if keep_special else "decode", data)
        return list(self._records(out, len(rows), 1, lambda raw, n: raw.decode()))

    def bench(self, text):
        size, tokens, seconds = self._run("bench", text).split()
        return int(size), int(tokens), float(seconds)

    @staticmethod
    def _records(out, count, width, read):
        at = 0
        for _ in range(count):
            (n,) = struct.unpack_from("<I", out, at)
            at += 4
            yield read(out[at : at + n * width], n)
            at += n * width
        assert at == len(out)
