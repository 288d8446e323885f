"""A whole host in one process: scheduler, workers, devices and the oracle.

``Engine`` is what tests drive: ``submit`` prompts, ``step`` or ``run``, then read the counters.
Everything the host does happens inside ``step``, on the caller's thread and the workers' threads;
for one configuration and one order of calls the outcome is always the same.
"""

from __future__ import annotations

import importlib
import itertools
import tempfile
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import Any

import numpy as np

from mindie_kvpool_plugin.simulator import host_modules
from mindie_kvpool_plugin.simulator.block_manager import BlockManager
from mindie_kvpool_plugin.simulator.chunks import ChunkedScheduler
from mindie_kvpool_plugin.simulator.data_parallel import DataParallelScheduler
from mindie_kvpool_plugin.simulator.dealt_guesses import DealtSpeculativeScheduler
from mindie_kvpool_plugin.simulator.dealt_out import DealtBlockManager, DealtScheduler
from mindie_kvpool_plugin.simulator.device import Device
from mindie_kvpool_plugin.simulator.draft_device import DraftDevice
from mindie_kvpool_plugin.simulator.engine_config import EngineConfig
from mindie_kvpool_plugin.simulator.metadata import dummy_metadata, oracle_rows
from mindie_kvpool_plugin.simulator.model_shape import write_weights
from mindie_kvpool_plugin.simulator.oracle import Oracle, Step
from mindie_kvpool_plugin.simulator.recovery import is_device_fault, recover
from mindie_kvpool_plugin.simulator.requests import Batch, Request
from mindie_kvpool_plugin.simulator.scheduler import Scheduler
from mindie_kvpool_plugin.simulator.sequence_groups import make_children, why_not
from mindie_kvpool_plugin.simulator.servers import Launch, LonelySchedulers, block_moves, launches
from mindie_kvpool_plugin.simulator.speculation import SpeculativeScheduler, one_by_one
from mindie_kvpool_plugin.simulator.swapping import Swapper
from mindie_kvpool_plugin.simulator.tree_device import TreeDevice
from mindie_kvpool_plugin.simulator.worker import Worker

SPARE_TOKENS = 8
"""Positions past ``max_seq_len`` the oracle knows: asynchronous scheduling computes past the end."""


__all__ = ["Engine", "EngineConfig"]


