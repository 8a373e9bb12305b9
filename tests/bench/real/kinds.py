"""kinds.py OUT: what scripts/study calibrates on and scores, by kind of text, from packages of PyPI and Debian and from Python's own library; nothing
of it is part of this project. KIND_calib.jsonl and KIND_eval.txt, of different documents, for the kinds of KINDS; tasks.json (HumanEval) and
sessions.json (rows of messages of the sessions that are scored). mixed_calib.jsonl has a fifth of each. What is there is not made again."""
import json
import os
import pathlib
import random
import re
import subprocess
import sys
import tempfile

import texts

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1]))
import real_model_files  # noqa: E402

KINDS = {"agent": "agent sessions", "code": "code", "prose": "prose", "json": "tool calls in JSON", "languages": "other languages"}
LANGUAGES = ["de-DE", "fr-FR", "es-ES", "ru-RU", "ja-JP", "zh-CN"]
LONGEST = 400_000                # characters to score
CALIBRATION = 240_000            # characters to calibrate on
CALL = re.compile(r"\[Tool: (\w+)\((\{.*?\})\)\]", re.S)


def calls(text):
    """[(tool, its arguments)] of a message; arguments that are no JSON are None."""
    found = []
    for tool, written in CALL.findall(text):
        try:
            found.append((tool, json.loads(written)))
        except ValueError:
            found.append((tool, None))
    return found


def as_json(messages):
    """A session as lines of JSON: the calls of each turn, and the beginning of what they returned."""
    lines = []
    for message in messages:
        if message["role"] == "assistant":
            lines += [json.dumps({"type": "function", "function": {"name": tool, "arguments": given}})
                      for tool, given in calls(message["content"]) if given is not None]
        elif lines:
            lines.append(json.dumps({"role": "tool", "content": message["content"][:400]}))
    return "\n".join(lines)


def split(documents, seed=4):
    """Halves of shuffled documents: to calibrate on, to score."""
    documents = list(documents)
    random.Random(seed).shuffle(documents)
    return documents[::2], documents[1::2]


def library():
    """Python's library: one document a file."""
    folder = pathlib.Path(os.__file__).parent
    return [path.read_text(errors="ignore") for path in sorted(folder.glob("*.py")) if 4000 < path.stat().st_size < 60000]


def handbook(work):
    """Pages of the Debian handbook in English, and of its translations what is translated."""
    subprocess.run(["apt-get", "download", "-q", "debian-handbook"], cwd=work, check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    subprocess.run(["dpkg", "-x", next(work.glob("debian-handbook*.deb")), work], check=True)
    pages = {}
    for language in ["en-US", *LANGUAGES]:
        files = sorted((work / "usr/share/doc/debian-handbook/html" / language).glob("*.html"))
        pages[language] = {path.name: text for path in files if len(text := real_model_files.page_text(path)) > 1500}
    english = list(pages.pop("en-US").values())
    lines = {line for text in english for line in text.splitlines()}
    others = ["\n".join(line for line in text.splitlines() if line not in lines) for by_name in pages.values() for text in by_name.values()]
    return english, [text for text in others if len(text) > 1500]


def write(out, kind, calibration, scored):
    rows, size = [], 0
    for text in calibration:
        if size < CALIBRATION:
            rows.append(json.dumps({"text": text[:CALIBRATION // 8]}) + "\n")
            size += len(rows[-1])
    (out / f"{kind}_calib.jsonl").write_text("".join(rows))
    (out / f"{kind}_eval.txt").write_text("\n\n".join(scored)[:LONGEST])


def mixed(out, size=12_000):
    """A fifth of each kind's text in rows of `size` characters, those of agent sessions as messages. Each round begins one kind later than the last one,
    so that sequences at equal distances meet all kinds."""
    parts = {}
    for kind in KINDS:
        rows = [json.loads(line) for line in (out / f"{kind}_calib.jsonl").read_text().splitlines()]
        joined = "\n\n".join(row.get("text", "") for row in rows)
        parts[kind] = [{"text": joined[at:at + size]} for at in range(0, len(joined), size)] if kind != "agent" else [shortened(row, size) for row in rows]
    names, made = list(parts), []
    for turn in range(CALIBRATION // len(names) // size):
        made += [parts[kind][turn] for kind in names[turn:] + names[:turn] if turn < len(parts[kind])]
    (out / "mixed_calib.jsonl").write_text("".join(json.dumps(row) + "\n" for row in made))


def shortened(row, size):
    """The first `size` characters of a row of messages."""
    messages = []
    for message in row["messages"]:
        messages.append(message | {"content": message["content"][:size]})
        size -= len(messages[-1]["content"])
        if size <= 0:
            break
    return {"messages": messages}


def main():
    out = pathlib.Path(sys.argv[1])
    if not (out / "sessions.json").exists():
        make(out)
    if not (out / "mixed_calib.jsonl").exists():
        mixed(out)


def make(out):
    subprocess.run([sys.executable, texts.__file__, out], check=True)
    rows = [json.loads(line)["messages"] for line in (out / "agent_calib.jsonl").read_text().splitlines()]
    scored = json.loads((out / "agent_eval.json").read_text())
    write(out, "json", map(as_json, rows), map(as_json, scored))
    write(out, "code", *split(library()))
    with tempfile.TemporaryDirectory() as work:
        english, others = handbook(pathlib.Path(work))
    write(out, "prose", *split(english))
    write(out, "languages", *split(others))
    (out / "agent_eval.json").rename(out / "sessions.json")


if __name__ == "__main__":
    main()
