"""Which known name was meant."""

import pytest

from mindie_kvpool_plugin.options.typos import closest

KNOWN = ["asyncWrite", "backend", "configPath", "plugin_params", "interNodeTlsCrlFiles", "tp", "dp"]


@pytest.mark.parametrize(
    ("name", "meant"),
    [
        ("asyncwrite", "asyncWrite"),
        ("config_path", "configPath"),
        ("confgiPath", "configPath"),
        ("pluginParams", "plugin_params"),
        ("interNodeTlsCrlfiles", "interNodeTlsCrlFiles"),
        ("TP", "tp"),
        ("backends", "backend"),
        ("something", None),
        ("xp", None),
        ("", None),
    ],
)
def test_closest_forgives_case_separators_and_two_slips(name, meant):
    """Short names must match but for case: all two-letter words are neighbours."""
    assert closest(name, KNOWN) == meant
