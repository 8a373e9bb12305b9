"""table.py WORK [--lines FILE] [--predicted NAME=KL ...]: what serve.py measured of all caches of a model, as a table in Markdown, and as lines of
JSON added to FILE. The answers of HumanEval are run. --predicted: mean KL by oscar-verify --path both --decode-last 64 of the same texts."""
import argparse
import json
import pathlib
import re

import grade

TASKS = {"he": "HumanEval", "he_behind": "after 6,000 tokens", "needles": "needles", "variables": "variables", "quotes": "quotes", "calls": "next call"}
AGAIN = "_again"  # what BF16 answered at another batch size


def marks_of(found, tasks):
    made = {}
    for name, answers in found.items():
        task = name.removesuffix(AGAIN)
        if task in ("he", "he_behind"):
            made[name] = grade.human_eval(answers, tasks)
        elif task in TASKS and answers:
            made[name] = getattr(grade, task)(answers, found["wanted"][task])
    return made


def pairs(before, after):
    lost, won = (sum(x and not y for x, y in both) for both in (zip(before, after), zip(after, before)))
    return [lost, won, round(grade.mcnemar(lost, won), 3)]


def answers_of(found, task):
    """How long answers are, which never end, which degenerate."""
    ids, most = [answer["ids"] for answer in found[task]], found["most"][task]
    return {"tokens": round(sum(map(len, ids)) / len(ids), 1), "endless": round(sum(len(one) >= most for one in ids) / len(ids), 4),
            "degenerate": round(sum(map(grade.degenerate, ids)) / len(ids), 4)}


def facts(found, marks, base, base_marks, predicted):
    """The raw line of a cache. base: the BF16 cache's."""
    line = {name: found[name] for name in ("model", "engine", "cache", "gpu", "versions", "prefix_caching")}
    line.update((f"kl_served_{name.removeprefix('kl_')}", made["kl_served"]) for name, made in found.items()
                if name.startswith("kl_") and isinstance(made, dict))
    line |= {"variant": found.get("variant", ""), "kl_predicted": predicted}
    several = [a for name in ("eight", "forty") for a in found.get(name, [])]
    alone = [a for name in ("eight", "forty") for a in zip(found.get("one", []), found.get(name, []))]
    line["differ_from_one"] = f"{sum(a['ids'] != b['ids'] for a, b in alone)} of {len(alone)}"
    answers = several + [a for task in ("he", "he_behind") for a in found.get(task, [])]
    line["degenerate"] = sum(grade.degenerate(a["ids"]) for a in answers)
    for name, made in marks.items():
        line[name] = f"{sum(made)} of {len(made)}"
        if name.endswith(AGAIN):
            line[f"{name}_lost_won_p"] = pairs(marks[name.removesuffix(AGAIN)], made)
            continue
        line[f"{name}_answers"] = answers_of(found, name)
        if name == "calls":
            parts = [grade.next_call(answer["text"], one) for answer, one in zip(found[name], found["wanted"][name])]
            line["calls_json_tool_arguments"] = [sum(part) for part in zip(*parts)]
        if name in base_marks and found is not base:
            line[f"{name}_lost_won_p"] = pairs(base_marks[name], made)
    return line


def lines_of(work, predicted=None):
    """The raw lines of all caches in a folder, BF16's first."""
    tasks = json.loads((work / "tasks.json").read_text())["he"]
    found = {path.stem: json.loads(path.read_text()) for path in sorted(work.glob("*.json")) if path.stem not in ("tasks", "prompts", "sessions")}
    base = found.pop("bf16")
    base_marks = marks_of(base, tasks)
    return [facts(base, base_marks, base, base_marks, None)] + [
        facts(one, marks_of(one, tasks), base, base_marks, (predicted or {}).get(name)) for name, one in found.items()]


def cell(line, name):
    if name not in line:
        return ""
    extra = line.get(f"{name}_lost_won_p")
    return line[name] + (f" (lost {extra[0]}, won {extra[1]}, p {extra[2]})" if extra else "")


def table(lines):
    columns = {name: [int(n) for n in re.findall(r"\d+", name)] for line in lines for name in line if name.startswith("kl_served")}
    columns = sorted(columns, key=lambda name: (columns[name], name))
    heads = [name.removeprefix("kl_served_").replace("_", " x ", 1).replace("_", " ") for name in columns]
    rows = ["| cache | " + " | ".join([f"KL {head}" for head in heads] + ["predicted", "other text than alone", "degenerate", *TASKS.values()]) + " |"]
    rows.append("|---|" + "---:|" * (len(heads) + 3 + len(TASKS)))
    for line in lines:
        numbers = [f"{line[name]:.4f}" if name in line else "" for name in columns]
        predicted = "" if line["kl_predicted"] is None else f"{line['kl_predicted']:.4f}"
        name = pathlib.Path(line["cache"]).name + (", prefix caching" if line["prefix_caching"] else "")
        rows.append(f"| {name} | " + " | ".join([*numbers, predicted, line["differ_from_one"], str(line["degenerate"]),
                                                *(cell(line, task) for task in TASKS)]) + " |")
    return "\n".join(rows)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("work", type=pathlib.Path)
    parser.add_argument("--lines", type=pathlib.Path)
    parser.add_argument("--predicted", nargs="*", default=[])
    given = parser.parse_args()
    lines = lines_of(given.work, {name: float(kl) for name, kl in (text.split("=") for text in given.predicted)})
    if given.lines:
        with given.lines.open("a") as file:
            file.writelines(json.dumps(line) + "\n" for line in lines)
    print(table(lines))


if __name__ == "__main__":
    main()
