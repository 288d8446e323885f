"""What a commit is judged by is the same on every machine and at every place that says it."""

import ast
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]


def test_the_pre_commit_hooks_are_the_lines_of_make_lint():
    """Nothing passes here and fails there."""
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    recipe = re.search(r"^lint:.*\n((?:\t.*\n)+)", makefile, re.MULTILINE)
    hooks = re.findall(r"^ +entry: (.*)$", (ROOT / ".pre-commit-config.yaml").read_text(encoding="utf-8"), re.MULTILINE)
    assert hooks == [line.strip() for line in recipe[1].splitlines()]
    assert len(hooks) == 3


@pytest.mark.parametrize("folder", ["tests", "benchmarks"])
def test_functions_that_nothing_checks_have_no_annotations(folder):
    """One choice for all tests: an annotation that mypy never reads is a comment that may lie."""
    annotated = [
        f"{path.relative_to(ROOT)}:{node.lineno} {node.name}"
        for path in sorted((ROOT / folder).rglob("*.py"))
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef))
        and (node.returns or any(isinstance(each, ast.arg) and each.annotation for each in ast.walk(node.args)))
    ]
    assert annotated == []


def test_the_tools_of_developers_are_pinned():
    """A new release of a tool changes nothing until somebody takes it up."""
    extra = re.search(
        r"^dev = \[\n(.*?)^\]", (ROOT / "pyproject.toml").read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL
    )
    wanted = re.findall(r'^    "([^"]+)"', extra[1], re.MULTILINE)
    assert len(wanted) > 5
    assert [need for need in wanted if not re.fullmatch(r"[\w-]+==[\w.]+", need)] == []


def test_the_oldest_python_is_one_everywhere():
    """Metadata, lint, types, the command that runs its tests and the page that says so."""
    found = {
        re.search(pattern, (ROOT / name).read_text(encoding="utf-8"))[1].replace("py3", "3.")
        for name, pattern in (
            ("pyproject.toml", r'requires-python = ">=(3\.\d+)"'),
            ("pyproject.toml", r'target-version = "(py3\d+)"'),
            ("pyproject.toml", r'python_version = "(3\.\d+)"'),
            ("Makefile", r"PYTHONS \?= (3\.\d+) "),
            ("CONTRIBUTING.md", r"Python (3\.\d+) is the oldest supported"),
        )
    }
    assert len(found) == 1
