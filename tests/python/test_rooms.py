"""Rooms of python/oscar_kv, as lib/ has them: imports go one way, those inside functions too. docs/architecture.md lists the rooms."""
import ast
import importlib
import inspect
import re

import pytest

from conftest import SOURCE_DIR

PACKAGE = SOURCE_DIR / "python" / "oscar_kv"
# A room imports only itself and what stands before it; rooms of one line do not know each other. Programs are the files at the top.
ORDER = (("files",), ("format",), ("ops",), ("cache",), ("engines", "hf"), ("",))
CORE = ("files", "format", "ops", "cache")
ENGINES = sorted(p.name for p in (PACKAGE / "engines").iterdir() if (p / "plugin.py").is_file())
FOREIGN = ("vllm", "sglang", "transformers")  # modules that the core neither imports nor looks for


def modules(package):
    """{dotted name below the package: its path}; a folder is its __init__.py."""
    return {".".join(p.relative_to(package).with_suffix("").parts): p for p in sorted(package.rglob("*.py"))}


def imports(name, path, known):
    """(module of the package or of others, line) of every import in a file."""
    folder = name.split(".")[:-1]
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            for one in node.names:
                inside = one.name.removeprefix("oscar_kv.") if one.name.startswith("oscar_kv.") else None
                yield (inside if inside in known else f"{inside}.__init__" if inside else one.name), node.lineno, inside is not None
        elif isinstance(node, ast.ImportFrom):
            parts = (node.module or "").split(".") if node.module else []
            if node.level == 0 and parts[0] != "oscar_kv":
                yield node.module, node.lineno, False
                continue
            base = folder[:len(folder) - node.level + 1] + parts if node.level else parts[1:]
            for one in node.names:
                found = ".".join([*base, one.name])
                own = found if found in known else ".".join(base) if ".".join(base) in known else ".".join([*base, "__init__"])
                yield own, node.lineno, True


def graph(package):
    """{file: {file that it imports}}, and a list of faults."""
    known, edges, faults = modules(package), {}, []
    for name, path in known.items():
        edges[name] = set()
        for target, line, inside in imports(name, path, known):
            place = f"{name}:{line}"
            if not inside:
                if target.split(".")[0] in FOREIGN and room_of(name) in CORE:
                    faults.append(f"{place} imports {target}, which the core does not know")
                continue
            edges[name].add(target)
            if target == name:
                continue
            if level_of(target) > level_of(name) or (level_of(target) == level_of(name) and room_of(target) != room_of(name)):
                faults.append(f"{place} imports {target}: {room_of(name)} may not know {room_of(target)}")
            ours, theirs = engine_of(name), engine_of(target)
            if theirs is not None and ours != theirs and name != "serve_check":
                faults.append(f"{place} imports {target}, which only the engine {theirs} may")
    return edges, faults


def room_of(name):
    if name == "commands":  # runs the toolchain, and knows no more than files does
        return "files"
    return name.split(".")[0] if "." in name else ""


def level_of(name):
    return next(i for i, rooms in enumerate(ORDER) if room_of(name) in rooms)


def engine_of(name):
    parts = name.split(".")
    return parts[1] if parts[0] == "engines" and len(parts) > 2 else None


def circles(edges):
    """Files that import one another, directly or not, one list a circle."""
    reached = {}
    for start in edges:
        seen, left = set(), [start]
        while left:
            for target in edges.get(left.pop(), ()):
                if target not in seen:
                    seen.add(target)
                    left.append(target)
        reached[start] = seen
    return {tuple(sorted(other for other in edges if other in reached[one] and one in reached[other]))
            for one in edges if one in reached[one]}


def test_imports_go_one_way():
    edges, faults = graph(PACKAGE)
    assert len(edges) > 60 and ENGINES == ["sglang", "vllm"]
    assert faults == []


def test_no_file_imports_itself_through_others():
    assert circles(graph(PACKAGE)[0]) == set()


def test_the_core_names_no_module_of_an_engine():
    """Not in strings either, as sys.modules or importlib would take them."""
    name = re.compile(rf"({'|'.join(FOREIGN)})(\.\w+)+|oscar_kv\.(engines|hf)\b.*")
    for module, path in modules(PACKAGE).items():
        if room_of(module) in CORE:
            for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
                if isinstance(node, ast.Constant) and isinstance(node.value, str):
                    assert not name.fullmatch(node.value), f"{module}:{node.lineno} names {node.value}"
                assert not (isinstance(node, ast.Attribute) and ast.unparse(node) == "sys.modules"), f"{module}:{node.lineno} looks for modules"


@pytest.mark.parametrize("files,fault", [
    ({"ops/one.py": "def f():\n    from ..cache import two\n", "cache/two.py": ""}, "ops.one:2 imports cache.two: ops may not know cache"),
    ({"engines/a/one.py": "from ..b.two import x\n", "engines/b/two.py": "x = 1\n"}, "engines.a.one:1 imports engines.b.two, which only the engine b may"),
    ({"engines/shared.py": "from .a import one\n", "engines/a/one.py": ""}, "engines.shared:1 imports engines.a.one, which only the engine a may"),
    ({"hf/one.py": "import oscar_kv.engines.two\n", "engines/two.py": ""}, "hf.one:1 imports engines.two: hf may not know engines"),
    ({"cache/one.py": "def f():\n    import vllm.config\n"}, "cache.one:2 imports vllm.config, which the core does not know"),
    ({"ops/one.py": "from . import two\n", "ops/two.py": "def f():\n    from .one import x\n"}, ("ops.one", "ops.two"))])
def test_faults_are_found(files, fault, tmp_path):
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text, encoding="utf-8")
    edges, faults = graph(tmp_path)
    assert circles(edges) == {fault} if isinstance(fault, tuple) else faults == [fault]


def test_architecture_lists_the_rooms():
    page = (SOURCE_DIR / "docs" / "architecture.md").read_text(encoding="utf-8")
    table = page.split("## Rooms of the Python package", 1)[1].split("\n## ", 1)[0]
    listed = re.findall(r"^\| `python/oscar_kv/(\w+)/` \|", table, re.MULTILINE)
    assert listed == [room for rooms in ORDER for room in rooms if room] + ["csrc"]


def test_engines_get_what_the_port_says():
    """Both tables take the same batches, and both adapters build on the settings of engines/port.py."""
    pytest.importorskip("torch")
    from oscar_kv.cache import prefix_table, slot_kv
    from oscar_kv.engines import port, serving
    assert inspect.signature(prefix_table.PrefixTable.rows).parameters == inspect.signature(slot_kv.SlotTable.rows).parameters
    for engine in ENGINES:
        module = importlib.import_module(f"oscar_kv.engines.{engine}.serving")
        assert issubclass(module.Serving, serving.EngineServing) and module.Settings is port.Settings
        assert {p.stem for p in (PACKAGE / "engines" / engine).glob("*.py")} >= {"backend", "limits", "plugin", "serving"}
