"""An error where the host refuses, a warning where it goes on with something else than was written."""

import json

import pytest

from mindie_kvpool_plugin.check.findings import THE_FILE
from mindie_kvpool_plugin.check.pipeline import check_bytes
from mindie_kvpool_plugin.check.situation import Situation
from tests.check_examples import MINIMAL, changed

MODEL = MINIMAL["BackendConfig"]["ModelDeployConfig"]["ModelConfig"][0]["modelName"]


def findings(changes):
    report = check_bytes(json.dumps(changed(changes)).encode(), "config.json", Situation(env={}))
    return {(f.code, f.variant, f.severity) for f in report.findings}


def adapter(name, path, **more):
    return {"name": name, "path": path, "baseModelName": MODEL} | more


# what the scheduler's C++ and the worker's Python do with a text of plugin_params
TEXTS = {
    '{"plugin_type":"prefix_cache","x":NaN}': ("HC-08", "number", "error"),
    '{"plugin_type":"prefix_cache","x":-Infinity}': ("HC-08", "number", "error"),
    '{"plugin_type":"prefix_cache","x":1e999}': ("HC-08", "number", "error"),
    '{"plugin_type":"prefix_cache","x":"\\ud83d"}': ("HC-08", "number", "error"),
    '{"plugin_type":"prefix_cache"}}': ("HC-08", "at", "error"),
    '{"plugin_type":"mtp","plugin_type":"prefix_cache"}': ("CF-21", "twice", "warning"),
    '{"plugin_type":"prefix_cache","dynamic_algo":{"y":1,"y":2}}': ("CF-21", "twice", "warning"),
    '{"plugin_type":"prefix_cache","Plugin_type":"mtp"}': ("CF-21", "close", "warning"),
    '{"plugin_type":"prefix_cache","something":1}': ("CF-21", "", "warning"),
    '{"plugin_type":"prefix_cache","watcher":1}': ("CF-21", "taken", "error"),
    '{"plugin_type":"prefix_cache,"}': ("HC-09", "stray", "warning"),
    '{"plugin_type":",prefix_cache"}': ("HC-09", "stray", "warning"),
    '{"plugin_type":"prefix_cache,,splitfuse"}': ("HC-09", "stray", "warning"),
    '{"plugin_type":"prefix_cache, "}': ("HC-09", "stray", "warning"),
    '{"plugin_type":" ,prefix_cache"}': ("HC-09", "blank", "error"),
    '{"plugin_type":" "}': ("HC-09", "blank", "error"),
    '{"plugin_type":"prefix_cache ,splitfuse"}': ("HC-09", "blank", "error"),
    '{"plugin_type":"prefix_cache,\\tsplitfuse"}': ("HC-09", "blank", "error"),
    '{"plugin_type":"mtp","num_speculative_tokens":true}': ("HC-11", "true", "warning"),
    '{"plugin_type":"mtp","num_speculative_tokens":false}': ("HC-11", "mtp_documented", "warning"),
    '{"plugin_type":"mtp","num_speculative_tokens":1.0}': ("HC-11", "mtp_range", "error"),
    '{"plugin_type":"mtp","num_speculative_tokens":"1"}': ("HC-11", "mtp_type", "error"),
    '{"plugin_type":"mtp","num_speculative_token":1}': ("HC-11", "close", "error"),
    '{"plugin_type":"la","level":4,"window":true,"guess_set_size":5}': ("HC-11", "true", "warning"),
    '{"plugin_type":"la","level":true,"window":5,"guess_set_size":5}': ("HC-11", "la_range", "error"),
    '{"plugin_type":"la","level":4,"window":"5","guess_set_size":5}': ("HC-11", "numbers", "error"),
    '{"plugin_type":"la","level":3,"window":17,"guess_set_size":5}': ("HC-11", "clamped", "warning"),
    '{"plugin_type":"memory_decoding","decoding_length":true}': ("HC-11", "true", "warning"),
    '{"plugin_type":"memory_decoding","decoding_length":0}': ("HC-11", "clamped", "warning"),
    '{"plugin_type":"memory_decoding","decoding_length":20}': ("HC-11", "clamped", "warning"),
    '{"plugin_type":"memory_decoding","decoding_length":99}': ("HC-11", "gamma", "error"),
}


