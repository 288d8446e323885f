"""Children that see what no sound machine shows."""

import os
import signal
import sys
from pathlib import Path

from mindie_kvpool_plugin.doctor.child import listen, tell

MOVED = {"put_s": 0.1, "get_s": 0.1, "stored": 6, "got": 6, "wrong": [], "trouble": None, "codes": []}


def main():
    how, question = os.environ["HOW"], listen()
    if how == "refused":
        tell("refused", error="it said no")
        return
    if how == "unloaded":
        tell("unloaded", error="libhccl.so: cannot open shared object file")
        return
    if question["work"] == "copies":
        tell("layout", name="nz", bytes=8, segments=1, wrong=[3] if how == "damaged" else [])
    else:
        lost = {"stored": 6, "got": 5, "trouble": "told why"} if how == "lost" else {}
        wrong = {"wrong": [7]} if how == "damaged" else {}
        for _ in range(2 if how in ("died", "hangs") else 5):
            tell("moved", **{**MOVED, **lost, **wrong})
    sys.stdout.flush()
    if how == "died":
        os.kill(os.getpid(), signal.SIGSEGV)
    if how == "hangs":
        Path(os.environ["HANGS"], str(os.getpid())).touch()
        signal.pause()
