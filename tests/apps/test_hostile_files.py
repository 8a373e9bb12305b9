"""Files of the user: inputs are never outputs, --overwrite touches nothing that the commands did not write, links, pipes
and devices are neither followed nor replaced, modes are kept, and nothing of a killed run stays."""
import hashlib
import json
import os
import shutil
import subprocess

import pytest

from harness import BAD_INPUT, DONE, USAGE, SAMPLE, command, refuse, run, succeed, tree


@pytest.fixture()
def verify(model, bundle, text):
    """Arguments of a run that would take long: it has to be refused before."""
    return ["verify", "--no-gate", "--model", model, "--bundle", bundle, "--text", text, "--context", 512, "--methods", "oscar", "--overwrite"]


@pytest.fixture()
def copy(bundle, tmp_path):
    """A bundle of its own for tests that write beside or into it."""
    shutil.copytree(bundle, tmp_path / "bundle")
    return tmp_path / "bundle"


def put(path, content="precious"):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(content)
    return path


@pytest.mark.parametrize("foreign", ["notes.txt", "thesis/chapter1.txt", ".hidden", "rotations.safetensors.bak"])
def test_overwrite_leaves_other_files_of_the_folder_alone(foreign, copy, statistics, tmp_path):
    put(copy / foreign)
    before = tree(tmp_path)
    refuse(USAGE, "fit", statistics, "--method", "oscar", "-o", copy, "--overwrite", names=foreign.split("/")[0])
    assert tree(tmp_path) == before
    (copy / foreign).unlink()
    if "/" in foreign:
        refuse(USAGE, "fit", statistics, "--method", "oscar", "-o", copy, "--overwrite", names="thesis")  # an empty folder, too
        (copy / foreign).parent.rmdir()
    succeed("fit", statistics, "--method", "oscar", "-o", copy, "--overwrite")


def test_overwrite_of_the_folder_that_the_command_runs_in(copy, statistics):
    """`-o .` where the statistics lie."""
    shutil.copy(statistics, copy / "s.safetensors")
    before = tree(copy)
    refuse(USAGE, "fit", "s.safetensors", "-o", ".", "--overwrite", cwd=copy)
    assert tree(copy) == before


def test_a_manifest_cannot_name_files_of_others(copy, statistics, tmp_path):
    """Names that lead out of the folder make nothing ours."""
    outside, inside = put(tmp_path / "outside.txt"), put(copy / "sub" / "notes.txt")
    manifest = json.loads((copy / "oscar_bundle.json").read_text())
    entry = next(iter(manifest["files"].values()))
    for name in ("../outside.txt", str(outside), "sub", "sub/../sub/notes.txt"):
        manifest["files"][name] = entry
    (copy / "oscar_bundle.json").write_text(json.dumps(manifest))
    refuse(USAGE, "fit", statistics, "--method", "oscar", "-o", copy, "--overwrite")
    assert outside.read_text() == inside.read_text() == "precious"


def test_overwrite_of_an_export_leaves_other_files_alone(bundle, tmp_path):
    line = ["export", bundle, "--format", "sglang-branch", "-o", tmp_path / "serving"]
    succeed(*line)
    put(tmp_path / "serving" / "launch.sh")
    before = tree(tmp_path)
    refuse(USAGE, *line, "--overwrite", names="launch.sh")
    assert tree(tmp_path) == before


@pytest.mark.parametrize("option", ["--report", "-o", "--html", "--markdown", "--junit"])
@pytest.mark.parametrize("kind", ["same", "spelling", "link to folder", "hard link"])
def test_reports_are_never_what_is_read(option, kind, verify, tmp_path):
    text = put(tmp_path / "data" / "text.txt", "Valve 1 is open. " * 400)
    os.symlink(tmp_path / "data", tmp_path / "up")
    os.link(text, tmp_path / "hard.txt")
    name = {"same": text, "spelling": tmp_path / "data" / ".." / "data" / "text.txt", "link to folder": tmp_path / "up" / "text.txt",
            "hard link": tmp_path / "hard.txt"}[kind]
    before = tree(tmp_path)
    line = [text if i and verify[i - 1] == "--text" else argument for i, argument in enumerate(verify)]
    refuse(USAGE, *line, option, name, names="which this command reads")
    assert tree(tmp_path) == before


