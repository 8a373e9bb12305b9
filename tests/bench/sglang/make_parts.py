#!/usr/bin/env python3
"""SGLang 0.5.23 for a machine that has a Hopper GPU, CUDA 13 and a PyTorch of another release, but no network: downloads the wheels and
writes them as parts of at most 54 MB, to be copied there one after another.

  make_parts.py OUT [--python 3.12] [--also WHEEL ...]      # OUT/00, OUT/01 ...; --also: further wheels, such as oscar_kv's

sglang-kernel 0.4.10 needs torch 2.14, so torch 2.14.1 is carried, without headers; it starts with an older cuDNN and cuSPARSELt. Of its
NCCL it misses only functions that nothing here calls: unpack.sh makes a library of them instead of carrying 216 MB. Of sglang-kernel
sm90/common_ops and flash_ops (FlashAttention 3, its default on Hopper) are taken, of triton what compiles for NVIDIA, of SGLang not the servers
in Rust. Shared objects keep the device code of Hopper alone (slim.py). unpack.sh puts everything together."""
import argparse
import glob
import pathlib
import shutil
import subprocess
import sys
import tarfile
import zipfile

import slim

HERE = pathlib.Path(__file__).resolve().parent
PLATFORMS = [f"manylinux_2_{n}_x86_64" for n in (39, 35, 34, 31, 28, 27, 26, 24, 18, 17, 12, 5)] + ["manylinux2014_x86_64", "manylinux1_x86_64"]
LARGE = ("torch==2.14.1", "triton==3.8.0", "sglang==0.5.23", "sglang-kernel==0.4.10")
PART = 54_300_000
HOPPER = 90
# Of the large wheels: folders left out whole, and files left out that are not Python.
FOLDERS = ("torch/include/", "triton_kernels/", "sglang/multimodal_gen/")
FILES = ("torch/bin/protoc", "cupti", "libproton", "GPUInstrumentationTestLib", "ptxas-blackwell", "nvdisasm",
         "cuobjdump", "sm100/", "flashmla_ops", "infllm_ops", "rust_extensions/")
OWN = 20_000_000  # bytes from which a shared object has an archive of its own, so that unpack.sh reads them at once


def wanted(name):
    return not name.startswith(FOLDERS) and (name.endswith(".py") or not any(part in name for part in FILES))


def pip(python, folder, *names):
    abi = "cp" + python.replace(".", "")
    target = ["--no-deps", "--only-binary=:all:", "--python-version", python, "--implementation", "cp", "--abi", abi, "--abi", "abi3", "--abi",
              "none", *[w for p in PLATFORMS for w in ("--platform", p)]]
    subprocess.run([sys.executable, "-m", "pip", "download", "-q", "-d", str(folder), *target, *names], check=True)


def unpack(wheel, site, keep):
    with zipfile.ZipFile(wheel) as source:
        for entry in source.infolist():
            if entry.is_dir() or not keep(entry.filename):
                continue
            first, _, rest = entry.filename.partition("/")
            if first.endswith(".data"):  # {purelib, platlib, scripts ...}/FILE
                kind, _, rest = rest.partition("/")
                if kind not in ("purelib", "platlib"):
                    continue
            target = site / (rest if first.endswith(".data") else entry.filename)
            target.parent.mkdir(parents=True, exist_ok=True)
            data = bytearray(source.read(entry))
            if target.suffix == ".so" and len(data) > 1_000_000:
                slim.slim(data, HOPPER, slim.common_attention if target.name.startswith("flash_ops") else lambda image: True)
            target.write_bytes(data)


def archives(site, folder):
    """Compressed: every large shared object, and all other files together."""
    large = sorted(path for path in site.rglob("*") if path.is_file() and path.stat().st_size > OWN)
    for path in large:
        with (folder / ("__".join(path.relative_to(site).parts) + ".xz")).open("wb") as made:
            subprocess.run(["xz", "-3", "-T2", "-c", str(path)], stdout=made, check=True)
        path.unlink()
    with tarfile.open(folder / "rest.tar", "w") as tar:
        tar.add(site, ".")
    subprocess.run(["xz", "-3", "-T2", str(folder / "rest.tar")], check=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("out", type=pathlib.Path)
    parser.add_argument("--python", default="3.12")
    parser.add_argument("--also", nargs="*", default=[], type=pathlib.Path)
    a = parser.parse_args()
    work = a.out / "work"
    for name in ("large", "wheels", "site", "archives"):
        (work / name).mkdir(parents=True, exist_ok=True)
    pip(a.python, work / "wheels", "-r", str(HERE / "packages.txt"))
    pip(a.python, work / "large", *LARGE)
    for wheel in [*glob.glob(str(work / "wheels" / "*.whl")), *map(str, a.also)]:
        unpack(wheel, work / "site", lambda name: True)
    for wheel in glob.glob(str(work / "large" / "*.whl")):
        unpack(wheel, work / "site", wanted)
    archives(work / "site", work / "archives")
    whole = work / "all.tar"
    with tarfile.open(whole, "w") as tar:
        for file in sorted((work / "archives").iterdir()):
            tar.add(file, file.name)
    with open(whole, "rb") as file:
        for number in range(100):
            piece = file.read(PART)
            if not piece:
                break
            (a.out / f"{number:02}").mkdir(exist_ok=True)
            (a.out / f"{number:02}" / f"part.{number:02}").write_bytes(piece)
    shutil.rmtree(work)


if __name__ == "__main__":
    main()
