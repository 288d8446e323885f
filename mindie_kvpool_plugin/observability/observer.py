"""One thread per process that answers whoever asks what this process does, and tells it from time to time.

It sleeps until somebody asks or something is due.  Nothing of it runs on a step's thread or waits for one: it reads
counters that others write.  Everything here is a convenience: what fails is logged once, and the service goes on.

A question is one line of JSON, ``{"ask": "stats"}``; the answer is one JSON document, then the connection closes.
Who has more to tell adds a function to ``answers``; it is called on the observer's thread and must not wait.

Ownership: ``parts`` is replaced, never changed, under ``_lock``; everything else belongs to the observer's thread.  A
forked child has no such thread: it forgets its parent's observer, and has one of its own once it has something to show.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import selectors
import socket
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict, replace
from typing import Any

from mindie_kvpool_plugin import __version__
from mindie_kvpool_plugin.observability import run_directory
from mindie_kvpool_plugin.observability.counters import Counters
from mindie_kvpool_plugin.observability.identity import Identity, Settings
from mindie_kvpool_plugin.observability.log import RateLimited, logger
from mindie_kvpool_plugin.observability.metrics import as_json
from mindie_kvpool_plugin.observability.part import Part
from mindie_kvpool_plugin.observability.telling import Telling

MAX_QUESTION_BYTES = 64 * 1024
MAX_ANSWER_BYTES = 8 * 1024**2
TALK_S = 1.0
"""For one question and its answer: who is slower is left alone."""

Question = Mapping[str, Any]


class Observer:
    """The thread and what it serves."""

    def __init__(self) -> None:
        self.pid = os.getpid()
        self.parts: tuple[Part, ...] = ()
        self.telling = Telling(lambda: self.parts)
        self.started_s = time.time()
        self._log = RateLimited()
        self._closing = threading.Event()
        self._wake, self._woken = socket.socketpair()
        self._wake.setblocking(False)
        # made here, so that a child forked at any moment knows what to close
        self._listening = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self._thread = threading.Thread(target=self._run, name="kvpool-observer", daemon=True)

    def start(self) -> None:
        """Begin to listen.  Never raises: without a thread nobody is answered."""
        with contextlib.suppress(RuntimeError):
            self._thread.start()
            return
        self._let_go()

    def wake(self) -> None:
        """Something has changed; any thread."""
        with contextlib.suppress(OSError):
            self._wake.send(b"!")

    def stop(self, timeout_s: float = 2 * TALK_S) -> None:
        """End the thread and take the socket away."""
        self._closing.set()
        self.wake()
        if self._thread.is_alive() and self._thread is not threading.current_thread():
            self._thread.join(timeout_s)

    def abandon(self) -> None:
        """In a forked child: let go of the parent's descriptors; its files stay."""
        self._let_go()
        self.telling.abandon()

    def _let_go(self) -> None:
        for each in (self._wake, self._woken, self._listening):
            each.close()

    def _run(self) -> None:
        try:
            self._listen()
        finally:
            self._guarded(self.telling.close)
            self._let_go()

    def _listen(self) -> None:
        try:
            with run_directory.opened(run_directory.own_path(), create=True) as folder:
                name = run_directory.listen(folder, self._listening)
                try:
                    self._serve(self._listening)
                finally:
                    run_directory.remove(folder, name)
        except (OSError, run_directory.RunDirectoryError) as error:
            logger.warning("nobody can ask this process for its counts (mindie-kvpool stats): %s", error)
            self._serve(None)

    def _serve(self, listening: socket.socket | None) -> None:
        with selectors.DefaultSelector() as selector:
            selector.register(self._woken, selectors.EVENT_READ, self._drain)
            if listening is not None:
                listening.setblocking(False)
                selector.register(listening, selectors.EVENT_READ, self._answer_next)
            while not self._closing.is_set():
                self._guarded(self.telling.tell)
                for key, _ in selector.select(self.telling.sleep_s()):
                    self._guarded(key.data)

    def _guarded(self, work: Callable[[], None]) -> None:
        try:
            work()
        except Exception:  # noqa: BLE001 - the thread must outlive a question, and nobody else may hear of it
            self._log.warning("something unexpected while observing; the service is not touched by it", exc_info=True)

    def _drain(self) -> None:
        self._woken.recv(64)

    def _answer_next(self) -> None:
        try:
            connection, _ = self._listening.accept()
        except OSError:
            return
        with connection, contextlib.suppress(OSError):
            question = _heard(connection)
            if question is not None:
                _say(connection, self._answer(question))

    def _answer(self, question: Question) -> Any:
        asked = str(question.get("ask"))
        answer = answers.get(asked) or _told_by_parts(asked)
        if answer is None:
            return {"error": f"nothing is known of {asked[:80]!r}", "known": sorted(answers)}
        try:
            return answer(question)
        except Exception as error:  # noqa: BLE001 - whoever asks hears of it instead
            self._log.warning("something unexpected while answering a question", exc_info=True)
            return {"error": f"the question failed: {error!r}"}


