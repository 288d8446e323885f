"""What listens to the daemon in a worker process, until a SIGTERM stops it."""

from __future__ import annotations

import queue

from mindie_llm.utils.status import CoreThread

CHANNELS = ("execute", "shared_sync_link", "transfer", "recover_command")


class ClosedError(Exception):
    """A thread waited at a channel that was closed: the host does not catch it, and the process ends."""


class RequestListener:
    _instance = None

    def __init__(self, config):
        self.config = config
        self.channels = {name: queue.SimpleQueue() for name in CHANNELS}

    @classmethod
    def get_instance(cls, config):
        if cls._instance is None:
            cls._instance = cls(config)
        return cls._instance

    def start(self):
        threads = [CoreThread(target=self._listen, args=(name,), daemon=True, name=name) for name in CHANNELS]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        return True

    def stop(self):
        for channel in self.channels.values():
            channel.put(None)
        return True

    def _listen(self, name):
        while True:
            message = self.channels[name].get()
            if message is None:
                raise ClosedError(name)
            message()
