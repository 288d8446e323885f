"""What MindIE-LLM excludes or withholds, read from its source: the reasons in the support table's rows.

A release in which one of these is gone lets a refusal go.  Nothing of the host is imported.
"""

import ast

import pytest

from mindie_kvpool_plugin import support
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


def test_an_image_is_a_random_name_among_the_tokens(source):
    """The scheduler hashes it with the others, so that an image is never found again."""
    shared = source("../examples/atb_models/atb_llm/utils/shm_utils.py")
    if not shared.exists():
        pytest.skip("needs ATB-Models' source beside mindie_llm")
    assert "SharedMemory(create=True, size=size)" in ast.unparse(find(shared, "create_shm"))
    assert "final_value = -final_value" in ast.unparse(find(shared, "encode_shm_name_to_int64"))
    assert next(mode for mode in support.MODES if mode.key == "multimodal").status == "refused"