@pytest.mark.parametrize("text", TEXTS)
def test_plugin_params_are_judged_as_scheduler_and_worker_take_them(text):
    """One finding about the text, of the severity that its effect has."""
    found = findings({"M.plugin_params": text, "D.speculationGamma": 60, "C.templateType": "Mix"})
    assert {each for each in found if each[0] in {"HC-06", "HC-08", "HC-09", "HC-11", "CF-21"}} == {TEXTS[text]}


@pytest.mark.parametrize("text", ['{"plugin_type":""}', '{"plugin_type":"prefix_cache, splitfuse"}'])
def test_plugin_params_that_both_take_are_not_mentioned(text):
    """No plugin, and a blank after a comma."""
    found = findings({"M.plugin_params": text, "C.templateType": "Mix"})
    assert not {each for each in found if each[0] in {"HC-08", "HC-09", "CF-21"}}


ELSEWHERE = {
    "a relative weight path": ({"M.modelWeightPath": "weights/qwen"}, ("CF-06", "relative", "warning")),
    "a relative adapter": ({"D.LoraModules": [adapter("a", "loras/a")]}, ("CF-07", "relative", "warning")),
    "an adapter with a blank": ({"D.LoraModules": [adapter("a", "/l/a b")]}, ("CF-07", "chars", "error")),
    "an adapter with a NUL": ({"D.LoraModules": [adapter("a", "/l/a\0b")]}, ("CF-07", "chars", "error")),
    "two adapters of one name": (
        {"D.LoraModules": [adapter("a", "/l/a"), adapter("b", "/l/b"), adapter("a", "/l/c")]},
        ("CF-07", "twice", "warning"),
    ),
    "an adapter's key misspelt": (
        {"D.LoraModules": [adapter("a", "/l/a", basemodelname=MODEL)]},
        ("HC-82", "both", "warning"),
    ),
    "a relative pool path": (
        {"K.backend": "mooncake", "K.configPath": "kv_pool.json"},
        ("HC-05", "", "warning"),
    ),
    "a NUL in an address": ({"S.ipAddress": "127.0.0.1\0.example"}, ("CF-22", "", "warning")),
    "a NUL in brackets": ({"S.ipAddress": "[::1\0x]"}, ("CF-22", "", "warning")),
    "a NUL behind brackets": ({"S.ipAddress": "[::1]\0x"}, ("CF-04", "name", "error")),
    "a NUL before everything": ({"S.ipAddress": "\x00127.0.0.1"}, ("CF-04", "empty", "error")),
    "asyncWrite without a pool": ({"K.asyncWrite": True}, ("HC-02", "async", "warning")),
}


@pytest.mark.parametrize("name", ELSEWHERE)
def test_other_values_are_judged_as_the_host_takes_them(name):
    """With no error beside a warning about the same value."""
    changes, wanted = ELSEWHERE[name]
    found = findings(changes)
    assert wanted in found
    if wanted[2] == "warning":
        assert not {each for each in found if each[0] in {wanted[0], "HC-03", "CF-04"} and each[2] == "error"}


def test_missing_keys_of_the_pool_file_are_missing_there(tmp_path):
    """In one finding, about that file and not about the key that names it."""
    path = tmp_path / "kv_pool.json"
    path.write_text('{"kv_pool": {}}')
    plugins = '{"plugin_type":"prefix_cache,kv_pool"}'
    changes = {"K.backend": "mooncake", "K.configPath": str(path), "M.plugin_params": plugins}
    report = check_bytes(json.dumps(changed(changes)).encode(), "config.json", Situation(env={}))
    (finding,) = [f for f in report.findings if f.code == "SC-01"]
    assert (finding.params["section"], finding.place.file) == (THE_FILE, str(path))
    assert finding.params["keys"] == "local_hostname, master_server_address"
