"""The schemas in the hands of others: ajv in strict mode, and the JSON service that VS Code has inside."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from mindie_kvpool_plugin.check.schema import profiles
from tests.check_examples import BASE, MINIMAL, changed

ROOT = Path(__file__).parents[4]
EDITOR = ROOT / "tests" / "editor"
# .ci/setup puts it beside Python where the machine has none
NODE = shutil.which("node", path=f"{os.environ.get('PATH', '')}:{Path(sys.executable).parent}")
IS_THERE = NODE is not None and (EDITOR / "node_modules" / "ajv").is_dir()

pytestmark = [
    pytest.mark.node,
    pytest.mark.skipif(not IS_THERE, reason="no Node.js, or not the packages of tests/editor: .ci/setup brings both"),
]

CONFIG = profiles.load("config-3.0.0")
MOONCAKE = profiles.load("mooncake")
POOL = json.loads((BASE / "kv_pool.json").read_text(encoding="utf-8"))


def ask(*questions):
    """One answer per question (``tests/editor/ask.cjs``)."""
    done = subprocess.run(
        [NODE, EDITOR / "ask.cjs"], input=json.dumps(questions).encode(), capture_output=True, check=False, timeout=60
    )
    assert done.returncode == 0, done.stderr.decode()
    return json.loads(done.stdout)


def at_cursor(schema, text):
    (answer,) = ask({"editor": schema, "text": text})
    return answer


def in_model(text):
    return f'{{"BackendConfig": {{"ModelDeployConfig": {{"ModelConfig": [{{{text}}}]}}}}}}'


def in_kv_pool_config(text):
    return f'{{"BackendConfig": {{"kvPoolConfig": {{{text}}}}}}}'


def test_schemas_compile_in_strict_mode():
    """Every keyword is known, applies to its type, and every required key is described."""
    names = profiles.names()
    answers = ask(*({"ajv": profiles.load(name), "values": []} for name in names))
    assert {name: answer["error"] for name, answer in zip(names, answers, strict=True)} == dict.fromkeys(names)


def test_strict_mode_would_tell():
    """A keyword misspelt, and one that its type does not have."""
    wrong = [{"type": "string", "patern": "x"}, {"type": "string", "minimum": 1}, {"type": "object", "required": ["a"]}]
    assert [answer["error"] is None for answer in ask(*({"ajv": each, "values": []} for each in wrong))] == [False] * 3


def test_ajv_judges_files_as_the_check_does():
    """The examples are valid; a value of the wrong type, range or choice is not."""
    configs = [MINIMAL, changed({"S.port": "1025"}), changed({"S.port": 80}), changed({"K.backend": "Mooncake"})]
    native = {key: value for key, value in POOL.items() if key != "kv_pool"}
    pools = [POOL, native, POOL | {"protocol": "hccl"}, POOL | {"kv_pool": {"x": 1}}]
    pools.append({key: value for key, value in native.items() if key != "metadata_server"})
    about_configs, about_pools = ask({"ajv": CONFIG, "values": configs}, {"ajv": MOONCAKE, "values": pools})
    assert about_configs["valid"] == [True, False, False, False]
    assert about_pools["valid"] == [True, True, False, False, False]


def test_every_example_configuration_is_quiet_in_an_editor(tmp_path):
    """No red line in an example for people, by the schema it names; one where there is cause."""
    paths = sorted((ROOT / "conf_examples").glob("*/*.json"))
    wrong = tmp_path / "kv_pool.json"
    schema = (ROOT / "schemas" / "mooncake.schema.json").as_uri()
    wrong.write_text(json.dumps({"$schema": schema} | POOL | {"protocol": "hccl"}))
    *answers, told = ask(*({"file": str(path)} for path in (*paths, wrong)))
    assert len(paths) > 10
    assert [(path, each) for path, each in zip(paths, answers, strict=True) if each["problems"]] == []
    assert len(told["problems"]) == 1


@pytest.mark.parametrize(
    ("schema", "text", "labels"),
    [
        (CONFIG, in_kv_pool_config('"backend": |'), ['""', '"unifiedcache"', '"mooncake"', '"memcache"']),
        (CONFIG, in_kv_pool_config('"configPath": |'), ['""', '"/etc/mindie/kv_pool.json"']),
        (CONFIG, in_kv_pool_config("|"), ["backend", "configPath", "asyncWrite"]),
        (CONFIG, '{"ServerConfig": {"inferMode": |}}', ['"standard"', '"dmi"']),
        (CONFIG, in_model('"tp": |'), ["-1"]),
        (MOONCAKE, '{"protocol": |}', ['"ascend"', '"tcp"', '"rdma"']),
        (MOONCAKE, '{"global_segment_size": |}', ["3355443200", '"20GB"', "0"]),
        (MOONCAKE, '{"metadata_server": |}', ['"P2PHANDSHAKE"']),
        (MOONCAKE, '{"kv_pool": {"staging": |}}', ['"auto"', '"on"', '"off"']),
        (MOONCAKE, '{"kv_pool": {"agreement": |}}', ['"auto"', '"tcp://192.168.10.1:18888"']),
    ],
)
def test_completion_offers_the_values(schema, text, labels):
    """Choices and defaults, never a regular expression."""
    assert [each["label"] for each in at_cursor(schema, text)["completions"]] == labels


def test_completion_of_plugin_params_is_escaped_text():
    """The snippet for the usual case, in which a backslash and a closing brace are escaped once more."""
    first = at_cursor(CONFIG, in_model('"plugin_params": |'))["completions"][0]
    text = first["text"].replace("\\\\", "\\").replace("\\}", "}")
    assert json.loads(json.loads(text)) == {"plugin_type": "prefix_cache,kv_pool"}


def test_completion_leaves_dead_keys_out():
    """pluginParams is a frequent slip; it is known, and not offered."""
    labels = {each["label"] for each in at_cursor(CONFIG, in_model("|"))["completions"]}
    assert "plugin_params" in labels
    assert "pluginParams" not in labels
    (problem,) = [
        each for each in at_cursor(CONFIG, in_model('"pluginParams": ""'))["problems"] if "Missing" not in each
    ]
    assert "plugin_params" in problem


@pytest.mark.parametrize(
    ("schema", "text", "title", "part"),
    [
        (CONFIG, in_kv_pool_config('"async|Write": true'), "Async Write", "waits for the copy to the pool"),
        (CONFIG, in_model('"plugin_p|arams": ""'), "Plugin params", "at most 256 bytes"),
        (MOONCAKE, '{"kv_|pool": {}}', "kv_pool plugin", "lets the scheduler ask this package"),
        (MOONCAKE, '{"kv_pool": {"namesp|ace": "a"}}', "Namespace", "First part of every key"),
        (MOONCAKE, '{"metadata|_server": "a"}', "Metadata server", "URL of a metadata service"),
    ],
)
def test_hover_says_what_a_key_is(schema, text, title, part):
    """Title and description."""
    hover = at_cursor(schema, text)["hover"].replace("\\", "")
    assert hover.startswith(title)
    assert part in hover


def test_an_editor_says_what_is_accepted():
    """Of a choice the choices, of a misspelt option that it is none."""
    pool = {key: value for key, value in POOL.items() if key != "protocol"}
    (choice,) = at_cursor(MOONCAKE, json.dumps(pool | {"protocol": "hccl"}))["problems"]
    assert choice.endswith('Valid values: "ascend", "tcp", "rdma".')
    (unknown,) = at_cursor(MOONCAKE, json.dumps(pool | {"kv_pool": {"namspace": "x"}}))["problems"]
    assert "namspace is not allowed" in unknown
