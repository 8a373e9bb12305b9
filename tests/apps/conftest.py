"""Fixtures of the end-to-end tests: a tiny random model and what the commands make of it."""
import json
import os
import shutil

import pytest

import harness


def pytest_collection_modifyitems(config, items):
    """OSCAR_MAX_CASES=N keeps N parameter sets of each test function, evenly spread: every function still runs where a
    command takes long to start (sanitizers)."""
    limit = int(os.environ.get("OSCAR_MAX_CASES", "0"))
    if limit < 1:
        return
    functions = {}
    for item in items:
        functions.setdefault(item.nodeid.split("[")[0], []).append(item)
    kept = {case for cases in functions.values() for case in (
        cases if len(cases) <= limit else [cases[i * len(cases) // limit] for i in range(limit)])}
    config.hook.pytest_deselected(items=[item for item in items if item not in kept])
    items[:] = [item for item in items if item in kept]


@pytest.fixture(scope="session")
def model(tmp_path_factory):
    return harness.make_model(tmp_path_factory.mktemp("model") / "tiny")


@pytest.fixture(scope="session")
def prompts(tmp_path_factory):
    path = tmp_path_factory.mktemp("prompts") / "prompts.jsonl"
    rows = [{"text": "The pump of the north hall runs at 40 percent. " * 12},
            {"messages": [{"role": "user", "content": "Which hall?"}, {"role": "assistant", "content": "The north hall."}]},
            {"prompt": "Count from one to ten: one, two, three, four, five"},
            {"input_ids": list(range(100, 160))}]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


@pytest.fixture(scope="session")
def statistics(tmp_path_factory, model, prompts):
    path = tmp_path_factory.mktemp("statistics") / "statistics.safetensors"
    harness.succeed("collect", "--model", model, "--prompts", prompts, "-o", path, "--seq-len", 128)
    return path


@pytest.fixture(scope="session")
def bundle(tmp_path_factory, statistics):
    path = tmp_path_factory.mktemp("bundle") / "bundle"
    harness.succeed("fit", statistics, "--method", "oscar", "-o", path)
    return path


@pytest.fixture(scope="session")
def text(tmp_path_factory):
    path = tmp_path_factory.mktemp("text") / "text.txt"
    path.write_text("".join(f"Valve {i} is {'open' if i % 3 else 'closed'} and its pressure is {i * 7 % 50}.\n" for i in range(120)))
    return path


@pytest.fixture(scope="session")
def folder_of(tmp_path_factory):
    """folder_of(page): the folder in which the commands of the page run. README's run once for all of them."""
    from test_readme import MADE_BY_README, README, Folder

    folders = {}

    def get(page):
        if page not in folders:
            folders[page] = Folder(tmp_path_factory.mktemp(page.replace("/", "-").removesuffix(".md")), page)
            if page != README:
                readme = get(README)
                readme.run(len(readme.commands) - 1)
                for name, made in MADE_BY_README.items():
                    source, target = readme.root / made, folders[page].root / name
                    assert source.exists(), f"README's commands made no {made}"
                    (shutil.copytree if source.is_dir() else shutil.copy)(source, target)
        return folders[page]

    return get
