"""Which bundle an engine takes: named ones, those of the Hugging Face cache, and the one of the checkpoint where none is named."""
import json
import logging
import os
import pathlib
import shutil
import threading

import pytest

pytest.importorskip("torch")
constants = pytest.importorskip("huggingface_hub.constants")

from conftest import GOLDEN, SAMPLES, SOURCE_DIR  # noqa: E402
from oscar_kv import commands  # noqa: E402
from oscar_kv.engines import bundles  # noqa: E402
from oscar_kv.files.errors import InputError  # noqa: E402
from oscar_kv.format.bundle import check_fingerprint, load_bundle  # noqa: E402
from oscar_kv.files.fingerprint import checkpoint_fingerprint  # noqa: E402

MODEL = SAMPLES / "tiny-qwen3"


@pytest.fixture
def places(tmp_path, monkeypatch):
    """The store and the Hugging Face cache, both empty."""
    store, cache = tmp_path / "store", tmp_path / "hub"
    store.mkdir()
    cache.mkdir()
    monkeypatch.setenv(bundles.STORE_VARIABLE, str(store))
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(cache))
    return store, cache


def put(folder, fingerprint=None, numbers="1" * 64):
    folder.mkdir(parents=True)
    fingerprint = fingerprint or checkpoint_fingerprint(MODEL)
    (folder / "oscar_bundle.json").write_text(json.dumps({"model": {"fingerprint": fingerprint}, "numbers_sha256": numbers}))
    return folder


def repository(cache, name, commit="0" * 40, branch="main", **facts):
    folder = cache / ("models--" + name.replace("/", "--"))
    (folder / "refs").mkdir(parents=True, exist_ok=True)
    (folder / "refs" / branch).write_text(commit)
    return put(folder / "snapshots" / commit, **facts)


def add(folder, *fingerprints, numbers="1" * 64):
    """What oscar-verify --add-checkpoint writes; tests/apps/test_verify_bundles.py runs it."""
    entries = [{"fingerprint": f, "name": "org/twin", "kl": .01} for f in fingerprints]
    (folder / "checkpoints.json").write_text(json.dumps({"format": "oscar-checkpoints", "format_version": 1, "numbers_sha256": numbers,
                                                         "checkpoints": entries}))
    return folder


def test_a_twin_that_was_added(places, tmp_path):
    wanted, other = checkpoint_fingerprint(MODEL), "v2:sha256:" + "0" * 64
    found = add(put(places[0] / "twin", fingerprint=other), "v2:sha256:" + "2" * 64, wanted)
    assert bundles.of_checkpoint(MODEL, "--option") == found
    add(found, wanted, numbers="3" * 64)  # the file of another bundle
    with pytest.raises(InputError, match="no bundle of the model"):
        bundles.of_checkpoint(MODEL, "--option")
    whole = tmp_path / "bundle"
    shutil.copytree(SOURCE_DIR / "tests/golden/0.1.0/bundle", whole)
    numbers = json.loads((whole / "oscar_bundle.json").read_text())["numbers_sha256"]
    with pytest.raises(InputError, match="fitted on another model .*oscar-verify --add-checkpoint"):
        check_fingerprint(load_bundle(whole), wanted)
    bundle = load_bundle(add(whole, wanted, numbers=numbers))
    check_fingerprint(bundle, wanted)
    check_fingerprint(bundle.slice_heads(0, 1), bundle.fingerprint)
    check_fingerprint(bundle.slice_heads(0, 1), wanted)
    with pytest.raises(InputError, match="fitted on another model"):
        check_fingerprint(bundle, other)
    with pytest.raises(InputError, match="belongs to another bundle"):
        load_bundle(add(whole, wanted))
    (whole / "checkpoints.json").write_text('{"format": "oscar-checkpoints", "format_version": 2}')
    with pytest.raises(InputError, match="format_version 1, which this package reads"):
        load_bundle(whole)


