"""oscar-export --format transformers: the folder custom_generate and the bundle beside it, as transformers loads them from a
model's directory, from a hub repository in its cache, and by name for one call."""
import hashlib
import os
import shutil
import subprocess
import sys
import tempfile
import threading
import time

import pytest

# Read when transformers is imported: its copies of loaded modules stay out of the user's cache.
os.environ["HF_MODULES_CACHE"] = tempfile.mkdtemp(prefix="oscar-modules-")
torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

import oscar_kv  # noqa: E402
from conftest import PACKAGE_PATH, SAMPLES, program  # noqa: E402
from oscar_kv.files.errors import InputError  # noqa: E402

torch.set_num_threads(1)
GREEDY = dict(do_sample=False, pad_token_id=0, eos_token_id=None, max_new_tokens=12)


@pytest.fixture(scope="module", autouse=True)
def no_copies():
    """transformers copies what it loads; its copies go afterwards."""
    yield
    shutil.rmtree(os.environ["HF_MODULES_CACHE"], ignore_errors=True)


@pytest.fixture(scope="module")
def bundle(fit):
    return fit("tiny-qwen3", "--method", "waterfill", "--bits", "1.5")


@pytest.fixture(scope="module")
def exported(bundle, tmp_path_factory):
    folder = tmp_path_factory.mktemp("export") / "serving"
    program("oscar-export", bundle, "--format", "transformers", "-o", folder)
    return folder


@pytest.fixture(scope="module")
def carrier(exported, tmp_path_factory):
    """A directory of the model that carries its cache."""
    folder = tmp_path_factory.mktemp("carrier") / "model"
    shutil.copytree(SAMPLES / "tiny-qwen3", folder)
    for name in ("custom_generate", "oscar_bundle"):
        shutil.copytree(exported / name, folder / name)
    return folder


@pytest.fixture(scope="module")
def ids():
    tokenizer = transformers.AutoTokenizer.from_pretrained(SAMPLES / "tiny-qwen3")
    return tokenizer((SAMPLES / "heldout.txt").read_text()[:8000], return_tensors="pt").input_ids[:, :900]


def load(name, **options):
    return transformers.AutoModelForCausalLM.from_pretrained(name, dtype=torch.float32, **options).eval()


@pytest.fixture(scope="module")
def model():
    return load(SAMPLES / "tiny-qwen3")


def scores(answer):
    return torch.stack(answer.scores)


@pytest.fixture(scope="module")
def expected(model, bundle, ids):
    """Scores of the tokens that attach() generates; the cache matters to them."""
    plain = scores(model.generate(ids, output_scores=True, return_dict_in_generate=True, **GREEDY))
    oscar_kv.attach(model, bundle)
    attached = scores(model.generate(ids, output_scores=True, return_dict_in_generate=True, **GREEDY))
    oscar_kv.detach(model)
    assert not torch.equal(plain, attached)
    return attached


def test_files(bundle, exported, tmp_path):
    assert subprocess.run(["sha256sum", "-c", "--quiet", "SHA256SUMS"], cwd=exported).returncode == 0
    listed = {line.split("  ")[1] for line in (exported / "SHA256SUMS").read_text().splitlines()}
    assert listed == {str(p.relative_to(exported)) for p in exported.rglob("*") if p.is_file()} - {"SHA256SUMS"}
    assert (bundle / "calibration_hashes.json").exists() and not (exported / "oscar_bundle" / "calibration_hashes.json").exists()
    for path in {*bundle.iterdir()} - {bundle / "calibration_hashes.json"}:
        assert (exported / "oscar_bundle" / path.name).read_bytes() == path.read_bytes()
    assert [path.name for path in (exported / "custom_generate").iterdir()] == ["generate.py"]  # no name for a package index
    assert "oscar-verify --as transformers" in (exported / "README.md").read_text()
    # Its own directory is written again, with one more file it is somebody else's.
    again = [bundle, "--format", "transformers", "-o", exported, "--overwrite"]
    program("oscar-export", *again)
    (exported / "notes.txt").write_text("mine")
    program("oscar-export", *again, codes=(2,))
    (exported / "notes.txt").unlink()


