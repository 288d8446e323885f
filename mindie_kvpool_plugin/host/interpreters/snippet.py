"""What is asked of an interpreter: run inside it with ``-c``, never imported by us.

Argument: the script whose folder belongs on ``sys.path``, or nothing.  Prints ``MARK`` and a JSON object, the fields of
``probe.Interpreter``.  Only the standard library, and nothing that Python 3.7 does not know: it may be any Python.
Whether hooks will be set is not judged but tried: looking for the host is what the armed trigger waits for.
"""

from __future__ import annotations

import importlib.util
import json
import os
import re
import site
import sys
from typing import Any, Iterator  # noqa: UP035 - Python 3.7

MARK = "mindie-kvpool-seen:"
OURS = "mindie_kvpool_plugin"
HOST = "mindie_llm"
PTH = OURS + ".pth"


def as_started(script: str) -> None:
    """Give ``sys.path`` its first entry: none when embedded, a script's folder when that is run."""
    if sys.flags.isolated or getattr(sys.flags, "safe_path", False):
        return
    del sys.path[0]
    if script:
        sys.path.insert(0, os.path.dirname(os.path.realpath(script)))


def find(name: str) -> Any:
    """The spec of a top-level module; None when it is not found."""
    try:
        return importlib.util.find_spec(name)
    except Exception:  # noqa: BLE001 - any finder may stand in the way
        return None


def folder(name: str) -> str | None:
    """The first folder of a package, or None."""
    spec = find(name)
    places = list(spec.submodule_search_locations or []) if spec is not None else []
    return os.path.realpath(places[0]) if places else None


def site_folders() -> Iterator[tuple[str, bool, bool]]:
    """(Folder, whether its .pth files are read, whether it is the user's own) of every folder that may hold one."""
    reads = not sys.flags.no_site
    for each in getattr(site, "getsitepackages", list)():
        yield each, reads, False
    users = getattr(site, "getusersitepackages", lambda: None)()
    if users:
        yield users, reads and bool(site.ENABLE_USER_SITE), True
    for each in sys.path:
        yield each or os.getcwd(), False, False


def startup_files() -> list[dict[str, Any]]:
    """Our .pth files: path, whether it is read at start, may be read, lies in the user site."""
    found: dict[str, dict[str, Any]] = {}
    for each, is_read, is_users in site_folders():
        path = os.path.join(os.path.realpath(each), PTH)
        if os.path.lexists(path):
            may = os.access(path, os.R_OK)
            found.setdefault(path, {"path": path, "is_read": is_read, "may_read": may, "is_user_site": is_users})
    return list(found.values())


def version_in(place: str) -> str:
    """``__version__`` of a copy of ours, from its text."""
    try:
        with open(os.path.join(place, "__init__.py"), encoding="utf-8") as file:
            found = re.search(r'^__version__ = "([^"]+)"', file.read(), re.MULTILINE)
    except OSError:
        return "unknown"
    return found.group(1) if found else "unknown"


def copies() -> list[tuple[str, str]]:
    """(Folder, version) of each copy of ours on ``sys.path``, in its order."""
    places = [os.path.realpath(os.path.join(each, OURS)) for each in sys.path]
    return [(each, version_in(each)) for each in dict.fromkeys(places) if os.path.isdir(each)]


def unreadable(place: str) -> str | None:
    """The first file or folder from ``place`` down that may not be read, or None."""
    for top, _, files in os.walk(place, onerror=lambda error: None):
        if not os.access(top, os.R_OK | os.X_OK):
            return top
        for name in files:
            if not os.access(os.path.join(top, name), os.R_OK):
                return os.path.join(top, name)
    return hidden_folder(place)


def hidden_folder(place: str) -> str | None:
    """The first folder that ``os.walk`` passed over because it may not be listed."""
    for top, names, _ in os.walk(place):
        for name in names:
            if not os.access(os.path.join(top, name), os.R_OK | os.X_OK):
                return os.path.join(top, name)
    return None if os.access(place, os.R_OK | os.X_OK) else place


def is_private(place: str) -> bool:
    """Whether others than owner and group are kept out of our package, or of a .pth file of ours."""
    found = [place, *(file["path"] for file in startup_files())]
    return any(os.path.exists(each) and not os.stat(each).st_mode & 0o004 for each in found)


def is_attached() -> bool:
    """Whether the hooks are set."""
    patches = sys.modules.get(OURS + ".host.patches")
    return bool(patches) and bool(getattr(patches, "is_attached", bool)())


def is_armed() -> bool:
    """Whether the trigger waits for the host, or saw it already."""
    return is_attached() or any(type(each).__module__ == OURS + ".host.activate" for each in sys.meta_path)


def why_not_armed() -> str:
    """What importing the trigger says."""
    try:
        __import__(OURS + ".host.activate")
    except Exception as error:  # noqa: BLE001 - whatever it is, it is the answer
        return f"{type(error).__name__}: {error}"
    return ""


def host_version() -> str:
    """As its distribution says."""
    try:
        from importlib.metadata import version  # noqa: PLC0415 - not in Python 3.7

        return version("mindie-llm")
    except Exception:  # noqa: BLE001 - unknown is an answer
        return "unknown"


def judged_places() -> tuple[str, int, list[tuple[str, str, str]]]:
    """(The host's version, number of places, (module, name, problem) of each misfit), judged by the copy found here."""
    try:
        from mindie_kvpool_plugin.host import compat  # noqa: PLC0415 - may be missing, or too new for this Python

        report = compat.inspect_host()
        wrong = [(place.module, place.name, problem) for place, problem in report.problems]
        return report.version, len(compat.PLACES), wrong
    except Exception:  # noqa: BLE001 - the same
        return host_version(), 0, []


def start_options() -> str:
    """The letters of those options that keep site folders or variables out."""
    known = {"S": "no_site", "I": "isolated", "E": "ignore_environment", "s": "no_user_site"}
    return "".join(letter for letter, name in known.items() if getattr(sys.flags, name))


def seen() -> dict[str, Any]:
    """Everything, in an order: whether we were armed comes before anything of ours is imported."""
    facts: dict[str, Any] = {"is_armed": is_armed(), "copies": copies(), "startup_files": startup_files()}
    facts["host"] = folder(HOST)  # the trigger, if armed, sets the hooks now
    facts["is_attached"] = is_attached()
    ours = facts["plugin"] = folder(OURS)
    facts["plugin_version"] = version_in(ours) if ours else None
    facts["unreadable"] = unreadable(ours) if ours else None
    facts["is_private"] = is_private(ours) if ours else False
    facts["not_armed_because"] = "" if facts["is_armed"] or not ours else why_not_armed()
    judged = judged_places() if facts["host"] else ("none", 0, [])
    facts["host_version"], facts["places"], facts["problems"] = judged
    facts["missing"] = [name for name in ("wrapt", "numpy") if find(name) is None]
    facts["has_mooncake"] = find("mooncake") is not None
    facts["is_disabled"] = os.environ.get("MINDIE_KVPOOL_DISABLE") == "1"
    facts["executable"], facts["prefix"], facts["flags"] = sys.executable, sys.prefix, start_options()
    facts["version"] = ".".join(str(each) for each in sys.version_info[:3])
    return facts


if __name__ == "__main__":
    as_started(sys.argv[1] if len(sys.argv) > 1 else "")
    print(MARK + json.dumps(seen()))  # noqa: T201 - the answer
