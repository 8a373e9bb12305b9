"""Damaged or unusable prompts and texts: exit code 3, the file and the line named, nothing written."""
import gzip
import json
import os
import pathlib
import re
import shutil
import signal
import subprocess
import time

import pytest

from harness import BAD_INPUT, INTERRUPTED, USAGE, command, refuse, run, succeed, tree

GOOD = '{"text": "The pump runs at forty percent of its load."}\n'

PROMPTS = {
    "empty file": b"",
    "only blank lines": b"\n\n  \n",
    "not json": GOOD.encode() + b"{text}\n",
    "truncated row": GOOD.encode() + b'{"text": "abc',
    "row is a list": GOOD.encode() + b"[1, 2]\n",
    "row is a number": b"7\n",
    "no known key": b'{"body": "text"}\n',
    "unknown speaker": b'{"conversations": [{"from": "x", "value": "a"}]}\n',
    "mask of another length": b'{"input_ids": [1, 2], "attention_mask": [1]}\n',
    "text is a number": b'{"text": 7}\n',
    "text is null": b'{"text": null}\n',
    "messages is text": b'{"messages": "hello"}\n',
    "messages is empty": b'{"messages": []}\n',
    "message without role": b'{"messages": [{"content": "hello"}]}\n',
    "unknown role": b'{"messages": [{"role": 3, "content": "hello"}]}\n',
    "input_ids is text": b'{"input_ids": "1 2 3"}\n',
    "input_ids with text": b'{"input_ids": [1, "2"]}\n',
    "input_ids with a fraction": b'{"input_ids": [1, 2.5]}\n',
    "negative id": b'{"input_ids": [1, -2]}\n',
    "id beyond the vocabulary": b'{"input_ids": [1, 8192]}\n',
    "id beyond 64 bits": b'{"input_ids": [1, 99999999999999999999999]}\n',
    "deep": b'{"text": ' + b"[" * 3000 + b"]" * 3000 + b"}\n",
    "invalid UTF-8": b'{"text": "ab\xff\xfe"}\n',
    "binary": bytes(range(256)) * 8,
    "only empty texts": b'{"text": ""}\n{"text": ""}\n',
}


@pytest.mark.parametrize("case", PROMPTS)
def test_prompts(case, model, tmp_path):
    file = tmp_path / "prompts.jsonl"
    file.write_bytes(PROMPTS[case])
    before = tree(tmp_path)
    refuse(BAD_INPUT, "collect", "--model", model, "--prompts", file, "-o", tmp_path / "s.safetensors", names="prompts.jsonl")
    assert tree(tmp_path) == before


def test_the_line_is_named(model, tmp_path):
    file = tmp_path / "prompts.jsonl"
    file.write_text(GOOD * 4 + '{"text": 5}\n' + GOOD)
    sentence = refuse(BAD_INPUT, "collect", "--model", model, "--prompts", file, "-o", tmp_path / "s.safetensors")
    assert "prompts.jsonl:5" in sentence, sentence


def test_missing_prompts(model, tmp_path):
    refuse(BAD_INPUT, "collect", "--model", model, "--prompts", tmp_path / "no.jsonl", "-o", tmp_path / "s", names="no.jsonl")


def test_prompts_are_a_folder(model, tmp_path):
    refuse((BAD_INPUT, 4), "collect", "--model", model, "--prompts", tmp_path, "-o", tmp_path / "s")


def test_unknown_extension(model, tmp_path):
    file = tmp_path / "prompts.csv"
    file.write_text(GOOD)
    refuse((BAD_INPUT, USAGE), "collect", "--model", model, "--prompts", file, "-o", tmp_path / "s", names="prompts.csv")


def test_a_prompt_longer_than_the_context_is_reported_not_cut_in_silence(model, tmp_path):
    file = tmp_path / "prompts.jsonl"
    file.write_text(json.dumps({"input_ids": [100 + i % 900 for i in range(3000)]}) + "\n" + GOOD)
    result = run("collect", "--model", model, "--prompts", file, "-o", tmp_path / "s.safetensors", "--seq-len", 128)
    # Used in pieces with a message, or refused: the text must say which.
    assert result.code in (0, BAD_INPUT), str(result)
    assert any(word in result.err + result.out for word in ("3000", "pieces", "split", "longer")), str(result)


