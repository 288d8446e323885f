"""Every way to leave the pool off: the host runs as without us, and the log says why."""

import json
import logging

import pytest

from mindie_kvpool_plugin.errors import ConfigError, HostCompatError, PoolError
from mindie_kvpool_plugin.observability.log import logger
from mindie_kvpool_plugin.simulator.engine import Engine, EngineConfig
from tests.walks.conftest import assert_right_so_far

PROMPT = list(range(10, 90))


@pytest.fixture
def log():
    """Lines our logger wrote at WARNING and above."""
    lines = []

    class Keep(logging.Handler):
        def emit(self, record):
            lines.append(record.getMessage())

    handler = Keep(logging.WARNING)
    logger.addHandler(handler)
    yield lines
    logger.removeHandler(handler)


def pool_file(tmp_path, content):
    path = tmp_path / "pool.json"
    path.write_text(content if isinstance(content, str) else json.dumps(content))
    return str(path)


@pytest.mark.parametrize(
    ("plugins", "backend", "content", "named"),
    [
        ("prefix_cache,kv_pool", "", {"kv_pool": {}}, "backend is empty"),
        ("prefix_cache,kv_pool", "local_dram", None, "configPath is empty"),
        ("prefix_cache,kv_pool", "mooncake", {"capacity": "1MB"}, 'has no "kv_pool" section'),
        ("kv_pool", "local_dram", {"kv_pool": {}}, 'without "prefix_cache"'),
    ],
    ids=["no backend", "no configPath", "no section", "no prefix_cache"],
)
def test_the_host_runs_as_without_us(tmp_path, log, plugins, backend, content, named):
    """The plugin is named but the pool is off: answers are right, nothing is pooled, one line says why."""
    path = "" if content is None else pool_file(tmp_path, content)
    with Engine(EngineConfig(plugins=plugins, backend=backend, pool_file=path)) as engine:
        request = engine.submit(PROMPT, 8)
        engine.run()
        again = engine.submit(PROMPT, 8)
        engine.run()
        assert_right_so_far(engine)
        assert request.pool_blocks == again.pool_blocks == 0
        assert (again.hbm_blocks > 0) is ("prefix_cache" in plugins)
        assert engine.plugin("kv_pool").counters.spilled_blocks == 0
    assert [line for line in log if "the pool is off" in line and named in line]


def test_a_section_without_the_word_is_told(tmp_path, log, monkeypatch):
    """The scheduler asks for our names, the workers store the host's: right answers, and the log says what to do."""
    import importlib

    factory = importlib.import_module("mindie_llm.text_generator.mempool.factory")
    monkeypatch.setattr(factory, "NATIVE_BACKENDS", [*factory.NATIVE_BACKENDS, "local_dram"])
    path = pool_file(tmp_path, {"kv_pool": {}})
    with Engine(EngineConfig(plugins="prefix_cache", backend="local_dram", pool_file=path)) as engine:
        native = importlib.import_module("mindie_llm.text_generator.mempool.native_mempool").NativeMempool
        assert native.opened[-1] == "worker"
        request = engine.submit(PROMPT, 8)
        engine.run()
        assert_right_so_far(engine)
        assert request.pool_blocks == 0
    told = [line for line in log if 'plugin_type does not name "kv_pool"' in line]
    assert len(told) == 1
    assert path in told[0]


@pytest.mark.parametrize(
    ("content", "error", "named"),
    [
        ("{not json", ConfigError, "is not valid JSON"),
        ({"kv_pool": {"namspace": "x"}}, ConfigError, 'did you mean "namespace"'),
        ({"kv_pool": {"fence_timeout_s": "soon"}}, ConfigError, "fence_timeout_s"),
        ({"capacity": "much", "kv_pool": {}}, ConfigError, "capacity"),
        ({"kv_pool": []}, ConfigError, "expected an object"),
    ],
    ids=["not json", "misspelt", "wrong type", "wrong size", "wrong section"],
)
def test_a_pool_file_that_cannot_work_ends_the_start(tmp_path, content, error, named):
    """One clear error that names file, value and fix; no service that silently does not pool."""
    path = pool_file(tmp_path, content)
    with pytest.raises(error, match=named.replace("(", r"\(")) as raised:
        Engine(EngineConfig(plugins="prefix_cache,kv_pool", backend="local_dram", pool_file=path))
    assert path in str(raised.value)


def test_a_missing_pool_file_ends_the_start(tmp_path):
    """The path is in the message."""
    path = str(tmp_path / "nowhere.json")
    with pytest.raises(ConfigError, match=r"nowhere\.json"):
        Engine(EngineConfig(plugins="prefix_cache,kv_pool", backend="local_dram", pool_file=path))


def test_an_unreachable_master_ends_the_start_with_its_address(tmp_path):
    """Nothing listens there: the error names the address and what to do."""
    import socket

    with socket.socket() as holder:
        holder.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{holder.getsockname()[1]}"
        path = pool_file(
            tmp_path,
            {"local_hostname": "127.0.0.1", "master_server_address": address, "protocol": "tcp", "kv_pool": {}},
        )
        with pytest.raises(PoolError, match=f"cannot reach mooncake_master at {address}"):
            Engine(EngineConfig(plugins="prefix_cache,kv_pool", backend="mooncake", pool_file=path))


def test_a_deployment_that_cannot_be_pooled_is_refused_with_the_reason(tmp_path, monkeypatch):
    """Layerwise disaggregation: the message says what to set, and nothing was opened."""
    from mindie_kvpool_plugin.host import modes

    found = modes.active_modes
    monkeypatch.setattr(modes, "active_modes", lambda *host: found(*host) | {"layerwise"})
    path = pool_file(tmp_path, {"kv_pool": {}})
    with pytest.raises(HostCompatError, match="set layerwiseDisaggregated to false"):
        Engine(EngineConfig(plugins="prefix_cache,kv_pool", backend="local_dram", pool_file=path))
