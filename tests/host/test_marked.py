"""The tests that need MindIE-LLM are counted in the README, so that nobody takes skipped for passed."""

import ast
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


def marked():
    """Test functions in files that are marked ``mindie`` as a whole."""
    for path in sorted(Path(__file__).parent.glob("test_*.py")):
        tree = ast.parse(path.read_text(encoding="utf-8"))
        if any(ast.unparse(node) == "pytestmark = pytest.mark.mindie" for node in tree.body):
            yield from (
                node.name for node in tree.body if isinstance(node, ast.FunctionDef) and "test_" in node.name[:5]
            )


@pytest.mark.parametrize("readme", ["README.md", "README.zh.md"])
def test_readme_counts_the_tests_that_need_the_host(readme):
    """Beside the command that runs them."""
    text = (ROOT / readme).read_text(encoding="utf-8")
    (count,) = re.findall(r"`mindie`[^0-9`]{1,4}(\d+)", text)
    assert int(count) == len(list(marked()))
    assert "MINDIE_LLM_SRC=" in text
    assert "pytest -m mindie" in text
