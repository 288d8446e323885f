"""Block tables are remembered from the batches, and read when a sequence is freed."""

import numpy as np
import pytest

from mindie_kvpool_plugin.host.sequence_table import SequenceTable

SIZE = 4


class Context:
    """Stands for the host's context store: lengths and tokens by handle."""

    def __init__(self):
        self.seq_lens = np.zeros(16, dtype=np.int32)
        self.ids = np.zeros((16, 64), dtype=np.int32)

    def hold(self, handle, tokens):
        self.seq_lens[handle] = len(tokens)
        self.ids[handle, : len(tokens)] = tokens

    def get_seq_lens(self, handles):
        return self.seq_lens[handles]

    def get_all_input_ids(self, handles):
        return self.ids[handles]


def table(*rows):
    width = max(len(row) for row in rows)
    return np.array([[*row, *[-1] * (width - len(row))] for row in rows], dtype=np.int32)


def started(tokens, blocks, handle=9, sequence=70):
    context = Context()
    sequences = SequenceTable(context, SIZE)
    context.hold(handle, tokens)
    sequences.enter(sequence, handle, table(blocks), 0, poolable=True)
    return context, sequences


def test_look_counts_full_blocks_of_computed_tokens():
    """Nine tokens, the ninth just sampled: its KV is missing, two blocks of four are full."""
    _, sequences = started(range(9), [3, 5, 7])
    left, given = sequences.look(70)
    assert left.block_ids.tolist() == [3, 5]
    assert left.tokens.tolist() == list(range(8))
    assert given.all()


def test_look_leaves_out_a_block_whose_last_token_is_not_computed():
    """Eight tokens of which the eighth was just sampled fill one block."""
    _, sequences = started(range(8), [3, 5])
    assert sequences.look(70)[0].block_ids.tolist() == [3]


def test_generated_blocks_are_noted_as_they_appear():
    """A decode batch brings block 8; the answer's blocks count like the prompt's."""
    context, sequences = started(range(5), [3, 5])
    current, new = sequences.advance(np.array([70]), np.array([9], np.int32), table([3, 5]))
    assert current.tolist() == [5]
    assert new == []
    current, new = sequences.advance(np.array([70]), np.array([9], np.int32), table([3, 5, 8]))
    assert current.tolist() == [5]
    assert [(sequence, blocks.tolist()) for sequence, blocks in new] == [(70, [8])]
    context.hold(9, range(14))
    assert sequences.look(70)[0].block_ids.tolist() == [3, 5, 8]


def test_a_block_the_host_replaced_is_marked():
    """The scheduler merged block 5 into another sequence's block 6."""
    context, sequences = started(range(5), [3, 5])
    sequences.advance(np.array([70]), np.array([9], np.int32), table([3, 6]))
    context.hold(9, range(9))
    left, given = sequences.look(70)
    assert left.block_ids.tolist() == [3, 6]
    assert given.tolist() == [True, False]


def test_a_sequence_that_left_is_unknown():
    """The second free event of an asynchronous run finds nothing."""
    _, sequences = started(range(9), [3, 5, 7])
    sequences.leave(70)
    assert sequences.look(70) is None
    sequences.leave(70)


def test_a_reused_handle_forgets_its_old_sequence():
    """After a recovery the host reuses handles without free events."""
    context, sequences = started(range(9), [3, 5, 7])
    context.hold(9, range(100, 109))
    sequences.enter(71, 9, table([1, 2, 4]), 0, poolable=True)
    assert sequences.look(70) is None
    assert sequences.look(71)[0].tokens[0] == 100


def test_a_sequence_never_prefilled_here_is_guarded_but_not_pooled():
    """A beam appears first in a decode batch: its last block counts as newly written, nothing is spilled."""
    context = Context()
    sequences = SequenceTable(context, SIZE)
    context.hold(9, range(9))
    _, new = sequences.advance(np.array([70]), np.array([9], np.int32), table([3, 5, 7]))
    assert [(sequence, blocks.tolist()) for sequence, blocks in new] == [(70, [7])]
    assert sequences.look(70) is None


def test_an_adapter_sequence_is_not_pooled():
    """LoRA: the KV depends on the adapter, the digest does not."""
    context = Context()
    sequences = SequenceTable(context, SIZE)
    context.hold(9, range(9))
    sequences.enter(70, 9, table([3, 5, 7]), 0, poolable=False)
    assert sequences.look(70) is None


def test_a_restarted_sequence_takes_its_new_blocks():
    """Preempted and prefilled again under the same id."""
    context, sequences = started(range(9), [3, 5, 7])
    context.hold(4, range(9))
    sequences.leave(70)
    sequences.enter(70, 4, table([11, 12, 13]), 0, poolable=True)
    assert sequences.look(70)[0].block_ids.tolist() == [11, 12]


