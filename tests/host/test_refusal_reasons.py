"""What MindIE-LLM excludes or withholds, read from its source: the reasons in the support table's rows.

A release in which one of these is gone lets a refusal go.  Nothing of the host is imported.
"""

import ast
import json
import re

import pytest

from mindie_kvpool_plugin import support
from mindie_kvpool_plugin.host.model_facts import FORCED_BALANCE
from tests.host.host_ast import assigned, find, tree
from tests.host.test_host_contract import GENERATOR, PLUGIN_UTILS, ROUTER, TEXT

pytestmark = pytest.mark.mindie


def rows(status):
    return {keys for pair in support.PAIRS if pair.status == status for keys in pair.together}


def raises(path, name, words):
    function = ast.unparse(find(path, name))
    return any(words in line for line in function.splitlines())


def built_inputs(path):
    """The names of the arguments of every ModelInput a file builds."""
    found = [node for node in ast.walk(tree(path)) if isinstance(node, ast.Call)]
    made = [node for node in found if isinstance(node.func, ast.Name) and node.func.id == "ModelInput"]
    return [{keyword.arg for keyword in node.keywords} for node in made]


def test_parallel_decoding_and_asynchronous_scheduling_end_the_start(source):
    """Both words, and no other."""
    excluded = assigned(source(PLUGIN_UTILS), "ASYNC_INFERENCE_UNSUPPORTED_OPTIONS")
    assert set(excluded) == {"la", "memory_decoding"}
    assert {frozenset({word, "async_scheduling"}) for word in excluded} <= rows("excluded")


def test_asynchronous_write_and_splitfuse_end_the_start(source):
    """By the letters anywhere in plugin_params."""
    assert raises(source(GENERATOR), "Generator.__init__", "Async mempool does not support plugin_type: splitfuse")
    assert frozenset({"splitfuse", "async_write"}) in rows("excluded")


def test_adapters_named_at_start_and_splitfuse_end_the_start_on_atb(source):
    """Adapters that are loaded later do not, which is why the plugin refuses the pair."""
    start = ast.unparse(find(source(GENERATOR), "Generator.__init__"))
    assert "lora_adapter is not None and self.is_mix_model" in start
    assert frozenset({"splitfuse", "lora"}) in rows("refused")


@pytest.mark.parametrize(
    ("word", "file"),
    [
        ("memory_decoding", "plugins/memory_decoding/decoding_policy.py"),
        ("splitfuse", "utils/tg_infer_context_store.py"),
    ],
)
def test_no_adapters_reach_the_model(word, file, source):
    """Some inputs are built without them; a block would hold what the base model computed, under the adapter's key."""
    assert any("adapter_ids" not in arguments for arguments in built_inputs(source(TEXT + file)))
    assert frozenset({word, "lora"}) in rows("refused")


def test_rows_of_groups_stand_one_after_the_other_where_decodes_have_to_come_first(cpp, source):
    """A batch with chunks for all groups is no batch the workers understand."""
    request = cpp("engine/llm_engine.cpp")
    per_group = request[request.index("LlmEngine::BuildExecuteModelRequest") :]
    assert per_group.index("for (size_t i = 0; i < metadatas.size(); i++)") < per_group.index(
        "ConstructExecuteModelRequest(request, dpMetas"
    )
    trimming = ast.unparse(
        find(
            source(TEXT + "plugins/prefix_cache/prefix_cache_preprocess.py"),
            "PrefixCachePreprocess.update_infer_input",
        )
    )
    assert "prefill_idx = list(range(decode_len, batch_size))" in trimming
    assert "new_input_ids[:decode_len] = input_ids[:decode_len]" in trimming
    assert frozenset({"splitfuse", "dp"}) in rows("refused")


def test_the_mask_of_guesses_is_not_cut_for_a_group(source):
    """It is handed over under one name and cut under another."""
    step = ast.unparse(find(source(TEXT + "plugins/plugin_manager.py"), "PluginManager.generate_token"))
    assert "attn_mask=self.plugin_data_param.mask" in step
    cutting = ast.unparse(find(source(TEXT + "adapter/generator_torch.py"), "GeneratorTorch._dp_partition_data"))
    assert "kwargs.get('spec_mask', None)" in cutting
    assert "attn_mask" not in cutting
    assert frozenset({"la", "dp"}) in rows("refused")


def test_inputs_of_memory_decoding_name_no_group(source):
    """Which rows are a group's cannot be asked then."""
    made = built_inputs(source(TEXT + "plugins/memory_decoding/decoding_policy.py"))
    assert any("dp_rank_ids" not in arguments for arguments in made)
    assert frozenset({"memory_decoding", "dp"}) in rows("excluded")


