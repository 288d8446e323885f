"""What the package takes for granted of MindIE-LLM, read from its source: a new release is judged in a minute.

One test per group of facts; its sentence says what would break.  Nothing of the host is imported.
Marked ``mindie``: needs MINDIE_LLM_SRC (a source tree) or an installed mindie_llm.
"""

import ast
import inspect
import os
import re

import pytest

from mindie_kvpool_plugin.host import block_writes, compat, device_memory, leaving, modes, step_view
from mindie_kvpool_plugin.host.eligibility import DECODE_ROLE, plugin_words
from mindie_kvpool_plugin.host.plugin import KvPoolPlugin
from mindie_kvpool_plugin.host.scheduler_lookup import SchedulerLookup
from tests.host.host_ast import assigned, branch, calls, find, in_order, members, our_reads, statement, values

pytestmark = pytest.mark.mindie

TEXT = "text_generator/"
PLUGIN_MANAGER = TEXT + "plugins/plugin_manager.py"
PLUGIN_UTILS = TEXT + "plugins/plugin_utils.py"
PREFIX_CACHE = TEXT + "plugins/prefix_cache/prefix_cache_plugin.py"
PREFIX_INPUTS = TEXT + "plugins/prefix_cache/prefix_cache_preprocess.py"
GENERATOR = TEXT + "generator.py"
BACKEND = TEXT + "adapter/generator_backend.py"
CONFIG = TEXT + "utils/config.py"
METADATA = TEXT + "utils/input_metadata.py"
CONTEXT = TEXT + "utils/tg_infer_context_store.py"
CACHE_POOL = TEXT + "adapter/torch_utils/kvcache_pool.py"
LORA = "runtime/lora/lora_manager.py"
ROUTER = "connector/request_router/router_impl.py"
WRAPPERS = "modeling/model_wrapper/"

CLASSES = {
    "InputMetadata": [(METADATA, "InputMetadata")],
    "ModelInput": [(TEXT + "utils/model_input.py", "ModelInput")],
    "GeneratorBackend": [(BACKEND, "GeneratorBackend")],
    "PluginManager": [(PLUGIN_MANAGER, "PluginManager")],
    "KVCacheSettings": [(TEXT + "utils/kvcache_settings.py", "KVCacheSettings")],
    "KVCachePool": [(CACHE_POOL, "KVCachePool")],
    "TGInferContextStore": [(CONTEXT, "TGInferContextStore")],
    "ContextParams": [(CONFIG, "ContextParams")],
    "SpCpParallelInfo": [(CONFIG, "SpCpParallelInfo")],
    "ModelWrapper": [
        (WRAPPERS + "atb/atb_model_wrapper.py", "ATBModelWrapper"),
        (WRAPPERS + "aclgraph/aclgraph_model_wrapper.py", "AclGraphModelWrapper"),
        (WRAPPERS + "aclgraph/aclgraph_model_wrapper_exp.py", "AclGraphModelWrapperExp"),
    ],
    "Mapping": [
        ("runtime/utils/distributed/parallel_info_manager.py", "ParallelInfoManager"),
        ("../examples/atb_models/atb_llm/utils/mapping.py", "Mapping"),
    ],
    "ParallelInfo": [
        ("runtime/utils/distributed/parallel_info_manager.py", "ParallelInfo"),
        ("../examples/atb_models/atb_llm/utils/mapping.py", "ParallelInfo"),
    ],
}
"""Kind of object -> where the host defines it; a file of the other source tree only where that one is there."""

READS = our_reads()


def parameters(node):
    return [argument.arg for argument in node.args.args]


# -- the places that are hooked ---------------------------------------------------------------------------


def test_every_hooked_place_fits(host_source, monkeypatch):
    """Otherwise the package stays out of the host, and says which place it was."""
    monkeypatch.setattr(compat, "_find", lambda: host_source)
    assert [f"{place.module}: {problem}" for place, problem in compat.inspect_host().problems] == []


