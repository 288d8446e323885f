"""Makes ``import mindie_llm`` find the stand-in host, and only where no real one is installed."""

from __future__ import annotations

import importlib
import importlib.util
import sys
from pathlib import Path

from mindie_kvpool_plugin.errors import HostCompatError

HOST_TREE = Path(__file__).with_name("host_tree")


def install() -> None:
    """Put the stand-in host on ``sys.path``, and arm this package's import hooks as its .pth file does.

    Raises:
        HostCompatError: a real MindIE-LLM is installed here.
    """
    loaded = sys.modules.get("mindie_llm")
    if loaded is None:
        _refuse_if_foreign(importlib.util.find_spec("mindie_llm"))
        if str(HOST_TREE) not in sys.path:
            sys.path.insert(0, str(HOST_TREE))
            importlib.invalidate_caches()
    else:
        _refuse_if_foreign(loaded.__spec__)
    _arm()


def _refuse_if_foreign(spec: importlib.machinery.ModuleSpec | None) -> None:
    if spec is None:
        return
    places = [spec.origin or "", *(spec.submodule_search_locations or [])]
    if not any(Path(place).is_relative_to(HOST_TREE) for place in places if place):
        raise HostCompatError(
            f"a MindIE-LLM is installed at {places[0] or places[-1]}; the simulator stands in for it and "
            "needs an environment without it"
        )


def _arm() -> None:
    if importlib.util.find_spec("mindie_kvpool_plugin.host.activate") is not None:
        importlib.import_module("mindie_kvpool_plugin.host.activate").arm()
