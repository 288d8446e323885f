"""Probes of the NPU's surroundings and of the environment that the documents ask for.

Nothing here has run on a machine with an NPU: what is looked for is taken from the documents of CANN, MindIE and
Mooncake.  On a machine without one it is "not here", unless the pool file's protocol needs one.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator

from mindie_kvpool_plugin.doctor.case import Case
from mindie_kvpool_plugin.doctor.lines import Line, absent, good, note, trouble, warning

# ids: of what is there, of what is missed, of what is not needed here
_DEVICES = ("npu.devices", "npu.no_devices", "npu.without_devices")
_FILES = {
    "usr/local/Ascend/driver/version.info": ("npu.driver", "npu.no_driver", "npu.without_driver"),
    "etc/hccn.conf": ("npu.hccn", "npu.no_hccn", "npu.without_hccn"),
}
_CANN = ("npu.cann", "npu.no_cann", "npu.without_cann")
CANN_VARIABLES = ("ASCEND_HOME_PATH", "ASCEND_TOOLKIT_HOME")
ADVISED_BUFFERS = "4:8"


def npu(case: Case) -> Iterator[Line]:
    """Devices, driver, tools, the network's file, CANN."""
    say, which = (trouble, 1) if needs_npu(case) else (absent, 2)
    devices = sorted(each.name for each in case.root.glob("dev/davinci[0-9]*"))
    if not devices:
        yield say(_DEVICES[which])
        return
    yield good(_DEVICES[0], count=len(devices), devices=", ".join(devices[:16]))
    for path, ids in _FILES.items():
        is_there = (case.root / path).is_file()
        yield good(ids[0], file=f"/{path}") if is_there else say(ids[which], file=f"/{path}")
    yield good("npu.smi") if _program(case, "npu-smi") else warning("npu.no_smi")
    home = next((case.env[name] for name in CANN_VARIABLES if case.env.get(name)), "")
    is_there = bool(home) and os.path.isdir(home)
    yield good(_CANN[0], folder=home) if is_there else say(_CANN[which], variables=" / ".join(CANN_VARIABLES))


def needs_npu(case: Case) -> bool:
    """Whether the pool file's protocol moves device memory."""
    return case.backend == "mooncake" and case.mooncake is not None and case.mooncake.protocol == "ascend"


def _program(case: Case, name: str) -> str | None:
    return shutil.which(name, path=case.env.get("PATH", os.defpath))


def environment(case: Case) -> Iterator[Line]:
    """Variables, as they are where the doctor runs: in the shell that starts the service."""
    if needs_npu(case):
        yield _buffers(case.env.get("ASCEND_BUFFER_POOL", ""))
        yield _loader_path(case.env.get("LD_LIBRARY_PATH", ""))
    preloaded = case.env.get("LD_PRELOAD", "")
    yield good("environment.jemalloc", value=preloaded) if "jemalloc" in preloaded else note("environment.no_jemalloc")
    queue = case.env.get("TASK_QUEUE_ENABLE", "")
    yield warning("environment.task_queue") if queue == "0" else note("environment.queue", value=queue or "-")


def _buffers(value: str) -> Line:
    if value in ("", "0:0"):
        return warning("environment.no_buffers", advised=ADVISED_BUFFERS, value=value or "-")
    return good("environment.buffers", value=value)


def _loader_path(value: str) -> Line:
    """The documents want Mooncake's folder on it, for the master and for the daemon."""
    is_there = any(os.path.isdir(each) and os.path.basename(each) == "mooncake" for each in value.split(os.pathsep))
    return good("environment.loader_path") if is_there else warning("environment.no_loader_path")
