"""Unit tests of simulator/sequence_groups.py and of the scheduler's groups.  Blocks hold four tokens."""

import itertools

import numpy as np
import pytest

from mindie_kvpool_plugin.simulator.beams import reference_beams
from mindie_kvpool_plugin.simulator.block_manager import BlockManager
from mindie_kvpool_plugin.simulator.engine import Engine, EngineConfig
from mindie_kvpool_plugin.simulator.metadata import batch_metadata
from mindie_kvpool_plugin.simulator.model_shape import ModelShape
from mindie_kvpool_plugin.simulator.oracle import EOS_TOKEN, reference_answer
from mindie_kvpool_plugin.simulator.requests import Limits, Request
from mindie_kvpool_plugin.simulator.run import wrong_answers
from mindie_kvpool_plugin.simulator.scheduler import Scheduler
from mindie_kvpool_plugin.simulator.sequence_groups import make_children

A, B = [1, 2, 3, 4], [5, 6, 7, 8]
PROMPT = list(range(10, 31))


def _group(prompt, best_of, max_tokens=8):
    request = Request(1, prompt, max_tokens, n=best_of)
    make_children(request, best_of, itertools.count(2))
    return request


def _prefilled(scheduler, request):
    """Prefill it; sequence i answers 100 + i."""
    scheduler.submit(request)
    batch = scheduler.schedule()
    assert batch is not None
    assert batch.sequences == [request]
    scheduler.sent(batch)
    ids = [sequence.sequence_id for sequence in request.samples]
    scheduler.take(ids, [100 + sequence_id for sequence_id in ids], [0] * len(ids))


def _next(scheduler):
    batch = scheduler.schedule()
    assert batch is not None
    return batch


def test_children_share_full_blocks_and_copy_the_last():
    """``[0, 1]`` are full; each child gets a block of its own for the third and copies the parent's into it."""
    scheduler, request = Scheduler(BlockManager(8, 4), Limits()), _group([*A, *B, 9], 3)
    _prefilled(scheduler, request)
    assert request.blocks.block_ids == [0, 1, 2]
    batch = _next(scheduler)
    # the newest child comes first, as in the host's map
    assert [sequence.sequence_id for sequence in batch.sequences] == [3, 2, 1]
    assert [sequence.blocks.block_ids for sequence in batch.sequences] == [[0, 1, 3], [0, 1, 4], [0, 1, 2]]
    assert batch.copies == [(2, 3), (2, 4)]
    assert scheduler.copied_blocks == 2
    scheduler.manager.check_integrity()


def test_children_of_full_blocks_only_copy_nothing():
    """Their own token begins a block of its own."""
    scheduler, request = Scheduler(BlockManager(8, 4), Limits()), _group([*A, *B], 2)
    _prefilled(scheduler, request)
    batch = _next(scheduler)
    assert batch.copies == []
    assert [sequence.blocks.block_ids for sequence in batch.sequences] == [[0, 1, 2], [0, 1, 3]]


def test_children_copy_every_block_when_nothing_is_cached():
    """Without prefix_cache no block is found."""
    scheduler, request = Scheduler(BlockManager(8, 4, caching=False), Limits()), _group([*A, 9], 2)
    _prefilled(scheduler, request)
    assert _next(scheduler).copies == [(0, 2), (1, 3)]


def test_blocks_are_copied_once():
    """The second decode batch finds them in place."""
    scheduler, request = Scheduler(BlockManager(8, 4), Limits()), _group([*A, 9], 2)
    _prefilled(scheduler, request)
    scheduler.sent(_next(scheduler))
    scheduler.take([1, 2], [7, 8], [0, 0])
    assert _next(scheduler).copies == []


def test_group_that_does_not_fit_is_aborted_and_leaves_nothing():
    """Three blocks for the parent, one for the first child, none for the second."""
    scheduler, request = Scheduler(BlockManager(4, 4), Limits()), _group([*A, *B, 9], 3)
    _prefilled(scheduler, request)
    assert scheduler.schedule() is None
    assert (scheduler.aborted_groups, scheduler.copied_blocks) == (1, 0)
    assert request.state == "aborted"
    assert scheduler.cleanup == [1]
    assert scheduler.reclaim() == [request]
    # the children are told one turn later, as the host does
    assert scheduler.cleanup == [1, 3, 2, 1]
    assert scheduler.manager.num_free == 4
    assert scheduler.idle
    scheduler.manager.check_integrity()