def _heard(connection: socket.socket) -> Question | None:
    """The question, or None when there is none in time."""
    deadline_s = time.monotonic() + TALK_S
    data = b""
    while not data.endswith(b"\n") and len(data) <= MAX_QUESTION_BYTES:
        left_s = deadline_s - time.monotonic()
        if left_s <= 0:
            return None
        connection.settimeout(left_s)
        more = connection.recv(4096)
        if not more:
            break
        data += more
    try:
        question = json.loads(data)
    except (ValueError, RecursionError):
        return None
    return question if isinstance(question, dict) else None


def _say(connection: socket.socket, answer: Any) -> None:
    text = json.dumps(answer, default=str).encode()
    if len(text) > MAX_ANSWER_BYTES:
        text = json.dumps({"error": f"the answer has {len(text)} bytes, more than {MAX_ANSWER_BYTES}"}).encode()
    connection.settimeout(TALK_S)
    connection.sendall(text + b"\n")


def process_facts() -> dict[str, Any]:
    """Who this process is."""
    observer = _observer
    return {
        "pid": os.getpid(),
        "version": __version__,
        "started": observer.started_s if observer is not None else None,
        "metrics_address": observer.telling.address if observer is not None else None,
    }


def observed() -> tuple[Part, ...]:
    """All that is observed in this process now."""
    observer = _observer
    return observer.parts if observer is not None else ()


def _told_by_parts(asked: str) -> Callable[[Question], Any] | None:
    """Who of this process answers that."""
    parts = [part for part in observed() if asked in part.tells]
    if not parts:
        return None

    def answer(question: Question) -> Any:
        told = [{**asdict(part.identity), "label": part.label, **part.tells[asked](question)} for part in parts]
        return {**process_facts(), "parts": told}

    return answer


def _stats(question: Question) -> Any:
    del question
    parts = [
        {
            **asdict(part.identity),
            "label": part.label,
            "started": part.started_s,
            "metrics": as_json(part.counters, part.identity.role),
        }
        for part in observed()
    ]
    return {**process_facts(), "parts": parts}


answers: dict[str, Callable[[Question], Any]] = {"stats": _stats}
"""By what is asked for; called on the observer's thread."""

_lock = threading.Lock()
_observer: Observer | None = None
_knows_of_forks = False


def observe(
    identity: Identity,
    counters: Counters,
    settings: Settings | None = None,
    watch: Callable[[], bool] | None = None,
) -> Part:
    """Show what somebody counts to whoever asks, from now on.  Any thread; never raises.

    Args:
        identity: who that is.
        counters: read from the observer's thread, written by their owners.
        settings: how it wants to be observed.
        watch: what it looks for now and then (``Part.watch``).
    """
    global _observer, _knows_of_forks  # noqa: PLW0603 - one observer per process
    with _lock:
        if not _knows_of_forks:
            os.register_at_fork(after_in_child=_forget_parent)
            _knows_of_forks = True
        is_new = _observer is None
        observer = _observer = _observer or Observer()
        identity, label = _told_apart(identity, observer.parts)
        part = Part(identity, label, counters, settings or Settings(), _forget, watch)
        observer.parts = (*observer.parts, part)
        if is_new:
            observer.start()
    observer.wake()
    return part


def _told_apart(identity: Identity, parts: tuple[Part, ...]) -> tuple[Identity, str]:
    """A label nobody else of its role has; schedulers are numbered, which tells them apart already."""
    taken = {part.label for part in parts if part.identity.role == identity.role}
    if identity.role == "scheduler":
        identity = replace(identity, rank=next(n for n in itertools.count() if str(n) not in taken))
    names = itertools.chain([str(identity.rank)], (f"{identity.rank}-{n}" for n in itertools.count(2)))
    return identity, next(name for name in names if name not in taken)


def _forget(part: Part) -> None:
    global _observer  # noqa: PLW0603
    with _lock:
        observer = _observer
        if observer is None or part not in observer.parts:
            return
        observer.parts = tuple(each for each in observer.parts if each is not part)
        if observer.parts:
            return
        _observer = None
    observer.stop()


def _forget_parent() -> None:
    """In a forked child, before anything else runs there."""
    global _lock, _observer  # noqa: PLW0603
    observer, _observer = _observer, None
    _lock = threading.Lock()
    if observer is not None:
        observer.abandon()