def test_the_version_is_one_that_was_tried(host_source, monkeypatch):
    """A new release: once the other tests pass and the harness is clean, it joins compat.TESTED_VERSIONS."""
    monkeypatch.setattr(compat, "_find", lambda: host_source)
    version = compat.inspect_host().version
    if version == "unknown" or os.environ.get("MINDIE_LLM_SRC"):
        pytest.skip("a source tree does not say its version")
    assert version in compat.TESTED_VERSIONS


def test_a_stop_goes_through_the_listener_and_an_exit_through_the_core_threads(source):
    """Where a worker leaves the pool: at SIGTERM before its channels close, else beside the one ``os._exit``."""
    handler = find(source("connector/main.py"), "register_signal.handler_signal")
    assert [ast.unparse(line) for line in branch(handler, "signum == signal.SIGTERM")] == ["request_listener.stop()"]
    statement(
        find(source("connector/request_listener/request_listener.py"), "RequestListener.stop"),
        "self.communication.stop()",
    )
    in_order(find(source("utils/status.py"), "CoreThread.run"), "run", "_exit")
    exits = [
        str(path.relative_to(source("")))
        for path in sorted(source("").rglob("*.py"))
        for call in calls(ast.parse(path.read_text(encoding="utf-8")))
        if call[2] in ("_exit", "abort", "killpg")
    ]
    assert exits == ["utils/status.py"]


def test_the_host_waits_for_a_worker_longer_than_leaving_may_take(cpp):
    """SIGTERM, then 500 ms in steps of 50 ms; the group is killed 15 s after it was asked to end."""
    executor = cpp("executor/executor.cpp")
    assert "kill(pid, SIGTERM)" in executor
    (wait_ms,) = re.findall(r"maxWaitMs = (\d+);", executor)
    assert int(wait_ms) > leaving.WAIT_S * 1000
    (kill_s,) = re.findall(r"SUB_PROCESS_WAIT_TIME = (\d+);", cpp("server/daemon/llm_daemon.cpp"))
    assert int(kill_s) > leaving.WAIT_S


# -- what is read of the host's objects -------------------------------------------------------------------


@pytest.mark.parametrize(("kind", "attribute"), sorted(READS), ids=[f"{kind}.{name}" for kind, name in sorted(READS)])
def test_what_we_read_is_there(kind, attribute, source):
    """Found in our own source, so a new read is judged too; without it a worker would not start, or stumble."""
    places = [(source(file), name) for file, name in CLASSES[kind] if ".." not in file or source(file).exists()]
    found = [attribute in members(path, name) for path, name in places]
    # what is read with a default may be missing on some
    assert all(found) if READS[kind, attribute] else any(found)


def test_the_reads_are_found():
    """The list above is made by walking our source; it would be empty if that walk went blind."""
    fields = {
        "batch_seq_len",
        "input_ids",
        "remote_computed_blocks",
        "adapter_ids",
        "sp_rank_id",
        "split_start_position",
    }
    assert fields <= {name for kind, name in READS if kind == "InputMetadata"}
    assert {("ParallelInfo", "rank"), ("ContextParams", "async_infer"), ("KVCachePool", "npu_cache")} <= set(READS)
    assert {kind for kind, _ in READS} == set(CLASSES)


def test_context_store_is_asked_by_handle(source):
    """Tokens and lengths of a sequence are read by its context handle; else foreign tokens would name its blocks."""
    for name in ("get_seq_lens", "get_all_input_ids"):
        function = find(source(CONTEXT), f"TGInferContextStore.{name}")
        assert parameters(function) == ["self", "context_handles"]
        (result,) = [node for node in ast.walk(function) if isinstance(node, ast.Return)]
        assert ast.unparse(result.value).endswith("[context_handles]")


def test_rows_of_a_batch_are_sequences(source):
    """Every row has one id and one block table, in order; else blocks would be stored under another's tokens."""
    built = find(source(METADATA), "InputMetadata.__post_init__")
    statement(built, "self.all_sequence_ids = np.concatenate(self.batch_sequence_ids)")
    assert "batch_block_tables" in members(source(METADATA), "InputMetadata")
    assert assigned(source(METADATA), "SIMULATE_SEQUENCE_ID") == step_view.SIMULATE_SEQUENCE_ID


