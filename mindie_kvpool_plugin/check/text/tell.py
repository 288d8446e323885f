"""How those who read damaged text say what they found."""

from __future__ import annotations

from typing import Any, Protocol

from mindie_kvpool_plugin.check.findings import Code, Edit


class Tell(Protocol):
    """How a mistake is told: code, offsets, and what the message needs."""

    def __call__(  # noqa: D102
        self,
        code: Code,
        start: int,
        end: int,
        *,
        edits: tuple[Edit, ...] = (),
        variant: str = "",
        value: Any = None,
        **params: Any,
    ) -> None: ...
