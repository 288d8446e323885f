"""What can be wrong in a pool file, as data: start-up raises the first, the check tells all."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

from mindie_kvpool_plugin.errors import ConfigError

Kind = Literal[
    "missing",
    "unknown",
    "type",
    "point",
    "range",
    "choice",
    "form",
    "direct",
    "segment",
    "backend",
    "payload",
    "meeting",
]
SHOWN_CHARS = 60
PAYLOAD_FIX = 'remove the option or set "staging": "on"'


@dataclass(frozen=True, slots=True)
class Problem:
    """One thing in a pool file that cannot work.

    Attributes:
        kind: of the mistake: a key that is missing or unknown; a value of the wrong type, written with a point where an
            integer is due, out of range, none of the choices, or of the wrong form; or options that do not work here
            (``direct``: without ascend direct; ``segment``: too small; ``backend``: not ours; ``payload``: nobody can
            read the bytes; ``meeting``: ranks of several servers cannot meet there).
        path: keys from the top of the file.
        value: what is there; None when the key is missing.
        what: what is wrong, for people; start-up and check use the same words.
        fix: what was expected, or what to do; "" where that is plain.
    """

    kind: Kind
    path: tuple[str, ...]
    value: Any
    what: str
    fix: str = ""

    @property
    def told(self) -> str:
        """What a person needs beside the place."""
        separator = ", " if self.fix.startswith("expected") else "; "
        return f"{self.what}{separator}{self.fix}" if self.fix else self.what


def raise_first(problems: Sequence[Problem], place: str) -> None:
    """Nothing without problems.

    Raises:
        ConfigError: the first one; all keys that are missing together.
    """
    if not problems:
        return
    first = problems[0]
    if first.kind == "missing":
        raise ConfigError(f"{place}: {', '.join(each.what for each in problems if each.kind == 'missing')}")
    separator = " " if first.kind == "unknown" else ": " if first.path == ("kv_pool",) else "."
    raise ConfigError(f"{place}{separator}{first.told}")


def shown(value: Any) -> str:
    """A value in a message, cut when it is long."""
    text = json.dumps(value, ensure_ascii=False, default=str)
    return text if len(text) <= SHOWN_CHARS else text[: SHOWN_CHARS - 3] + "..."