def test_blocks_are_dealt_out_by_cp_then_sp(source):
    """A rank's place among the owners of a prompt's blocks; else every rank would store what another has."""
    built = find(source(CONFIG), "SpCpParallelInfo.__init__")
    statement(built, "self.scp_size = self.cp_size * self.sp_size")
    statement(built, "self.scp_rank = self.cp_rank * self.sp_size + self.sp_rank")


def test_device_formats_have_their_numbers(source):
    """The layout is part of every key; another number would hide it."""
    statement(find(source(CACHE_POOL), "KVCachePool.__init__"), "self.acl_format = 29 if need_nz else 2")
    assert device_memory.NZ_FORMAT == 29


# -- how plugins are found, built and called --------------------------------------------------------------


def test_plugins_are_called_in_the_white_lists_order(source):
    """kv_pool enters before prefix_cache: a reload after the inputs were trimmed would come too late."""
    assert assigned(source(PLUGIN_UTILS), "PLUGIN_WHITE_LIST") == ["la", "memory_decoding", "mtp", "prefix_cache"]
    validate = find(source(PLUGIN_UTILS), "PluginParameterValidator.validate")
    loops = [ast.unparse(node.iter) for node in ast.walk(validate) if isinstance(node, ast.For)]
    assert loops[-1] == "PLUGIN_WHITE_LIST"
    statement(validate, "words = re.split(',\\\\s*', plugin_type_input)")
    assert plugin_words("mtp, prefix_cache,kv_pool,") == ["mtp", "prefix_cache", "kv_pool"]


def test_plugins_are_imported_by_name(source):
    """The module and class that are served for kv_pool are those the manager looks for."""
    initialize = find(source(PLUGIN_MANAGER), "PluginManager.initialize")
    statement(initialize, "plugin_path = f'mindie_llm.text_generator.plugins.{plugin}.{plugin}_plugin'")
    statement(initialize, "cls_name = ''.join([word.capitalize() for word in plugin.split('_')]) + 'Plugin'")
    build = next(call for _, _, name, call in calls(initialize) if name == "plugin_cls")
    given = [ast.unparse(argument).removeprefix("self.") for argument in build.args]
    assert given == [name for name in inspect.signature(KvPoolPlugin).parameters if name != "kwargs"]


@pytest.mark.parametrize("method", ["model_inputs_update", "sample_preprocess", "plugin_verify", "plugin_verify_exp",
                                    "plugin_cache_update", "plugin_cache_clear"])  # fmt: skip
def test_plugin_methods_take_what_the_host_gives(method, source):
    """The same parameters as the plugin that stands beside it; else the first batch ends the worker."""
    theirs = parameters(find(source(PREFIX_CACHE), f"PrefixCachePlugin.{method}"))
    ours = inspect.signature(getattr(KvPoolPlugin, method)).parameters
    assert [name for name in ours if name != "kwargs"] == theirs


def test_the_plugin_has_all_that_is_demanded_of_plugins(source):
    """Nothing abstract is missing, nor anything the manager asks every plugin for."""
    abstract = {
        node.name
        for node in find(source(TEXT + "plugins/plugin.py"), "Plugin").body
        if isinstance(node, ast.FunctionDef) and "abstractmethod" in map(ast.unparse, node.decorator_list)
    }
    assert abstract
    assert {name for name in abstract if not hasattr(KvPoolPlugin, name)} == set()
    asked = {
        call.args[1].value
        for _, _, name, call in calls(find(source(PLUGIN_MANAGER), "PluginManager"))
        if name == "getattr" and ast.unparse(call.args[0]) == "plugin_instance"
    }
    # those that are asked for and may be missing are for speculation and the host's own pool
    optional = {
        "compose_model_inputs_exp",
        *("fill_in_model_result", "fill_in_model_result_exp", "prepare_masks_for_filling"),
        "put_prefix_kvcache_to_mempool",
    }
    assert {name for name in asked if not hasattr(KvPoolPlugin, name)} <= optional


