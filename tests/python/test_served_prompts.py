"""Rows of request logs become the text that vLLM renders for the same request. vLLM's own code is the oracle: its protocol classes, its
converters of the Messages and the Responses API, its parser of chat messages. The templates are ours, by the structure of families."""
import json
import subprocess
import sys

import pytest

pytest.importorskip("vllm")
transformers = pytest.importorskip("transformers")

from conftest import BUILD_DIR, SOURCE_DIR

sys.path.insert(0, str(SOURCE_DIR / "tests" / "oracles"))
import vllm_prompts
from chat_templates import FAMILIES
from tool_templates import TOOL_FAMILIES

TURN = "<|{{ m.role }}|>"
TEMPLATES = {
    **{name: template for name, (_, template) in FAMILIES.items()},
    **TOOL_FAMILIES,
    # Roles that it names, and no others.
    "roles": "{% if tools %}{% for t in tools %}{{ t | tojson }}{% endfor %}{% endif %}{% for m in messages %}{% if m.role in ['system', 'user'] %}" + TURN +
             "{{ m.content }}{% elif m.role == 'assistant' %}<think>{{ m.reasoning_content }}</think>{{ m.content }}{% for c in m.tool_calls or [] %}"
             "<call>{{ c.function.name }} {{ c.function.arguments | tojson }}</call>{% endfor %}{% elif m.role == 'tool' %}<result>{{ m.content }}{% endif %}{% endfor %}",
    "developer": "{% for m in messages %}{% if m.role == 'developer' %}<dev>{% endif %}" + TURN + "{{ m.content }}{% endfor %}",
    # Lists of parts in user messages, something else in a tool's answer.
    "observations": "{% for m in messages %}{% if m.role == 'tool' %}<obs>{% if m.content is string %}{{ m.content }}{% else %}{% for t in m.content %}<r>"
                    "{{ t.name if t.type == 'tool_reference' else t }}</r>{% endfor %}{% endif %}{% else %}" + TURN +
                    "{% if m.content is string %}{{ m.content }}{% else %}{% for p in m.content %}{{ p.text | trim }}{% if p.type == 'image' %}<img>{% endif %}"
                    "{% endfor %}{% endif %}{% endif %}{% endfor %}",
    # The content goes through a macro, or through a variable that no server looks into.
    "macro": "{% macro w(x) %}{% if x is string %}{{ x }}{% else %}{% for p in x %}[{{ p.text or p.type }}]{% endfor %}{% endif %}{% endmacro %}{% for m in messages %}" +
             TURN + "{{ w(m.content) }}{% for c in m.tool_calls or [] %}{{ c.function | tojson }}{% endfor %}{% endfor %}",
    "macro-by-name": "{% macro w(m, x='') %}{% for p in x %}[{{ p.text or p.type }}]{% endfor %}{% endmacro %}{% for m in messages %}{{ w(m, x=m['content']) }}{% endfor %}",
    "hidden": "{% macro w(m) %}{% set c = m.get('content') %}{% if c is string %}{{ c }}{% else %}{% for p in c %}[{{ p.text or p.type }}]{% endfor %}{% endif %}"
              "{% endmacro %}{% for m in messages %}" + TURN + "{{ w(m) }}{% endfor %}",
    "alias": "{% set ns = namespace(rest=messages) %}{% set later = ns.rest[1:] %}{% for m in later %}{{ m.role }}{% for p in m.content | list %}[{{ p.text or p.type }}]{% endfor %}{% endfor %}",
    "variable": "{% for m in messages %}{% set content = m.content %}{% if content is string %}{{ content }}{% else %}{% for p in content %}[{{ p.text or p.type }}]{% endfor %}{% endif %}{% endfor %}",
    # Members that a server keeps to itself, and those of parts that it passes on.
    "members": "{% for m in messages %}{{ m.role }}{{ m.thinking }}{{ m.tool_calls }}{{ m.prefix }}{{ m.name }}{{ m.tool_call_id }}{{ m.tool_plan }}{{ m.reasoning }}{{ m.task }}"
               "{{ m.tools }}{{ m.weight }}{% if m.content is string %}{{ m.content }}{% else %}{% for p in m.content %}{{ p | tojson }}{% endfor %}{% endif %}{% endfor %}",
    # A system message comes first; efforts of reasoning.
    "system-first": "{% for m in messages %}{% if m.role == 'system' and not loop.first %}{{ raise_exception('System message must be at the beginning.') }}{% endif %}" + TURN +
                    "{{ m.content }}{% if m.reasoning %}<r>{{ m.reasoning }}{% endif %}{% endfor %}{{ tools }}",
    "generation": "{% for m in messages %}" + TURN + "{% generation %}{{ m.content }}{% endgeneration %}{% endfor %}",
    "thinking": "{% for m in messages %}" + TURN + "{{ m.content }}{% endfor %}{% if enable_thinking is false %}<think></think>{% endif %}",
    "efforts": "{% if reasoning_effort == 'none' %}{{ raise_exception('no such effort') }}{% endif %}{{ reasoning_effort }}{{ enable_thinking }}{% for m in messages %}{{ m.content }}{% endfor %}",
    "effort-or-max": "{{ reasoning_effort if reasoning_effort in ['low', 'high'] else 'max' }}{% for m in messages %}{{ m.content }}{% endfor %}",
}  # fmt: skip

