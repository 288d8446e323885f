"""The whole check in process: order of findings, host bugs not copied, hostile input."""

import time

import pytest

from mindie_kvpool_plugin.check.pipeline import check_bytes
from mindie_kvpool_plugin.check.schema import profiles
from mindie_kvpool_plugin.check.situation import Situation
from tests.unit.check.configs import WITH_POOL, check, codes
from tests.unit.check.hostile import HOSTILE


def test_minimal_configuration_is_clean():
    """Nothing above info."""
    assert codes(check()) == []
    assert codes(check(), "warning") == []


def test_all_stages_report_in_one_run():
    """A syntax error hides neither schema nor rules."""
    data = b'{"ServerConfig": {"port": 80,}, "BackendConfig": {"kvPoolConfig": {"backend": "mooncake"}}}'
    found = {f.code for f in check_bytes(data, "config.json", Situation()).findings}
    assert {"JS-05", "SC-01", "SC-03", "HC-02"} <= found


def test_worst_findings_come_first():
    """Then by place."""
    severities = [f.severity for f in check({"S.port": 80, "S.Port": 1, "K.backend": "x"}).findings]
    assert severities == sorted(severities, key=["error", "warning", "info"].index)


def test_masking_of_the_host_is_not_copied():
    """The edge/cloud switch makes the host forget every other fault."""
    split = {
        "S.layerwiseDisaggregated": True,
        "S.layerwiseDisaggregatedRoleType": "master",
        "S.layerwiseDisaggregatedMasterIpAddress": "127.0.0.3",
    }
    assert codes(check(split)) == []
    assert codes(check({**split, "S.port": 80})) == ["SC-03"]


STRANGE = [None, [], {}, "x", "", 5, -1, 2.5, True, 2**70, [[]], {"a": {}}, ["x"], [None], "\0"]


def keys_of(name):
    """All keys the schema knows in a section."""
    schema = profiles.config_schema("3.0.0")
    sections = {
        "S": schema["properties"]["ServerConfig"],
        "B": schema["properties"]["BackendConfig"],
        "K": schema["properties"]["BackendConfig"]["properties"]["kvPoolConfig"],
        "D": schema["properties"]["BackendConfig"]["properties"]["ModelDeployConfig"],
        "C": schema["properties"]["BackendConfig"]["properties"]["ScheduleConfig"],
        "M": schema["$defs"]["model"],
    }
    return [f"{name}.{key}" for key in sections[name]["properties"]]


SITUATIONS = [{}, {"S.layerwiseDisaggregated": True}, {"B.multiNodesInferEnabled": True, "S.inferMode": "dmi"}]


@pytest.mark.parametrize("name", [key for section in "SBKDCM" for key in keys_of(section)])
def test_any_type_anywhere_is_a_finding_or_fine(name):
    """No rule trips over a value another stage has complained about."""
    for number, value in enumerate(STRANGE):
        result = check({**WITH_POOL, **SITUATIONS[number % len(SITUATIONS)], "S.httpsEnabled": True, name: value})
        assert result.findings


@pytest.mark.parametrize("name", HOSTILE)
def test_hostile_bytes_are_answered_in_time(name):
    """Ten megabytes of anything: a result, never a traceback, and nothing quadratic, which would take an hour."""
    begin = time.process_time()
    result = check_bytes(HOSTILE[name], "config.json", Situation())
    assert result.findings
    assert time.process_time() - begin < 60, "the figure itself is benchmarks/bench_check.py's"
