"""Taking an NPU without torch, against a stand-in for CANN's library."""

import shutil
import subprocess

import pytest

from mindie_kvpool_plugin.errors import PoolError
from mindie_kvpool_plugin.pools.mooncake import npu


@pytest.fixture
def cann(tmp_path, monkeypatch):
    """A library that answers what it is told to."""
    if shutil.which("cc") is None:
        pytest.skip("no C compiler")

    def build(init, device):
        source = tmp_path / "acl.c"
        source.write_text(
            f"int aclInit(const char *c) {{ return {init}; }}\n"
            f"int aclrtSetDevice(int d) {{ return d == 3 ? {device} : 1; }}\n"
        )
        library = tmp_path / f"libacl_{abs(init)}_{abs(device)}.so"
        subprocess.run(["cc", "-shared", "-fPIC", "-o", library, source], check=True)
        monkeypatch.setattr(npu, "LIBRARY", str(library))

    return build


@pytest.mark.parametrize("init", [0, 100002])
def test_device_is_taken(cann, init):
    """Also when somebody has initialised the runtime before."""
    cann(init, 0)
    npu.set_device(3)


@pytest.mark.parametrize(
    ("init", "device", "said"), [(500000, 0, "aclInit failed with 500000"), (0, 107001, "no NPU 3")]
)
def test_what_cann_refuses_is_told(cann, init, device, said):
    """With its code."""
    cann(init, device)
    with pytest.raises(PoolError, match=said):
        npu.set_device(3)


def test_missing_cann_is_told(monkeypatch):
    """As on a machine without an NPU."""
    monkeypatch.setattr(npu, "LIBRARY", "libno_such_acl.so")
    with pytest.raises(PoolError, match=r"set_env\.sh"):
        npu.set_device(0)
