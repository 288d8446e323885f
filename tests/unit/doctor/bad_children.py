"""Children that end badly, or when they are told to."""

import ctypes
import signal
import threading
from pathlib import Path

from mindie_kvpool_plugin.doctor.child import listen, tell


def main():
    question = listen()
    if question["how"] == "deaf":
        signal.signal(signal.SIGINT, signal.SIG_IGN)
    tell("begun")
    if question["how"] == "crash":
        ctypes.string_at(0)
    if question["how"] == "raise":
        raise ValueError("as it was asked to")
    try:
        if "begun" in question:  # in here: an interrupt may follow at once
            Path(question["begun"]).touch()
        while True:
            threading.Event().wait(0.1)
    finally:
        if question["how"] == "busy":
            tell("ended")
