"""Run ``mooncake_master`` until it ends: started where it may listen, announced when it serves."""

from __future__ import annotations

import subprocess
from collections.abc import Callable, Sequence

from mindie_kvpool_plugin.errors import PoolError
from mindie_kvpool_plugin.pools.mooncake.admin import Admin
from mindie_kvpool_plugin.pools.mooncake.programs import find_program, missing_library
from mindie_kvpool_plugin.services.child import Child, running
from mindie_kvpool_plugin.services.master_flags import Bound
from mindie_kvpool_plugin.services.notify import notify
from mindie_kvpool_plugin.services.places import state

PROGRAM = "mooncake_master"
START_TIMEOUT_S = 20.0
SETTLED_S = 1.2
"""A master whose RPC port is taken answers ``/health`` with 200 and ends a second later without a word."""
HEALTH_TIMEOUT_S = 1.0
VERSION_TIMEOUT_S = 10.0

_LOOPBACK = {"0.0.0.0": "127.0.0.1", "::": "::1"}  # noqa: S104 - where a wildcard's server can be asked


def find_master() -> str:
    """The path of the program, which can be loaded.

    Raises:
        PoolError: not installed, or a shared library is missing.
    """
    program = find_program(PROGRAM)
    try:
        tried = subprocess.run(  # noqa: S603
            [program, "--version"], capture_output=True, text=True, check=False, timeout=VERSION_TIMEOUT_S
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise PoolError(f"{program} cannot be run: {error}") from error
    known = missing_library(tried.stderr)
    if known is not None:
        raise PoolError(f"{program} cannot be loaded: {known}")
    return program


def free_places(bound: Bound) -> None:
    """Make sure that both servers may listen where they shall.

    Raises:
        PoolError: a port is taken.
    """
    for what, address, port in (
        ("its RPC service", bound.address, bound.port),
        ("its admin HTTP server", bound.admin_address, bound.admin_port),
    ):
        if state(address, port) == "taken":
            raise PoolError(
                f"{address}:{port}, where {what} shall listen, is taken{_by_whom(bound)}; "
                f"ss -ltnp 'sport = :{port}' tells by which process"
            )


def _by_whom(bound: Bound) -> str:
    try:
        is_master = admin_of(bound).health().is_ready
    except PoolError:
        return ""
    return f"; a mooncake_master serves already, with its admin HTTP at {admin_of(bound).url}" if is_master else ""


def admin_of(bound: Bound) -> Admin:
    """Its admin server, as this machine reaches it."""
    host = _LOOPBACK.get(bound.admin_address, bound.admin_address)
    return Admin(host, bound.admin_port, HEALTH_TIMEOUT_S)


def run(command: Sequence[str], bound: Bound, announce: Callable[[int], None]) -> int:
    """Run a master until it ends; its exit status, or 128 and the signal that ended it.

    Args:
        command: program and flags.
        bound: where the flags let it listen.
        announce: called with its process id once it serves.

    Raises:
        PoolError: it cannot be started, or does not serve.
    """
    free_places(bound)
    with running(command) as child:
        try:
            child.wait_until(lambda: _serves(child, bound), START_TIMEOUT_S, "it served")
        except PoolError as error:
            if child.told is not None:
                return child.wait()
            raise PoolError(f"{command[0]} does not serve: {error}") from error
        notify(READY=1, STATUS=f"serves clients at {bound.address}:{bound.port}")
        announce(child.pid)
        status = child.wait()
        notify(STOPPING=1)
        return status


def _serves(child: Child, bound: Bound) -> bool:
    if child.told is not None or child.age_s < SETTLED_S:
        return False
    try:
        return admin_of(bound).health().is_ready and child.ended() is None
    except PoolError:
        return False
