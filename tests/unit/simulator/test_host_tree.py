"""Unit tests of the stand-in host package itself and of what puts it on the path."""

import importlib
import json
import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from mindie_kvpool_plugin.simulator import host_modules

REPOSITORY = Path(__file__).parents[3]


@pytest.fixture
def plugins():
    """Dotted name of the stand-in's plugin package, importable."""
    host_modules.install()
    return "mindie_llm.text_generator.plugins"


def test_real_host_is_not_replaced(tmp_path):
    """Where a MindIE-LLM is installed the simulator refuses to start and says where it is."""
    package = tmp_path / "mindie_llm"
    package.mkdir()
    (package / "__init__.py").write_text("", encoding="utf-8")
    code = "from mindie_kvpool_plugin.simulator import host_modules; host_modules.install()"
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(tmp_path), str(REPOSITORY)])}
    ended = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=False)
    assert ended.returncode != 0
    assert f"HostCompatError: a MindIE-LLM is installed at {package}" in ended.stderr.splitlines()[-1]


def test_validator_answers_in_the_order_of_its_white_list(plugins):
    """The order of plugin_type does not matter, a name that is not listed is dropped."""
    utils = importlib.import_module(f"{plugins}.plugin_utils")
    text = json.dumps({"plugin_type": "prefix_cache, mtp,splitfuse", "num_speculative_tokens": 1})
    config, is_mix, enabled = utils.PluginParameterValidator(2).validate(text)
    assert (is_mix, enabled) == (True, ["mtp", "prefix_cache"])
    assert config["num_speculative_tokens"] == 1


@pytest.mark.parametrize(
    ("text", "error"),
    [
        ('{"plugin_type": "no_such_plugin"}', NotImplementedError),
        ('{"plugin_type": "mtp"}', NotImplementedError),
        ('{"plugin_type": "mtp", "num_speculative_tokens": 9}', ValueError),
        ('{"plugin_type": "' + "x" * 1024 + '"}', ValueError),
        ("{", json.JSONDecodeError),
    ],
)
def test_validator_refuses_what_the_host_refuses(plugins, text, error):
    """Unknown plugin, missing field, impossible value, too long, no JSON."""
    utils = importlib.import_module(f"{plugins}.plugin_utils")
    with pytest.raises(error):
        utils.PluginParameterValidator(1).validate(text)


def test_unknown_pool_is_refused(plugins):
    """The factory knows the host's own pools only."""
    del plugins
    mempool = importlib.import_module("mindie_llm.text_generator.mempool").MemPool
    with pytest.raises(ValueError, match="no_such_pool"):
        mempool.create_pool("no_such_pool", "")


def test_prefix_cache_refuses_hits_without_a_promise(plugins):
    """computed_blocks without remote_computed_blocks is a TypeError, as in the host."""
    plugin = _prefix_cache(plugins)
    metadata = SimpleNamespace(is_prefill=True, computed_blocks=np.array([1]), remote_computed_blocks=None)
    with pytest.raises(TypeError):
        plugin.model_inputs_update(None, metadata, None, None, (None, None))


def _prefix_cache(plugins):
    backend = SimpleNamespace(kv_pool_backend="", kv_pool_config_path="")
    module = importlib.import_module(f"{plugins}.prefix_cache.prefix_cache_plugin")
    return module.PrefixCachePlugin(backend, None, SimpleNamespace(block_size=4), None)


def _context(*, async_infer):
    store = importlib.import_module("mindie_llm.text_generator.utils.tg_infer_context_store")
    settings = importlib.import_module("mindie_llm.text_generator.utils.settings")
    config = settings.CacheConfig(max_block_size=4, max_seq_len=32, max_gen_len=32)
    return store.TGInferContextStore(None, config, None, None, settings.ContextParams(async_infer=async_infer))


def _handles(context, *sequence_ids):
    metadata = SimpleNamespace(
        is_dummy_batch=False, is_prefill=True, all_sequence_ids=np.array(sequence_ids, dtype=np.int64)
    )
    return context.get_batch_context_handles(metadata).tolist()


def test_handles_count_down_and_come_back_last_in_first_out(plugins):
    """2047, 2046, ...; a freed handle is the next one given out."""
    del plugins
    context = _context(async_infer=False)
    assert _handles(context, 11, 12, 13) == [2047, 2046, 2045]
    context.clear_finished_context(np.array([12]), np.array([2046], dtype=np.int32))
    assert _handles(context, 14, 15) == [2046, 2044]


def test_sequence_that_ended_is_cleared_one_step_later_when_asynchronous(plugins):
    """The first call only marks it, the second forgets it."""
    del plugins
    context = _context(async_infer=True)
    handles = np.array(_handles(context, 11), dtype=np.int32)
    assert context.clear_finished_context(np.array([11]), handles).tolist() == []
    assert context.get_once_end_flag(handles).tolist() == [True]
    assert context.clear_finished_context(np.array([11]), handles).tolist() == [11]
    assert context.get_once_end_flag(handles).tolist() == [False]
    assert _handles(context, 12) == handles.tolist()


def test_aborted_sequence_is_cleared_after_the_batch_when_asynchronous(plugins):
    """Its handle is not given out before."""
    del plugins
    context = _context(async_infer=True)
    first = _handles(context, 11)
    context.clear_context_by_seq_ids(np.array([11]))
    assert _handles(context, 12) != first
    context.clear_aborted_context()
    assert _handles(context, 13) == first
