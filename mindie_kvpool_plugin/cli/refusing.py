"""How commands that run something say that they will not: one line on standard error, exit status 2."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterator
from typing import Any

import click

from mindie_kvpool_plugin.check.messages import Language, words
from mindie_kvpool_plugin.errors import KvPoolError

CANNOT = 2


class Refused(Exception):  # noqa: N818 - it is no error of ours
    """What is asked for cannot be done; ``key`` names the sentence of the catalog that says why."""

    def __init__(self, key: str, **params: Any) -> None:
        super().__init__(key)
        self.key, self.params = key, params


@contextlib.contextmanager
def one_line_refusals(command: str, lang: Language) -> Iterator[None]:
    """Say what a block refuses, or what stopped it, and end the process with status 2."""
    try:
        yield
    except Refused as refused:
        text = words(refused.key, lang, **refused.params)
    except KvPoolError as error:
        text = str(error)
    else:
        return
    click.echo(f"mindie-kvpool {command}: {text}", err=True)
    sys.exit(CANNOT)
