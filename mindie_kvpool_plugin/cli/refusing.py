"""How commands say that they will not: one line on standard error, exit status 2."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterator
from typing import NoReturn

import click

from mindie_kvpool_plugin.check.messages import Language, reason
from mindie_kvpool_plugin.errors import KvPoolError

CANNOT = 2


@contextlib.contextmanager
def one_line_refusals(command: str, lang: Language) -> Iterator[None]:
    """Say what a block refuses, or which file stopped it, and end the process with status 2."""
    try:
        yield
    except KvPoolError as error:
        refuse(command, reason(error, lang))
    except OSError as error:
        if not error.filename:
            raise  # a stream of ours: the group says it
        refuse(command, reason(error, lang))


def refuse(command: str, text: str) -> NoReturn:
    """Say why and end the process."""
    click.echo(f"mindie-kvpool {command}: {text}", err=True)
    sys.exit(CANNOT)
