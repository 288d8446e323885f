"""The README's table of what ran where is the one of ``ran_where``, and that one claims nothing that is not there."""

from pathlib import Path

import pytest

from mindie_kvpool_plugin import support
from tests.ran_where import AREAS, table

ROOT = Path(__file__).parents[1]
WORKING = {mode.key for mode in support.MODES if mode.status == "works"}


@pytest.mark.parametrize(("readme", "lang"), [("README.md", "en"), ("README.zh.md", "zh")])
def test_readme_holds_the_table(readme, lang):
    """Edit ran_where.py, then put what ``table`` says between the marks."""
    text = (ROOT / readme).read_text(encoding="utf-8")
    assert text.split("<!-- ran where -->\n\n")[1].split("\n\n<!-- end -->")[0] == table(lang)


@pytest.mark.parametrize("area", AREAS, ids=lambda area: area.en)
def test_what_shows_an_area_is_there(area):
    """Each path exists, and is of the kind its column says."""
    for path in filter(None, (area.simulator, area.emulated, area.mooncake)):
        assert (ROOT / path).is_file(), path
    assert area.emulated.startswith("tests/npu/") or not area.emulated
    if area.mooncake:
        assert "ooncake" in (ROOT / area.mooncake).read_text(encoding="utf-8")
    assert area.host or not area.host_on_emulated


def test_every_mode_that_works_is_in_one_area_and_ran_on_the_simulated_host():
    """What ``support`` says works has run at least there; what never ran is in none."""
    named = [mode for area in AREAS for mode in area.modes]
    assert len(named) == len(set(named))
    assert set(named) == WORKING
    assert all(area.simulator for area in AREAS if area.modes)
