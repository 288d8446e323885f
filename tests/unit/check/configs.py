"""A complete, minimal config.json to change in tests, and a server's folder around it."""

import json

from mindie_kvpool_plugin.check.findings import pointer
from mindie_kvpool_plugin.check.pipeline import check_bytes
from mindie_kvpool_plugin.check.situation import Situation
from tests.check_examples import SECTIONS, changed

WITH_POOL = {
    "K.backend": "mooncake",
    "K.configPath": "/etc/mindie/kv_pool.json",
    "M.plugin_params": '{"plugin_type":"prefix_cache,kv_pool"}',
}


def path_of(name):
    """JSON Pointer of such a name."""
    section, key = name.split(".", 1)
    return pointer(*SECTIONS[section], key)


def check(changes=None, disk=None, **situation):
    """Check the minimal configuration with changes."""
    data = json.dumps(changed(changes or {}), indent=1).encode()
    return check_bytes(data, "config.json", Situation(**situation), disk)


def codes(result, severity="error"):
    """Codes of one severity, sorted."""
    return sorted({finding.code for finding in result.findings if finding.severity == severity})
