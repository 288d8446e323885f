"""conf_examples/: every situation is complete and checks without anything above info."""

import json
from pathlib import Path

import pytest
from click.testing import CliRunner

from mindie_kvpool_plugin.cli.main import main
from mindie_kvpool_plugin.options.pool_file import read_pool_file

FOLDERS = sorted(path for path in (Path(__file__).parents[1] / "conf_examples").iterdir() if path.is_dir())
NAMES = [folder.name for folder in FOLDERS]


@pytest.mark.parametrize("folder", FOLDERS, ids=NAMES)
def test_example_has_no_finding_above_info(folder):
    """Checked as a user does, with the rank table where there is one."""
    args = ["check", str(folder / "config.json"), "--strict", "--format", "json"]
    table = folder / "rank_table.json"
    args += ["--env", f"RANK_TABLE_FILE={table}"] if table.exists() else []
    run = CliRunner().invoke(main, args)
    assert run.exit_code == 0, run.output
    assert {finding["severity"] for finding in json.loads(run.stdout)["findings"]} <= {"info"}


@pytest.mark.parametrize("folder", FOLDERS, ids=NAMES)
def test_pool_file_is_accepted_by_the_plugin(folder):
    """The running plugin reads the same file without complaint."""
    if (folder / "kv_pool.json").exists():
        assert read_pool_file(str(folder / "kv_pool.json")).options is not None


def test_only_the_decode_node_has_no_pool_file():
    """A decode node takes no part in prefix reuse."""
    assert [folder.name for folder in FOLDERS if not (folder / "kv_pool.json").exists()] == ["pd_decode_node"]


def test_readme_names_every_example():
    """An example nobody explains helps nobody."""
    text = (FOLDERS[0].parent / "README.md").read_text(encoding="utf-8")
    assert [name for name in NAMES if name not in text] == []
