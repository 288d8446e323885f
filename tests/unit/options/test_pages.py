"""The configuration reference says what the records say, in both languages."""

import importlib.util
from pathlib import Path

from mindie_kvpool_plugin.check.schema.records import object_schema

ROOT = Path(__file__).parents[3]


def pages():
    spec = importlib.util.spec_from_file_location("options_pages", ROOT / "schemas" / "options_pages.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_pages_are_what_the_records_say():
    """Stale after a change of a record: run ``make schemas``."""
    assert [path.name for path, text in pages().files().items() if path.read_text(encoding="utf-8") != text] == []


def test_every_option_has_a_chinese_meaning_and_no_other():
    """A new option needs its sentence in schemas/source/options.zh.json."""
    module = pages()
    said = {record: set(options) for record, options in module.CHINESE.items()}
    assert said == {record.__name__: set(object_schema(record)["properties"]) for record in module.RECORDS}