def test_documents_exclude_long_sequences_with_chunks_and_parallel_decoding(source):
    """Context and sequence parallelism are the features of that kind."""
    features = source("../docs/zh/user_guide/feature")
    if not features.is_dir():
        pytest.skip("needs MindIE-LLM's documents beside mindie_llm")
    table = (features / "README.md").read_text(encoding="utf-8")
    of_that_kind = table[table.index(">长序列特性</td>") : table.index(">调度特性</td>")]
    assert "context_parallel.md" in of_that_kind
    assert "sequence_parallel.md" in of_that_kind
    for page in ("splitFuse.md", "speculative_decoding.md"):
        (excluded,) = [
            line
            for line in (features / page).read_text(encoding="utf-8").splitlines()
            if "该特性不能和" in line and "长序列" in line
        ]
        assert "MTP" in excluded
    together = {frozenset({ours, own}) for ours in ("cp", "sp") for own in ("la", "memory_decoding", "splitfuse")}
    assert together <= rows("refused")


def test_the_torch_backend_swaps_through_what_its_cache_does_not_have(source):
    """And only its models have the sparse attention's index."""
    swap = ast.unparse(find(source(TEXT + "adapter/generator_aclgraph.py"), "GeneratorAclGraph.swap_cache"))
    assert "self.cache_pool.swap_cache(" in swap
    cache = tree(source(TEXT + "adapter/torch_utils/kvcache_pool.py"))
    assert "swap_cache" not in {node.name for node in ast.walk(cache) if isinstance(node, ast.FunctionDef)}
    assert {frozenset({"swap", "sparse_index"}), frozenset({"swap", "backend_torch"})} <= rows("excluded")


def test_blocks_of_several_ranks_cannot_be_swapped(cpp):
    """The scheduler's thread catches nothing, so that its process ends."""
    assert "Can not swap when rank size larger than 1!" in cpp("block_manager/cpu_npu_block_allocator.cpp")
    engine = cpp("engine/llm_engine.cpp")
    begin = engine.index("void LlmEngine::SchedulerThreadEntry")
    assert "catch" not in engine[begin : engine.index("\n}", begin)]
    assert {frozenset({"cp", "swap"}), frozenset({"sp", "swap"})} <= rows("excluded")


def test_context_and_data_parallel_end_the_start(source):
    """In ATB models, where the source tree has them."""
    mapping = source("../examples/atb_models/atb_llm/utils/mapping.py")
    if not mapping.exists():
        pytest.skip("needs ATB-Models' source beside mindie_llm")
    assert raises(mapping, "Mapping.validate", "cannot support context parallel and data parallel simultaneously")
    assert frozenset({"cp", "dp"}) in rows("excluded")


def test_requests_for_several_answers_are_refused_beside_these_modes(cpp):
    """By the server, before anything is scheduled."""
    text = cpp("server/endpoint/utils/infer_param.cpp")
    for sentence in (
        "n must be 1 while MINDIE_ASYNC_SCHEDULING_ENABLE is on",
        "beam search cannot be used with plugins",
        "best_of/n > 1 cannot be used with plugins",
        "n must be 1 in dmi mode",
        "use_beam_search is not supported in dmi mode",
        "best_of/n > 1 cannot be used with deepseek",
    ):
        assert sentence in text
    assert '{"mtp", "la", "memory_decoding"}' in cpp("config_manager/config_interaction.cpp")


def test_copies_and_swaps_of_all_groups_reach_all_ranks(cpp, source):
    """They are written without their group, and no worker sorts them out."""
    assert "AllGather(sendOutput, allDpOutputs, dpRank)" in cpp("scheduler/post_scheduler.cpp")
    written = cpp("engine/construct_execute_request.cpp")
    assert "for (auto pair : scOut.blocksToCopy_)" in written
    assert "for (auto pair : scOut.blocksToSwapIn_)" in written
    assert "self.generator.swap(input_metadata_composite.block_op)" in source(ROUTER).read_text(encoding="utf-8")
    assert {frozenset({"dp", key}) for key in ("n", "beam", "swap")} <= rows("excluded")


def test_of_a_group_only_the_first_is_swapped_in(cpp):
    """The loop over the group's sequences swaps the root each time."""
    text = "".join(cpp("scheduler/policy/policy_helper.cpp").split())
    assert "for(autoseqGrp:seqGrps){SeqsSwapIn(seqGroup,blockToSwapIn);}" in text


def test_adapters_are_not_loaded_on_nodes_of_a_disaggregated_deployment(cpp):
    """The server answers so."""
    assert "Multi Lora does not support PD separation!" in cpp("llm_manager_v2/impl/llm_manager_impl.cpp")


