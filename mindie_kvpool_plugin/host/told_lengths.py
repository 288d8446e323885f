"""What ranks of a prefill node with a scheduler per data-parallel rank are told of each other, kept true.

Such a rank runs a batch of its own, or a dummy one, in the same steps as all others.  Before a step the schedulers
tell each other how many tokens every prompt computes, pool hits subtracted (``seq_lens``; post_scheduler.cpp,
SyncSeqLenList), and the ranks pad their collectives by it.  So what does not arrive concerns ranks that run another
batch: in every prefill step, with hits or without, all ranks agree on how many tokens each prompt of every group
computes.  What the schedulers announced serves for the number of prompts only.

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
from mindie_kvpool_plugin.host.agreement import Agreement, Carrying
from mindie_kvpool_plugin.observability.log import RateLimited

Lengths = npt.NDArray[np.int64]

LATE_RANK_TIMEOUT_S = 300.0
"""Longer than everything of ours that holds a rank up in a step (a stuck transfer and a stuck put take 60 s each), and
much shorter than the half hour that the host's collectives on the device wait by default."""

_NONE = np.zeros(0, dtype=np.int64)


class ToldLengths:
    """One rank's part.  Step thread.

    Args:
        agreement: with all ranks of all groups.
        dp_rank: this rank's group.
        num_groups: data-parallel ranks.
        block_size: tokens per block.
    """

    def __init__(self, agreement: Agreement | Carrying, dp_rank: int, num_groups: int, block_size: int) -> None:
        self._agreement = agreement
        self._dp_rank, self._num_groups, self._block_size = dp_rank, num_groups, block_size
        self._sizes: list[int] = []  # prompts of every group; none when nobody is told
        self._agreed: Lengths | None = None  # tokens of every group's prompts
        self._hits = self._tokens = self._computed = self._promised = _NONE
        self._log = RateLimited()

    def begin(self, metadata: Any) -> None:
        """A batch arrives; note what everybody was told of.

        Args:
            metadata: the host's InputMetadata.

        Raises:
            HostCompatError: the host announced another number of prompts than this rank is to compute.
        """
        self._sizes, self._agreed = [], None
        self._hits = self._tokens = self._computed = self._promised = _NONE
        if not metadata.is_prefill:
            return
        if not metadata.is_dummy_batch:
            self._hits, self._computed, self._promised = step_view.promises(metadata)
            self._tokens = np.asarray(metadata.batch_seq_len, dtype=np.int64)
        sizes = [len(lengths) for lengths in metadata.seq_lens or []]
        if len(sizes) != self._num_groups:
            self._log.warning(
                f"the host announced the lengths of {len(sizes)} data-parallel ranks, there are {self._num_groups}; "
                "pool hits are recomputed"
            )
        elif sizes[self._dp_rank] != len(self._tokens):
            raise HostCompatError(
                f"data-parallel rank {self._dp_rank} got {len(self._tokens)} prompts, and the host announced "
                f"{sizes[self._dp_rank]} of it (seq_lens); the other ranks would wait for tokens that do not come"
            )
        else:
            self._sizes = sizes

    def minimum(self, arrived: Lengths) -> Lengths:
        """The smallest of every hit's length over the ranks that run this batch; all others hear what it leaves.

        Args:
            arrived: int64 [hits], leading blocks of each hit of this rank's batch.

        Returns:
            int64 [hits]; what is on the device anyway when nobody could be told.
        """
        computed = self._computed[self._hits]
        if not self._sizes:
            return computed
        reused = self._promised.copy()
        reused[self._hits] = np.maximum(arrived, computed)
        own = self._agree(reused)[self._own()]
        return computed if self._agreement.broken else ((self._tokens - own) // self._block_size)[self._hits]

    def finish(self, metadata: Any, model_inputs: Any) -> None:
        """Before the batch runs: take part if no hit made this rank do so, and give the host everybody's lengths.

        A prompt that is cached as a whole is announced with no tokens, but its last block is computed again
        (prefix_cache_preprocess.py); that is put right, too.

        Raises:
            HostCompatError: the ranks could not agree.
        """
        if not self._sizes:
            return
        agreed = self._agree(self._promised) if self._agreed is None else self._agreed
        if self._agreement.broken:
            raise HostCompatError(
                f"data-parallel rank {self._dp_rank} could not hear how many tokens the others compute in this step; "
                "a rank is gone, hangs, or cannot be reached at kv_pool.agreement: restart the prefill node's servers"
            )
        lengths = np.where(agreed == 0, self._block_size, agreed)
        metadata.seq_lens = [part.tolist() for part in np.split(lengths, np.cumsum(self._sizes)[:-1])]
        model_inputs.seq_lens = metadata.seq_lens

    def _agree(self, reused: Lengths) -> Lengths:
        """Tokens of every group's prompts; what nobody but their own ranks knows is the most of these."""
        fewest = np.zeros(sum(self._sizes), dtype=np.int64)
        fewest[self._own()] = reused * self._block_size - self._tokens
        self._agreed = -self._agreement.minimum(fewest)
        return self._agreed

    def _own(self) -> slice:
        first = sum(self._sizes[: self._dp_rank])
        return slice(first, first + len(self._tokens))
