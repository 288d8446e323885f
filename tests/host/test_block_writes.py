"""Every function of the host that touches the cache is known, and every one that writes it is seen.

Read from the host's source: a new release that writes the cache in a new place fails here by name.
Marked ``mindie``: needs MINDIE_LLM_SRC (a source tree) or an installed mindie_llm.
"""

import ast

import pytest

pytestmark = pytest.mark.mindie

CACHE_NAMES = {
    *("npu_cache", "kv_cache", "kv_caches", "kvcache_tensors", "npu_cache_map"),
    *("npu_blocks_addrs", "cpu_blocks_addrs", "k_blocks_addrs", "v_blocks_addrs"),
    *("k_blocks_quant_addrs", "index_blocks_addrs", "set_npu_cache"),
    *(
        "swapper",
        "swap_cache",
        "swap_kvcache_method",
        "h2d_swap",
        "d2h_swap",
        "copy_blocks",
        "block_copy",
        "block_copy_op",
    ),
    *("pull_kv", "pull_blocks", "update_npu_tensor_to_safe"),
}
"""Attributes, names and keywords by which the host reaches its cache."""

MODEL = ("runtime/", "examples/")
"""The model itself: it writes the slots that a batch gives it."""

BATCH = "slots of a batch: KvPoolPlugin.model_inputs_update"
COPY = "Generator.copy_blocks"
SWAP = "Generator.swap"
PULL = "PDInterface.pull_kv"
REPAIR = "Generator.execute_recover_command"
BEFORE = "before the plugin is built, or when the cache is allocated anew with it"
NATIVE = "the host's own pool client, which stands aside"
NOT = "does not write: passes on, registers or reads"

PLACES = {
    "connector/common/input_metadata_builder.py": {
        "convert_execute_model_request_to_input_metadata_composite": NOT,
    },
    "connector/request_router/router_impl.py": {"RouterImpl.transfer_data": PULL, "RouterImpl._generate": COPY},
    "modeling/model_wrapper/aclgraph/aclgraph_model_wrapper.py": {
        "AclGraphModelWrapper.forward": BATCH,
        "AclGraphModelWrapper.forward_from_model_inputs": BATCH,
        "AclGraphModelWrapper.forward_tensor": BATCH,
    },
    "modeling/model_wrapper/aclgraph/aclgraph_model_wrapper_exp.py": {
        "AclGraphModelWrapperExp.forward": BATCH,
        "AclGraphModelWrapperExp.forward_from_model_inputs": BATCH,
    },
    "modeling/model_wrapper/atb/atb_model_wrapper.py": {
        "ATBModelWrapper.forward": BATCH,
        "ATBModelWrapper.forward_from_model_inputs": BATCH,
        "ATBModelWrapper.forward_tensor": BATCH,
        "ATBModelWrapper.dap_forward": BATCH,
    },
    "text_generator/adapter/generator_aclgraph.py": {
        "GeneratorAclGraph.forward_from_model_inputs": BATCH,
        "GeneratorAclGraph.forward": BATCH,
        "GeneratorAclGraph.compile": BEFORE,
        "GeneratorAclGraph.update_cache_policy": BEFORE,
        "GeneratorAclGraph.swap_cache": SWAP,
    },
    "text_generator/adapter/generator_backend.py": {"GeneratorBackend._check_and_recover_uce_in_kvcache": REPAIR},
    "text_generator/adapter/generator_torch.py": {
        "GeneratorTorch.forward_tensor": BATCH,
        "GeneratorTorch.swap_cache": SWAP,
        "GeneratorTorch.update_cache_policy": BEFORE,
        "GeneratorTorch._forward": BATCH,
        "GeneratorTorch._dap_forward": BATCH,
    },
    "text_generator/adapter/generator_torch_async.py": {"GeneratorTorchAsync.forward_from_model_inputs": BATCH},
    "text_generator/adapter/recovery_utils.py": {"check_and_recover_uce_in_cache": REPAIR},
    "text_generator/adapter/torch_utils/kvcache_pool.py": {
        "KVCachePool.__init__": BEFORE,
        "KVCachePool.get_npu_blocks_addrs": NOT,
        "KVCachePool.allocate_npu_kvcache": BEFORE,
        "KVCachePool.allocate_cpu_kvcache": BEFORE,
        "KVCachePool.sync_swap_mb": SWAP,
        "KVCachePool.sync_swap_base": SWAP,
        "KVCachePool._allocate_npu_kvcache_mb": BEFORE,
        "KVCachePool._allocate_npu_kvcache_base": BEFORE,
    },
    "text_generator/generator.py": {
        "PDInterface.pull_kv": PULL,
        "Generator.__init__": NOT,
        "Generator.copy_blocks": COPY,
        "Generator.swap": SWAP,
    },
    "text_generator/mempool/mooncake_mempool.py": {
        "MooncakeMempool.__init__": NOT,
        "MooncakeMempool._register": NOT,
    },
    "text_generator/plugins/prefix_cache/prefix_cache_plugin.py": {
        "PrefixCachePlugin.__init__": NOT,
        "PrefixCachePlugin.get_prefix_kvcache_from_mempool": NATIVE,
        "PrefixCachePlugin.put_prefix_kvcache_to_mempool": NATIVE,
    },
    "text_generator/utils/block_copy.py": {
        "BlockCopy.__init__": NOT,
        "BlockCopy.init_atb_block_copy_op": NOT,
        "BlockCopy.atb_copy_block": COPY,
        "BlockCopy.copy_blocks": COPY,
        "BlockCopy.golden_copy_block": COPY,
    },
    "text_generator/utils/separate_deployment_engine.py": {
        "SeparateDeploymentEngine.__init__": NOT,
        "SeparateDeploymentEngine.set_npu_cache": NOT,
        "SeparateDeploymentEngine.pull_kv": PULL,
        "SeparateDeploymentWorker.set_npu_cache": NOT,
        "SeparateDeploymentWorker.pull_blocks": PULL,
    },
}
"""File -> function -> how a write there reaches us."""

