"""Outputs: an existing one is kept, an unwritable place and a full disk are exit code 4, and nothing half-written stays."""
import os
import subprocess

import pytest

from harness import BAD_INPUT, DONE, ENVIRONMENT, SAMPLE, USAGE, command, refuse, run, succeed, tree


@pytest.fixture()
def commands(model, prompts, statistics, bundle, text):
    """name -> function(output) -> arguments, for every command that writes."""
    verify = ["verify", "--model", model, "--bundle", bundle, "--text", text, "--context", 512, "--methods", "oscar"]
    return {
        "collect": lambda o: ["collect", "--model", model, "--prompts", prompts, "--seq-len", 128, "-o", o],
        "fit": lambda o: ["fit", statistics, "--method", "oscar", "-o", o],
        "report": lambda o: [*verify, "--report", o],
        "html": lambda o: [*verify, "--html", o],
        "export": lambda o: ["export", bundle, "--format", "sglang-branch", "-o", o],
    }


WRITERS = ["collect", "fit", "report", "html", "export"]


@pytest.mark.parametrize("writer", WRITERS)
@pytest.mark.parametrize("kind", ["file", "folder"])
def test_an_output_that_exists_is_kept(writer, kind, commands, tmp_path):
    output = tmp_path / "output"
    if kind == "file":
        output.write_text("precious")
    else:
        output.mkdir()
        (output / "precious.txt").write_text("precious")
    before = tree(tmp_path)
    refuse(USAGE, *commands[writer](output), names="output")
    assert tree(tmp_path) == before


@pytest.mark.parametrize("writer", WRITERS)
def test_overwrite_replaces_its_own_output_with_the_same_bytes(writer, commands, tmp_path):
    output = tmp_path / "output"
    # Reports record their command line, so both runs have the same one.
    succeed(*commands[writer](output), "--overwrite")
    before = tree(tmp_path)
    assert before, "nothing was written"
    succeed(*commands[writer](output), "--overwrite")
    assert tree(tmp_path) == before, "a second run with the same inputs differs"


@pytest.mark.parametrize("writer", ["fit", "export"])
def test_overwrite_does_not_delete_a_folder_of_something_else(writer, commands, tmp_path):
    """--overwrite replaces an earlier output; a folder of other files is not one."""
    output = tmp_path / "output"
    (output / "thesis").mkdir(parents=True)
    (output / "thesis" / "chapter1.txt").write_text("precious")
    run(*commands[writer](output), "--overwrite")
    assert (output / "thesis" / "chapter1.txt").read_text() == "precious"


@pytest.mark.parametrize("writer", WRITERS)
def test_a_path_below_a_file(writer, commands, tmp_path):
    (tmp_path / "file").write_text("precious")
    before = tree(tmp_path)
    refuse((ENVIRONMENT, USAGE), *commands[writer](tmp_path / "file" / "output"), names="file")
    assert tree(tmp_path) == before


@pytest.mark.parametrize("writer", WRITERS)
def test_a_place_the_kernel_refuses(writer, commands):
    """/proc takes no new files, not even from root."""
    refuse((ENVIRONMENT, USAGE), *commands[writer]("/proc/oscar-output"), names="/proc")


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write everywhere")
@pytest.mark.parametrize("writer", WRITERS)
def test_a_folder_without_permission(writer, commands, tmp_path):
    folder = tmp_path / "locked"
    folder.mkdir()
    folder.chmod(0o555)
    refuse(ENVIRONMENT, *commands[writer](folder / "output"), names="locked")
    assert tree(folder) == {}


@pytest.mark.parametrize("writer", WRITERS)
@pytest.mark.parametrize("size", [0, 1000])
def test_files_cannot_grow(writer, size, commands, tmp_path):
    """A limit on the size of files makes every write beyond it fail, as a full disk does."""
    refuse(ENVIRONMENT, *commands[writer](tmp_path / "output"), limit_file_size=size)
    assert not (tmp_path / "output").exists()
    left = [name for name in tree(tmp_path) if "work" not in name]
    assert left == [], f"left behind: {left}"