def test_block_of_a_child_that_never_ran_is_not_found():
    """It was full and named, but nobody filled it."""
    scheduler, request = Scheduler(BlockManager(4, 4), Limits()), _group([*A, 5, 6, 7], 4)
    _prefilled(scheduler, request)
    assert scheduler.schedule() is None
    scheduler.reclaim()
    table = scheduler.manager.allocate([*A, 5, 6, 7, 104])
    assert scheduler.manager.num_computed(table) == 1


def test_sequences_end_one_by_one():
    """Each gives its blocks back at the turn after its end; the request ends with the last."""
    scheduler, request = Scheduler(BlockManager(8, 4), Limits()), _group([*A, 9], 2)
    _prefilled(scheduler, request)
    scheduler.sent(_next(scheduler))
    scheduler.take([2, 1], [7, 8], [0, 1])
    assert request.state == "running"
    assert scheduler.reclaim() == []
    assert scheduler.forgotten == [1]
    assert scheduler.cleanup == []
    batch = _next(scheduler)
    assert [sequence.sequence_id for sequence in batch.sequences] == [2]
    scheduler.sent(batch)
    scheduler.take([2], [7], [6])
    assert scheduler.reclaim() == [request]
    assert (request.state, scheduler.manager.num_free) == ("finished", 8)


def test_metadata_has_a_row_per_sequence():
    """Ids and limits per sequence, the host's lists per request; what is asked for is told with the prefill."""
    with Engine(EngineConfig(block_size=4)) as engine:
        request = engine.submit(PROMPT, 8, n=2, best_of=3)
        other = engine.submit([5, *PROMPT], 8)
        batch = engine.scheduler.schedule()
        assert batch is not None
        prefill = batch_metadata(batch, 129, 4, 64)
        assert (prefill.batch_n.tolist(), prefill.batch_best_of.tolist()) == ([2, 1], [3, 1])
        assert prefill.batch_use_beam_search.tolist() == [False, False]
        assert [ids.tolist() for ids in prefill.reserved_sequence_ids] == [[2, 3], []]
        engine.scheduler.sent(batch)
        engine.scheduler.take([1, 2, 3, other.sequence_id], [7, 8, 9, 10], [0] * 4)
        batch = engine.scheduler.schedule()
        assert batch is not None
        decode = batch_metadata(batch, 129, 4, 64)
        assert [ids.tolist() for ids in decode.batch_sequence_ids] == [[3, 2, 1], [4]]
        assert decode.all_sequence_ids.tolist() == [3, 2, 1, 4]
        assert decode.batch_max_output_lens.tolist() == [8] * 4
        assert len(decode.trace_ids) == len(decode.batch_dp_rank_ids) == 2
        tables = [sequence.blocks.block_ids for sequence in (*reversed(request.samples), other)]
        assert [row[row >= 0].tolist() for row in decode.batch_block_tables] == tables


@pytest.mark.parametrize("tp", [1, 2])
def test_samples_differ_and_each_is_right(tp):
    """No two draw the same first token; all are what the oracle expects of them."""
    with Engine(EngineConfig(tp=tp, hbm_blocks=32)) as engine:
        request = engine.submit(PROMPT, 12, n=2, best_of=4)
        engine.run()
        assert engine.done == [request]
        assert len({sequence.answer[0] for sequence in request.samples}) == 4
        assert len({tuple(sequence.answer) for sequence in request.samples}) == 4
        assert [len(sequence.answer) for sequence in request.samples] == [12] * 4
        assert wrong_answers(request, engine.config.shape) == 0
        assert (engine.oracle.corruptions, engine.oracle.input_errors, engine.leaked_blocks) == (0, 0, 0)


def test_sample_does_not_depend_on_company():
    """Alone or among others, and whatever its sequence id: a sample answers the same."""
    answers = []
    for others in (0, 3):
        with Engine(EngineConfig()) as engine:
            for first in range(others):
                engine.submit([first + 3, *PROMPT], 9)
            request = engine.submit(PROMPT, 9, n=3)
            engine.run()
            answers.append([sequence.answer for sequence in request.samples])
    assert answers[0] == answers[1]


def test_samples_end_independently():
    """With EOS tokens in the vocabulary their lengths differ."""
    with Engine(EngineConfig(shape=ModelShape(eos_every=12))) as engine:
        request = engine.submit(PROMPT, 40, n=4)
        plain = engine.submit([5, *PROMPT], 40)
        engine.run()
        assert len({len(sequence.answer) for sequence in request.samples}) > 1
        assert any(sequence.answer[-1] == EOS_TOKEN for sequence in request.samples)
        assert len(plain.answer) == 40
        assert wrong_answers(request, engine.config.shape) == 0
        assert engine.leaked_blocks == 0


