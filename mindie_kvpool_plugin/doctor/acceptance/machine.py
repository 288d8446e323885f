"""Probes of the machine under the pool: CANN, driver, tools, links between devices, and who may use them.

Nothing here has run on a machine with an NPU: paths, options and outputs are those of Huawei's documents.
"""

from __future__ import annotations

import contextlib
import os
import re
import resource
import shutil
import subprocess
from collections.abc import Iterator, Sequence
from pathlib import Path

from mindie_kvpool_plugin.doctor.acceptance.trial import Trial
from mindie_kvpool_plugin.doctor.lines import Line, absent, good, note, trouble
from mindie_kvpool_plugin.doctor.npu import CANN_VARIABLES, needs_npu
from mindie_kvpool_plugin.host.interpreters import users

TOOL_TIMEOUT_S = 10.0
_CANN_FILES = ("runtime/version.info", "version.info", "version.cfg", "*-linux/ascend_toolkit_install.info")
_DRIVER_FILE = "usr/local/Ascend/driver/version.info"
_VERSION = re.compile(r"^\W*\w*version\w*\s*=\s*\W*([\w.]+)", re.IGNORECASE | re.MULTILINE)
_SMI_VERSION = re.compile(r"npu-smi\s+\S+\s+Version:\s*(\S+)")
_SMI_ROW = re.compile(r"^\|\s*(\d+)\s+\S+\s*\|\s*([A-Za-z]+)\s*\|", re.MULTILINE)
_DEVICE_NODES = ("davinci_manager", "devmm_svm", "hisi_hdc")


def machine(case: Trial) -> Iterator[Line]:
    """Versions, health, links, and rights; where there is no device, only what holds without one."""
    nodes = sorted(each.name for each in case.root.glob("dev/davinci[0-9]*"))
    yield from _cann(case)
    if nodes:
        yield _driver(case)
        yield from _smi(case)
        yield from _rights(case, nodes)
        yield from _links(case)
    else:
        yield absent("machine.no_devices")
    yield _locked_memory()


def _cann(case: Trial) -> Iterator[Line]:
    home = next((case.env[name] for name in CANN_VARIABLES if case.env.get(name)), "")
    if not home:
        yield absent("machine.no_cann", variables=" / ".join(CANN_VARIABLES))
        return
    found = (_version(path) for pattern in _CANN_FILES for path in sorted(Path(home).glob(pattern)))
    version = next(filter(None, found), "")
    yield good("machine.cann", version=version, folder=home) if version else note("machine.cann_unknown", folder=home)


def _driver(case: Trial) -> Line:
    version = _version(case.root / _DRIVER_FILE)
    return good("machine.driver", version=version) if version else absent("machine.driver_unknown", file=_DRIVER_FILE)


def _version(path: Path) -> str:
    with contextlib.suppress(OSError, UnicodeDecodeError):
        found = _VERSION.search(path.read_text(encoding="utf-8")[:10_000])
        return found[1] if found else ""
    return ""


def _smi(case: Trial) -> Iterator[Line]:
    said = _said(case, ["npu-smi", "info"])
    if said is None:
        yield absent("machine.no_smi")
        return
    version, rows = _SMI_VERSION.search(said), _SMI_ROW.findall(said)
    ill = [f"{number}: {health}" for number, health in rows if health.upper() != "OK"]
    if ill:
        yield trouble("machine.unhealthy", devices=", ".join(ill))
    elif rows:
        yield good("machine.healthy", count=len(rows), version=version[1] if version else "-")
    else:
        yield absent("machine.smi_silent", said=" ".join(said.split())[:200] or "-")


def _rights(case: Trial, nodes: Sequence[str]) -> Iterator[Line]:
    """Of the service's user; the modes of the device files decide, as the kernel does."""
    try:
        user = users.named(case.user) if case.user else users.current()
    except users.UserError:
        return  # the probe of permissions has said so
    if len(case.devices) > len(nodes):
        # a container numbers what it was given from 0, whatever the files are called
        yield trouble("machine.no_device", wanted=len(case.devices), there=", ".join(nodes))
    paths = [case.root / "dev" / name for name in (*nodes, *_DEVICE_NODES)]
    closed = [path for path in paths if path.exists() and not all(users.may(user, path.stat(), bit) for bit in (4, 2))]
    for path in closed:
        yield trouble("machine.no_access", file=f"/dev/{path.name}", user=user.name)
    if not closed:
        yield good("machine.access", user=user.name, count=len(nodes))


def _links(case: Trial) -> Iterator[Line]:
    """Of the devices' own network, which only ascend uses."""
    if not needs_npu(case):
        yield absent("machine.links_unused")
        return
    try:
        addresses = dict(re.findall(r"^address_(\d+)=(\S+)", (case.root / "etc/hccn.conf").read_text(), re.MULTILINE))
    except OSError:
        addresses = {}
    for number in case.devices:
        if str(number) not in addresses:
            yield trouble("machine.no_address", device=number)
            continue
        said = _said(case, ["hccn_tool", "-i", str(number), "-link", "-g"])
        if said is None:
            yield absent("machine.no_hccn_tool", device=number, address=addresses[str(number)])
        elif re.search(r"link status:\s*UP", said, re.IGNORECASE):
            yield good("machine.link", device=number, address=addresses[str(number)])
        else:
            yield trouble("machine.link_down", device=number, said=" ".join(said.split())[:200] or "-")


def _said(case: Trial, command: list[str]) -> str | None:
    """What a tool prints; None where there is none, or it says nothing in time."""
    program = shutil.which(command[0], path=case.env.get("PATH", os.defpath))
    if program is None:
        return None
    with contextlib.suppress(OSError, subprocess.TimeoutExpired):
        done = subprocess.run(  # noqa: S603 - a tool of the driver, with arguments of ours
            [program, *command[1:]],
            capture_output=True, text=True, errors="replace", timeout=case.left_s(TOOL_TIMEOUT_S), check=False,
        )  # fmt: skip
        return done.stdout + done.stderr
    return None


def _locked_memory() -> Line:
    """Page-locked and registered memory counts against it."""
    limit = resource.getrlimit(resource.RLIMIT_MEMLOCK)[0]
    if limit == resource.RLIM_INFINITY:
        return good("machine.locked_memory")
    return note("machine.locked_limit", mib=limit // 1024**2)