def test_plugins_are_told_mode_and_role(source):
    """From these the modes are derived that are refused at start; missing, a wrong deployment would start."""
    built = ast.unparse(find(source(GENERATOR), "Generator.__init__"))
    for key in ("layerwise_disaggregated", "max_block_size"):
        assert f"plugin_config['{key}'] = " in built
    statement(find(source(PLUGIN_MANAGER), "PluginManager.__init__"), "kwargs.update({'model_role': model_role})")
    roles = set(values(source(TEXT + "utils/separate_deployment_engine.py"), "DmiModeNodeRole").values())
    assert roles == set(modes._ROLES)
    assert DECODE_ROLE in roles


def test_decode_nodes_refuse_prefix_cache(source):
    """So kv_pool alone is right there, and a file with prefix_cache is a prefill or flex node's."""
    built = ast.unparse(find(source(GENERATOR), "Generator.__init__"))
    condition = "self.pd_config.model_role == DmiModeNodeRole.DECODER and 'prefix_cache' in model_config.get("
    assert condition in built


def test_async_write_excludes_splitfuse(source):
    """The check says so (HC-14) because the host does, before a plugin is built."""
    built = find(source(GENERATOR), "Generator.__init__")
    (refused,) = branch(built, "kv_pool_async_write and 'splitfuse' in model_config.get('plugin_params', '')")
    assert isinstance(refused, ast.Raise)


def test_warm_up_sees_no_pool_and_one_block(source):
    """The plugin is built twice; the first must not open a pool, nor take the throw-away cache for the real one."""
    built = find(source(GENERATOR), "Generator.__init__")
    in_order(built, "_temporarily_disable", "warm_up")
    places = [call[:2] for call in calls(built) if call[2] == "_init_plugin_manager"]
    warm_up = next(call[:2] for call in calls(built) if call[2] == "warm_up")
    assert [place < warm_up for place in places] == [True, False]
    (guard,) = [node for node in ast.walk(built) if isinstance(node, ast.With) and "_temporarily_" in ast.unparse(node)]
    assert "mem_pool=self.generator_backend.kv_pool_backend" in ast.unparse(guard.items[0])
    assert any(call[2] == "_init_plugin_manager" for call in calls(guard))
    disable = find(source(GENERATOR), "Generator._temporarily_disable")
    statement(disable, "self.generator_backend.kv_pool_backend = ''")
    # memory for one block, divided by the bytes of a block
    assert "calc_block_mem" in ast.unparse(guard)
    settings = source(TEXT + "utils/kvcache_settings.py")
    statement(find(settings, "KVCacheSettings"), "self.num_npu_blocks = self.npu_mem // self.cache_block_bytes")


def test_the_models_graph_is_built_from_the_configuration_that_is_wrapped(source):
    """The hook takes the pool's events out and learns where the weights are: both from this dictionary."""
    wrapped = find(source(WRAPPERS + "__init__.py"), "get_model_wrapper")
    assert parameters(wrapped)[0] == "model_config"
    built = find(source(BACKEND), "GeneratorBackend.__init__")
    in_order(built, "parse_config", "get_model_wrapper")
    assert "model_config['mempool_type']" in ast.unparse(built)
    assert values(source(PLUGIN_MANAGER), "MemPoolType")["DISABLED"] == 0
    for file, name in CLASSES["ModelWrapper"]:
        assert "model_id" in parameters(find(source(file), f"{name}.__init__"))


# -- the order of events ----------------------------------------------------------------------------------


def test_a_step_updates_inputs_then_runs_then_verifies_then_frees(source):
    """A reload must end before the forward, a free event come while tokens and lengths can still be read."""
    manager = source(PLUGIN_MANAGER)
    in_order(
        find(manager, "PluginManager.generate_token"),
        *("preprocess", "model_inputs_update_manager", "forward", "sample_preprocess_manager", "sample", "postprocess"),
    )
    post = find(manager, "PluginManager.postprocess")
    in_order(
        post,
        *("plugin_verify_manager", "plugin_cache_update_manager", "update_context"),
        *("clear_finished_context", "plugin_cache_clear_manager", "clear_aborted_context"),
    )
    assert any("plugin_verify_manager" in ast.unparse(node) for node in branch(post, "not self.async_inference"))


