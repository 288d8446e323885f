"""Opening MemCache: which configuration counts, and one message for each thing that can be wrong."""

import re
import sys
import threading
import time
import types

import pytest

from mindie_kvpool_plugin.errors import ConfigError, PoolError
from mindie_kvpool_plugin.options.memcache import local_config
from mindie_kvpool_plugin.pools.memcache import start
from tests.conftest import free_port
from tests.memcache_standin import loaded

GIB = 1024**3


@pytest.fixture(autouse=True)
def _nothing_stuck(monkeypatch):
    monkeypatch.setattr(start, "_is_stuck", threading.Event())


def test_worker_moves_bytes_and_scheduler_only_asks(open_memcache):
    """A scheduler's client needs no NPU; a worker's is opened on its own."""
    open_memcache("scheduler", device_id=5).close()
    assert loaded().inits == [(5, False)]
    open_memcache("worker", device_id=3)
    assert loaded().inits[-1] == (3, True)


def test_configuration_is_named_before_the_library_is_loaded(open_memcache, tmp_path):
    """MemCache reads the variable once, when its library is loaded."""
    open_memcache()
    assert loaded().config_path == str(tmp_path / "mmc-local.conf")


def test_environment_wins_over_the_pool_file(open_memcache, service, tmp_path, monkeypatch):
    """As for the host's own client: the file that config_path names is not even opened."""
    (tmp_path / "other").mkdir()
    other = service.config(tmp_path / "other")
    monkeypatch.setenv("MMC_LOCAL_CONFIG_PATH", str(other))
    open_memcache(config_path=str(tmp_path / "is-not-there.conf"))
    assert loaded().config_path == str(other)


def test_missing_configuration_is_told_by_the_key_that_names_it(open_memcache, tmp_path, monkeypatch):
    """The pool file's key, or the variable."""
    with pytest.raises(ConfigError, match=r"json\.config_path is \".*gone\.conf\".*mmc-local\.conf"):
        open_memcache(config_path=str(tmp_path / "gone.conf"))
    monkeypatch.setenv("MMC_LOCAL_CONFIG_PATH", str(tmp_path / "away.conf"))
    with pytest.raises(ConfigError, match=r"environment variable MMC_LOCAL_CONFIG_PATH is \".*away\.conf\""):
        open_memcache()


@pytest.mark.parametrize("url", ["10.0.0.1:5000", "tcp://10.0.0.1", "tcp://10.0.0.1:0", "tcp://:5000", "tcp://a:99999"])
def test_address_that_cannot_work_is_refused(open_memcache, tmp_path, url):
    """File, key, value and form."""
    path = tmp_path / "bad.conf"
    path.write_text(f"# a comment\nock.mmc.meta_service_url = {url}\n", encoding="utf-8")
    with pytest.raises(ConfigError, match=re.escape(f'{path}: ock.mmc.meta_service_url is "{url}", expected "tcp://')):
        open_memcache(config_path=str(path))


def test_local_configuration_has_memcaches_defaults():
    """Keys that are left out, units as MemCache takes them."""
    assert local_config("", "x").services == (
        ("ock.mmc.meta_service_url", "127.0.0.1", 5000),
        ("ock.mmc.local_service.config_store_url", "127.0.0.1", 6000),
    )
    assert local_config("", "x").size_bytes == GIB
    text = "ock.mmc.local_service.dram.size = 2g\nock.mmc.local_service.hbm.size=1024MB\nother = tcp://x"
    assert local_config(text, "x").size_bytes == 3 * GIB


def test_library_that_is_not_installed_is_told_with_the_command(open_memcache, monkeypatch):
    """Which package, and how to get it."""
    monkeypatch.setitem(sys.modules, "memcache_hybrid", None)
    with pytest.raises(PoolError, match=r"memcache_hybrid .*pip install 'mindie-kvpool-plugin\[memcache\]'"):
        open_memcache()


