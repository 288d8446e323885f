"""Everything that can be wrong before the first call, each told in one message: what, where, what to do.

Mooncake's ``setup`` stops every Python thread while it runs and says little when it fails, so what can
be known first is found out first: the options, the library, this machine's address, the master's port.
Nothing here is called again after start, except to replace a wedged client.
"""

from __future__ import annotations

import contextlib
import dataclasses
import importlib
import os
import socket
import time
from collections.abc import Iterator
from importlib import metadata
from pathlib import Path
from typing import Any

from mindie_kvpool_plugin.errors import ConfigError, PoolError
from mindie_kvpool_plugin.options import mooncake
from mindie_kvpool_plugin.options.problems import raise_first
from mindie_kvpool_plugin.options.records import MooncakeOptions
from mindie_kvpool_plugin.pools.attempt import Failed, attempt
from mindie_kvpool_plugin.pools.base import Role
from mindie_kvpool_plugin.pools.mooncake import segments
from mindie_kvpool_plugin.pools.mooncake.address import (
    claim_name,
    listening_ports,
    probe_master,
)
from mindie_kvpool_plugin.pools.mooncake.client import Connection
from mindie_kvpool_plugin.pools.mooncake.codes import meaning
from mindie_kvpool_plugin.pools.mooncake.gate import SliceGate
from mindie_kvpool_plugin.pools.mooncake.programs import missing_library

CALLS = (
    "batch_get_into_multi_buffers",
    "batch_get_replica_desc",
    "batch_is_exist",
    "batch_put_from_multi_buffers",
    "batch_remove",
    "close",
    "register_buffer",
    "setup",
)
"""What is called of the binding's client; Mooncake renames and adds between versions."""

WHEELS = ("mooncake-transfer-engine-npu", "mooncake-transfer-engine-non-cuda", "mooncake-transfer-engine")
"""All of them own the package ``mooncake``, so that only one may be installed."""

RDMA_DEVICES = "/sys/class/infiniband"  # RoCE devices are listed here too

FORCE_TCP = "MC_FORCE_TCP"


def check_options(options: MooncakeOptions, place: str, role: Role) -> None:
    """Judge what can be judged without the library and the network.

    Raises:
        ConfigError: the first option that cannot work.
    """
    refused = mooncake.judge(dataclasses.asdict(options), {})
    # a scheduler's client has no segment
    raise_first([each for each in refused if role == "worker" or each.kind != "segment"], place)
    if role == "scheduler":
        return
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    if options.global_segment_size + options.local_buffer_size > memory:
        raise ConfigError(
            f"{place}.global_segment_size + local_buffer_size is "
            f"{options.global_segment_size + options.local_buffer_size} bytes, but this machine has {memory}; each "
            "rank takes its own, so divide what can be spared by the ranks of the machine"
        )
    if options.protocol == "rdma" and not has_rdma_device():
        raise ConfigError(
            f'{place}.protocol is "rdma", but {RDMA_DEVICES} lists no device on this machine, and Mooncake would fall '
            'back to tcp without a word; make the devices visible (in a container too) or write "tcp"'
        )


def has_rdma_device() -> bool:
    """Whether the kernel shows an RDMA device."""
    try:
        return any(Path(RDMA_DEVICES).iterdir())
    except OSError:
        return False


@contextlib.contextmanager
def transport_of(protocol: str) -> Iterator[None]:
    """Around a ``setup``: with tcp no other transport is opened beside it, with ascend nothing keeps its own out.

    The NPU wheel opens the Ascend transport for every client, also for one of tcp.  Without an NPU of its thread, as
    in the scheduler's process, that ends ``setup`` with -600 (seen with the wheel on an emulated runtime).  The
    variable is read there and taken back, since workers are started with this process's environment.
    """
    before = os.environ.get(FORCE_TCP)
    if protocol == "tcp":
        os.environ[FORCE_TCP] = "1"
    elif protocol == "ascend":
        os.environ.pop(FORCE_TCP, None)
    try:
        yield
    finally:
        if before is None:
            os.environ.pop(FORCE_TCP, None)
        else:
            os.environ[FORCE_TCP] = before


def load_library() -> Any:
    """The module ``mooncake.store``.

    Raises:
        PoolError: not installed, a shared library is missing, or it is another version's.
    """
    try:
        library = importlib.import_module("mooncake.store")
    except ModuleNotFoundError as error:
        raise PoolError(
            f"the pool backend mooncake needs the Python package mooncake ({error}); pip install "
            "mooncake-transfer-engine-npu on an NPU host, mooncake-transfer-engine-non-cuda elsewhere, never both"
        ) from error
    except ImportError as error:
        raise PoolError(
            f"mooncake is installed ({_installed()}) but cannot be loaded: {_loader_hint(error)}"
        ) from error
    missing = [name for name in CALLS if not hasattr(library.MooncakeDistributedStore, name)]
    if missing:
        raise PoolError(
            f"mooncake is installed ({_installed()}) but its client has no {', '.join(missing)}; "
            "install the version this package was tested with: pip install 'mindie-kvpool-plugin[mooncake]' off an "
            "NPU host, mooncake-transfer-engine-npu 0.3.13 on one"
        )
    return library


