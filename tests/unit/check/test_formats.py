"""Other formats are known by their first lines; what begins like JSON is JSON with mistakes."""

import json

import pytest

from mindie_kvpool_plugin.check.formats import other_format
from mindie_kvpool_plugin.check.pipeline import check_bytes
from mindie_kvpool_plugin.check.situation import Situation
from tests.check_examples import changed
from tests.unit.check.configs import WITH_POOL

YAML = "local_hostname: 10.0.0.1\nmaster_server_address: 10.0.0.1:50051\nprotocol: ascend\n"
INI = "[mooncake]\nlocal_hostname = 10.0.0.1\nmaster_server_address = 10.0.0.1:50051\n"


@pytest.mark.parametrize(
    ("text", "format"),
    [
        (YAML, "YAML"),
        ("# c\n---\na: 1\n", "YAML"),
        ("kv_pool:\n  - a\n  - b\n", "YAML"),
        (INI, "INI"),
        ("; c\n[a]\n", "INI"),
        ("local_hostname = 10.0.0.1\nprotocol = tcp\n", "INI"),
        ("", ""),
        ("[1, 2]", ""),
        ('["x"]', ""),
        ('{"a": 1}', ""),
        ('"a": 1,\n"b": 2}', ""),
        ("hello\nworld\n", ""),
    ],
)
def test_format_is_told_from_the_first_lines(text, format):
    """Two lines of another format are needed where no mark of it begins the text."""
    assert other_format(text) == format


@pytest.mark.parametrize("name", ["kv_pool.json", "kv_pool.conf"])
@pytest.mark.parametrize(("text", "format"), [(YAML, "YAML"), (INI, "INI")])
def test_another_format_is_one_finding_about_the_pool_file(tmp_path, name, text, format):
    """At its first line, whatever the file is called, and nothing beside it."""
    path = tmp_path / name
    path.write_text(text)
    config = json.dumps(changed(WITH_POOL | {"K.configPath": str(path)})).encode()
    findings = check_bytes(config, "config.json", Situation()).findings
    (finding,) = [f for f in findings if f.severity == "error"]
    assert (finding.code, finding.params["format"]) == ("CF-23", format)
    assert (finding.place.file, finding.place.line) == (str(path), 1)