ASK, DONE = {"role": "user", "content": "Which hall has the pump?"}, {"role": "assistant", "content": " The north hall. "}
FUNCTION = {"name": "state", "description": "State of a pump", "parameters": {"type": "object", "properties": {"hall": {"type": "string"}}}}
TOOL = {"type": "function", "function": FUNCTION}


def called(arguments='{"hall": "north"}', **more):
    return {"role": "assistant", "content": None, "tool_calls": [{"id": "call00001", "type": "function", "function": {"name": "state", "arguments": arguments}}], **more}


def result(content):
    return {"role": "tool", "tool_call_id": "call00001", "content": content}


def texts(*parts, kind="text"):
    return [{"type": kind, "text": text} for text in parts]


CHATS = [
    {"messages": [{"role": "developer", "content": "Be brief."}, ASK, DONE]},
    {"messages": [{"role": "developer", "content": texts("Be", "brief.")}, ASK, DONE, {"role": "developer", "content": "Now be long."}, ASK]},
    {"messages": [{"role": "system", "content": "One."}, {"role": "developer", "content": "Two.", "tools": [TOOL]}, ASK]},
    {"messages": [{"role": "system", "content": "x-anthropic-billing-header: a=b\nOne."}, ASK]},
    {"messages": [{"role": "system", "content": texts("x-anthropic-billing-header: a=b", "One.")}, ASK]},
    {"messages": [ASK, called(), result(texts("running", "since nine")), DONE], "tools": [TOOL]},
    {"messages": [ASK, called(), result([]), DONE, ASK]},
    {"messages": [ASK, called(), result([{"type": "tool_reference", "name": "state"}]), DONE]},
    {"messages": [dict(ASK, content=texts(" a ", "b"))]},
    {"messages": [dict(ASK, content=[*texts("a"), {"type": "refusal", "refusal": "b"}, *texts("c", kind="input_text"), {"type": "thinking", "thinking": "d", "closed": True}])]},
    *({"messages": [ASK, called(a), result("invalid"), DONE]} for a in ('{"hall": "nor', "", "[]", "[1]", "7", "null", '"a"', "{}", '{"a": NaN}', '{"a": {"b": [1, "\u00e9"]}}')),
    {"messages": [ASK, dict(DONE, tool_calls=[]), ASK]},
    {"messages": [ASK, dict(DONE, reasoning_content="hm"), ASK]},
    {"messages": [ASK, dict(DONE, reasoning="hm", content=texts("a", "b")), ASK]},
    {"messages": [ASK], "tools": [{"function": {"parameters": {"type": "object"}, "name": "now", "returns": "time"}, "type": "function", "id": 3}]},
    {"messages": [ASK], "tools": [{"type": "function", "function": {**FUNCTION, "strict": True}, "defer_loading": True}]},
    {"messages": [dict(ASK, prefix=True, name="n", tool_call_id="x", reasoning="r", tool_calls=called()["tool_calls"], weight=1, tools=[TOOL]),
                  dict(DONE, tool_plan="p", thinking="t", name="m", task="k", tool_call_id="y"), dict(result("x"), name="f", thinking="t"),
                  {"role": "other", "content": "c", "reasoning": "r"}, {"role": "developer", "content": "d", "tools": [TOOL]}]},
    {"messages": [dict(ASK, content=[{"type": "text", "text": "a", "cache_control": {"type": "ephemeral"}, "closed": True}, {"type": "refusal", "refusal": "b", "title": "t"}])]},
    {"messages": [ASK, called(), result([{"type": "text", "text": "a", "title": "t"}]), DONE]},
    {"messages": [ASK, called("\ufeff{}"), result("x"), DONE]},
    {"messages": [dict(ASK, content=texts("", "a", "", "b")), called(), result(texts("", "x")), {"role": "developer", "content": texts("", "y")}]},
    {"messages": [ASK, {"role": "developer", "content": [{"type": "tool_reference", "name": "state"}, *texts("a", "b")]}]},
    {"messages": [ASK, dict(called(), content=[{"type": "thinking", "thinking": "Ask the tool."}, *texts("I ask.")]), result("x"), DONE]},
    {"messages": [ASK], "reasoning_effort": "low"},
    {"messages": [ASK], "reasoning_effort": "none"},
    {"messages": [ASK], "reasoning_effort": "high", "chat_template_kwargs": {"enable_thinking": False}},
    {"messages": [ASK], "chat_template_kwargs": {"reasoning_effort": "low"}},
]  # fmt: skip

