"""Sends a traffic to a simulated host: so many requests at once, one after the other if that is asked for."""

from __future__ import annotations

from collections.abc import Callable
from types import TracebackType

from mindie_kvpool_plugin.simulator.disaggregated import Disaggregated
from mindie_kvpool_plugin.simulator.engine import Engine
from mindie_kvpool_plugin.simulator.requests import Request
from mindie_kvpool_plugin.simulator.traffic import Prompt, Traffic

Progress = Callable[[int], None]
Host = Engine | Disaggregated


class Client:
    """Feeds a host inside a ``with`` block, on the thread that drives it.

    Args:
        host: nobody else listens to it meanwhile.
        traffic: what is sent.
        concurrency: requests in the host at once.
        gap: turns from one request to the next; 0: all that ``concurrency`` allows are sent at once.
        fail_after: requests that end before the device fails; 0: it does not fail.
        progress: called with the number of requests that were answered since the last call.

    Attributes:
        asked: what was asked so far, by sequence id.
    """

    def __init__(
        self,
        host: Host,
        traffic: Traffic,
        concurrency: int,
        *,
        gap: int = 0,
        fail_after: int = 0,
        progress: Progress | None = None,
    ) -> None:
        self.asked: dict[int, tuple[Prompt, Request]] = {}
        self._host, self._traffic = host, traffic
        self._concurrency, self._gap, self._fail_after = concurrency, gap, fail_after
        self._progress = progress
        self._pause = 0

    def __enter__(self) -> Client:
        self._host.on_end = self._ended
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._host.on_end = None  # it refers to the host, which would end in a cycle

    def turn(self) -> bool:
        """Send what may be sent, and let the host take a step; False when nothing is left."""
        if not self._traffic.ready and self._host.idle:
            return False
        self._send()
        self._host.step()
        return True

    def _send(self) -> None:
        self._pause = max(0, self._pause - 1)
        while self._traffic.ready and not self._pause and len(self.asked) - len(self._host.done) < self._concurrency:
            prompt = self._traffic.ready.popleft()
            request = self._host.submit(
                prompt.tokens, prompt.answer_length, prompt.adapter, n=prompt.samples, beams=prompt.beams
            )
            self.asked[request.sequence_id] = (prompt, request)
            self._pause = self._gap

    def _ended(self, request: Request) -> None:
        self._traffic.answered(self.asked[request.sequence_id][0], request.answer)
        if len(self._host.done) == self._fail_after:
            self._host.fail_device()
        if self._progress is not None:
            self._progress(1)
