"""prefix_cache: a step computes only what ``remote_computed_blocks`` does not promise."""

import dataclasses
import threading

import numpy as np

from mindie_kvpool_plugin.simulator.own_pooling import OwnBlocks
from mindie_llm.text_generator.plugins.plugin import Plugin
from mindie_llm.text_generator.plugins.plugin_manager import MemPoolType


class PrefixCachePlugin(Plugin):
    def __init__(self, generator_backend, kvcache_settings, infer_context, plugin_data_param, **kwargs):
        super().__init__()
        self.generator_backend = generator_backend
        self.kvcache_settings = kvcache_settings
        self.infer_context = infer_context
        self.plugin_data_param = plugin_data_param
        self.block_size = infer_context.block_size
        self.mempool_type = MemPoolType.DISABLED
        self.m_store = None
        if len(generator_backend.kv_pool_backend) != 0 and len(generator_backend.kv_pool_config_path) != 0:
            self._open_pool()

    def _open_pool(self):
        from mindie_llm.text_generator.mempool import MemPool  # noqa: PLC0415 - only where a pool is configured

        backend = self.generator_backend
        self.mempool_type = MemPoolType.ASYNC_WRITE if backend.kv_pool_async_write else MemPoolType.SYNC_WRITE
        self.m_store = MemPool.create_pool(
            backend=backend.kv_pool_backend,
            config_path=backend.kv_pool_config_path,
            role="worker",
            device_id=backend.npu_device_id,
            kv_caches=backend.cache_pool.npu_cache,
        )
        self.save_timeout = 10
        self.save_event = threading.Event()
        self.save_event.set()
        self.own_blocks = None
        if getattr(self.m_store, "client", None) is not None:
            name = f"{backend.mapping.attn_tp.rank}_{backend.mapping.attn_tp.group_size}_{backend.model_name}"
            self.own_blocks = OwnBlocks(backend.cache_pool.npu_cache, name, self.block_size)

    def model_inputs_update(self, model_inputs, input_metadata, sampling_metadata, cache_ids, input_len_mask, **kwargs):
        has_hits = input_metadata.computed_blocks is not None or input_metadata.remote_computed_blocks is not None
        if not input_metadata.is_prefill or not has_hits:
            return model_inputs, input_len_mask
        self._load_promised(input_metadata)
        reused = input_metadata.remote_computed_blocks * self.block_size  # None here is the caller's mistake
        if self.infer_context.spcp_parallel_info.scp_size > 1:
            reused = reused.sum(axis=1)
        lengths = input_metadata.batch_seq_len
        reused = np.repeat(reused, [len(ids) for ids in input_metadata.batch_sequence_ids])  # counted per request
        if input_metadata.batch_is_prefill is not None:  # decodes and later chunks find nothing
            reused = np.where(input_metadata.batch_is_prefill & (input_metadata.split_start_position == 0), reused, 0)
        # a hit on everything leaves no token to compute an answer from: the last block is done again
        reused = np.where((reused > 0) & (reused >= lengths), reused - self.block_size, reused)
        queries = (lengths - reused).astype(np.int32)
        ends = np.cumsum(lengths)
        keep = np.concatenate([np.arange(end - query, end) for end, query in zip(ends, queries, strict=True)])
        trimmed = dataclasses.replace(
            model_inputs,
            input_ids=model_inputs.input_ids[keep],
            position_ids=model_inputs.position_ids[keep],
            slots=model_inputs.slots[keep],
            prefill_head_indices=np.cumsum(queries, dtype=np.int64) - 1,
            query_length=queries // self.infer_context.spcp_parallel_info.cp_size,
        )
        return trimmed, (trimmed.query_length.tolist(), "causal")

    def sample_preprocess(self, logits, result, sampling_metadata, input_metadata):
        return logits

    def plugin_verify(self, sampling_output, cache_ids, result):
        pass

    def plugin_cache_update(self, cache_ids, sampling_output, la_cache_input, is_prefill=False):
        pass

    def plugin_cache_clear(self, cache_ids, finish_reason):
        pass

    def put_prefix_kvcache_to_mempool(self, input_metadata, cache_ids):
        """Every prompt's full blocks that were not found, before the step's answer goes out."""
        if not input_metadata.is_prefill or not self._plays_pool():
            return
        hits = input_metadata.remote_computed_blocks
        found = np.zeros(len(input_metadata.batch_seq_len), dtype=np.int64) if hits is None else hits
        for row, tokens in enumerate(self._prompts(input_metadata)):
            # the last token's block is left to the next turn, as by the host
            self._move(self.m_store.put, input_metadata, row, int(found[row]), (len(tokens) - 1) // self.block_size)

    def _load_promised(self, input_metadata):
        """What the pool promised; like the host, nobody looks whether it came."""
        if self._plays_pool():
            begins = input_metadata.computed_blocks
            for row, end in enumerate(input_metadata.remote_computed_blocks.tolist()):
                self._move(self.m_store.get, input_metadata, row, 0 if begins is None else int(begins[row]), end)

    def _move(self, call, input_metadata, row, first, end):
        if first < end:
            names = self.own_blocks.names(self._prompts(input_metadata)[row], first, end)
            call(names, self.own_blocks.buffers(input_metadata.batch_block_tables[row, first:end]))

    def _prompts(self, input_metadata):
        return np.split(input_metadata.input_ids, np.cumsum(input_metadata.batch_seq_len)[:-1])

    def _plays_pool(self):
        return self.mempool_type != MemPoolType.DISABLED and self.own_blocks is not None

    def async_put_prefix_kvcache_to_mempool(self, input_metadata, cache_ids):
        """The host's own pooling is not played here: nothing is put."""
