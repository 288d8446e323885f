"""The reports that the READMEs show are what the command says."""

import re
import shutil
from pathlib import Path

import pytest
from click.testing import CliRunner

from mindie_kvpool_plugin.cli.main import main

ROOT = Path(__file__).parents[1]
# of conf_examples/laptop_tcp, made by somebody in a hurry
SLIPS = {
    '"backend": "mooncake"': '"backend"： "mooncake"',
    '"asyncWrite"': '"asyncwrite"',
    "prefix_cache,kv_pool": "kv_pool",
}


@pytest.mark.parametrize(("readme", "lang"), [("README.md", "en"), ("README.zh.md", "zh")])
def test_the_report_of_the_readme_is_the_one_printed(readme, lang, tmp_path, monkeypatch):
    """Line by line."""
    for file in ("config.json", "kv_pool.json"):
        shutil.copy(ROOT / "conf_examples" / "laptop_tcp" / file, tmp_path)
        (tmp_path / file).chmod(0o640)
    text = (tmp_path / "config.json").read_text(encoding="utf-8")
    for right, wrong in SLIPS.items():
        assert right in text
        text = text.replace(right, wrong)
    (tmp_path / "config.json").write_text(text, encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    found = re.search(
        r"^\$ mindie-kvpool (check .*)\n((?:.*\n)*?)```", (ROOT / readme).read_text(encoding="utf-8"), re.MULTILINE
    )
    run = CliRunner().invoke(main, found[1].split(), env={"LC_ALL": lang})
    assert run.output == found[2]