@pytest.mark.parametrize("what", ["config.json", "model.safetensors", "bundle", "baseline", "config"])
def test_no_input_of_verify_is_replaced(what, verify, model, copy, tmp_path):
    baseline = put(tmp_path / "earlier.json", "{}")
    config = put(tmp_path / "options.toml", "seed = 1\n")
    target = {"bundle": copy / "rotations.safetensors", "baseline": baseline, "config": config}.get(what, model / what)
    line = [copy if i and verify[i - 1] == "--bundle" else argument for i, argument in enumerate(verify)]
    before, content = tree(tmp_path), target.read_bytes()
    refuse(USAGE, *line, "--baseline", baseline, "--config", config, "--html", target, names="which this command reads")
    assert tree(tmp_path) == before and target.read_bytes() == content


def test_no_input_of_collect_fit_and_export_is_replaced(model, prompts, statistics, copy, tmp_path):
    prompts = shutil.copy(prompts, tmp_path / "prompts.jsonl")
    shutil.copy(statistics, tmp_path / "a.safetensors")
    other = succeed("collect", "--model", model, "--prompts", put(tmp_path / "b.txt", "Pump 7. " * 80), "-o", tmp_path / "b.safetensors")
    assert other.code == DONE
    put(copy.parent / "nested" / "s.txt")
    shutil.copy(statistics, copy / "s.safetensors")
    before = tree(tmp_path)
    for line in (["collect", "--model", model, "--prompts", prompts, "-o", prompts, "--overwrite"],
                 ["collect", "--model", model, "--prompts", prompts, "-o", model / "config.json", "--overwrite"],
                 ["collect", "merge", tmp_path / "a.safetensors", tmp_path / "b.safetensors", "-o", tmp_path / "b.safetensors", "--overwrite"],
                 ["collect", "show", tmp_path / "a.safetensors", "-o", tmp_path / "a.safetensors", "--overwrite"],
                 ["fit", copy / "s.safetensors", "-o", copy, "--overwrite"],
                 ["export", copy, "--format", "sglang-branch", "-o", copy, "--overwrite"]):
        refuse(USAGE, *line)
        assert tree(tmp_path) == before, line


@pytest.mark.parametrize("second", ["r.json", "./r.json", "x/../r.json", "up/r.json"])
def test_two_reports_are_never_one(second, verify, tmp_path):
    (tmp_path / "x").mkdir()
    os.symlink(tmp_path, tmp_path / "up")
    before = tree(tmp_path)
    refuse(USAGE, *verify, "--report", "r.json", "--junit", second, names=["--report", "--junit"], cwd=tmp_path)
    assert tree(tmp_path) == before


def test_modes_are_kept(verify, copy, statistics, tmp_path):
    copy.chmod(0o700)
    (copy / "rotations.safetensors").chmod(0o600)
    succeed("fit", statistics, "--method", "oscar", "-o", copy, "--overwrite")
    assert copy.stat().st_mode & 0o777 == 0o700
    assert (copy / "rotations.safetensors").stat().st_mode & 0o777 == 0o600
    shown = put(tmp_path / "shown.txt")
    shown.chmod(0o600)
    succeed("collect", "show", statistics, "-o", shown, "--overwrite")
    assert shown.stat().st_mode & 0o777 == 0o600 and "geometry" in shown.read_text()


def special(folder, kind):
    path = folder / kind
    if kind == "pipe":
        os.mkfifo(path)
    elif kind == "link":
        put(folder / "victim")
        os.symlink(folder / "victim", path)
    elif kind == "dangling":
        os.symlink(folder / "nothing", path)
    else:
        try:
            os.mknod(path, 0o600 | 0o020000, os.makedev(1, 3))
        except PermissionError:
            pytest.skip("this user cannot make devices")
    return path


@pytest.mark.parametrize("kind", ["pipe", "device", "link", "dangling"])
def test_only_regular_files_are_replaced(kind, verify, model, prompts, statistics, tmp_path):
    target = special(tmp_path, kind)
    before = os.lstat(target)
    for line in ([*verify, "--report", target], [*verify, "--html", target],
                 ["collect", "--model", model, "--prompts", prompts, "--seq-len", 128, "-o", target, "--overwrite"],
                 ["collect", "show", statistics, "-o", target, "--overwrite"]):
        refuse(USAGE, *line, names="regular", timeout=60)
    after = os.lstat(target)
    assert (before.st_ino, before.st_mode) == (after.st_ino, after.st_mode)
    assert not (tmp_path / "nothing").exists()
    assert kind != "link" or (tmp_path / "victim").read_text() == "precious"


