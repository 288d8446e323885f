"""A worker's entry: builds everything from the model configuration and runs steps."""

from __future__ import annotations

from contextlib import contextmanager

import numpy as np

from mindie_llm.text_generator.adapter.generator_backend import GeneratorBackend
from mindie_llm.text_generator.plugins import get_plugin
from mindie_llm.text_generator.plugins.plugin_utils import PluginParameterValidator
from mindie_llm.text_generator.utils.input_metadata import InputMetadata
from mindie_llm.text_generator.utils.model_input import GenerationOutput
from mindie_llm.text_generator.utils.output_filter import OutputFilter
from mindie_llm.text_generator.utils.settings import CacheConfig, ContextParams, KVCacheSettings
from mindie_llm.text_generator.utils.tg_infer_context_store import TGInferContextStore
from mindie_llm.utils.env import ENV
from mindie_llm.utils.log.error_code import ErrorCodeException, convert_exception_to_error_code

WARMUP_SEQUENCE_ID = 1
PAUSE_COMMANDS = ("CMD_PAUSE_ENGINE", "CMD_PAUSE_ENGINE_ROCE")


class PDInterface:
    separate_deployment_worker = None  # the link to other nodes; the simulated host has none of its own

    def pull_kv(self, input_metadata, p_d_infos):
        """Copy another node's blocks into ours, on a transfer thread; answers (0, 0) when all came."""
        for node, theirs, own in p_d_infos:
            self.separate_deployment_worker.pull_blocks(
                remote_model_instance_id=node, src_block_table=theirs, dst_block_table=own
            )
        return 0, 0


