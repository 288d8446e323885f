"""Asking the processes of this machine: all at once, each within a bound.

For whoever runs beside the service.  A process that does not answer is named; one that is gone leaves no trace.
"""

from __future__ import annotations

import json
import socket
import time
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from mindie_kvpool_plugin.observability import run_directory
from mindie_kvpool_plugin.observability.observer import MAX_ANSWER_BYTES

TIMEOUT_S = 2.0
AT_ONCE = 32


@dataclass(frozen=True, slots=True)
class Reply:
    """What a process said, or why it said nothing.

    Attributes:
        socket: its socket's path, or the folder's.
        answer: the document, if it answered.
        trouble: why there is none.
        kind: "late", "no_json": the sentence ``asked.<kind>`` says it to people; "": ``trouble`` is the system's.
        timeout_s: that it was given.
    """

    socket: str
    answer: Any = None
    trouble: str | None = None
    kind: str = ""
    timeout_s: float = TIMEOUT_S

    @property
    def is_folder(self) -> bool:
        """Whether it stands for a folder that cannot be trusted, and ``trouble`` names it."""
        return not self.socket.endswith(".sock")


def ask_all(question: Mapping[str, Any], timeout_s: float = TIMEOUT_S) -> list[Reply]:
    """Ask every process of this machine that whoever runs this may ask.

    Returns:
        One reply per process that lives, and one per folder that cannot be trusted, in the order of their paths.
    """
    text = json.dumps(question).encode() + b"\n"
    found = [reply for path in run_directory.all_paths() for reply in _ask_in(path, text, timeout_s)]
    return [reply for reply in found if reply is not None]


def _ask_in(path: Path, text: bytes, timeout_s: float) -> Iterator[Reply | None]:
    if not path.is_dir():
        return
    try:
        with run_directory.opened(path) as folder, ThreadPoolExecutor(AT_ONCE) as threads:
            names = run_directory.names(folder)
            yield from threads.map(lambda name: _ask(path, folder, name, text, timeout_s), names)
    except run_directory.RunDirectoryError as error:
        yield Reply(str(path), trouble=str(error))


def _ask(path: Path, folder: int, name: str, text: bytes, timeout_s: float) -> Reply | None:
    place = str(path / name)
    try:
        return Reply(place, answer=_talk(folder, name, text, timeout_s))
    except (ConnectionRefusedError, FileNotFoundError):
        return None
    except TimeoutError:
        return Reply(place, trouble=f"no answer within {timeout_s:g} s", kind="late", timeout_s=timeout_s)
    except OSError as error:
        return Reply(place, trouble=error.strerror or str(error))
    except (ValueError, RecursionError):
        return Reply(place, trouble="its answer is no JSON", kind="no_json")


def _talk(folder: int, name: str, text: bytes, timeout_s: float) -> Any:
    deadline_s = time.monotonic() + timeout_s
    with run_directory.connect(folder, name, timeout_s) as connection:
        connection.sendall(text)
        data = bytearray()
        while more := _some(connection, deadline_s):
            data += more
            if len(data) > MAX_ANSWER_BYTES:
                raise ValueError("too long")
    return json.loads(data)


def _some(connection: socket.socket, deadline_s: float) -> bytes:
    left_s = deadline_s - time.monotonic()
    if left_s <= 0:
        raise TimeoutError
    connection.settimeout(left_s)
    return connection.recv(65536)
