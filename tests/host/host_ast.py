"""The host's source as trees, and what our own source reads of the host's objects.  Nothing is imported."""

import ast
from functools import cache
from pathlib import Path

OURS = Path(__file__).parents[2] / "mindie_kvpool_plugin" / "host"

NAMES = {
    "metadata": "InputMetadata",
    "input_metadata": "InputMetadata",
    "model_inputs": "ModelInput",
    "backend": "GeneratorBackend",
    "generator_backend": "GeneratorBackend",
    "kvcache_settings": "KVCacheSettings",
    "infer_context": "TGInferContextStore",
    "_context": "TGInferContextStore",
    "model_wrapper": "ModelWrapper",
    "wrapper": "ModelWrapper",
    "_wrapper": "ModelWrapper",
    "mapping": "Mapping",
    "parallel": "SpCpParallelInfo",
    "plugin_manager": "PluginManager",
    "_plugin_manager": "PluginManager",
}
"""What a name of ours stands for, as a variable or as an attribute of ``self``."""

LEADS_TO = {
    ("GeneratorBackend", "model_wrapper"): "ModelWrapper",
    ("GeneratorBackend", "cache_pool"): "KVCachePool",
    ("ModelWrapper", "mapping"): "Mapping",
    ("Mapping", "attn_tp"): "ParallelInfo",
    ("Mapping", "attn_dp"): "ParallelInfo",
    ("Mapping", "attn_cp"): "ParallelInfo",
    ("TGInferContextStore", "spcp_parallel_info"): "SpCpParallelInfo",
    ("TGInferContextStore", "context_params"): "ContextParams",
}


def our_reads():
    """(kind of object, attribute) of all that ``host/`` reads or sets there -> whether it must be there."""
    found = {}
    for path in sorted(OURS.glob("*.py")):
        tree = ast.parse(path.read_text(encoding="utf-8"))
        for function in (node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)):
            for read, is_needed in _reads(function):
                found[read] = found.get(read, False) or is_needed
    return found


def _reads(function):
    scope = {}

    def kind(node):
        if isinstance(node, ast.Name):
            return scope.get(node.id) or NAMES.get(node.id)
        if not isinstance(node, ast.Attribute):
            return None
        if isinstance(node.value, ast.Name) and node.value.id == "self":
            return NAMES.get(node.attr)
        owner = kind(node.value)
        return LEADS_TO.get((owner, node.attr)) if owner else None

    for node in ast.walk(function):
        if isinstance(node, ast.Assign):
            for target, value in _pairs(node.targets[0], node.value):
                meant = kind(value)
                if isinstance(target, ast.Name) and meant:
                    scope[target.id] = meant
    for node in ast.walk(function):
        owner, attribute = None, ""
        if isinstance(node, ast.Attribute):
            owner, attribute = kind(node.value), node.attr
        elif isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "getattr":
            owner, attribute = kind(node.args[0]), getattr(node.args[1], "value", "")
        if owner and attribute:
            yield (owner, attribute), isinstance(node, ast.Attribute)


def _pairs(target, value):
    if isinstance(target, ast.Tuple) and isinstance(value, ast.Tuple):
        return list(zip(target.elts, value.elts, strict=True))
    return [(target, value)]


@cache
def tree(path):
    """A file's tree; a file that is gone fails the test that asks for it."""
    assert path.exists(), f"the host has no {path.name} in {path.parent}"
    return ast.parse(path.read_text(encoding="utf-8"))


def find(path, qualified):
    """A function or class by its dotted name."""
    node = tree(path)
    for name in qualified.split("."):
        found = [
            child
            for child in ast.iter_child_nodes(node)
            if isinstance(child, (ast.FunctionDef, ast.ClassDef)) and child.name == name
        ]
        assert found, f"the host has no {qualified} in {path}"
        node = found[-1]
    assert isinstance(node, (ast.FunctionDef, ast.ClassDef))
    return node


def members(path, name):
    """All that instances of a class have: fields, slots, methods, and what its methods set on self."""
    node = find(path, name)
    assert isinstance(node, ast.ClassDef)
    found = {base for parent in node.bases if isinstance(parent, ast.Name) for base in _inherited(path, parent.id)}
    for child in node.body:
        if isinstance(child, ast.AnnAssign) and isinstance(child.target, ast.Name):
            found.add(child.target.id)
        elif isinstance(child, ast.FunctionDef):
            found.add(child.name)
        elif isinstance(child, ast.Assign):
            found |= {target.id for target in child.targets if isinstance(target, ast.Name)}
    for inner in ast.walk(node):
        if isinstance(inner, ast.Attribute) and isinstance(inner.ctx, ast.Store) and _is_self(inner.value):
            found.add(inner.attr)
    return found


def _inherited(path, name):
    is_here = any(isinstance(node, ast.ClassDef) and node.name == name for node in tree(path).body)
    return members(path, name) if is_here else set()


def _is_self(node):
    return isinstance(node, ast.Name) and node.id == "self"


def calls(node):
    """Calls inside a node as they stand in the file: line, column, the last name of what is called, the call."""
    found = []
    for inner in ast.walk(node):
        if isinstance(inner, ast.Call):
            name = inner.func.attr if isinstance(inner.func, ast.Attribute) else getattr(inner.func, "id", "")
            found.append((inner.lineno, inner.col_offset, name, inner))
    return sorted(found, key=lambda each: each[:2])


def in_order(node, *names):
    """Fail unless these are called, each for the first time after the one before."""
    places = []
    for name in names:
        first = next((call[:2] for call in calls(node) if call[2] == name), None)
        assert first is not None, f"{getattr(node, 'name', 'the host')} calls no {name}"
        places.append(first)
    assert places == sorted(places), f"expected in this order: {', '.join(names)}"


def branch(function, condition):
    """What runs where an ``if`` has this condition."""
    for node in ast.walk(function):
        if isinstance(node, ast.If) and ast.unparse(node.test) == condition:
            return node.body
    raise AssertionError(f"{getattr(function, 'name', 'the host')} has no `if {condition}`")


def statement(node, text):
    """Fail unless a statement or expression is written like this, blanks and quotes aside."""
    wanted = ast.unparse(ast.parse(text))
    found = (ast.unparse(inner) for inner in ast.walk(node) if isinstance(inner, (ast.stmt, ast.expr)))
    assert any(each == wanted for each in found), f"{getattr(node, 'name', 'the host')} has no `{wanted}`"


def assigned(path, name):
    """The literal a module binds to a name."""
    for node in tree(path).body:
        if isinstance(node, ast.Assign) and any(isinstance(t, ast.Name) and t.id == name for t in node.targets):
            return ast.literal_eval(node.value)
    raise AssertionError(f"the host has no {name} in {path}")


def values(path, name):
    """Members of an enumeration whose values are literals."""
    node = find(path, name)
    pairs = [child for child in node.body if isinstance(child, ast.Assign) and isinstance(child.value, ast.Constant)]
    return {pair.targets[0].id: pair.value.value for pair in pairs if isinstance(pair.targets[0], ast.Name)}