def test_a_step_in_async_mode_is_prepared_while_the_one_before_runs(source):
    """The reload waits for that batch; ``hit_mask`` is how the plugin tells the mode."""
    manager = source(PLUGIN_MANAGER)
    step = find(manager, "PluginManager.generate_token_async")
    in_order(step, "preprocess", "model_inputs_update_manager", "prepare_model_inputs", "postprocess")
    texts = [(line, ast.unparse(call.func)) for line, _, _, call in calls(step)]
    first = {text: line for line, text in reversed(texts)}
    update = first["self.model_inputs_update_manager"]
    assert update < first["self.output_queue.get"] < first["self.input_queue.put"]
    given = next(call for _, _, name, call in calls(step) if name == "model_inputs_update_manager")
    assert [keyword.arg for keyword in given.keywords] == ["hit_mask"]
    sync = find(manager, "PluginManager.generate_token")
    given = next(call for _, _, name, call in calls(sync) if name == "model_inputs_update_manager")
    assert given.keywords == []


def test_the_forward_thread_verifies_when_a_batchs_tokens_are_known(source):
    """Then everything the batch wrote is in the cache; earlier, a reload would race with it."""
    loop = find(source(PLUGIN_MANAGER), "PluginManager.forward_loop")
    in_order(loop, "forward_from_model_inputs", "sample_preprocess_manager", "sample", "plugin_verify_manager")
    texts = [(line, ast.unparse(call.func)) for line, _, _, call in calls(loop)]
    verified = next(line for line, text in texts if text.endswith("plugin_verify_manager"))
    assert verified < next(line for line, text in reversed(texts) if text == "self.output_queue.put")
    manage = find(source(PLUGIN_MANAGER), "PluginManager.plugin_verify_manager")
    assert "plugin_verify_exp" in ast.unparse(branch(manage, "ENV.model_runner_exp and ENV.async_inference")[0])


def test_a_failed_batch_is_known_before_the_next_is_prepared(source):
    """The forward thread notes the error, or that the host pauses, before it hands an empty result on; it never
    verifies that batch.  Who waited for it would wait for nothing.
    """
    manager = source(PLUGIN_MANAGER)
    loop = find(manager, "PluginManager.forward_loop")
    (failed,) = [node for node in ast.walk(loop) if isinstance(node, ast.ExceptHandler)]
    statement(failed, "self.error_code_collected_in_async = error_code")
    noted = next(
        node.lineno
        for node in ast.walk(failed)
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "self.error_code_collected_in_async"
    )
    (handed_on,) = [line for line, _, _, call in calls(failed) if ast.unparse(call.func) == "self.output_queue.put"]
    assert noted < handed_on
    assert "plugin_verify_manager" not in {call[2] for call in calls(failed)}
    branch(failed, "self.is_inference_pause or self.error_code_collected_in_async is not None")
    step = find(manager, "PluginManager.generate_token_async")
    reported = branch(step, "self.error_code_collected_in_async is not None")
    assert any("raise ErrorCodeException" in ast.unparse(node) for node in reported)
    assert reported[0].lineno > next(line for line, _, name, _ in calls(step) if name == "model_inputs_update_manager")


def test_a_repair_begins_by_pausing_and_forgets_the_error(source):
    """Between the two nothing in flight is waited for; after it batches land again."""
    recover = find(source(GENERATOR), "Generator.execute_recover_command")
    for command in block_writes.CLOSING_COMMANDS:
        paused = branch(recover, f"command == '{command}'")
        assert any(ast.unparse(node) == "self.plugin_manager.is_inference_pause = True" for node in paused)
    reset = " ".join(ast.unparse(node) for node in branch(recover, "command == 'CMD_REINIT_NPU'"))
    assert "self.plugin_manager.error_code_collected_in_async = None" in reset
    opened = branch(recover, f"command == '{block_writes.OPENING_COMMAND}'")
    assert any(ast.unparse(node) == "self.plugin_manager.is_inference_pause = False" for node in opened)


