"""A complete, minimal config.json to change in tests, and a server's folder around it."""

from __future__ import annotations

import copy
import json
from pathlib import Path
from typing import Any

from mindie_kvpool_plugin.check.findings import pointer
from mindie_kvpool_plugin.check.pipeline import Result, check_bytes
from mindie_kvpool_plugin.check.situation import Disk, Situation

EXAMPLES = Path(__file__).parents[2] / "examples"
MINIMAL = json.loads((EXAMPLES / "valid" / "SC-01" / "config.json").read_text(encoding="utf-8"))
SHORT = {
    "S": ["ServerConfig"],
    "B": ["BackendConfig"],
    "K": ["BackendConfig", "kvPoolConfig"],
    "D": ["BackendConfig", "ModelDeployConfig"],
    "M": ["BackendConfig", "ModelDeployConfig", "ModelConfig", 0],
    "C": ["BackendConfig", "ScheduleConfig"],
}
WHOLE = {"B.kvPoolConfig", "B.ModelDeployConfig", "B.ScheduleConfig", "D.ModelConfig"}
ABSENT = object()
WITH_POOL = {
    "K.backend": "mooncake",
    "K.configPath": "/etc/mindie/kv_pool.json",
    "M.plugin_params": '{"plugin_type":"prefix_cache,kv_pool"}',
}


def changed(changes: dict[str, Any]) -> dict[str, Any]:
    """The minimal configuration with values set by names such as ``S.port``; ABSENT removes one."""
    root = copy.deepcopy(MINIMAL)
    # a section replaced as a whole comes last: the others are set inside it
    for name, value in sorted(changes.items(), key=lambda item: item[0] in WHOLE):
        section, key = name.split(".", 1)
        here: Any = root
        for part in SHORT[section]:
            here = here[part]
        if value is ABSENT:
            del here[key]
        else:
            here[key] = value
    return root


def path_of(name: str) -> str:
    """JSON Pointer of such a name."""
    section, key = name.split(".", 1)
    return pointer(*SHORT[section], key)


def check(changes: dict[str, Any] | None = None, disk: Disk | None = None, **situation: Any) -> Result:
    """Check the minimal configuration with changes."""
    data = json.dumps(changed(changes or {}), indent=1).encode()
    return check_bytes(data, "config.json", Situation(**situation), disk)


def codes(result: Result, severity: str = "error") -> list[str]:
    """Codes of one severity, sorted."""
    return sorted({finding.code for finding in result.findings if finding.severity == severity})