FLAT = {"type": "function", **FUNCTION}
CALL = {"type": "function_call", "call_id": "call00001", "name": "state", "arguments": '{"hall": "north"}'}
OUTPUT = {"type": "function_call_output", "call_id": "call00001", "output": "running since nine"}
THOUGHT = {"type": "reasoning", "id": "r", "summary": [], "content": [{"type": "reasoning_text", "text": "Ask the tool."}]}
SAID = {"type": "message", "role": "assistant", "content": texts("I ask.", kind="output_text")}
RESPONSES = [
    {"input": "Which hall?"},
    {"input": "Which hall?", "instructions": "Be brief."},
    {"input": [ASK, DONE, ASK], "tools": [FLAT]},
    {"input": [{"role": "developer", "content": "Be long."}, ASK], "instructions": "Be brief."},
    {"input": [dict(ASK, content=texts("a", "b", kind="input_text"))], "tools": [{**FLAT, "strict": True}]},
    {"input": [ASK, CALL, OUTPUT, DONE], "tools": [FLAT]},
    {"input": [ASK, THOUGHT, SAID, CALL, {**CALL, "call_id": "call00002"}, OUTPUT, {**OUTPUT, "call_id": "call00002"}, DONE, ASK]},
    {"input": [ASK, SAID, THOUGHT, CALL, {**OUTPUT, "output": texts("a", "b", kind="input_text")}, THOUGHT, DONE]},
    {"input": [ASK, {**THOUGHT, "content": None, "summary": [{"type": "summary_text", "text": "In short."}]}, DONE, ASK]},
    {"input": [ASK, {"type": "custom_tool_call", "call_id": "call00001", "name": "note", "input": "free"},
               {"type": "custom_tool_call_output", "call_id": "call00001", "output": "kept"}, DONE],
     "tools": [{"type": "custom", "name": "note", "description": "Keeps a note"}, FLAT]},
    {"input": [ASK, CALL, OUTPUT], "tools": [{"type": "namespace", "name": "pumps", "description": "d", "tools": [FLAT]}]},
    {"input": [ASK, {**CALL, "namespace": "pumps"}, OUTPUT], "reasoning": {"effort": "low"}},
    {"input": [ASK, {**SAID, "id": "m", "status": "completed", "content": [dict(t, annotations=[]) for t in texts("a", "b", kind="output_text")]}, ASK]},
    {"input": [ASK], "tools": [{"type": "namespace", "name": "pumps", "description": "d", "tools": [FLAT, {"type": "custom", "name": "c"}]}]},
    {"input": [{"role": "system", "content": texts("x-anthropic-billing-header: a=b", "c", kind="input_text")}, ASK]},
    {"input": [ASK], "tools": [{"type": "web_search"}, FLAT], "reasoning": {"effort": "none"}},
]  # fmt: skip

