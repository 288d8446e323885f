"""The host's own clients of a KV pool."""

from mindie_llm.text_generator.mempool.base import MemPool

__all__ = ["MemPool"]
