"""Arms the import hooks, once; the only start-up side effect of this package.

The installed .pth file calls ``arm`` in every interpreter, so this module imports next to nothing: it
puts a trigger on ``sys.meta_path`` that waits for ``mindie_llm``.  Only when the host is really imported
does the trigger load the hooks (``wrapt``, ``host.patches``), and whatever goes wrong then ends in one log
line and a host that runs as without us.  ``MINDIE_KVPOOL_DISABLE=1`` switches everything off.
"""

from __future__ import annotations

import os
import sys

HOST_PACKAGE = "mindie_llm"
DISABLE_VARIABLE = "MINDIE_KVPOOL_DISABLE"


class Trigger:
    """A finder that finds nothing and goes away at the first import of the host."""

    def find_spec(self, fullname: str, path: object = None, target: object = None) -> None:
        """Attach the hooks when the host is about to be imported; the import itself is left to others."""
        del path, target
        if fullname == HOST_PACKAGE:
            disarm()
            _attach()


def arm() -> None:
    """Wait for the host; if it is there already, attach at once."""
    if HOST_PACKAGE in sys.modules:
        _attach()
    elif not is_armed():
        sys.meta_path.insert(0, Trigger())


def disarm() -> None:
    """Stop waiting."""
    sys.meta_path[:] = [finder for finder in sys.meta_path if not isinstance(finder, Trigger)]


def is_armed() -> bool:
    """Whether this interpreter waits for the host."""
    return any(isinstance(finder, Trigger) for finder in sys.meta_path)


def is_disabled() -> bool:
    """Whether the kill switch is set."""
    return os.environ.get(DISABLE_VARIABLE) == "1"


def _attach() -> None:
    try:
        from mindie_kvpool_plugin.host import patches  # noqa: PLC0415 - costs 60 ms, paid only beside the host

        patches.attach(disabled=is_disabled())
    except Exception as error:  # noqa: BLE001 - an interpreter must never break because of us
        print(f"mindie-kvpool: stays out of MindIE-LLM, could not attach: {error!r}", file=sys.stderr)  # noqa: T201