def test_library_without_its_shared_objects_is_told(open_memcache, monkeypatch):
    """An error of the loader names the library."""

    def broken(name):
        raise OSError(f"libmf_memcache.so of {name}: version GLIBC_2.28 not found")

    monkeypatch.setattr(start, "importlib", types.SimpleNamespace(import_module=broken))
    with pytest.raises(PoolError, match=r"cannot be loaded: libmf_memcache\.so .*glibc 2\.28"):
        open_memcache()


def test_library_of_another_version_is_told(open_memcache, service):
    """A call that is gone is named."""
    open_memcache("scheduler").close()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(start, "CALLS", (*start.CALLS, "batch_put_from_somewhere"))
        with pytest.raises(PoolError, match=r"its client has no batch_put_from_somewhere"):
            open_memcache()


def test_dead_meta_service_is_told_before_init_waits_for_it(open_memcache, service):
    """Address, key and fix, well within 10 s, and the binding was not asked."""
    service.kill()
    began = time.monotonic()
    with pytest.raises(PoolError, match=rf"127\.0\.0\.1:{service.ports[0]} .*ock\.mmc\.meta_service_url.*start it"):
        open_memcache()
    assert time.monotonic() - began < 10
    assert loaded().inits == []


def test_config_store_is_probed_too(open_memcache, service, tmp_path):
    """A meta service that answers is not enough: a worker would wait for its config store."""
    port = free_port()
    path = tmp_path / "other.conf"
    good = (tmp_path / "mmc-local.conf").read_text(encoding="utf-8")
    path.write_text(good.replace(str(service.ports[1]), str(port)), encoding="utf-8")
    with pytest.raises(PoolError, match=rf":{port} .*config_store_url"):
        open_memcache(config_path=str(path))


def test_init_that_does_not_return_is_given_up(open_memcache, service):
    """Within its bound; a second try in the same process is refused, because the first still runs."""
    open_memcache("scheduler").close()
    loaded().hangs = threading.Event()
    service.capacity_bytes = 0
    began = time.monotonic()
    with pytest.raises(PoolError, match=r"init has not returned within 0\.[0-9] s.*open_timeout_s.*SIGKILL"):
        open_memcache(open_timeout_s=0.2)
    assert time.monotonic() - began < 10
    with pytest.raises(PoolError, match=r"earlier init of MemCache has not returned; only a new process"):
        open_memcache()
    loaded().hangs.set()


def test_time_for_init_grows_with_the_memory_it_takes(open_memcache, monkeypatch):
    """A second for every GiB, for a worker only."""
    budgets = []
    monkeypatch.setattr(start, "_init", lambda store, setup, budget_s: (budgets.append(budget_s), -1)[1])
    monkeypatch.setattr(start, "ALLOCATED_BYTES_PER_S", 1 << 20)
    for role in ("worker", "scheduler"):
        with pytest.raises(PoolError):
            open_memcache(role, open_timeout_s=2)
    assert budgets == [2 + 32, 2]


def test_init_that_fails_is_told_with_its_code(open_memcache, service):
    """Code, device, file and what to look at; the client is closed, so that the next try starts anew."""
    open_memcache("scheduler").close()
    loaded().init_code = -1
    with pytest.raises(PoolError, match=r"device 2 from .*mmc-local\.conf \(code -1.*Ascend driver"):
        open_memcache(device_id=2)
    assert loaded().closes == 2


def test_client_that_claims_success_is_asked_a_question(open_memcache, service):
    """After a failed init the next one says 0 and connects nothing."""
    open_memcache("scheduler").close()
    loaded().client = service
    service.is_alive = False
    with pytest.raises(PoolError, match=r"first question with: -3014 .*new process"):
        open_memcache("scheduler")


def test_second_client_of_another_kind_is_refused(open_memcache):
    """MemCache would silently give the first one."""
    pool = open_memcache("scheduler")
    with pytest.raises(PoolError, match=r"MemCache client already .*moves_bytes=False"):
        open_memcache("worker")
    pool.close()
    open_memcache("worker", device_id=0)
    with pytest.raises(PoolError, match=r"device_id=0.*device_id=1"):
        open_memcache("worker", device_id=1)
