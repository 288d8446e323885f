"""What ranks of a prefill node with a scheduler per data-parallel rank are told of each other, kept true.

Such a rank runs a batch of its own, or a dummy one, in the same steps as all others.  Before a step the schedulers
tell each other how many tokens every prompt computes, pool hits subtracted (``seq_lens``; post_scheduler.cpp,
SyncSeqLenList), and the ranks pad their collectives by it.  So what does not arrive concerns ranks that run another
batch: in every prefill step, with hits or without, all ranks agree on how many blocks each prompt of every group is
short of.

Nothing can take the place of that agreement.  The announced lengths hold only where all hits arrived, which nobody
knows of the others, and ranks that go on with different lengths hang or read each other's tokens.  So a step without
it ends with an error on every rank, which ends the service, just as the host's schedulers end it when their own group
fails.  To keep that to ranks that are gone, a late one is waited for: the host's collectives, which come next, would
wait for it as well.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from mindie_kvpool_plugin.errors import HostCompatError
from mindie_kvpool_plugin.host import step_view
from mindie_kvpool_plugin.host.agreement import Agreement
from mindie_kvpool_plugin.observability.log import RateLimited

Lengths = npt.NDArray[np.int64]

LATE_RANK_TIMEOUT_S = 300.0
"""Longer than everything of ours that holds a rank up in a step (a stuck transfer and a stuck put take 60 s each), and
much shorter than the half hour that the host's collectives on the device wait by default."""

_NO_BLOCKS = np.zeros(0, dtype=np.int64)


class ToldLengths:
    """One rank's part.  Step thread.

    Args:
        agreement: with all ranks of all groups.
        dp_rank: this rank's group.
        num_groups: data-parallel ranks.
        block_size: tokens per block.
    """

    def __init__(self, agreement: Agreement, dp_rank: int, num_groups: int, block_size: int) -> None:
        self._agreement = agreement
        self._dp_rank, self._num_groups, self._block_size = dp_rank, num_groups, block_size
        self._told: list[list[int]] = []
        self._missing: Lengths | None = None  # blocks, negative, per prompt of every group
        self._rows = self._computed = self._promised = _NO_BLOCKS
        self._log = RateLimited()

    def begin(self, metadata: Any) -> None:
        """A batch arrives; note what everybody was told.

        Args:
            metadata: the host's InputMetadata.

        Raises:
            HostCompatError: the host announced another number of prompts than this rank is to compute.
        """
        self._told, self._missing = [], None
        self._rows, computed, promised = step_view.promises(metadata) if metadata.is_prefill else (_NO_BLOCKS,) * 3
        self._computed, self._promised = computed[self._rows], promised[self._rows]
        if not metadata.is_prefill:
            return
        if len(metadata.seq_lens or []) != self._num_groups:
            self._log.warning(
                f"the host announced the lengths of {len(metadata.seq_lens or [])} data-parallel ranks, there are "
                f"{self._num_groups}; pool hits are recomputed"
            )
            return
        announced = len(metadata.seq_lens[self._dp_rank])
        present = 0 if metadata.is_dummy_batch else len(metadata.batch_seq_len)
        if announced != present:
            raise HostCompatError(
                f"data-parallel rank {self._dp_rank} got {present} prompts, and the host announced {announced} of it "
                "(seq_lens); the other ranks would wait for tokens that do not come"
            )
        self._told = [list(lengths) for lengths in metadata.seq_lens]

    def minimum(self, arrived: Lengths) -> Lengths:
        """The smallest of every hit's length over the ranks that run this batch; all others hear what is missing.

        Args:
            arrived: int64 [hits], leading blocks of each hit of this rank's batch.

        Returns:
            int64 [hits]; what is on the device anyway when nobody could be told.
        """
        if not self._told:
            return self._computed
        missing = self._agree(np.maximum(arrived, self._computed) - self._promised)
        return self._computed if self._agreement.broken else self._promised + missing[self._own_rows()]

    def finish(self, metadata: Any, model_inputs: Any) -> None:
        """Before the batch runs: take part if no hit made this rank do so, and give the host everybody's lengths.

        A prompt that is cached as a whole is announced with no tokens, but its last block is computed again
        (prefix_cache_preprocess.py); that is put right, too.

        Raises:
            HostCompatError: the ranks could not agree.
        """
        if not self._told:
            return
        missing = self._agree(np.zeros(len(self._rows), dtype=np.int64)) if self._missing is None else self._missing
        if self._agreement.broken:
            raise HostCompatError(
                f"data-parallel rank {self._dp_rank} could not hear how many tokens the others compute in this step; "
                "a rank is gone, hangs, or cannot be reached at kv_pool.agreement: restart the prefill node's servers"
            )
        lengths = np.array([length for group in self._told for length in group], dtype=np.int64)
        lengths -= missing * self._block_size
        lengths[lengths == 0] = self._block_size
        ends = np.cumsum([len(group) for group in self._told])
        metadata.seq_lens = [part.tolist() for part in np.split(lengths, ends[:-1])]
        model_inputs.seq_lens = metadata.seq_lens

    def _agree(self, missing: Lengths) -> Lengths:
        everybodys = np.zeros(sum(len(group) for group in self._told), dtype=np.int64)
        everybodys[self._own_rows()] = missing
        self._missing = self._agreement.minimum(everybodys)
        return self._missing

    def _own_rows(self) -> Lengths:
        own: Lengths = self._rows + sum(len(group) for group in self._told[: self._dp_rank])
        return own
