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
    """

    address: int
    size_bytes: int


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
class PoolHit:
    """A new prompt of which the scheduler found more blocks in the pool than on the device.

    Attributes:
        row: its row in the step's batch.
        tokens: int64 [promised * block_size or more], the prompt from token 0.
        block_ids: int64 [blocks], the sequence's device blocks.
        computed: leading blocks already on the device.
        promised: leading blocks on the device or in the pool (the host's ``remote_computed_blocks``).
        is_own: false for a prompt of another data-parallel rank in the same batch: that one loads it, and
            only the agreement concerns us; tokens and block ids are empty then.
        hashed: where to note the digests.
    """

    row: int
    tokens: Tokens
    block_ids: BlockIds
    computed: int
    promised: int
    is_own: bool = True
    hashed: HashedTokens | None = None


@dataclass(frozen=True, slots=True)
class FreedSequence:
    """What a sequence leaves behind.

    Attributes:
        sequence_id: the host's id, unique for the life of the service.
        tokens: int64 [num_full_blocks * block_size], prompt and answer from token 0.
        block_ids: int64 [num_full_blocks], its leading full blocks.
        hashed: what was hashed of them when they were loaded.
    """

    sequence_id: int
    tokens: Tokens
    block_ids: BlockIds
    hashed: HashedTokens | None = None
