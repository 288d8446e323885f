"""A whole host in one process: scheduler, workers, devices and the oracle.

``Engine`` is what tests drive: ``submit`` prompts, ``step`` or ``run``, then read the counters.
Everything the host does happens inside ``step``, on the caller's thread and the workers' threads;
for one configuration and one order of calls the outcome is always the same.
"""

from __future__ import annotations

import importlib
import itertools
import json
import tempfile
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Any

import numpy as np

from mindie_kvpool_plugin.simulator import host_modules
from mindie_kvpool_plugin.simulator.block_manager import BlockManager
from mindie_kvpool_plugin.simulator.device import HOLD_S, Device
from mindie_kvpool_plugin.simulator.metadata import batch_metadata, dummy_metadata
from mindie_kvpool_plugin.simulator.model_shape import ModelShape, write_weights
from mindie_kvpool_plugin.simulator.oracle import Oracle, Row, Step
from mindie_kvpool_plugin.simulator.requests import Limits, Request
from mindie_kvpool_plugin.simulator.scheduler import Scheduler
from mindie_kvpool_plugin.simulator.worker import Worker

SPARE_TOKENS = 8
"""Positions past ``max_seq_len`` the oracle knows: asynchronous scheduling computes past the end."""


@dataclass(frozen=True, slots=True)
class EngineConfig:
    """One simulated host.

    Attributes:
        shape: the model.
        block_size: tokens of a block.
        hbm_blocks: device blocks the scheduler may hand out.
        tp: tensor parallel ranks, threads of this process.
        plugins: value of ``plugin_type``, comma separated.
        backend: ``kvPoolConfig.backend``; empty: no pool.
        pool_file: ``kvPoolConfig.configPath``.
        async_write: ``kvPoolConfig.asyncWrite``.
        async_scheduling: overlap scheduling with the device, as MINDIE_ASYNC_SCHEDULING_ENABLE does.
        model_name: the served name.
        max_seq_len: tokens of a sequence, prompt and answer.
        limits: what a batch may hold.
        clock: "exact", or "coarse" for the host's 128 s resolution.
        hold_s: how long an asynchronous device keeps back a batch that nobody released.
    """

    shape: ModelShape = field(default_factory=ModelShape)
    block_size: int = 16
    hbm_blocks: int = 128
    tp: int = 1
    plugins: str = "prefix_cache"
    backend: str = ""
    pool_file: str = ""
    async_write: bool = False
    async_scheduling: bool = False
    model_name: str = "simulated"
    max_seq_len: int = 2048
    limits: Limits = field(default_factory=Limits)
    clock: str = "exact"
    hold_s: float = HOLD_S


