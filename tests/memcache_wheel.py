"""The wheel memcache_hybrid on a machine without an NPU: its data path over shared memory, its driver a stub.

MemCache asks the Ascend driver for its version and for memory before it moves a byte, whatever the protocol.
So a small C library answers every driver function with 0 (copies are memmove), a version file lies where
MemCache looks for it, and a mount namespace of its own keeps that out of the real ``/etc``.  Good for the
semantics of calls; it says nothing about speed or about an NPU.
"""

import contextlib
import importlib.util
import os
import re
import shutil
import socket
import subprocess
import sys
from pathlib import Path

from tests.conftest import HOST, free_port, wait_until

VARIABLE = "MMC_LOCAL_CONFIG_PATH"
PREPARED = "KVPOOL_TEST_MEMCACHE_WHEEL"

KINDS = ("tcp", "tcp", "http")  # of the meta service's addresses

_LIBRARIES = ("ascend_hal", "hccl", "hcomm", "ra", "runtime", "tsdclient", "dcmi", "nnopbase", "opapi")
_NAMES = re.compile(rb"\0((?:acl|rt|hal|Hccl|Hcomm|ra_|Ra|dcmi|drv|Tsd)[A-Za-z0-9_]{3,60})(?=\0)")
_KNOWN = """
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
int rtGetLogicDevIdByUserDevId(int32_t id, int32_t *out) { *out = id; return 0; }
int aclrtGetPhyDevIdByLogicDevId(int32_t id, int32_t *out) { *out = id; return 0; }
int aclrtGetDevice(int32_t *out) { *out = 0; return 0; }
int aclrtMalloc(void **out, size_t size, int how) { return posix_memalign(out, 4096, size); }
int aclrtMallocHost(void **out, size_t size) { return posix_memalign(out, 4096, size); }
int aclrtFree(void *memory) { free(memory); return 0; }
int aclrtFreeHost(void *memory) { free(memory); return 0; }
int aclrtMemcpy(void *to, size_t room, const void *from, size_t size, int kind) { memmove(to, from, size); return 0; }
int aclrtMemcpyAsync(void *to, size_t room, const void *from, size_t size, int kind, void *stream)
{ memmove(to, from, size); return 0; }
int rtMemcpyAsyncWithoutCheckKind(void *to, size_t room, const void *from, size_t size, int kind, void *stream)
{ memmove(to, from, size); return 0; }
const char *aclrtGetSocName(void) { return "Ascend910B4"; }
"""


def why_not():
    """Why the wheel cannot run here, or None."""
    if importlib.util.find_spec("memcache_hybrid") is None:
        return "memcache_hybrid is not installed (pip install 'mindie-kvpool-plugin[memcache]')"
    if shutil.which("cc") is None:
        return "no C compiler for the stub of the Ascend driver"
    if shutil.which("unshare") is None or subprocess.run(["unshare", "-rm", "true"], check=False).returncode:
        return "no mount namespace of our own (unshare -rm)"
    return None


def prepare(folder):
    """Command that runs another one in the prepared namespace, and the environment for it."""
    _build_stub(folder / "ascend" / "lib64")
    (folder / "driver" / "driver").mkdir(parents=True)
    (folder / "driver" / "driver" / "version.info").write_text("Innerversion=V100R001C23SPC006B220\n", encoding="ascii")
    etc = folder / "etc"
    etc.mkdir()
    for name in ("passwd", "group", "hosts", "nsswitch.conf", "resolv.conf", "ld.so.cache", "localtime"):
        with contextlib.suppress(OSError):
            shutil.copy(f"/etc/{name}", etc)
    (etc / "ascend_install.info").write_text(f"Driver_Install_Path_Param={folder / 'driver'}\n", encoding="utf-8")
    (folder / "log").mkdir()
    script = 'mount --bind "$0/log" /var/log && mount --bind "$0/etc" /etc && exec "$@"'
    environment = {
        **os.environ,
        "ASCEND_HOME_PATH": str(folder / "ascend"),
        "LD_LIBRARY_PATH": str(folder / "ascend" / "lib64"),
        VARIABLE: str(folder / "mmc-local.conf"),
        PREPARED: str(folder),
    }
    return ["unshare", "-rm", "sh", "-c", script, str(folder)], environment


def is_prepared():
    """Whether this process runs with what ``prepare`` made."""
    return PREPARED in os.environ


@contextlib.contextmanager
def meta_service(capacity_bytes):
    """A meta service of the wheel, and its clients' configuration, whose place the library read when it was loaded."""
    ports = [free_port() for _ in range(3)]
    local, meta = Path(os.environ[VARIABLE]), Path(os.environ[PREPARED]) / "mmc-meta.conf"
    meta_url, store_url, http_url = (f"{kind}://{HOST}:{port}" for kind, port in zip(KINDS, ports, strict=True))
    meta.write_text(
        f"ock.mmc.meta_service_url = {meta_url}\n"
        f"ock.mmc.meta_service.config_store_url = {store_url}\n"
        f"ock.mmc.meta_service.metrics_url = {http_url}\n"
        "ock.mmc.log_level = error\n",
        encoding="ascii",
    )
    local.write_text(
        f"ock.mmc.meta_service_url = {meta_url}\n"
        f"ock.mmc.local_service.config_store_url = {store_url}\n"
        "ock.mmc.local_service.world_size = 8\n"
        "ock.mmc.local_service.protocol = host_shm\n"
        f"ock.mmc.local_service.dram.size = {capacity_bytes}\n"
        "ock.mmc.log_level = error\n",
        encoding="ascii",
    )
    process = subprocess.Popen(
        [sys.executable, "-c", "from memcache_hybrid import MetaService; MetaService.main()"],
        env={**os.environ, "MMC_META_CONFIG_PATH": str(meta)},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    try:
        for port in ports[:2]:
            wait_until(lambda port=port: _accepts(port), 20, f"MemCache's meta service on port {port}")
        yield local, process
    finally:
        process.kill()
        process.wait()


def _accepts(port):
    with socket.socket() as probe:
        return probe.connect_ex((HOST, port)) == 0


def _build_stub(folder):
    """One library under all the driver's names, with every function that MemFabric looks up in it."""
    folder.mkdir(parents=True)
    spec = importlib.util.find_spec("memfabric_hybrid")
    assert spec is not None
    assert spec.origin is not None
    core = Path(spec.origin).parent / "lib" / "libmf_hybm_core.so"
    names = {name.decode() for name in _NAMES.findall(core.read_bytes())}
    names -= set(re.findall(r"(\w+)\(", _KNOWN))
    source = folder / "stub.c"
    source.write_text(
        _KNOWN + "".join(f"int {name}(void) {{ return 0; }}\n" for name in sorted(names)), encoding="ascii"
    )
    subprocess.run(["cc", "-shared", "-fPIC", "-w", "-o", folder / "libascendcl.so", source], check=True)
    for name in _LIBRARIES:
        (folder / f"lib{name}.so").symlink_to("libascendcl.so")