CALLERS = {
    "copy_blocks": {"BlockCopy.init_atb_block_copy_op", "Generator.copy_blocks", "RouterImpl._generate"},
    "swap": {"RouterImpl._prepare_kv_block"},
    "swap_cache": {"Generator.swap", "GeneratorAclGraph.swap_cache"},
    "pull_blocks": {"PDInterface.pull_kv", "SeparateDeploymentEngine.pull_kv"},
    "pull_kv": {"RouterImpl.transfer_data", "SeparateDeploymentWorker.pull_blocks"},
    "update_cache_after_switch_pd_role": set(),
    "reset_all_context": {
        *("Generator.execute_recover_command", "TGInferContextStore.reset_all_context"),
        "BatchContext.reset_all_context",
    },
}
"""Function -> who calls it: nobody gets past the places that are hooked."""


def functions(host_source):
    """(file, qualified name, node) of every function outside the model."""

    def walk(node, prefix):
        for child in ast.iter_child_nodes(node):
            if isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef):
                yield prefix + child.name, child
            else:
                yield from walk(child, f"{prefix}{child.name}." if isinstance(child, ast.ClassDef) else prefix)

    for path in sorted(host_source.rglob("*.py")):
        name = path.relative_to(host_source).as_posix()
        if not name.startswith(MODEL):
            for qualified, node in walk(ast.parse(path.read_text(encoding="utf-8")), ""):
                yield name, qualified, node


def words(node):
    for inner in ast.walk(node):
        if isinstance(inner, ast.Attribute):
            yield inner.attr
        elif isinstance(inner, ast.Name):
            yield inner.id
        elif isinstance(inner, ast.Call):
            yield from (keyword.arg for keyword in inner.keywords)


def test_every_function_that_reaches_the_cache_is_known(host_source):
    """A place that is missing in the table was not thought of; one that is gone is told, too."""
    found = {}
    for file, name, node in functions(host_source):
        if CACHE_NAMES & set(words(node)):
            found.setdefault(file, set()).add(name)
    assert found == {file: set(names) for file, names in PLACES.items()}


def test_nobody_writes_past_the_hooked_places(host_source):
    """Who calls the functions that write: only what is hooked, or passes on to it."""
    found = {name: set() for name in CALLERS}
    for _, name, node in functions(host_source):
        for inner in ast.walk(node):
            if isinstance(inner, ast.Call) and isinstance(inner.func, ast.Attribute) and inner.func.attr in found:
                found[inner.func.attr].add(name)
    assert found == CALLERS


def test_every_seen_place_is_hooked(host_source):
    """What the table says is seen is a place ``compat`` demands of the host."""
    from mindie_kvpool_plugin.host import compat

    hooked = {place.name for place in compat.PLACES}
    assert {COPY, SWAP, PULL, REPAIR} <= hooked
    assert all(
        how in {BATCH, COPY, SWAP, PULL, REPAIR, BEFORE, NATIVE, NOT}
        for names in PLACES.values()
        for how in names.values()
    )
