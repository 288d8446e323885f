"""Prefill and decode on nodes of their own: links between them, and pulls of blocks over a link.

The copying itself is the work of a library (``llm_datadist``) that reads the other node's memory; here both nodes
live in one process, and a ``Wire`` stands for it.
"""

from __future__ import annotations

import weakref
from enum import Enum
from typing import ClassVar

from mindie_llm.utils.log.error_code import ErrorCode
from mindie_llm.utils.status import MindieLlmStatusCode


class DmiModeNodeRole(str, Enum):
    PREFILL = "prefill"
    DECODER = "decoder"
    FLEX = "flex"


class Wire:
    def pull_blocks(self, theirs, own, src_block_table, dst_block_table):
        """Copy blocks, tensor by tensor; False when it fails, with anything from nothing to all of it copied."""
        for source, target in zip(theirs, own, strict=True):
            target[dst_block_table] = source[src_block_table]
        return True


class SeparateDeploymentWorker:
    cluster: ClassVar[weakref.WeakValueDictionary] = weakref.WeakValueDictionary()  # (node, device) -> its worker

    def __init__(self, role, local_cluster_id, local_physical_device_id):
        self.role = role
        self.wire = Wire()
        self.npu_cache = []
        self.links = {}
        self.max_block_num = 0
        self.cluster[local_cluster_id, local_physical_device_id] = self

    def set_npu_cache(self, tensors):
        self.npu_cache = list(tensors)
        self.max_block_num = len(self.npu_cache[0])

    def link(self, remote_cluster_ids, remote_physical_device_ids, remote_device_ips, host_ips):
        for instance, clusters in remote_cluster_ids.items():
            for node, device in zip(clusters, remote_physical_device_ids[instance], strict=True):
                self.links[node] = self.cluster[node, device]

    def query_link_status(self):
        return {"waiting": [], "running": [], "success": list(self.links), "failed": []}

    def pull_blocks(self, remote_model_instance_id, src_block_table, dst_block_table):
        remote = self.links.get(remote_model_instance_id)
        if remote is None:
            return ErrorCode.TEXT_GENERATOR_PD_MODEL_INSTANCE_ID_ERROR
        if not all(0 <= block < self.max_block_num for block in dst_block_table):
            return ErrorCode.TEXT_GENERATOR_PD_BLOCK_ID_OUT_OF_RANGE
        if not self.wire.pull_blocks(remote.npu_cache, self.npu_cache, src_block_table, dst_block_table):
            return ErrorCode.TEXT_GENERATOR_PD_PULL_KV_ERROR
        return MindieLlmStatusCode.SUCCESS

    def finalize(self):
        self.links.clear()
