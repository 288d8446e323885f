"""What the kv_pool plugin refuses at start, told from the files with the same words."""

from __future__ import annotations

from collections.abc import Iterator

from mindie_kvpool_plugin import support
from mindie_kvpool_plugin.check.rules.modes import active_modes, roles
from mindie_kvpool_plugin.check.rules.registry import Fault, fault, rule
from mindie_kvpool_plugin.check.rules.view import KV_POOL, S, View


@rule(
    "KP-14", "error", "late",
    "readme: What is pooled",
    wrong='"layerwiseDisaggregated": true   (with kv_pool in plugin_type)',
    right='"layerwiseDisaggregated": false',
)  # fmt: skip
def modes_can_be_pooled(view: View) -> Iterator[Fault]:
    """The table of start-up; what only some roles of a node refuse names them."""
    if KV_POOL not in view.words:
        return
    modes, possible = active_modes(view), roles(view)
    for refusal in support.refusals({*modes, *possible}):
        of_roles = [role for role in possible if refusal.keys <= {*modes, role}]
        place = next((modes[key] for key in sorted(refusal.keys) if key in modes), (S, "inferMode"))
        if of_roles == list(possible):
            yield fault(*place, refusal=refusal)
        elif of_roles:
            names = ", ".join(role.removeprefix("pd_") for role in of_roles)
            yield fault(*place, variant="role", role=names, refusal=refusal)
