"""One rank's model, its KV cache and its sampler."""

from __future__ import annotations

from contextlib import nullcontext
from types import SimpleNamespace
from typing import Any

from mindie_llm.modeling.backend_type import BackendType
from mindie_llm.modeling.model_wrapper import get_model_wrapper
from mindie_llm.text_generator.plugins.plugin_manager import MemPoolType
from mindie_llm.text_generator.samplers.sampler import sample

SWAP_IN = 0


class GeneratorBackend:
    def __init__(self, model_config: dict[str, Any]) -> None:
        self.model_name = model_config["model_name"]
        self.backend_type = BackendType(model_config["backend_type"])
        self.npu_device_id = int(model_config["npu_device_id"])
        self.rank = int(model_config["rank"])
        self.local_rank = int(model_config["local_rank"])
        self.world_size = int(model_config["world_size"])
        self.block_size = int(model_config["block_size"])
        self.dp = int(model_config.get("dp", 1))
        self.distributed_enable = str(model_config.get("distributed_enable", "false")).lower() == "true"
        self.kv_pool_backend = model_config.get("kv_pool_backend", "")
        self.kv_pool_config_path = model_config.get("kv_pool_config_path", "")
        self.kv_pool_async_write = str(model_config.get("kv_pool_async_write", "false")).lower() in {"true", "1"}
        if self.kv_pool_backend and self.kv_pool_config_path:
            model_config["mempool_type"] = (
                MemPoolType.ASYNC_WRITE if self.kv_pool_async_write else MemPoolType.SYNC_WRITE
            )
        else:
            model_config["mempool_type"] = MemPoolType.DISABLED
        self.model_wrapper = get_model_wrapper(model_config, self.backend_type)
        self.model_info = self.model_wrapper.model_info
        self.mapping = self.model_wrapper.mapping
        self.device = self.model_wrapper.device
        self.cache_pool = None
        self.host_blocks = []  # per tensor: host block -> what was swapped out into it

    def init_cache_pool(self, kvcache_settings):
        tensors = self.model_wrapper.model_runner.allocate_cache(kvcache_settings.num_npu_blocks)
        acl_format = 29 if kvcache_settings.need_nz else 2  # NZ, ND
        self.cache_pool = SimpleNamespace(kvcache_settings=kvcache_settings, npu_cache=tensors, acl_format=acl_format)

    def copy_blocks(self, pairs):
        self.model_wrapper.model_runner.drain()
        for tensor in self._tensors():
            tensor[pairs[:, 1]] = tensor[pairs[:, 0]]

    def swap_cache(self, decisions):
        self.model_wrapper.model_runner.drain()
        if not self.host_blocks:
            self.host_blocks.extend({} for _ in self._tensors())
        for tensor, kept in zip(self._tensors(), self.host_blocks, strict=True):
            for kind, source, destination in decisions.tolist():
                if kind == SWAP_IN:
                    tensor[destination] = kept[source]
                else:
                    kept[destination] = tensor[source].clone()

    def _tensors(self):
        return [tensor for layer in self.cache_pool.npu_cache for tensor in layer]

    def forward(self, model_inputs, **kwargs):
        return self.model_wrapper.forward(model_inputs, self.cache_pool.npu_cache, **kwargs)

    def prepare_model_inputs(self, model_inputs, **kwargs):
        self.model_wrapper.model_runner.inputs_prepared()
        return model_inputs, kwargs

    def forward_from_model_inputs(self, model_inputs, **kwargs):
        return self.forward(model_inputs, **kwargs)

    def sample(self, logits, sampling_metadata):
        self.synchronize()
        return sample(logits, sampling_metadata)

    def execute_recover_command(self, command):
        if command == "CMD_REINIT_NPU":
            self.model_wrapper.model_runner.restart()
        return {"command_result": 0, "error_msg": "", "npu_device_id": self.npu_device_id}

    def synchronize(self):
        self.model_wrapper.model_runner.synchronize()

    def get_new_stream(self):
        return nullcontext()

    def set_device(self):
        pass

    def clear_cache(self, sequence_ids):
        return 1
