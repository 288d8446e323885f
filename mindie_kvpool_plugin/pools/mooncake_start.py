"""Everything that can be wrong before the first call, each told in one message: what, where, what to do.

Mooncake's ``setup`` stops every Python thread while it runs and says little when it fails, so what can
be known first is found out first: the options, the library, this machine's address, the master's port.
Nothing here is called again after start, except to replace a wedged client.
"""

from __future__ import annotations

import contextlib
import importlib
import os
import random
import re
import socket
import threading
import time
from collections.abc import Callable
from importlib import metadata
from pathlib import Path
from typing import Any

from mindie_kvpool_plugin.config.models import MIB, MooncakeOptions
from mindie_kvpool_plugin.errors import ConfigError, PoolError
from mindie_kvpool_plugin.observability.log import logger
from mindie_kvpool_plugin.pools.base import Role
from mindie_kvpool_plugin.pools.mooncake_client import Connection
from mindie_kvpool_plugin.pools.mooncake_codes import meaning
from mindie_kvpool_plugin.pools.slice_gate import SliceGate

CONNECT_TIMEOUT_S = 3.0  # name resolution and TCP connect to the master, each
SMALLEST_SEGMENT_BYTES = 16 * MIB  # Mooncake refuses less; 0 means none
P2P_HANDSHAKE = "P2PHANDSHAKE"
DEFAULT_PORTS = (12300, 14300)  # where Mooncake itself looks for a client's port
RDMA_DEVICES = "/sys/class/infiniband"  # RoCE devices are listed here too

_ADDRESS = re.compile(r"(?P<host>\[[0-9A-Fa-f:.]+\]|[^\s:\[\]/]+):(?P<port>\d{1,5})")
_MISSING_LIBRARY = re.compile(r"(lib[\w.+-]+\.so[\w.]*): cannot open shared object file")
_DEBIAN_PACKAGES = {"libibverbs.so": "libibverbs1", "libcurl.so": "libcurl4", "libnuma.so": "libnuma1"}
_CANN_LIBRARIES = ("libascendcl", "libllm_datadist", "libmetadef", "libhccl")


def check_options(options: MooncakeOptions, place: str, role: Role) -> None:
    """Judge what can be judged without the library and the network.

    Raises:
        ConfigError: the first option that cannot work.
    """
    if not options.use_ascend_direct:
        raise ConfigError(
            f"{place}.use_ascend_direct is false: that path copies with Mooncake calls (batch_put_from_ascend, "
            "batch_get_into_ascend) that Mooncake 0.3.13 no longer has; remove the key or set it to true"
        )
    for address in master_addresses(options.master_server_address, f"{place}.master_server_address"):
        del address  # parsing is the check
    split_hostname(options.local_hostname, f"{place}.local_hostname")
    if role == "scheduler":
        return
    if 0 < options.global_segment_size < SMALLEST_SEGMENT_BYTES:
        raise ConfigError(
            f"{place}.global_segment_size is {options.global_segment_size} bytes: Mooncake refuses segments below "
            f"{SMALLEST_SEGMENT_BYTES} (16MB); give at least that, or 0 to use the pool without adding to it"
        )
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


def master_addresses(value: str, place: str) -> list[tuple[str, int]]:
    """The addresses of a ``host:port``, or of ``etcd://host:port;host:port``.

    Raises:
        ConfigError: not of that form.
    """
    scheme, separator, rest = value.rpartition("://")
    parts = [part for part in rest.split(";") if part] if separator and scheme == "etcd" else [value]
    matches = [_ADDRESS.fullmatch(part) for part in parts]
    found = [(m["host"].strip("[]"), int(m["port"])) for m in matches if m is not None and 0 < int(m["port"]) <= 65535]
    if len(found) != len(parts) or not found:
        raise ConfigError(
            f'{place} is "{value}", expected "host:port" of mooncake_master such as "10.0.0.1:50051" '
            "(an IPv6 address in brackets)"
        )
    return found


def split_hostname(value: str, place: str) -> tuple[str, int]:
    """Host and port of ``local_hostname``; port 0 if it names none.

    Raises:
        ConfigError: neither a host nor ``host:port``.
    """
    bare = value.strip("[]")
    if bare.count(":") > 1 and re.fullmatch(r"[0-9A-Fa-f:.]+(%\w+)?", bare):
        return bare, 0
    if re.fullmatch(r"[^\s:\[\]/]+", value):
        return value, 0
    match = _ADDRESS.fullmatch(value)
    if match is None or not 0 < int(match["port"]) <= 65535:
        raise ConfigError(
            f'{place} is "{value}", expected an address of this machine such as "10.0.0.2"; '
            "a port may follow (host:port), but each rank needs one of its own, so leave it off"
        )
    return match["host"].strip("[]"), int(match["port"])


