"""What users install: the tree of cmake --install, the wheel in a fresh environment, the .deb and .tar.gz, and how the launchers
find LibTorch. LibTorch itself is not installed again: a .pth file lends it from the Python that runs the tests."""
import email
import hashlib
import importlib.metadata
import os
import pathlib
import re
import shutil
import signal
import subprocess
import sys
import sysconfig
import tarfile
import time
import zipfile

import packaging.requirements
import pytest

from harness import BUILD_DIR, DONE, ENVIRONMENT, INTERRUPTED, SAMPLE, SOURCE_DIR, USAGE, Result

COMMANDS = ["oscar-collect", "oscar-fit", "oscar-verify", "oscar-export"]
LIBRARY_FOLDER = pathlib.Path("lib/oscar-toolchain")


def cached(name):
    """A value of the build's CMake cache."""
    return re.search(rf"^{name}:[A-Z]+=(.*)$", (BUILD_DIR / "CMakeCache.txt").read_text(), re.MULTILINE)[1]


VERSION = cached("CMAKE_PROJECT_VERSION")
SERIES = re.search(r'kTorchSeries = "(.*?)"', (BUILD_DIR / "generated/build_info.h").read_text())[1]
FLAVOR = "cuda" if cached("OSCAR_WITH_CUDA").upper() in ("ON", "TRUE", "1") else "cpu"
TORCH = pathlib.Path(cached("OSCAR_TORCH_DIR"))


def run(arguments, **options):
    done = subprocess.run(list(map(str, arguments)), capture_output=True, timeout=240, stdin=subprocess.DEVNULL, **options)
    return Result(list(map(str, arguments)), done)


def succeed(arguments, **options):
    result = run(arguments, **options)
    assert result.code == DONE, str(result)
    return result


def environment(**changes):
    """The environment of this process without what could lend the installed programs a LibTorch."""
    kept = {k: v for k, v in os.environ.items() if k not in ("VIRTUAL_ENV", "LD_LIBRARY_PATH", "PYTHONPATH") and not k.startswith("OSCAR_")}
    return {**kept, **{k: str(v) for k, v in changes.items()}}


@pytest.fixture(scope="module")
def prefix(tmp_path_factory):
    folder = tmp_path_factory.mktemp("installed") / "prefix"
    succeed([cached("CMAKE_COMMAND"), "--install", BUILD_DIR, "--prefix", folder, "--strip"])
    return folder


def make_wheel(tree, output):
    return run([sys.executable, SOURCE_DIR / "tools/make_wheel.py", "--prefix", tree, "--version", VERSION, "--torch", SERIES, "--output", output])


@pytest.fixture(scope="module")
def wheel(prefix, tmp_path_factory):
    result = make_wheel(prefix, tmp_path_factory.mktemp("wheel"))
    assert result.code == DONE, str(result)
    return pathlib.Path(result.out.strip())


def new_environment(folder, lends_torch):
    succeed([sys.executable, "-m", "venv", "--without-pip", folder])
    site = next((folder / "lib").glob("python3*")) / "site-packages"
    if lends_torch:
        (site / "lent.pth").write_text(sysconfig.get_paths()["purelib"] + "\n")
    return folder


def pip(folder, *arguments):
    return run([sys.executable, "-m", "pip", "--python", folder / "bin/python", "--disable-pip-version-check", "--no-input",
                "install", "--no-index", *arguments], env=environment())


@pytest.fixture(scope="module")
def venv(wheel, tmp_path_factory):
    """A new environment with the wheel. --no-deps, because the lending Python has not all that its torch asks for."""
    folder = new_environment(tmp_path_factory.mktemp("venv") / "env", True)
    result = pip(folder, "--no-deps", wheel)
    assert result.code == DONE, str(result)
    return folder


def elf_files(tree):
    return [path for path in sorted(tree.rglob("*")) if path.is_file() and not path.is_symlink() and path.read_bytes()[:4] == b"\x7fELF"]


