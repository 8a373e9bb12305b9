#!/usr/bin/env python3
"""SGLang 0.5.23 for a machine that has a Hopper GPU, CUDA 13 and a PyTorch of another release, but no network: downloads the wheels and
writes them as parts of at most 54 MB, to be copied there one after another.

  make_parts.py OUT [--python 3.12] [--also WHEEL ...]      # OUT/00, OUT/01 ...; --also: further wheels, such as oscar_kv's

sglang-kernel 0.4.10 needs torch 2.14, so torch 2.14.1 is carried, without headers; it starts with an older cuDNN and cuSPARSELt. Of its
NCCL it misses only functions that nothing here calls: unpack.sh makes a library of them instead of carrying 216 MB. Of sglang-kernel
sm90/common_ops and flash_ops (FlashAttention 3, its default on Hopper) are taken, of triton what compiles for NVIDIA, of SGLang not the servers
in Rust. unpack.sh puts everything together."""
import argparse
import glob
import lzma
import pathlib
import shutil
import subprocess
import sys
import tarfile
import zipfile

HERE = pathlib.Path(__file__).resolve().parent
PLATFORMS = [f"manylinux_2_{n}_x86_64" for n in (39, 35, 34, 31, 28, 27, 26, 24, 18, 17, 12, 5)] + ["manylinux2014_x86_64", "manylinux1_x86_64"]
LARGE = ("torch==2.14.1", "triton==3.8.0", "sglang==0.5.23", "sglang-kernel==0.4.10")
PART = 54_000_000
# Of the large wheels: folders left out whole, and files left out that are not Python.
FOLDERS = ("torch/include/", "triton_kernels/", "sglang/multimodal_gen/")
FILES = ("torch/bin/protoc", "cupti", "libproton", "GPUInstrumentationTestLib", "ptxas-blackwell", "nvdisasm",
         "cuobjdump", "sm100/", "flash_ops", "flashmla_ops", "infllm_ops", "rust_extensions/")


def wanted(name):
    return not name.startswith(FOLDERS) and (name.endswith(".py") or not any(part in name for part in FILES))


def pip(python, folder, *names):
    abi = "cp" + python.replace(".", "")
    target = ["--no-deps", "--only-binary=:all:", "--python-version", python, "--implementation", "cp", "--abi", abi, "--abi", "abi3", "--abi",
              "none", *[w for p in PLATFORMS for w in ("--platform", p)]]
    subprocess.run([sys.executable, "-m", "pip", "download", "-q", "-d", str(folder), *target, *names], check=True)


def reduce(wheel, target):
    with zipfile.ZipFile(wheel) as source, zipfile.ZipFile(target, "w", zipfile.ZIP_DEFLATED, compresslevel=6) as made:
        for entry in source.infolist():
            if not entry.is_dir() and wanted(entry.filename):
                made.writestr(entry, source.read(entry), zipfile.ZIP_DEFLATED)


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("out", type=pathlib.Path)
    parser.add_argument("--python", default="3.12")
    parser.add_argument("--also", nargs="*", default=[], type=pathlib.Path)
    a = parser.parse_args()
    work = a.out / "work"
    for name in ("large", "wheels", "reduced"):
        (work / name).mkdir(parents=True, exist_ok=True)
    pip(a.python, work / "wheels", "-r", str(HERE / "packages.txt"))
    pip(a.python, work / "large", *LARGE)
    for wheel in a.also:
        shutil.copy(wheel, work / "wheels")
    for wheel in sorted(glob.glob(str(work / "large" / "*.whl"))):
        reduce(wheel, work / "reduced" / (pathlib.Path(wheel).name.split("-")[0] + ".zip"))
    flash = work / "flash_ops.xz"  # less than half of what zip makes of it
    with zipfile.ZipFile(glob.glob(str(work / "large" / "sglang_kernel-*.whl"))[0]) as source:
        flash.write_bytes(lzma.compress(source.read("sgl_kernel/flash_ops.abi3.so"), preset=6))
    whole = work / "all.tar"
    with tarfile.open(whole, "w") as tar:
        tar.add(flash, flash.name)
        for folder in ("reduced", "wheels"):
            for file in sorted((work / folder).iterdir()):
                tar.add(file, f"{folder}/{file.name}")
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
