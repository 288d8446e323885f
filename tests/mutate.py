"""Takes one guard away before the tests run: ``KVPOOL_MUTATION=name pytest -p tests.mutate ...``.

``tests/test_mutations.py`` runs every one of them and expects the test named beside it to fail.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

from mindie_kvpool_plugin.check import repair
from mindie_kvpool_plugin.core.block_directory import BlockDirectory
from mindie_kvpool_plugin.core.device_gate import DeviceGate
from mindie_kvpool_plugin.core.spill import Spill
from mindie_kvpool_plugin.host import block_writes, modes, step_view, weights
from mindie_kvpool_plugin.host.device_memory import CacheLayout
from mindie_kvpool_plugin.host.in_flight import InFlight
from mindie_kvpool_plugin.host.plugin import KvPoolPlugin
from mindie_kvpool_plugin.host.sequence_table import SequenceTable
from mindie_kvpool_plugin.host.told_lengths import ToldLengths
from mindie_kvpool_plugin.host.worker import PoolWorker

WRITES = "tests/walks/test_block_writes.py"
TWO_NODES = "tests/walks/test_two_nodes.py"


@dataclass(frozen=True)
class Mutation:
    """A guard, how it is taken away, and a test that must fail without it."""

    owner: Any
    name: str
    instead: Callable[..., Any]
    test: str


def _nothing(*args, **kwargs):
    """Instead of a guard."""


def _all_certain(enter):
    return lambda *args, **kwargs: enter(*args, **{**kwargs, "certain": None})


@contextlib.contextmanager
def _let_everybody_in(self):
    yield True


@contextlib.contextmanager
def _of_nobody(self, sequence_ids):
    yield


def _without_last_layer(build):
    return lambda self, npu_cache, num_blocks=None: build(self, npu_cache[:-1], num_blocks)


def _leave_announced(finish):
    def finish_alone(self, metadata, model_inputs):
        announced = metadata.seq_lens
        finish(self, metadata, model_inputs)
        metadata.seq_lens = model_inputs.seq_lens = announced

    return finish_alone


def _accept_unseen(now, best, proposals, measure):
    text = repair.apply_edits(now.document.text, [edit for each in proposals for edit in each.edits])
    document = repair.load_bytes(text.encode(), now.document.name)
    done = tuple(each.finding.code for each in proposals)
    return replace(now, document=document, codes=done) if text != now.document.text else None


def _first_ranks_only(metadata, dp_rank):
    return (metadata.all_sequence_ids >= 0).nonzero()[0]


MUTATIONS = {
    "copies and swaps are not told": Mutation(
        KvPoolPlugin,
        "blocks_overwritten",
        _nothing,
        f"{WRITES}::test_a_write_waits_for_the_spill_that_reads[copy-guarded]",
    ),
    "pulls are not told": Mutation(
        KvPoolPlugin,
        "blocks_pulled",
        _nothing,
        f"{WRITES}::test_what_was_overwritten_is_not_taken_to_be_there[pull-guarded]",
    ),
    "arrivals are not told": Mutation(
        KvPoolPlugin, "blocks_arrived", _nothing, f"{TWO_NODES}::test_an_answer_is_found_by_the_prefill_node"
    ),
    "pulled blocks are read in the order of the table": Mutation(
        block_writes,
        "counts_by_source",
        lambda block_ids, sources: [len(block_ids)],
        "tests/walks/test_two_nodes_dealt_out.py::test_blocks_that_only_the_decode_node_could_store_are_right[sp2-sync]",
    ),
    "a pull does not wait for the batch in flight": Mutation(
        InFlight,
        "wait",
        lambda self, timeout_s: True,
        f"{TWO_NODES}::test_host_pulls_into_blocks_that_a_batch_in_flight_still_writes[with-pool]",
    ),
    "a write does not wait at the fence": Mutation(
        Spill, "wait", _nothing, f"{WRITES}::test_a_write_waits_for_the_spill_that_reads[swap-guarded]"
    ),
    "vanished owners are not saved": Mutation(
        Spill,
        "_save_abandoned",
        _nothing,
        f"{WRITES}::test_an_aborted_sequence_is_saved_before_the_write[sync-copy-guarded]",
    ),
    "who goes on in the batch counts as vanished": Mutation(
        Spill,
        "computing",
        _of_nobody,
        "tests/walks/test_chunks.py::test_a_prompt_that_shares_what_another_one_computes_in_the_same_batch[24-2-sync]",
    ),
    "who goes on in the batch counts as vanished, and the pool was filled before": Mutation(
        Spill,
        "computing",
        _of_nobody,
        "tests/walks/test_mode_sweep.py::test_combination_costs_recomputing_and_nothing_else"
        "[seed-35:-chunks,-pool-filled,-fault-short]",
    ),
    "the directory does not forget": Mutation(
        BlockDirectory,
        "rewrite",
        _nothing,
        f"{WRITES}::test_what_was_overwritten_is_not_taken_to_be_there[copy-guarded]",
    ),
    "a closed device is read and written": Mutation(
        DeviceGate,
        "passing",
        _let_everybody_in,
        f"{WRITES}::test_closing_the_gate_waits_for_those_inside_and_keeps_others_out",
    ),
    "a repair is not told": Mutation(
        KvPoolPlugin, "device_closing", _nothing, f"{WRITES}::test_pool_hits_come_back_after_a_repair[sync]"
    ),
    "a pull outlives a repair": Mutation(
        DeviceGate,
        "stayed_open",
        lambda self, mark: True,
        "tests/walks/test_pull_and_repair.py::test_what_a_repair_took_is_not_stored[pull pause reset arrive start]",
    ),
    "a device is never opened again": Mutation(
        PoolWorker, "open_device", _nothing, f"{WRITES}::test_pool_hits_come_back_after_a_repair[sync]"
    ),
    "a closed device's contents are believed": Mutation(
        DeviceGate, "is_open", lambda self: True, f"{WRITES}::test_pool_hits_come_back_after_a_repair[sync]"
    ),
    "batches that never end are waited for": Mutation(
        InFlight, "reset", _nothing, f"{WRITES}::test_a_batch_that_never_ends_does_not_hold_up_the_next_hit[guarded]"
    ),
    "batches that failed are waited for": Mutation(
        InFlight,
        "is_broken",
        lambda self: False,
        "tests/unit/host/test_in_flight.py::test_a_batch_that_will_not_land_is_not_waited_for",
    ),
    "a beam's answer is stored": Mutation(
        SequenceTable,
        "enter",
        _all_certain(SequenceTable.enter),
        "tests/unit/host/test_sequence_table.py::test_look_ends_where_the_tokens_stop_being_certain",
    ),
    "rows of other data-parallel ranks are taken": Mutation(
        step_view,
        "going_rows",
        _first_ranks_only,
        "tests/unit/host/test_step_view.py::test_decode_rows_of_a_request_with_several_sequences_belong_to_its_rank",
    ),
    "ranks that run other batches are not told": Mutation(
        ToldLengths,
        "finish",
        _leave_announced(ToldLengths.finish),
        "tests/walks/test_servers.py::test_servers_are_right_while_gets_fail_on_one_rank[dp2-prefill-sync-write]",
    ),
    "weights are named by their configuration": Mutation(
        weights, "_read_shard", lambda path, samples: b"", "tests/unit/host/test_weights.py"
    ),
    "the draft layer is left out": Mutation(
        CacheLayout,
        "__init__",
        _without_last_layer(CacheLayout.__init__),
        "tests/walks/test_mtp.py::test_drafts_are_right_with_a_pool[1-sync-sync-write]",
    ),
    "la's tokens are taken for certain at once": Mutation(
        modes,
        "settles_late",
        lambda active: False,
        "tests/walks/test_guessing.py::test_answers_that_end_anywhere_are_stored_as_far_as_they_are_certain[la]",
    ),
    "repairs are accepted unseen": Mutation(
        repair,
        "_tried",
        _accept_unseen,
        "tests/unit/check/test_repair.py::test_round_that_reads_otherwise_than_foreseen_is_not_accepted",
    ),
    "nothing is refused": Mutation(modes, "refuse_unsupported", _nothing, "tests/unit/host/test_modes.py"),
}
"""What is taken away -> how, and which test sees it."""


def pytest_configure():
    """Apply the mutation that the environment names."""
    mutation = MUTATIONS[os.environ["KVPOOL_MUTATION"]]
    setattr(mutation.owner, mutation.name, mutation.instead)
