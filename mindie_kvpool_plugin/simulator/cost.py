"""What a step, a token and a transfer cost on hardware that is not here: arithmetic on published figures, nothing
measured.

**One NPU** (Ascend 910B as in an Atlas 800I A2 of eight).  What is published differs by variant and source: 256 to 376
TFLOPS in half precision, 0.8 to 1.6 TB/s of HBM, 32 or 64 GB.  Taken here: 280 TFLOPS, 560 TOPS in int8, 1.6 TB/s, and
the 200 Gbit/s of one RoCE port per NPU, 25 GB/s, of which 0.8 arrive.  So loading goes at 20 GB/s per NPU, and storing
beside it, too.  KV gets what 0.9 of the HBM leaves beside the weights and 3 or 4 GB of everything else.

**Prefill** of n tokens after c others takes (2 P n + A (n c + n^2 / 2)) / (NPUs x FLOP/s x efficiency) seconds,
where P is the parameters that a token uses and A what attention computes per token and token before it: 4 x layers x
heads x head size, or 2 x layers x heads x (192 + 128) with latent attention.  The efficiency is an assumption: 0.5
for a dense model on one NPU, 0.45 on eight, 0.2 for int8 experts over two servers.  (For DeepSeek-R1 the best that
was published is 6,688 tokens/s per Ascend 910C of two dies, arXiv 2506.12708: 0.33 of their int8 peak.)

**A decode step** reads the weights and the KV of all sequences: (W + KV bytes) / (NPUs x HBM bandwidth x 0.6), and 3
to 8 ms are added for launches and collectives.  Experts are taken to be read all, as a batch of some dozens does.

**A block** has the bytes of one rank's share of it: `kv_bytes` per token.  Each rank loads all of its share.  What
it stores is that divided by the ranks that hold the same bytes, since these share the work (``core.spill.Replica``);
the host's own pooling stores every rank's copy.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

Ints = npt.NDArray[np.int64]

NPU_FLOPS = 280e12
NPU_INT8_OPS = 560e12
HBM_BYTES_PER_S = 1.6e12
HBM_EFFICIENCY = 0.6
LINK_BYTES_PER_S = 0.8 * 25e9
CALL_S = 0.0005
"""Of a put or a get beside its bytes: where the blocks lie, and the round trips (benchmarks: 0.2 to 0.6 ms)."""
LOOKUP_S = 0.0005
"""Of a scheduler's lookup (benchmarks: 0.43 ms for 256 blocks of 8 ranks)."""


@dataclass(frozen=True, slots=True)
class Profile:
    """A model on so many NPUs.

    Attributes:
        name: how the demo is asked for it.
        model: what it stands for, with the hardware.
        source: where its figures come from.
        ranks: NPUs of the instance, one rank each.
        flop_per_token: 2 x parameters that a token uses.
        flop_per_pair: that attention computes per token and token before it.
        flops: of one NPU at the model's precision, times the efficiency.
        weight_bytes: of all ranks.
        step_overhead_s: of a decode step, beside reading memory.
        kv_bytes: of a token, on one rank.
        shards: distinct parts of a block; ranks beyond that hold copies.
        hbm_tokens: tokens of KV that the devices of the instance hold.
        pool_bytes: DRAM that the pool has.
        load: share of the time that computing all prompts may take while the devices still hold all that decodes.
    """

    name: str
    model: str
    source: str
    ranks: int
    flop_per_token: float
    flop_per_pair: float
    flops: float
    weight_bytes: float
    step_overhead_s: float
    kv_bytes: int
    shards: int
    hbm_tokens: int
    pool_bytes: float
    load: float = 0.4

    def prefill_s(self, begins: Ints, counts: Ints) -> float:
        """Seconds to compute a batch of prompts.

        Args:
            begins: int64 [prompts], tokens whose KV is there.
            counts: int64 [prompts], tokens to compute after these.
        """
        pairs = counts * begins + counts * counts / 2
        flop = self.flop_per_token * counts.sum() + self.flop_per_pair * pairs.sum()
        return float(flop) / (self.ranks * self.flops)

    def decode_s(self, lengths: Ints) -> float:
        """Seconds of one decode step.

        Args:
            lengths: int64 [sequences], tokens of each.
        """
        kv_bytes = self.kv_bytes * self.ranks * float(lengths.sum())
        read_s = (self.weight_bytes + kv_bytes) / (self.ranks * HBM_BYTES_PER_S * HBM_EFFICIENCY)
        return read_s + self.step_overhead_s

    def pool_tokens(self, *, is_every_copy: bool = False) -> int:
        """Tokens of KV that the pool holds.

        Args:
            is_every_copy: every rank stores its own, as the host's pooling does.
        """
        return int(self.pool_bytes / (self.kv_bytes * (self.ranks if is_every_copy else self.shards)))


def _dense(layers: int, heads: int, kv_heads: int, head_size: int) -> tuple[int, int]:
    """(FLOP per pair of tokens, bytes of a token's KV in half precision), of the whole model."""
    return 4 * layers * heads * head_size, layers * kv_heads * head_size * 2 * 2


