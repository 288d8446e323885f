"""Where ranks meet is asked for as soon as they are not all of one server."""

import json

import pytest

from mindie_kvpool_plugin.check.messages import hint, message
from mindie_kvpool_plugin.check.pipeline import check_bytes
from mindie_kvpool_plugin.check.situation import Situation
from mindie_kvpool_plugin.options.pool_file import no_meeting_place
from tests.check_examples import changed

SERVERS = {"S.inferMode": "dmi", "M.dp": 2, "C.distributedEnable": True}
TCP = {"agreement": "tcp://192.168.10.1:18888"}


@pytest.mark.parametrize(
    ("changes", "section", "variants"),
    [
        (SERVERS, {}, ["servers"]),
        (SERVERS, {"agreement": "auto"}, ["servers"]),
        (SERVERS, TCP, []),
        (SERVERS | {"M.dp": 1}, {}, []),
        (SERVERS | {"S.inferMode": "standard"}, {}, []),
        (SERVERS | {"B.multiNodesInferEnabled": True}, {}, [""]),
        ({}, {}, []),
    ],
)
@pytest.mark.parametrize("lang", ["en", "zh"])
def test_ranks_of_several_servers_need_an_address(changes, section, variants, lang, tmp_path):
    """On a prefill node with a scheduler per data-parallel rank they have to meet."""
    pool = tmp_path / "kv_pool.json"
    pool.write_text(json.dumps({"kv_pool": section}))
    plugin = {"K.backend": "mooncake", "K.configPath": str(pool)}
    plugin["M.plugin_params"] = '{"plugin_type":"prefix_cache,kv_pool"}'
    report = check_bytes(json.dumps(changed(plugin | changes)).encode(), "config.json", Situation(env={}))
    found = [finding for finding in report.findings if finding.code == "KP-06"]
    assert [finding.variant or "" for finding in found] == variants
    assert all("kv_pool.agreement" in message(finding, lang) for finding in found)


def test_check_and_start_up_say_it_in_the_same_words(tmp_path):
    """What the worker raises is what the check shows, message and fix."""
    pool = tmp_path / "kv_pool.json"
    pool.write_text('{"kv_pool": {}}')
    plugin = {"K.backend": "mooncake", "K.configPath": str(pool)}
    plugin["M.plugin_params"] = '{"plugin_type":"prefix_cache,kv_pool"}'
    report = check_bytes(json.dumps(changed(plugin | SERVERS)).encode(), "config.json", Situation(env={}))
    (finding,) = [finding for finding in report.findings if finding.code == "KP-06"]
    assert f"{message(finding, 'en')}; {hint(finding, 'en')}" == no_meeting_place("auto").told
