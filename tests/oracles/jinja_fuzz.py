"""Random templates over the variables of test_chat.py, most of them well formed."""

NAMES = ["name", "empty", "number", "negative", "half", "yes", "nothing", "items", "numbers", "table", "missing", "messages", "x", "y"]
STRINGS = ["'a'", "' b\\n'", "''", "'role'", "'x'", "\"</think>\"", "'\u00e9'", "'a-b'", "'b'"]
FILTERS = ["trim", "length", "default('d')", "default(0, true)", "lower", "upper", "first", "last", "list", "string", "int", "tojson", "join",
           "join('-')", "reverse", "replace('a', 'bb')", "map('string')|list", "select|list", "items|list", "capitalize", "sort|list", "unique|list", "batch(2)|list",
           "round(1)", "float(0.5)", "e", "tojson(indent=1)", "sort(reverse=true)", "sum",
           "dictsort", "map(attribute='role')|list", "selectattr('role')|list", "safe", "abs", "title", "indent(2)"]  # fmt: skip
TESTS = ["defined", "not defined", "none", "not none", "string", "mapping", "iterable", "sequence", "number", "integer", "boolean", "true",
         "odd", "divisibleby(2)", "in items", "eq 1", "undefined", "float"]  # fmt: skip
METHODS = ["strip()", "lstrip('a')", "split('-')", "split()", "startswith('a')", "endswith('b')", "upper()", "replace('a', 'c')", "find('b')",
           "get('a')", "items()", "keys()", "split('-', 1)", "rsplit('-', 1)", "count('a')",
           "partition('a')", "index('a')", "format(1, x)", "title()", "isdigit()", "copy()", "splitlines()"]  # fmt: skip
OPERATORS = ["+", "-", "*", "//", "%", "/", "~", "==", "!=", "<", ">", "<=", ">=", "in", "not in", "and", "or"]
SPACE = ["", "", "", " ", "\n", "  \n", "\n  ", "t", "\u00e9 "]


def expression(rng, depth):
    kind = rng.random()
    if depth <= 0 or kind < 0.25:
        return rng.choice([rng.choice(NAMES), rng.choice(NAMES), rng.choice(STRINGS), str(rng.randint(0, 9)), "true", "none", "1.5"])
    sub = lambda: expression(rng, depth - 1)
    if kind < 0.40:
        return f"{sub()} {rng.choice(OPERATORS)} {sub()}"
    if kind < 0.50:
        return f"{sub()}|{rng.choice(FILTERS)}"
    if kind < 0.57:
        return f"{sub()} is {rng.choice(TESTS)}"
    if kind < 0.64:
        return f"{rng.choice(NAMES)}.{rng.choice(METHODS)}"
    if kind < 0.70:
        return f"{rng.choice(NAMES)}{rng.choice(['.a', '[0]', '[-1]', '[1:]', '[::-1]', '.role', '[:2]', '.content', '[number]', '[x]'])}"
    if kind < 0.76:
        return f"({sub()})"
    if kind < 0.80:
        return f"{sub()} if {sub()} else {sub()}"
    if kind < 0.84:
        return f"not {sub()}"
    if kind < 0.87:
        return f"-{sub()}"
    if kind < 0.91:
        return f"[{sub()}, {sub()}]"
    if kind < 0.94:
        return f"{{'a': {sub()}, 'b': {sub()}}}"
    if kind < 0.97:
        return f"({sub()}, {sub()})"
    return f"range({rng.randint(-3, 4)})"


def body(rng, depth):
    out = []
    for _ in range(rng.randint(1, 3)):
        out.append(rng.choice(SPACE))
        kind = rng.random()
        begin, end = rng.choice(["{%", "{%", "{%-", "{%+"]), rng.choice(["%}", "%}", "-%}", "+%}"])
        block = lambda text: f"{rng.choice(['{%', '{%', '{%-'])} {text} {rng.choice(['%}', '%}', '-%}'])}"
        if depth <= 0 or kind < 0.45:
            out.append(f"{rng.choice(['{{', '{{', '{{-'])} {expression(rng, 2)} {rng.choice(['}}', '}}', '-}}'])}")
        elif kind < 0.60:
            tail = block("else") + body(rng, depth - 1) if rng.random() < 0.4 else ""
            out.append(f"{begin} if {expression(rng, 2)} {end}{body(rng, depth - 1)}{tail}{block('endif')}")
        elif kind < 0.75:
            source = rng.choice(["items", "numbers", "messages", "name", "table", "range(3)", "missing", expression(rng, 1)])
            inner = rng.choice(["", "{{ loop.index }}", "{{ loop.last }}", "{% if loop.first %}{% continue %}{% endif %}", "{% if x == 1 %}{% break %}{% endif %}"])
            out.append(f"{begin} for x in {source} {end}{inner}{body(rng, depth - 1)}{block('endfor')}")
        elif kind < 0.90:
            out.append(f"{begin} set {rng.choice(['x', 'y', 'name'])} = {expression(rng, 2)} {end}")
        elif kind < 0.92:
            out.append(f"{begin} with y = {expression(rng, 2)} {end}{body(rng, depth - 1)}{block('endwith')}")
        elif kind < 0.94:
            name, call = rng.choice(["f", "g"]), f"{rng.choice(['f', 'g'])}({expression(rng, 1)})"
            inner = rng.choice(["{{ a }}{{ b }}", "{{ caller() if caller }}", "{{ x }}"])
            out.append(f"{begin} macro {name}(a, b={expression(rng, 1)}) {end}{inner}{body(rng, depth - 2)}{block('endmacro')}")
            out.append(rng.choice(["{{ " + call + " }}", f"{begin} call {call} {end}{body(rng, depth - 2)}{block('endcall')}"]))
        elif kind < 0.96:
            out.append(rng.choice(["{%- raw -%} {{ x }} {%- endraw -%}", "{% raw %}{% x %}\n{% endraw %}\n"]))
        elif kind < 0.98:
            out.append(f"{begin} set y {end}{body(rng, depth - 1)}{block('endset')}{{{{ y }}}}")
        else:
            out.append(rng.choice(["{# c #}", "{#- c -#}"]))
    out.append(rng.choice(SPACE))
    return "".join(out)


def random_template(rng):
    return body(rng, 3)
