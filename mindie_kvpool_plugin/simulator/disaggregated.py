"""A deployment of two nodes: one computes prompts, the other pulls their blocks and computes the answers.

What the host's coordinator does between them: a prompt whose first token is known goes to the other node
(PUBLISH_KV_COMPLETE), its blocks are released once pulled (KV_RELEASE), and a request whose pull failed or that had to
make room is sent to a prefill node again.  ``Disaggregated`` is to a client what ``Engine`` is.

Nodes in role flex do both for each other, and serve every third request alone.  With ``switch_every`` they have fixed
roles instead, and swap them through the host's ``switch_role`` when nothing is under way.
"""

from __future__ import annotations

import itertools
from collections import deque
from collections.abc import Callable, Sequence
from functools import partial
from types import TracebackType

from mindie_kvpool_plugin.simulator.block_manager import UNKNOWN_TOKEN, OutOfBlocksError
from mindie_kvpool_plugin.simulator.dealt_out import DealtTable
from mindie_kvpool_plugin.simulator.engine import EngineConfig
from mindie_kvpool_plugin.simulator.flex_scheduler import FlexScheduler
from mindie_kvpool_plugin.simulator.node import Attempt, Node
from mindie_kvpool_plugin.simulator.requests import Request
from mindie_kvpool_plugin.simulator.scheduler import Scheduler
from mindie_kvpool_plugin.simulator.two_nodes import TwoNodes
from mindie_kvpool_plugin.simulator.worker import Worker

IDLE_ROUNDS = 400
"""So many rounds in which nothing happens: the nodes wait for each other's blocks."""