USE = {"type": "tool_use", "id": "call00001", "name": "state", "input": {"hall": "north"}}
ANSWER = {"type": "tool_result", "tool_use_id": "call00001", "content": "running since nine"}
SCHEMA = {"name": "state", "description": "State of a pump", "input_schema": {"properties": {"hall": {"type": "string"}}}}
THINKING = {"type": "thinking", "thinking": "Ask the tool.", "signature": "x"}
IMAGE = {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": "AA=="}}


def blocks(role, *content):
    return {"role": role, "content": list(content)}


MESSAGES = [
    {"messages": [ASK, blocks("assistant", THINKING, *texts("I ask."), USE), blocks("user", ANSWER), DONE], "tools": [SCHEMA]},
    {"messages": [ASK, blocks("assistant", USE, {**USE, "id": "call00002", "input": {}}),
                  blocks("user", ANSWER, {**ANSWER, "tool_use_id": "call00002", "content": texts("a", "b")}, *texts("And now?"))], "system": "Be brief."},
    {"messages": [ASK], "system": [{"type": "text", "text": "x-anthropic-billing-header: cch=1"}, *texts("Be ", "brief.")]},
    {"messages": [ASK, blocks("assistant", *texts("a", "", "b")), blocks("system", *texts("Now be ", "long.")), ASK], "system": "Be brief."},
    {"messages": [ASK, blocks("assistant", USE), blocks("user", ANSWER), {"role": "system", "content": "A reminder."}, DONE, ASK]},
    {"messages": [ASK, blocks("assistant", {"type": "redacted_thinking", "data": "x"}, THINKING, {**THINKING, "thinking": " Then answer."}, *texts("Yes.")), ASK]},
    {"messages": [ASK, blocks("assistant", USE), blocks("user", {**ANSWER, "content": None}), blocks("assistant"), ASK]},
    {"messages": [ASK, blocks("assistant", USE), blocks("user", {**ANSWER, "content": [*texts("a"), {"type": "tool_reference", "tool_name": "state"}]}), ASK],
     "tools": [{**SCHEMA, "strict": False, "defer_loading": True}, {"name": "now", "input_schema": {"type": "object"}}]},
    {"messages": [ASK], "system": "x-anthropic-billing-header: cch=1\nBe brief."},
    {"messages": [ASK, blocks("system", {"type": "tool_addition", "tool": {"type": "tool_definition", "definition": SCHEMA}}), DONE]},
    {"messages": [ASK, blocks("system", *texts("New ", "tools."), {"type": "tool_addition", "tool": {"type": "tool_reference", "name": "state"}},
                              {"type": "tool_removal", "tool": {"type": "tool_reference", "name": "now"}}), ASK],
     "tools": [{**SCHEMA, "defer_loading": True}, {"name": "now", "input_schema": {"type": "object"}}]},
    {"messages": [ASK], "thinking": {"type": "disabled"}},
    {"messages": [ASK], "thinking": {"type": "enabled", "budget_tokens": 2000}, "output_config": {"effort": "low"}},
    {"messages": [ASK], "thinking": {"type": "disabled"}, "output_config": {"effort": "high"}},
    {"messages": [ASK, blocks("assistant", ANSWER, *texts("b"))]},
    {"messages": [ASK, blocks("assistant", {**ANSWER, "content": []}, *texts("b"))]},
    # Only the tools tell whose request it is.
    {"messages": [blocks("system", *texts("Be ", "brief.")), ASK, {"role": "system", "content": "Now be long."}, ASK], "tools": [SCHEMA]},
]  # fmt: skip


@pytest.fixture(scope="module")
def tokenizer():
    from tokenizers import Tokenizer, models

    return transformers.PreTrainedTokenizerFast(tokenizer_object=Tokenizer(models.BPE(vocab={"a": 0}, merges=[])), bos_token="<s>", eos_token="</s>")


def ours(folder, template, rows):
    (folder / "tokenizer_config.json").write_text(json.dumps({"bos_token": "<s>", "eos_token": "</s>", "chat_template": template}))
    done = subprocess.run([str(BUILD_DIR / "tests/oscar_render"), str(folder), "rows"], input="".join(json.dumps(row) + "\n" for row in rows),
                          capture_output=True, text=True)  # fmt: skip
    assert done.returncode == 0, done.stderr
    return [json.loads(line) for line in done.stdout.splitlines()[1:]]


@pytest.mark.parametrize("template", TEMPLATES)
@pytest.mark.parametrize("api", ["chat", "responses", "anthropic"])
def test_prompts_are_those_of_the_server(tmp_path, tokenizer, api, template):
    bodies = {"chat": CHATS, "responses": RESPONSES, "anthropic": MESSAGES}[api]
    source = TEMPLATES[template]
    asked = [{**body, "add_generation_prompt": True} for body in bodies]
    replies = ours(tmp_path, source, [{"body": body} for body in asked])
    whole = ours(tmp_path, source, asked)
    equal = 0
    for body, reply, alone in zip(bodies, replies, whole, strict=True):
        try:
            expected = getattr(vllm_prompts, api)(tokenizer, source, body, True)
        except vllm_prompts.VLLMValidationError as e:
            assert "cannot render" in reply.get("error", ""), (body, e, reply)
            continue
        assert reply.get("text") == expected, (body, reply)
        if not isinstance(body.get("input"), str):
            assert alone.get("text") == expected, (body, alone)
        equal += 1
    assert equal >= len(bodies) // 3, equal
