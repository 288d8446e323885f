"""Numbers that a command takes."""

from __future__ import annotations

import math
from typing import Any

import click

LONGEST_S = 86_400.0
"""A day: longer waits are no wish, and clocks end somewhere."""


class Number(click.FloatRange):
    """A number in a range; ``nan``, which is in none, is no number."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """As click does."""
        found = super().convert(value, param, ctx)
        if not math.isfinite(found):
            self.fail(f"{value!r} is not a valid float.", param, ctx)
        return found


SECONDS = Number(min=1, max=LONGEST_S)
"""How long a command may take."""
