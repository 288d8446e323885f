"""The host's own pooling: it accepts everything, and holds nothing unless a run gave it memory."""

from typing import ClassVar

from mindie_kvpool_plugin.simulator import own_pooling
from mindie_llm.text_generator.mempool.base import MemPool


class NativeMempool(MemPool):
    opened: ClassVar[list[str]] = []  # roles, in order: a test sees here whether the host's own client stood aside

    def __init__(self, config_path, role, **kwargs):
        self.config_path = config_path
        self.role = role
        self.device_id = kwargs.get("device_id", 0)
        NativeMempool.opened.append(role)
        self.client = own_pooling.open_client(config_path, role)

    def exists(self, key, **kwargs):
        return False

    def batch_exist(self, keys):
        return self.client.exists(keys) if self.client else [False] * len(keys)

    def put(self, keys, tensors, **kwargs):
        return self.client.put(keys, tensors) if self.client else [False] * len(keys)

    def get(self, keys, tensors, **kwargs):
        return self.client.get(keys, tensors) if self.client else [False] * len(keys)
