"""What a machine with NPUs shows, played by files and scripts: versions, health, links, and rights that are missing."""

import os

import pytest

from mindie_kvpool_plugin.doctor.acceptance import machine as probe
from tests.unit.doctor.acceptance.conftest import told, troubles

SMI = """| npu-smi 24.1.rc3                 Version: 24.1.rc3                                            |
| NPU   Name                | Health        | Power(W)    Temp(C)           Hugepages-Usage(page)|
| 0     910B4               | {health:<13} | 87.4        41                0    / 0             |
| 1     910B4               | OK            | 86.1        40                0    / 0             |
"""


ADDRESSES = "address_0=192.0.2.1\naddress_1=192.0.2.2\n"


@pytest.fixture
def machine(alone, tmp_path):
    """What is said of a machine of two devices, with changes."""
    root, tools = tmp_path / "root", tmp_path / "tools"

    def write(path, text="", mode=0o666):
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
        path.chmod(mode)

    def build(
        health="OK", link="link status: UP", devices=2, hccn="address_0=192.0.2.1\naddress_1=192.0.2.2\n", **more
    ):
        for number in range(devices):
            write(root / f"dev/davinci{number}")
        write(root / "dev/davinci_manager", mode=more.pop("manager_mode", 0o666))
        write(root / "usr/local/Ascend/driver/version.info", "Version=24.1.rc3\nascendhal_version=7.35\n")
        write(root / "etc/hccn.conf", hccn)
        write(root / "cann/runtime/version.info", "Version=8.5.0\nversion_dir=8.5.0\n")
        write(tools / "npu-smi", f"#!/bin/sh\ncat <<'end'\n{SMI.format(health=health)}end\n", 0o755)
        write(tools / "hccn_tool", f"#!/bin/sh\necho '{link}'\n", 0o755)
        env = {"ASCEND_HOME_PATH": str(root / "cann"), "PATH": f"{tools}:{os.environ['PATH']}"}
        case = alone(env=env, root=root, **more)
        return told(case, "machine")

    return build


@pytest.fixture(autouse=True)
def over_ascend(monkeypatch):
    """Links count, as with a pool file whose protocol is ascend."""
    monkeypatch.setattr(probe, "needs_npu", lambda case: True)


def test_a_sound_machine_has_versions_health_links_and_rights(machine):
    """Each with its figure."""
    lines = machine()
    assert troubles(lines) == []
    assert lines["machine.cann"][0].params["version"] == "8.5.0"
    assert lines["machine.driver"][0].params["version"] == "24.1.rc3"
    assert lines["machine.healthy"][0].params == {"count": 2, "version": "24.1.rc3"}
    assert [line.params["address"] for line in lines["machine.link"]] == ["192.0.2.1", "192.0.2.2"]
    assert "machine.access" in lines


def test_an_ill_device_is_named(machine):
    """As npu-smi calls it."""
    lines = machine(health="Alarm")
    assert troubles(lines) == ["machine.unhealthy"]
    assert lines["machine.unhealthy"][0].params["devices"] == "0: Alarm"


def test_a_link_that_is_down_is_named(machine):
    """For every device of the configuration."""
    lines = machine(link="link status: DOWN")
    assert troubles(lines) == ["machine.link_down"]
    assert [line.params["device"] for line in lines["machine.link_down"]] == [0, 1]
    assert "-optical -g" in lines["machine.link_down"][0].fix("en")


def test_a_device_without_an_address_is_named(machine):
    """Other nodes could not reach it."""
    lines = machine(hccn="address_0=192.0.2.1\n")
    assert troubles(lines) == ["machine.no_address"]
    assert lines["machine.no_address"][0].params["device"] == 1


def test_a_device_that_was_not_given_to_the_container_is_told(machine):
    """The configuration names two."""
    lines = machine(devices=1)
    assert troubles(lines) == ["machine.no_device"]


@pytest.mark.skipif(os.getuid() != 0, reason="only root may ask for another user")
def test_a_missing_permission_is_named_for_the_services_user(machine):
    """The mode of the device file decides."""
    lines = machine(manager_mode=0o600, user="nobody")
    assert troubles(lines) == ["machine.no_access"]
    assert lines["machine.no_access"][0].params == {"file": "/dev/davinci_manager", "user": "nobody"}
    assert "HwHiAiUser" in lines["machine.no_access"][0].fix("en")


def test_a_tool_that_hangs_costs_its_time_and_no_more(machine, monkeypatch):
    """What is not known is not possible here."""
    monkeypatch.setattr("mindie_kvpool_plugin.doctor.acceptance.machine.TOOL_TIMEOUT_S", 0.3)
    lines = machine(link="'; exec sleep 60; echo '")
    assert troubles(lines) == []
    assert lines["machine.no_hccn_tool"][0].verdict == "absent"
