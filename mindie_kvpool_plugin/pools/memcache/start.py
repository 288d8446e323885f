"""Everything that can be wrong before the first call, each told in one message: what, where, what to do.

MemCache's ``init`` of a client that moves bytes waits for its services without end, ignores SIGTERM
meanwhile, and says little when it fails.  So what can be known first is found out first: the
configuration, the library, the services' ports.  And it runs in a thread of its own, within a bound.
"""

from __future__ import annotations

import contextlib
import importlib
import os
import socket
import threading
import time
from importlib import metadata
from pathlib import Path
from typing import Any

from mindie_kvpool_plugin.errors import ConfigError, PoolError
from mindie_kvpool_plugin.observability.log import logger
from mindie_kvpool_plugin.options.memcache import LocalConfig, local_config
from mindie_kvpool_plugin.options.records import GIB, MemcacheOptions
from mindie_kvpool_plugin.pools.attempt import Failed, attempt
from mindie_kvpool_plugin.pools.call_thread import CallThread
from mindie_kvpool_plugin.pools.memcache.client import Setup, Store, close_store
from mindie_kvpool_plugin.pools.memcache.codes import meaning

VARIABLE = "MMC_LOCAL_CONFIG_PATH"
"""Read by MemCache when its library is loaded, and never again."""

CALLS = ("batch_get_into_layers", "batch_is_exist", "batch_put_from_layers", "close", "init", "register_buffer")
"""What is called of the binding's client."""

CONNECT_TIMEOUT_S = 3.0  # for all services together
ALLOCATED_BYTES_PER_S = GIB  # what init may take for pages, registered with an NPU one by one

PROBE_KEY = "mindie-kvpool/opened"

_is_stuck = threading.Event()  # an init that did not return: no second one in this process


def config_file(options: MemcacheOptions, place: str) -> tuple[str, LocalConfig]:
    """MemCache's local configuration: the environment's if it names one, as the host does it, else the pool file's.

    Raises:
        ConfigError: it cannot be read, or an address in it cannot work.
    """
    from_environment = os.environ.get(VARIABLE)
    path = from_environment or options.config_path
    if from_environment and from_environment != options.config_path:
        logger.warning("%s=%s wins over %s.config_path %s", VARIABLE, path, place, options.config_path)
    source = f"the environment variable {VARIABLE}" if from_environment else f"{place}.config_path"
    try:
        text = Path(path).read_text(encoding="utf-8")
    except (OSError, ValueError) as error:
        raise ConfigError(
            f'{source} is "{path}", which cannot be read ({error}); name MemCache\'s local configuration, a file like '
            "mmc-local.conf in the folder config of the package memcache_hybrid"
        ) from error
    return path, local_config(text, path)


def load_library(config_path: str) -> Any:
    """The module ``memcache_hybrid``, told where its configuration is.

    Raises:
        PoolError: not installed, a shared library is missing, or it is another version's.
    """
    os.environ.setdefault(VARIABLE, config_path)
    try:
        library = importlib.import_module("memcache_hybrid")
    except ModuleNotFoundError as error:
        raise PoolError(
            f"the pool backend memcache needs the Python package memcache_hybrid ({error}); "
            "pip install 'mindie-kvpool-plugin[memcache]'"
        ) from error
    except (ImportError, OSError) as error:
        raise PoolError(
            f"memcache_hybrid is installed ({_installed()}) but cannot be loaded: {error}; it needs glibc 2.28 or "
            "newer and the package memfabric_hybrid of the same version"
        ) from error
    missing = [name for name in CALLS if not hasattr(library.DistributedObjectStore, name)]
    if missing:
        raise PoolError(
            f"memcache_hybrid is installed ({_installed()}) but its client has no {', '.join(missing)}; install the "
            "version this package was tested with: pip install 'mindie-kvpool-plugin[memcache]'"
        )
    return library


def _installed() -> str:
    with contextlib.suppress(metadata.PackageNotFoundError):
        return f"memcache_hybrid {metadata.version('memcache_hybrid')}"
    return "not by pip"


