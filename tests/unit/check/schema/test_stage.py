"""The schema stage: messages that say field, value and expectation, and bounded work."""

import pytest

from mindie_kvpool_plugin.check.schema import profiles
from mindie_kvpool_plugin.check.schema.stage import MAX_ALL_ITEMS, MAX_FINDINGS, MAX_ITEMS, check_schema, expectation
from tests.check_examples import ABSENT, changed
from tests.unit.check.configs import path_of

SCHEMA = profiles.config_schema("3.0.0")


def found(changes, version="3.0.0"):
    return check_schema(changed(changes), profiles.config_schema(version))


@pytest.mark.parametrize(
    ("name", "value", "code", "severity"),
    [
        ("S.port", ABSENT, "SC-01", "error"),
        ("S.port", True, "SC-02", "error"),
        ("S.port", None, "SC-02", "error"),
        ("S.port", 1023, "SC-03", "error"),
        ("S.port", 2**80, "SC-03", "error"),
        ("S.inferMode", "Standard", "SC-04", "error"),
        ("M.npuMemSize", 0, "SC-04", "error"),
        ("M.modelName", "a" * 257, "SC-05", "error"),
        ("S.Port", 1, "HC-82", "warning"),
        ("S.somethingElse", 1, "SC-06", "warning"),
        ("S.kmcKsfMaster", "x", "SC-07", "warning"),
        ("S.port", 1025.0, "SC-08", "error"),
        ("C.maxNumPartialPrefills", 63.9, "SC-08", "warning"),
        ("D.truncation", "yes", "SC-02", "warning"),
        ("S.interCommTlsCert", 5, "SC-02", "error"),
    ],
)
def test_schema_finds_one_thing(name, value, code, severity):
    """With the code, the severity and the path of the field."""
    findings = [f for f in found({name: value}) if f.code != "SC-04" or code == "SC-04"]
    assert [(f.code, f.severity, f.path) for f in findings] == [(code, severity, path_of(name))]


@pytest.mark.parametrize(
    ("name", "value", "code", "variant"),
    [
        ("K.backend", "Mooncake", "SC-04", "close"),
        ("K.backend", "mooncake ", "SC-04", "close"),
        ("K.backend", "kv_pool", "SC-04", ""),
        ("S.inferMode", "standart", "SC-04", "close"),
        ("B.kvPoolConfig", '{"backend":"mooncake"}', "SC-02", "quoted"),
        ("B.kvPoolConfig", "mooncake", "SC-02", ""),
        ("B.npuDeviceIds", "[[0]]", "SC-02", "quoted"),
        ("S.port", "1025", "SC-02", "quoted"),
        ("S.httpsEnabled", "false", "SC-02", "quoted"),
        ("S.httpsEnabled", "no", "SC-02", ""),
        ("S.ipAddress", 5, "SC-02", ""),
    ],
)
def test_schema_says_what_was_probably_meant(name, value, code, variant):
    """Another spelling of a choice, or a value in quotes."""
    told = [f.variant for f in found({name: value}) if (f.code, f.path) == (code, path_of(name))]
    assert told == [variant]


def test_schema_is_mild_where_the_host_does_not_look():
    """A certificate path of the wrong type matters only while its switch is on."""
    findings = found({"S.interCommTlsCert": 5, "S.interCommTLSEnabled": False})
    assert [(f.code, f.severity) for f in findings] == [("SC-02", "warning")]


def test_schema_says_where_a_key_belongs():
    """kvPoolConfig in the wrong section is the mistake that leaves pooling off."""
    (finding,) = found({"S.kvPoolConfig": {}})
    assert finding.params["owner"] == "BackendConfig"


def test_schema_takes_notes_under_an_underscore():
    """JSON has no comments, so people use keys."""
    assert [f.severity for f in found({"S._note": "x", "S.// more": "y"})] == ["info", "info"]


@pytest.mark.parametrize(
    ("version", "changes", "codes"),
    [
        ("3.0.0.beta.2", {"D.truncation": False, "K.asyncWrite": True}, ["SC-06"]),
        ("3.0.0.beta.2", {"D.truncation": False, "C.maxBatchSize": 5001}, ["SC-03"]),
        ("3.0.0.beta.2", {}, ["SC-02"]),
        ("3.0.0.beta.1", {"D.truncation": False, "K.backend": "memcache"}, ["SC-04"]),
        ("2.x-docs", {"D.truncation": False, "S.kmcKsfMaster": "x"}, []),
    ],
)
def test_schema_follows_the_host_version(version, changes, codes):
    """Section 8 of the fact sheet."""
    assert sorted({f.code for f in found(changes, version)}) == codes


def test_schema_work_is_bounded():
    """A list of a million devices is cut, a thousand bad values are told by the first ones."""
    assert "SC-05" in {f.code for f in found({"B.npuDeviceIds": [[0] * (MAX_ITEMS + 1)]})}
    assert len(found({"B.npuDeviceIds": [["x"] * MAX_ITEMS]})) <= MAX_FINDINGS
    together = found({"B.npuDeviceIds": [[0] * MAX_ITEMS] * (MAX_ALL_ITEMS // MAX_ITEMS + 1)})
    assert ("SC-05", "length", "error") in {(f.code, f.variant, f.severity) for f in together}


def test_schema_is_not_distracted_by_unknown_keys():
    """Thousands of them hide no missing section."""
    keys = {f"S.unknown{number}": 1 for number in range(5000)}
    assert "SC-01" in {f.code for f in found(keys | {"S.port": ABSENT})}


def test_expectation_is_words_both_languages_share():
    """Type, range and unit."""
    port = SCHEMA["properties"]["ServerConfig"]["properties"]["tokenTimeout"]
    assert expectation(port) == "integer; 1..3600; [s]"