def load_library() -> Any:
    """The module ``mooncake.store``.

    Raises:
        PoolError: not installed, or a shared library is missing.
    """
    try:
        return importlib.import_module("mooncake.store")
    except ModuleNotFoundError as error:
        raise PoolError(
            f"the pool backend mooncake needs the Python package mooncake ({error}); pip install "
            "mooncake-transfer-engine-npu on an NPU host, mooncake-transfer-engine-non-cuda elsewhere, never both"
        ) from error
    except ImportError as error:
        raise PoolError(
            f"mooncake is installed ({_installed()}) but cannot be loaded: {_loader_hint(error)}"
        ) from error


def _loader_hint(error: ImportError) -> str:
    match = _MISSING_LIBRARY.search(str(error))
    if match is None:
        return f"{error}; the wheel may need a newer glibc than this system's (the npu wheel: 2.35)"
    library = match[1]
    package = next((p for name, p in _DEBIAN_PACKAGES.items() if library.startswith(name)), None)
    if package is not None:
        return f"the shared library {library} is missing; apt install {package} (or your system's equivalent)"
    if library.startswith(_CANN_LIBRARIES):
        return f"the shared library {library} is missing; source CANN's set_env.sh before the service starts"
    return f"the shared library {library} is missing; install it or put its folder on LD_LIBRARY_PATH"


def _installed() -> str:
    names = ("mooncake-transfer-engine-npu", "mooncake-transfer-engine-non-cuda", "mooncake-transfer-engine")
    found = []
    for name in names:
        with contextlib.suppress(metadata.PackageNotFoundError):
            found.append(f"{name} {metadata.version(name)}")
    return ", ".join(found) or "not by pip"


def set_environment(options: MooncakeOptions) -> None:
    """Mooncake's own settings, read by ``setup`` and the first call; what the user has set stays."""
    for name, value in {
        # the queue per peer: 1024 by default, and overrunning it loses the peer (pools.wedge_watch)
        "MC_TCP_MAX_QUEUED_TRANSFERS_PER_PEER": "65535",
        # 20 by default, each up to 4.3 s with every thread stopped
        "MC_STORE_CLIENT_SETUP_RETRIES": "1",
        # 30 s by default
        "MC_RPC_TIMEOUT_MS": str(int(options.rpc_timeout_s * 1000)),
        # a peer that hangs: 30 s by default
        "MC_TCP_STATUS_TIMEOUT_SEC": "3",
        "MC_TCP_PROGRESS_TIMEOUT_SEC": "3",
        # INFO by default, dozens of lines per client on standard error
        "MC_LOG_LEVEL": "ERROR",
    }.items():
        os.environ.setdefault(name, value)


def probe_master(options: MooncakeOptions, place: str) -> None:
    """Connect to the master's port, before ``setup`` would wait for it with every thread stopped.

    Raises:
        PoolError: no address of it accepts a connection in time.
    """
    tried = []
    for host, port in master_addresses(options.master_server_address, place):
        try:
            _reach(host, port)
        except OSError as error:
            tried.append(f"{host}:{port} for {CONNECT_TIMEOUT_S:g} s: {error}")
        else:
            return
    raise PoolError(
        f"cannot reach mooncake_master at {options.master_server_address} ({place}): tried to connect to "
        f"{'; '.join(tried)}; start it (mooncake_master --rpc_port=...), correct the address, "
        "or open the port between the machines"
    )


def can_connect(address: str) -> bool:
    """Whether something listens at ``host:port``."""
    try:
        host, port = split_hostname(address, "peer")
        _reach(host, port)
    except (OSError, ConfigError):
        return False
    return True


def _reach(host: str, port: int) -> None:
    for family, kind, protocol, _, address in _bounded(lambda: socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)):
        with socket.socket(family, kind, protocol) as probe:
            probe.settimeout(CONNECT_TIMEOUT_S)
            probe.connect(address)
        return


def _bounded(resolve: Callable[[], list[Any]]) -> list[Any]:
    """Resolve in a thread: the resolver's own time limits can add up to half a minute."""
    result: list[list[Any] | OSError] = []

    def run() -> None:
        try:
            result.append(resolve())
        except OSError as error:
            result.append(error)

    thread = threading.Thread(target=run, name="kvpool-resolve", daemon=True)
    thread.start()
    thread.join(CONNECT_TIMEOUT_S)
    answer = result[0] if result else OSError(f"the name was not resolved within {CONNECT_TIMEOUT_S:g} s")
    if isinstance(answer, OSError):
        raise answer
    return answer


