"""What the host asks of a pool client, and where it gets one."""

from abc import abstractmethod

from mindie_llm.text_generator.mempool.factory import CreatePool


class MemPool:
    @classmethod
    def create_pool(cls, backend: str, config_path: str, role: str = "scheduler", **kwargs):
        return CreatePool(backend, config_path, role, **kwargs)

    @abstractmethod
    def exists(self, key, **kwargs):
        raise NotImplementedError

    @abstractmethod
    def put(self, keys, tensors, **kwargs):
        raise NotImplementedError

    @abstractmethod
    def get(self, keys, tensors, **kwargs):
        raise NotImplementedError

    def close(self):
        pass
