"""Numbers that a command takes."""

from __future__ import annotations

import math
from typing import Any

import click

from mindie_kvpool_plugin.check.messages import words
from mindie_kvpool_plugin.cli.speaking import chosen_language
from mindie_kvpool_plugin.options.sizes import parse_size

LONGEST_S = 86_400.0
"""A day: longer waits are no wish, and clocks end somewhere."""


class Number(click.FloatRange):
    """A number in a range; ``nan``, which is in none, is no number."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """As click does."""
        found = super().convert(value, param, ctx)
        if not math.isfinite(found):
            self.fail(words("command.no_number", chosen_language("auto"), value=value), param, ctx)
        return found


class Size(click.ParamType):  # type: ignore[type-arg]
    """A size as the pool file writes it, such as ``200GB``: bytes."""

    name = "SIZE"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int:
        """As click does."""
        size = parse_size(value)
        if size is None:
            self.fail(words("command.no_size", chosen_language("auto"), value=value), param, ctx)
        return size


SECONDS = Number(min=1, max=LONGEST_S)
"""How long a command may take."""
