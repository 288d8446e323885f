"""Masters of this machine, and what their command lines say."""

import json
import types

import pytest

from mindie_kvpool_plugin.doctor.flags import _admin_address
from mindie_kvpool_plugin.doctor.processes import MasterProcess, flags_of, masters
from mindie_kvpool_plugin.options.records import MooncakeOptions
from mindie_kvpool_plugin.pools.mooncake.start import installed_wheels


def test_a_running_master_is_seen(master):
    """Its flags, ports, age and version."""
    (found,) = [each for each in masters() if each.pid == master.pid]
    assert found.flags["rpc_port"] == str(master.port)
    assert {master.port, master.metrics_port} <= found.ports
    assert 0 <= found.age_s < 24 * 3600
    assert [found.version] == list(installed_wheels().values())
    assert found.listens_on(master.port)
    assert not found.listens_on(1)
    assert found.service_port == master.port


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (["--rpc_port=1", "--enable_ha"], {"rpc_port": "1", "enable_ha": ""}),
        (["-rpc_port", "2"], {"rpc_port": "2"}),
        (["--eviction_ratio", "0.02", "--enable_offload=true"], {"eviction_ratio": "0.02", "enable_offload": "true"}),
    ],
)
def test_flags_in_all_their_spellings(words, expected):
    """As gflags takes them."""
    assert flags_of(["mooncake_master", *words]) == expected


def test_a_file_of_flags_counts_below_the_command_line(tmp_path):
    """As the master itself reads them."""
    path = tmp_path / "master.json"
    path.write_text(json.dumps({"rpc_port": 1, "eviction_ratio": 0.1}))
    found = flags_of(["mooncake_master", f"--config_path={path}", "--rpc_port=2"])
    assert (found["rpc_port"], found["eviction_ratio"]) == ("2", "0.1")


def test_a_master_of_another_user_is_known_by_its_flags():
    """Its sockets cannot be seen."""
    assert MasterProcess(1, {"rpc_port": "7"}, frozenset(), 0.0, "").listens_on(7)
    assert MasterProcess(1, {}, frozenset(), 0.0, "").listens_on(50051)


@pytest.mark.parametrize(
    ("flags", "ports", "told", "expected"),
    [
        ({"metrics_port": "7"}, {1, 7}, None, ("10.0.0.1", 7)),
        ({"metrics_port": "7", "metrics_host": "127.0.0.1"}, {1, 7}, None, ("127.0.0.1", 7)),
        ({"metrics_host": "0.0.0.0"}, {1, 9003}, None, ("10.0.0.1", 9003)),
        ({}, {1, 8}, None, ("10.0.0.1", 8)),
        ({}, set(), None, ("10.0.0.1", 9003)),
        ({"metrics_port": "7"}, {1, 7}, 9, ("10.0.0.1", 9)),
    ],
)
def test_the_http_server_of_a_master_is_found(flags, ports, told, expected):
    """By its flags, by its sockets, at its default port, or as it was told; on loopback alone too."""
    process = MasterProcess(1, flags, frozenset(ports), 0.0, "")
    options = MooncakeOptions("10.0.0.2", "10.0.0.1:1")
    assert _admin_address(types.SimpleNamespace(process=process, mooncake=options, metrics_port=told)) == expected


def test_the_http_server_of_a_master_elsewhere_is_at_its_default_port():
    """Unless another was told."""
    case = types.SimpleNamespace(process=None, mooncake=MooncakeOptions("a", "10.0.0.1:1"), metrics_port=None)
    assert _admin_address(case) == ("10.0.0.1", 9003)
    case.metrics_port = 8
    assert _admin_address(case) == ("10.0.0.1", 8)
