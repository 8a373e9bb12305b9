"""The table of docs/families.md: which parity test runs what of a family. The first three cells of a row are written by
people; the others follow from the tables of cases that the tests themselves run, so the page cannot claim more.

    python tests/oracles/family_table.py --write"""
import ast
import json
import pathlib
import re
import sys

from transformers.models.auto import configuration_auto, modeling_auto

import family_checkpoints
import random_checkpoints

SOURCE_DIR = pathlib.Path(__file__).parents[2]
PAGE = SOURCE_DIR / "docs" / "families.md"
HEAD = ("| architecture | models | pieces that differ | verify | absorbed | quantized |", "|---|---|---|---|---|---|")
NONE = "-"


def constants(file):
    """Literals that a test file assigns to names, without running it."""
    found = {}
    for node in ast.parse((SOURCE_DIR / file).read_text()).body:
        if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name):
            try:
                found[node.targets[0].id] = ast.literal_eval(node.value)
            except ValueError:
                keys = [k.value for k in getattr(node.value, "keys", []) if isinstance(k, ast.Constant)]
                found[node.targets[0].id] = keys
    return found


def architecture(kind, changes, saving):
    """That the page has a row for: of a multimodal wrapper, its text model's."""
    if saving.get("wrapper"):
        wrapper = configuration_auto.CONFIG_MAPPING[kind]
        kind = changes.get("model_type") or wrapper.sub_configs["text_config"].model_type
    return modeling_auto.MODEL_FOR_CAUSAL_LM_MAPPING_NAMES[kind]


def wrappers():
    """Architectures of the wrappers that cases are made of."""
    names = modeling_auto.MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING_NAMES
    return {names[kind] for kind, _, saving in family_checkpoints.CASES.values() if saving.get("wrapper")}


def cases():
    """Architecture -> names of its cases in family_checkpoints.py; empty where only random_checkpoints.py has some."""
    found = {architecture(*case): [] for case in random_checkpoints.CASES.values()}
    for name, case in family_checkpoints.CASES.items():
        found.setdefault(architecture(*case), []).append(name)
    return found


def samples():
    """Architectures of the sample models, which tests/apps take through every command."""
    return {json.loads(file.read_text())["architectures"][0] for file in SOURCE_DIR.glob("sample_data/tiny-*/config.json")}


def claims():
    """Architecture -> the cells behind the first three."""
    whole = constants("tests/oracles/test_families.py")
    absorbed = {modeling_auto.MODEL_FOR_CAUSAL_LM_MAPPING_NAMES.get(kind) for kind in
                constants("tests/oracles/test_absorbed.py")["MODELS"]} | {"Qwen3ForCausalLM"}  # its SAMPLE
    quantized = {modeling_auto.MODEL_FOR_CAUSAL_LM_MAPPING_NAMES[kind] for kind in re.findall(
        r'for_model\("(\w+)"', (SOURCE_DIR / "tests/oracles/quantized_checkpoints.py").read_text())}
    quantized |= {architecture(*family_checkpoints.CASES[case]) for case in re.findall(
        r'^    "[^"]+": \("([\w-]+)", "', (SOURCE_DIR / "tests/oracles/test_quantized_families.py").read_text(), re.M)}
    refused = [case for of in whole["NOT_ABSORBED"].values() for case in of]
    rows = {}
    for name, of in cases().items():
        run = [case for case in of if case in whole["WHOLE"]]
        sample = name in samples()
        both = sample or any(not any(word in case for word in whole["EXPERTS"]) for case in run)
        if any(case in whole["LATENT"] for case in of):  # one KV head of the latent, which only oscar-verify runs
            rows[name] = ["both paths", NONE, "yes" if name in quantized else NONE]
            continue
        assert sample or run, f"{name}: no case of test_families.py in tests/oracles or tests/python, which the page claims for all"
        rows[name] = ["both paths" if both else "decode" if of else NONE,
                      "yes" if name in absorbed or set(run) - set(refused) else NONE,
                      "yes" if name in quantized else NONE]
    return rows


def rewritten(text):
    """The page with the cells that it should have, and the architectures that have no row."""
    lines, rows, out = text.splitlines(), claims(), []
    for i, line in enumerate(lines):
        if line.startswith("| architecture |"):
            line = HEAD[0]
        elif out and out[-1] == HEAD[0]:
            line = HEAD[1]
        elif line.startswith("| `"):
            cells = [cell.strip() for cell in line.strip("|").split("|")]
            line = "| " + " | ".join([*cells[:3], *rows.pop(cells[0].strip("`"), [NONE] * 3)]) + " |"
        out.append(line)
    return "\n".join(out) + "\n", sorted(rows)


if __name__ == "__main__":
    page, missing = rewritten(PAGE.read_text())
    if "--write" in sys.argv:
        PAGE.write_text(page)
    if missing:
        sys.exit(f"docs/families.md has no row for {', '.join(missing)}: write its first three cells")
