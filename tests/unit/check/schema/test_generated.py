"""The schemas for editors: whole, generated, and of one mind with the plugin's reading."""

import importlib.util
import inspect
import re
from pathlib import Path

import pytest
from jsonschema import Draft202012Validator

from mindie_kvpool_plugin.check.schema import profiles
from mindie_kvpool_plugin.check.schema.records import object_schema
from mindie_kvpool_plugin.options import records
from mindie_kvpool_plugin.options.pool_file import judge
from tests.test_pool_file_verdicts import contents

FOLDER = Path(__file__).parents[4] / "schemas"
# together, or by a grammar JSON Schema has no words for: the reading refuses what the schema lets pass
CHOICES = {"protocol", "on_pool_unavailable", "shards", "staging"}
BEYOND_A_SCHEMA = {"direct", "segment", "payload", "form", "range", "point"}


@pytest.fixture(scope="module")
def generate():
    spec = importlib.util.spec_from_file_location("generate", FOLDER / "generate.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_schemas_are_what_their_sources_say(generate):
    """Stale after a change of a record or a source: run ``make schemas``."""
    made = generate.files()
    assert {path.name for path in made} == {path.name for path in FOLDER.glob("*.schema.json")}
    assert [path.name for path, text in made.items() if path.read_text(encoding="utf-8") != text] == []


def test_a_newer_host_is_described_by_what_it_changed(generate, monkeypatch):
    """One entry: the version described whole stays the one it was, and those before it are not touched."""
    source = generate.source
    versions = source("versions") | {"after": {"9.0": {"properties": {"Version": {"const": "2.0.0"}, "Added": {}}}}}
    before = generate.config_schemas()
    monkeypatch.setattr(generate, "source", lambda name: versions if name == "versions" else source(name))
    made = generate.config_schemas()
    assert made["9.0"]["properties"].keys() - made["3.0.0"]["properties"].keys() == {"Added"}
    assert made["9.0"]["properties"]["Version"]["const"] == "2.0.0"
    assert {name: made[name] for name in before} == before


def test_a_backend_needs_no_more_than_its_record(generate, monkeypatch):
    """Its schema has its keys and the plugin's section."""
    monkeypatch.setitem(generate.RECORDS, "toy", records.LocalDramOptions)
    made = generate.schemas()["toy"]
    assert {"capacity", "kv_pool"} <= made["properties"].keys()
    assert made["description"].startswith("The embedded pool of one process")


@pytest.mark.parametrize("record", [name for name in dir(records) if name.endswith("Options")])
def test_every_option_is_described(record):
    """In the record's docstring, from which the schema takes it, and nothing is described that is no option."""
    cls = getattr(records, record)
    described = object_schema(cls)["properties"]
    assert [name for name, each in described.items() if len(each["description"]) < 10] == []
    listed = re.findall(r"^ {4}(\w+): ", inspect.cleandoc(cls.__doc__), re.MULTILINE)
    assert sorted(listed) == sorted(described)


def as_listed(content):
    """Choices as an editor offers them: the plugin takes them in any case, with blanks around them."""
    return {
        key: as_listed(value)
        if isinstance(value, dict)
        else value.strip().lower()
        if key in CHOICES and isinstance(value, str)
        else value
        for key, value in content.items()
    }


def test_schema_refuses_nothing_that_the_plugin_takes():
    """An editor's red line under a good file would be a lie; what is only advised against is a warning."""
    validator = Draft202012Validator(profiles.load("mooncake"))
    wrong = []
    for name, content in contents():
        problems = {problem.kind for problem in judge(content, "mooncake")}
        valid = validator.is_valid(as_listed(content))
        is_advice = isinstance(content.get("max_slices_in_flight"), int) or "$schema" in name
        if not problems and not valid and not is_advice:
            wrong.append(f"refused by the schema alone: {name}")
        if problems - BEYOND_A_SCHEMA and valid:
            wrong.append(f"refused by the plugin alone: {name} {problems}")
    assert wrong == []
