"""MemCache's own file: judged with the words of start-up, and the variable that names another one."""

import json

import pytest

from mindie_kvpool_plugin.check.messages import message
from mindie_kvpool_plugin.check.pipeline import check_bytes
from mindie_kvpool_plugin.check.situation import Situation
from mindie_kvpool_plugin.errors import ConfigError
from mindie_kvpool_plugin.options.records import MemcacheOptions
from mindie_kvpool_plugin.pools.memcache.start import VARIABLE, config_file
from tests.check_examples import changed

KEY = "ock.mmc.meta_service_url"


@pytest.fixture
def findings(tmp_path):
    """Codes, severities and findings of a deployment whose pool file names ``mmc.conf`` beside it."""

    def check(named="mmc.conf", **situation):
        pool = tmp_path / "kv_pool.json"
        pool.write_text(json.dumps({"config_path": str(tmp_path / named), "kv_pool": {}}), encoding="utf-8")
        changes = {"K.backend": "memcache", "K.configPath": str(pool)}
        changes["M.plugin_params"] = '{"plugin_type":"prefix_cache,kv_pool"}'
        data = json.dumps(changed(changes)).encode()
        found = check_bytes(data, "config.json", Situation(**({"env": {}} | situation))).findings
        return {f.code: f for f in found if f.severity in {"error", "warning"}}

    return check


@pytest.mark.parametrize("is_other", [False, True])
def test_variable_is_compared_with_config_path(tmp_path, findings, is_other):
    """With a kv_pool section that is config_path's file, not the pool file."""
    for name in ("mmc.conf", "other.conf"):
        (tmp_path / name).write_text(f"{KEY} = tcp://192.168.10.1:5000\n")
    variable = str(tmp_path / ("other.conf" if is_other else "mmc.conf"))
    assert list(findings(env={"MMC_LOCAL_CONFIG_PATH": variable})) == (["HC-81"] if is_other else [])


@pytest.mark.parametrize(
    ("url", "works"),
    [
        ("tcp://192.168.10.1:5000", True),
        ("tcp://[::1]:5000", True),
        ("192.168.10.1:5000", False),
        ("tcp://192.168.10.1", False),
        ("tcp://192.168.10.1:0", False),
        ("tcp://192.168.10.1:70000", False),
        ("http://192.168.10.1:5000", False),
    ],
)
def test_address_is_refused_with_the_words_of_the_start(tmp_path, findings, monkeypatch, url, works):
    """Both read the file that config_path names."""
    monkeypatch.delenv(VARIABLE, raising=False)
    path = tmp_path / "mmc.conf"
    path.write_text(f"{KEY} = {url}\n")
    found = findings()
    if works:
        config_file(MemcacheOptions(str(path)), "kv_pool.json")
        assert found == {}
    else:
        with pytest.raises(ConfigError) as refused:
            config_file(MemcacheOptions(str(path)), "kv_pool.json")
        assert list(found) == ["KP-15"]
        finding = found["KP-15"]
        assert f"{finding.place.file}: {message(finding, 'en')}" == str(refused.value)


def test_file_that_is_missing_is_an_error_where_it_should_be(tmp_path, findings):
    """Its folder is here, so it is not another machine's; elsewhere nobody can say."""
    assert findings("none.conf")["KP-15"].severity == "error"
    assert findings("elsewhere/none.conf") == {}
    assert findings("elsewhere/none.conf", home=tmp_path)["KP-15"].severity == "error"
    assert findings("none.conf", follow=False) == {}
