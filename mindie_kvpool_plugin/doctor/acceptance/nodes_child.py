"""The child that exchanges a block with every other node, through the pool alone: no port of its own, any protocol.

Each node puts a block whose first bytes are drawn anew, and for every block it has got and compared a receipt with
these bytes.  Only a receipt proves that the other node is there now: what an earlier run left behind has other bytes.
"""

from __future__ import annotations

import os
import time
from typing import Any

import numpy as np
import numpy.typing as npt

from mindie_kvpool_plugin.doctor.child import end, listen, tell
from mindie_kvpool_plugin.errors import KvPoolError
from mindie_kvpool_plugin.options.records import MooncakeOptions
from mindie_kvpool_plugin.pools.mooncake import codes, npu, start
from mindie_kvpool_plugin.pools.mooncake.client import Connection, close_connection

TOKEN_BYTES = 16
POLL_S = 0.1
LOOK_AGAIN_POLLS = 20  # a block that was got is got again only so often: its node may have been started anew
LINGER_S = 2.0  # the others see that all is done, before it is taken away

Bytes = npt.NDArray[np.uint8]


def names(prefix: str, node: int, nodes: int) -> dict[str, str]:
    """All keys that a node puts: its block, its receipts by the number of the other, and that it is done."""
    own = f"{prefix}/node{node}of{nodes}"
    receipts = {str(other): f"{own}/got{other}" for other in range(1, nodes + 1) if other != node}
    return {"block": own, "done": f"{own}/done", **receipts}


def main() -> None:
    """Answer one question: {"options", "place", "prefix", "node", "nodes", "size", "wait_s"}."""
    question = listen()
    connection = None
    try:
        options = MooncakeOptions(**question["options"])
        start.set_environment(options)
        library = start.load_library()
        if "device" in question:
            npu.set_device(question["device"])
        connection = start.connect(library, options, "worker", question["place"], is_replacement=True)
        exchange = Exchange(library, connection, question)
        try:
            exchange.run(time.monotonic() + question["wait_s"])
        finally:
            tell("removed", left=exchange.remove())
        close_connection(connection)
    except KvPoolError as error:
        tell("refused", error=str(error))
    end(connection)


class Exchange:
    """One node's side."""

    def __init__(self, library: Any, connection: Connection, question: dict[str, Any]) -> None:
        self._store = connection.store
        self._node, self._nodes = question["node"], question["nodes"]
        self._names = {at: names(question["prefix"], at, self._nodes) for at in range(1, self._nodes + 1)}
        self._others = [at for at in self._names if at != self._node]
        self._config = library.ReplicateConfig()
        self._config.preferred_segment = connection.name  # so that the others' gets come to this machine
        size = question["size"]
        self._out, self._in = np.zeros(size, dtype=np.uint8), np.zeros(size, dtype=np.uint8)
        for buffer in (self._out, self._in):
            code = self._store.register_buffer(buffer.ctypes.data, buffer.nbytes)
            if code != 0:
                tell("unregistered", code=code)
        self._token = np.frombuffer(os.urandom(TOKEN_BYTES), dtype=np.uint8)
        self._got: dict[int, bytes] = {}
        self._proved: set[int] = set()

    def remove(self) -> int:
        """Take away all that this node has put; how many are still there."""
        return sum(self._store.remove(key, True) not in codes.GONE for key in self._names[self._node].values())

    def run(self, until_s: float) -> None:
        """Until every other node has this one's block, and this one theirs."""
        self.remove()  # of a run that died
        own = self._names[self._node]
        code = self._put(own["block"], content(self._token, len(self._out)))
        tell("put", code=code)
        polls = 0
        while code == 0 and time.monotonic() < until_s and len(self._proved) < len(self._others):
            for other in self._others:
                if other not in self._got or polls % LOOK_AGAIN_POLLS == 0:
                    self._look(other)
                self._look_for_receipt(other)
            polls += 1
            time.sleep(POLL_S)
        if len(self._proved) == len(self._others):
            self._put(own["done"], self._token)
            self._wait_for("done", until_s)
            time.sleep(LINGER_S)

    def _look(self, other: int) -> None:
        """Get its block, compare, and leave a receipt."""
        began = time.perf_counter()
        found = self._get(self._names[other]["block"], len(self._in))
        took_s = time.perf_counter() - began
        if found is None or self._got.get(other) == found[:TOKEN_BYTES].tobytes():
            return
        self._got[other] = found[:TOKEN_BYTES].tobytes()
        is_same = bool((found == content(found[:TOKEN_BYTES], len(found))).all())
        tell("got", node=other, seconds=took_s, is_same=is_same)
        if is_same:
            key = self._names[self._node][str(other)]
            self._store.remove(key, True)
            self._put(key, found[:TOKEN_BYTES])

    def _look_for_receipt(self, other: int) -> None:
        if other in self._proved or other not in self._got:
            return
        receipt = self._get(self._names[other][str(self._node)], TOKEN_BYTES)
        if receipt is not None and (receipt == self._token).all():
            self._proved.add(other)
            tell("proved", node=other)

    def _wait_for(self, what: str, until_s: float) -> None:
        keys = [self._names[other][what] for other in self._others]
        while time.monotonic() < until_s and any(code != 1 for code in self._store.batch_is_exist(keys)):
            time.sleep(POLL_S)

    def _put(self, key: str, data: Bytes) -> int:
        self._out[: len(data)] = data
        address = self._out.ctypes.data
        answers = self._store.batch_put_from_multi_buffers([key], [[address]], [[len(data)]], self._config)
        return codes.one_per_key(answers, 1)[0]

    def _get(self, key: str, size: int) -> Bytes | None:
        address = self._in.ctypes.data
        answers = self._store.batch_get_into_multi_buffers([key], [[address]], [[size]], False)
        return self._in[:size].copy() if codes.one_per_key(answers, 1)[0] == size else None


def content(token: Bytes, size: int) -> Bytes:
    """A block's bytes: the token, then what follows from it."""
    rest = np.random.default_rng(int.from_bytes(token.tobytes(), "little")).integers(0, 256, size, dtype=np.uint8)
    rest[:TOKEN_BYTES] = token
    return rest
