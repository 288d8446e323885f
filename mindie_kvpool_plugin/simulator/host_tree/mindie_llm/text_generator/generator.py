"""A worker's entry: builds everything from the model configuration and runs steps."""

from __future__ import annotations

import queue
from contextlib import contextmanager
from types import SimpleNamespace

import numpy as np

from mindie_llm.text_generator.adapter.generator_backend import GeneratorBackend
from mindie_llm.text_generator.plugins import get_plugin
from mindie_llm.text_generator.plugins.plugin_utils import PluginParameterValidator
from mindie_llm.text_generator.utils.input_metadata import InputMetadata
from mindie_llm.text_generator.utils.model_input import GenerationOutput
from mindie_llm.text_generator.utils.output_filter import OutputFilter
from mindie_llm.text_generator.utils.separate_deployment_engine import DmiModeNodeRole, SeparateDeploymentWorker
from mindie_llm.text_generator.utils.settings import CacheConfig, ContextParams, KVCacheSettings
from mindie_llm.text_generator.utils.tg_infer_context_store import TGInferContextStore
from mindie_llm.utils.env import ENV
from mindie_llm.utils.log.error_code import ErrorCodeException, convert_exception_to_error_code
from mindie_llm.utils.status import MindieLlmStatusCode

WARMUP_SEQUENCE_ID = 1
STANDARD_ROLE = "standard"
PAUSE_COMMANDS = ("CMD_PAUSE_ENGINE", "CMD_PAUSE_ENGINE_ROCE")


class PDInterface:
    def __init__(self, pd_config):
        self.pd_config = pd_config
        self.separate_deployment_worker = None
        self.input_metadata_queue = queue.Queue()

    def link(self, **kwargs):
        self.separate_deployment_worker.link(**kwargs)

    def query_link_status(self):
        return self.separate_deployment_worker.query_link_status()

    def switch_role(self, role):
        self.pd_config.model_role = role

    def pull_kv(self, input_metadata, p_d_infos):
        """Copy other nodes' blocks into ours, on a transfer thread; the sequences begin with the next decode batch."""
        for node, theirs, own in p_d_infos:
            status = self.separate_deployment_worker.pull_blocks(
                remote_model_instance_id=node, src_block_table=theirs, dst_block_table=own
            )
            if status != MindieLlmStatusCode.SUCCESS:
                return status, node
        self.input_metadata_queue.put(input_metadata)
        return MindieLlmStatusCode.SUCCESS, 0

    def _init_sepd_engine(self):
        if self.pd_config.model_role != STANDARD_ROLE:
            self.separate_deployment_worker = SeparateDeploymentWorker(
                role=self.pd_config.model_role,
                local_cluster_id=self.pd_config.local_cluster_id,
                local_physical_device_id=self.pd_config.local_physical_device_id,
            )


class Generator(PDInterface):
    def __init__(self, model_config):
        super().__init__(
            SimpleNamespace(
                model_role=model_config.get("role", STANDARD_ROLE),
                local_cluster_id=int(model_config.get("local_instance_id", 0)),
                local_physical_device_id=int(model_config["npu_device_id"]),
            )
        )
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
        if self.pd_config.model_role == DmiModeNodeRole.DECODER and "prefix_cache" in model_config["plugin_params"]:
            raise ValueError("prefix_cache is not for the decode nodes of a separated deployment")
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
        self._init_sepd_engine()
        self._update_kvcache_settings(int(model_config["num_npu_blocks"]))
        self._init_plugin_manager(self.kvcache_settings, plugin_list, plugin_config)
        if self.pd_config.model_role == DmiModeNodeRole.DECODER:
            self._open_pool()

    def _open_pool(self):
        """A decode node opens a client, which nothing uses."""
        backend = self.generator_backend
        if backend.kv_pool_backend and backend.kv_pool_config_path:
            from mindie_llm.text_generator.mempool import MemPool  # noqa: PLC0415 - only where a pool is configured

            self.m_store = MemPool.create_pool(
                backend=backend.kv_pool_backend,
                config_path=backend.kv_pool_config_path,
                role="worker",
                device_id=backend.npu_device_id,
                kv_caches=backend.cache_pool.npu_cache,
            )

    def _begin_pulled_sequences(self, warmup):
        """What was pulled since the last decode batch gets its context now, on this thread."""
        while not self.input_metadata_queue.empty():
            pulled = self.input_metadata_queue.get()
            handles = self.infer_context.get_batch_context_handles(pulled)
            self.infer_context.compose_model_inputs(pulled, handles, warmup=warmup, is_pd_separate=True)

    def generate_token(self, input_metadata: InputMetadata, warmup=False):
        may_decode_others = self.pd_config.model_role in {DmiModeNodeRole.DECODER, DmiModeNodeRole.FLEX}
        if may_decode_others and not input_metadata.is_prefill:
            self._begin_pulled_sequences(warmup)
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
            self.plugin_manager.error_code_collected_in_async = None
            return self.generator_backend.execute_recover_command(command)
        if command == "CMD_START_ENGINE":
            self.plugin_manager.resume()
            self.is_inference_pause = False
            return done
        if command == "CMD_CLEAR_TRANSER":
            return done
        return {**done, "command_result": 1, "error_msg": f"unknown command {command!r}"}

    def warm_up(self):
        """One prefill of ones and one decode, all in block 0 of a cache that is thrown away afterwards.

        A prefill node does the former only; a decode node takes it for pulled.
        """
        length = min(self.max_prefill_tokens, self.max_seq_len - 2)  # leaves room for the decode
        length -= length % (2 * self.infer_context.spcp_parallel_info.cp_size)
        role, prefill = self.pd_config.model_role, self._warmup_batch(length, is_prefill=True)
        if role == DmiModeNodeRole.DECODER:
            self.input_metadata_queue.put(prefill)
        else:
            self.generate_token(prefill, warmup=True)
        if role != DmiModeNodeRole.PREFILL:
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
        if self.separate_deployment_worker is not None:
            layers = self.generator_backend.cache_pool.npu_cache
            self.separate_deployment_worker.set_npu_cache(tensor for layer in layers for tensor in layer)

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
        utils = (self.generator_backend, kvcache_settings, self.infer_context, output_filter, self.pd_config.model_role)
        self.plugin_manager = get_plugin(plugin_list, plugin_config, utils, self.is_mix_model, None)
        self.plugin_manager.initialize()
