"""Chat templates that render tools, calls, documents and parts of contents, written for these tests with the structure of
published families, and dialogues for them."""

# Tools in the system turn as JSON lines; calls as JSON; replies gathered in one user turn.
HERMES = """{%- if tools %}
    {{- '<|im_start|>system\\n' }}
    {%- if messages[0].role == 'system' %}{{- messages[0].content + '\\n\\n' }}{%- endif %}
    {{- "# Tools\\n<tools>" }}
    {%- for tool in tools %}{{- "\\n" }}{{- tool | tojson }}{%- endfor %}
    {{- "\\n</tools><|im_end|>\\n" }}
{%- elif messages[0].role == 'system' %}
    {{- '<|im_start|>system\\n' + messages[0].content + '<|im_end|>\\n' }}
{%- endif %}
{%- for message in messages %}
    {%- if message.role == 'user' or (message.role == 'system' and not loop.first) or (message.role == 'assistant' and not message.tool_calls) %}
        {{- '<|im_start|>' + message.role + '\\n' + (message.content or '') + '<|im_end|>\\n' }}
    {%- elif message.role == 'assistant' %}
        {{- '<|im_start|>assistant' }}
        {%- if message.content %}{{- '\\n' + message.content }}{%- endif %}
        {%- for call in message.tool_calls %}
            {%- if call.function is defined %}{%- set call = call.function %}{%- endif %}
            {{- '\\n<call>\\n{"name": "' }}{{- call.name }}{{- '", "arguments": ' }}
            {{- call.arguments if call.arguments is string else call.arguments | tojson }}
            {{- '}\\n</call>' }}
        {%- endfor %}
        {{- '<|im_end|>\\n' }}
    {%- elif message.role == 'tool' %}
        {%- if loop.first or messages[loop.index0 - 1].role != 'tool' %}{{- '<|im_start|>user' }}{%- endif %}
        {{- '\\n<reply>\\n' }}{{- message.content }}{{- '\\n</reply>' }}
        {%- if loop.last or loop.nextitem.role != 'tool' %}{{- '<|im_end|>\\n' }}{%- endif %}
    {%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '<|im_start|>assistant\\n' }}
    {%- if enable_thinking is defined and enable_thinking is false %}{{- '<think>\\n\\n</think>\\n\\n' }}{%- endif %}
{%- endif %}"""

# Tools with an indent in the first question, today's date, one call at a time with arguments as Python writes them.
LLAMA_TOOLS = """{{- bos_token }}
{%- if custom_tools is defined %}{%- set tools = custom_tools %}{%- endif %}
{%- if not date_string is defined %}
    {%- if strftime_now is defined %}{%- set date_string = strftime_now("%d %b %Y") %}{%- else %}{%- set date_string = "26 Jul 2024" %}{%- endif %}
{%- endif %}
{%- if messages[0]['role'] == 'system' %}
    {%- set system_message = messages[0]['content'] | trim %}
    {%- set messages = messages[1:] %}
{%- else %}
    {%- set system_message = "" %}
{%- endif %}
{{- "<|start_header_id|>system<|end_header_id|>\\n\\nToday: " + date_string + "\\n\\n" + system_message + "<|eot_id|>" }}
{%- if tools is not none and messages | length != 0 %}
    {%- set first = messages[0]['content'] | trim %}
    {%- set messages = messages[1:] %}
    {{- '<|start_header_id|>user<|end_header_id|>\\n\\n' }}
    {%- for t in tools %}{{- t | tojson(indent=4) }}{{- "\\n\\n" }}{%- endfor %}
    {{- first + "<|eot_id|>" }}
{%- endif %}
{%- for message in messages %}
    {%- if not (message.role in ['ipython', 'tool'] or 'tool_calls' in message) %}
        {{- '<|start_header_id|>' + message['role'] + '<|end_header_id|>\\n\\n' + message['content'] | trim + '<|eot_id|>' }}
    {%- elif 'tool_calls' in message %}
        {%- if not message.tool_calls | length == 1 %}{{- raise_exception("One call at a time.") }}{%- endif %}
        {%- set call = message.tool_calls[0].function %}
        {{- '<|start_header_id|>assistant<|end_header_id|>\\n\\n' }}
        {%- if builtin_tools is defined and call.name in builtin_tools %}
            {{- "<|python_tag|>" + call.name + ".call(" }}
            {%- for name, value in call.arguments | items %}
                {{- name + '="' ~ value ~ '"' }}{%- if not loop.last %}{{- ", " }}{%- endif %}
            {%- endfor %}
            {{- ")" }}
        {%- else %}
            {{- '{"name": "' + call.name + '", "parameters": ' }}{{- call.arguments | tojson }}{{- "}" }}
        {%- endif %}
        {{- "<|eot_id|>" }}
    {%- else %}
        {{- "<|start_header_id|>ipython<|end_header_id|>\\n\\n" }}
        {%- if message.content is mapping or message.content is iterable %}{{- message.content | tojson }}{%- else %}{{- message.content }}{%- endif %}
        {{- "<|eot_id|>" }}
    {%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}{{- '<|start_header_id|>assistant<|end_header_id|>\\n\\n' }}{%- endif %}"""