def dynamic(path, tag):
    text = succeed(["readelf", "-W", "-d", path]).out
    return re.findall(rf"\({tag}\).*\[(.*)\]", text)


def test_installed_programs_name_no_folder_of_the_build(prefix):
    found = elf_files(prefix)
    assert {path.name for path in found} >= {*COMMANDS}
    for path in found:
        for entry in [entry for value in dynamic(path, "RUNPATH") + dynamic(path, "RPATH") for entry in value.split(":")]:
            assert entry.startswith("$ORIGIN"), f"{path}: {entry}"
    for name in COMMANDS:
        cuda = ":$ORIGIN/../torch/../nvidia/cu13/lib" if FLAVOR == "cuda" else ""  # where CUDA's libraries stand beside LibTorch
        assert dynamic(prefix / LIBRARY_FOLDER / FLAVOR / name, "RUNPATH") == ["$ORIGIN/..:$ORIGIN/../torch/lib" + cuda]
        assert not [library for library in dynamic(prefix / "bin" / name, "NEEDED") if not re.match(r"lib(c|m|gcc_s|stdc\+\+)\.so", library)]


def test_libraries_come_with_their_licenses(prefix):
    names = {path.name for path in (prefix / LIBRARY_FOLDER).glob("*.so*")}
    for library, license in (("libonig", "Oniguruma"), ("libutf8proc", "utf8proc"), ("libcrypto", "OpenSSL")):
        assert [name for name in names if name.startswith(library + ".so")], names
        assert (prefix / "share/doc/oscar-toolchain/licenses" / license).stat().st_size > 500
    for license in ("CLI11", "nlohmann_json"):  # inside the executables
        assert (prefix / "share/doc/oscar-toolchain/licenses" / license).stat().st_size > 500


def test_direct_start_finds_linked_torch(prefix):
    """$ORIGIN/../torch/lib: also without the launcher."""
    os.symlink(TORCH, prefix / LIBRARY_FOLDER / "torch")
    try:
        for name in ("bin/oscar-export", LIBRARY_FOLDER / FLAVOR / "oscar-export"):
            result = succeed([prefix / name, "--version"], env=environment())
            assert result.out.startswith(f"oscar {VERSION} ("), str(result)
        maps = succeed([prefix / "bin/oscar-export", "--version"], env=environment(LD_DEBUG="libs"))
        loaded = re.findall(r"calling init: (\S+lib(?:onig|utf8proc|crypto|torch_cpu)\.\S+)", maps.err)
        assert loaded and all(path.startswith((str(prefix), str(TORCH.resolve()))) for path in loaded), loaded
    finally:
        (prefix / LIBRARY_FOLDER / "torch").unlink()


# --- the launcher, with shell scripts in place of the commands and empty files in place of LibTorch


@pytest.fixture
def tree(prefix, tmp_path):
    """A package of both builds whose commands print their build and their library path."""
    folder = tmp_path / "tree"
    (folder / "bin").mkdir(parents=True)
    shutil.copy(prefix / "bin/oscar-fit", folder / "bin/oscar-fit")
    for flavor in ("cpu", "cuda"):
        script = folder / LIBRARY_FOLDER / flavor / "oscar-fit"
        script.parent.mkdir(parents=True)
        script.write_text(f'#!/bin/sh\necho {flavor} "$LD_LIBRARY_PATH" "$@"\nexit 42\n')
        script.chmod(0o755)
    return folder


def make_torch(folder, version=f"{SERIES}.0+cu130", cuda=True):
    (folder / "lib").mkdir(parents=True)
    (folder / "lib/libtorch_cpu.so").touch()
    if cuda:
        (folder / "lib/libtorch_cuda.so").touch()
    if version:
        (folder / "version.py").write_text(f"debug = False\n__version__ = '{version}'\n")
    return folder


def refusal(tree, **changes):
    result = run([tree / "bin/oscar-fit"], env=environment(**changes))
    assert result.code == ENVIRONMENT and len(result.errors()) == 1 and len(result.err.splitlines()) == 1, str(result)
    return result.errors()[0]


