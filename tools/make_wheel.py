"""Packs an installed tree (cmake --install) into a wheel and prints its path.

usage: make_wheel.py --prefix TREE --version X.Y.Z --torch 2.11 --output DIR
       make_wheel.py --tag FILE   prints the platform tag of a shared object

The tree goes into the package `oscar_toolchain` as it is; share/ (man pages, licenses) goes to the environment's own
share/ as well, where man and shells look. The platform tag is the oldest manylinux whose C library has every symbol version
that the tree's executables and libraries ask for (PEP 600). The same tree gives the same bytes.
"""
import argparse
import base64
import hashlib
import pathlib
import re
import stat
import subprocess
import sys
import zipfile

ROOT = pathlib.Path(__file__).parents[1]
PACKAGE, COMMANDS = "oscar_toolchain", ("collect", "fit", "verify", "export")
# Libraries of the manylinux policies, and libraries from the package torch and its dependencies.
FROM_THE_SYSTEM = re.compile(r"lib(c|m|dl|rt|pthread|z|gcc_s|stdc\+\+)\.so|ld-linux")
FROM_TORCH = re.compile(r"lib(torch|torch_cpu|torch_cuda|c10|c10_cuda|gomp|cudart|cusolver)\.so")
# manylinux tags also limit the symbols of libstdc++: GLIBCXX_3.4.x is allowed from this glibc 2.N on (the contemporary
# GCC).
GLIBCXX_FROM = ((19, 17), (22, 24), (24, 27), (28, 31), (29, 34), (30, 35), (33, 39))


def fail(message):
    sys.exit(f"error: {message}")


def elf_files(prefix):
    for path in [prefix] if prefix.is_file() else sorted(prefix.rglob("*")):
        if path.is_file() and not path.is_symlink() and path.read_bytes()[:4] == b"\x7fELF":
            yield path


def objdump(*arguments):
    return subprocess.run(["objdump", *map(str, arguments)], check=True, capture_output=True, text=True).stdout


def platform_tag(prefix):
    """manylinux_2_N_x86_64; refuses libraries that nothing provides."""
    glibc, glibcxx, machine = 17, 0, set()
    own = {path.name for path in prefix.rglob("*.so*")}
    for path in elf_files(prefix):
        headers = objdump("-p", path)
        machine.add(re.search(r"file format elf64-([\w-]+)", headers)[1].replace("-", "_"))
        for needed in re.findall(r"NEEDED +(\S+)", headers):
            if needed not in own and not FROM_THE_SYSTEM.match(needed) and not FROM_TORCH.match(needed):
                fail(f"{path} needs {needed}, which is neither in the tree nor in every Linux nor in torch")
        glibc = max([glibc, *map(int, re.findall(r"\bGLIBC_2\.(\d+)", headers))])
        glibcxx = max([glibcxx, *map(int, re.findall(r"\bGLIBCXX_3\.4\.(\d+)", headers))])
    if len(machine) != 1:
        fail(f"{prefix} must hold programs of one machine and holds {sorted(machine) or 'none'}")
    if glibcxx > GLIBCXX_FROM[-1][0]:
        fail(f"GLIBCXX_3.4.{glibcxx} is newer than the manylinux tags known here")
    glibc = max(glibc, next(at_least for level, at_least in GLIBCXX_FROM if glibcxx <= level))
    return f"manylinux_2_{glibc}_{machine.pop()}"


def metadata(version, torch):
    major, minor = torch.split(".")
    return (f"Metadata-Version: 2.1\nName: oscar-toolchain\nVersion: {version}\n"
            "Summary: Calibrate, fit, evaluate and export a 2-bit key/value cache\n"
            f"Requires-Python: >=3.10\nRequires-Dist: torch>={torch},<{major}.{int(minor) + 1}\n"
            "Classifier: Operating System :: POSIX :: Linux\nClassifier: Environment :: GPU :: NVIDIA CUDA :: 13\n"
            "Description-Content-Type: text/markdown\n\n"
            "Four native commands, `oscar-collect`, `oscar-fit`, `oscar-verify` and `oscar-export`. They run on the LibTorch of\n"
            "the package `torch` and start no Python interpreter of their own.\n").encode()


def tree_files(prefix):
    """(path in the tree, bytes, executable)."""
    for path in sorted(prefix.rglob("*")):
        if path.is_symlink():
            fail(f"{path} is a link, and wheels hold none")
        if path.is_file():
            yield path.relative_to(prefix).as_posix(), path.read_bytes(), bool(path.stat().st_mode & stat.S_IXUSR)


def contents(prefix, version, torch, tag):
    info = f"{PACKAGE}-{version}.dist-info"
    yield f"{PACKAGE}/__init__.py", (ROOT / "tools/wheel/oscar_toolchain/__init__.py").read_bytes(), False
    for name, data, executable in tree_files(prefix):
        if name.startswith("share/man/"):
            yield f"{PACKAGE}-{version}.data/data/{name}", data, False
        elif name.startswith("share/doc/oscar-toolchain/licenses/"):
            yield f"{info}/licenses/{name.rsplit('/', 1)[1]}", data, False
        else:
            yield f"{PACKAGE}/{name}", data, executable
    yield f"{info}/licenses/LICENSE", (ROOT / "LICENSE").read_bytes(), False
    yield f"{info}/METADATA", metadata(version, torch), False
    yield f"{info}/WHEEL", f"Wheel-Version: 1.0\nGenerator: make_wheel\nRoot-Is-Purelib: false\nTag: py3-none-{tag}\n".encode(), False
    scripts = "".join(f"oscar-{name} = {PACKAGE}:{name}\n" for name in COMMANDS)
    yield f"{info}/entry_points.txt", f"[console_scripts]\n{scripts}".encode(), False


def write(path, files, record_name):
    record = ""
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED, compresslevel=6) as wheel:
        def add(name, data, executable):
            entry = zipfile.ZipInfo(name, (1980, 1, 1, 0, 0, 0))
            entry.external_attr = (stat.S_IFREG | (0o755 if executable else 0o644)) << 16
            wheel.writestr(entry, data, zipfile.ZIP_DEFLATED)

        for name, data, executable in files:
            add(name, data, executable)
            digest = base64.urlsafe_b64encode(hashlib.sha256(data).digest()).rstrip(b"=").decode()
            record += f"{name},sha256={digest},{len(data)}\n"
        add(record_name, f"{record}{record_name},,\n".encode(), False)


def main():
    if sys.argv[1:2] == ["--tag"]:
        return print(platform_tag(pathlib.Path(sys.argv[2])))
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--prefix", type=pathlib.Path, required=True)
    parser.add_argument("--version", required=True)
    parser.add_argument("--torch", required=True)
    parser.add_argument("--output", type=pathlib.Path, required=True)
    a = parser.parse_args()
    for name in COMMANDS:
        if not (a.prefix / "bin" / f"oscar-{name}").is_file():
            fail(f"{a.prefix} holds no bin/oscar-{name}; it must be a tree that cmake --install made")
    tag = platform_tag(a.prefix)
    a.output.mkdir(parents=True, exist_ok=True)
    path = a.output / f"{PACKAGE}-{a.version}-py3-none-{tag}.whl"
    write(path, contents(a.prefix, a.version, a.torch, tag), f"{PACKAGE}-{a.version}.dist-info/RECORD")
    print(path)


if __name__ == "__main__":
    main()