# Tools before the last question, members picked one by one; ids of calls are checked.
MISTRAL_TOOLS = """{%- set loop_messages = messages[1:] if messages[0]["role"] == "system" else messages %}
{%- set user_messages = loop_messages | selectattr("role", "equalto", "user") | list %}
{{- bos_token }}
{%- for message in loop_messages %}
    {%- if message["role"] == "user" %}
        {%- if tools is not none and (message == user_messages[-1]) %}
            {{- "[AVAILABLE_TOOLS] [" }}
            {%- for tool in tools %}
                {%- set tool = tool.function %}
                {{- '{"type": "function", "function": {' }}
                {%- for key, val in tool.items() if key != "return" %}
                    {%- if val is string %}{{- '"' + key + '": "' + val + '"' }}{%- else %}{{- '"' + key + '": ' + val | tojson }}{%- endif %}
                    {%- if not loop.last %}{{- ", " }}{%- endif %}
                {%- endfor %}
                {{- "}}" }}
                {%- if not loop.last %}{{- ", " }}{%- else %}{{- "]" }}{%- endif %}
            {%- endfor %}
            {{- "[/AVAILABLE_TOOLS]" }}
        {%- endif %}
        {{- "[INST] " + message["content"] + "[/INST]" }}
    {%- elif message.tool_calls is defined and message.tool_calls is not none and message.tool_calls | length > 0 %}
        {{- "[TOOL_CALLS] [" }}
        {%- for tool_call in message.tool_calls %}
            {%- set out = tool_call.function | tojson %}
            {{- out[:-1] }}
            {%- if not tool_call.id is defined or tool_call.id | length != 9 %}{{- raise_exception("Ids of calls have 9 letters.") }}{%- endif %}
            {{- ', "id": "' + tool_call.id + '"}' }}
            {%- if not loop.last %}{{- ", " }}{%- else %}{{- "]" + eos_token }}{%- endif %}
        {%- endfor %}
    {%- elif message["role"] == "assistant" %}
        {{- " " + message["content"] | trim + eos_token }}
    {%- elif message["role"] == "tool" %}
        {%- if message.content is defined and message.content.content is defined %}{%- set content = message.content.content %}{%- else %}{%- set content = message.content %}{%- endif %}
        {{- '[TOOL_RESULTS] {"content": ' + content | string + ', "call_id": "' + message.tool_call_id + '"}[/TOOL_RESULTS]' }}
    {%- endif %}
{%- endfor %}"""