class Engine:
    """A simulated host.

    Attributes:
        config: how it was built.
        oracle: what went wrong so far.
        manager: the block manager.
        scheduler: the scheduler.
        workers: one per rank.
        done: requests that ended, in order.
        on_end: called with every request that ended, after its blocks were given back.
    """

    def __init__(self, config: EngineConfig) -> None:
        self.config = config
        self.done: list[Request] = []
        self.on_end: Callable[[Request], None] | None = None
        self.oracle = Oracle(config.max_seq_len + SPARE_TOKENS, config.shape.vocab_size)
        self.manager = BlockManager(config.hbm_blocks, config.block_size, caching="prefix_cache" in config.plugins)
        self.workers: list[Worker] = []
        self._ids = itertools.count(1)
        self._steps = itertools.count()
        self._forget: list[int] = []
        self._lookup: Any = None
        self._weights = tempfile.TemporaryDirectory(prefix="mindie-kvpool-weights-")
        try:
            self._start()
        except BaseException:
            self.close()
            raise
        self.scheduler = Scheduler(
            self.manager,
            config.limits,
            asynchronous=config.async_scheduling,
            lookup=self._lookup,
            tp=config.tp,
            model_name=config.model_name,
            clock=config.clock,
        )

    def __enter__(self) -> Engine:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    @property
    def num_npu_blocks(self) -> int:
        """Blocks of the cache tensors: one more than handed out, for dummy batches."""
        return self.config.hbm_blocks + 1

    @property
    def computed_tokens(self) -> int:
        """Tokens computed in prefills."""
        return self.workers[0].device.computed_tokens

    @property
    def leaked_blocks(self) -> int:
        """Blocks somebody still holds; 0 when the engine is idle."""
        return self.config.hbm_blocks - self.manager.num_free

    def plugin(self, name: str, rank: int = 0) -> Any:
        """A plugin's instance on one rank, or None."""
        return self.workers[rank].plugin(name)

    def kv_cache(self, rank: int = 0) -> Any:
        """A rank's cache tensors, a tuple per layer: for tests that plant damage."""
        return self.workers[rank].generator.generator_backend.cache_pool.npu_cache

    def submit(self, prompt: Sequence[int], max_tokens: int, adapter: str | None = None) -> Request:
        """Queue a request.

        Raises:
            ValueError: it does not fit into ``max_seq_len``.
        """
        if len(prompt) + max_tokens > self.config.max_seq_len:
            raise ValueError(
                f"{len(prompt)} prompt and {max_tokens} answer tokens exceed max_seq_len {self.config.max_seq_len}"
            )
        request = Request(next(self._ids), [int(token) for token in prompt], max_tokens, adapter)
        self.scheduler.submit(request)
        return request

    def abort(self, request: Request) -> None:
        """The client went away."""
        self.scheduler.abort(request)

    def step(self) -> bool:
        """One turn of the scheduler; False when nothing was left to run."""
        for request in self.scheduler.reclaim():
            self._forget.append(request.sequence_id)
            self.done.append(request)
            if self.on_end is not None:
                self.on_end(request)
        batch, config = self.scheduler.schedule(), self.config
        if batch is None:
            return self._tell_workers()
        rows = [
            Row(
                request.sequence_id,
                np.array(request.tokens, dtype=np.int64) if batch.is_prefill else None,
                request.adapter,
            )
            for request in batch.requests
        ]
        step = Step(next(self._steps), batch.is_prefill, rows, config.tp, self._forget)
        self._forget = []
        output = self._run(
            step, lambda: batch_metadata(batch, self.num_npu_blocks, config.block_size, config.max_seq_len)
        )
        self.scheduler.sent(batch)
        self._tell_workers()
        self._take(output)
        self._check_integrity()
        return True

    def run(self) -> None:
        """Step until nothing is left."""
        while self.step() or not self.scheduler.idle:
            pass

    def dummy_step(self) -> None:
        """An empty batch, as a worker gets while another data parallel group has work."""
        config = self.config
        step = Step(next(self._steps), True, [], config.tp)
        self._take(self._run(step, lambda: dummy_metadata(self.num_npu_blocks, config.block_size, config.max_seq_len)))

    def drop_hbm(self) -> None:
        """Forget every cached block, as a restart does.  Only when idle."""
        if not self.scheduler.idle:
            raise RuntimeError("blocks are in use; run the engine until it is idle first")
        self.manager.clear()

    def close(self) -> None:
        """End all threads and remove the weight directory."""
        for worker in self.workers:
            worker.close()
        close = getattr(self._lookup, "close", None)
        if close is not None:
            close()
        self._weights.cleanup()

    def _start(self) -> None:
        config = self.config
        host_modules.install()
        importlib.import_module("mindie_llm.utils.env").ENV.async_inference = config.async_scheduling
        folder = Path(self._weights.name)
        write_weights(config.shape, folder)
        for rank in range(config.tp):
            device = Device(
                config.shape,
                self.oracle,
                block_size=config.block_size,
                rank=rank,
                tp=config.tp,
                asynchronous=config.async_scheduling,
                hold_s=config.hold_s,
            )
            name = "inference" if config.tp == 1 else f"inference-{rank}"
            self.workers.append(Worker(device, self._model_config(rank, folder), name))
        for worker in self.workers:
            worker.wait_until_built()
        if config.backend and config.pool_file:
            mempool = importlib.import_module("mindie_llm.text_generator.mempool")
            self._lookup = mempool.MemPool.create_pool(config.backend, config.pool_file)

    def _model_config(self, rank: int, weights: Path) -> dict[str, Any]:
        config = self.config
        texts = {
            "backend_type": "atb",
            "block_size": config.block_size,
            "max_seq_len": config.max_seq_len,
            "max_iter_times": config.max_seq_len,
            "max_prefill_tokens": config.limits.max_prefill_tokens,
            "num_npu_blocks": self.num_npu_blocks,
            "model_id": weights,
            "model_name": config.model_name,
            "npu_device_id": rank,
            "local_rank": rank,
            "rank": rank,
            "world_size": config.tp,
            "tp": config.tp,
            "kv_pool_backend": config.backend,
            "kv_pool_config_path": config.pool_file,
            "kv_pool_async_write": "true" if config.async_write else "false",
            "plugin_params": json.dumps({"plugin_type": config.plugins}) if config.plugins else "",
        }
        return {key: str(value) for key, value in texts.items()}

    def _run(self, step: Step, metadata: Callable[[], Any]) -> Any:
        for worker in self.workers:
            worker.device.steps.put(step)
        # every rank gets its own metadata: plugins change it
        return _results([worker.step(metadata()) for worker in self.workers])[0]

    def _take(self, output: Any) -> None:
        self.scheduler.take(
            output.sequence_ids.tolist(), output.token_ids.reshape(-1).tolist(), output.finish_reason.tolist()
        )

    def _check_integrity(self) -> None:
        self.manager.check_integrity()
        for worker in self.workers:
            check = getattr(worker.plugin("kv_pool"), "check_integrity", None)
            if check is not None:
                check()

    def _tell_workers(self) -> bool:
        if not self.scheduler.cleanup:
            return False
        gone = np.array(self.scheduler.cleanup, dtype=np.int64)
        self.scheduler.cleanup.clear()
        _results([worker.clear_cache(gone) for worker in self.workers])
        return True


def _results(futures: list[Future[Any]]) -> list[Any]:
    """Wait for all ranks; of several failures raise the one that started it."""
    errors = [error for error in [future.exception() for future in futures] if error is not None]
    if errors:
        raise next((error for error in errors if "BrokenBarrier" not in repr(error.__cause__ or error)), errors[0])
    return [future.result() for future in futures]
