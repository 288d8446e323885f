"""The nouns two layers share."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

BlockIds: TypeAlias = npt.NDArray[np.int64]
Tokens: TypeAlias = npt.NDArray[np.int64]
Digests: TypeAlias = npt.NDArray[np.uint64]
"""[n, 2]: 128 bits per block that name its tokens and all before them (``core.block_keys.digest_chain``)."""


@dataclass(frozen=True, slots=True)
class Region:
    """One piece of memory that a pool's transport may touch.

    Attributes:
        address: first byte, virtual address.
        size_bytes: length.
        is_device: memory of an NPU, which the processor cannot read.
    """

    address: int
    size_bytes: int
    is_device: bool = False


@dataclass(frozen=True, slots=True)
class Buffers:
    """Where the bytes of n blocks are: every block is the same list of segments.

    Attributes:
        addresses: int64 [n, segments], first byte of each segment of each block.
        sizes: int64 [segments], bytes of a segment, equal for all blocks.
    """

    addresses: npt.NDArray[np.int64]
    sizes: npt.NDArray[np.int64]

    def __len__(self) -> int:
        return len(self.addresses)

    @property
    def block_bytes(self) -> int:
        """Bytes of one block, all segments."""
        return int(self.sizes.sum())

    def take(self, rows: slice | npt.NDArray[np.int64] | npt.NDArray[np.bool_]) -> Buffers:
        """The same segments of some of the blocks."""
        return Buffers(self.addresses[rows], self.sizes)

    def joined(self) -> Buffers:
        """The same bytes in one segment where the segments of every block lie one behind the other; else these."""
        if len(self.sizes) < 2:
            return self
        for rows in (slice(1), slice(None)):  # nearly always decided by the first block
            if not (self.addresses[rows, :-1] + self.sizes[:-1] == self.addresses[rows, 1:]).all():
                return self
        return Buffers(self.addresses[:, :1], np.array([self.block_bytes], dtype=np.int64))

    def head(self, size_bytes: int) -> Buffers:
        """The first bytes of each block's first segment: at most ``size_bytes``, never none."""
        size = min(size_bytes, int(self.sizes[0]))
        return Buffers(self.addresses[:, :1], np.array([size], dtype=np.int64))


@dataclass(slots=True)
class HashedTokens:
    """What of a running sequence was hashed already, so that no token is hashed twice in its life.

    Attributes:
        known: the tokens of its leading full blocks, as they are hashed, and their digests.  Replaced as a
            whole, so the step thread and the spill thread need no lock.
    """

    known: tuple[bytes, Digests] | None = None


@dataclass(frozen=True, slots=True)
class Adapter:
    """A LoRA adapter, as keys know it.

    Attributes:
        root: 16 bytes that name its content; the digest chains of its sequences begin with them.
        extra_hash: the number the host mixes into the hashes of its blocks, from its name.
    """

    root: bytes
    extra_hash: int


@dataclass(frozen=True, slots=True)
class Prompt:
    """A sequence whose computation a batch begins.

    Attributes:
        row: its row in the step's batch.
        sequence_id: the host's id.
        num_tokens: of the prompt, as far as this batch computes it.
        indexes: int64 [n], which blocks of the sequence lie on this rank, counted from its first token.
        block_ids: int64 [n], where.
        computed: leading blocks already on the device.
    """

    row: int
    sequence_id: int
    num_tokens: int
    indexes: BlockIds
    block_ids: BlockIds
    computed: int

    def written(self, reused: int, block_size: int) -> BlockIds:
        """The blocks of this rank that are written when ``reused`` leading blocks are reused.

        A hit that covers the whole prompt computes its last block again (prefix_cache_preprocess.py).
        """
        covers_all = reused > 0 and reused * block_size >= self.num_tokens
        return self.block_ids[self.indexes >= reused - covers_all]


@dataclass(frozen=True, slots=True)
class PoolHit:
    """A new prompt of which the scheduler found more blocks in the pool than on the device.

    Attributes:
        row: its row in the step's batch.
        tokens: int64 [promised * block_size or more], the prompt from token 0; none if it must not be loaded.
        indexes: int64 [n], which of the blocks from ``computed`` up to ``promised`` lie on this rank.
        block_ids: int64 [n], where.
        computed: leading blocks already on the device.
        promised: leading blocks on the device or in the pool (the host's ``remote_computed_blocks``).
        is_own: false for a prompt of another data-parallel rank in the same batch: that one loads it, and
            only the agreement concerns us; tokens and blocks are empty then.
        hashed: where to note the digests.
        adapter: its LoRA adapter.
    """

    row: int
    tokens: Tokens
    indexes: BlockIds
    block_ids: BlockIds
    computed: int
    promised: int
    is_own: bool = True
    hashed: HashedTokens | None = None
    adapter: Adapter | None = None


@dataclass(frozen=True, slots=True)
class Ground:
    """What the blocks held that a prompt found on the device, when what follows was computed with them.

    The host finds them by a hash that can be forged, and that knows an adapter by its name only.

    Attributes:
        known: bool [n], ``digests`` names the content; of the prompt's leading blocks on this rank.
        digests: uint64 [n, 2], valid where ``known``.
        doubtful: bool [n], nobody can tell that it is what the prompt's tokens say.
    """

    known: npt.NDArray[np.bool_]
    digests: Digests
    doubtful: npt.NDArray[np.bool_]

    def bears(self, digests: Digests) -> int:
        """How many of a sequence's leading blocks were computed with nothing but what its tokens say.

        Args:
            digests: uint64 [blocks, 2], what its tokens say, of its blocks on this rank.
        """
        count = min(len(digests), len(self.known))
        differs = (self.digests[:count] != digests[:count]).any(axis=1)
        is_other = self.doubtful[:count] | (self.known[:count] & differs)
        return int(is_other.argmax()) if is_other.any() else len(digests)


@dataclass(frozen=True, slots=True)
class FreedSequence:
    """What a sequence leaves behind.

    Attributes:
        sequence_id: the host's id, unique for the life of the service.
        tokens: int64 [num_full_blocks * block_size], prompt and answer from token 0.
        indexes: int64 [n], which of its full blocks lie on this rank.
        block_ids: int64 [n], where.
        hashed: what was hashed of them when they were loaded.
        adapter: its LoRA adapter.
        ground: what it was computed with; None: it found nothing on the device.
    """

    sequence_id: int
    tokens: Tokens
    indexes: BlockIds
    block_ids: BlockIds
    hashed: HashedTokens | None = None
    adapter: Adapter | None = None
    ground: Ground | None = None