# Macros that write the schema of a tool as types; thoughts; a default for the effort.
TYPES = """{%- macro render_type(spec, required, nullable=false) -%}
    {%- if spec.type == "array" -%}
        {%- if spec['items'] -%}{{- render_type(spec['items'], required) }}[]{%- else -%}any[]{%- endif -%}
    {%- elif spec.type is defined and spec.type is iterable and spec.type is not string and spec.type is not mapping and spec.type[0] is defined -%}
        {{- spec.type | join(" | ") }}
    {%- elif spec.oneOf -%}
        {%- for variant in spec.oneOf -%}{{- render_type(variant, required) }}{%- if not loop.last %}{{- " | " }}{%- endif -%}{%- endfor -%}
    {%- elif spec.type == "string" -%}
        {%- if spec.enum -%}{{- '"' + spec.enum | join('" | "') + '"' -}}{%- else -%}string{%- if nullable %} | null{%- endif -%}{%- endif -%}
    {%- elif spec.type in ["number", "integer"] -%}number
    {%- elif spec.type == "object" and spec.properties -%}
        {{- "{\\n" }}
        {%- for name, property in spec.properties.items() -%}
            {{- name -}}{%- if name not in (spec.required or []) -%}?{%- endif -%}{{- ": " }}{{ render_type(property, spec.required or []) }}
            {%- if property.default is defined %}{{- " // default: " ~ (property.default if property.default is string else property.default | tojson) }}{%- endif -%}
            {{- "\\n" if loop.last else ",\\n" }}
        {%- endfor -%}
        {{- "}" }}
    {%- else -%}any{%- endif -%}
{%- endmacro -%}
{%- if reasoning_effort is not defined %}{%- set reasoning_effort = "medium" %}{%- endif %}
{{- "<start>system<message>effort: " + reasoning_effort + "<end>" }}
{%- if tools %}
    {{- "<start>developer<message>" }}
    {%- for tool in tools %}
        {%- set tool = tool.function %}
        {{- "// " + tool.description + "\\ntype " + tool.name + " = (" }}
        {%- if tool.parameters and tool.parameters.properties %}{{- "_: " }}{{ render_type(tool.parameters, []) }}{%- endif %}
        {{- ") => any;\\n" }}
    {%- endfor %}
    {{- "<end>" }}
{%- endif %}
{%- set ns = namespace(last_call=none, calls=0) %}
{%- for message in messages %}
    {%- if message.role == 'assistant' %}
        {%- if message.thinking %}{{- "<start>assistant<channel>analysis<message>" + message.thinking + "<end>" }}{%- endif %}
        {%- if message.tool_calls %}
            {%- set call = message.tool_calls[0].function %}
            {%- set ns.last_call = call.name %}
            {%- set ns.calls = ns.calls + message.tool_calls | length %}
            {{- "<start>assistant to=" + call.name + "<message>" }}{{- call.arguments | tojson }}{{- "<call>" }}
        {%- else %}
            {{- "<start>assistant<message>" ~ message.content ~ "<end>" }}
        {%- endif %}
    {%- elif message.role == 'tool' %}
        {%- if ns.last_call is none %}{{- raise_exception("A reply without a call") }}{%- endif %}
        {{- "<start>" + ns.last_call + "<message>" + message.content | tojson + "<end>" }}
    {%- else %}
        {{- "<start>" + message.role + "<message>" ~ message.content ~ "<end>" }}
    {%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}{{- "<start>assistant" }}{%- endif %}{{- "\\n" ~ ns.calls }}"""

# Documents with their members in order, compact JSON, keys sorted, escapes beyond ASCII.
DOCUMENTS = """{{ bos_token }}{% if documents %}{% for document in documents %}Document: {{ loop.index0 }} of {{ loop.length }}
{% for key, value in document | dictsort %}{{ key | title }}: {{ value }}
{% endfor %}{% endfor %}{% endif %}
{%- if tools %}{{ tools | tojson(separators=(',', ':')) }}|{{ tools | tojson(ensure_ascii=True, sort_keys=True) }}|{{ tools | map(attribute='function.name') | join(', ') }}{% endif %}
{%- for m in messages %}[{{ m.role | upper }}]{{ m.content if m.content is not none else '-' }}{% if m.tool_calls %}{{ m.tool_calls }}{% endif %}{% endfor %}
{%- for name, value in (flags or {}).items() %}{{ name }}={{ value }};{% endfor %}{{ level | default('low') }}"""

# Parts of contents, of which only the text is written; media leave a mark.
PARTS = """{{ bos_token }}{%- for message in messages -%}
{%- set role = 'model' if message.role == 'assistant' else message.role -%}
{{ '<turn>' + role + '\n' }}
{%- if message.content is string -%}{{ message.content | trim }}
{%- elif message.content is iterable -%}
    {%- for item in message.content -%}
        {%- if item.type == 'image' or 'image_url' in item -%}{{ '<image>' }}
        {%- elif item['type'] == 'text' -%}{{ item.text | trim }}{%- endif -%}
    {%- endfor -%}
{%- endif -%}
{{ '</turn>\n' }}{%- endfor -%}{%- if add_generation_prompt -%}{{ '<turn>model\n' }}{%- endif -%}"""

TOOL_FAMILIES = {
    "hermes": HERMES,
    "llama": LLAMA_TOOLS,
    "mistral": MISTRAL_TOOLS,
    "types": TYPES,
    "documents": DOCUMENTS,
    "parts": PARTS,
}

