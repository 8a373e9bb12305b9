"""The Hugging Face cache as we resolve it against huggingface_hub without a network."""
import os

import pytest

hub = pytest.importorskip("huggingface_hub")

ONE, TWO = "1" * 40, "2" * 40


@pytest.fixture
def cache(tmp_path):
    repo = tmp_path / "hub" / "models--org--some.model_X"
    for commit in (ONE, TWO):
        (repo / "snapshots" / commit).mkdir(parents=True)
        blob = repo / "blobs" / f"blob-{commit}"
        blob.parent.mkdir(exist_ok=True)
        blob.write_text("{}")
        (repo / "snapshots" / commit / "config.json").symlink_to(f"../../blobs/blob-{commit}")
    for ref, commit in (("main", ONE), ("v1.0", TWO), ("refs/pr/3", TWO)):
        (repo / "refs" / ref).parent.mkdir(parents=True, exist_ok=True)
        (repo / "refs" / ref).write_text(commit)
    return tmp_path / "hub"


@pytest.mark.parametrize("revision", [None, "main", "v1.0", "refs/pr/3", ONE, TWO])
def test_same_snapshot(tool, cache, revision):
    theirs = hub.snapshot_download("org/some.model_X", revision=revision, cache_dir=cache, local_files_only=True)
    environment = {**os.environ, "HF_HUB_CACHE": str(cache)}
    arguments = ["org/some.model_X"] + ([revision] if revision else [])
    ours = tool("checkpoint_tool", "locate", *arguments, env=environment).splitlines()
    assert ours == [theirs, "org/some.model_X", os.path.basename(theirs)]


@pytest.mark.parametrize("variable, folder", [("HF_HUB_CACHE", "hf"), ("HUGGINGFACE_HUB_CACHE", "hf"), ("HF_HOME", "hf/hub"), ("XDG_CACHE_HOME", "hf/huggingface/hub")])
def test_same_variables(tool, cache, tmp_path, variable, folder):
    (tmp_path / folder).parent.mkdir(parents=True, exist_ok=True)
    cache.rename(tmp_path / folder)
    environment = {k: v for k, v in os.environ.items() if not k.startswith(("HF_", "HUGGINGFACE", "XDG_"))}
    environment[variable] = str(tmp_path / "hf")
    ours = tool("checkpoint_tool", "locate", "org/some.model_X", env=environment).splitlines()
    assert ours[0] == str(tmp_path / folder / "models--org--some.model_X" / "snapshots" / ONE)
    import subprocess
    import sys
    code = "from huggingface_hub import constants; print(constants.HF_HUB_CACHE)"
    theirs = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True)
    assert theirs.stdout.strip() == str(tmp_path / folder)


@pytest.mark.parametrize("name", ["org/na--me", "a/b/c", "-a/b", "a/b.", "a..b/c", "a/b c", "x" * 97])
def test_same_names_are_refused(tool, cache, name):
    with pytest.raises(hub.utils.HFValidationError):
        hub.utils.validate_repo_id(name)
    error = tool("checkpoint_tool", "locate", name, code=3, env={**os.environ, "HF_HUB_CACHE": str(cache)})
    assert "neither a directory nor a model name" in error


def test_miss_prints_the_command(tool, cache):
    error = tool("checkpoint_tool", "locate", "org/absent", "v2", code=3, env={**os.environ, "HF_HUB_CACHE": str(cache)})
    assert error.strip().endswith("fetch it with: hf download org/absent --revision v2")