class Engine:
    """A simulated host.

    Attributes:
        config: how it was built.
        oracle: what went wrong so far.
        managers: the block managers, one per data parallel group.
        manager: the first one.
        scheduler: the scheduler.
        workers: one per rank.
        done: requests that ended, in order.
        on_end: called with every request that ended, after its blocks were given back.
        recoveries: device faults that were repaired.
    """

    def __init__(self, config: EngineConfig, oracle: Oracle | None = None) -> None:
        self.config = config
        self.done: list[Request] = []
        self.on_end: Callable[[Request], None] | None = None
        self.recoveries = 0
        self._fails = False
        self.oracle = oracle or Oracle(config.max_table_tokens + SPARE_TOKENS, config.shape.vocab_size)
        self.managers = [self._block_manager() for _ in range(config.dp)]
        self.manager = self.managers[0]
        self.workers: list[Worker] = []
        self._ids = itertools.count(1)
        self._steps = itertools.count()
        self._lookup: Any = None
        self._weights = tempfile.TemporaryDirectory(prefix="mindie-kvpool-weights-")
        try:
            self._start()
        except BaseException:
            self.close()
            raise
        self.scheduler = self._scheduler()

    def __enter__(self) -> Engine:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    @property
    def idle(self) -> bool:
        """Nothing waits, runs, or has blocks to give back."""
        return self.scheduler.idle

    @property
    def copied_blocks(self) -> int:
        """Blocks copied for children."""
        return self.scheduler.copied_blocks

    @property
    def moved_beams(self) -> int:
        """Times a running beam went on from another one's history."""
        return self.scheduler.moved_beams

    @property
    def swapped_blocks(self) -> int:
        """Blocks that came back from host memory."""
        return sum(scheduler.swapper.blocks_in for scheduler in self.scheduler.each)

    @property
    def preemptions(self) -> int:
        """Times a request had to make room."""
        return self.scheduler.preemptions

    @property
    def computed_tokens(self) -> int:
        """Tokens computed in prefills."""
        per_group = self.config.num_ranks // self.config.dp
        return sum(worker.device.computed_tokens for worker in self.workers[::per_group])

    @property
    def leaked_blocks(self) -> int:
        """Blocks somebody still holds, on the device or in host memory; 0 when the engine is idle."""
        hosts = [scheduler.swapper.host for scheduler in self.scheduler.each]
        return sum(manager.num_used for manager in (*self.managers, *hosts))

    @property
    def refused_keys(self) -> int:
        """Keys that the scheduler did not ask a pool for, because it was left alone."""
        return int(getattr(getattr(self._lookup, "counters", None), "refused_keys", 0))

    def plugin(self, name: str, rank: int = 0) -> Any:
        """A plugin's instance on one rank, or None."""
        return self.workers[rank].plugin(name)

    def kv_cache(self, rank: int = 0) -> Any:
        """A rank's cache tensors, a tuple per layer: for tests that plant damage."""
        return self.workers[rank].generator.generator_backend.cache_pool.npu_cache

    def submit(
        self,
        prompt: Sequence[int],
        max_tokens: int,
        adapter: str | None = None,
        n: int = 1,
        best_of: int = 0,
        beams: bool = False,
    ) -> Request:
        """Queue a request.

        Args:
            prompt: its tokens.
            max_tokens: of an answer.
            adapter: its LoRA adapter.
            n: answers the client wants.
            best_of: answers that are computed; 0: ``n``.
            beams: they are searched in beams.

        Raises:
            ValueError: it does not fit into ``max_seq_len``, or the host does not take such a request.
        """
        config, best_of = self.config, best_of or n
        reason = why_not(
            best_of,
            n,
            adapter,
            config.limits,
            asynchronous=config.async_scheduling,
            swaps=config.max_preempt_count > 0,
            beams=beams,
        )
        if (config.num_shares > 1 or config.is_shared_by_groups) and best_of > 1:
            reason = "cp, sp, and dp with one scheduler go with one answer per request, as in the host"
        if config.chunk_tokens and adapter is not None:
            reason = "SplitFuse goes without adapters, as in the host"
        if config.speculation and best_of > 1:
            reason = "speculation is simulated with one answer per request"
        if config.servers and config.role == "prefill" and max_tokens > 1:
            reason = "a prefill node with servers is simulated alone: its requests end with their first token"
        if reason:
            raise ValueError(reason)
        if len(prompt) + max_tokens > self.config.max_seq_len:
            raise ValueError(
                f"{len(prompt)} prompt and {max_tokens} answer tokens exceed max_seq_len {self.config.max_seq_len}"
            )
        request = Request(
            next(self._ids), [int(token) for token in prompt], max_tokens, adapter, n=n, is_beam_search=beams
        )
        make_children(request, best_of, self._ids)
        self.scheduler.submit(request)
        return request

    def abort(self, request: Request) -> None:
        """The client went away."""
        self.scheduler.abort(request)

    def step(self) -> bool:
        """One turn of the scheduler; False when nothing was left to run."""
        self._finish(self.scheduler.reclaim())
        batch = self.scheduler.schedule()
        if batch is None:
            self._swap_alone()
            return self._tell_workers()
        self._move_blocks(batch)
        launched = self._launches(batch)
        try:
            outputs = self._run(launched)
        except Exception as error:
            self.scheduler.sent(batch)
            if not is_device_fault(error):
                raise
            self._recover()
            return True
        self.scheduler.sent(batch)
        self._tell_workers()
        for step, output in outputs:
            self._branch(step, output)
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
        step = Step(next(self._steps), True, [], config.num_ranks)

        def metadata(_: int) -> Any:
            return dummy_metadata(config.num_npu_blocks, config.block_size, config.max_seq_len)

        for _, output in self._run([Launch(step, range(config.num_ranks), metadata)]):
            self._take(output)

    def drop_hbm(self) -> None:
        """Forget every cached block, as a restart does.  Only when idle."""
        if not self.scheduler.idle:
            raise RuntimeError("blocks are in use; run the engine until it is idle first")
        for manager in self.managers:
            manager.clear()

    def fail_device(self) -> None:
        """The next batch fails on the device, which ends all requests; then the device is repaired."""
        self._fails = True

    def close(self) -> None:
        """End all threads and remove the weight directory."""
        self.on_end = None  # whoever listens may hold this engine
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
        make: Callable[..., Device] = Device
        if config.speculation:
            kind = DraftDevice if config.speculation.draft_layers else TreeDevice
            make = partial(kind, speculation=config.speculation)
        for rank in range(config.num_ranks):
            time = config.time.of(rank) if config.time is not None else None
            device = make(
                config.shape,
                self.oracle,
                block_size=config.block_size,
                rank=rank,
                tp=config.tp,
                cp=config.cp,
                sp=config.sp,
                dp=config.dp,
                servers=config.servers,
                asynchronous=config.async_scheduling,
                hold_s=config.hold_s,
                time=time,
            )
            name = "inference" if config.num_ranks == 1 else f"inference-{rank}"
            self.workers.append(Worker(device, config.worker_texts(rank, folder), name, time))
        for worker in self.workers:
            worker.wait_until_built()
        if config.backend and config.pool_file:
            mempool = importlib.import_module("mindie_llm.text_generator.mempool")
            self._lookup = mempool.MemPool.create_pool(config.backend, config.pool_file)

    def _block_manager(self) -> BlockManager:
        config = self.config
        if config.num_shares > 1:
            return DealtBlockManager(config.num_shares, config.hbm_blocks, config.block_size, caching=config.is_caching)
        return BlockManager(config.hbm_blocks, config.block_size, caching=config.is_caching)

    def _scheduler_kind(self) -> Callable[..., Scheduler]:
        if self.config.speculation:
            kind = DealtSpeculativeScheduler if self.config.num_shares > 1 else SpeculativeScheduler
            return partial(kind, gamma=self.config.speculation.gamma)
        if self.config.chunk_tokens:
            return partial(ChunkedScheduler, chunk_tokens=self.config.chunk_tokens)
        return DealtScheduler if self.config.num_shares > 1 else Scheduler

    def _scheduler(self) -> Scheduler:
        config, make = self.config, self._scheduler_kind()
        groups = [
            make(
                manager,
                config.limits,
                lookup=self._lookup,
                tp=config.tp,
                model_name=config.model_name,
                clock=config.clock,
                asynchronous=config.async_scheduling,
                swapper=Swapper(
                    manager,
                    BlockManager(config.cpu_blocks, config.block_size, caching=config.is_caching),
                    config.max_preempt_count,
                    config.speculation.gamma if config.speculation else 0,
                ),
            )
            for manager in self.managers
        ]
        if len(groups) == 1:
            return groups[0]
        all_groups = LonelySchedulers if config.servers and config.role == "standard" else DataParallelScheduler
        return all_groups(groups, limits=config.limits)

    def _take_forgotten(self) -> list[int]:
        forgotten, self.scheduler.forgotten = self.scheduler.forgotten, []
        return forgotten

    def _finish(self, requests: list[Request]) -> None:
        for request in requests:
            self.done.append(request)
            if self.on_end is not None:
                self.on_end(request)

    def _recover(self) -> None:
        ended = self.scheduler.stop()
        recover(self.workers, asynchronous=self.config.async_scheduling, end_transfers=self._end_transfers)
        for manager in self.managers:
            manager.clear()
        self.recoveries += 1
        self._finish(ended)

    def _end_transfers(self) -> None:
        """Wait for blocks that are on the way; a host alone has none."""

    def _move_blocks(self, batch: Batch) -> None:
        moves = block_moves(batch, self.scheduler, self.config)
        _results([self.workers[rank].move_blocks(part.copies, part.swaps) for part, ranks in moves for rank in ranks])

    def _swap_alone(self) -> None:
        """Somebody made room for others and no batch came of it: the host sends the swaps without one."""
        left = [decision for scheduler in self.scheduler.each for decision in scheduler.swapper.decisions()]
        if left:
            _results([worker.move_blocks([], left) for worker in self.workers])

    def _launches(self, batch: Batch) -> list[Launch]:
        forgotten, is_broken = self._take_forgotten(), self._fails
        self._fails = False

        def make_step(batches: Sequence[Batch], ranks: int) -> Step:
            rows = [row for batch in batches for row in oracle_rows(batch, self.config.shape.eos_every)]
            return Step(next(self._steps), batches[0].is_prefill, rows, ranks, forgotten, is_broken)

        return launches(batch, self.scheduler, self.config, make_step)

    def _run(self, launched: list[Launch]) -> list[tuple[Step, Any]]:
        """Run batches; the output of the first rank of each, and of each group where these have servers."""
        futures: dict[int, tuple[Step, Future[Any]]] = {}
        for launch in launched:
            for rank in launch.ranks:
                self.workers[rank].device.steps.put(launch.step)
        for launch in launched:
            for rank in launch.ranks:  # every rank gets its own metadata: plugins change it
                futures[rank] = launch.step, self.workers[rank].step(launch.metadata(rank))
        outputs = _results([future for _, future in futures.values()])
        apart = self.config.tp if self.config.servers else self.config.num_ranks
        answers = zip(futures.items(), outputs, strict=True)
        return [(step, output) for (rank, (step, _)), output in answers if rank % apart == 0]

    def _take(self, output: Any) -> None:
        self.scheduler.take(*one_by_one(output))

    def _branch(self, step: Step, output: Any) -> None:
        if any(row.num_beams for row in step.rows):
            rows = (output.sequence_ids, output.parent_sequence_ids, output.token_ids.reshape(-1))
            samples = list(zip(*(values.tolist() for values in rows), strict=True))
            self.oracle.branch(step, samples)
            self.scheduler.branch(samples)

    def _check_integrity(self) -> None:
        for manager in self.managers:
            manager.check_integrity()
        for scheduler in self.scheduler.each:
            scheduler.swapper.host.check_integrity()
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
