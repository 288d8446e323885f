"""What a configuration means once a slip in it is repaired.

Values only, no text: ``--fix`` compares the repaired text with it, and the check finds out with it
which findings follow from another one.
"""

from __future__ import annotations

from typing import Any

from mindie_kvpool_plugin.check.findings import Finding


def is_same(one: Any, other: Any) -> bool:
    """Whether two values are equal, types included; of any depth."""
    todo = [(one, other)]
    while todo:
        a, b = todo.pop()
        if type(a) is not type(b):
            return False
        if isinstance(a, dict):
            if a.keys() != b.keys():
                return False
            todo += [(item, b[key]) for key, item in a.items()]
        elif isinstance(a, list):
            if len(a) != len(b):
                return False
            todo += zip(a, b, strict=True)
        elif a != b:
            return False
    return True


def change(root: Any, finding: Finding) -> None:
    """Do to ``root``, in place, what ``--fix`` does to the text for a finding about a name or a number."""
    *parents, name = (part.replace("~1", "/").replace("~0", "~") for part in finding.path.split("/")[1:])
    holder = root
    for part in parents:
        holder = holder[int(part)] if isinstance(holder, list) else holder[part]
    if finding.kind.fix == "rename":
        holder[finding.params.get("close") or finding.params["meant"]] = holder.pop(name)
    elif finding.kind.fix == "remove":
        del holder[name]
    elif finding.kind.fix == "number":
        holder[int(name) if isinstance(holder, list) else name] = finding.params["meant"]
