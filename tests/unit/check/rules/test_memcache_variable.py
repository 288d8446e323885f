"""MMC_LOCAL_CONFIG_PATH is compared with the file that MemCache would read otherwise."""

import json

import pytest
from click.testing import CliRunner

from mindie_kvpool_plugin.cli.main import main
from tests.check_examples import changed


@pytest.mark.parametrize(("variable", "is_other"), [("/etc/mmc.conf", False), ("/other.conf", True)])
def test_variable_is_compared_with_config_path(tmp_path, variable, is_other):
    """With a kv_pool section that is config_path's file, not the pool file."""
    pool, config = tmp_path / "kv_pool.json", tmp_path / "config.json"
    pool.write_text(json.dumps({"config_path": "/etc/mmc.conf", "kv_pool": {}}), encoding="utf-8")
    changes = {"K.backend": "memcache", "K.configPath": str(pool)}
    changes["M.plugin_params"] = '{"plugin_type":"prefix_cache,kv_pool"}'
    config.write_text(json.dumps(changed(changes)), encoding="utf-8")
    args = ["check", str(config), "--no-env", "--format", "json", "--env", f"MMC_LOCAL_CONFIG_PATH={variable}"]
    found = json.loads(CliRunner().invoke(main, args).stdout)["findings"]
    assert [f["code"] for f in found if f["severity"] != "info"] == (["HC-81"] if is_other else [])
