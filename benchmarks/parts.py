"""One rank's worker without a host: the plugin's own objects around plain arrays."""

import types

import numpy as np
import torch

from mindie_kvpool_plugin import assemble
from mindie_kvpool_plugin.core.block_keys import BlockKeys
from mindie_kvpool_plugin.core.spill import Replica
from mindie_kvpool_plugin.host.adapters import Adapters
from mindie_kvpool_plugin.host.agreement import Alone
from mindie_kvpool_plugin.host.block_share import BlockShare
from mindie_kvpool_plugin.host.device_memory import CacheLayout, DirectMemory
from mindie_kvpool_plugin.host.in_flight import InFlight
from mindie_kvpool_plugin.host.plugin import KvPoolPlugin
from mindie_kvpool_plugin.host.sequence_table import SequenceTable
from mindie_kvpool_plugin.host.worker import PoolWorker
from mindie_kvpool_plugin.observability.prefill_clock import PrefillClock
from mindie_kvpool_plugin.options.records import KvPoolOptions
from mindie_kvpool_plugin.pools.base import PoolBackend

BLOCK_SIZE = 128


class NoMovePool(PoolBackend):
    """Answers at once and moves nothing: what is left is the plugin's own work."""

    put_proof_s = 10.0

    def __init__(self, answer=True, seconds=0.0, pause=None):
        self._answer, self._seconds, self._pause = answer, seconds, pause

    def _answers(self, count):
        if self._pause is not None:
            self._pause(self._seconds)
        return [self._answer] * count

    def exists(self, keys):
        return self._answers(len(keys))

    def put(self, keys, buffers, groups=None):
        return self._answers(len(keys))

    def get(self, keys, buffers):
        return self._answers(len(keys))

    def register(self, regions):
        pass

    def close(self):
        pass


class Contexts:
    """The host's context store, as far as it is read."""

    def __init__(self, handles, tokens):
        self.ids = np.random.default_rng(0).integers(1, 150_000, (handles, tokens))
        self.lengths = np.zeros(handles, dtype=np.int64)

    def get_seq_lens(self, handle):
        return self.lengths[handle]

    def get_all_input_ids(self, handle):
        return self.ids[handle]


def cache(layers, segments, num_blocks, segment_bytes=64):
    """A small cache of the given shape: addresses do not depend on what a block holds."""
    return [
        tuple(torch.zeros((num_blocks, segment_bytes), dtype=torch.int8) for _ in range(segments))
        for _ in range(layers)
    ]


def plugin(pool, contexts, tensors, *, async_write, is_async=False):
    """A plugin that serves, built past the host."""
    layout = CacheLayout(tensors)
    memory = DirectMemory(layout, 0)
    sequences = SequenceTable(contexts, BLOCK_SIZE)
    walks = assemble.build_walks(
        pool,
        KvPoolOptions(queue_capacity_blocks=1 << 20),
        memory,
        memory.regions,
        BlockKeys("default", "DeepSeek-R1-W8A8", "f" * 32, "0of1", BLOCK_SIZE),
        Replica(),
        running=sequences.look,
        device_idle=lambda: True,
        agree=lambda lengths: lengths,
        async_write=async_write,
    )
    # as the host builds it for its warm-up, without a pool
    bare, warm_up = types.SimpleNamespace(kv_pool_backend="", kv_pool_config_path=""), types.SimpleNamespace()
    warm_up.num_npu_blocks = 1
    made = KvPoolPlugin(bare, warm_up, contexts, None)
    made.counters = walks.counters
    made._worker = PoolWorker(
        walks=walks,
        sequences=sequences,
        adapters=Adapters(bare),
        share=BlockShare(),
        in_flight=InFlight(),
        device_idle=lambda: True,
        agreement=Alone(),
        told=None,
        layout=layout,
        block_size=BLOCK_SIZE,
        dp_rank=0,
        is_async=is_async,
        why=None,
        prefill_clock=PrefillClock(walks.counters),
    )
    return made


def batch(sequence_ids, tables, *, tokens=None, lengths=None, computed=None, promised=None):
    """The host's InputMetadata, as far as it is read."""
    return types.SimpleNamespace(
        is_prefill=tokens is not None,
        is_dummy_batch=False,
        all_sequence_ids=np.asarray(sequence_ids, dtype=np.int64),
        batch_sequence_ids=[np.array([sequence_id]) for sequence_id in sequence_ids],
        batch_block_tables=tables,
        batch_dp_rank_ids=None,
        batch_is_prefill=None,
        batch_use_beam_search=None,
        batch_seq_len=lengths,
        input_ids=tokens,
        computed_blocks=computed,
        remote_computed_blocks=promised,
        adapter_ids=None,
        seq_lens=None,
    )


def prefill(made, sequence_id, handle, contexts, block_ids, tokens, promised=None):
    """Run one prompt's hook."""
    table = np.asarray(block_ids, dtype=np.int32)[None, :]
    contexts.lengths[handle] = tokens
    metadata = batch(
        [sequence_id],
        table,
        tokens=contexts.ids[handle, :tokens],
        lengths=np.array([tokens]),
        computed=None if promised is None else np.array([0]),
        promised=None if promised is None else np.array([promised]),
    )
    made.model_inputs_update(None, metadata, None, np.array([handle], dtype=np.int32), None)
    return metadata
