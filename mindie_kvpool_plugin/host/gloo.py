"""A group of ranks over torch's Gloo, by names that torch 2.1 to 2.13 have; nothing else knows ``torch.distributed``.

What the group listens on, and how late a rank may be, can be said through names that are torch's own
(``ProcessGroupGloo._Options`` with ``_timeout`` and ``_devices``, ``create_device``).  They are looked for
once, at import.  Without them the public constructor is taken, and Gloo chooses the address by itself.

In older torches (2.1; no more in 2.13) an operation does not end at its own timeout but at the group's; so the
group's has to be the longest of them all, and only what is waited for ends in time.
"""

from __future__ import annotations

import contextlib
import ctypes
import socket
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist

from mindie_kvpool_plugin.errors import HostCompatError
from mindie_kvpool_plugin.observability.log import logger

PUBLIC = ("AllreduceOptions", "FileStore", "PrefixStore", "ProcessGroupGloo", "ReduceOp", "TCPStore")
PRIVATE = ("_timeout", "_devices")

LOOPBACK = "127.0.0.1"

ENDS_WITHIN_S = 0.2
"""Between the end of a wait and that of its operation, both with the same timeout: a thread's turn."""


@dataclass(frozen=True, slots=True)
class Found:
    """What a torch has.

    Attributes:
        missing: names without which there is no group.
        takes_address: whether a group can be told where to listen.
    """

    missing: tuple[str, ...]
    takes_address: bool


def probe(distributed: Any) -> Found:
    """Look for the names in ``torch.distributed``; one built without it or without Gloo lacks them."""
    group = getattr(distributed, "ProcessGroupGloo", None)
    options = getattr(group, "_Options", None)
    return Found(
        tuple(name for name in PUBLIC if not hasattr(distributed, name)),
        hasattr(group, "create_device") and all(hasattr(options, name) for name in PRIVATE),
    )


FOUND = probe(dist)


def require() -> None:
    """Nothing, with a torch that can do it.

    Raises:
        HostCompatError: names its version and what it lacks.
    """
    if FOUND.missing:
        raise HostCompatError(
            f"torch {torch.__version__} has no torch.distributed.{', '.join(FOUND.missing)}: the ranks of a model "
            "cannot agree on a pool hit; expected a torch built with Gloo, as torch 2.1 to 2.13 are; "
            "install one, or remove kv_pool from plugin_type"
        )


def open_store(place: str, rank: int, size: int, timeout: timedelta) -> tuple[Any, str]:
    """Where the ranks meet (a path, or "tcp://host:port" of rank 0), and this machine's address towards it."""
    if not place.startswith("tcp://"):
        return dist.FileStore(place, size), LOOPBACK
    host, _, port = place.removeprefix("tcp://").rpartition(":")
    host = host.strip("[]")
    store = dist.TCPStore(host, int(port), size, is_master=rank == 0, timeout=timeout, wait_for_workers=False)
    return store, LOOPBACK if host in (LOOPBACK, "localhost") else _own_address(host, int(port))


def open_another_store(store: Any, place: str, size: int, number: int) -> Any:
    """Where the same ranks meet another time; ``number``: which."""
    return dist.PrefixStore(f"again/{number}", store) if place.startswith("tcp://") else dist.FileStore(place, size)


def meet(store: Any, rank: int, size: int, timeout: timedelta) -> None:
    """Wait until every rank is at the store.

    Raises:
        RuntimeError: one is not.
    """
    store.set(f"here/{rank}", "1")
    store.wait([f"here/{other}" for other in range(size)], timeout)


def open_group(store: Any, rank: int, size: int, timeout: timedelta, address: str) -> Any:
    """The group, listening on ``address`` if it can be told; ``timeout`` is the longest an operation may take."""
    if FOUND.takes_address:
        try:
            return dist.ProcessGroupGloo(store, rank, size, _options(timeout, address))
        except (TypeError, AttributeError) as error:
            logger.warning("torch %s takes other options for Gloo: %s", torch.__version__, error)
    logger.warning(
        "torch %s lets Gloo choose the address the ranks agree over: the one of this machine's name; set "
        "GLOO_SOCKET_IFNAME to a network interface if ranks on other nodes do not reach it (expected %s)",
        torch.__version__,
        address,
    )
    return dist.ProcessGroupGloo(store, rank, size, timeout=timeout)


def reduce_to_minimum(group: Any, values: torch.Tensor, timeout: timedelta) -> Any:
    """Launch it; what comes back is waited for with a timeout of its own."""
    options = dist.AllreduceOptions()
    options.reduceOp = dist.ReduceOp.MIN
    options.timeout = timeout
    return group.allreduce([values], options)


def keep_if_running(group: Any, work: Any) -> None:
    """Never take down a group whose operation, given up already, goes on.

    It would wait for its end, a minute and more, with the interpreter held.  A torch that ends operations at their
    own timeouts has ended this one.
    """
    with contextlib.suppress(RuntimeError):
        work.wait(timedelta(seconds=ENDS_WITHIN_S))
    if not work.is_completed():
        keep(group)


def keep(group: Any) -> None:
    """Never take it down, whatever becomes of those who know it."""
    ctypes.pythonapi.Py_IncRef(ctypes.py_object(group))


def _options(timeout: timedelta, address: str) -> Any:
    options = dist.ProcessGroupGloo._Options()
    options._timeout = timeout
    options._devices = [dist.ProcessGroupGloo.create_device(hostname=address)]
    return options


def _own_address(host: str, port: int) -> str:
    """This machine's address towards ``host``."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with socket.socket(family, socket.SOCK_DGRAM) as probing:
        probing.connect((host, port))
        return str(probing.getsockname()[0])
