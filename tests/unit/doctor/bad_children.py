"""Children that end badly."""

import ctypes
import signal

from mindie_kvpool_plugin.doctor.child import listen, tell


def main():
    question = listen()
    tell("begun")
    if question["how"] == "crash":
        ctypes.string_at(0)
    if question["how"] == "raise":
        raise ValueError("as it was asked to")
    signal.pause()
