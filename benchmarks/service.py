"""A Mooncake master and clients on this machine, for the length of a benchmark."""

import contextlib
import tempfile
from pathlib import Path

from mindie_kvpool_plugin.pools.registry import open_pool
from mindie_kvpool_plugin.simulator.mooncake_master import MooncakeMaster
from tests.conftest import mooncake_keys, write_pool_file


@contextlib.contextmanager
def mooncake(segment_bytes, clients=1):
    """The first client owns the memory, the others have none and reach it through sockets."""
    with MooncakeMaster("--default_kv_lease_ttl=5s") as master, tempfile.TemporaryDirectory() as folder:
        opened = []
        for number in range(clients):
            keys = mooncake_keys(master, segment_bytes if number == 0 else 0)
            opened.append(open_pool("mooncake", write_pool_file(Path(folder), **keys), "worker"))
        try:
            yield opened
        finally:
            for pool in reversed(opened):
                pool.close()


def raw(pool):
    """The binding's own client inside a pool, and its configuration for a put as we make it."""
    with pool.link.client.lent() as connection:
        assert connection is not None
    config = pool.link.new_config()
    if pool.link.has_segment:
        config.preferred_segment = connection.name
    return connection.store, config