def test_the_host_frees_through_the_two_functions_that_are_hooked(source):
    """Both get sequence ids first, and contexts go by handle only behind them."""
    for name in ("clear_finished_context", "clear_context_by_seq_ids"):
        function = find(source(CONTEXT), f"TGInferContextStore.{name}")
        assert parameters(function)[1] == "sequence_ids"
        assert "pop_context_handles" in {call[2] for call in calls(function)}
    in_order(find(source(GENERATOR), "Generator.clear_cache"), "clear_context_by_seq_ids")


def test_copies_and_swaps_come_before_the_batch(source):
    """Blocks they write are given up before the batch is prepared, not while it runs."""
    in_order(find(source(ROUTER), "RouterImpl._generate"), "copy_blocks", "_handle_requests")
    in_order(find(source(ROUTER), "RouterImpl._handle_requests"), "_prepare_kv_block", "generate_token")
    in_order(find(source(ROUTER), "RouterImpl._prepare_kv_block"), "swap")


def test_a_copy_names_source_then_destination(source):
    """The other way round the wrong block would be given up."""
    mapping = find(source(TEXT + "utils/block_copy.py"), "BlockCopy.process_mapping")
    statement(mapping, "src, dst = pair.tolist()")


def test_decision_0_swaps_into_the_device(source):
    """Those blocks are overwritten; of decision 1 they are only read."""
    swap = find(source(GENERATOR), "Generator.swap")
    assert "0 -> swap from cpu to npu" in (ast.get_docstring(swap) or "")
    statement(swap, "swap_decision = np.array(block_operation, copy=False)[0]")
    base = find(source(CACHE_POOL), "KVCachePool.sync_swap_base")
    out = " ".join(ast.unparse(node) for node in branch(base, "decision_type == 1"))
    assert "device_block_no = src" in out
    assert block_writes.SWAP_IN == 0


def test_a_pull_names_its_blocks_and_says_whether_they_came(source):
    """Own blocks are the third of each entry; success is 0, anything else means they hold nothing of use."""
    pull = find(source(GENERATOR), "PDInterface.pull_kv")
    assert "dst_block_table=x[2]" in ast.unparse(pull)
    statement(pull, "return MindieLlmStatusCode.SUCCESS, 0")
    assert values(source("utils/status.py"), "MindieLlmStatusCode")["SUCCESS"] == 0


def test_a_pull_from_several_ranks_brings_one_ranks_blocks_after_the_others(source):
    """So a decode node's table does not follow the tokens when its prefill node has cp or sp (block_share.places)."""
    fill = find(source("connector/request_router/router_impl.py"), "RouterImpl._get_id_to_block_table_map")
    loop = next(node for node in ast.walk(fill) if isinstance(node, ast.For) and ast.unparse(node.iter) == "inst_ids")
    told = ast.unparse(loop)
    assert "src_block_table[start_src:start_src + valid_block_num]" in told
    assert "dst_block_table[start_dst:start_dst + valid_block_num]" in told
    assert "start_src += segment_len" in told
    assert "start_dst += valid_block_num" in told


def test_pulled_sequences_begin_with_the_next_decode_batch(source):
    """On the step thread, before the plugins see the batch; those of a pull that failed never begin."""
    generate = find(source(GENERATOR), "Generator.generate_token")
    branch(
        generate,
        "self.pd_config.model_role in [DmiModeNodeRole.DECODER, DmiModeNodeRole.FLEX]"
        " and (not input_metadata.is_prefill) and (not self.input_metadata_queue.empty())",
    )
    in_order(generate, "get_batch_context_handles", "compose_model_inputs", "generate_token_async", "generate_token")
    in_order(find(source(GENERATOR), "PDInterface.pull_kv"), "pull_blocks", "put")


def test_a_decode_node_opens_its_own_pool_when_the_plugins_are_built(source):
    """Then somebody serves, and the client it gets holds nothing (``patches.answer_scheduler``)."""
    in_order(find(source(GENERATOR), "Generator.__init__"), "_init_plugin_manager", "_init_sepd_engine", "create_pool")
    statement(find(source(GENERATOR), "PDInterface.switch_role"), "self.pd_config.model_role = role")


