"""The table of what pooling may be combined with, and that every place that shows it shows this one."""

from pathlib import Path

import pytest

from mindie_kvpool_plugin import support

ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize(("readme", "lang"), [("README.md", "en"), ("README.zh.md", "zh")])
def test_readme_holds_the_table(readme, lang):
    """Made by ``mindie-kvpool support``; edit support.py, not the README."""
    assert support.table(lang) in (ROOT / readme).read_text(encoding="utf-8")


def test_a_refusal_names_the_mode_the_reason_and_the_fix_in_both_languages():
    """The same sentence at start and by the check."""
    (refusal,) = support.refusals({"layerwise", "tp", "unheard of"})
    assert refusal().startswith("kv_pool does not support layerwise disaggregation (layerwiseDisaggregated): edge and")
    assert refusal().endswith("; set layerwiseDisaggregated to false")
    assert refusal("zh").startswith("kv_pool 不支持分层分离")


def test_a_pair_is_refused_only_together():
    """Each of the two alone works."""
    assert not support.refusals({"la"})
    assert not support.refusals({"pd_prefill"})
    (refusal,) = support.refusals({"la", "pd_prefill"})
    assert refusal.keys == {"la", "pd_prefill"}


def test_rows_are_distinct_and_pairs_name_rows():
    """And whatever is refused says what to do instead."""
    keys = [mode.key for mode in support.MODES]
    assert len(keys) == len(set(keys))
    for pair in support.PAIRS:
        assert {*pair.ones, *pair.others} <= set(keys)
        assert pair.code == "" or pair.status == "excluded"
    for row in (*support.MODES, *support.PAIRS):
        assert (row.fix is not None) == (row.status == "refused")
    together = [keys for pair in support.PAIRS for keys in pair.together]
    assert len(together) == len(set(together))