def answer(tree, *arguments, **changes):
    result = run([tree / "bin/oscar-fit", *arguments], env=environment(**changes))
    assert result.code == 42, str(result)
    return result.out.split()


def test_launcher_says_what_to_do_without_torch(tree):
    message = refusal(tree)
    assert f"LibTorch {SERIES} was not found" in message and "OSCAR_TORCH_DIR" in message and "pip install" in message
    assert str(tree / LIBRARY_FOLDER / "torch") in message


def test_launcher_refuses_a_folder_that_is_no_torch(tree, tmp_path):
    make_torch(tree / LIBRARY_FOLDER / "torch")  # what was asked for is not replaced by what is there
    assert "which holds no lib/libtorch_cpu.so" in refusal(tree, OSCAR_TORCH_DIR=tmp_path)
    assert "\\x1b" in refusal(tree, OSCAR_TORCH_DIR=f"{tmp_path}\x1b[31m")


@pytest.mark.parametrize("version", ["2.10.0", "2.1.0", "2.111.0", "3.0.0\x1b[31m"])
def test_launcher_refuses_another_release(tree, tmp_path, version):
    message = refusal(tree, OSCAR_TORCH_DIR=make_torch(tmp_path / "torch", version))
    assert f"these commands need {SERIES}" in message and version[:5] in message


def test_launcher_reads_the_version_of_the_archive(tree, tmp_path):
    torch = make_torch(tmp_path / "torch", None)
    (torch / "build-version").write_text("2.10.0+cpu\n")
    assert "'2.10.0+cpu'" in refusal(tree, OSCAR_TORCH_DIR=torch)


def test_launcher_order_of_places(tree, tmp_path):
    given = make_torch(tmp_path / "given")
    active = make_torch(tmp_path / "venv/lib/python3.11/site-packages/torch")
    assert answer(tree, "--x", VIRTUAL_ENV=tmp_path / "venv", OSCAR_BUILD="cpu") == ["cpu", f"{active}/lib", "--x"]
    linked = make_torch(tmp_path / "linked")
    cuda_libraries = tmp_path / "nvidia/cu13/lib"  # beside the target of the link
    cuda_libraries.mkdir(parents=True)
    (tree / LIBRARY_FOLDER / "torch").symlink_to(linked)
    assert answer(tree, VIRTUAL_ENV=tmp_path / "venv", OSCAR_BUILD="cpu")[1] == f"{linked}/lib:{cuda_libraries}"
    assert answer(tree, OSCAR_TORCH_DIR=given, OSCAR_BUILD="cpu", LD_LIBRARY_PATH="/else")[1] == f"{given}/lib:{cuda_libraries}:/else"


def test_launcher_chooses_the_build(tree, tmp_path):
    both, cpu_only = make_torch(tmp_path / "both"), make_torch(tmp_path / "cpu", cuda=False)
    gpu = any(os.path.exists(device) for device in ("/dev/nvidiactl", "/dev/dxg"))
    assert answer(tree, OSCAR_TORCH_DIR=both)[0] == ("cuda" if gpu else "cpu")
    assert answer(tree, OSCAR_TORCH_DIR=both, OSCAR_BUILD="cuda")[0] == "cuda"
    assert answer(tree, OSCAR_TORCH_DIR=cpu_only)[0] == "cpu"
    result = run([tree / "bin/oscar-fit"], env=environment(OSCAR_TORCH_DIR=both, OSCAR_BUILD="gpu"))
    assert result.code == USAGE and "OSCAR_BUILD is 'gpu'; expected cpu or cuda" in result.err
    shutil.rmtree(tree / LIBRARY_FOLDER / "cpu")
    assert answer(tree, OSCAR_TORCH_DIR=both)[0] == "cuda"
    assert "only the CUDA build of oscar-fit is installed" in refusal(tree, OSCAR_TORCH_DIR=cpu_only)
    shutil.rmtree(tree / LIBRARY_FOLDER / "cuda")
    assert "holds no build of oscar-fit" in refusal(tree, OSCAR_TORCH_DIR=both)