def test_recovery_has_the_commands_we_know(source):
    """A new command could touch the device while we do."""
    recover = find(source(GENERATOR), "Generator.execute_recover_command")
    commands = {
        node.comparators[0].value
        for node in ast.walk(recover)
        if isinstance(node, ast.Compare) and ast.unparse(node.left) == "command"
    }
    others = {"CMD_REINIT_NPU", "CMD_CLEAR_TRANSER"}
    assert commands == {*block_writes.CLOSING_COMMANDS, block_writes.OPENING_COMMAND, *others}
    in_order(recover, "reset_all_context", "execute_recover_command")
    reset = branch(recover, "command == 'CMD_REINIT_NPU'")
    assert "reset_all_context" in {call[2] for node in reset for call in calls(node)}


# -- ranks that run batches of their own in step (distributed_enable, prefill nodes) ------------------------


@pytest.mark.parametrize("adapter", ["generator_torch.GeneratorTorch", "generator_aclgraph.GeneratorAclGraph"])
def test_prefill_ranks_pad_by_the_lengths_they_are_told(adapter, source):
    """``told_lengths`` puts these right: a list per data-parallel rank, and an empty one stands for one token."""
    module, _, owner = adapter.partition(".")
    path = source(f"{TEXT}adapter/{module}.py")
    sizes = find(path, f"{owner}._update_token_size_per_dp_group")
    statement(sizes, "seq_lens_flattened = [max(1, sum(dp_seq_len)) for dp_seq_len in model_inputs.seq_lens]")
    heads = find(path, f"{owner}._update_lm_head_indices")
    statement(heads, "flatten_seq_len.extend(dp_seq_len)")


def test_a_dummy_batch_is_a_prefill_that_is_told_the_lengths(source):
    """So ranks without a prompt take part in the agreement."""
    make = find(source("connector/common/input_metadata_builder.py"), "make_dummy_input_metadata")
    ((*_, made),) = [call for call in calls(make) if call[2] == "InputMetadata"]
    given = {keyword.arg: ast.unparse(keyword.value) for keyword in made.keywords}
    assert (given["is_prefill"], given["is_dummy_batch"], given["computed_blocks"]) == ("True", "True", "None")
    statement(make, "metadata.seq_lens.append(list(dp_batch_seq_lens.seq_lens))")


def test_a_step_that_raises_ends_the_worker(source):
    """What a rank does that could not hear the others; their connections to it close, so they do the same."""
    handle = find(source(ROUTER), "RouterImpl._generate")
    assert [node for node in ast.walk(handle) if isinstance(node, ast.Raise)]
    statement(find(source("utils/status.py"), "CoreThread.run"), "os._exit(1)")


# -- what is done with a hit ------------------------------------------------------------------------------


def test_prefix_cache_trims_by_the_remote_blocks(source):
    """A lowered hit takes effect because this is what the inputs are cut by."""
    trim = find(source(PREFIX_INPUTS), "PrefixCachePreprocess.update_infer_input")
    statement(trim, "not metadata.is_prefill or metadata.remote_computed_blocks is None")
    statement(trim, "remote_computed_blocks = metadata.remote_computed_blocks")
    statement(trim, "cached_size = computed_blocks[i] * self.block_size")
    # with several owners the counts are per rank, and their sum is the hit
    statement(trim, "computed_blocks = np.sum(batch_computed_blocks, axis=1)")
    # of a prompt in chunks only the first
    statement(trim, "metadata.split_start_position is None or split_start_position_i == 0")
    fields = [node for node in ast.walk(trim) if isinstance(node, ast.Attribute)]
    assert "computed_blocks" not in {node.attr for node in fields if ast.unparse(node.value) == "metadata"}
    assert "seq_lens=metadata.seq_lens" in ast.unparse(trim)


