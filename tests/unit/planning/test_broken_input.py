"""Whatever a configuration or a model's config.json says: figures, or one clear error."""

import json

import pytest

from mindie_kvpool_plugin.check.rules.layout import Layout
from mindie_kvpool_plugin.errors import ConfigError
from mindie_kvpool_plugin.options.mooncake import TooLittleMemoryError
from mindie_kvpool_plugin.planning.curve import Point
from mindie_kvpool_plugin.planning.instance import from_config, from_options
from mindie_kvpool_plugin.planning.sizes import sizes
from mindie_kvpool_plugin.planning.worth import judge
from tests import check_examples
from tests.unit.planning.test_sizes import GB, R1

ODD = [None, True, -1, 0, 1, 7, 2**70, 0.5, "8", "", [], {}, [1]]


def figures(make):
    """What would be printed, or the error."""
    try:
        found = make()
        judge(found, Point(1, 0.0, 0.5), None, 10**9)
        return sizes(found, found.layout.nodes, 100 * GB, GB, store=False)
    except (ConfigError, TooLittleMemoryError) as error:
        return str(error)


def test_every_example_of_the_check_is_planned_or_refused(tmp_path, monkeypatch):
    """Right and wrong ones, whatever is wrong with them."""
    monkeypatch.delenv("RANK_TABLE_FILE", raising=False)
    (tmp_path / "weights.json").write_text(json.dumps(R1), encoding="utf-8")
    planned = 0
    for case in check_examples.all_cases():
        (tmp_path / "config.json").write_bytes(check_examples.config_bytes(case))
        found = figures(lambda: from_config(tmp_path / "config.json", tmp_path / "weights.json"))
        planned += not isinstance(found, str)
        assert isinstance(found, str) or found.pool_blocks > 0, case
    assert planned > 100


@pytest.mark.parametrize("key", sorted(R1))
def test_odd_numbers_of_a_model_are_told_or_taken(tmp_path, key):
    """Each number of the model's config.json replaced by what it should not be."""
    file = tmp_path / "model.json"
    for odd in ODD:
        file.write_text(json.dumps({**R1, key: odd}), encoding="utf-8")
        found = figures(lambda: from_options(file, Layout(tp=8, ranks_per_node=8), 128, {}))
        assert not isinstance(found, str) or found.startswith(str(file)), (key, odd)


@pytest.mark.parametrize("key", ["tp", "dp", "cp", "sp", "worldSize", "npuMemSize", "plugin_params", "models"])
def test_odd_values_of_a_configuration_are_told_or_taken(tmp_path, pytestconfig, key):
    """The same for the service's configuration."""
    example = pytestconfig.rootpath / "conf_examples" / "deepseek_r1_8_cards" / "config.json"
    config = json.loads(example.read_text(encoding="utf-8"))
    (tmp_path / "weights.json").write_text(json.dumps(R1), encoding="utf-8")
    path = tmp_path / "config.json"
    for odd in [*ODD, -2, 3]:
        config["BackendConfig"]["ModelDeployConfig"]["ModelConfig"][0][key] = odd
        path.write_text(json.dumps(config), encoding="utf-8")
        found = figures(lambda: from_config(path, tmp_path / "weights.json"))
        assert not isinstance(found, str) or found.startswith(str(path)), (key, odd)