def _loader_hint(error: ImportError) -> str:
    known = missing_library(str(error))
    return known or f"{error}; the wheel may need a newer glibc than this system's (the npu wheel: 2.35)"


def installed_wheels(folder: str | None = None) -> dict[str, str]:
    """Mooncake's wheels, name -> version, in a folder of packages or for this interpreter."""
    where: Any = {"path": [folder]} if folder else {}
    found = {name: list(metadata.distributions(name=name, **where)) for name in WHEELS}
    return {name: each[0].version for name, each in found.items() if each}


def _installed() -> str:
    return ", ".join(f"{name} {version}" for name, version in installed_wheels().items()) or "not by pip"


def set_environment(options: MooncakeOptions) -> None:
    """Mooncake's own settings, read by ``setup`` and the first call; what the user has set stays."""
    for name, value in {
        # the queue per peer: 1024 by default, and overrunning it loses the peer (pools.mooncake.wedge)
        "MC_TCP_MAX_QUEUED_TRANSFERS_PER_PEER": "65535",
        # 20 by default, each up to 4.3 s with every thread stopped
        "MC_STORE_CLIENT_SETUP_RETRIES": "1",
        # 30 s by default
        "MC_RPC_TIMEOUT_MS": str(int(options.rpc_timeout_s * 1000)),
        # a peer that hangs: 30 s by default, for every key; a healthy one is never silent that long, and if it were,
        # a few blocks would be recomputed
        "MC_TCP_STATUS_TIMEOUT_SEC": "1",
        "MC_TCP_PROGRESS_TIMEOUT_SEC": "1",
        # a peer whose machine is off, met for the first time: 5 s by default, for every key
        "MC_HANDSHAKE_CONNECT_TIMEOUT": "1",
        # INFO by default, dozens of lines per client on standard error
        "MC_LOG_LEVEL": "ERROR",
    }.items():
        os.environ.setdefault(name, value)


def connect(library: Any, options: MooncakeOptions, role: Role, place: str, *, is_replacement: bool) -> Connection:
    """Set a new client up.  Stops every Python thread for 10 to 30 ms, at most for the master's time limit.

    Raises:
        PoolError: the master cannot be reached, or ``setup`` failed.
    """
    probe_master(options, f"{place}.master_server_address")
    name, holder = claim_name(options, f"{place}.local_hostname", any_port=is_replacement)
    is_worker = role == "worker"
    segment_bytes = options.global_segment_size if is_worker else 0
    store = library.MooncakeDistributedStore()
    is_apart = segments.can_mount(store, segment_bytes, options.protocol)
    # exists() is answered by the master alone: a scheduler needs neither NPU nor RDMA device
    protocol = options.protocol if is_worker else "tcp"
    others = listening_ports()
    started = time.monotonic()
    with transport_of(protocol):
        code = attempt(
            lambda: store.setup(
                name,
                options.metadata_server,
                0 if is_apart else segment_bytes,
                options.local_buffer_size if is_worker else 0,
                protocol,
                options.device_name if is_worker else "",
                options.master_server_address,
            )
        )
    if code != 0:
        _let_go(holder)
        if isinstance(code, Failed):
            raise PoolError(f"{place}: Mooncake's setup of the client {name} raised {code.error!r}") from code.error
        raise PoolError(_setup_failed(code, time.monotonic() - started, options, place, name))
    try:
        ids = segments.mount(store, name, segment_bytes, options, place) if is_apart and segment_bytes else ()
    except PoolError:
        store.close()
        _let_go(holder)
        raise
    host = name.rpartition(":")[0]
    ports = listening_ports() - others if _copies_at_home() else ()
    endpoints = frozenset(f"{host}:{port}" for port in ports)
    return Connection(store, name, SliceGate(options.max_slices_in_flight), endpoints, holder, segment_ids=ids)


def _copies_at_home() -> bool:
    """Whether Mooncake copies memory between the own segment and the device: over tcp, unless the user forbids it."""
    return os.environ.get("MC_STORE_MEMCPY", "on").lower() not in ("false", "0", "no", "off")


def _let_go(holder: socket.socket | None) -> None:
    if holder is not None:
        holder.close()


def _setup_failed(code: int, took_s: float, options: MooncakeOptions, place: str, name: str) -> str:
    text = f"{place}: Mooncake could not set up the client {name} (code {meaning(code)}) after {took_s:.1f} s: "
    if took_s >= options.rpc_timeout_s * 0.8:
        return text + (
            f"{options.master_server_address} (master_server_address) accepts connections but does not answer as "
            "mooncake_master; does it hang, or is it the metrics port, or another service? Give its --rpc_port"
        )
    return text + (
        f'protocol "{options.protocol}" may not be in the installed wheel ({_installed()}; ascend needs '
        f"mooncake-transfer-engine-npu and CANN), device_name may name no device, or global_segment_size "
        f"{options.global_segment_size} may not fit into free memory; MC_LOG_LEVEL=INFO shows Mooncake's own log"
    )