def test_hits_are_counted_per_request(source):
    """One that decodes with several sequences has a row for each; else a prompt beside it would get another's hit."""
    trimming = ast.unparse(
        find(
            source(TEXT + "plugins/prefix_cache/prefix_cache_preprocess.py"), "PrefixCachePreprocess.update_infer_input"
        )
    )
    assert "for i, batch_sequence_ids in enumerate(metadata.batch_sequence_ids):" in trimming
    assert "computed_blocks.append(remote_computed_blocks[i])" in trimming


def test_prefix_cache_runs_when_either_count_is_there(source):
    """Both become None together: one alone, and it works with the other missing."""
    update = find(source(PREFIX_CACHE), "PrefixCachePlugin.model_inputs_update")
    in_order(update, "get_prefix_kvcache_from_mempool", "update_infer_input")
    statement(update, "local_has_prefixcache or remote_has_prefixcache")


def test_splitfuse_counts_a_rows_tokens_by_the_computed_blocks(source):
    """There the other count is used, so with SplitFuse both must be equal."""
    count = find(source(PLUGIN_MANAGER), "PluginManager._get_token_num_per_seq")
    statement(count, "batch_seq_len - self.generator_backend.block_size * input_metadata.computed_blocks")
    fields = {node.attr for node in ast.walk(count) if isinstance(node, ast.Attribute)}
    assert "remote_computed_blocks" not in fields


def test_the_hosts_own_pool_opens_only_with_both_names(source):
    """It stands aside because it sees neither while it is built beside kv_pool."""
    built = find(source(PREFIX_CACHE), "PrefixCachePlugin.__init__")
    backend, path = "len(self.generator_backend.kv_pool_backend)", "len(self.generator_backend.kv_pool_config_path)"
    assert any(
        call[2] == "create_pool" for node in branch(built, f"{backend} != 0 and {path} != 0") for call in calls(node)
    )


# -- LoRA -------------------------------------------------------------------------------------------------


def test_adapters_are_registered_with_their_directory(source):
    """Their content names their blocks; without it their requests run without the pool."""
    assert "adapter_info_registry" in members(source(LORA), "LoraManager")
    assert "adapter_path" in members(source(LORA), "AdapterInfo")
    load = ast.unparse(find(source(GENERATOR), "Generator.load_lora"))
    assert "self.model_wrapper.adapter_manager.load_adapter({lora_name: lora_path})" in load


# -- the scheduler, in C++ --------------------------------------------------------------------------------


def test_scheduler_asks_as_we_answer(cpp, source):
    """One call with all keys of a request; an answer is a list of bools, and an exception keeps the GIL."""
    lookup = cpp("include/utils/mem_pool.h")
    assert 'attr("batch_exist")(keys).cast<std::vector<bool>>()' in lookup
    assert "batch_exist" in vars(SchedulerLookup)
    assert "exists" in vars(SchedulerLookup)
    opened = 'attr("create_pool")(config.cachePoolBackend, config.cachePoolConfigPath)'
    assert opened in cpp("block_manager/self_attn_block_manager.cpp")
    create = find(source(TEXT + "mempool/base.py"), "MemPool.create_pool")
    assert ast.literal_eval(create.args.defaults[0]) == "scheduler"


def test_scheduler_names_a_block_by_hash_rank_ranks_and_model(cpp):
    """The alias is cut from this name; in another order no lookup would ever hit."""
    text = "".join(cpp("block_manager/self_attn_block_manager.cpp").split())
    for rank, ranks in (("tpIds", "tpSize"), ("curRankIdx", "rankSize_")):
        name = f'std::to_string(hashValue)+"_"+std::to_string({rank})+"_"+std::to_string({ranks})+"_"+modelName'
        assert name in text


def test_scheduler_deals_blocks_out_from_the_first_rank_on(cpp):
    """``BlockShare`` does the same; another order would store blocks under each other's names."""
    assert "BlockTable::AllocateBlocksForTokenIdsSmallRankFirst(" in cpp("block_manager/block_table.cpp")


def test_scheduler_knows_the_same_health_check(cpp):
    """A health check writes no cache; taken for a request, its row would be."""
    assert str(step_view.SIMULATE_SEQUENCE_ID) in cpp("include/request_response/request_id.h")
