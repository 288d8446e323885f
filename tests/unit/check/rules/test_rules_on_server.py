"""Where the service runs, missing files and wrong modes are faults; elsewhere they are not judged."""

import json

import pytest

from mindie_kvpool_plugin.check.pipeline import check_file
from mindie_kvpool_plugin.check.situation import Situation, default_config, find_home
from tests.check_examples import changed
from tests.unit.check.configs import WITH_POOL, codes

POOL = {"local_hostname": "10.0.0.1", "metadata_server": "P2PHANDSHAKE", "master_server_address": "10.0.0.1:50051"}
SMALL = {"global_segment_size": "16MB", "local_buffer_size": "16MB", "kv_pool": {}}


@pytest.fixture
def server(tmp_path):
    """An installation: <home>/conf/config.json beside the package."""

    class Server:
        home = tmp_path / "home"
        weights = tmp_path / "weights"
        pool = tmp_path / "kv_pool.json"
        config = home / "conf" / "config.json"

        def check(self, changes, mode=0o640):
            values = {"M.modelWeightPath": str(self.weights), "K.configPath": ""} | changes
            self.config.write_text(json.dumps(changed(values)), encoding="utf-8")
            self.config.chmod(mode)
            home = find_home(None, self.config)
            return check_file(self.config, Situation(config_path=self.config, home=home))

        def with_pool(self, changes=None):
            return self.check(WITH_POOL | {"K.configPath": str(self.pool)} | (changes or {}))

    here = Server()
    here.config.parent.mkdir(parents=True)
    (here.home / "__init__.py").touch()
    here.weights.mkdir()
    (here.weights / "config.json").write_text('{"model_type": "qwen2"}', encoding="utf-8")
    here.pool.write_text(json.dumps(POOL | SMALL), encoding="utf-8")
    here.pool.chmod(0o640)
    return here


def variants(result, code):
    return [finding.variant for finding in result.findings if finding.code == code and finding.severity == "error"]


def test_server_is_recognised(server):
    """conf/ below a folder that holds the package."""
    assert find_home(None, server.config) == server.home
    assert find_home({"MINDIE_LLM_HOME_PATH": str(server.home)}, None) == server.home
    assert default_config({"MINDIE_LLM_HOME_PATH": str(server.home)}) == server.config
    assert default_config({"MIES_CONFIG_JSON_PATH": "/x.json"}).name == "x.json"
    assert default_config({}) is None


def test_complete_server_is_clean(server):
    """Pool file and weights are there."""
    assert codes(server.with_pool()) == []


@pytest.mark.parametrize(("mode", "severity"), [(0o640, None), (0o600, None), (0o644, "error"), (0o750, "error")])
def test_mode_of_the_file_matters(server, mode, severity):
    """No bit outside 0640."""
    found = [f.severity for f in server.check({}, mode).findings if f.code == "HC-80"]
    assert found == ([severity] if severity else [])


def test_mode_elsewhere_is_a_note(server):
    """A copy on a laptop may have any mode."""
    server.check({}, 0o644)
    result = check_file(server.config, Situation(config_path=server.config))
    assert [f.severity for f in result.findings if f.code == "HC-80"] == ["info"]


def test_weights_must_be_there(server):
    """A missing directory, one without config.json, one with a broken one."""
    assert variants(server.check({"M.modelWeightPath": str(server.weights / "none")}), "CF-06") == ["missing"]
    (server.weights / "config.json").write_text("{", encoding="utf-8")
    assert variants(server.check({}), "CF-06") == ["bad_config"]
    (server.weights / "config.json").unlink()
    assert variants(server.check({}), "CF-06") == ["no_config"]


