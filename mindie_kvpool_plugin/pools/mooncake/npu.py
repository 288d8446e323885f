"""The NPU of a process without torch: Mooncake's protocol ``ascend`` needs one set before a client, also in a store.

Never run on an NPU so far.
"""

from __future__ import annotations

import ctypes

from mindie_kvpool_plugin.errors import PoolError

LIBRARY = "libascendcl.so"
_REPEATED_INIT = 100002  # ACL_ERROR_REPEAT_INITIALIZE: somebody was first, which is fine


def set_device(device_id: int) -> None:
    """Initialise CANN's runtime and take a device, as ``torch.npu.set_device`` does in an engine.

    Raises:
        PoolError: no CANN, or no such device.
    """
    try:
        acl = ctypes.CDLL(LIBRARY)
    except OSError as error:
        raise PoolError(
            f'protocol "ascend" needs CANN in a store, too: {error}; source CANN\'s set_env.sh before it starts'
        ) from error
    code = acl.aclInit(None)
    if code not in (0, _REPEATED_INIT):
        raise PoolError(f"CANN's aclInit failed with {code}; is the driver's folder visible in this container?")
    code = acl.aclrtSetDevice(ctypes.c_int32(device_id))
    if code != 0:
        raise PoolError(f"CANN has no NPU {device_id} for this process (aclrtSetDevice: {code}); choose with --device")