_QWEN_PAIR, _QWEN_KV = _dense(28, 28, 4, 128)
_LLAMA_PAIR, _LLAMA_KV = _dense(80, 64, 8, 128)
_R1_PAIR, _R1_KV = 2 * 61 * 128 * (192 + 128), 61 * (512 + 64) * 2

PROFILES = {
    profile.name: profile
    for profile in (
        Profile(
            "qwen-7b",
            "Qwen2.5-7B, half precision, 1 NPU of 32 GB",
            "Qwen2.5-7B config.json (28 layers, 28 heads, 4 KV heads of 128; 7.6e9 parameters); 280 TFLOPS x 0.5",
            ranks=1,
            flop_per_token=2 * 7.6e9,
            flop_per_pair=_QWEN_PAIR,
            flops=NPU_FLOPS * 0.5,
            weight_bytes=15.2e9,
            step_overhead_s=0.003,
            kv_bytes=_QWEN_KV,
            shards=1,
            hbm_tokens=int((0.9 * 32e9 - 15.2e9 - 3e9) / _QWEN_KV),
            pool_bytes=128e9,
        ),
        Profile(
            "llama-70b",
            "Llama-3.1-70B, half precision, 8 NPUs of 32 GB",
            "Llama-3.1-70B config.json (80 layers, 64 heads, 8 KV heads of 128; 70.6e9 parameters); 280 TFLOPS x 0.45",
            ranks=8,
            flop_per_token=2 * 70.6e9,
            flop_per_pair=_LLAMA_PAIR,
            flops=NPU_FLOPS * 0.45,
            weight_bytes=141.2e9,
            step_overhead_s=0.006,
            kv_bytes=_LLAMA_KV // 8,
            shards=8,
            hbm_tokens=int((0.9 * 32e9 - 141.2e9 / 8 - 3e9) / (_LLAMA_KV // 8)),
            pool_bytes=1000e9,
        ),
        Profile(
            "deepseek-r1",
            "DeepSeek-R1, int8 weights, 16 NPUs of 64 GB on two servers",
            "DeepSeek-R1 config.json (61 layers, 128 heads, latent 512 + 64; 37e9 of 671e9 parameters); 560 TOPS x 0.2",
            ranks=16,
            flop_per_token=2 * 37e9,
            flop_per_pair=_R1_PAIR,
            flops=NPU_INT8_OPS * 0.2,
            weight_bytes=671e9,
            step_overhead_s=0.008,
            kv_bytes=_R1_KV,
            shards=1,
            hbm_tokens=int((0.9 * 64e9 - 671e9 / 16 - 4e9) / _R1_KV),
            pool_bytes=1600e9,
            load=0.15,
        ),
    )
}
"""By name."""


@dataclass(frozen=True, slots=True)
class OwnPart:
    """Memory of a rank that belongs to the pool: what it stores lies there until that is full.

    What it stores afterwards lies elsewhere, stored as fast: it stands for what others have stored.

    Attributes:
        blocks: simulated ones that it takes.
        elsewhere_bytes_per_s: that a rank loads from elsewhere.
        is_told: the pool says which of its blocks lie there, as Mooncake does.
    """

    blocks: int
    elsewhere_bytes_per_s: float
    is_told: bool = True


@dataclass(frozen=True, slots=True)
class Costs:
    """A profile beside a simulated host, one of whose tokens stands for several.

    Attributes:
        profile: the model and its NPUs.
        scale: tokens that a simulated one stands for; a simulated decode step is so many.
        link_bytes_per_s: that a rank loads, and as much that it stores at the same time.
        is_every_copy: every rank stores its own copy.
        own_part: the rank's own part of the pool; None: no such parts.
    """

    profile: Profile
    scale: int = 1
    link_bytes_per_s: float = LINK_BYTES_PER_S
    is_every_copy: bool = False
    own_part: OwnPart | None = None

    def prefill_s(self, lengths: Ints, counts: Ints) -> float:
        """Seconds of a simulated prefill: tokens of the prompts, and how many of them are computed."""
        return self.profile.prefill_s((lengths - counts) * self.scale, counts * self.scale)

    def decode_s(self, lengths: Ints) -> float:
        """Seconds of one real decode step at these simulated lengths."""
        return self.profile.decode_s(lengths * self.scale)

    def get_s(self, blocks: int, block_tokens: int) -> float:
        """Seconds in which a rank's share of so many blocks comes over its link."""
        return blocks * block_tokens * self.scale * self.profile.kv_bytes / self.link_bytes_per_s

    def put_s(self, blocks: int, block_tokens: int) -> float:
        """Seconds in which what a rank stores of so many blocks goes over its link."""
        share = 1.0 if self.is_every_copy else self.profile.shards / self.profile.ranks
        return share * self.get_s(blocks, block_tokens)

    @property
    def elsewhere_is_slower(self) -> float:
        """How many times as long loads take of what lies in no rank's own part."""
        return self.link_bytes_per_s / self.own_part.elsewhere_bytes_per_s if self.own_part is not None else 1.0