def claim_name(options: MooncakeOptions, place: str, *, any_port: bool) -> tuple[str, socket.socket | None]:
    """A ``host:port`` that no other client of this machine has, and the socket that keeps it ours.

    With a port in the name ``setup`` does not retry for 90 s, and the pool tells segments apart by it.

    Raises:
        PoolError: the host is not known, or the port has been taken.
    """
    host, port = split_hostname(options.local_hostname, place)
    try:
        family, _, _, _, address = _bounded(lambda: socket.getaddrinfo(host, None, type=socket.SOCK_STREAM))[0]
    except OSError as error:
        raise PoolError(
            f'{place} is "{options.local_hostname}", which cannot be resolved ({error}); '
            "write this machine's address that the other machines reach"
        ) from error
    if port and not any_port:
        holder = _bind(family, address[0], port)
        if holder is None:
            raise PoolError(
                f'{place} is "{options.local_hostname}", but port {port} is taken on this machine; each rank needs a '
                "port of its own, so leave the port off and one is chosen"
            )
    else:
        holder = _bind_free(family, address[0])
        port = holder.getsockname()[1]
    name = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
    if options.metadata_server == P2P_HANDSHAKE:
        return name, holder
    holder.close()  # with a metadata service Mooncake listens on this port itself
    return name, None


def _bind(family: int, host: str, port: int) -> socket.socket | None:
    holder = socket.socket(family, socket.SOCK_STREAM)
    try:
        holder.bind((host, port))
    except OSError:
        holder.close()
        return None
    return holder


def _bind_free(family: int, host: str) -> socket.socket:
    first, last = DEFAULT_PORTS
    with contextlib.suppress(ValueError):
        first = int(os.environ.get("MC_STORE_CLIENT_MIN_PORT", first))
        last = int(os.environ.get("MC_STORE_CLIENT_MAX_PORT", last))
    with socket.socket(family, socket.SOCK_STREAM) as trial:
        try:
            trial.bind((host, 0))
        except OSError:
            logger.warning("local_hostname %s is no address of this machine; it must lead here from the others", host)
            host = ""
    # not the first free one: a client that died a moment ago is still listed under its port for client_ttl, and
    # what a namesake puts with preferred_segment would go to the dead one's memory
    for port in random.sample(range(first, last + 1), last + 1 - first):
        holder = _bind(family, host, port)
        if holder is not None:
            return holder
    raise PoolError(
        f"no free port in {first}..{last} for a Mooncake client on this machine; "
        "widen MC_STORE_CLIENT_MIN_PORT and MC_STORE_CLIENT_MAX_PORT"
    )


def connect(library: Any, options: MooncakeOptions, role: Role, place: str, *, is_replacement: bool) -> Connection:
    """Set a new client up.  Stops every Python thread for 10 to 30 ms, at most for the master's time limit.

    Raises:
        PoolError: the master cannot be reached, or ``setup`` failed.
    """
    probe_master(options, f"{place}.master_server_address")
    name, holder = claim_name(options, f"{place}.local_hostname", any_port=is_replacement)
    is_worker = role == "worker"
    store = library.MooncakeDistributedStore()
    started = time.monotonic()
    try:
        code = store.setup(
            name,
            options.metadata_server,
            options.global_segment_size if is_worker else 0,
            options.local_buffer_size if is_worker else 0,
            # exists() is answered by the master alone: a scheduler needs neither NPU nor RDMA device
            options.protocol if is_worker else "tcp",
            options.device_name if is_worker else "",
            options.master_server_address,
        )
    except Exception as error:
        _let_go(holder)
        raise PoolError(f"{place}: Mooncake's setup of the client {name} raised {error!r}") from error
    if code != 0:
        _let_go(holder)
        raise PoolError(_setup_failed(code, time.monotonic() - started, options, place, name))
    return Connection(store, name, SliceGate(options.max_slices_in_flight), holder)


def _let_go(holder: socket.socket | None) -> None:
    if holder is not None:
        holder.close()


def _setup_failed(code: int, took_s: float, options: MooncakeOptions, place: str, name: str) -> str:
    text = f"{place}: Mooncake could not set up the client {name} (code {meaning(code)}) after {took_s:.1f} s: "
    if took_s >= options.rpc_timeout_s * 0.8:
        return text + (
            f"{options.master_server_address} (master_server_address) accepts connections but does not answer as "
            "mooncake_master; is it the metrics port, or another service? Give its --rpc_port"
        )
    return text + (
        f'protocol "{options.protocol}" may not be in the installed wheel ({_installed()}; ascend needs '
        f"mooncake-transfer-engine-npu and CANN), device_name may name no device, or global_segment_size "
        f"{options.global_segment_size} may not fit into free memory; MC_LOG_LEVEL=INFO shows Mooncake's own log"
    )