@pytest.mark.parametrize("writer", WRITERS)
def test_full_disk(writer, commands, tmp_path):
    """A file system of 64 KiB, where mounting one is allowed."""
    disk = tmp_path / "disk"
    disk.mkdir()
    if subprocess.run(["mount", "-t", "tmpfs", "-o", "size=64k", "none", str(disk)], capture_output=True).returncode != 0:
        pytest.skip("this user cannot mount a file system")
    try:
        (disk / "filler").write_bytes(b"x" * 61440)
        refuse(ENVIRONMENT, *commands[writer](disk / "output"))
        assert not (disk / "output").exists()
        assert (disk / "filler").stat().st_size == 61440
    finally:
        subprocess.run(["umount", str(disk)], check=True)


@pytest.mark.parametrize("line", [["collect", "show", "{statistics}", "--json"], ["verify", "--bundle", "{bundle}", "--check-only"],
                                  ["collect", "--version"]])
def test_results_to_a_full_device(line, statistics, bundle):
    """stdout on /dev/full: the result was not delivered, so the exit code may not be 0."""
    arguments = [a.format(statistics=statistics, bundle=bundle) for a in line]
    with open("/dev/full", "w") as full:
        result = run(*arguments, stdout=full)
    assert result.code == ENVIRONMENT, str(result)
    assert len(result.errors()) == 1, str(result)


@pytest.mark.parametrize("writer", WRITERS)
def test_dry_run_writes_nothing(writer, commands, tmp_path):
    result = run(*commands[writer](tmp_path / "output"), "--dry-run")
    assert result.code == DONE, str(result)
    assert tree(tmp_path) == {}


@pytest.mark.parametrize("writer", WRITERS)
def test_stdout_is_json_alone_with_json(writer, commands, tmp_path):
    import json

    result = succeed(*commands[writer](tmp_path / "output"), "--json")
    assert isinstance(json.loads(result.out), dict), str(result)


@pytest.mark.parametrize("name", ["collect", "fit", "verify", "export"])
def test_help_and_version(name):
    text = succeed(name, "--help").out
    assert "xample" in text.splitlines()[0] and "Exit codes" in text
    assert "oscar" in succeed(name, "--version").out


@pytest.mark.parametrize("name", ["collect", "fit", "verify", "export"])
@pytest.mark.parametrize("arguments", [[], ["--nonsense"], ["--output"], ["--seed", "-3"], ["--seed", "x"], ["--device", "tpu"],
                                       ["--config", "/no/such.toml"]])
def test_usage(name, arguments):
    refuse((USAGE, BAD_INPUT) if arguments[:1] == ["--config"] else USAGE, name, *arguments)


@pytest.mark.parametrize("arguments,meant", [
    (("collect", "--modle", "m"), "'--modle' is not an option; did you mean '--model'?"), (("verify", "plan", "--memroy=8G"), "'--memory'?"),
    (("fit", "s", "-o", "b", "--alocate", "analytic"), "'--alocate' is not an option; did you mean '--allocate'?"),
    (("fit", "s", "-o", "b", "--preset", "balnced"), "not in {near-lossless,balanced,smallest}; did you mean 'balanced'?"),
    (("fit", "s", "-o", "b", "--method", "watrfill"), "unknown method 'watrfill'; did you mean 'waterfill'?"),
    (("export", SAMPLE / "golden" / "bundle", "-o", "x", "--format", "vlm"), "did you mean 'vllm'?"), (("collect", "--qqqq"), "'--qqqq' is not an option (")])
def test_the_name_that_was_meant(arguments, meant):
    refuse(USAGE, *arguments, names=meant)


def test_a_file_where_a_folder_is_expected(commands, tmp_path):
    (tmp_path / "file").write_text("x")
    for more in ([], ["--overwrite"]):
        refuse(USAGE, *commands["fit"](tmp_path / "file"), *more, names="is a file, expected a directory or a new name; choose another output")


@pytest.mark.parametrize("name", ["collect", "fit"])
def test_a_context_beyond_the_model(name, tmp_path):
    refuse(USAGE, name, "--model", SAMPLE / "tiny-qwen3", "--prompts", SAMPLE / "prompts.jsonl", "-o", tmp_path / "out", "--context", 32768,
           names="--context 32768 is beyond the model's 8192 positions")


def test_commands_do_not_read_stdin_or_write_to_the_working_directory(commands, tmp_path):
    work = tmp_path / "cwd"
    work.mkdir()
    line = command(*commands["fit"](tmp_path / "bundle"))
    done = subprocess.run(line, cwd=work, stdin=subprocess.DEVNULL, capture_output=True)
    assert done.returncode == DONE
    assert tree(work) == {}