class Generator(PDInterface):
    def __init__(self, model_config):
        self.model_config = model_config
        self.block_size = int(model_config["block_size"])
        self.max_seq_len = int(model_config["max_seq_len"])
        self.max_prefill_tokens = int(model_config["max_prefill_tokens"])
        self.max_iter_times = int(model_config["max_iter_times"])
        speculation_gamma = int(model_config.get("speculation_gamma", 0))
        self.max_generated_tokens = 1 + speculation_gamma
        validator = PluginParameterValidator(speculation_gamma)
        plugin_config, self.is_mix_model, plugin_list = validator.validate(model_config.get("plugin_params"))
        self.num_speculative_tokens = plugin_config.get("num_speculative_tokens", 0)
        self.async_inference = ENV.async_inference
        self.is_inference_pause = False
        self.generator_backend = GeneratorBackend(model_config)
        self.model_wrapper = self.generator_backend.model_wrapper
        self.model_info = self.generator_backend.model_info
        self.rank = self.generator_backend.rank
        config = self.model_wrapper.config
        self.cache_config = CacheConfig(
            max_block_size=self.block_size,
            max_seq_len=self.max_seq_len,
            max_gen_len=min(self.max_iter_times, self.max_seq_len),
            eos_token_id=[config.eos_token_id],
            pad_token_id=config.pad_token_id,
            rank=self.rank,
        )
        plugin_config.update(
            eos_token_id=self.cache_config.eos_token_id,
            cache_size=self.cache_config.cache_size,
            max_gen_len=self.cache_config.max_gen_len,
            max_block_size=self.cache_config.max_block_size,
            max_seq_len=self.cache_config.max_seq_len,
            device=self.model_info.device,
            layerwise_disaggregated=False,
            layerwise_disaggregated_role_type="",
        )
        with self._without_pool_and_async():
            self._update_kvcache_settings(1)
            self._init_plugin_manager(self.kvcache_settings, plugin_list, plugin_config)
            self.warm_up()
        self._update_kvcache_settings(int(model_config["num_npu_blocks"]))
        self._init_plugin_manager(self.kvcache_settings, plugin_list, plugin_config)

    def generate_token(self, input_metadata: InputMetadata, warmup=False):
        manager = self.plugin_manager
        generate = manager.generate_token_async if self.async_inference else manager.generate_token
        try:
            return generate(input_metadata, warmup=warmup)
        except ErrorCodeException:
            raise
        except Exception as error:
            error_code = convert_exception_to_error_code(str(error))
            if error_code is not None:
                raise ErrorCodeException(error_code) from error
            if self.is_inference_pause:
                return GenerationOutput.make_empty()
            raise

    def clear_cache(self, sequence_ids):
        self.infer_context.clear_context_by_seq_ids(sequence_ids)
        self.generator_backend.clear_cache(sequence_ids)

    def copy_blocks(self, src_dst_map):
        """Copy-on-write of sequence groups, before the batch that needs it."""
        self.generator_backend.copy_blocks(np.asarray(src_dst_map))

    def swap(self, block_operation):
        """Between device and host memory: rows of (0 in or 1 out, source, destination)."""
        self.generator_backend.swap_cache(np.asarray(block_operation)[0])

    def load_lora(self, lora_name, lora_path):
        self.model_wrapper.adapter_manager.load_adapter({lora_name: lora_path})

    def unload_lora(self, lora_name):
        self.model_wrapper.adapter_manager.unload_adapter(lora_name)

    def execute_recover_command(self, command):
        done = {"command_result": 0, "error_msg": "", "npu_device_id": self.rank}
        if command in PAUSE_COMMANDS:  # from the command thread, while a batch may run
            self.is_inference_pause = self.plugin_manager.is_inference_pause = True
            return self.generator_backend.execute_recover_command(command)
        if command == "CMD_REINIT_NPU":
            self.plugin_manager.wait_for_forward()
            self.infer_context.reset_all_context()
            return self.generator_backend.execute_recover_command(command)
        if command == "CMD_START_ENGINE":
            self.plugin_manager.resume()
            self.is_inference_pause = False
            return done
        if command == "CMD_CLEAR_TRANSER":
            return done
        return {**done, "command_result": 1, "error_msg": f"unknown command {command!r}"}

    def warm_up(self):
        """One prefill of ones and one decode, all in block 0 of a cache that is thrown away afterwards."""
        length = min(self.max_prefill_tokens, self.max_seq_len - 2)  # leaves room for the decode
        length -= length % (2 * self.infer_context.spcp_parallel_info.cp_size)
        self.generate_token(self._warmup_batch(length, is_prefill=True), warmup=True)
        self.generate_token(self._warmup_batch(length, is_prefill=False), warmup=True)

    def _warmup_batch(self, length, is_prefill):
        metadata = InputMetadata(
            batch_size=1,
            batch_request_ids=np.array(["warmup"]),
            batch_sequence_ids=[np.array([WARMUP_SEQUENCE_ID], dtype=np.int64)],
            batch_max_output_lens=np.array([self.max_iter_times], dtype=np.int64),
            block_tables=np.zeros((1, -(-(length + self.max_generated_tokens) // self.block_size)), dtype=np.int64),
            reserved_sequence_ids=[np.array([], dtype=np.int64)],
            is_prefill=is_prefill,
            max_block_size=self.block_size,
            num_npu_blocks=self.kvcache_settings.num_npu_blocks,
            adapter_ids=[None] if is_prefill else None,
            batch_ignore_eos=np.array([True]),
            batch_seq_len=np.array([length], dtype=np.int64) if is_prefill else np.array(None),
            input_ids=np.ones(length, dtype=np.int64) if is_prefill else np.zeros(0, dtype=np.int64),
            total_seq_num=length if is_prefill else 0,
            trace_ids=[None],
            batch_dp_rank_ids=np.zeros(1, dtype=np.int64),
        )
        num_shares = self.infer_context.spcp_parallel_info.scp_size
        if num_shares > 1:
            metadata.batch_block_tables = np.repeat(metadata.batch_block_tables[:, None, :], num_shares, axis=1)
            metadata.sp_rank_id = np.zeros(1, dtype=np.int64)
            metadata.sp_tokens = np.full((1, num_shares), length if is_prefill else length + 1)
        if self.is_mix_model:
            metadata.is_mix = False
            metadata.batch_is_prefill, metadata.batch_last_prompt = np.array([is_prefill]), np.array([True])
            metadata.split_start_position = np.array([0 if is_prefill else length])
            metadata.split_end_position = np.array([length if is_prefill else length + 1])
        return metadata

    @contextmanager
    def _without_pool_and_async(self):
        backend, was_async = self.generator_backend, self.async_inference
        configured = backend.kv_pool_backend
        backend.kv_pool_backend, self.async_inference = "", False
        try:
            yield
        finally:
            backend.kv_pool_backend, self.async_inference = configured, was_async

    def _update_kvcache_settings(self, num_npu_blocks):
        self.kvcache_settings = KVCacheSettings(
            self.rank, self.model_info, self.block_size, num_npu_blocks, self.num_speculative_tokens
        )
        self.generator_backend.init_cache_pool(self.kvcache_settings)

    def _init_plugin_manager(self, kvcache_settings, plugin_list, plugin_config):
        mapping = self.model_wrapper.mapping
        self.infer_context = TGInferContextStore(
            kvcache_settings,
            self.cache_config,
            (mapping.attn_inner_sp, mapping.attn_cp),
            self.model_info.device,
            ContextParams(async_infer=self.async_inference, max_generated_tokens=self.max_generated_tokens),
        )
        output_filter = OutputFilter(self.cache_config, self.infer_context, self.async_inference)
        utils = (self.generator_backend, kvcache_settings, self.infer_context, output_filter, "standard")
        self.plugin_manager = get_plugin(plugin_list, plugin_config, utils, self.is_mix_model, None)
        self.plugin_manager.initialize()
