"""Something of this process that is observed."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

from mindie_kvpool_plugin.observability.counters import Counters
from mindie_kvpool_plugin.observability.identity import Identity, Settings


class Part:
    """A rank, or a scheduler's lookups, until it is forgotten.

    Attributes:
        identity: who it is.
        label: tells it from others of its role in this process.
        counters: what it counts.
        settings: how it wants to be observed.
        started_s: since when, seconds since 1970.
        watch: called every few seconds on the observer's thread, until it says that it is done.
        tells: what else it answers, by what is asked for; called on the observer's thread.
    """

    def __init__(
        self,
        identity: Identity,
        label: str,
        counters: Counters,
        settings: Settings,
        forget: Callable[[Part], None],
        watch: Callable[[], bool] | None = None,
    ) -> None:
        self.identity = identity
        self.label = label
        self.counters = counters
        self.settings = settings
        self.started_s = time.time()
        self.watch = watch
        self.tells: dict[str, Callable[[Mapping[str, Any]], Mapping[str, Any]]] = {}
        self._forget = forget

    def learn_model(self, name: str) -> None:
        """A scheduler hears its model's name with the first question."""
        self.identity = replace(self.identity, model=name)

    def look(self) -> None:
        """Watch once more, unless that is done."""
        if self.watch is not None and self.watch():
            self.watch = None

    def forget(self) -> None:
        """It is not observed any more."""
        self._forget(self)