def test_wrong_sample_is_told_from_a_right_one():
    """A child that answers as its parent, or stops too early, is wrong."""
    request = _group(PROMPT, 2)
    shape = ModelShape()
    right = [reference_answer(PROMPT, 8, shape.vocab_size, sample=sample) for sample in (0, 1)]
    request.state = "finished"
    request.answer, request.children[0].answer = right
    assert wrong_answers(request, shape) == 0
    request.children[0].answer = right[0]
    assert wrong_answers(request, shape) == 1
    request.children[0].answer = right[1][:-1]
    assert wrong_answers(request, shape) == 1


def test_damage_to_a_childs_copy_is_the_childs():
    """Only who attended to the wrong bytes answers wrongly."""
    with Engine(EngineConfig()) as engine:
        request = engine.submit(PROMPT, 8, n=2)
        engine.step()
        engine.step()
        child = request.children[0]
        assert child.blocks.block_ids[-1] != request.blocks.block_ids[-1]
        for layer in engine.kv_cache():
            for tensor in layer:
                tensor[child.blocks.block_ids[-1]] = 7
        engine.run()
        assert engine.oracle.corruptions > 0
        right = [reference_answer(PROMPT, 8, 1024, sample=sample) for sample in (0, 1)]
        assert request.answer == right[0]
        assert child.answer != right[1]


def test_aborted_group_is_forgotten_by_the_workers():
    """All its sequences' contexts are given back."""
    with Engine(EngineConfig()) as engine:
        request = engine.submit(PROMPT, 30, n=3)
        for _ in range(4):
            engine.step()
        known = engine.workers[0].generator.infer_context._batch_context.sequence_context_slot_map
        assert set(known) == {1, 2, 3}
        engine.abort(request)
        engine.run()
        assert not known
        assert engine.done == [request]
        assert engine.leaked_blocks == 0


@pytest.mark.parametrize(
    ("config", "arguments", "words"),
    [
        ({"async_scheduling": True}, {"n": 2}, "asynchronous scheduling"),
        ({"max_preempt_count": 1, "cpu_blocks": 8}, {"n": 2}, "max_preempt_count"),
        ({}, {"n": 3, "best_of": 2}, "n is 3 and best_of 2"),
        ({}, {"n": 17}, "best_of is 17"),
        ({}, {"n": 2, "adapter": "a"}, "adapter"),
        ({"async_scheduling": True}, {"n": 2, "beams": True}, "asynchronous scheduling"),
        ({}, {"n": 1, "beams": True}, "two beams"),
        ({}, {"n": 2, "best_of": 3, "beams": True}, "best_of 3"),
    ],
)
def test_group_the_host_does_not_take_is_refused(config, arguments, words):
    """With the reason."""
    with Engine(EngineConfig(**config)) as engine, pytest.raises(ValueError, match=words):
        engine.submit(PROMPT, 8, **arguments)


def test_forked_context_begins_as_its_parents():
    """The child's handle has the parent's tokens and length, and goes on by itself."""
    with Engine(EngineConfig()) as engine:
        engine.submit(PROMPT, 8, n=2)
        engine.step()
        context = engine.workers[0].generator.infer_context
        handles = [context._batch_context.sequence_context_slot_map[sequence_id] for sequence_id in (1, 2)]
        assert handles == [2047, 2046]
        assert context.get_seq_lens(handles).tolist() == [len(PROMPT) + 1] * 2
        tokens = context.get_all_input_ids(handles)
        assert np.array_equal(tokens[0, : len(PROMPT)], tokens[1, : len(PROMPT)])
        assert tokens[0, len(PROMPT)] != tokens[1, len(PROMPT)]


def _searched(scheduler, prompt, width=3):
    """Beams 1 to ``width`` of this prompt, which have answered 100 + their number and have blocks of their own."""
    request = _group(prompt, width)
    request.is_beam_search = True
    scheduler.submit(request)
    scheduler.sent(_next(scheduler))
    _answer(scheduler, [(number, 1, 100 + number) for number in range(1, width + 1)])
    scheduler.sent(_next(scheduler))
    return request


def _answer(scheduler, samples):
    scheduler.branch(samples)
    scheduler.take([name for name, _, _ in samples], [token for _, _, token in samples], [0] * len(samples))