def test_seq_len_beyond_the_model_is_said(model, prompts, tmp_path):
    result = succeed("collect", "--model", model, "--prompts", prompts, "-o", tmp_path / "s", "--seq-len", 100000)
    assert "1024" in result.err, str(result)


def test_some_rows_empty_is_said(model, tmp_path):
    file = tmp_path / "prompts.jsonl"
    file.write_text(GOOD + '{"text": ""}\n' + GOOD)
    result = succeed("collect", "--model", model, "--prompts", file, "-o", tmp_path / "s.safetensors")
    assert "prompts.jsonl:2" in result.err, str(result)


TEXTS = {"empty": b"", "one word": b"word", "blank": b"\n\n\n"}


@pytest.mark.parametrize("case", TEXTS)
def test_text_too_short(case, model, bundle, tmp_path):
    file = tmp_path / "text.txt"
    file.write_bytes(TEXTS[case])
    before = tree(tmp_path)
    refuse((BAD_INPUT, USAGE), "verify", "--model", model, "--bundle", bundle, "--text", file, "--context", 512,
           "--report", tmp_path / "r.json", "--html", tmp_path / "r.html", names="text.txt")
    assert tree(tmp_path) == before


def test_missing_text(model, bundle, tmp_path):
    refuse(BAD_INPUT, "verify", "--model", model, "--bundle", bundle, "--text", tmp_path / "no.txt", "--context", 512, names="no.txt")


def test_context_beyond_the_model(model, bundle, text, tmp_path):
    refuse((USAGE, BAD_INPUT), "verify", "--model", model, "--bundle", bundle, "--text", text, "--context", 4096, names="1024")


def test_context_inside_the_windows(model, bundle, text, tmp_path):
    """With 64 + 256 tokens in BF16 a context of 256 holds nothing quantized: the run would prove nothing."""
    refuse((USAGE, BAD_INPUT), "verify", "--model", model, "--bundle", bundle, "--text", text, "--context", 256)


def test_text_with_invalid_utf8_is_read_like_python_does(model, bundle, text, tmp_path):
    file = tmp_path / "text.txt"
    file.write_bytes(text.read_bytes()[:2000] + b"\xff\xfe\x80" + text.read_bytes()[2000:])
    result = run("verify", "--model", model, "--bundle", bundle, "--text", file, "--context", 512, "--methods", "oscar")
    assert result.code in (0, BAD_INPUT), str(result)


def plan(model, *arguments, **options):
    """The plan of a dry run."""
    line = command("collect", "--model", model, "-o", "s.safetensors", "--dry-run", "--json", *arguments)
    done = subprocess.run(line, capture_output=True, timeout=300, **options)
    return done.returncode, done.stdout.decode(), done.stderr.decode(errors="replace")


def test_compressed_rows_and_rows_on_stdin_are_those_of_the_file(model, tmp_path):
    rows = (GOOD * 3 + '{"messages": [{"role": "user", "content": "Go"}]}\n').encode()
    (tmp_path / "p.jsonl").write_bytes(rows)
    (tmp_path / "p.jsonl.gz").write_bytes(gzip.compress(rows))
    ways = [("p.jsonl", None), ("p.jsonl.gz", None), ("-", rows), ("-", gzip.compress(rows))]
    tokens = set()
    for name, given in ways:
        code, out, err = plan(model, "--prompts", name, cwd=tmp_path, input=given or b"")
        assert code == 0, err
        tokens.add(json.loads(out)["plan"]["tokens"])
    assert len(tokens) == 1, tokens
    code, _, err = plan(model, "--prompts", "-", cwd=tmp_path, input=GOOD.encode() + b"{'x': 1}\n")
    assert code == BAD_INPUT and "error: stdin:2: is not valid JSON: column 2: found '''" in err, err


