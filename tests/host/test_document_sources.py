"""The documents that rules name, held against those of a MindIE-LLM release.

Marked ``mindie``: needs MINDIE_LLM_SRC (a source tree).
"""

import re

import pytest

from mindie_kvpool_plugin.check.rules import all_codes
from mindie_kvpool_plugin.check.sources import DOCUMENTS, origins

pytestmark = pytest.mark.mindie


def test_a_reader_finds_the_source_of_every_rule(host_source):
    """The title, the section below it, or the file."""
    tree = host_source.parent
    manual = tree / "docs" / "zh" / "user_guide"
    if not manual.is_dir():
        pytest.skip("needs MindIE-LLM's documents: set MINDIE_LLM_SRC to a source tree")
    named = {origin for kind in all_codes().values() for origin in origins(kind.source)}
    assert len(named) > 50
    missing = [section for key, section in named if key == "code" and not (tree / section).is_file()]
    for key, section in named:
        if key in DOCUMENTS:
            text = (manual / DOCUMENTS[key].file).read_text(encoding="utf-8")
            headings = (DOCUMENTS[key].title, section)
            missing += [f"{key}: {each}" for each in headings if not has_heading(text, each)]
    assert missing == []


def has_heading(text, heading):
    """Some have an anchor behind them."""
    return re.search(rf"^#+ {re.escape(heading)}\s*(<.*)?$", text, re.MULTILINE)
