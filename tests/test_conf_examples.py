"""conf_examples/: every situation is complete and checks without anything above info."""

import json
import re
from pathlib import Path

import pytest
from click.testing import CliRunner

from mindie_kvpool_plugin.cli.main import main
from mindie_kvpool_plugin.options.pool_file import read_pool_file

EXAMPLES = Path(__file__).parents[1] / "conf_examples"
FOLDERS = sorted(path.parent for path in EXAMPLES.glob("*/config.json"))
README = (EXAMPLES / "README.md").read_text(encoding="utf-8")
NAMES = [folder.name for folder in FOLDERS]


@pytest.mark.parametrize("folder", FOLDERS, ids=NAMES)
def test_example_has_no_finding_above_info(folder):
    """Checked as a user does, with the rank table where there is one."""
    args = ["check", str(folder / "config.json"), "--strict", "--format", "json"]
    table = folder / "rank_table.json"
    args += ["--env", f"RANK_TABLE_FILE={table}"] if table.exists() else []
    # the variables its line in the README asks for
    line = next(line for line in README.splitlines() if line.startswith(f"| `{folder.name}`"))
    args += [each for found in re.findall(r"export (\w+=\w+)", line) for each in ("--env", found)]
    run = CliRunner().invoke(main, args)
    assert run.exit_code == 0, run.output
    assert {finding["severity"] for finding in json.loads(run.stdout)["findings"]} <= {"info"}


@pytest.mark.parametrize("folder", FOLDERS, ids=NAMES)
def test_pool_file_is_accepted_by_the_plugin(folder):
    """The running plugin reads the same file without complaint."""
    assert read_pool_file(str(folder / "kv_pool.json")).options is not None


def test_the_headline_deployment_is_what_it_says():
    """DeepSeek-R1 W8A8 over two nodes, with all that is on in it."""
    backend = read("deepseek_r1_two_nodes")["BackendConfig"]
    model = backend["ModelDeployConfig"]["ModelConfig"][0]
    assert (model["dp"], model["tp"], backend["multiNodesInferEnabled"]) == (2, 8, True)
    assert backend["kvPoolConfig"]["asyncWrite"] is True
    assert model["models"]["deepseekv2"]["kv_cache_options"]["enable_nz"] is True
    assert json.loads(model["plugin_params"]) == {
        "plugin_type": "mtp,prefix_cache,kv_pool",
        "num_speculative_tokens": 1,
    }
    options = read_pool_file(str(EXAMPLES / "deepseek_r1_two_nodes" / "kv_pool.json")).options
    assert options is not None
    assert options.agreement.startswith("tcp://")


def test_prefill_and_decode_nodes_share_a_pool():
    """What one stores the other finds: the same master, namespace and keys."""
    pools, models = [], []
    for name in ("pd_prefill_node", "pd_decode_node"):
        pools.append(json.loads((EXAMPLES / name / "kv_pool.json").read_text(encoding="utf-8")))
        models.append(read(name)["BackendConfig"]["ModelDeployConfig"]["ModelConfig"][0])
    words = [json.loads(model.pop("plugin_params"))["plugin_type"] for model in models]
    assert words == ["prefix_cache,kv_pool", "kv_pool"]
    assert models[0] == models[1]
    hosts = [pool.pop("local_hostname") for pool in pools]
    assert hosts[0] != hosts[1]
    assert pools[0] == pools[1]


def read(name):
    return json.loads((EXAMPLES / name / "config.json").read_text(encoding="utf-8"))


def test_readme_names_every_example():
    """An example nobody explains helps nobody."""
    folders = [path.name for path in EXAMPLES.iterdir() if path.is_dir()]
    assert len(folders) > len(NAMES)
    assert [name for name in folders if not re.search(f"`{name}/?`", README)] == []
