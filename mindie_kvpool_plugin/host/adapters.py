"""LoRA adapters: what names their content in keys, and what the scheduler mixes into its hashes.

A block's KV depends on the adapter, so an adapter's content begins the digest chain of its sequences.  The content is
read from the adapter's directory, which the host's adapter manager knows, when the host has loaded the adapter: at
start or on the command thread.  Later its files may be others than those that were loaded.  One that was missed is
read in the background when a prompt first asks for it; that prompt runs without the pool.  A host without an adapter
manager cannot load adapters at run time: there the name stands for the content.

An adapter that is unloaded, or loaded again under its name, is another one from then on: what running sequences
computed with the old one is not stored any more.

Step thread: ``find``, ``is_current``.  Command thread: ``forget``, ``learn``.  No lock is held while files are read.
"""

from __future__ import annotations

import hashlib
import os
import threading
from typing import Any

from mindie_kvpool_plugin.blocks import Adapter
from mindie_kvpool_plugin.core.block_keys import DIGEST_BYTES
from mindie_kvpool_plugin.errors import KvPoolError
from mindie_kvpool_plugin.host import weights
from mindie_kvpool_plugin.observability.log import RateLimited

_MASK = (1 << 64) - 1
_MULTIPLIER = 0xC6A4A7935BD1E995  # libstdc++, hash_bytes.cc (MurmurHash64A)
_SEED = 0xC70F6907


def extra_hash(name: str) -> int:
    """The number the scheduler mixes into the block hashes of an adapter's sequences, never 0.

    seq_group_builder_from_infer_req.cpp: ``std::hash<std::string>(name) | 1``, with libstdc++ on a 64-bit machine.
    """
    data = name.encode()
    value = _SEED ^ (len(data) * _MULTIPLIER & _MASK)
    whole = len(data) // 8 * 8
    for at in range(0, whole, 8):
        word = int.from_bytes(data[at : at + 8], "little") * _MULTIPLIER & _MASK
        value = (value ^ (_shifted(word) * _MULTIPLIER & _MASK)) * _MULTIPLIER & _MASK
    if len(data) > whole:
        value = (value ^ int.from_bytes(data[whole:], "little")) * _MULTIPLIER & _MASK
    value = _shifted(value) * _MULTIPLIER & _MASK
    return _shifted(value) | 1


def _shifted(value: int) -> int:
    return value ^ (value >> 47)


class Adapters:
    """The adapters of one worker.

    Args:
        model_wrapper: the host's; its ``adapter_manager`` knows where adapters lie.
    """

    def __init__(self, model_wrapper: Any) -> None:
        self._wrapper = model_wrapper
        self._known: dict[str, Adapter] = {}
        self._asked: set[str] = set()
        self._changes: dict[str, int] = {}
        self._lock = threading.Lock()
        self._log = RateLimited()

    def find(self, name: str) -> Adapter | None:
        """The adapter of that name, or None while its content is not known; then it is read in the background."""
        known = self._known.get(name)
        if known is not None:
            return known
        with self._lock:
            if name in self._asked:
                return None
            self._asked.add(name)
        if self._manager() is None:
            self.learn(name)
            return self._known.get(name)
        try:
            threading.Thread(target=self.learn, args=(name,), name="kvpool-adapter", daemon=True).start()
        except RuntimeError:  # none is left: the next prompt tries again
            with self._lock:
                self._asked.discard(name)
        return None

    def learn_loaded(self) -> None:
        """Read all that the host loaded before it served; at start, while their files are those that were loaded."""
        registry = getattr(self._manager(), "adapter_info_registry", {})
        for name in [name for name, info in registry.items() if getattr(info, "adapter_path", None)]:
            self.learn(name)

    def known(self) -> dict[str, Adapter]:
        """All whose content is known now, by name.  Any thread."""
        return dict(self._known)

    def is_current(self, adapter: Adapter) -> bool:
        """Whether the host still means this content by the adapter's name."""
        return any(known is adapter for known in tuple(self._known.values()))

    def forget(self, name: str) -> None:
        """The host is about to load or unload an adapter of this name, or has unloaded it."""
        with self._lock:
            self._changes[name] = self._changes.get(name, 0) + 1
            self._known.pop(name, None)
            self._asked.discard(name)

    def learn(self, name: str) -> None:
        """Read what an adapter consists of."""
        with self._lock:
            self._asked.add(name)
            asked = self._changes.get(name)
        content = self._content(name)
        with self._lock:
            if content is not None and asked == self._changes.get(name):
                root = hashlib.sha256(b"adapter\0" + content.encode()).digest()[:DIGEST_BYTES]
                self._known[name] = Adapter(root, extra_hash(name))
            elif content is not None:
                self._asked.discard(name)  # it came or went meanwhile: asked again by the next prompt

    def _content(self, name: str) -> str | None:
        manager = self._manager()
        if manager is None:
            return name
        directory = getattr(getattr(manager, "adapter_info_registry", {}).get(name), "adapter_path", None)
        if not directory or not os.path.isdir(directory):
            self._log.warning(
                "adapter %r lies in %r, expected a directory: its requests run without the pool", name, directory
            )
            return None
        try:
            return weights.name_of(str(directory))
        except KvPoolError as error:
            self._log.warning("requests with adapter %r run without the pool: %s", name, error)
            return None

    def _manager(self) -> Any | None:
        return getattr(self._wrapper, "adapter_manager", None)
