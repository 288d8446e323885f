"""How a simulated host is built, and what its workers are told of it."""

from __future__ import annotations

import json
from dataclasses import dataclass, field, replace
from pathlib import Path

from mindie_kvpool_plugin.simulator.cost_clock import SimulatedTime
from mindie_kvpool_plugin.simulator.device import HOLD_S
from mindie_kvpool_plugin.simulator.model_shape import ModelShape
from mindie_kvpool_plugin.simulator.requests import Limits
from mindie_kvpool_plugin.simulator.speculation import Speculation


@dataclass(frozen=True, slots=True)
class EngineConfig:
    """One simulated host.

    Attributes:
        shape: the model.
        block_size: tokens of a block.
        hbm_blocks: device blocks the scheduler may hand out, per rank.
        tp: tensor parallel ranks, threads of this process.
        dp: data parallel groups with one server: so many times ``tp`` ranks, each group with a memory of its own.
        cp: context parallelism: so many times ``tp`` ranks, and a sequence's blocks are dealt out to them.
        sp: sequence parallelism: 1, or ``tp``, and blocks are dealt out to the ranks of a tensor parallel group too.
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
        max_preempt_count: requests that may be swapped out per turn when blocks run out; 0: they are computed again.
        cpu_blocks: host blocks they are swapped out to.
        speculation: how several tokens per sequence and step are guessed (``simulator.speculation``).
        chunk_tokens: ``prefillChunkSize``, tokens of a prompt in one batch (SplitFuse); 0: prompts are not split.
        servers: a server, with a scheduler, per data parallel group (``distributed_enable``) instead of one for all.
        role: "standard", or of a node that does not work alone: "prefill", "decoder" or "flex".
        node: tells the nodes of a deployment apart.
        time: modelled time of device and hooks; None: computing takes none, and nobody counts.
    """

    shape: ModelShape = field(default_factory=ModelShape)
    block_size: int = 16
    hbm_blocks: int = 128
    tp: int = 1
    dp: int = 1
    cp: int = 1
    sp: int = 1
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
    max_preempt_count: int = 0
    cpu_blocks: int = 0
    chunk_tokens: int = 0
    speculation: Speculation | None = None
    servers: bool = False
    role: str = "standard"
    node: int = 0
    time: SimulatedTime | None = None

    def __post_init__(self) -> None:
        if self.max_preempt_count and not self.cpu_blocks:
            raise ValueError("max_preempt_count needs cpu_blocks")
        if self.time is not None and (self.async_scheduling or self.chunk_tokens or self.speculation):
            raise ValueError("time is modelled for synchronous scheduling, without chunk_tokens and speculation")
        if self.chunk_tokens and self.async_write:
            raise ValueError("chunk_tokens does not go with async_write, as in the host")
        if self.sp not in {1, self.tp} or (self.sp > 1 and not self.shape.mla):
            raise ValueError("sp is 1 or tp, and above 1 all ranks need the same cache: an MLA shape")
        if self.num_shares > 1 and (self.chunk_tokens or self.max_preempt_count):
            raise ValueError("cp and sp go with neither chunk_tokens nor swapping, as in the host")
        if self.dp > 1 and (self.cp > 1 or self.chunk_tokens or (self.max_preempt_count and not self.servers)):
            raise ValueError("dp goes with neither cp nor chunk_tokens, and with one scheduler not with swapping")
        if self.speculation and self.chunk_tokens:
            raise ValueError("speculation does not go with chunk_tokens, as in the host")
        if self.is_parallel_decoding and self.num_shares > 1:
            raise ValueError("la and memory_decoding do not go with cp and sp, as in the host")
        if self.servers and (self.dp == 1 or self.async_scheduling):
            raise ValueError("servers are simulated for dp above 1, synchronously")
        if self.servers and self.role not in {"standard", "prefill"}:
            raise ValueError("servers are simulated on standard and prefill nodes")
        if self.is_parallel_decoding and (self.async_scheduling or self.is_shared_by_groups):
            raise ValueError("la and memory_decoding go neither with async_scheduling nor with dp and one scheduler")
        if self.block_size % (2 * self.cp):
            raise ValueError("block_size must be a multiple of 2 * cp: the host pads prompts to it")

    @property
    def is_parallel_decoding(self) -> bool:
        """Whether something else than a draft layer guesses."""
        return self.speculation is not None and not self.speculation.draft_layers

    @property
    def is_shared_by_groups(self) -> bool:
        """Whether one scheduler serves several data parallel groups."""
        return self.dp > 1 and not self.servers

    @property
    def num_shares(self) -> int:
        """Ranks that a sequence's blocks are dealt out to."""
        return self.cp * self.sp

    def cluster(self, share: int) -> int:
        """How another node names a rank it pulls from; of several that share a sequence's blocks each has a name."""
        return self.node if self.num_shares == 1 else self.node * 100_000 + share // self.sp * 100 + share % self.sp

    @property
    def num_ranks(self) -> int:
        """Workers."""
        return self.tp * self.cp * self.dp

    @property
    def num_npu_blocks(self) -> int:
        """Blocks of the cache tensors: one more than handed out, for dummy batches."""
        return self.hbm_blocks + 1

    @property
    def is_caching(self) -> bool:
        """Whether equal prefixes share blocks."""
        return "prefix_cache" in self.plugins

    @property
    def plugin_type(self) -> str:
        """The workers' ``plugin_type``."""
        more = ["splitfuse"] if self.chunk_tokens else [self.speculation.plugin] if self.speculation else []
        return ",".join(name for name in (self.plugins, *more) if name)

    @property
    def gamma(self) -> int:
        """``speculationGamma``; 0: nothing is guessed."""
        return self.speculation.gamma if self.speculation else 0

    @property
    def max_table_tokens(self) -> int:
        """Tokens that a sequence may have blocks for."""
        return self.max_seq_len + (self.speculation.max_ahead(self.async_scheduling) if self.speculation else 0)

    @property
    def cache_shape(self) -> ModelShape:
        """The cache tensors: the model's, and those of a draft layer."""
        more = self.speculation.draft_layers if self.speculation else 0
        return replace(self.shape, num_layers=self.shape.num_layers + more)

    @property
    def _params(self) -> dict[str, int]:
        return dict(self.speculation.params) if self.speculation else {}

    def worker_texts(self, rank: int, weights: Path) -> dict[str, str]:
        """The host's model configuration, all texts, for the worker of a rank."""
        texts = {
            "backend_type": "atb",
            "block_size": self.block_size,
            "max_seq_len": self.max_seq_len,
            "max_iter_times": self.max_seq_len,
            "max_prefill_tokens": self.limits.max_prefill_tokens,
            "num_npu_blocks": self.num_npu_blocks,
            "model_id": weights,
            "model_name": self.model_name,
            "npu_device_id": rank,
            "local_rank": rank,
            "rank": rank,
            "role": self.role,
            "local_instance_id": self.cluster(rank) if self.num_shares > 1 else self.node,
            "world_size": self.num_ranks,
            "tp": self.tp,
            "dp": self.dp,
            "distributed_enable": "true" if self.servers else "false",
            "cp": self.cp,
            "sp": self.sp,
            "kv_pool_backend": self.backend,
            "kv_pool_config_path": self.pool_file,
            "kv_pool_async_write": "true" if self.async_write else "false",
            "plugin_params": json.dumps({"plugin_type": self.plugin_type, **self._params}) if self.plugin_type else "",
            "speculation_gamma": self.gamma,
        }
        return {key: str(value) for key, value in texts.items()}
