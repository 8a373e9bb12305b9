"""The prompts of the tasks, as token ids: HumanEval plain and behind unrelated code, needles, variables to track, a passage to quote, and the next
call of recorded sessions of agents. What answers are held against goes with them."""
import glob
import json
import os
import random

import kinds

BEHIND = 6000                      # tokens of unrelated code between a task and its question
NEEDLES = {4000: 8, 8000: 8, 16000: 8, 30000: 8}  # tokens: prompts
QUOTES, QUOTED_LINES, QUOTE_AFTER = 32, 4, 3000
CALLS, CALL_TOKENS = 40, (8000, 30000)  # sessions to go on with, and their tokens


def chat(tokenizer, content):
    if tokenizer.chat_template is None:
        return tokenizer(content + "\n")["input_ids"]
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


def variables(tokenizer, filler, longest):
    """[(prompt, names to find)]: one number given from variable to variable, at even places of unrelated code."""
    made, draw = [], random.Random(6)
    for tokens, count in NEEDLES.items():
        for _ in range(count if tokens + 700 <= longest else 0):
            number, names = draw.randrange(10_000, 100_000), [f"VAR_{draw.randrange(1000, 10000)}" for _ in range(4)]
            parts = [f"# {name} = {before}" for name, before in zip(names, [number, *names])]
            text = "\n\n".join(f"{filler.text((tokens - 300) // 4)}\n\n{part}" for part in parts)
            made.append((chat(tokenizer, f"Follow the variables that begin with VAR_ in this code.\n\n{text}\n\nFour variables have the value {number}. "
                              "Answer with their four names alone."), names))
    return made


def quotes(tokenizer, filler):
    """[(prompt, passage)]: lines of code that are to be written once more after QUOTE_AFTER tokens of other code."""
    made, draw = [], random.Random(7)
    documents = [[line for line in text.splitlines() if 30 < len(line) < 90] for text in kinds.library()]
    for lines in draw.sample([lines for lines in documents if len(lines) > 40], QUOTES):
        begin = draw.randrange(len(lines) - QUOTED_LINES)
        passage = "\n".join(lines[begin:begin + QUOTED_LINES])
        made.append((chat(tokenizer, f"{'x = 1' + chr(10)}" * 40 + f"Here is the passage QUOTE:\n\n```\n{passage}\n```\n\nBelow is other code.\n\n"
                          f"{filler.text(QUOTE_AFTER)}\n\nWrite the passage QUOTE once more, word for word, in one code block, and nothing else."), passage))
    return made


def next_calls(tokenizer, sessions, longest):
    """[(prompt, what the session says of its tools)]: sessions that end where the assistant called a tool. As schema stands what the calls before say:
    for each tool the arguments that all of its calls have, and all that any has."""
    made, draw = [], random.Random(8)
    least, most = CALL_TOKENS
    for messages in sessions:
        text, tools = "", {}
        for message in messages:
            turn = f"<|im_start|>{message['role']}\n"
            called = kinds.calls(message["content"]) if message["role"] == "assistant" else []
            if called and called[0][1] is not None and called[0][0] in tools:
                before = message["content"].split("[Tool:")[0]
                made.append((text + turn + before + "[Tool:", called[0][0], {name: [sorted(needed), sorted(known)] for name, (needed, known) in tools.items()}))
            for name, given in called:
                needed, known = tools.get(name, (set(given or {}), set()))
                tools[name] = (needed & set(given or {}), known | set(given or {}))
            text += f"{turn}{message['content']}<|im_end|>\n"
    draw.shuffle(made)
    found = []
    for text, tool, tools in made:
        if len(found) < CALLS and 3 * least < len(text) < 5 * most:
            ids = tokenizer(text, add_special_tokens=False)["input_ids"]
            if least <= len(ids) <= min(most, longest - 700):
                found.append((ids, {"tool": tool, "tools": tools}))
    return found


def of(tokenizer, work, limit):
    """{set: prompts} and {set: what its answers are held against}, made once for all caches of a model (prompts.json)."""
    path = work / "prompts.json"
    if not path.exists():
        tasks, filler = json.loads((work / "tasks.json").read_text())["he"], Filler(tokenizer)
        asked = {"needles": needles(tokenizer, filler, limit)}
        sets = {"he": human_eval(tokenizer, tasks), "he_behind": human_eval_behind(tokenizer, tasks, filler)}
        asked |= {"variables": variables(tokenizer, filler, limit), "quotes": quotes(tokenizer, filler)}
        if (work / "sessions.json").exists():
            asked["calls"] = next_calls(tokenizer, json.loads((work / "sessions.json").read_text()), limit)
        sets |= {name: [prompt for prompt, _ in made] for name, made in asked.items()}
        part = path.with_suffix(f".{os.getpid()}")
        part.write_text(json.dumps([sets, {name: [wanted for _, wanted in made] for name, made in asked.items()}]))
        part.rename(path)
    return json.loads(path.read_text())
