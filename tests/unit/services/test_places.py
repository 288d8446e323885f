"""Where a service may listen."""

import socket

import pytest

from mindie_kvpool_plugin.services.places import is_public, numeric, state
from mindie_kvpool_plugin.simulator.mooncake_master import HOST


@pytest.mark.parametrize("address", ["8.8.4.4", "0.0.0.0", "::", "2001:4860:4860::8888", "172.32.0.1"])
def test_addresses_others_may_reach_are_public(address):
    """Routed on the internet, or every address there is."""
    assert is_public(address)


@pytest.mark.parametrize(
    "address", ["127.0.0.1", "::1", "10.1.2.3", "192.168.10.1", "172.31.0.1", "100.64.0.1", "fd00::1"]
)
def test_addresses_of_the_own_network_are_not_public(address):
    """Loopback, private and link-local ones."""
    assert not is_public(address)


def test_a_port_is_free_until_somebody_listens():
    """And nothing of the question is left behind."""
    with socket.create_server((HOST, 0)) as server:
        port = server.getsockname()[1]
        assert state(HOST, port) == "taken"
    assert state(HOST, port) == "free"
    assert state(HOST, port) == "free"


def test_an_address_of_another_machine_is_elsewhere():
    """One that is kept for documents."""
    assert state("192.0.2.1", 50051) == "elsewhere"


def test_a_name_becomes_a_number():
    """As the host's resolver says."""
    assert numeric("localhost") in {"127.0.0.1", "::1"}


@pytest.mark.parametrize("host", ["pool..example", "a" * 64 + ".example"])
def test_what_is_no_name_is_told_at_once(host):
    """No thread ends with a traceback while the caller waits for it."""
    with pytest.raises(OSError, match="between dots is empty or longer than 63 letters"):
        numeric(host)