# --- the wheel


def test_wheel_names_version_platform_and_torch(wheel, prefix):
    name = re.fullmatch(rf"oscar_toolchain-{re.escape(VERSION)}-py3-none-manylinux_2_(\d+)_x86_64\.whl", wheel.name)
    assert name, wheel.name
    versions = [int(v) for path in elf_files(prefix) for v in re.findall(r"\bGLIBC_2\.(\d+)", succeed(["objdump", "-T", path]).out)]
    assert max(versions) <= int(name[1]) <= 36, (max(versions), wheel.name)
    named = re.search(r"glibc 2\.(\d+) or newer, Python.*oscar_toolchain-\S+manylinux_2_(\d+)_", (SOURCE_DIR / "docs/install.md").read_text(), re.DOTALL)
    assert int(name[1]) <= int(named[1]) == int(named[2]), (wheel.name, named[0])
    with zipfile.ZipFile(wheel) as archive:
        assert archive.testzip() is None
        info = email.message_from_bytes(archive.read(f"oscar_toolchain-{VERSION}.dist-info/METADATA"))
    major, minor = SERIES.split(".")
    assert info["Version"] == VERSION and info["Requires-Dist"] == f"torch>={SERIES},<{major}.{int(minor) + 1}"
    requirement = packaging.requirements.Requirement(info["Requires-Dist"])
    assert importlib.metadata.version("torch") in requirement.specifier
    assert not any(other in requirement.specifier for other in ("2.10.2", "2.12.0", "3.0"))


def test_wheel_has_the_same_bytes_twice(wheel, prefix, tmp_path):
    assert make_wheel(prefix, tmp_path).code == DONE
    assert (tmp_path / wheel.name).read_bytes() == wheel.read_bytes()


def test_wheel_without_a_library_is_refused(prefix, tmp_path):
    shutil.copytree(prefix, tmp_path / "tree", symlinks=True)
    for path in (tmp_path / "tree" / LIBRARY_FOLDER).glob("libonig*"):
        path.unlink()
    result = make_wheel(tmp_path / "tree", tmp_path / "out")
    assert result.code == 1 and "needs libonig.so.5" in result.err, str(result)


def test_four_commands_in_a_fresh_environment(venv, tmp_path):
    """The commands of scripts/quickstart, on less text."""
    variables = environment(PATH=f"{venv}/bin:/usr/bin:/bin", OMP_WAIT_POLICY="passive")
    model = SAMPLE / "tiny-qwen3-outliers"

    def command(*arguments):
        return succeed([venv / "bin" / arguments[0], *arguments[1:]], env=variables, cwd=tmp_path)

    command("oscar-collect", "--model", model, "--prompts", SAMPLE / "prompts.jsonl", "-o", "s.safetensors", "--tokens", 4000, "--seq-len", 1024)
    command("oscar-fit", "s.safetensors", "-o", "bundle")
    command("oscar-verify", "--model", model, "--bundle", "bundle", "--text", SAMPLE / "heldout.txt", "--context", 1024,
            "--max-sequences", 1, "--bootstrap", 100, "--layer-sequences", 1, "--report", "report.json", "--html", "report.html")
    command("oscar-export", "bundle", "--format", "transformers", "--report", "report.json", "-o", "serving")
    assert (tmp_path / "serving/SHA256SUMS").is_file()


def test_environment_has_man_pages(venv):
    for name in COMMANDS:
        assert (venv / f"share/man/man1/{name}.1").is_file()


