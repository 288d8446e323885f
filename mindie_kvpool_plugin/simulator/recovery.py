"""After a device fault: the host's recovery commands on all workers, in the order of its controller.

The pause command comes on the worker's command thread, while its inference thread may be busy; the others come when
it is idle.  In between HBM is lost: the host replaces broken pages there, here all are zeroed.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from functools import partial

from mindie_kvpool_plugin.simulator.worker import Worker

DEVICE_FAULT = "ErrorCodeException"
"""Name of the host's exception for a fault that can be repaired."""
COMMAND_TIMEOUT_S = 60.0


def is_device_fault(error: BaseException) -> bool:
    """Whether the host would have the device repaired."""
    return type(error).__name__ == DEVICE_FAULT


def recover(
    workers: Sequence[Worker], *, asynchronous: bool, end_transfers: Callable[[], object] = lambda: None
) -> None:
    """Repair the devices of all workers; their sequences are forgotten.

    Args:
        workers: of one host.
        asynchronous: whether it schedules so.
        end_transfers: waits for the pulls under way, which stand before the second command in the host's queue.

    Raises:
        RuntimeError: a command failed.
    """
    # the plain command waits for an exception out of a running batch that a stopped device gives; here none does
    _on_command_threads(workers, "CMD_PAUSE_ENGINE_ROCE" if asynchronous else "CMD_PAUSE_ENGINE")
    for worker in workers:
        wipe(worker)
    end_transfers()
    _on_command_threads(workers, "CMD_CLEAR_TRANSER")
    for command in ("CMD_REINIT_NPU", "CMD_START_ENGINE"):
        for future in [worker.call(partial(worker.recover, command)) for worker in workers]:
            future.result(COMMAND_TIMEOUT_S)


def wipe(worker: Worker) -> None:
    """Zero the cache tensors of a device nothing runs on."""
    for layer in worker.generator.generator_backend.cache_pool.npu_cache:
        for tensor in layer:
            tensor.zero_()


def _on_command_threads(workers: Sequence[Worker], command: str) -> None:
    errors: list[BaseException] = []

    def execute(worker: Worker) -> None:
        try:
            worker.recover(command)
        except BaseException as error:  # noqa: BLE001 - raised on the caller's thread
            errors.append(error)

    threads = [threading.Thread(target=execute, args=(worker,), name="command") for worker in workers]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(COMMAND_TIMEOUT_S)
    if errors:
        raise errors[0]