def test_a_repair_frees_blocks_that_are_still_to_be_pulled(cpp):
    """A prompt waits among the transferring ones for its pull; when it ends there, only its own server hears of it."""
    scheduler = cpp("scheduler/scheduler.cpp")
    assert "transferringMap_.Insert(seqGroupSptr->seqGroup_->firstSeq->seqId_" in scheduler
    stop = scheduler[scheduler.index("void Scheduler::StopRunningRequest()") :]
    stop = stop[: stop.index("\n}")]
    assert "transferringMap_.Erase(seqId);" in stop
    assert "ClearSeqGrp(sgPtr, SequenceStatus::FINISH_ABORTED);" in stop
    engine = cpp("engine/llm_engine.cpp")
    paused = engine[engine.index("if (isPauseScheduling_.load(") :]
    assert paused.index("StopRunningRequest();") < paused.index("continue;")
    answers = cpp("server/endpoint/single_llm_req_handler/single_llm_prefill_req_handler.cpp")
    assert answers.index("if (self->isFinish_.load()) {") < answers.index("if (response->isEos) {")
    assert {frozenset({role, "recovery"}) for role in ("pd_prefill", "pd_flex")} <= rows("excluded")


def test_groups_are_named_over_a_route_that_takes_no_flex_role(cpp):
    """And a flex node's engine neither goes in step with other groups nor runs dummy batches for them."""
    routes = cpp("server/endpoint/http_wrapper/http_handler.cpp")
    assert 'R"(/v1/role/(prefill|decode|flex))"' in routes
    assert 'R"(/v2/role/(prefill|decode))"' in routes
    roles = cpp("server/endpoint/http_wrapper/dmi_role.cpp")
    for of_groups in ("localDpInstanceIds.emplace_back", "localDeviceRankIds.emplace_back"):
        told = roles.split(of_groups)[:-1]
        assert told
        assert all(found_in(text).endswith("V2") for text in ["".join(told[: at + 1]) for at in range(len(told))])
    engine = cpp("engine/llm_engine.cpp")
    assert "schedulerConfig_->distributedEnable && isProcessGroupInit && role_ == Role::P;" in engine
    assert "if (role_ == Role::D && schedulerConfig_->distributedEnable)" in engine
    assert frozenset({"dp_servers", "pd_flex"}) in rows("excluded")


def found_in(text):
    """The name of the function of a class whose body ``text`` ends in."""
    return re.findall(r"^[\w:<>]+ DmiRole::(\w+)\(", text, re.MULTILINE)[-1]


def test_an_image_is_a_random_name_among_the_tokens(source):
    """The scheduler hashes it with the others, so that an image is never found again."""
    shared = source("../examples/atb_models/atb_llm/utils/shm_utils.py")
    if not shared.exists():
        pytest.skip("needs ATB-Models' source beside mindie_llm")
    assert "SharedMemory(create=True, size=size)" in ast.unparse(find(shared, "create_shm"))
    assert "final_value = -final_value" in ast.unparse(find(shared, "encode_shm_name_to_int64"))
    assert next(mode for mode in support.MODES if mode.key == "multimodal").status == "refused"


def test_forced_balance_is_the_level_that_parts_keys(source):
    """Its tokens go to experts in turn; the other levels move experts."""
    levels = source("../examples/atb_models/atb_llm/utils/moe_utils.py")
    if not levels.exists():
        pytest.skip("needs ATB-Models' source beside mindie_llm")
    assert f"FORCE_EPLB = {FORCED_BALANCE}" in ast.unparse(find(levels, "EPLBType"))
    config = json.loads(source("../examples/atb_models/atb_llm/conf/config.json").read_text())
    assert config["models"]["deepseekv2"]["eplb"]["level"] == 0
    assert {"enable_init_routing_cutoff", "topk_scaling_factor"} <= set(config["models"]["deepseekv2"])
    runner = source("../examples/atb_models/atb_llm/runner/model_runner.py")
    assert "self.llm_config = router_ins.llm_config" in ast.unparse(find(runner, "ModelRunner.__init__"))


def test_positions_follow_the_longest_sequence(source):
    """What is stretched once stays so, and a batch's length decides; yarn makes its table longer and no more."""
    embedding = source("../examples/atb_models/atb_llm/utils/layers/embedding/position_rotary_embedding.py")
    if not embedding.exists():
        pytest.skip("needs ATB-Models' source beside mindie_llm")
    stretch = ast.unparse(find(embedding, "PositionRotaryEmbedding.dynamic_ntk_rotary_embedding"))
    assert "if seqlen > self._seq_len_cached" in stretch
    assert "base = base * self.get_ntk_alpha(seqlen" in stretch
    yarn = ast.unparse(find(embedding, "PositionRotaryEmbedding.yarn_scaling_rotary_embedding"))
    assert "base * " not in yarn
    llama = source("../examples/atb_models/atb_llm/models/llama/flash_causal_llama.py").read_text()
    assert """== "llama3\"""" in llama
    assert "max_seq_len > self.config.max_position_embeddings" in llama
    assert next(mode for mode in support.MODES if mode.key == "scaled_by_length").status == "refused"
