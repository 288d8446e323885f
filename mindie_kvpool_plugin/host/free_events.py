"""The free event: who is told before the host forgets a sequence.

The host's context store has ``__slots__``, so its class is wrapped (``host.patches``), and the wrapper
asks here which plugin subscribed to that instance.  Held weakly: a plugin that the host drops, like the
one of its warm-up, is not kept alive.
"""

from __future__ import annotations

import weakref
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from mindie_kvpool_plugin.host.plugin import KvPoolPlugin

# keyed by the id of the context store, which the plugin keeps alive
_plugins: weakref.WeakValueDictionary[int, KvPoolPlugin] = weakref.WeakValueDictionary()


def subscribe(plugin: KvPoolPlugin) -> None:
    """Tell ``plugin`` of the sequences its context store forgets."""
    _plugins[id(plugin.infer_context)] = plugin


def unsubscribe(plugin: KvPoolPlugin) -> None:
    """It serves no more."""
    _plugins.pop(id(plugin.infer_context), None)


def subscriber(infer_context: Any) -> KvPoolPlugin | None:
    """The plugin that wants to know, if any."""
    return _plugins.get(id(infer_context))


def anybody_serves() -> bool:
    """Whether a plugin of this process has taken the pool over."""
    return bool(_plugins)
