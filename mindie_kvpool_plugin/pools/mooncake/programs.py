"""The programs in Mooncake's wheel: where they are, and what the system lacks to run them."""

from __future__ import annotations

import re
import shutil
import sys
from pathlib import Path

from mindie_kvpool_plugin.errors import PoolError

_MISSING_LIBRARY = re.compile(r"(lib[\w.+-]+\.so[\w.]*): cannot open shared object file")
_DEBIAN_PACKAGES = {"libibverbs.so": "libibverbs1", "libcurl.so": "libcurl4", "libnuma.so": "libnuma1"}
_CANN_LIBRARIES = ("libascendcl", "libllm_datadist", "libmetadef", "libhccl")


def find_program(name: str) -> str:
    """The path of a program of the wheel: beside this interpreter, or on PATH.

    Raises:
        PoolError: in neither place.
    """
    beside = Path(sys.executable).with_name(name)
    found = str(beside) if beside.exists() else shutil.which(name)
    if found is None:
        raise PoolError(
            f"{name} was not found beside {sys.executable} or on PATH; install it with: pip install "
            "'mindie-kvpool-plugin[mooncake]' (on an NPU host: mooncake-transfer-engine-npu)"
        )
    return found


def missing_library(loader_text: str) -> str | None:
    """What to do about the shared library that the dynamic loader did not find; None if it says nothing of one."""
    match = _MISSING_LIBRARY.search(loader_text)
    if match is None:
        return None
    library = match[1]
    package = debian_package(library)
    if package:
        return f"the shared library {library} is missing; apt install {package} (or your system's equivalent)"
    if is_of_cann(library):
        return f"the shared library {library} is missing; source CANN's set_env.sh before the service starts"
    return f"the shared library {library} is missing; install it or put its folder on LD_LIBRARY_PATH"


def debian_package(library: str) -> str:
    """The package that brings a shared library of the wheel; "" if none is known."""
    return next((package for name, package in _DEBIAN_PACKAGES.items() if library.startswith(name)), "")


def is_of_cann(library: str) -> bool:
    """Whether a shared library comes with CANN."""
    return library.startswith(_CANN_LIBRARIES)