def probe_services(config: LocalConfig, place: str) -> None:
    """Connect to each service's port, for which ``init`` would wait without end.

    Raises:
        PoolError: one accepts no connection in time.
    """
    deadline = time.monotonic() + CONNECT_TIMEOUT_S
    for key, host, port in config.services:
        error = _reach(host, port, deadline)
        if error is not None:
            raise PoolError(
                f"cannot reach MemCache's meta service at {host}:{port} ({place}: {key}): tried to connect for "
                f"{CONNECT_TIMEOUT_S:g} s: {error}; start it (MetaService.main() of memcache_hybrid), correct the "
                "address, which its own configuration must name alike, or open the port between the machines"
            )


def _reach(host: str, port: int, deadline: float) -> Exception | None:
    """Why the port accepts no connection; in a thread, because the resolver's own limits add up to half a minute."""

    def connect() -> Exception | None:
        try:
            socket.create_connection((host, port), max(0.1, deadline - time.monotonic())).close()
        except OSError as error:
            return error
        return None

    caller = CallThread("kvpool-connect")
    job = caller.start(lambda: (connect(),))
    answer = job.wait(max(0.2, deadline - time.monotonic() + 0.1))
    caller.close()
    return answer[0] if answer is not None else OSError("no answer in time")


def connect(library: Any, setup: Setup, config: LocalConfig, budget_s: float, place: str) -> Store:
    """Initialise the process's client.

    Args:
        budget_s: for ``init``, besides what its memory takes.

    Raises:
        PoolError: a service cannot be reached, or ``init`` failed or did not return in time.
    """
    if _is_stuck.is_set():
        raise PoolError(f"{place}: an earlier init of MemCache has not returned; only a new process can try again")
    probe_services(config, setup.config_path)
    if setup.moves_bytes:
        budget_s += config.size_bytes / ALLOCATED_BYTES_PER_S
    store = library.DistributedObjectStore()
    code = attempt(lambda: _init(store, setup, budget_s))
    if isinstance(code, Failed):
        raise PoolError(f"{place}: MemCache's init raised {code.error!r}") from code.error
    if code is None:
        _is_stuck.set()
        raise PoolError(
            f"{place}: MemCache's init has not returned within {budget_s:.1f} s, though "
            f"{' and '.join(f'{host}:{port}' for _, host, port in config.services)} accept connections; is a meta "
            "service of MemCache behind them? If it only needs longer, raise open_timeout_s. MemCache may now ignore "
            "SIGTERM: end this process with SIGKILL"
        )
    if code != 0:
        close_store(store)
        raise PoolError(_init_failed(code, setup))
    _ask(store, place)
    return store


def _ask(store: Store, place: str) -> None:
    """One question: after an init that failed, the next one in the same process claims success and connects nothing."""
    answers = store.batch_is_exist([PROBE_KEY])
    if list(answers) not in ([0], [1]):
        close_store(store)
        told = meaning(answers[0]) if answers else "no answer"
        raise PoolError(
            f"{place}: MemCache's client is initialised but its meta service answers a first question with: {told}; "
            "after an init that failed only a new process can connect: start it again"
        )


def _init(store: Store, setup: Setup, budget_s: float) -> int | None:
    """The code of ``init``; None if it has not returned."""
    caller = CallThread("kvpool-memcache")
    answer: int | None = caller.start(lambda: store.init(setup.device_id, setup.moves_bytes)).wait(budget_s)
    caller.close()
    return answer


def _init_failed(code: int, setup: Setup) -> str:
    needs = (
        "the Ascend driver must be there, its device free, the protocol one of this machine's, and dram.size must fit "
        "into free memory (huge pages for device_*)"
        if setup.moves_bytes
        else "is the meta service of the same version?"
    )
    return (
        f"MemCache could not initialise its client for device {setup.device_id} from {setup.config_path} "
        f"(code {meaning(code)}): {needs}; MemCache's own lines on standard error say more (ock.mmc.log_level = info)"
    )