WEATHER = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "description": "Weather at a place, caf\u00e9 \U0001f600 <b>'q' \"d\"</b>",
        "parameters": {
            "type": "object",
            "properties": {
                "place": {"type": "string", "description": "City \\ country"},
                "unit": {"type": "string", "enum": ["C", "F"], "default": "C"},
                "days": {"type": "array", "items": {"type": "integer"}, "default": [1, 2.5, 1e-7, 1e20, None, True]},
                "extra": {"type": ["string", "null"]},
                "either": {"oneOf": [{"type": "number"}, {"type": "object", "properties": {"x": {"type": "any"}}}]},
            },
            "required": ["place"],
        },
        "return": {"type": "string"},
    },
}
EMPTY = {"type": "function", "function": {"name": "now", "description": "The time", "parameters": {"type": "object", "properties": {}}}}


def call(name, arguments, number="abcdefgh1"):
    return {"id": number, "type": "function", "function": {"name": name, "arguments": arguments}}


def rows():
    """What apply_chat_template is called with; "variables" are its further keyword arguments."""
    ask = {"role": "user", "content": "Is it warm?"}
    args = {"place": "Z\u00fcrich", "days": [1, 2], "deep": {"a": None, "b": False, "c": 0.1}, "quote": "it's \"q\"\n"}
    called = {"role": "assistant", "content": None, "tool_calls": [call("get_weather", args)]}
    reply = {"role": "tool", "name": "get_weather", "tool_call_id": "abcdefgh1", "content": '{"t": 21.5}'}
    done = {"role": "assistant", "content": "21.5 degrees."}
    two = {"role": "assistant", "content": "Both.", "tool_calls": [call("now", {}), call("get_weather", '{"place": "x"}', "abcdefgh2")]}
    thought = {"role": "assistant", "content": "Yes.", "reasoning_content": "hm"}
    system = {"role": "system", "content": " Be brief. "}
    parts = {"role": "user", "content": [{"type": "text", "text": " What is this? "}, {"type": "image"}, {"type": "text", "text": "And\nthis?"}]}
    documents = [{"title": "One", "text": "First \u00e9."}, {"title": "Two", "text": "Second.", "year": 2020}]
    return [
        {"messages": [ask], "tools": [WEATHER]},
        {"messages": [system, ask, called, reply, done], "tools": [WEATHER, EMPTY]},
        {"messages": [ask, called, reply], "tools": [WEATHER, EMPTY]},
        {"messages": [ask, two, reply, dict(reply, content="noon"), done, ask], "tools": [EMPTY]},
        {"messages": [ask, called, dict(reply, content=[1, {"a": "b"}]), done]},
        {"messages": [ask, called, dict(reply, content={"content": 5})], "tools": [WEATHER]},
        {"messages": [ask], "tools": []},
        {"messages": [parts]},
        {"messages": [system, parts, done, parts], "tools": [WEATHER]},
        {"messages": [dict(parts, content=[])]},
        {"messages": [ask, {"role": "assistant", "content": None}, ask]},
        {"messages": [ask, {"role": "assistant"}, ask]},
        {"messages": [ask, dict(done, tool_calls=None, reasoning=None)]},
        {"messages": [ask, dict(done, tool_calls=[])]},
        {"messages": [ask, thought, ask], "variables": {"reasoning_effort": "high"}},
        {"messages": [ask, dict(thought, thinking="other"), ask]},
        {"messages": [ask, {"role": "assistant", "content": "x", "reasoning": "r"}, ask]},
        {"messages": [ask], "variables": {"enable_thinking": False}},
        {"messages": [ask], "variables": {"enable_thinking": True, "level": 1e16, "flags": {"a": [1, "b"], "b": {"c": [1.0, None]}}}},
        {"messages": [ask], "documents": documents},
        {"messages": [system, ask], "documents": documents, "tools": [EMPTY]},
        {"messages": [ask, called], "variables": {"builtin_tools": ["get_weather"], "date_string": "1 Jan 2000", "bos_token": "<bos>"}},
        {"messages": [ask, called, reply], "variables": {"custom_tools": [EMPTY]}, "tools": [WEATHER]},
        {"messages": [ask, dict(called, tool_calls=[dict(call("now", {"s": "\x00\x1f\x7f\u2028\u200b\ue000"}))])]},
    ]  # fmt: skip
