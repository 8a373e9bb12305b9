"""The prompts of the tasks, as token ids: HumanEval plain and behind unrelated code, and needles."""
import glob
import json
import os
import random

BEHIND = 6000                      # tokens of unrelated code between a task and its question
NEEDLES = {4000: 8, 8000: 8, 16000: 8, 30000: 8}  # tokens: prompts


def chat(tokenizer, content):
    text = tokenizer.apply_chat_template([{"role": "user", "content": content}], tokenize=False, add_generation_prompt=True)
    return tokenizer(text, add_special_tokens=False)["input_ids"]


class Filler:
    """Code of Python's standard library."""

    def __init__(self, tokenizer):
        files = sorted(glob.glob(os.path.dirname(os.__file__) + "/*.py"))
        text = "\n".join(open(f, errors="ignore").read() for f in files)
        self.tokenizer, self.random = tokenizer, random.Random(0)
        self.ids = tokenizer(text[:1_000_000], add_special_tokens=False)["input_ids"]

    def text(self, tokens):
        begin = self.random.randrange(len(self.ids) - tokens)
        return self.tokenizer.decode(self.ids[begin:begin + tokens])


def human_eval(tokenizer, tasks):
    return [chat(tokenizer, "Complete this Python function. Answer with one code block that holds the whole function.\n\n"
                 f"```python\n{t['prompt']}```") for t in tasks]


def human_eval_behind(tokenizer, tasks, filler, tokens=BEHIND):
    """The settings before the task are longer than the sink window, so the task is read from codes."""
    before = "x = 1\n" * 40
    return [chat(tokenizer, f"First some unrelated settings:\n{before}\nHere is your task, called TASK: complete this Python function.\n\n"
                 f"```python\n{t['prompt']}```\n\nBelow is unrelated code of the standard library. Ignore it.\n\n{filler.text(tokens)}\n\n"
                 f"End of the unrelated code. Now do TASK: complete the Python function `{t['entry_point']}` that was given before the "
                 "unrelated code. Answer with one code block that holds the whole function.") for t in tasks]


def needles(tokenizer, filler, longest):
    """[(prompt, number to find)]: a sentence at an even depth of unrelated code."""
    made, numbers = [], random.Random(5)
    for tokens, count in NEEDLES.items():
        for i in range(count if tokens + 700 <= longest else 0):
            number, before = str(numbers.randrange(1_000_000, 10_000_000)), int((tokens - 200) * (i + .5) / count)
            made.append((chat(tokenizer, f"Remember the secret number that stands in this code.\n\n{filler.text(before)}\n\n# The secret number is "
                              f"{number}.\n\n{filler.text(tokens - 200 - before)}\n\nWhat is the secret number? Answer with the number alone."), number))
    return made


def of(tokenizer, work, limit):
    """{set: prompts} and the needles' numbers, made once for all caches of a model (prompts.json)."""
    path = work / "prompts.json"
    if not path.exists():
        tasks, filler = json.loads((work / "tasks.json").read_text())["he"], Filler(tokenizer)
        asked = needles(tokenizer, filler, limit)
        sets = {"he": human_eval(tokenizer, tasks), "he_behind": human_eval_behind(tokenizer, tasks, filler), "needles": [p for p, _ in asked]}
        part = path.with_suffix(f".{os.getpid()}")
        part.write_text(json.dumps([sets, [n for _, n in asked]]))
        part.rename(path)
    sets, numbers = json.loads(path.read_text())
    return sets, numbers