def test_links_of_a_stranger_are_not_followed(bundle, tmp_path):
    secret, foreign = tmp_path / "secret", tmp_path / "foreign"
    secret.write_text("mine")
    shutil.copytree(bundle, foreign)
    (foreign / "README.md").unlink()
    (foreign / "README.md").symlink_to(secret)
    program("oscar-export", foreign, "--format", "transformers", "-o", tmp_path / "out")
    assert not (tmp_path / "out" / "oscar_bundle" / "README.md").exists()
    assert (tmp_path / "out" / "oscar_bundle" / "oscar_bundle.json").exists()


def test_a_bundle_that_changes_while_it_is_copied(bundle, tmp_path):
    """An export is whole or there is none: before, a file that was replaced at that moment was left out without a word."""
    changing, stop = tmp_path / "changing", threading.Event()
    shutil.copytree(bundle, changing)
    path = changing / "rotations.safetensors"
    data = path.read_bytes()

    def swap():
        while not stop.is_set():
            for content in (data[:-1] + bytes([data[-1] ^ 1]), data):
                (tmp_path / "new").write_bytes(content)
                os.replace(tmp_path / "new", path)
                time.sleep(0.002)

    thread = threading.Thread(target=swap)
    thread.start()
    try:
        for i in range(12):
            program("oscar-export", changing, "--format", "transformers", "-o", tmp_path / str(i), codes=(0, 3))
            if (tmp_path / str(i)).exists():
                assert (tmp_path / str(i) / "oscar_bundle" / "rotations.safetensors").read_bytes() == data, i
    finally:
        stop.set()
        thread.join()


def test_without_the_package(exported):
    """Nobody is told to install a name from a package index."""
    code = (exported / "custom_generate" / "generate.py").read_text()
    done = subprocess.run([sys.executable, "-S", "-c", code], capture_output=True, text=True, env={**os.environ, "PYTHONPATH": ""})
    assert "ImportError: the 2-bit KV cache needs the Python package of the OSCAR toolchain, which is on no package index" in done.stderr
    assert "pip install" not in done.stderr + (exported / "README.md").read_text()


def test_one_call(model, exported, ids, expected):
    answer = model.generate(ids, output_scores=True, return_dict_in_generate=True, trust_remote_code=True,
                            custom_generate=str(exported), oscar_bundle=str(exported / "oscar_bundle"), **GREEDY)
    assert torch.equal(scores(answer), expected)
    assert model.config._attn_implementation != "oscar", "the model is as it was"
    plain = model.generate(ids, output_scores=True, return_dict_in_generate=True, **GREEDY)
    assert not torch.equal(scores(plain), expected)


def test_a_directory_carries_its_cache(carrier, ids, expected):
    model = load(carrier, trust_remote_code=True)
    options = dict(output_scores=True, return_dict_in_generate=True, **GREEDY)
    assert torch.equal(scores(model.generate(ids, **options)), expected)
    assert torch.equal(scores(model.generate(input_ids=ids, **options)), expected)
    untrusted = load(carrier)
    assert not torch.equal(scores(untrusted.generate(ids, **options)), expected)


PROGRAM = """
import sys, torch, transformers
torch.set_num_threads(1)
model = transformers.AutoModelForCausalLM.from_pretrained("org/small", dtype=torch.float32, trust_remote_code=True, revision=sys.argv[3])
ids = torch.load(sys.argv[1], weights_only=True)
answer = model.generate(ids, do_sample=False, pad_token_id=0, eos_token_id=None, max_new_tokens=12, output_scores=True,
                        return_dict_in_generate=True)
torch.save(torch.stack(answer.scores), sys.argv[2])
"""


