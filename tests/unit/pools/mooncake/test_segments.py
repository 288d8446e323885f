"""Memory mounted apart from setup: what is said when Mooncake refuses."""

import pytest

from mindie_kvpool_plugin.errors import PoolError
from mindie_kvpool_plugin.options.records import MooncakeOptions
from mindie_kvpool_plugin.pools.mooncake import segments

MASTER = "192.168.10.1:50051"


class Refusing:
    """A client whose memory is not mounted, with the one code that Mooncake has for it."""

    def allocate_and_mount_segment(self, size, protocol, location):
        return {"ret": -1, "segment_ids": []}


def test_mount_names_memory_and_master_when_mooncake_refuses():
    """Too little memory and a master that answers too late have one code, so both are asked about."""
    options = MooncakeOptions(local_hostname="192.168.10.11", master_server_address=MASTER, rpc_timeout_s=0.5)
    with pytest.raises(PoolError) as raised:
        segments.mount(Refusing(), "192.168.10.11:12345", segments.WHOLE, options, "pool.json")
    said = str(raised.value)
    assert said.startswith(f"pool.json: Mooncake could not mount {segments.WHOLE} bytes (global_segment_size)")
    assert "free memory" in said
    assert f"{MASTER} (master_server_address) answer within 0.5 s (rpc_timeout_s)" in said
