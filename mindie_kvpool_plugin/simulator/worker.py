"""One worker: a generator of the stand-in host, and the thread that owns it.

The thread "inference" builds the generator and runs every step, as in the host's worker process.
"""

from __future__ import annotations

import contextlib
import importlib
import threading
import time
from collections import defaultdict
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt

from mindie_kvpool_plugin.simulator.cost_clock import RankTime
from mindie_kvpool_plugin.simulator.device import Device
from mindie_kvpool_plugin.simulator.requests import BlockPair, SwapDecision

HOOKS = ("model_inputs_update", "sample_preprocess", "plugin_verify", "plugin_cache_update", "plugin_cache_clear")
FREE_EVENTS = ("sequences_finished", "sequences_dropped")
"""Called by our hooks on the context store; only ``kv_pool`` has them."""

Answer = TypeVar("Answer")


class Worker:
    """One TP rank.

    Attributes:
        device: its device.
        generator: the host's ``Generator``.
        hook_seconds: "plugin.hook" -> seconds spent in it.
    """

    def __init__(self, device: Device, model_config: dict[str, Any], name: str, time: RankTime | None = None) -> None:
        self.device = device
        self.hook_seconds: defaultdict[str, float] = defaultdict(float)
        self._simulated = time
        self._thread = ThreadPoolExecutor(1, initializer=_rename, initargs=(name,))
        self._built = self._thread.submit(self._build, model_config)

    def wait_until_built(self) -> None:
        """Raise what the construction raised."""
        self._built.result()

    def call(self, function: Callable[[], Answer]) -> Future[Answer]:
        """Run ``function`` on the inference thread."""
        return self._thread.submit(function)

    def step(self, metadata: Any) -> Future[Any]:
        """Run one batch."""
        return self.call(lambda: self.generator.generate_token(metadata))

    def move_blocks(self, copies: list[BlockPair], swaps: list[SwapDecision]) -> Future[None]:
        """Copy and swap blocks, as the host's router does before a batch."""

        def move() -> None:
            if copies:
                self.generator.copy_blocks(np.array(copies))
            if swaps:
                self.generator.swap([[list(decision) for decision in swaps]])

        return self.call(move)

    def recover(self, command: str) -> None:
        """Execute one of the host's recovery commands, on the thread that calls this.

        Raises:
            RuntimeError: it failed.
        """
        result = self.generator.execute_recover_command(command)
        if result["command_result"] != 0:
            raise RuntimeError(f"{command} failed: {result['error_msg']}")

    def clear_cache(self, sequence_ids: npt.NDArray[np.int64]) -> Future[Any]:
        """Tell the worker that sequences are gone."""
        return self.call(lambda: self.generator.clear_cache(sequence_ids))

    def plugin(self, name: str) -> Any:
        """A plugin's instance, or None."""
        return getattr(self.generator.plugin_manager, name, None)

    def wait_until_idle(self) -> None:
        """Wait for the batch in flight, whose tokens nobody asks for any more once the engine is idle."""
        manager = self.generator.plugin_manager
        if manager.async_inference:
            manager.input_queue.join()

    def close(self) -> None:
        """End its threads; plugins that can be closed are closed."""
        if not self._built.exception():
            manager = self.generator.plugin_manager
            if manager.async_inference:
                manager.input_queue.put(None)
                manager.forward_thread.join()
            for name in manager.plugin_list:
                close = getattr(getattr(manager, name), "close", None)
                if close is not None:
                    self.call(close).result()
            for name in manager.plugin_list:
                for hook in (*HOOKS, *FREE_EVENTS):
                    vars(getattr(manager, name)).pop(hook, None)  # ``_timed`` refers to us and to the plugin
        self.device.close()
        self._thread.shutdown()

    def _build(self, model_config: dict[str, Any]) -> None:
        module = importlib.import_module("mindie_llm.text_generator.generator")
        self.generator = module.Generator({**model_config, "simulated_device": self.device})
        for name in self.generator.plugin_manager.plugin_list:
            plugin = getattr(self.generator.plugin_manager, name)
            for hook in (*HOOKS, *(event for event in FREE_EVENTS if hasattr(plugin, event))):
                setattr(plugin, hook, self._timed(f"{name}.{hook}", getattr(plugin, hook)))

    def _timed(self, label: str, hook: Callable[..., Answer]) -> Callable[..., Answer]:
        def call(*args: Any, **kwargs: Any) -> Answer:
            began = time.perf_counter()
            try:
                with self._simulated.in_hook() if self._simulated is not None else contextlib.nullcontext():
                    return hook(*args, **kwargs)
            finally:
                self.hook_seconds[label] += time.perf_counter() - began

        return call


def _rename(name: str) -> None:
    threading.current_thread().name = name
