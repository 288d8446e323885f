"""Imports point down: simulator, host, assemble, core, pools, options, then the nouns; and cli, check, options."""

import ast
from pathlib import Path

import pytest

PACKAGE = Path(__file__).parents[2] / "mindie_kvpool_plugin"
NAME = PACKAGE.name

NOUNS = {"errors", "blocks", "support", "kv_shape", "memory_room"}
MAY_IMPORT = {
    "errors": set(),
    "blocks": set(),
    "support": set(),
    "kv_shape": set(),
    "memory_room": set(),
    "native": set(),
    "observability": {"observability"},
    "options": {"options", "observability", *NOUNS},
    "pools": {"pools", "options", "native", "observability", *NOUNS},
    "services": {"services", "pools", "options", "observability", *NOUNS},
    "core": {"core", "native", "observability", "pools.base", *NOUNS},
    "assemble": {"core", "pools", "options", "observability", *NOUNS},
    "host": {"host", "assemble", "core", "options", "native", "observability", "pools.base", *NOUNS},
    # what is wrong with a file of requests, or with wished faults, is said in both languages
    "simulator": {
        "simulator",
        "host",
        "assemble",
        "core",
        "pools",
        "options",
        "observability",
        "check.messages",
        *NOUNS,
    },
    "check": {"check", "options", *NOUNS},
    # the doctor tries out what the check only reads, with the backends' own code, and asks what the host would do
    "doctor": {"doctor", "planning", "check", "host", "services", "pools", "options", "observability", *NOUNS},
    # an acceptance knows the prompts it sends, and so the keys of their blocks
    "doctor.acceptance": {
        "doctor",
        "core.block_keys",
        "planning",
        "check",
        "host",
        "pools",
        "options",
        "observability",
        *NOUNS,
    },
    # status tells what host would do; demo drives the simulator
    "cli.status": {"host", "check", "cli"},
    "cli.doctor": {"doctor", "check", "cli"},
    "cli.acceptance": {"doctor", "check", "cli"},
    "cli.examined": {"doctor", "check", "cli"},
    # plan asks the simulator's block manager, the check's reading of config.json, the plugin what is worth storing, and
    # nothing that needs torch
    "planning": {
        "planning",
        "core.admission",
        "simulator.block_manager",
        "simulator.trace",
        "services.master_flags",
        "check",
        "options",
        *NOUNS,
    },
    "cli.plan": {"planning", "check", "cli", "options", "memory_room"},
    "cli.plan_report": {"planning", "kv_shape", "check", "cli", "options"},
    "cli.demo": {"simulator", "check", "cli", "observability"},
    "cli.demo_profile": {"simulator", "check"},
    "cli.stats": {"cli", "check", "observability", "services.stopping"},
    # what they run
    "cli.master": {"services", "pools.mooncake", "check", "cli", "options", "errors"},
    "cli.store": {"services", "pools.mooncake", "assemble", "check", "cli", "options", "errors", "memory_room"},
    "__main__": {"cli"},
    "cli": {"cli", "check", "options", "observability", "errors", "support"},
}
ONLY_IN = {
    "torch": ("host", "simulator"),
    "torch_npu": ("host",),
    "mindie_llm": ("host", "simulator"),
    # the running plugin is imported in every worker: what only the check needs stays out of it
    "lark": ("check",),
    "jsonschema": ("check",),
    "click": ("cli",),
}
SOURCES = sorted(path for path in PACKAGE.rglob("*.py") if "host_tree" not in path.parts)


def module_of(path):
    return ".".join(path.relative_to(PACKAGE).with_suffix("").parts)


def imports(path):
    """(line, dotted name) of every import in a file, also of names imported from a package of ours."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            yield from ((node.lineno, alias.name) for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            for alias in node.names:
                inner = PACKAGE.parent.joinpath(*node.module.split("."), alias.name)
                is_module = node.module.startswith(NAME) and (inner.with_suffix(".py").exists() or inner.is_dir())
                yield node.lineno, f"{node.module}.{alias.name}" if is_module else node.module


def rule_for(module):
    candidates = [name for name in MAY_IMPORT if module == name or module.startswith(name + ".")]
    return MAY_IMPORT[max(candidates, key=len)] if candidates else set()


@pytest.mark.parametrize("path", SOURCES, ids=[module_of(path) for path in SOURCES])
def test_imports_point_down(path):
    """The offending line is named."""
    module = module_of(path)
    wrong = []
    for line, name in imports(path):
        top = name.split(".")[0]
        if top == NAME:
            inner = name.removeprefix(NAME).lstrip(".")
            allowed = rule_for(module)
            if inner and not any(inner == a or inner.startswith(a + ".") for a in allowed):
                wrong.append(f"{path.name}:{line} imports {name}")
        elif top in ONLY_IN and not module.startswith(ONLY_IN[top]):
            wrong.append(f"{path.name}:{line} imports {name}, known only in {', '.join(ONLY_IN[top])}")
        elif top == "mooncake" and not module.startswith("pools.mooncake"):
            wrong.append(f"{path.name}:{line} imports {name}")
    assert not wrong


def test_importing_the_package_changes_nothing():
    """No finder, no hook, no heavy module: only host.activate arms, and only when called."""
    import subprocess
    import sys

    code = (
        "import sys; before = list(sys.meta_path); import mindie_kvpool_plugin;"
        "assert sys.meta_path == before;"
        "assert not {'torch', 'mooncake', 'wrapt', 'numpy'} & set(sys.modules), 'heavy import'"
    )
    command = [sys.executable, "-S", "-c", code]
    done = subprocess.run(command, check=False, cwd=PACKAGE.parent, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