@pytest.mark.parametrize("revision", ["main", "two-bit"])
def test_a_hub_repository_carries_its_cache(revision, carrier, ids, expected, tmp_path):
    """In its main revision, or in another while main is the plain model."""
    commit = hashlib.sha1(b"commit").hexdigest()
    repository = tmp_path / "hub" / "models--org--small"
    shutil.copytree(carrier, repository / "snapshots" / commit)
    (repository / "refs").mkdir()
    plain = hashlib.sha1(b"plain").hexdigest()
    if revision != "main":
        shutil.copytree(SAMPLES / "tiny-qwen3", repository / "snapshots" / plain)
    (repository / "refs" / "main").write_text(plain)
    (repository / "refs" / revision).write_text(commit)
    torch.save(ids, tmp_path / "ids.pt")
    environment = os.environ | {"HF_HUB_CACHE": str(tmp_path / "hub"), "HF_HUB_OFFLINE": "1", "PYTHONPATH": PACKAGE_PATH}
    done = subprocess.run([sys.executable, "-c", PROGRAM, tmp_path / "ids.pt", tmp_path / "scores.pt", revision], env=environment,
                          capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-3000:]
    assert torch.equal(torch.load(tmp_path / "scores.pt", weights_only=True), expected)


class TestRefusals:
    def test_no_bundle(self, model, exported, ids):
        with pytest.raises(InputError, match="holds no oscar_bundle.json; copy oscar_bundle of the export"):
            model.generate(ids, trust_remote_code=True, custom_generate=str(exported), **GREEDY)

    def test_another_bundle(self, model, exported, fit, ids):
        other = fit("tiny-qwen3", "--method", "waterfill", "--bits", "2")
        with pytest.raises(InputError, match="is not the bundle that this generate"):
            model.generate(ids, trust_remote_code=True, custom_generate=str(exported), oscar_bundle=str(other), **GREEDY)

    def test_another_model(self, exported, ids):
        model = load(SAMPLES / "tiny-qwen2")
        with pytest.raises(InputError, match="the model"):
            model.generate(ids, trust_remote_code=True, custom_generate=str(exported), oscar_bundle=str(exported / "oscar_bundle"),
                           **GREEDY)
        assert model.config._attn_implementation != "oscar"

    def test_an_attached_model(self, model, bundle, exported, ids):
        oscar_kv.attach(model, bundle)
        try:
            with pytest.raises(InputError, match="detach"):
                model.generate(ids, trust_remote_code=True, custom_generate=str(exported),
                               oscar_bundle=str(exported / "oscar_bundle"), **GREEDY)
        finally:
            oscar_kv.detach(model)

    def test_code_that_is_not_trusted(self, model, exported, ids):
        with pytest.raises(ValueError, match="trust_remote_code"):
            model.generate(ids, trust_remote_code=False, custom_generate=str(exported), **GREEDY)


@pytest.mark.parametrize("name, windows", [("gpt-oss", (8, 24)), ("qwen3-next", (8, 16)), ("gemma4", (8, 16)), ("gemma4-shared", (8, 16))])
def test_layers_that_the_bundle_leaves_out(name, windows, tmp_path):
    """Windows that stay in BF16, delta nets, windows in heads of another size: generate() is what attach() gives."""
    from test_families import bundle_for, family_checkpoints

    folder = family_checkpoints.make(name, tmp_path / "model", tokenizer=SAMPLES / "tiny-qwen3")
    bundle = bundle_for(folder, tmp_path, windows)
    program("oscar-export", bundle, "--format", "transformers", "-o", tmp_path / "serving")
    ids = torch.randint(0, 8192, (1, 70), generator=torch.Generator().manual_seed(4))
    model = load(folder)
    found = model.generate(ids, custom_generate=str(tmp_path / "serving"), oscar_bundle=str(tmp_path / "serving" / "oscar_bundle"),
                           trust_remote_code=True, output_scores=True, return_dict_in_generate=True, **GREEDY)
    plain = model.generate(ids, output_scores=True, return_dict_in_generate=True, **GREEDY)
    oscar_kv.attach(model, bundle)
    expected = model.generate(ids, output_scores=True, return_dict_in_generate=True, **GREEDY)
    assert torch.equal(scores(found), scores(expected))
    assert not torch.equal(scores(found), scores(plain))
