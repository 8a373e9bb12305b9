"""What answers are worth: HumanEval by running it, needles, answers that repeat themselves, and exact tests of pairs."""
import concurrent.futures
import json
import math
import re
import subprocess
import sys

REPEATS, LONGEST_PHRASE, LEAST = 8, 64, 32  # tokens


def code(answer, task):
    """The program that an answer stands for: its longest block of code, behind what the task has before the function."""
    blocks = re.findall(r"```(?:python|py)?\s*\n(.*?)(?:```|$)", answer, re.S)
    found, name = max(blocks, key=len) if blocks else answer, task["entry_point"]
    return task["prompt"].split("def " + name)[0] + "\n" + (found if "def " + name in found else task["prompt"] + found)


def passes(answer, task):
    program = f"{code(answer, task)}\n{task['test']}\ncheck({task['entry_point']})\nprint('PASS')"
    try:
        made = subprocess.run([sys.executable, "-I", "-c", program], capture_output=True, text=True, timeout=10)
    except subprocess.TimeoutExpired:
        return False
    return made.stdout.endswith("PASS\n")


def human_eval(answers, tasks):
    with concurrent.futures.ThreadPoolExecutor() as pool:
        return list(pool.map(passes, [answer["text"] for answer in answers], tasks))


def needles(answers, numbers):
    return [number in answer["text"] for answer, number in zip(answers, numbers)]


def variables(answers, wanted):
    return [set(re.findall(r"VAR_\d+", answer["text"])) == set(names) for answer, names in zip(answers, wanted)]


def quotes(answers, passages):
    """Every line of the passage, in its order and with its spaces between words."""
    return ["\n".join(line.strip() for line in passage.splitlines()) in "\n".join(line.strip() for line in answer["text"].splitlines())
            for answer, passage in zip(answers, passages)]


def next_call(text, wanted):
    """(JSON, tool, arguments) of the call that an answer begins with: does it read, is it the session's next tool, has it the arguments of the others."""
    called = re.match(r"\s*(\w+)\((.*)", text, re.S)
    if not called:
        return False, False, False
    try:
        given, _ = json.JSONDecoder().raw_decode(called[2])
    except ValueError:
        return False, called[1] == wanted["tool"], False
    needed, known = wanted["tools"].get(called[1], [[None], []])
    return True, called[1] == wanted["tool"], isinstance(given, dict) and set(needed) <= set(given) <= set(known)


def calls(answers, wanted):
    """Calls that are right in all three respects."""
    return [all(next_call(answer["text"], one)) for answer, one in zip(answers, wanted)]


def degenerate(ids):
    """Whether a phrase of at most LONGEST_PHRASE tokens follows itself more than REPEATS times."""
    for length in range(1, LONGEST_PHRASE + 1):
        run = 0
        for a, b in zip(ids, ids[length:]):
            run = run + 1 if a == b else 0
            if run >= max(REPEATS * length, LEAST):
                return True
    return False


def mcnemar(lost, won):
    """Exact two-sided p of as unequal a split, or one more unequal, of the pairs that differ."""
    count, least = lost + won, min(lost, won)
    return min(1.0, 2 * sum(math.comb(count, k) for k in range(least + 1)) / 2 ** count) if count else 1.0
