"""The SSD tier's folder: limits, one owner at a time, and who had it before."""

import os
import subprocess
import sys
import time
from contextlib import closing

import pytest

from mindie_kvpool_plugin.errors import PoolError
from mindie_kvpool_plugin.pools.mooncake import disk
from mindie_kvpool_plugin.pools.mooncake.disk import Tenancy, plan, staging_bytes
from mindie_kvpool_plugin.pools.mooncake.limits import FORGOTTEN_S

MIB = 1 << 20


@pytest.mark.parametrize(
    ("memory", "bucket"), [(64 << 30, 256 * MIB), (256 * MIB, 16 * MIB), (32 * MIB, 4 * MIB), (1 << 40, 256 * MIB)]
)
def test_a_bucket_is_well_below_the_memory(tmp_path, memory, bucket):
    """Or nothing would ever be written."""
    assert plan(tmp_path, 2 << 30, memory).bucket_bytes == bucket


def test_environment_bounds_the_disk(tmp_path, monkeypatch):
    """By the bucket's own total: the other limit alone bounds nothing.  What the user has set stays."""
    for name in list(os.environ):
        if name.startswith("MOONCAKE_OFFLOAD"):
            monkeypatch.delenv(name)
    monkeypatch.setattr(os, "environ", dict(os.environ, MOONCAKE_OFFLOAD_HEARTBEAT_INTERVAL_SECONDS="3"))
    plan(tmp_path, 64 * MIB, 64 * MIB).set_environment()
    assert os.environ["MOONCAKE_OFFLOAD_BUCKET_MAX_TOTAL_SIZE"] == str(64 * MIB)
    assert os.environ["MOONCAKE_OFFLOAD_TOTAL_SIZE_LIMIT_BYTES"] == str(64 * MIB)
    assert os.environ["MOONCAKE_OFFLOAD_BUCKET_EVICTION_POLICY"] == "lru"
    assert os.environ["MOONCAKE_OFFLOAD_HEARTBEAT_INTERVAL_SECONDS"] == "3"


def test_a_tier_larger_than_the_disk_is_refused(tmp_path):
    """With both figures."""
    with pytest.raises(PoolError, match=r"1125899906842624 bytes, but the file system .* has room for \d+"):
        plan(tmp_path, 1 << 50, 64 * MIB)


def test_what_the_tier_holds_already_counts_as_room(tmp_path, monkeypatch):
    """A restart with the same size works on a disk that it has filled itself."""
    (tmp_path / "blocks").mkdir()
    (tmp_path / "blocks" / "1.bucket").write_bytes(bytes(20 * MIB))
    usage = type(disk.shutil.disk_usage(tmp_path))(100 * MIB, 97 * MIB, 3 * MIB)
    monkeypatch.setattr(disk.shutil, "disk_usage", lambda _: usage)
    assert plan(tmp_path, 20 * MIB, 16 * MIB).size_bytes == 20 * MIB
    with pytest.raises(PoolError, match="has room for"):
        plan(tmp_path, 24 * MIB, 16 * MIB)


def test_a_tier_of_a_few_files_is_refused(tmp_path):
    """It would be full all the time."""
    with pytest.raises(PoolError, match=f"at least {4 * 256 * MIB}"):
        plan(tmp_path, 512 * MIB, 64 << 30)


def test_a_folder_that_cannot_be_made_is_refused(tmp_path):
    """A file stands in its way."""
    (tmp_path / "file").write_text("")
    with pytest.raises(PoolError, match="cannot be used: Not a directory"):
        plan(tmp_path / "file" / "ssd", 64 * MIB, 64 * MIB)


def test_a_folder_is_made_when_it_is_taken(tmp_path):
    """Not before: until then the store may still be refused."""
    tier = plan(tmp_path / "new" / "ssd", 64 * MIB, 64 * MIB)
    assert list(tmp_path.iterdir()) == []
    with closing(Tenancy(tier)):
        assert tier.blocks.is_dir()


def test_a_folder_that_became_a_file_is_refused(tmp_path):
    """Between the plan and the taking."""
    tier = plan(tmp_path / "ssd", 64 * MIB, 64 * MIB)
    (tmp_path / "ssd").touch()
    with pytest.raises(PoolError, match=r"cannot be used: .*ssd"):
        Tenancy(tier)


def test_staging_memory_is_counted(monkeypatch):
    """Mooncake's default, or what the user has set."""
    monkeypatch.delenv("MOONCAKE_OFFLOAD_LOCAL_BUFFER_SIZE_BYTES", raising=False)
    assert staging_bytes() == 1280 * MIB
    monkeypatch.setenv("MOONCAKE_OFFLOAD_LOCAL_BUFFER_SIZE_BYTES", "100")
    assert staging_bytes() == 100


@pytest.fixture
def tier(tmp_path):
    return plan(tmp_path, 64 * MIB, 64 * MIB)


def test_a_folder_has_one_owner(tier):
    """Two would write each other's files; the lock ends with its process."""
    code = (
        "import sys; from pathlib import Path; from mindie_kvpool_plugin.pools.mooncake.disk import Tenancy, plan\n"
        f"tenancy = Tenancy(plan(Path({str(tier.folder)!r}), {64 * MIB}, {64 * MIB}))\n"
        "print('mine', flush=True); sys.stdin.read()"
    )
    with subprocess.Popen([sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as other:
        assert other.stdout.readline() == b"mine\n"
        with pytest.raises(PoolError, match="another store has it"):
            Tenancy(tier)
        other.kill()
    with closing(Tenancy(tier)) as mine:
        assert mine.predecessor == ""


def test_a_predecessor_that_left_is_not_waited_for(tier):
    """It told the master."""
    with closing(Tenancy(tier)) as first:
        first.enter("10.0.0.1:12345")
        first.leave()
    with closing(Tenancy(tier)) as second:
        assert second.forgotten_in_s() == 0


def test_a_predecessor_that_died_is_waited_for_until_it_is_forgotten(tier):
    """Counted from its last sign of life."""
    with closing(Tenancy(tier)) as first:
        first.enter("10.0.0.1:12345")
        first.beat()
    with closing(Tenancy(tier)) as second:
        assert second.predecessor == "10.0.0.1:12345"
        assert FORGOTTEN_S - 5 < second.forgotten_in_s() <= FORGOTTEN_S
    long_ago = time.time() - 60
    os.utime(tier.folder / "store.json", (long_ago, long_ago))
    with closing(Tenancy(tier)) as third:
        assert third.forgotten_in_s() == 0


@pytest.mark.parametrize("text", ["", "{", "[]", '{"nobody": 1}'])
def test_a_damaged_record_is_a_predecessor_of_unknown_name(tier, text):
    """Waiting is the safe side."""
    (tier.folder / "store.json").write_text(text)
    with closing(Tenancy(tier)) as mine:
        assert mine.forgotten_in_s() > 0
