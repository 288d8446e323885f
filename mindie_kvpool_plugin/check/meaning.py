"""What a configuration means once a slip in it is repaired.

Values only, no text: ``--fix`` compares the repaired text with it, and the check finds out with it
which findings follow from another one.
"""

from __future__ import annotations

from typing import Any

from mindie_kvpool_plugin.check.findings import Finding

# the parameter of a finding that holds the value meant
INSTEAD = "instead"


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


def at(root: Any, path: str) -> Any:
    """The value at a JSON Pointer; None when there is none."""
    for part in _parts(path):
        try:
            root = root[int(part)] if isinstance(root, list) else root[part]
        except (KeyError, IndexError, TypeError, ValueError):
            return None
    return root


def can_change(finding: Finding) -> bool:
    """Whether it is plain what was meant instead."""
    if finding.place is not None:
        return False
    return INSTEAD in finding.params or (finding.kind.fix == "rename" and not finding.variant)


def change(root: Any, finding: Finding) -> None:
    """Do to ``root``, in place, what ``--fix`` does to the text for a finding about a name or a number."""
    *_, name = _parts(finding.path)
    holder = at(root, finding.path.rpartition("/")[0])
    if INSTEAD in finding.params:
        holder[name] = finding.params[INSTEAD]
    elif finding.kind.fix == "rename":
        holder[finding.params.get("close") or finding.params["meant"]] = holder.pop(name)
    elif finding.kind.fix == "remove":
        del holder[name]
    elif finding.kind.fix == "number":
        holder[int(name) if isinstance(holder, list) else name] = finding.params["meant"]


def _parts(path: str) -> list[str]:
    return [part.replace("~1", "/").replace("~0", "~") for part in path.split("/")[1:]]