def test_compressed_rows_that_expand_without_measure_are_refused(model, tmp_path):
    """In seconds and with little memory: 68 MB of rows of 70 kB compressed."""
    (tmp_path / "p.jsonl.gz").write_bytes(gzip.compress(b'{"text": "a"}   \n' * (1 << 22)))
    refuse(BAD_INPUT, "collect", "--model", model, "--prompts", tmp_path / "p.jsonl.gz", "-o", tmp_path / "s", names="expands to more than 64.0 MiB")


def test_one_file_given_twice_is_noticed(model, tmp_path):
    (tmp_path / "p.jsonl").write_text(GOOD)
    (tmp_path / "q.jsonl").symlink_to("p.jsonl")
    refuse(USAGE, "collect", "--model", model, "--prompts", tmp_path / "p.jsonl", tmp_path / "q.jsonl", "-o", tmp_path / "s",
           names="are the same file")  # fmt: skip


def test_bad_rows_are_counted_where_they_are_skipped(model, tmp_path):
    (tmp_path / "p.jsonl").write_text(GOOD + "{bad\n" + GOOD + '{"messages": [{"role": "user", "content": 1}]}\n[]\n')
    code, _, err = plan(model, "--prompts", "p.jsonl", "--skip-bad-rows", cwd=tmp_path)
    assert code == 0 and "3 bad rows were skipped (--skip-bad-rows), the first: p.jsonl:2: is not valid JSON" in err, err


def test_the_date_of_a_template_is_told_and_can_be_given(model, tmp_path):
    folder = tmp_path / "model"
    shutil.copytree(model, folder)
    (folder / "chat_template.jinja").write_text("{{ strftime_now('%A') }} {{ messages[0].content }}")
    (tmp_path / "p.jsonl").write_text('{"messages": [{"role": "user", "content": "Go"}]}\n')
    code, _, err = plan(folder, "--prompts", "p.jsonl", cwd=tmp_path)
    assert code == 0 and re.search(r"writes the date, \d{4}-\d\d-\d\d; --date", err), err
    code, _, err = plan(folder, "--prompts", "p.jsonl", "--date", "2026-11-22", cwd=tmp_path)
    assert code == 0 and "writes the date" not in err, err
    code, _, err = plan(folder, "--prompts", "p.jsonl", "--date", "22.11.2026", cwd=tmp_path)
    assert code == USAGE and "expected a day such as" in err, err


def cpu_seconds(pid):
    """CPU time of a process, so that a busy machine does not matter."""
    try:
        fields = pathlib.Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except (FileNotFoundError, ProcessLookupError):
        return 0.0
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupt_is_answered_inside_a_template(number, model, tmp_path):
    """Every row runs into the bound of the template, which takes about a second: minutes for all of them."""
    folder = tmp_path / "model"
    shutil.copytree(model, folder)
    (folder / "chat_template.jinja").write_text("{% for i in range(99999) %}{% for j in range(99999) %}{% endfor %}{% endfor %}")
    (tmp_path / "p.jsonl").write_text('{"messages": [{"role": "user", "content": "Go"}]}\n' * 300)
    line = command("collect", "--model", folder, "--prompts", tmp_path / "p.jsonl", "-o", tmp_path / "s", "--skip-bad-rows")
    program = subprocess.Popen(line, stderr=subprocess.PIPE)
    try:
        while program.poll() is None and cpu_seconds(program.pid) < 2.5:  # start-up and the first rows
            time.sleep(0.01)
        assert program.poll() is None, program.stderr.read()
        program.send_signal(number)
        sent = spent = cpu_seconds(program.pid)
        while program.poll() is None:
            spent = max(spent, cpu_seconds(program.pid))
            time.sleep(0.01)
        message = program.stderr.read().decode()
        assert program.returncode == INTERRUPTED, message
        assert "interrupted" in message and spent - sent < 2, (spent - sent, message)
    finally:
        program.kill()
        program.wait()
