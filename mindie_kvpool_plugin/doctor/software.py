"""Probes of what is installed: versions, and the shared libraries that Mooncake's wheel needs."""

from __future__ import annotations

import contextlib
import importlib.util
import shutil
import subprocess
import sys
from collections.abc import Iterable, Iterator
from importlib import metadata
from pathlib import Path

from mindie_kvpool_plugin import __version__
from mindie_kvpool_plugin.doctor.case import Case
from mindie_kvpool_plugin.doctor.child import run_child
from mindie_kvpool_plugin.doctor.lines import Line, absent, good, skipped, trouble
from mindie_kvpool_plugin.pools.mooncake.programs import debian_package, is_of_cann
from mindie_kvpool_plugin.pools.mooncake.start import installed_wheels

OTHERS = ("numpy", "torch", "torch_npu")
LOADER_TIMEOUT_S = 5.0
IMPORT_TIMEOUT_S = 15.0  # 0.1 s on an idle machine
TRIAL = "mindie_kvpool_plugin.doctor.trial"


def versions(case: Case) -> Iterator[Line]:
    """This package, its interpreter, the backend's library, and what a worker has beside them."""
    yield good("versions.self", version=__version__, python=sys.version.split()[0], executable=sys.executable)
    if case.backend == "mooncake":
        yield _mooncake(installed_wheels())
    elif case.backend == "memcache":
        yield _memcache(version_of("memcache_hybrid"), version_of("memfabric_hybrid"))
    for name in OTHERS:
        version = version_of(name)
        yield good("versions.package", name=name, version=version) if version else absent("versions.none", name=name)


def _mooncake(wheels: dict[str, str]) -> Line:
    """Exactly one wheel: all of them own the same package."""
    told = ", ".join(f"{name} {version}" for name, version in wheels.items())
    if not wheels:
        return trouble("versions.no_mooncake")
    return trouble("versions.two_mooncakes", wheels=told) if len(wheels) > 1 else good("versions.mooncake", wheel=told)


def _memcache(client: str, transport: str) -> Line:
    if not client:
        return trouble("versions.no_memcache")
    if client != transport:
        return trouble("versions.memfabric", client=client, transport=transport or "-")
    return good("versions.memcache", version=client)


def version_of(name: str) -> str:
    """Of a distribution in this interpreter; "" if there is none."""
    with contextlib.suppress(metadata.PackageNotFoundError):
        return metadata.version(name)
    return ""


def libraries(case: Case) -> Iterator[Line]:
    """All that the loader does not find, at once; then whether the import, in a child, really works."""
    if importlib.util.find_spec("mooncake") is None:
        yield skipped("libraries", "because", cause="versions")
        return
    missing = sorted(set(_not_found(_binaries())))
    yield from map(_missing, missing)
    told = run_child(TRIAL, {}, case.left_s(IMPORT_TIMEOUT_S), case.env)
    refused = told.step("refused")
    if told.step("loaded"):
        yield good("libraries.loaded")
    elif refused is None:
        yield trouble("libraries.died", ending=told.ending)
    elif not missing:
        yield trouble("libraries.refused", error=refused["error"])


def _missing(library: str) -> Line:
    package = debian_package(library)
    if package:
        return trouble("libraries.missing", library=library, package=package)
    return trouble("libraries.cann" if is_of_cann(library) else "libraries.unknown", library=library)


def _binaries() -> Iterable[Path]:
    """The wheel's modules that link other libraries, without importing it."""
    found = importlib.util.find_spec("mooncake")
    folders = (found.submodule_search_locations or []) if found is not None else []
    return [path for folder in folders for path in sorted(Path(folder).glob("*.so"))]


def _not_found(binaries: Iterable[Path]) -> Iterator[str]:
    """Names that the loader cannot resolve, as ``ldd`` says; nothing without it, or when it cannot tell."""
    program = shutil.which("ldd")
    for binary in binaries if program else ():
        with contextlib.suppress(OSError, subprocess.TimeoutExpired):
            said = subprocess.run(  # noqa: S603 - the loader's own tool, on a wheel that is imported next
                [str(program), str(binary)], capture_output=True, text=True, timeout=LOADER_TIMEOUT_S, check=False
            )
            yield from (line.split()[0] for line in said.stdout.splitlines() if line.endswith("=> not found"))