def test_moved_beam_gives_its_blocks_back_and_copies_its_new_parents():
    """Beam 3 goes on from beam 2: block 4 is given back, 5 is the next free one; beam 1's copy has ended."""
    scheduler = Scheduler(BlockManager(8, 4), Limits())
    request = _searched(scheduler, [*A, *B, 9])
    assert [sample.blocks.block_ids for sample in request.samples] == [[0, 1, 2], [0, 1, 4], [0, 1, 3]]
    _answer(scheduler, [(-1, 1, EOS_TOKEN), (2, 2, 7), (1, 1, 8), (3, 2, 9)])
    assert request.ended_beams == [[101, EOS_TOKEN]]
    assert [sample.answer for sample in request.samples] == [[101, 8], [102, 7], [102, 9]]
    assert scheduler.moved_beams == 1
    batch = _next(scheduler)
    assert batch.copies == [(4, 5)]
    assert [sample.blocks.block_ids for sample in request.samples] == [[0, 1, 2], [0, 1, 4], [0, 1, 5]]
    assert scheduler.manager.num_free == 8 - 5
    scheduler.manager.check_integrity()


def test_first_sequence_may_move_too():
    """It is a beam like the others; nothing is copied twice."""
    scheduler = Scheduler(BlockManager(8, 4), Limits())
    request = _searched(scheduler, [*A, 9], width=2)
    _answer(scheduler, [(2, 2, 7), (1, 2, 8)])
    batch = _next(scheduler)
    assert request.answer == [102, 8]
    assert batch.copies == [(request.children[0].blocks.block_ids[1], request.blocks.block_ids[1])]
    scheduler.sent(batch)
    _answer(scheduler, [(2, 2, 5), (1, 1, 6)])
    assert _next(scheduler).copies == []


def test_metadata_of_a_search_in_beams():
    """The host is told the width as n, and that nothing is drawn."""
    with Engine(EngineConfig(block_size=4)) as engine:
        engine.submit(PROMPT, 8, n=3, beams=True)
        prefill = batch_metadata(engine.scheduler.schedule(), 129, 4, 64)
        assert (prefill.batch_n.tolist(), prefill.batch_best_of.tolist()) == ([3], [1])
        assert prefill.batch_use_beam_search.tolist() == [True]
        assert [ids.tolist() for ids in prefill.reserved_sequence_ids] == [[2, 3]]


@pytest.mark.parametrize("tp", [1, 2])
def test_searches_find_the_beams_of_the_model(tp):
    """In one batch with an ordinary request and one with several answers; beams move, and some end."""
    with Engine(EngineConfig(tp=tp, hbm_blocks=48, shape=ModelShape(eos_every=12))) as engine:
        searches = [engine.submit([first, *PROMPT], 40, n=3, beams=True) for first in range(3)]
        others = [engine.submit(PROMPT, 30), engine.submit(PROMPT, 30, n=2)]
        engine.run()
        assert [wrong_answers(request, engine.config.shape) for request in searches + others] == [0] * 5
        assert all(len({tuple(sample.answer) for sample in request.samples}) == 3 for request in searches)
        assert all(request.ended_beams for request in searches)
        assert engine.scheduler.moved_beams > 0
        assert (engine.oracle.corruptions, engine.oracle.input_errors, engine.leaked_blocks) == (0, 0, 0)


def test_wrong_beam_is_told_from_a_right_one():
    """One token of one beam, or one beam that ended, is enough."""
    shape = ModelShape(eos_every=12)
    request = _group(PROMPT, 3, max_tokens=30)
    request.is_beam_search, request.state = True, "finished"
    answers, request.ended_beams = reference_beams(PROMPT, 30, shape.vocab_size, 3, shape.eos_every)
    for sample, answer in zip(request.samples, answers, strict=True):
        sample.answer = answer
    assert wrong_answers(request, shape) == 0
    request.children[1].answer = [*answers[2][:-1], 5]
    assert wrong_answers(request, shape) > 0
    request.children[1].answer = answers[2]
    request.ended_beams = request.ended_beams[:-1]
    assert wrong_answers(request, shape) > 0


def test_damage_to_a_block_of_all_beams_changes_the_search():
    """Their tokens and scores are others from then on."""
    with Engine(EngineConfig()) as engine:
        request = engine.submit(PROMPT, 8, n=2, beams=True)
        engine.step()
        engine.step()
        for layer in engine.kv_cache():
            for tensor in layer:
                tensor[request.blocks.block_ids[0]] = 7
        engine.run()
        assert engine.oracle.corruptions > 0
        assert wrong_answers(request, engine.config.shape) > 0
