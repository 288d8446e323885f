"""What can be wrong in a pool file, as data: start-up raises the first, the check tells all."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

from mindie_kvpool_plugin.errors import ConfigError

Kind = Literal[
    "missing", "unknown", "type", "point", "range", "choice", "form", "direct", "segment", "backend", "payload"
]
SHOWN_CHARS = 60


@dataclass(frozen=True, slots=True)
class Problem:
    """One thing in a pool file that cannot work.

    Attributes:
        kind: of the mistake: a key that is missing or unknown; a value of the wrong type, written with a point where an
            integer is due, out of range, none of the choices, or of the wrong form; or options that do not work here
            (``direct``: without ascend direct; ``segment``: too small; ``backend``: not ours; ``payload``: nobody can
            read the bytes).
        path: keys from the top of the file.
        value: what is there; None when the key is missing.
        told: what a person needs beside the place: the value, what was expected, the fix.
        close: of an unknown key, the known one that was probably meant.
    """

    kind: Kind
    path: tuple[str, ...]
    value: Any
    told: str
    close: str | None = None


def raise_first(problems: Sequence[Problem], place: str) -> None:
    """Nothing without problems.

    Raises:
        ConfigError: the first one; all keys that are missing together.
    """
    if not problems:
        return
    first = problems[0]
    if first.kind == "missing":
        names = [problem.path[-1] for problem in problems if problem.kind == "missing"]
        raise ConfigError(f"{place}: missing {', '.join(names)}")
    separator = ": " if first.kind == "unknown" or first.path == ("kv_pool",) else "."
    raise ConfigError(f"{place}{separator}{first.told}")


def shown(value: Any) -> str:
    """A value in a message, cut when it is long."""
    text = json.dumps(value, ensure_ascii=False, default=str)
    return text if len(text) <= SHOWN_CHARS else text[: SHOWN_CHARS - 3] + "..."