class Disaggregated:
    """Two simulated hosts that share a pool.

    Args:
        config: of the nodes.  Asynchronous scheduling (the host's documents say so) and swapping are for the decode
            node alone, chunks, context and sequence parallelism for the prefill node.
        two: how they work together.

    Attributes:
        config: likewise.
        nodes: the prefill and the decode node, or two flex nodes.
        oracle: what went wrong so far.
        done: requests that ended, in order.
        on_end: called with every request that ended.
        pulled, failed_pulls, recomputed, switches: requests whose blocks came, or did not, or that had to make room
            while they decoded; times the nodes swapped roles.
    """

    copied_blocks = moved_beams = 0

    def __init__(self, config: EngineConfig, two: TwoNodes) -> None:
        two.judge(config)
        self.config = config
        self.done: list[Request] = []
        self.on_end: Callable[[Request], None] | None = None
        self.pulled = self.failed_pulls = self.recomputed = self.switches = 0
        self.nodes: list[Node] = []
        self._two = two
        self._ids = itertools.count(1)
        self._current: dict[int, Attempt] = {}
        self._said: dict[int, list[int]] = {}  # tokens of attempts that were given up
        self._held: deque[Request] = deque()
        self._placed = self._idle_rounds = self._first = 0
        try:
            self._start()
        except BaseException:
            self.close()
            raise
        self.oracle = self.nodes[0].oracle

    def __enter__(self) -> Disaggregated:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    @property
    def workers(self) -> list[Worker]:
        """The ranks of both nodes."""
        return [worker for node in self.nodes for worker in node.workers]

    @property
    def idle(self) -> bool:
        """Nothing waits, runs, or has blocks to give back."""
        return not self._held and all(node.idle for node in self.nodes)

    @property
    def recoveries(self) -> int:
        """Device faults that were repaired."""
        return sum(node.recoveries for node in self.nodes)

    @property
    def swapped_blocks(self) -> int:
        """Blocks that came back from host memory."""
        return sum(node.swapped_blocks for node in self.nodes)

    @property
    def preemptions(self) -> int:
        """Times a request had to make room."""
        return sum(node.preemptions for node in self.nodes)

    @property
    def computed_tokens(self) -> int:
        """Tokens computed in prefills."""
        return sum(node.computed_tokens for node in self.nodes)

    @property
    def leaked_blocks(self) -> int:
        """Blocks somebody still holds; 0 when nothing is under way."""
        return sum(node.leaked_blocks for node in self.nodes)

    @property
    def pulled_blocks(self) -> int:
        """Blocks copied from node to node, all ranks together."""
        return sum(wire.blocks for node in self.nodes for wire in node.transfers.wires)

    @property
    def refused_keys(self) -> int:
        """Keys that a scheduler did not ask the pool for, because it was left alone."""
        return sum(node.refused_keys for node in self.nodes)

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

        Raises:
            ValueError: it does not fit into ``max_seq_len``, or asks for several answers.
        """
        if max(n, best_of) > 1 or beams:
            raise ValueError(
                "the host takes no n, best_of and beams where prompts and answers are computed on two nodes"
            )
        if len(prompt) + max_tokens > self.config.max_seq_len:
            raise ValueError(f"{len(prompt)} prompt and {max_tokens} answer tokens exceed {self.config.max_seq_len}")
        front = Request(next(self._ids), [int(token) for token in prompt], max_tokens, adapter)
        self._said[front.sequence_id] = []
        if self._held or self._wants_switch:
            self._held.append(front)
        else:
            self._place(front)
        return front

    def abort(self, front: Request) -> None:
        """The client went away: each node ends what it does for the request."""
        attempt = self._current.get(front.sequence_id)
        if attempt is None:
            if front in self._held:
                self._held.remove(front)
                self._end(front, [], is_aborted=True)
            return
        if attempt.prefill is not None and attempt.state == "waiting":
            self._release(attempt.prefill)
        self._node(attempt).scheduler.abort(attempt)

    def step(self) -> bool:
        """One turn of both nodes; False when nothing happened.

        Raises:
            OutOfBlocksError: they wait for each other.
        """
        if self._wants_switch and all(node.idle for node in self.nodes):
            self._switch()
        worked = False
        for node in self.nodes:
            worked |= node.step()
            for attempt in node.published():
                self._publish(attempt)
            for attempt in node.recomputed():
                self.recomputed += 1
                self._again(attempt, len(attempt.answer) + 1, said=attempt.prompt[-1:] + attempt.answer)
        self._idle_rounds = 0 if worked or self.idle else self._idle_rounds + 1
        if self._idle_rounds > IDLE_ROUNDS:
            raise OutOfBlocksError("the nodes wait for each other: give them more device blocks")
        return worked

    def run(self) -> None:
        """Step until nothing is left."""
        while self.step() or not self.idle:
            pass

    def drop_hbm(self) -> None:
        """Forget every cached block of both nodes.  Only when idle."""
        for node in self.nodes:
            node.drop_hbm()

    def fail_device(self) -> None:
        """The decode node's next batch fails, which ends its requests; then its device is repaired."""
        self.nodes[1].fail_device()

    def close(self) -> None:
        """End all threads."""
        for node in self.nodes:
            node.close()

    # -- construction ------------------------------------------------------------------------------------

    def _start(self) -> None:
        two = self._two
        overlaps = two.roles == "separate" or two.overlaps_flex or two.switch_every > 0
        for seed, config in enumerate(two.configurations(self.config)):
            oracle = self.nodes[0].oracle if self.nodes else None
            self.nodes.append(Node(config, oracle, overlaps=overlaps, faults=two.faults, seed=seed))
        first, second = self.nodes
        second.transfers.link(first.config)
        if two.roles == "flex":
            first.transfers.link(second.config)
        for node in self.nodes:
            node.on_end = self._ended
            node.on_pulled = self._pulled

    # -- where work goes ---------------------------------------------------------------------------------

    @property
    def _wants_switch(self) -> bool:
        return self._two.switch_every > 0 and self._placed >= self._two.switch_every

    def _switch(self) -> None:
        """The nodes change places; what was held back meanwhile begins."""
        self.switches += 1
        self._first = 1 - self._first
        for index, node in enumerate(self.nodes):
            role = "prefill" if index == self._first else "decoder"
            for worker in node.workers:
                worker.call(partial(worker.generator.switch_role, role)).result()
        self._placed = 0
        for _ in range(len(self._held)):
            self._place(self._held.popleft())

    def _place(self, front: Request) -> None:
        self._placed += 1
        is_flex = self._two.roles == "flex" and not self._two.switch_every
        index = (
            self._placed // 3 % 2 if is_flex and self._placed % 3 == 0 else self._placed % 2 if is_flex else self._first
        )
        scheduler = self.nodes[index].scheduler
        if is_flex and self._placed % 3 == 0 and isinstance(scheduler, FlexScheduler):
            self._begin(front, front.prompt, front.max_tokens, self.nodes[index], scheduler.local)
        else:
            self._prefill(front, front.prompt, front.max_tokens, self.nodes[index])

    def _prefill(self, front: Request, prompt: list[int], max_tokens: int, node: Node) -> None:
        if node.prefills is None:
            raise RuntimeError(f"node {node.config.node} does not prefill")
        self._begin(front, prompt, max_tokens, node, node.prefills)

    def _begin(self, front: Request, prompt: list[int], max_tokens: int, node: Node, scheduler: Scheduler) -> None:
        attempt = Attempt(next(self._ids), prompt, max_tokens, front.adapter, front=front, node=node.config.node)
        self._current[front.sequence_id] = attempt
        scheduler.submit(attempt)

    def _publish(self, prefill: Attempt) -> None:
        """The first token is known: the other node goes on."""
        node = self._other(prefill)
        if node.decodes is None:
            raise RuntimeError(f"node {node.config.node} does not decode")
        attempt = Attempt(
            next(self._ids),
            prefill.prompt + prefill.answer,
            prefill.max_tokens,
            prefill.adapter,
            front=prefill.front,
            node=node.config.node,
            prefill=prefill,
            places=prefill.blocks.places_by_turns() if isinstance(prefill.blocks, DealtTable) else None,
        )
        self.oracle.hand_over(prefill.sequence_id, attempt.sequence_id)
        self._current[prefill.front.sequence_id] = attempt
        node.decodes.submit(attempt)

    def _again(self, attempt: Attempt, done: int, said: list[int]) -> None:
        """Back to where the prompt came from, with what is known by now."""
        prefill = attempt.prefill
        if prefill is None:
            raise RuntimeError(f"request {attempt.sequence_id} is no decode")
        self._said[attempt.front.sequence_id] += said
        prompt = prefill.prompt + said
        self._prefill(attempt.front, prompt, prefill.max_tokens - done, self._node(prefill))

    # -- what the nodes report ---------------------------------------------------------------------------

    def _pulled(self, attempt: Attempt, is_fine: bool) -> None:
        if attempt.prefill is not None:
            self._release(attempt.prefill)
        self.pulled += is_fine
        self.failed_pulls += not is_fine
        if not is_fine and attempt.state != "aborted":
            self._again(attempt, 0, said=[])

    def _ended(self, request: Request) -> None:
        if not isinstance(request, Attempt):
            return
        attempt, front = request, request.front
        front.hbm_blocks += attempt.hbm_blocks
        front.pool_blocks += attempt.pool_blocks
        front.prompt_tokens += attempt.prompt_tokens
        if self._current.get(front.sequence_id) is not attempt:
            return  # a prefill whose blocks were released
        prefill, is_aborted = attempt.prefill, attempt.state == "aborted"
        answer = [token for token in attempt.answer if token != UNKNOWN_TOKEN]
        if prefill is not None:
            if is_aborted:
                self._release(prefill)
            else:
                # the host counts a token for every request pulled together, so answers end early
                front.max_tokens -= max(0, min(attempt.pulled_with - 1, prefill.max_tokens - 2))
            answer = prefill.answer + answer
        self._end(front, answer, is_aborted=is_aborted)

    def _end(self, front: Request, answer: list[int], *, is_aborted: bool) -> None:
        self._current.pop(front.sequence_id, None)
        front.answer = self._said.pop(front.sequence_id) + answer
        front.state = "aborted" if is_aborted else "finished"
        front.is_over = True
        self.done.append(front)
        if self.on_end is not None:
            self.on_end(front)

    def _release(self, prefill: Attempt) -> None:
        scheduler = self._node(prefill).prefills
        if scheduler is not None:
            scheduler.release(prefill)

    def _node(self, attempt: Attempt) -> Node:
        return next(node for node in self.nodes if node.config.node == attempt.node)

    def _other(self, attempt: Attempt) -> Node:
        return next(node for node in self.nodes if node.config.node != attempt.node)