def test_the_bundle_of_the_checkpoint(places):
    store, cache = places
    put(store / "other", fingerprint="v2:sha256:" + "0" * 64)
    (store / "broken").mkdir()
    (store / "broken" / "oscar_bundle.json").write_text("{")
    (store / "list").mkdir()
    (store / "list" / "oscar_bundle.json").write_text("[]")
    with pytest.raises(InputError, match="no bundle of the model .*tiny-qwen3.*oscar-fit --model .* -o .*store/tiny-qwen3; evaluate it"):
        bundles.of_checkpoint(MODEL, "--option")
    cached = repository(cache, "org/kv")
    assert bundles.of_checkpoint(MODEL, "--option") == cached
    own = put(store / "mine", numbers="2" * 64)
    assert bundles.of_checkpoint(MODEL, "--option") == own  # the store goes first
    put(store / "same", numbers="2" * 64)
    assert bundles.of_checkpoint(MODEL, "--option") == own
    put(store / "third", numbers="3" * 64)
    with pytest.raises(InputError, match="2 bundles of the model .*mine.*third.*choose one with --option"):
        bundles.of_checkpoint(MODEL, "--option")


def test_the_store_is_in_the_home_folder(monkeypatch, tmp_path):
    monkeypatch.delenv(bundles.STORE_VARIABLE, raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))
    assert bundles.store() == tmp_path / ".cache" / "oscar-kv" / "bundles"


def test_named_bundles(places):
    first, second = (repository(places[1], "org/kv", c * 40, branch) for c, branch in (("a", "main"), ("b", "v2")))
    assert bundles.named("hf:org/kv") == first and bundles.named("hf:org/kv@v2") == second and bundles.named("hf:org/kv@" + "b" * 40) == second
    assert bundles.named(str(GOLDEN / "bundle")) == GOLDEN / "bundle"
    for text, sentence in (("hf:org/kv@v3", "no oscar_bundle.json of 'hf:org/kv@v3'; fetch the bundle with: hf download org/kv --revision v3"),
                           ("hf:org/none", "hf download org/none$"), ("hf:../../etc", "names no repository"), ("hf:", "names no repository"),
                           ("hf:a/b/c", "names no repository"), ("hf:\x1b[31m/x", "names no repository")):
        with pytest.raises(InputError, match=sentence) as told:
            bundles.named(text)
        assert "\x1b" not in str(told.value)


def test_auto_fits_once_and_only_for_its_checkpoint(places, monkeypatch):
    """With the real oscar-fit, and options that make it quick."""
    monkeypatch.setenv(commands.FOLDER_VARIABLE, str(pathlib.Path(os.environ["OSCAR_BUILD_DIR"]) / "bin"))
    fit, runs = commands.fit, []

    def quick(output, **options):
        runs.append(options)
        return fit(output, **options, method="balanced", tokens=2000)

    monkeypatch.setattr(commands, "fit", quick)
    log, found = logging.getLogger("test"), []
    threads = [threading.Thread(target=lambda: found.append(bundles.fitted(MODEL, 512, log))) for _ in range(2)]  # as an engine's processes
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(runs) == 1 and runs[0] == {"model": MODEL, "context": 512, "windows": "64,256"} and found[0] == found[1]
    bundle = load_bundle(found[0])
    assert (bundle.sink, bundle.recent) == (64, 256) and found[0].parent == places[0] and bundles.of_checkpoint(MODEL, "--option") == found[0]
    other = bundles.fitted(SAMPLES / "tiny-qwen3-outliers", 512, log)
    assert len(runs) == 2 and other != found[0]
    (other / "oscar_bundle.json").unlink()
    for place in (found[0] / "oscar_bundle.json").read_bytes(), b"{":  # of another model; damaged
        (other / "oscar_bundle.json").write_bytes(place)
        with pytest.raises(InputError, match="holds no bundle of the model .*tiny-qwen3-outliers'; remove it"):
            bundles.fitted(SAMPLES / "tiny-qwen3-outliers", 512, log)


def test_auto_without_the_commands(places, monkeypatch):
    monkeypatch.setenv(commands.FOLDER_VARIABLE, str(places[0]))
    with pytest.raises(InputError, match="no bundle of .*tiny-qwen3' was fitted: oscar-fit is not in .*install the toolchain"):
        bundles.fitted(MODEL, 512, logging.getLogger("test"))
    assert not [path for path in places[0].iterdir() if path.is_dir()]