@pytest.mark.parametrize("reader", ["statistics", "show", "prompts", "text", "manifest", "rotations", "report", "baseline", "config",
                                    "config.json", "tokenizer.json", "model.safetensors"])
def test_a_pipe_is_refused_by_every_reader(reader, model, bundle, text, prompts, statistics, tmp_path):
    """Nobody writes into it: a reader that opened it would wait for ever."""
    pipe = tmp_path / "pipe"
    damaged = shutil.copytree(bundle, tmp_path / "bundle")
    copied = shutil.copytree(model, tmp_path / "model")
    if reader in ("manifest", "rotations"):
        pipe = damaged / {"manifest": "oscar_bundle.json", "rotations": "rotations.safetensors"}[reader]
        pipe.unlink()
    elif "." in reader:
        pipe = copied / reader
        pipe.unlink()
    os.mkfifo(pipe)
    verify = ["verify", "--no-gate", "--model", model, "--bundle", bundle, "--text", text, "--context", 512]
    line = {
        "statistics": ["fit", pipe, "-o", tmp_path / "o"], "show": ["collect", "show", pipe],
        "prompts": ["collect", "--model", model, "--prompts", pipe, "-o", tmp_path / "o"],
        "text": ["verify", "--no-gate", "--model", model, "--text", pipe, "--context", 512],
        "report": ["export", bundle, "--format", "sglang-branch", "--report", pipe, "-o", tmp_path / "o"],
        "baseline": [*verify, "--baseline", pipe], "config": [*verify, "--config", pipe],
        "manifest": ["verify", "--bundle", damaged, "--check-only"], "rotations": ["verify", "--bundle", damaged, "--check-only"],
    }.get(reader, ["collect", "--model", copied, "--prompts", prompts, "-o", tmp_path / "o"])
    refuse((BAD_INPUT, USAGE), *line, timeout=30)
    assert not (tmp_path / "o").exists()


def test_locks_do_not_follow_links(model, prompts, tmp_path):
    work = tmp_path / "work"
    work.mkdir()
    os.symlink(tmp_path / "target", work / "lock")
    refuse(4, "collect", "--model", model, "--prompts", prompts, "-o", tmp_path / "s.safetensors", "--work-dir", work, names="lock")
    assert not (tmp_path / "target").exists()


@pytest.mark.parametrize("name", ["layer-0000.safetensors", "point.safetensors", "kv.bin", "hidden-0.bin"])
def test_files_in_a_work_directory_that_belong_to_no_run_stay(name, model, prompts, tmp_path):
    put(tmp_path / "work" / name)
    before = tree(tmp_path / "work")
    refuse(USAGE, "collect", "--model", model, "--prompts", prompts, "-o", tmp_path / "s.safetensors", "--work-dir", tmp_path / "work",
           names=name)
    assert {k: v for k, v in tree(tmp_path / "work").items() if k != "lock"} == before


def temporary(stem, digits):
    """What a killed run leaves: half of the digits follow from the rest of the name."""
    proof = hashlib.sha256(f"oscar temporary\n{stem}\n{digits}".encode()).hexdigest()[:16]
    return f"{stem}.tmp.{digits}{proof}"


def test_temporaries_of_killed_fits_go_and_nothing_else_does(statistics, tmp_path):
    dead = tmp_path / temporary("bundle", "0123456789abcdef")
    put(dead / "rotations.safetensors", "half")
    mine = [put(tmp_path / "bundle.tmp.1234" / "notes.txt"), put(tmp_path / "bundle.tmp.0123456789abcdef0123456789abcdef"),
            put(tmp_path / temporary("other", "0123456789abcdef"))]
    live = tmp_path / temporary("bundle", "00000000000000ff")
    put(live / "rotations.safetensors", "half")
    holder = subprocess.Popen(["flock", live, "sleep", "600"])
    try:
        for _ in range(200):
            if subprocess.run(["flock", "-n", live, "true"]).returncode != 0:
                break
        succeed("fit", statistics, "--method", "oscar", "-o", tmp_path / "bundle")
    finally:
        holder.kill()
        holder.wait()
    assert not dead.exists() and live.exists()
    assert all(path.read_text() == "precious" for path in mine)