def test_pool_file_must_be_usable(server):
    """Missing, a link, writable by others, no JSON, with a byte order mark, a key missing."""
    real = server.pool.rename(server.pool.with_name("real.json"))
    assert variants(server.with_pool(), "HC-03") == ["missing"]
    server.pool.symlink_to(real)
    assert variants(server.with_pool(), "HC-03") == ["link"]
    server.pool.unlink()
    real.rename(server.pool)
    server.pool.chmod(0o666)
    assert variants(server.with_pool(), "HC-03") == ["writable"]
    server.pool.chmod(0o640)
    server.pool.write_text("{'a': 1}", encoding="utf-8")
    assert "JS-08" in codes(server.with_pool())
    server.pool.write_text("\ufeff" + json.dumps(POOL), encoding="utf-8")
    host_pools = {"M.plugin_params": '{"plugin_type":"prefix_cache"}'}
    assert codes(server.with_pool(host_pools)) == ["FI-06"]
    server.pool.write_text("\ufeff" + json.dumps(POOL | SMALL), encoding="utf-8")
    assert codes(server.with_pool()) == []  # the plugin reads it, and the host's own client stands aside
    server.pool.write_text(json.dumps({"kv_pool": {"namespce": "x"}}), encoding="utf-8")
    assert codes(server.with_pool()) == ["HC-82", "SC-01"]


def test_pool_findings_name_file_and_line(server):
    """In the pool file, told at the key that names it."""
    server.pool.write_text(json.dumps(POOL | SMALL | {"protocol": "smoke"}, indent=1), encoding="utf-8")
    (finding,) = [f for f in server.with_pool().findings if f.code == "SC-04"]
    assert finding.path == "/BackendConfig/kvPoolConfig/configPath"
    assert finding.place.file == str(server.pool)
    assert finding.place.excerpt.strip() == '"protocol": "smoke"'


def test_family_from_the_weights_decides(server):
    """A guess from the name warns, the weights' own word is an error."""
    with_prefix = {"M.plugin_params": '{"plugin_type":"prefix_cache"}', "M.modelName": "deepseek-r1"}
    assert codes(server.check(with_prefix)) == []
    (server.weights / "config.json").write_text('{"model_type": "deepseek_v3"}', encoding="utf-8")
    assert codes(server.check(with_prefix)) == ["HC-22"]
    away = {**with_prefix, "M.modelWeightPath": "/data/weights/x"}
    result = check_file(server.config, Situation(config_path=server.config, follow=False))
    assert "HC-22" in codes(server.check(away), "warning") + codes(result, "warning")


def test_certificates_must_be_there(server):
    """Relative to the installation, with a mode of their own."""
    tls = {
        "S.httpsEnabled": True,
        "S.managementIpAddress": "127.0.0.1",
        "S.managementPort": 1025,
        "S.metricsPort": 1025,
        "S.tlsCert": "security/server.pem",
        "S.tlsPk": "security/server.pem",
        "S.tlsCaPath": "security/",
        "S.tlsCaFile": ["server.pem"],
    }
    assert variants(server.check(tls), "CF-01") == ["", "", ""]
    certificate = server.home / "security" / "server.pem"
    certificate.parent.mkdir()
    certificate.touch(mode=0o600)
    assert codes(server.check(tls)) == []
    certificate.chmod(0o644)
    assert variants(server.check(tls), "CF-01") == ["mode", "mode", "mode"]


def test_rank_table_must_be_exported(server):
    """An error where the service's own environment is known, else a note."""
    server.check({"B.multiNodesInferEnabled": True})
    for known, severity in ((True, "error"), (False, "info")):
        situation = Situation(config_path=server.config, home=server.home, env={}, is_env_known=known)
        found = [f.severity for f in check_file(server.config, situation).findings if f.code == "HC-67"]
        assert found == [severity]


def test_memory_of_the_pool_is_counted(server):
    """Ranks times segment and buffer against what is free."""
    server.pool.write_text(json.dumps(POOL | SMALL | {"global_segment_size": "999TB"}), encoding="utf-8")
    assert "HC-51" in codes(server.with_pool(), "warning")
