"""The shipped schemas: valid, described, loadable everywhere, and of one mind with the running plugin."""

import dataclasses
import json
from pathlib import Path

import pytest
from jsonschema import Draft202012Validator

from mindie_kvpool_plugin.check.schema import profiles
from mindie_kvpool_plugin.options import records

ROOT = Path(__file__).parents[4]
NAMES = profiles.names()
# record of the running plugin -> schema and section that describe the same options
RECORDS = {
    "KvPoolOptions": ("mooncake", "kv_pool"),
    "MooncakeOptions": ("mooncake", None),
    "LocalDramOptions": ("local_dram", None),
    "MemcacheOptions": ("memcache", None),
}


def objects(schema):
    yield schema
    for value in schema.values():
        for each in value if isinstance(value, list) else [value]:
            if isinstance(each, dict):
                yield from objects(each)


@pytest.mark.parametrize("name", NAMES)
def test_schema_is_valid_and_described(name):
    """Draft 2020-12, an $id of its own, a title, and a description for every property."""
    schema = profiles.load(name)
    Draft202012Validator.check_schema(schema)
    assert schema["$schema"] == "https://json-schema.org/draft/2020-12/schema"
    assert schema["$id"].endswith(f"/{name}.schema.json")
    assert schema["title"]
    for each in objects(schema):
        for key, value in each.get("properties", {}).items() if isinstance(each.get("properties"), dict) else ():
            assert value.get("description"), f"{name}: {key}"


@pytest.mark.parametrize("name", NAMES)
def test_schema_defaults_are_valid(name):
    """A default that its own schema refuses would be a trap in editors."""
    for each in objects(profiles.load(name)):
        if "default" in each and "$ref" not in each:
            assert Draft202012Validator(each).is_valid(each["default"]), each


def test_package_data_is_the_checkout_folder():
    """Wheel, editable install and checkout read the same files."""
    assert {path.name for path in (ROOT / "schemas").glob("*.json")} == {f"{name}.schema.json" for name in NAMES}


def test_shipped_versions_have_a_schema():
    """Every version a user may name."""
    for version in profiles.HOST_VERSIONS:
        assert profiles.config_schema(version)["properties"]["BackendConfig"]


def test_versions_are_ordered():
    """Rules ask which came first."""
    for version in profiles.HOST_VERSIONS:
        assert not profiles.is_before(version, version)
    assert profiles.is_before("2.2.RC1", "3.0.0.beta.1")


@pytest.mark.parametrize("record", [n for n in dir(records) if n.endswith("Options")])
def test_defaults_equal_those_of_the_running_plugin(record):
    """Same names, same defaults, and what has none is required."""
    name, section = RECORDS[record]
    schema = profiles.load(name)
    schema = schema["properties"][section] if section else schema
    for field in dataclasses.fields(getattr(records, record)):
        described = schema["properties"][field.name]
        if field.default is dataclasses.MISSING:
            assert field.name in schema["required"]
        else:
            assert described["default"] == field.default, field.name
    if section is not None:
        names = {field.name for field in dataclasses.fields(getattr(records, record))}
        assert set(schema["properties"]) - {"$schema"} == names


def test_older_profiles_differ_only_where_the_fact_sheet_says():
    """A change of the current schema must not be forgotten in the others."""
    current = paths(profiles.load("config-3.0.0"))
    expected = {
        "config-3.0.0.beta.2": {"asyncWrite", "maxN", "maxJsonDepth", "maxBatchSize", "maxPrefillBatchSize",
                                "maxPreemptCount", "truncation"},
        "config-3.0.0.beta.1": {"backend", "HealthCheckConfig", "npuUsageThreshold"},
        "config-2.x-docs": {"tlsPkPwd", "managementTlsPkPwd", "metricsTlsPkPwd", "interCommPkPwd", "kmcKsfMaster",
                            "kmcKsfStandby", "interNodeTlsPkPwd", "interNodeKmcKsfMaster", "interNodeKmcKsfStandby",
                            "enablePrefixCache"},
    }  # fmt: skip
    allowed = set()
    for name, keys in expected.items():
        allowed |= keys
        other = paths(profiles.load(name))
        different = {path for path in current.keys() | other.keys() if current.get(path) != other.get(path)}
        assert {key_of(path) for path in different} <= allowed | {"$id", "title"}, name


def paths(value, path=()):
    if isinstance(value, dict) and value:
        return {p: v for key, each in value.items() for p, v in paths(each, (*path, key)).items()}
    return {path: json.dumps(value)}


def key_of(path):
    named = [path[i + 1] for i, part in enumerate(path[:-1]) if part == "properties"]
    return named[-1] if named else path[-1]