def test_equal_process_ids_do_not_collide(statistics, bundle, tmp_path):
    """Two containers on one volume: both processes are number 1 of their namespace."""
    namespace = ["unshare", "--pid", "--fork"]
    if subprocess.run([*namespace, "true"], capture_output=True).returncode != 0:
        pytest.skip("this user cannot make process namespaces")
    for _ in range(3):
        runs = [subprocess.Popen([*namespace, *command("fit", statistics, "--method", "oscar", "-o", tmp_path / "out", "--overwrite")],
                                 stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True) for _ in range(2)]
        for process in runs:
            assert process.wait(timeout=120) == DONE, process.stderr.read()
    assert tree(tmp_path) == {"out": "folder"} | {f"out/{name}": digest for name, digest in tree(bundle).items()}


def test_absorbed_copies_nothing_from_outside_the_checkpoint(statistics, bundle, model, tmp_path):
    secret = put(tmp_path / "secret" / "id_rsa")
    checkpoint = shutil.copytree(model, tmp_path / "model")  # follows the links of the fixture
    line = ["export", bundle, "--format", "absorbed", "--model", checkpoint]
    os.symlink(secret, checkpoint / "notes.txt")
    refuse(BAD_INPUT, *line, "-o", tmp_path / "out", names=["notes.txt", "leads out"])
    assert not (tmp_path / "out").exists()
    (checkpoint / "notes.txt").unlink()
    os.rename(checkpoint / "model.safetensors", tmp_path / "secret" / "weights")
    os.symlink(tmp_path / "secret" / "weights", checkpoint / "model.safetensors")
    refuse(BAD_INPUT, *line, "-o", tmp_path / "out", names=["model.safetensors", "leads out"])
    # The layout of the Hugging Face cache: everything is a link into the blobs of its repository.
    repository = tmp_path / "hub" / "models--org--tiny"
    snapshot = repository / "snapshots" / ("0" * 40)
    snapshot.mkdir(parents=True)
    (repository / "blobs").mkdir()
    for i, path in enumerate(sorted(checkpoint.iterdir())):
        shutil.copy(path, repository / "blobs" / str(i))
        os.symlink(f"../../blobs/{i}", snapshot / path.name)
    succeed("export", bundle, "--format", "absorbed", "--model", snapshot, "-o", tmp_path / "out")
    assert not any(path.is_symlink() for path in (tmp_path / "out").rglob("*"))
    os.symlink(secret, snapshot / "notes.txt")
    refuse(BAD_INPUT, "export", bundle, "--format", "absorbed", "--model", snapshot, "-o", tmp_path / "more", names="notes.txt")


def test_parents_of_outputs_are_made(verify, model, prompts, statistics, bundle, tmp_path):
    succeed("collect", "--model", model, "--prompts", prompts, "--seq-len", 128, "-o", tmp_path / "a" / "b" / "s.safetensors")
    succeed("fit", statistics, "--method", "oscar", "-o", tmp_path / "c" / "d" / "bundle")
    succeed("export", bundle, "--format", "sglang-branch", "-o", tmp_path / "e" / "f" / "serving")
    succeed(*verify, "--max-sequences", 1, "--bootstrap", 0, "--report", tmp_path / "g" / "r.json", "--html", tmp_path / "h" / "i" / "r.html")
    assert (tmp_path / "g" / "r.json").exists() and (tmp_path / "h" / "i" / "r.html").exists()


def test_a_dash_is_standard_output(verify, statistics, model, prompts, tmp_path):
    short = ["--max-sequences", 1, "--bootstrap", 0]
    report = succeed(*verify, *short, "--report", "-", cwd=tmp_path)
    assert json.loads(report.out)["methods"]
    assert succeed(*verify, *short, "--markdown", "-", cwd=tmp_path).out.startswith("#")
    assert succeed("collect", "show", statistics, "-o", "-", cwd=tmp_path).out == succeed("collect", "show", statistics).out
    refuse(USAGE, *verify, "--report", "-", "--json", names=["--report -", "--json"], cwd=tmp_path)
    refuse(USAGE, *verify, "--report", "-", "--html", "-", names=["--report -", "--html -"], cwd=tmp_path)
    refuse(USAGE, "fit", statistics, "--method", "oscar", "-o", "-", names="standard output", cwd=tmp_path)
    refuse(USAGE, "collect", "--model", model, "--prompts", prompts, "-o", "-", names="standard output", cwd=tmp_path)
    assert tree(tmp_path) == {}