def test_exit_codes_and_signals_are_those_of_the_program(venv, tmp_path):
    assert run([venv / "bin/oscar-fit", "--no-such-option"], env=environment()).code == USAGE
    reader, writer = os.pipe()
    os.close(reader)  # nobody reads: SIGPIPE ends the program, as Python, which ignores it, would not let it
    done = subprocess.run([venv / "bin/oscar-fit", "--help"], stdout=writer, stderr=subprocess.PIPE, env=environment(), timeout=120)
    os.close(writer)
    assert done.returncode == -signal.SIGPIPE, done
    arguments = ["--model", SAMPLE / "tiny-qwen3", "--prompts", SAMPLE / "prompts.jsonl", "-o", tmp_path / "s.safetensors"]
    process = subprocess.Popen([venv / "bin/oscar-collect", *arguments], stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, env=environment(OMP_WAIT_POLICY="passive"))
    for _ in range(2400):
        if (tmp_path / "s.safetensors.work").exists() or process.poll() is not None:
            break
        time.sleep(0.05)
    process.send_signal(signal.SIGINT)
    _, messages = process.communicate(timeout=240)
    assert process.returncode == INTERRUPTED, messages


def test_wheel_without_torch_says_what_to_do(wheel, tmp_path):
    folder = new_environment(tmp_path / "env", False)
    refused = pip(folder, wheel)
    assert refused.code != DONE and "torch" in refused.err
    assert pip(folder, "--no-deps", wheel).code == DONE
    result = run([folder / "bin/oscar-fit"], env=environment())
    assert result.code == ENVIRONMENT and f"LibTorch {SERIES} was not found" in result.err, str(result)


# --- .deb and .tar.gz


def pack(folder, generators):
    """The files that cpack makes, as scripts/package does."""
    cpack = pathlib.Path(cached("CMAKE_COMMAND")).with_name("cpack")
    succeed([cpack, "--config", BUILD_DIR / "CPackConfig.cmake", "-G", generators, "-B", folder, "-D", "CPACK_DEBIAN_COMPRESSION_TYPE=none"],
            env={**os.environ, "SOURCE_DATE_EPOCH": "1700000000"})
    return {path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in folder.glob("oscar-toolchain*") if path.is_file()}


def test_archive_and_debian_package(tmp_path):
    generators = "TGZ;DEB" if shutil.which("dpkg-deb") else "TGZ"
    packed = pack(tmp_path, generators)
    (tmp_path / "again").mkdir()
    time.sleep(1.1)  # another second of the clock
    assert packed and pack(tmp_path / "again", generators) == packed
    archive = next(tmp_path.glob("*.tar.gz"))
    assert archive.name.startswith(f"oscar-toolchain-{VERSION}-linux-"), archive
    with tarfile.open(archive) as tar:
        tar.extractall(tmp_path / "unpacked", **({"filter": "data"} if hasattr(tarfile, "data_filter") else {}))
    folder = next((tmp_path / "unpacked").iterdir())
    result = succeed([folder / "bin/oscar-export", "--version"], env=environment(OSCAR_TORCH_DIR=TORCH))
    assert result.out.startswith(f"oscar {VERSION} ("), str(result)
    if "DEB" in generators:
        package = next(tmp_path.glob("*.deb"))
        assert package.name.startswith(f"oscar-toolchain_{VERSION}_"), package
        depends = succeed(["dpkg-deb", "-f", package, "Depends"]).out
        assert re.search(r"libc6 \(>= 2\.\d+\)", depends) and "zlib1g" in depends, depends
        listed = succeed(["dpkg-deb", "-c", package]).out
        for path in ("./usr/bin/oscar-fit", "./usr/share/man/man1/oscar-fit.1", f"./usr/{LIBRARY_FOLDER}/{FLAVOR}/oscar-fit"):
            assert re.search(rf" {re.escape(path)}$", listed, re.MULTILINE), listed


def test_tags_of_this_commit_name_the_version():
    done = run(["git", "-C", SOURCE_DIR, "tag", "--points-at", "HEAD", "v*"])
    if done.code != 0:
        pytest.skip("no git repository")
    assert set(done.out.split()) <= {f"v{VERSION}"}