def test_hash_notes_live_as_long_as_the_sequence():
    """What was hashed at a reload is handed over with the freed blocks and forgotten with the sequence."""
    _, sequences = started(range(9), [3, 5, 7])
    assert sequences.look(70)[0].hashed is None
    notes = sequences.hashed(70)
    assert sequences.hashed(70) is notes
    assert sequences.look(70)[0].hashed is notes
    sequences.leave(70)
    assert sequences.hashed(70) is not notes


def test_look_copies_tokens():
    """The host reuses its store while the spill thread still hashes what a sequence left."""
    context, sequences = started(range(9), [3, 5, 7])
    left, _ = sequences.look(70)
    context.hold(9, [99] * 9)
    assert left.tokens.tolist() == list(range(8))
    assert left.tokens.dtype == np.int64


def test_look_ends_where_the_tokens_stop_being_certain():
    """A beam's answer may become another beam's: of 5 prompt and 7 answer tokens one block of four counts."""
    context, sequences = started(range(5), [3, 5])
    sequences.enter(70, 9, table([3, 5]), 0, poolable=True, certain=5)
    context.hold(9, range(12))
    sequences.advance(np.array([70]), np.array([9], np.int32), table([3, 5, 6]))
    assert sequences.look(70)[0].block_ids.tolist() == [3]


def test_tokens_that_settle_late_count_one_step_later():
    """``la`` answers several tokens whose KV is in place after the next step."""
    context = Context()
    sequences = SequenceTable(context, SIZE, settles_late=True)
    context.hold(9, range(5))
    sequences.enter(70, 9, table([3, 5, 6]), 0, poolable=True, certain=5)
    sequences.advance(np.array([70]), np.array([9], np.int32), table([3, 5, 6]))
    context.hold(9, range(9))  # the step answered four tokens; 5 of 9 are certain
    assert sequences.look(70)[0].block_ids.tolist() == [3]
    sequences.advance(np.array([70]), np.array([9], np.int32), table([3, 5, 6]))
    context.hold(9, range(10))
    assert sequences.look(70)[0].block_ids.tolist() == [3, 5]


@pytest.mark.parametrize("settles_late", [True, False])
def test_of_a_sequence_that_la_has_seen_before_only_the_prompt_counts(settles_late):
    """Preempted by recomputation: ``la`` feeds its stale token after the second prefill."""
    context = Context()
    sequences = SequenceTable(context, SIZE, settles_late=settles_late)
    for handle, sequence_id in ((9, 70), (8, 71)):
        context.hold(handle, range(5))
        sequences.enter(sequence_id, handle, table([3, 5, 6]), 0, poolable=True)
    sequences.leave(70)
    context.hold(9, range(5))
    sequences.enter(70, 9, table([1, 2, 4]), 0, poolable=True)
    found = {}
    for handle, sequence_id in ((9, 70), (8, 71)):
        context.hold(handle, range(9))
        sequences.advance(np.array([sequence_id]), np.array([handle], np.int32), table([1, 2, 4]))
        context.hold(handle, range(10))
        found[sequence_id] = len(sequences.look(sequence_id)[0].block_ids)
    assert found == {70: 1 if settles_late else 2, 71: 2}


def test_a_sequence_whose_blocks_were_pulled_is_pooled_like_a_computed_one():
    """A decode node sees it first in a decode batch; another stranger, such as a beam, stays out."""
    context = Context()
    sequences = SequenceTable(context, SIZE)
    sequences.expect(70, None, np.arange(2))
    for handle in (9, 8):
        context.hold(handle, range(9))
    sequences.advance(np.array([70, 71]), np.array([9, 8], np.int32), table([3, 5, 6], [1, 2, 4]))
    assert sequences.look(70)[0].block_ids.tolist() == [3, 5]
    assert sequences.look(71) is None


def test_pulled_blocks_are_looked_at_in_the_order_of_their_tokens():
    """Of five blocks the first, third, second: so they came from two ranks; what is generated follows."""
    context = Context()
    sequences = SequenceTable(context, SIZE)
    sequences.expect(70, None, np.array([0, 2, 1]))
    context.hold(9, range(11))
    sequences.advance(np.array([70]), np.array([9], np.int32), table([3, 5, 6]))
    assert sequences.look(70)[0].block_ids.tolist() == [3, 6]
    context.hold(9, range(17))
    sequences.advance(np.array([70]), np.array([9], np.int32), table([3, 5, 6, 8, 9]))
    left, given = sequences.look(70)
    assert left.block_ids.tolist() == [3, 6, 5, 8]
    assert left.tokens.tolist() == list(range(16))
    assert given.all()


def test_clear_forgets_running_sequences_and_those_that_were_pulled():
    """A recovery: ids may come again and mean something else."""
    context, sequences = started(range(9), [3, 5, 7])
    sequences.expect(71, None, np.arange(2))
    sequences.clear()
    assert sequences.look(70) is None
    context.hold(8, range(9))
    sequences.advance(np.array([71]), np.array([8], np.int32), table([1, 2, 4]))
    assert sequences.look(71) is None
