"""oscar-collect --shard: the files of a job array add up to those of one run, or are refused by name."""
import json
import signal
import subprocess
import time

import jsonschema
import pytest

from harness import BAD_INPUT, SOURCE_DIR, USAGE, command, refuse, short_sequences, succeed, tree

safe_open = pytest.importorskip("safetensors").safe_open
numpy = pytest.importorskip("numpy")
N = 3


@pytest.fixture(scope="module")
def line(model, tmp_path_factory):
    return short_sequences(model, tmp_path_factory.mktemp("rows"))


@pytest.fixture(scope="module")
def folder(line, tmp_path_factory):
    """whole, and 1 to N, the shards."""
    folder = tmp_path_factory.mktemp("shards")
    succeed(*line(folder / "whole"))
    for i in range(1, N + 1):
        succeed(*line(folder / str(i), "--shard", f"{i}/{N}"))
    return folder


def content(path):
    with safe_open(path, "np") as f:
        return {name: f.get_tensor(name) for name in f.keys()}, json.loads(f.metadata()["oscar"])


def follows(schema, instance):
    jsonschema.validate(instance, json.loads((SOURCE_DIR / "schemas" / schema).read_text()), jsonschema.Draft202012Validator)


def test_shards_add_up_to_one_run(folder, tmp_path):
    done = json.loads(succeed("collect", "merge", folder / "3", folder / "1", folder / "2", "-o", tmp_path / "m", "--json").out)
    follows("collect.schema.json", done)
    tensors, metadata = content(tmp_path / "m")
    expected, whole = content(folder / "whole")
    assert tensors.keys() == expected.keys()
    for name, want in expected.items():
        if name.startswith("rows."):
            assert tensors[name].tobytes() == want.tobytes(), name
        elif not name.endswith("energy_gram"):  # its weights are each shard's own (docs/format-statistics.md)
            assert numpy.linalg.norm(tensors[name] - want) <= 1e-12 * numpy.linalg.norm(want), name
    follows("statistics.schema.json", metadata)
    shards = metadata["parts"][0].pop("shards")
    assert metadata == whole
    assert [s["index"] for s in shards] == [1, 2, 3] and sum(s["tokens"] for s in shards) == 850
    assert max(s["tokens"] for s in shards) < 1.3 * min(s["tokens"] for s in shards)
    # The order of the files is of no matter.
    succeed("collect", "merge", folder / "1", folder / "2", folder / "3", "-o", tmp_path / "again")
    assert (tmp_path / "again").read_bytes() == (tmp_path / "m").read_bytes()


def test_a_shard_is_the_same_bytes_again_and_knows_itself(folder, line, tmp_path):
    done = json.loads(succeed(*line(tmp_path / "2", "--shard", f"2/{N}", "--json")).out)
    follows("collect.schema.json", done)
    assert (tmp_path / "2").read_bytes() == (folder / "2").read_bytes()
    _, metadata = content(tmp_path / "2")
    follows("statistics.schema.json", metadata)
    part = metadata["parts"][0]
    assert part["shard"] == {"index": 2, "of": N, "tokens": 850, "sequences": content(folder / "whole")[1]["parts"][0]["sequences"]}
    assert part["tokens"] == metadata["tokens"] == done["plan"]["tokens"] < 850
    assert part["prompts"] == content(folder / "whole")[1]["parts"][0]["prompts"]
    assert "shard 2 of 3" in succeed("collect", "show", folder / "2").out
    assert "warning" in succeed("fit", folder / "2", "--method", "oscar", "-o", tmp_path / "bundle", "--dry-run").err


def test_one_of_one_is_the_whole_run(folder, line, tmp_path):
    succeed(*line(tmp_path / "s", "--shard", "1/1"))
    assert (tmp_path / "s").read_bytes() == (folder / "whole").read_bytes()


def test_dry_run_prints_the_share(line, tmp_path):
    text = succeed(*line(tmp_path / "s", "--shard", f"1/{N}", "--dry-run")).out
    assert " of 850 tokens in " in text and "shard 1/3" in text
    plan = json.loads(succeed(*line(tmp_path / "s", "--shard", "40/40", "--dry-run", "--json")).out)
    follows("collect.schema.json", plan)
    assert plan["plan"]["tokens"] == 0 and plan["plan"]["shard"]["tokens"] == 850
    assert not list(tmp_path.iterdir())


def test_more_shards_than_sequences(folder, line, tmp_path):
    """No job of the array fails."""
    files = []
    for i in range(1, 4):  # 130 tokens are two steps
        files.append(tmp_path / f"s{i}")
        succeed(*line(files[-1], "--shard", f"{i}/3", tokens=130))
    empty = [path for path in files if content(path)[1]["tokens"] == 0]
    assert empty == [files[2]]
    follows("statistics.schema.json", content(empty[0])[1])
    follows("statistics.schema.json", json.loads(succeed("collect", "show", empty[0], "--json").out))
    succeed("collect", "merge", *files, "-o", tmp_path / "m")
    merged = content(tmp_path / "m")[1]
    assert merged["tokens"] == 130 and [s["tokens"] for s in merged["parts"][0]["shards"]] == [96, 34, 0]
    refuse(BAD_INPUT, "fit", empty[0], "-o", tmp_path / "bundle", names=[empty[0], "oscar-collect merge"])
    refuse(BAD_INPUT, "collect", "merge", *(f for f in files if f != empty[0]), "-o", tmp_path / "n",
           names=[files[0], "shard 3 is not among the files"])


def test_what_is_no_whole_run_is_refused(folder, line, tmp_path):
    succeed(*line(tmp_path / "seed", "--shard", f"3/{N}", "--seed", 5))
    succeed(*line(tmp_path / "of", "--shard", "3/4"))
    before = tree(tmp_path)
    merge = lambda *files, names, code=BAD_INPUT: refuse(code, "collect", "merge", *files, "-o", tmp_path / "m", names=names)
    one, two, three = (folder / str(i) for i in (1, 2, 3))
    merge(one, three, names=[one, "shard 1 of 3", "shard 2 is not among the files"])
    merge(one, two, three, two, names=[two, "shard 2 of 3", "once"])
    merge(one, two, tmp_path / "seed", names=[tmp_path / "seed", "--seed", "5 and 0"])
    merge(one, two, tmp_path / "of", names=[tmp_path / "of", "shard 3 of 4", "shard 1 of 3"])
    merge(one, two, three, folder / "whole", names=[folder / "whole", "no shard"])
    assert tree(tmp_path) == before


@pytest.mark.parametrize("text", ["0/3", "4/3", "2", "a/b"])
def test_impossible_shards(text, line, tmp_path):
    refuse(USAGE, *line(tmp_path / "s", "--shard", text), names=["--shard", text])


def test_a_killed_shard_goes_on(folder, line, tmp_path):
    output = tmp_path / "2"
    arguments = line(output, "--shard", f"2/{N}", "--checkpoint-seconds", 0, "--resume", "--work-dir", tmp_path / "work")
    process = subprocess.Popen(command(*arguments), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        for _ in range(3000):
            if (tmp_path / "work" / "layer-0000.safetensors").exists() or process.poll() is not None:
                break
            time.sleep(0.002)
        process.send_signal(signal.SIGKILL)
    finally:
        process.kill()
        process.wait()
    if not output.exists():
        succeed(*arguments)
    assert output.read_bytes() == (folder / "2").read_bytes()
