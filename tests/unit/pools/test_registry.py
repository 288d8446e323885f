"""Backends are data: what is known of them needs no library, and one more is one more line."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import dataclass, fields
from pathlib import Path

import pytest

from mindie_kvpool_plugin import assemble
from mindie_kvpool_plugin.check.schema import profiles as schemas
from mindie_kvpool_plugin.errors import ConfigError
from mindie_kvpool_plugin.options.pool_file import PoolFile
from mindie_kvpool_plugin.pools import registry
from mindie_kvpool_plugin.pools.base import PoolBackend
from mindie_kvpool_plugin.pools.registry import BACKENDS, Backend
from tests.conftest import Memory, write_pool_file

ROOT = Path(__file__).parents[3]


def test_registry_is_read_without_any_library():
    """The check reads it on a laptop."""
    code = (
        "import sys; from mindie_kvpool_plugin.pools.registry import BACKENDS; "
        "print(sorted({'numpy', 'torch', 'mooncake'} & set(sys.modules)), sorted(BACKENDS))"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    assert done.stdout == f"[] {sorted(BACKENDS)}\n"


@pytest.mark.parametrize("name", sorted(BACKENDS))
def test_backend_has_a_schema_that_describes_its_options(name):
    """Every option of the record, with its default where it has one."""
    properties = schemas.load(BACKENDS[name].schema)["properties"]
    assert {field.name for field in fields(BACKENDS[name].options)} <= set(properties)


@dataclass(frozen=True, slots=True)
class ToyOptions:
    size: int = 3


class Toy(PoolBackend):
    """Remembers names and moves nothing."""

    def __init__(self, options):
        self.size = options.size
        self.names = []

    def exists(self, keys):
        return [key in self.names for key in keys]

    def put(self, keys, buffers, groups=None):
        self.names += keys[: self.size - len(self.names)]
        return self.exists(keys)

    def get(self, keys, buffers):
        raise RuntimeError("what its library raises")

    def register(self, regions):
        pass

    def close(self):
        self.names.clear()


def open_pool(options, pool_file, role):
    return Toy(options)


@pytest.fixture
def toy(monkeypatch):
    monkeypatch.setitem(registry.BACKENDS, "toy", Backend(__name__, ToyOptions, "local_dram"))


@pytest.mark.usefixtures("toy")
def test_one_entry_makes_a_backend(tmp_path):
    """Its options are read from the pool file, the guards stand around it."""
    pool = assemble.open_worker_pool("toy", write_pool_file(tmp_path, size=2))
    memory = Memory(3)
    assert pool.put(["a", "b", "c"], memory.buffers) == [True, True, False]
    assert pool.exists(["c", "a"]) == [False, True]
    assert pool.get(["a"], memory.buffers.take(slice(0, 1))) == [False], "what it raises ends at the breaker"
    pool.close()


@pytest.mark.usefixtures("toy")
def test_mistake_in_the_options_names_file_and_key(tmp_path):
    """As for every backend, without a line of its own."""
    with pytest.raises(ConfigError, match=r"pool-.*\.json\.size is -1, expected a positive integer"):
        assemble.open_worker_pool("toy", write_pool_file(tmp_path, size=-1))


@pytest.mark.parametrize(
    ("name", "keys", "direct"),
    [
        ("mooncake", {"protocol": "ascend"}, True),
        ("mooncake", {"protocol": "ASCEND "}, True),
        ("mooncake", {}, True),
        ("mooncake", {"protocol": "tcp"}, False),
        ("memcache", {}, True),
        ("local_dram", {}, False),
    ],
)
def test_backend_says_whether_its_transport_reaches_the_device(name, keys, direct):
    """Where it does not, blocks are staged: a memcpy of the processor must never touch device memory."""
    assert BACKENDS[name].reaches_device(PoolFile(Path("pool.json"), keys, None)) is direct
