"""The C extension ``_native.c``, or None where the package was built without a compiler.

Each function has a Python twin beside its only caller.  Arrays are handed over as the address of their
first element: the limited API of CPython 3.10 knows no buffers.
"""

from __future__ import annotations

import importlib
from types import ModuleType


def _load() -> ModuleType | None:
    try:
        return importlib.import_module("mindie_kvpool_plugin._native")
    except ImportError:
        return None


native = _load()
